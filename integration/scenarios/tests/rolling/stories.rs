//! Tests of draining, each of which covers one aspect.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use lab::http::{connect, get};
use lab::{Connection, Dial, Failure, Place, Transport};
use scenarios::{Cluster, Outcome, Service, Tally, at, sctp, tally, tcp, udp, with_backend};

use crate::web::Web;

const CLUSTER_IP: &str = "10.96.0.10:80";
const NODE_PORT: &str = "172.35.0.100:30080";
const SERVER: &str = "TCP 10.96.0.10:80";
/// Endpoints in the format of `Cluster::until_reals`.
const NEAR: &str = "10.244.1.10:8080";
const FAR: &str = "10.244.2.10:8080";

fn web(endpoints: &str) -> Service {
    Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints(endpoints)
}

const BOTH: &str = "10.244.1.10 10.244.2.10";
/// Timeout of a connection attempt, shorter than TCP's initial retransmission timeout (1 s). A lost
/// SYN therefore makes the attempt fail.
const AT_ONCE: Duration = Duration::from_millis(900);
const ONLY_NEAR: &str = "10.244.1.10";
const ONLY_FAR: &str = "10.244.2.10";

/// Opens connections until the pod `who` replies. Resets the other connections, which IPVS then
/// keeps for only ten seconds.
fn open_to(who: &str, dial: &Dial<'_>) -> Result<Connection> {
    for _ in 0..4 {
        let mut connection = dial.clone().reset_on_close().open()?;
        if connection.ask()?.who == who {
            return Ok(connection);
        }
    }
    bail!("{who} does not answer")
}

pub(crate) fn an_endpoint_that_returns_during_a_restart_serves(c: &mut Cluster) -> Outcome {
    c.apply(&web(BOTH))?;
    c.start(&[])?;
    c.until_served(&web(BOTH))?;
    let mut kept = open_to("far", &c.client.dial(Transport::Tcp, at(CLUSTER_IP)))?;
    c.apply(&web(ONLY_NEAR))?;
    c.until_reals(SERVER, &format!("{NEAR}*1 {FAR}*0"))?;
    c.stop()?;

    // The endpoint returns. Upstream left its destination at weight 0 in this case
    // (kubernetes/kubernetes#92019, kubernetes/kubernetes#108319).
    c.apply(&web(BOTH))?;
    c.start(&[])?;
    c.until_served(&web(BOTH))?;
    assert_eq!(
        kept.ask()?.who,
        "far",
        "its connection has lived through it all"
    );
    open_to("far", &c.client.dial(Transport::Tcp, at(CLUSTER_IP)))?;
    Ok(())
}

pub(crate) fn removed_udp_and_sctp_endpoints_do_not_drain(c: &mut Cluster) -> Outcome {
    let has_sctp = c
        .near
        .serve_sctp(8080)
        .and_then(|_| c.far.serve_sctp(8080))
        .is_ok();
    let mut service = Service::new("dns", "10.96.0.10").port(udp(80, 8080).named("udp"));
    let mut transports = vec![(Transport::Udp, "UDP")];
    if has_sctp {
        service = service.port(sctp(80, 8080).named("sctp"));
        transports.push((Transport::Sctp, "SCTP"));
    }
    let both = service.clone().endpoints(BOTH);
    c.apply(&both)?;
    c.start(&[])?;
    c.until_served(&both)?;
    let mut kept = Vec::new();
    for (transport, _) in &transports {
        kept.push(open_to("far", &c.client.dial(*transport, at(CLUSTER_IP)))?);
    }
    let only_near = service.endpoints(ONLY_NEAR);
    c.apply(&only_near)?;
    for (transport, name) in transports {
        let server = format!("{name} {CLUSTER_IP}");
        let mut seen = String::new();
        c.until("the destination is gone", || {
            seen = c.reals(&server)?;
            ensure!(!seen.contains("*0"), "{transport:?} is drained: {seen}");
            Ok(seen == format!("{NEAR}*1"))
        })?;
        for _ in 0..3 {
            let answer = c.client.dial(transport, at(CLUSTER_IP)).ask()?;
            assert_eq!(answer.who, "near");
        }
    }
    Ok(())
}

