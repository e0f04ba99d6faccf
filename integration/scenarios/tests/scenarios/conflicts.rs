//! Tests two Services that claim the same external IP and port.

use lab::Transport;
use scenarios::{Cluster, Outcome, Service, at, tally, tcp};

const EXTERNAL_IP: &str = "192.0.2.20:80";

pub(crate) fn the_older_service_wins_a_shared_address(c: &mut Cluster) -> Outcome {
    let claim = |name: &str, ip: &str, year: u16, endpoint: &str| {
        Service::new(name, ip)
            .port(tcp(80, 8080))
            .external("192.0.2.20")
            .endpoints(endpoint)
            .metadata(&format!("creationTimestamp: '{year}-01-01T00:00:00Z'"))
    };
    let older = claim("older", "10.96.0.10", 2020, "10.244.1.10");
    let younger = claim("a-younger", "10.96.0.11", 2021, "10.244.2.10");
    c.apply(&younger)?;
    c.apply(&older)?;
    c.start(&[])?;
    c.until_served(&older)?;
    let answers = |who: &str, c: &Cluster| -> Outcome {
        let tally = tally(&c.outside, Transport::Tcp, at(EXTERNAL_IP), 4)?;
        assert!(
            tally.keys().all(|answer| answer.starts_with(who)),
            "{who} is to answer: {tally:?}"
        );
        Ok(())
    };
    answers("near", c)?;
    // Each Service keeps the addresses and ports that no other Service claims.
    assert_eq!(
        c.client.ask_tcp(at("10.96.0.11:80"), scenarios::SOON)?.who,
        "far"
    );
    let said = c.said();
    let line = said
        .lines()
        .find(|line| line.contains("192.0.2.20"))
        .unwrap_or_default();
    assert!(
        line.contains("default/older") && line.contains("default/a-younger"),
        "both are named: {line}"
    );

    c.delete("older")?;
    c.until_served(&younger)?;
    answers("far", c)?;
    c.apply(&older)?;
    c.until_served(&older)?;
    answers("near", c)
}
