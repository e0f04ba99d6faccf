//! The node's own addresses change.

use std::time::Duration;

use scenarios::{Cluster, Outcome, Service, tcp};

pub(crate) fn node_ports_follow(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10");
    c.apply(&web)?;
    c.start(&[])?;
    c.until_served(&web)?;
    c.refuses(&c.outside, "172.35.0.150:30080")?;
    for (address, to) in [
        ("172.35.0.150/24", "172.35.0.150:30080"),
        ("fd35::150/64", "[fd35::150]:30080"),
    ] {
        c.sh(&format!(
            "ip address add {address} dev eth0 $(case {address} in *:*) echo nodad;; esac)"
        ))?;
        let added = c.until_answered(&c.outside, to)?;
        c.sh(&format!("ip address del {address} dev eth0"))?;
        let removed = c.until_gone(&format!("TCP {to}"))?;
        assert!(
            added.max(removed) < Duration::from_secs(1),
            "{to}: added after {added:?}, removed after {removed:?}"
        );
        c.refuses(&c.outside, to)?;
    }
    c.until_served(&web).map(drop)
}
