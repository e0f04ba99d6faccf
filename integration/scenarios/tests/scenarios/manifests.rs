//! Tests a manifest directory whose files change while the daemon runs.

use std::fs;
use std::time::Duration;

use lab::Transport;
use scenarios::{Cluster, FIRST_TRY, Outcome, Service, at, tally, tcp, under_traffic};

/// Time limit for a change of a file to reach the kernel. The daemon is much faster, but the test
/// polls with `ipvsadm`, which is slow.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);

fn web() -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10")
}

pub(crate) fn added_edited_and_deleted_manifests_are_followed(c: &mut Cluster) -> Outcome {
    c.start(&[])?;
    c.apply(&web())?;
    let added = c.until_served(&web())?;
    assert_eq!(
        tally(&c.client, Transport::Tcp, at("10.96.0.10:80"), 2)?.len(),
        2
    );

    let edited = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(81, 8080))
        .endpoints("10.244.2.10 fd44:2::10");
    c.apply(&edited)?;
    let changed = c.until_served(&edited)?;
    c.until_gone("TCP 10.96.0.10:80")?;
    assert_eq!(
        c.client.ask_tcp(at("10.96.0.10:81"), scenarios::SOON)?.who,
        "far"
    );
    assert_eq!(
        c.client.ask_tcp(at("[fd96::10]:81"), scenarios::SOON)?.who,
        "far"
    );
    c.refuses(&c.client, "10.96.0.10:80")?;

    c.delete("web")?;
    let gone = c.until("nothing is left", || {
        Ok(c.servers()?.is_empty()
            && !c
                .addresses()?
                .iter()
                .any(|address| address.starts_with("kube-ipvs0")))
    })?;
    assert_eq!(
        c.members("KUBE-CLUSTER-IP")?.len() + c.members("KUBE-LOOP-BACK")?.len(),
        0
    );
    c.refuses(&c.client, "10.96.0.10:81")?;
    assert!(
        added.max(changed).max(gone) < FOLLOWED_WITHIN,
        "followed after {added:?}, {changed:?}, {gone:?}"
    );
    Ok(())
}

/// Editors and, for ConfigMaps, the kubelet replace a file by renaming a new file over it.
pub(crate) fn manifests_renamed_into_place_are_followed(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    c.start(&[])?;
    c.until_served(&web())?;
    let edited = web().endpoints("10.244.2.10");
    let two = format!(
        "{edited}---\n{}",
        Service::new("dns", "10.96.0.53")
            .port(tcp(53, 8080))
            .endpoints("10.244.1.10")
    );
    let aside = c.folder().join("aside");
    fs::write(&aside, two)?;
    fs::rename(aside, c.manifests().join("web.yaml"))?;
    c.until_served(&edited)?;
    assert_eq!(
        c.client.ask_tcp(at("10.96.0.53:53"), scenarios::SOON)?.who,
        "near"
    );
    Ok(())
}

pub(crate) fn an_invalid_manifest_keeps_its_services(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    c.start(&[])?;
    c.until_served(&web())?;
    c.write(
        "web",
        "apiVersion: v1\nkind: Service\nmetadata: {name: web\nspec: {}\n",
    )?;
    let line = c.await_line("web.yaml:")?;
    assert!(
        line.contains("web.yaml:3") || line.contains("web.yaml:4"),
        "its line is named: {line}"
    );
    assert!(line.contains("corrected"), "the next step is named: {line}");

    // Changes of other files still take effect.
    let dns = Service::new("dns", "10.96.0.53")
        .port(tcp(53, 8080))
        .endpoints("10.244.1.10");
    c.apply(&dns)?;
    c.until_served(&dns)?;
    c.until_served(&web())?;
    assert_eq!(
        tally(&c.client, Transport::Tcp, at("10.96.0.10:80"), 2)?.len(),
        2
    );

    let repaired = web().endpoints("10.244.2.10");
    c.apply(&repaired)?;
    c.until_served(&repaired).map(drop)
}

/// While a file is invalid, its objects are unknown, so the daemon deletes nothing.
pub(crate) fn an_invalid_manifest_at_start_blocks_removals(c: &mut Cluster) -> Outcome {
    let dns = Service::new("dns", "10.96.0.53")
        .port(tcp(53, 8080))
        .endpoints("10.244.1.10");
    c.apply(&web())?;
    c.apply(&dns)?;
    c.start(&[])?;
    c.until_served(&web())?;
    c.stop()?;
    c.write("web", "kind: [")?;
    let moved = dns.endpoints("10.244.2.10");
    c.apply(&moved)?;
    c.launch(&[])?;
    let line = c.await_line("web.yaml:1")?;
    assert!(line.contains("correct"), "{line}");
    c.await_first_sync()?;
    assert_eq!(
        tally(&c.client, Transport::Tcp, at("10.96.0.10:80"), 2)?.len(),
        2
    );
    c.until("dns has its new endpoint", || {
        Ok(c.reals("TCP 10.96.0.53:53")?.contains("10.244.2.10:8080*1"))
    })?;

    // Deletes the invalid file. The daemon then knows all objects, and may remove entries.
    c.delete("web")?;
    c.until_gone("TCP 10.96.0.10:80")?;
    c.until_served(&moved).map(drop)
}

/// An edit of one file splits a Service into two, or moves its address to another Service. Clients
/// of this address must never miss a reply.
pub(crate) fn an_address_moved_between_services_is_always_served(c: &mut Cluster) -> Outcome {
    const CHANGES: usize = 12;
    const SHARED: &str = "192.0.2.30 2001:db8::30";
    let service = |name: &str, host: u8, port: u16, external: &str, endpoints: &str| {
        Service::new(name, &format!("10.96.0.{host} fd96::{host}"))
            .port(tcp(port, 8080))
            .external(external)
            .endpoints(endpoints)
    };
    let (near, far) = ("10.244.1.10 fd44:1::10", "10.244.2.10 fd44:2::10");
    let one = service("one", 30, 80, SHARED, near);
    let two = [
        service("two-a", 31, 80, SHARED, near),
        service("two-b", 32, 81, SHARED, far),
    ];
    let handed = [
        service("one", 30, 80, "192.0.2.31", near),
        service("other", 33, 80, SHARED, far),
    ];
    let file = |services: &[Service]| -> String {
        let all = services.iter().map(|service| format!("{service}---\n"));
        all.collect()
    };
    let (alone, split, handed) = (file(std::slice::from_ref(&one)), file(&two), file(&handed));
    let states = [&split, &alone, &handed, &alone];
    let write = |c: &Cluster, text: &str| -> anyhow::Result<()> {
        let aside = c.folder().join("aside");
        fs::write(&aside, text)?;
        Ok(fs::rename(aside, c.manifests().join("shared.yaml"))?)
    };
    write(c, &alone)?;
    c.start(&[])?;
    c.until_served(&one)?;
    let ways = [
        (&c.client, "192.0.2.30:80"),
        (&c.outside, "192.0.2.30:80"),
        (&c.outside, "[2001:db8::30]:80"),
    ];
    under_traffic(&ways, 0, FIRST_TRY, || {
        for state in states.into_iter().cycle().take(CHANGES) {
            write(c, state)?;
            std::thread::sleep(Duration::from_millis(250));
        }
        Ok(())
    })?;
    c.stop()
}
