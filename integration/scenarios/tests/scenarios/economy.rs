//! Tests that the daemon starts iptables programs and writes kernel entries only if necessary.

use std::time::Duration;

use scenarios::{Cluster, Outcome, Programs, Service, tcp};

pub(crate) fn endpoint_changes_start_no_program(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10");
    // This Service has an endpoint on node1, so that the hairpin set always has a member. Changes
    // of the other Services then do not change rules.
    let near = Service::new("near", "10.96.0.12 fd96::12")
        .port(tcp(80, 8081))
        .endpoints("10.244.1.10 fd44:1::10");
    let other = Service::new("other", "10.96.0.11")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10");
    c.apply(&web)?;
    c.apply(&near)?;
    let programs = Programs::record(c)?;
    c.start(&[])?;
    c.until_served(&web)?;
    // The kernel has no rules, so the daemon neither reads rules nor tests the iptables backends by
    // a write.
    let backend = lab::iptables_backend();
    let of_both = |verb: &str| [4, 6].map(|family| program(family, backend, verb));
    assert_eq!(sorted(programs.take()?), of_both("restore write"));

    // Replaces endpoints, and adds and removes a Service with only a cluster IP.
    let moved = web.clone().endpoints("10.244.2.10 fd44:2::10");
    c.apply(&moved)?;
    c.until_served(&moved)?;
    c.apply(&other)?;
    c.until_served(&other)?;
    c.delete("other")?;
    c.until_gone("TCP 10.96.0.11:80")?;
    c.apply(&web)?;
    c.until_served(&web)?;
    assert_eq!(
        programs.take()?,
        [""; 0],
        "changes that leave the rules as they are"
    );

    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(programs.take()?, [""; 0], "idle");

    // The first external IP needs new rules, the second only set members.
    c.apply(&web.clone().external("192.0.2.20"))?;
    c.until("it is there", || {
        Ok(c.servers()?.contains_key("TCP 192.0.2.20:80"))
    })?;
    assert_eq!(programs.take()?, [program(4, backend, "restore write")]);
    c.apply(&web.clone().external("192.0.2.20 192.0.2.21"))?;
    c.until("it is there", || {
        Ok(c.servers()?.contains_key("TCP 192.0.2.21:80"))
    })?;
    assert_eq!(programs.take()?, [""; 0]);
    c.apply(&web)?;
    c.until_gone("TCP 192.0.2.20:80")?;
    c.until_gone("TCP 192.0.2.21:80")?;
    c.stop()?;
    programs.take()?;

    // A starting daemon reads the rules of each family once. If they are right, it reads them again
    // only after another program has changed a rule.
    c.start(&["--ipvs-sync-period=1s"])?;
    c.until_served(&web)?;
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(sorted(programs.take()?), of_both("save"));
    c.sh("iptables-$backend -N NOT-OURS")?;
    std::thread::sleep(Duration::from_millis(2500));
    let read = sorted(programs.take()?);
    // With iptables-nft, a change of one family may make the daemon read both families' rules,
    // because all nftables tables share one generation ID.
    let own = [program(4, backend, "save")];
    assert!(read == own || read == of_both("save"), "{read:?}");
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(programs.take()?, [""; 0], "nobody has changed a rule");
    Ok(())
}

/// Returns the call of an iptables program as [`Programs`] records it, such as `iptables-nft-save`.
fn program(family: u8, backend: &str, verb: &str) -> String {
    let stem = if family == 4 { "iptables" } else { "ip6tables" };
    format!("{stem}-{backend}-{verb}")
}

/// Sorts calls of programs, IPv4 before IPv6.
fn sorted(mut calls: Vec<String>) -> Vec<String> {
    calls.sort_unstable_by(|one, next| next.cmp(one));
    calls
}
