//! Tests the removal of endpoints that have open connections.
#![allow(
    clippy::indexing_slicing,
    reason = "what an object has not is null; a story stops at the first surprise"
)]

use std::time::{Duration, Instant};

use anyhow::ensure;
use lab::{Connection, Place, Transport};
use scenarios::{Cluster, Outcome, Service, Tally, ask, ask_json, at, tally, tcp, udp};

const CLUSTER_IP: &str = "10.96.0.10:80";

/// Opens a connection from `from` to the pod `who`. Its end is a reset, because IPVS keeps a
/// regularly closed connection for two minutes.
fn open_to(who: &str, from: &Place, transport: Transport) -> anyhow::Result<Connection> {
    for _ in 0..4 {
        let mut connection = from
            .dial(transport, at(CLUSTER_IP))
            .reset_on_close()
            .open()?;
        if connection.ask()?.who == who {
            return Ok(connection);
        }
    }
    anyhow::bail!("{who} does not answer")
}

/// Checks that `kube-proxy services` lists the removed endpoint as draining, with one open
/// connection.
fn reports_the_drain(c: &Cluster) -> Outcome {
    let (code, one) = ask_json(c, &["services", "default/web"])?;
    ensure!(code == 0, "{code} {one}");
    let port = &one["ports"][0];
    ensure!(port["endpointCounts"]["draining"] == 1, "{port}");
    ensure!(port["endpointCounts"]["total"] == 1, "{port}");
    let endpoint = &port["endpoints"][1];
    ensure!(
        endpoint["at"] == "10.244.2.10:8080"
            && endpoint["condition"] == "draining"
            && endpoint["weight"] == 0
            && endpoint["cluster"] == false
            && endpoint["draining"]["open"] == 1
            && endpoint["draining"]["seconds"].is_f64(),
        "{endpoint}"
    );
    let (_, text) = ask(c, &["services", "default/web"])?;
    let line = text.lines().find(|line| line.contains("10.244.2.10:8080"));
    let parts = [
        "draining",
        "no EndpointSlice has it any more; drains for",
        ": 1 connection open",
        "--ipvs-drain-timeout",
    ];
    ensure!(
        line.is_some_and(|line| parts.iter().all(|part| line.contains(part))),
        "{text}"
    );
    let (_, text) = ask(c, &["services"])?;
    ensure!(text.contains("1/1/1, 1 draining"), "{text}");
    let (_, text) = ask(c, &["status"])?;
    ensure!(
        text.contains("Draining (1)") && text.contains("10.244.2.10:8080"),
        "{text}"
    );
    Ok(())
}

pub(crate) fn an_open_connection_of_a_removed_endpoint_continues(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10 10.244.2.10");
    let without = web.clone().endpoints("10.244.1.10");
    c.apply(&web)?;
    c.start(&[])?;
    c.until_served(&web)?;
    let mut kept = open_to("far", &c.client, Transport::Tcp)?;

    c.apply(&without)?;
    c.until_reals("TCP 10.96.0.10:80", "10.244.1.10:8080*1 10.244.2.10:8080*0")?;
    assert_eq!(kept.ask()?.who, "far");
    let only_near = Tally::from([("near from 10.244.1.99".to_owned(), 4)]);
    assert_eq!(
        tally(&c.client, Transport::Tcp, at(CLUSTER_IP), 4)?,
        only_near
    );
    reports_the_drain(c)?;

    // Adds the endpoint while its connection is open, removes it again, and restarts the daemon.
    // The drain must continue.
    c.apply(&web)?;
    c.until_served(&web)?;
    assert_eq!(kept.ask()?.who, "far");
    c.apply(&without)?;
    c.until_reals("TCP 10.96.0.10:80", "10.244.1.10:8080*1 10.244.2.10:8080*0")?;
    c.stop()?;
    c.start(&[])?;
    assert_eq!(
        c.reals("TCP 10.96.0.10:80")?,
        "10.244.1.10:8080*1 10.244.2.10:8080*0"
    );
    assert_eq!(kept.ask()?.who, "far");
    reports_the_drain(c)?;

    // IPVS keeps a reset connection for ten seconds, and the daemon checks draining destinations at
    // least every eight seconds.
    drop(kept);
    let closed = Instant::now();
    while c.reals("TCP 10.96.0.10:80")? != "10.244.1.10:8080*1" {
        assert!(
            closed.elapsed() < Duration::from_secs(25),
            "still there: {:?}",
            c.reals("TCP 10.96.0.10:80")?
        );
        std::thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}

pub(crate) fn udp_clients_of_a_removed_endpoint_move_to_a_remaining_endpoint_immediately(
    c: &mut Cluster,
) -> Outcome {
    let dns = Service::new("dns", "10.96.0.10")
        .port(udp(80, 8080))
        .endpoints("10.244.1.10 10.244.2.10");
    c.apply(&dns)?;
    c.start(&[])?;
    c.until_served(&dns)?;
    let mut flow = c
        .client
        .dial(Transport::Udp, at(CLUSTER_IP))
        .timeout(Duration::from_millis(300))
        .open()?;
    let (left, next) = match &*flow.ask()?.who {
        "near" => ("10.244.2.10", "far"),
        _ => ("10.244.1.10", "near"),
    };
    let moved = dns.endpoints(left);
    c.apply(&moved)?;
    c.until_served(&moved)?;
    // One datagram to the removed destination may be lost. The next one must reach the other
    // endpoint.
    let answer = flow.ask().or_else(|_| flow.ask())?;
    assert_eq!(answer.who, next);
    Ok(())
}

/// Removes and adds one endpoint under TCP requests while the other endpoint stays. At the same
/// time, adds and removes another Service.
pub(crate) fn endpoint_changes_fail_no_tcp_request(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10").port(tcp(80, 8080).node_port(30080));
    let (both, near) = (
        web.clone().endpoints("10.244.1.10 10.244.2.10"),
        web.endpoints("10.244.1.10"),
    );
    let other = Service::new("other", "10.96.0.11")
        .port(tcp(80, 8080))
        .external("192.0.2.20")
        .endpoints("10.244.2.10");
    c.apply(&both)?;
    c.start(&[])?;
    c.until_served(&both)?;
    for _ in 0..8 {
        c.apply(&near)?;
        c.apply(&other)?;
        tally(&c.client, Transport::Tcp, at(CLUSTER_IP), 40)?;
        c.apply(&both)?;
        c.delete("other")?;
        tally(&c.outside, Transport::Tcp, at("172.35.0.100:30080"), 40)?;
    }
    c.until_served(&both).map(drop)
}
