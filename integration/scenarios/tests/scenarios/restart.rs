//! Tests stops and starts of the daemon.

use lab::Transport;
use scenarios::{Cluster, Outcome, Programs, Service, at, tally, tcp, udp};

pub(crate) fn a_restart_writes_nothing_and_keeps_connections(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).named("web").node_port(30080))
        .port(udp(53, 8080).named("dns").node_port(30053))
        .external("192.0.2.20")
        .ingress("192.0.2.10 2001:db8::10")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10")
        .affinity(600);
    c.apply(&web)?;
    let programs = Programs::record(c)?;
    c.start(&[])?;
    c.until_served(&web)?;
    assert!(
        programs.take()?.contains(&format!(
            "iptables-{}-restore write",
            lab::iptables_backend()
        )),
        "the wrappers work"
    );
    let mut kept = Vec::new();
    for (from, to) in [
        (&c.client, "10.96.0.10:80"),
        (&c.client, "[fd96::10]:80"),
        (&c.outside, "172.35.0.100:30080"),
    ] {
        kept.push(from.open_tcp(at(to), scenarios::SOON)?);
    }
    let mut all_answer = || {
        kept.iter_mut()
            .try_for_each(|connection| connection.ask().map(drop))
    };
    all_answer()?;
    let before = c.state()?;

    c.stop()?;
    assert_eq!(c.state()?, before);
    all_answer()?;
    // Watches links only for `kube-ipvs0`, because the kernel may report a change of the pods'
    // links up to a second late.
    let watches = [
        c.node1.spawn(["ip", "monitor", "address", "route"])?,
        c.node1
            .spawn(["ip", "monitor", "link", "dev", "kube-ipvs0"])?,
    ];
    c.launch(&[])?;
    for _family in 0..2 {
        let line = c.await_line("first sync done")?;
        assert!(
            line.contains("written=0") && line.contains("pending=0"),
            "{line}"
        );
    }
    assert_eq!(c.state()?, before);
    for watch in &watches {
        assert_eq!(watch.said(), "", "no link, address or route was touched");
    }
    let written: Vec<_> = programs
        .take()?
        .into_iter()
        .filter(|call| call.ends_with(" write"))
        .collect();
    assert_eq!(written, [""; 0], "no rule was written");
    all_answer()?;
    assert_eq!(
        tally(&c.outside, Transport::Tcp, at("192.0.2.10:80"), 4)?.len(),
        1,
        "session affinity lives, too"
    );
    Ok(())
}