pub(crate) fn a_deleted_service_refuses_new_connections(c: &mut Cluster) -> Outcome {
    let ways = [
        (c.client.clone(), CLUSTER_IP),
        (c.client.clone(), NODE_PORT),
        (Place::clone(&c.node1), CLUSTER_IP),
        (Place::clone(&c.node1), NODE_PORT),
        (c.outside.clone(), CLUSTER_IP),
        (c.outside.clone(), NODE_PORT),
    ];
    c.apply(&web(BOTH))?;
    c.start(&[])?;
    c.until_served(&web(BOTH))?;
    let mut kept = open_to("near", &c.outside.dial(Transport::Tcp, at(NODE_PORT)))?;
    // One of the Service's endpoints drains while the Service is deleted.
    c.apply(&web(ONLY_FAR))?;
    c.until_reals(&format!("TCP {NODE_PORT}"), &format!("{NEAR}*0 {FAR}*1"))?;
    c.delete("web")?;
    c.until_gone(SERVER)?;
    c.until("no address is left", || {
        Ok(!c.addresses()?.iter().any(|a| a.contains("10.96.0.10")))
    })?;
    for (place, to) in &ways {
        let started = Instant::now();
        let dial = place.dial(Transport::Tcp, at(to));
        let refused = dial.open().map(drop);
        let took = started.elapsed();
        ensure!(
            matches!(refused, Err(Failure::Refused | Failure::Unreachable)) && took < AT_ONCE,
            "{} asks {to}, which is no more: {refused:?} after {took:?}",
            place.name()
        );
    }
    // The node port's address stays on the node, so the node resets an open connection to it. At a
    // removed address, the client gets an ICMP unreachable, which does not end a TCP connection.
    assert_eq!(kept.ask(), Err(Failure::Reset));
    // When the Service exists again, its address must work immediately.
    c.apply(&web(BOTH))?;
    c.until_served(&web(BOTH))?;
    c.until_answered(&c.client, CLUSTER_IP)?;
    Ok(())
}

/// Returns the state and destination of the IPVS connection from port `port` of the client pod, if
/// any.
fn entry_of(c: &Cluster, port: u16) -> Result<Option<(String, String)>> {
    let text = c.sh("ipvsadm -Lcn")?;
    let source = format!("10.244.1.99:{port}");
    let words = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut found = words.filter_map(|words| match words.as_slice() {
        ["TCP", _, state, from, CLUSTER_IP, to] if *from == source => {
            Some(((*state).to_owned(), (*to).to_owned()))
        }
        _ => None,
    });
    Ok(found.next())
}

/// A client reuses a source port while IPVS still keeps the previous connection, as busy clients
/// and NFS clients do (kubernetes/kubernetes#81775, kubernetes/kubernetes#84322).
pub(crate) fn a_client_with_a_fixed_source_port_is_served(c: &mut Cluster) -> Outcome {
    const PORT: u16 = 45_000;
    let (near, far) = (Web::serve(&c.near, 8081)?, Web::serve(&c.far, 8081)?);
    let on = |endpoints| {
        Service::new("web", "10.96.0.10")
            .port(tcp(80, 8081))
            .endpoints(endpoints)
    };
    c.apply(&on(BOTH))?;
    c.start(&[])?;
    c.until_served(&on(BOTH))?;
    let (near_at, far_at) = ("10.244.1.10:8081", "10.244.2.10:8081");

    // Each case has three values: the end of the client's first connection, the state that IPVS
    // then keeps, and the time limit of the next connection.
    let after_one_syn = Duration::from_millis(2900);
    let ways = [
        (ConnectionEnd::ServerCloses, "TIME_WAIT", AT_ONCE),
        (ConnectionEnd::Reset, "CLOSE", AT_ONCE),
        // The first SYN only ends the previous connection in IPVS, which drops the SYN. The second
        // SYN opens a new connection.
        (ConnectionEnd::Silently, "ESTABLISHED", after_one_syn),
    ];
    for (going, state, limit) in ways {
        let who = ask_and_go(c, going, PORT)?;
        let (stays, goes, left) = match &*who {
            "near" => ("far", near_at, ONLY_FAR),
            _ => ("near", far_at, ONLY_NEAR),
        };
        assert_eq!(
            entry_of(c, PORT)?,
            Some((state.to_owned(), goes.to_owned()))
        );
        c.apply(&on(left))?;
        c.until("it drains", || {
            Ok(c.reals(SERVER)?.contains(&format!("{goes}*0")))
        })?;
        for time in 0..3 {
            let started = Instant::now();
            let answer = ask(c, PORT)?;
            let took = started.elapsed();
            assert_eq!(answer, stays, "{going:?}, time {time}");
            let limit = if time == 0 { limit } else { AT_ONCE };
            assert!(took < limit, "{going:?}, time {time}: it took {took:?}");
            println!(
                "    a port whose entry was in {state}: next answer by {answer} after {took:.1?}"
            );
        }
        c.apply(&on(BOTH))?;
        c.until_served(&on(BOTH))?;
    }
    assert!(near.accepted() > 0 && far.accepted() > 0);
    Ok(())
}

/// Way in which a client's connection ends.
#[derive(Debug, Clone, Copy)]
enum ConnectionEnd {
    ServerCloses,
    Reset,
    /// The client's machine loses power, so it sends no further packet.
    Silently,
}

