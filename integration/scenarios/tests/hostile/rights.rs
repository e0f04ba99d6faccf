//! Tests the daemon with few capabilities, and its messages if a capability is missing.

use std::time::Duration;

use anyhow::ensure;
use scenarios::{Cluster, Outcome, Service, get, tcp};

fn web() -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 fd44:1::10")
}

/// User id without an entry in `/etc/passwd`.
const NOBODY: u32 = 65_532;
/// User id of root. Only root may read the kernel's list of legacy iptables tables.
const ROOT: u32 = 0;

/// Makes the daemon run as `user` with exactly these capabilities, which its child processes
/// inherit.
fn act_as(c: &mut Cluster, user: u32, capabilities: &[&str]) {
    let with = |sign: &str| -> Vec<String> {
        let own = capabilities.iter().map(|one| format!("+{one}"));
        std::iter::once(sign.to_owned()).chain(own).collect()
    };
    let ambient = format!("--ambient-caps={}", with("-all").join(","));
    let inherited = format!("--inh-caps={}", with("-all").join(","));
    let bounding = format!("--bounding-set={}", with("-all").join(","));
    let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
    c.prefix = [
        "setpriv",
        &user,
        &group,
        "--clear-groups",
        "--no-new-privs",
        &inherited,
        &ambient,
        &bounding,
    ]
    .map(Into::into)
    .to_vec();
}

fn raw() -> &'static [&'static str] {
    &["net_admin", "net_raw"]
}

pub(crate) fn a_non_root_daemon_serves_after_init_only(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    // Opens the test's directory and the iptables lock to other users. By default, only root can
    // use them.
    c.sh(&format!(
        "chmod -R a+rX {}; touch /run/xtables.lock; chmod 666 /run/xtables.lock",
        c.folder().display()
    ))?;
    let mut modes: Vec<(&str, &[&str], &[&str])> = vec![
        ("ipvs", &[], raw()),
        ("iptables", &[], raw()),
        ("userspace", &[], raw()),
    ];
    if lab::iptables_backend() == "nft" {
        modes.push(("ipvs", &["--ipvs-shim=nftables"], &["net_admin"]));
        modes.push(("nftables", &[], &["net_admin"]));
        modes.push(("userspace", &[], &["net_admin"]));
    }
    for (mode, flags, capabilities) in modes {
        let mode = format!("--proxy-mode={mode}");
        let flags = [&[mode.as_str()], flags].concat();
        c.prefix.clear();
        let manifests = format!("--manifests={}", c.manifests().display());
        c.launch_with(&[&[manifests.as_str(), "--init-only"], &flags[..]].concat())?;
        c.await_end()?;
        let is_legacy = lab::iptables_backend() == "legacy";
        let user = if is_legacy { ROOT } else { NOBODY };
        act_as(c, user, capabilities);
        c.patience = Duration::from_secs(20);
        c.start(&flags)?;
        for to in ["10.96.0.10:80", "[fd96::10]:80"] {
            c.until_answered(&c.client, to)?;
        }
        for to in ["10.96.0.10:80", "172.35.0.100:30080"] {
            c.until_answered(&c.outside, to)?;
        }
        let rights = c.sh(&format!(
            "grep -E '^(Uid|CapEff|CapBnd)' /proc/{}/status",
            c.daemon_id()?
        ))?;
        // Bit 12 of a capability set is CAP_NET_ADMIN, bit 13 is CAP_NET_RAW.
        let bits = if capabilities.len() == 2 {
            "0000000000003000"
        } else {
            "0000000000001000"
        };
        ensure!(
            rights.matches(bits).count() == 2 && rights.contains(&format!("Uid:\t{user}\t")),
            "{mode}: {rights}"
        );
        if mode != "--proxy-mode=iptables" {
            let local = c.sh("cat /proc/sys/net/ipv4/conf/all/route_localnet")?;
            ensure!(local.trim() == "0", "{mode}: route_localnet is {local}");
        }
        c.stop()?;
        let said = c.said();
        let last = said.rsplit("first sync done").next().unwrap_or_default();
        let wrong = last.lines().find(|line| line.starts_with('E'));
        ensure!(wrong.is_none(), "{mode}: {wrong:?}");
        if mode == "--proxy-mode=iptables" {
            c.sh("echo 0 >/proc/sys/net/ipv4/conf/all/route_localnet")?;
        }
    }
    c.prefix.clear();
    Ok(())
}

pub(crate) fn unwritable_kernel_settings_are_named(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    c.sh(&format!("chmod -R a+rX {}", c.folder().display()))?;
    c.sh("echo 0 >/proc/sys/net/ipv4/ip_forward")?;
    // The daemon exits in each mode if a capability is missing, and its message names the
    // capability.
    let mut modes = vec!["ipvs", "iptables", "userspace"];
    if lab::iptables_backend() == "nft" {
        modes.push("nftables");
    }
    for mode in &modes {
        let mode = format!("--proxy-mode={mode}");
        act_as(c, NOBODY, &[]);
        c.launch(&[&mode])?;
        let said = c.refusal()?;
        ensure!(said.contains("CAP_NET_ADMIN"), "{mode}: {said}");
    }
    // The daemon has all capabilities, but the kernel settings are read-only. It must log the
    // settings and the next step.
    let read_only =
        "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$@\"";
    c.prefix = ["sh", "-c", read_only, "sh"].map(Into::into).to_vec();
    c.launch(&[])?;
    let said = c.refusal()?;
    for part in [
        "net.ipv4.ip_forward",
        "Read-only file system",
        "--init-only",
    ] {
        ensure!(said.contains(part), "{part}: {said}");
    }
    c.prefix.clear();
    c.sh("echo 1 >/proc/sys/net/ipv4/ip_forward")?;
    Ok(())
}

/// HTTP endpoints other than probes are read-only, and respond only to clients on this node.
pub(crate) fn only_this_node_can_read_the_inspection_api(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    c.start(&[])?;
    c.until_served(&web())?;
    let listening = c.sh("ss -Hltnp | grep kube-proxy || ss -Hltn")?;
    for line in listening.lines().filter(|line| line.contains("kube-proxy")) {
        let is_health = line.contains(":10256");
        ensure!(is_health || line.contains("127.0.0.1:10249"), "{line}");
    }
    for path in [
        "/metrics",
        "/configz",
        "/flagz",
        "/api/v1/status",
        "/ui/",
        "/debug/pprof/",
        "/api/v1/services",
    ] {
        for from in [&c.outside, &c.client] {
            ensure!(get(from, "172.35.0.100:10249", path).is_err(), "{path}");
            let (code, _) = get(from, "172.35.0.100:10256", path)?;
            ensure!(code == 404, "{path}: {code}");
        }
    }
    // On this node, only root may query the daemon's internals through its local socket.
    let program = scenarios::kube_proxy()?;
    let asked = c.sh(&format!(
        "setpriv --reuid=1000 --regid=1000 --clear-groups {} services 2>&1 || true",
        program.display()
    ))?;
    ensure!(!asked.contains("10.96.0.10"), "{asked}");
    c.stop()
}
