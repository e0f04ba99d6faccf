//! Tests starts that must fail. The daemon logs the cause and the next step, and exits with status
//! 2 for invalid flags or configuration, otherwise with status 1.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use scenarios::{Cluster, Modprobe, Outcome, Service, tcp};

fn says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(
            said.contains(part),
            "{part:?} is not in what it said:\n{said}"
        );
    }
}

pub(crate) fn a_kernel_without_ip_vs_is_reported(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10");
    c.apply(&web)?;
    // Loads the other modules that a start needs, so that only `ip_vs` is missing.
    c.sh("modprobe -a iptable_nat iptable_filter ip6table_nat ip6table_filter xt_addrtype xt_mark ip_set")?;
    let bin = c.folder().join("bin");
    fs::create_dir_all(&bin)?;
    fs::write(
        bin.join("modprobe"),
        "#!/bin/sh\necho \"modprobe: FATAL: Module $1 not found\" >&2; exit 1\n",
    )?;
    fs::set_permissions(bin.join("modprobe"), fs::Permissions::from_mode(0o755))?;
    let path = format!(
        "PATH={}:{}",
        bin.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    c.prefix = vec!["env".into(), path.into()];
    let taken_away = Modprobe::take_away()?;
    c.launch(&[])?;
    let said = c.refusal();
    drop(taken_away);
    says(
        &said?,
        &[
            "IPVS",
            "Module ip_vs not found",
            "Run `modprobe ip_vs` on the host",
        ],
    );

    // Without the fault, the kernel loads `ip_vs` on demand, and the operator has nothing to do.
    c.prefix.clear();
    c.start(&[])?;
    c.until_served(&web)?;
    c.until_answered(&c.client, "10.96.0.10:80").map(drop)
}

pub(crate) fn missing_capabilities_are_reported(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10");
    c.apply(&web)?;
    c.start(&[])?;
    c.until_served(&web)?;
    c.stop()?;
    let before = c.state()?;
    c.prefix = [
        "setpriv",
        "--bounding-set=-net_admin",
        "--inh-caps=-net_admin",
    ]
    .map(Into::into)
    .to_vec();
    c.launch(&[])?;
    says(&c.refusal()?, &["CAP_NET_ADMIN", "root"]);
    assert_eq!(c.state()?, before);
    c.until_answered(&c.client, "10.96.0.10:80").map(drop)
}

pub(crate) fn a_missing_scheduler_stops_the_start(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10");
    let parts = ["`nosuch`", "--ipvs-scheduler"];
    c.apply(&web)?;
    c.launch(&["--ipvs-scheduler=nosuch"])?;
    says(&c.refusal()?, &parts);
    assert!(c.servers()?.is_empty() && c.addresses()?.iter().all(|at| !at.contains("kube-ipvs0")));

    // The failed starts have changed no kernel entry, so the Service still works.
    c.start(&[])?;
    c.until_served(&web)?;
    c.stop()?;
    let before = c.state()?;
    c.launch(&["--ipvs-scheduler=nosuch"])?;
    let said = c.refusal()?;
    says(&said, &parts);
    says(&said, &["Run `modprobe ip_vs_nosuch` on the host"]);
    assert_eq!(c.state()?, before);
    c.until_answered(&c.client, "10.96.0.10:80")?;
    // `check` makes no test write, and can therefore find the missing module only in the lists of
    // modules.
    let lists = c.sh("ls /lib/modules/$(uname -r)/modules.dep 2>/dev/null || true")?;
    let foreseen = c.check(&["--ipvs-scheduler=nosuch"])?;
    assert_eq!(
        foreseen.contains("no scheduler `nosuch`"),
        !lists.is_empty(),
        "{foreseen}"
    );
    assert_eq!(c.state()?, before);

    // The kernel loads an existing scheduler module on demand. The daemon also removes a test's
    // virtual server that an earlier daemon left behind when it crashed.
    c.sh("ipvsadm -A -t 198.51.100.0:20000 -s rr")?;
    c.start(&["--ipvs-scheduler=mh"])?;
    c.until_served(&web)?;
    let servers = c.servers()?;
    assert_eq!(servers.len(), 1, "{servers:?}");
    assert!(
        servers
            .values()
            .all(|server| server.properties.starts_with("mh")),
        "{servers:?}"
    );
    c.until_answered(&c.client, "10.96.0.10:80").map(drop)
}

pub(crate) fn unknown_flags_stop_the_start(c: &mut Cluster) -> Outcome {
    for (flag, parts) in [
        (
            "--ipvs-shceduler=wrr",
            ["--ipvs-shceduler;", "is --ipvs-scheduler meant"],
        ),
        (
            "--proxy-mode=nonesuch",
            ["--proxy-mode", "iptables, ipvs, nftables, userspace"],
        ),
        ("--ipvs-sync-period=1", ["--ipvs-sync-period", "'1'"]),
    ] {
        c.launch(&[flag])?;
        says(&c.usage_error()?, &parts);
    }
    assert!(c.servers()?.is_empty());
    Ok(())
}

pub(crate) fn a_missing_manifest_directory_stops_the_start(c: &mut Cluster) -> Outcome {
    c.launch_with(&["--manifests=/nonexistent/manifests"])?;
    says(
        &c.refusal()?,
        &[
            "/nonexistent/manifests",
            "No such file",
            "create the directory, or correct --manifests",
        ],
    );
    Ok(())
}

pub(crate) fn an_unreadable_kubeconfig_stops_the_start(c: &mut Cluster) -> Outcome {
    c.launch_with(&["--kubeconfig=/nonexistent/kubeconfig"])?;
    says(&c.refusal()?, &["/nonexistent/kubeconfig", "No such file"]);

    let broken = c.folder().join("broken");
    fs::write(&broken, "apiVersion: v1\nclusters: {[\n")?;
    let flag = format!("--kubeconfig={}", broken.display());
    c.launch_with(&[&flag])?;
    says(&c.refusal()?, &[&*broken.to_string_lossy(), "line 2"]);
    Ok(())
}