/// Sends one request from the client pod's port `port` on a new connection, which the server
/// closes. Returns the server's name.
fn ask(c: &Cluster, port: u16) -> Result<String> {
    let ask = || Ok(get(&mut connect(at(CLUSTER_IP), port, false)?, "/", true)?.0);
    Ok(c.client.enter(ask)?)
}

/// Sends one request from the client pod's port `port`, and then ends the connection as `going`
/// says. Returns the server's name.
fn ask_and_go(c: &Cluster, going: ConnectionEnd, port: u16) -> Result<String> {
    if matches!(going, ConnectionEnd::ServerCloses) {
        return ask(c, port);
    }
    let open = || {
        let mut socket = connect(at(CLUSTER_IP), port, true)?;
        Ok((get(&mut socket, "/", false)?.0, socket))
    };
    let (answer, socket) = c.client.enter(open)?;
    let resets = |verb: &str| {
        let rule = format!(
            "iptables-$backend {verb} OUTPUT -p tcp --sport {port} --tcp-flags RST RST -j DROP"
        );
        c.client.read(["sh", "-ec", &with_backend(&rule)])
    };
    if matches!(going, ConnectionEnd::Silently) {
        resets("-I")?;
        drop(socket);
        resets("-D")?;
    } else {
        drop(socket);
    }
    Ok(answer)
}

pub(crate) fn a_client_with_affinity_moves_from_a_draining_endpoint(c: &mut Cluster) -> Outcome {
    let sticky = |endpoints| web(endpoints).affinity(10_800);
    let answers = |c: &Cluster| tally(&c.client, Transport::Tcp, at(CLUSTER_IP), 4);
    let all_from = |who: &str| Tally::from([(format!("{who} from 10.244.1.99"), 4)]);
    c.apply(&sticky(BOTH))?;
    c.start(&[])?;
    c.until_served(&sticky(BOTH))?;
    let mut kept = c
        .client
        .dial(Transport::Tcp, at(CLUSTER_IP))
        .reset_on_close()
        .open()?;
    let first = kept.ask()?.who;
    assert_eq!(answers(c)?, all_from(&first));
    let (second, left, drains) = match &*first {
        "near" => ("far", ONLY_FAR, format!("{NEAR}*0 {FAR}*1")),
        _ => ("near", ONLY_NEAR, format!("{NEAR}*1 {FAR}*0")),
    };
    c.apply(&sticky(left))?;
    c.until_reals(SERVER, &drains)?;
    // After the first endpoint is removed, affinity must not send new connections to it
    // (kubernetes/kubernetes#81587). Open connections stay there.
    assert_eq!(answers(c)?, all_from(second));
    assert_eq!(kept.ask()?.who, first);
    // The first endpoint is back, but the client's affinity is now to the second endpoint.
    c.apply(&sticky(BOTH))?;
    c.until_served(&sticky(BOTH))?;
    assert_eq!(answers(c)?, all_from(second));
    assert_eq!(kept.ask()?.who, first);
    Ok(())
}

pub(crate) fn a_drain_ends_at_its_configured_limit(c: &mut Cluster) -> Outcome {
    let limit = Duration::from_secs(3);
    c.apply(&web(BOTH))?;
    c.start(&["--ipvs-drain-timeout=3s"])?;
    c.until_served(&web(BOTH))?;
    let mut kept = open_to("far", &c.client.dial(Transport::Tcp, at(CLUSTER_IP)))?;
    let mut outside = open_to("far", &c.outside.dial(Transport::Tcp, at(NODE_PORT)))?;
    c.apply(&web(ONLY_NEAR))?;
    c.until_reals(SERVER, &format!("{NEAR}*1 {FAR}*0"))?;
    let started = Instant::now();
    let mut served = Duration::ZERO;
    while c.reals(SERVER)?.contains(FAR) {
        if kept.ask().is_ok_and(|answer| answer.who == "far") {
            served = started.elapsed();
        }
        ensure!(started.elapsed() < limit * 3, "it drains without a limit");
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = started.elapsed();
    println!("    it was served for {served:.1?}, and gone after {took:.1?}");
    assert!(
        served > limit * 2 / 3 && took < limit + Duration::from_secs(2),
        "{served:?} {took:?}"
    );
    // At the end of the drain, open connections get a reset instead of timing out.
    for (of, connection) in [("client", &mut kept), ("outside", &mut outside)] {
        let failure = connection
            .ask()
            .err()
            .context("the connection outlives its endpoint")?;
        ensure!(failure == Failure::Reset, "{of}: {failure}");
    }
    c.until_reals(&format!("TCP {NODE_PORT}"), &format!("{NEAR}*1"))?;
    let answer = c.client.ask_tcp(at(CLUSTER_IP), Duration::from_secs(2))?;
    assert_eq!(answer.who, "near");
    Ok(())
}
