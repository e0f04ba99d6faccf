//! Tests userspace mode: its own features, and changes between this mode and other modes.
//!
//! In userspace mode, connections end with the daemon, which relays them, and requests fail until
//! the next mode works. The tests check that requests then succeed again, and that no rule of the
//! previous mode still redirects packets.
#![allow(
    clippy::indexing_slicing,
    reason = "what an object has not is null; a story stops at the first surprise"
)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use lab::{Failure, Place, Transport};
use scenarios::{
    Cluster, Outcome, Service, Story, ask, ask_json, at, metric, tally, tcp, tell, udp,
    with_backend,
};

/// Timeout of a request, shorter than TCP's initial retransmission timeout (1 s). A single lost
/// packet therefore makes the request fail.
const FIRST_TRY: Duration = Duration::from_millis(900);

/// Timeout of a connection. It is longer than the relay takes to try all endpoints, with a margin
/// for a loaded machine.
const PASSED_OVER: Duration = Duration::from_secs(4);

const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [\
                    {type: InternalIP, address: 172.35.0.100}, {type: InternalIP, address: 'fd35::100'}]}}";

/// Manifest that the daemon cannot parse.
const BROKEN: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: broken\n";

/// A mode with its flags, and kernel state that identifies it.
struct ModeForm {
    flags: &'static [&'static str],
    /// Text that the output of [`held`] contains only while the mode is active.
    mark: &'static str,
}

const USERSPACE: ModeForm = ModeForm {
    flags: &["--proxy-mode=userspace"],
    mark: "table ip kube-proxy-userspace\n",
};
/// Userspace mode on a kernel without nf_tables.
const USERSPACE_LEGACY: ModeForm = ModeForm {
    flags: &["--proxy-mode=userspace"],
    mark: "-A KUBE-PORTALS-CONTAINER ",
};
const USERSPACE_IPTABLES: ModeForm = ModeForm {
    flags: &["--proxy-mode=userspace", "--iptables-backend=nft"],
    mark: "-A KUBE-PORTALS-CONTAINER ",
};
const IPTABLES: ModeForm = ModeForm {
    flags: &["--proxy-mode=iptables"],
    mark: ":KUBE-SVC-",
};
const IPVS: ModeForm = ModeForm {
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=upstream"],
    mark: "-m set --match-set KUBE-CLUSTER-IP",
};
const IPVS_NFTABLES: ModeForm = ModeForm {
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=nftables"],
    mark: "table ip kube-proxy-ipvs\n",
};
const NFTABLES: ModeForm = ModeForm {
    flags: &["--proxy-mode=nftables"],
    mark: "table ip kube-proxy\n",
};

macro_rules! stories {
    ($is_possible:expr; $($one:ident, $other:ident: $name:literal),+ $(,)?) => {
        [$(
            Story {
                name: concat!("services_work_from_", $name, "_and_back"),
                tell: |c| there_and_back(c, &$one, &$other),
                is_possible: $is_possible,
            },
            Story {
                name: concat!("a_broken_object_blocks_no_change_from_", $name),
                tell: |c| with_a_broken_object(c, &$one, &$other),
                is_possible: $is_possible,
            },
        )+]
    };
}

fn main() {
    let one = [
        Story {
            name: "the_relay_skips_endpoints_that_refuse_connections",
            tell: the_relay_skips_endpoints_that_refuse_connections,
            is_possible: || true,
        },
        Story {
            name: "relay_traffic_is_reported",
            tell: relay_traffic_is_reported,
            is_possible: || true,
        },
        Story {
            name: "a_busy_udp_client_follows_an_address_that_moves_between_services",
            tell: a_busy_udp_client_follows_an_address_that_moves_between_services,
            is_possible: || true,
        },
    ];
    let without = stories! { || !has_nftables();
        USERSPACE_LEGACY, IPTABLES: "services_work_after_a_change_from_userspace_mode_to_iptables_mode_without_nf_tables",
        USERSPACE_LEGACY, IPVS: "services_work_after_a_change_from_userspace_mode_to_ipvs_mode_without_nf_tables",
    };
    let with = stories! { has_nftables;
        USERSPACE, NFTABLES: "services_work_after_a_change_from_userspace_mode_on_nftables_to_nftables_mode",
        USERSPACE, IPTABLES: "services_work_after_a_change_from_userspace_mode_on_nftables_to_iptables_mode",
        USERSPACE, IPVS: "services_work_after_a_change_from_userspace_mode_on_nftables_to_ipvs_mode",
        USERSPACE, IPVS_NFTABLES: "services_work_after_a_change_from_userspace_mode_on_nftables_to_ipvs_mode_with_the_nftables_shim",
        USERSPACE_IPTABLES, NFTABLES: "services_work_after_a_change_from_userspace_mode_on_iptables_to_nftables_mode",
        USERSPACE_IPTABLES, IPTABLES: "services_work_after_a_change_from_userspace_mode_on_iptables_to_iptables_mode",
    };
    let redirects = [Story {
        name: "services_work_after_a_change_from_nftables_redirects_to_iptables_redirects_and_back",
        tell: |c| there_and_back(c, &USERSPACE, &USERSPACE_IPTABLES),
        is_possible: has_nftables,
    }];
    let stories = [&one[..], &without, &with, &redirects].concat();
    tell(&stories, Duration::from_mins(9))
}

fn has_nftables() -> bool {
    lab::iptables_backend() == "nft"
}

fn set_up(c: &Cluster) -> Outcome {
    // The node's own packets to a Service need a route, because some modes make no Service address
    // local.
    c.sh("ip route replace default via 172.35.0.9; ip -6 route replace default via fd35::9")?;
    // nftables mode serves node ports only at the addresses of the Node object.
    c.write("node", NODE)?;
    let service = Service::new("web", "10.96.0.10 fd96::10").port(tcp(80, 8080).node_port(30080));
    let service = service.ingress("192.0.2.10").external("192.0.2.20");
    c.apply(&service.endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10"))
}

/// Checks that the Service replies on every path without a retransmission.
fn is_served(c: &Cluster) -> Outcome {
    let ways: [(&Place, &str); 7] = [
        (&c.client, "10.96.0.10:80"),
        (&c.client, "172.35.0.100:30080"),
        (&c.client, "192.0.2.10:80"),
        (&c.client, "[fd96::10]:80"),
        (&c.outside, "172.35.0.100:30080"),
        (&c.outside, "192.0.2.20:80"),
        (&c.node1, "10.96.0.10:80"),
    ];
    for (from, to) in ways {
        let answer = from.dial(Transport::Tcp, at(to)).timeout(FIRST_TRY).ask();
        answer.with_context(|| format!("{} asks {to}", from.name()))?;
    }
    Ok(())
}

/// Returns the names of nftables tables and the iptables rules, which show the active mode.
fn held(c: &Cluster) -> anyhow::Result<String> {
    c.sh(&with_backend(
        "nft list tables 2>/dev/null || true; iptables-$backend-save",
    ))
}

/// Waits until the kernel has the state that identifies the mode `way`, and no such state of the
/// mode `other`.
fn until_alone(c: &Cluster, way: &ModeForm, other: &ModeForm) -> Outcome {
    let waited = c.until("one way alone", || {
        let held = held(c)?;
        Ok(held.contains(way.mark) && !held.contains(other.mark))
    });
    waited.map(drop).with_context(|| {
        let (is, was) = (way.flags, other.flags);
        format!("to {is:?} from {was:?}: {:?}", held(c))
    })
}

fn there_and_back(c: &mut Cluster, one: &ModeForm, other: &ModeForm) -> Outcome {
    set_up(c)?;
    c.start(one.flags)?;
    is_served(c)?;
    for (from, to) in [(one, other), (other, one)] {
        c.stop()?;
        // Closed connections stay in IPVS for two minutes (TIME_WAIT). Without this timeout, their
        // virtual servers drain for as long, and the nftables shim stays.
        c.start(&[to.flags, &["--ipvs-drain-timeout=2s"]].concat())?;
        until_alone(c, to, from)?;
        is_served(c).with_context(|| format!("from {:?} to {:?}", from.flags, to.flags))?;
    }
    c.stop()
}

/// After userspace mode has ended, its redirects still lead to the ended daemon. The new daemon
/// must disable them even before it knows all objects.
fn with_a_broken_object(c: &mut Cluster, userspace: &ModeForm, other: &ModeForm) -> Outcome {
    set_up(c)?;
    c.start(userspace.flags)?;
    is_served(c)?;
    c.stop()?;
    c.write("broken", BROKEN)?;
    c.start(other.flags)?;
    until_alone(c, other, userspace)?;
    is_served(c)?;
    c.delete("broken")?;
    c.until("nothing of userspace mode is left", || {
        let held = held(c)?;
        Ok(!held.contains("kube-proxy-userspace") && !held.contains("KUBE-PORTALS"))
    })?;
    is_served(c)?;
    c.stop()
}

/// The Service has three endpoints: the first serves each client, the second refuses connections,
/// and no host has the third address.
fn the_relay_skips_endpoints_that_refuse_connections(c: &mut Cluster) -> Outcome {
    let service = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080).named("tcp"))
        .port(udp(80, 8080).named("udp"));
    // The pod 10.244.1.99 has no server, and no host has the address 10.244.1.77.
    let endpoints = "10.244.2.10 10.244.1.99 10.244.1.77";
    c.sh("ip route replace default via 172.35.0.9")?;
    c.apply(&service.clone().endpoints(endpoints))?;
    c.start(&["--proxy-mode=userspace"])?;
    let cluster_ip: SocketAddr = at("10.96.0.10:80");
    for from in [&c.client, &c.outside, &c.node1] {
        for number in 0..9 {
            let asked = Instant::now();
            let answer = from.dial(Transport::Tcp, cluster_ip).timeout(PASSED_OVER);
            let answer = answer.reset_on_close().ask();
            let answer = answer.with_context(|| format!("{} asks, {number}", from.name()))?;
            ensure!(answer.who == "far", "{}", answer.who);
            let took = asked.elapsed();
            ensure!(took < PASSED_OVER, "{}: {took:?}", from.name());
        }
    }
    // The only endpoint refuses connections. The client must get an error instead of a timeout.
    c.apply(&service.clone().endpoints("10.244.1.99"))?;
    c.until("a client is reset", || {
        let asked = c.client.dial(Transport::Tcp, cluster_ip);
        let asked = asked.timeout(FIRST_TRY).ask();
        let is_told =
            |of: &Failure| matches!(of, Failure::Reset | Failure::Refused | Failure::Closed);
        Ok(asked.as_ref().is_err_and(is_told))
    })?;
    // Replaces the endpoint with two endpoints that accept connections.
    c.apply(&service.endpoints("10.244.2.10 10.244.1.10"))?;
    c.until("both are asked", || {
        let tally = tally(&c.client, Transport::Tcp, cluster_ip, 4);
        Ok(tally.is_ok_and(|tally| tally.values().copied().eq([2, 2])))
    })?;
    c.stop()
}

/// Metrics, table and JSON show connections by Service port and endpoint, including a removed
/// endpoint with an open connection.
fn relay_traffic_is_reported(c: &mut Cluster) -> Outcome {
    let service = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080).named("tcp"))
        .port(udp(80, 8080).named("udp"));
    c.sh("ip route replace default via 172.35.0.9")?;
    let both = service.clone().endpoints("10.244.2.10 10.244.1.10");
    c.apply(&both)?;
    c.start(&["--proxy-mode=userspace", "--metrics-per-service=endpoints"])?;
    let cluster_ip: SocketAddr = at("10.96.0.10:80");
    tally(&c.client, Transport::Tcp, cluster_ip, 6)?;
    c.client.dial(Transport::Udp, cluster_ip).ask()?;
    let series = |name: &str, port: &str, more: &str| {
        let protocol = port.to_uppercase();
        format!(
            "kubeproxy_service_{name}{{namespace=\"default\",service=\"web\",port_name=\"{port}\",protocol=\"{protocol}\"{more}}}"
        )
    };
    for (name, more, least) in [
        ("connections_total", "", 6.0),
        ("bytes_total", ",direction=\"in\"", 6.0),
        ("bytes_total", ",direction=\"out\"", 6.0),
        (
            "endpoint_connections_total",
            ",endpoint=\"10.244.2.10:8080\"",
            3.0,
        ),
        (
            "endpoint_connections_total",
            ",endpoint=\"10.244.1.10:8080\"",
            3.0,
        ),
    ] {
        let series = series(name, "tcp", more);
        let told = metric(c, &series)?;
        ensure!(
            told.is_some_and(|count| count >= least),
            "{series} {told:?}"
        );
    }
    let packets = series("packets_total", "tcp", ",direction=\"in\"");
    ensure!(
        metric(c, &packets)?.is_none(),
        "nobody counts packets of TCP"
    );
    let packets = series("packets_total", "udp", ",direction=\"in\"");
    ensure!(metric(c, &packets)? == Some(1.0), "{packets}");

    let mut kept = c.client.open_tcp(cluster_ip, FIRST_TRY)?;
    while kept.ask()?.who != "far" {
        kept = c.client.open_tcp(cluster_ip, FIRST_TRY)?;
    }
    c.apply(&service.endpoints("10.244.1.10"))?;
    let mut told = serde_json::Value::Null;
    c.until("the endpoint that has left is told", || {
        let (_, one) = ask_json(c, &["services", "default/web"])?;
        told = one["ports"][0]["endpoints"][1].clone();
        Ok(told["condition"] == "draining")
    })?;
    ensure!(
        told["at"] == "10.244.2.10:8080" && told["draining"]["open"] == 1,
        "{told}"
    );
    ensure!(kept.ask()?.who == "far", "it is carried on");
    let (_, text) = ask(c, &["services", "default/web"])?;
    ensure!(
        text.contains("drains: 1 connection open; kube-proxy carries them until they end"),
        "{text}"
    );
    // The relay does not count TCP packets, so the output must have `-` instead of 0.
    let row = text.lines().find(|line| line.contains("10.96.0.10:80"));
    let row = row.with_context(|| text.clone())?;
    ensure!(row.split_whitespace().nth(6) == Some("-"), "{row}");
    drop(kept);
    c.until("it is told no more", || {
        let (_, one) = ask_json(c, &["services", "default/web"])?;
        Ok(one["ports"][0]["endpoints"][1].is_null())
    })?;
    c.stop()
}

/// An address moves from one Service to another, and both Services continue to exist. Flows must
/// move with the address, even if their clients never stop sending.
fn a_busy_udp_client_follows_an_address_that_moves_between_services(c: &mut Cluster) -> Outcome {
    const PACE: Duration = Duration::from_millis(50);
    const SHARED: &str = "192.0.2.20";
    let [old, new] = [
        ("old", "10.96.0.10", "10.244.1.10"),
        ("new", "10.96.0.11", "10.244.2.10"),
    ]
    .map(|(name, address, endpoint)| {
        Service::new(name, address)
            .port(udp(53, 8080))
            .endpoints(endpoint)
    });
    c.apply(&old.clone().external(SHARED))?;
    c.apply(&new)?;
    c.start(&["--proxy-mode=userspace"])?;
    let open = |to: String, wait| c.outside.dial(Transport::Udp, at(&to)).timeout(wait).open();
    let mut moved = open(format!("{SHARED}:53"), PACE)?;
    let mut kept = open("10.96.0.10:53".to_owned(), FIRST_TRY)?;
    c.until("both are answered", || {
        Ok(moved.ask().is_ok() && kept.ask().is_ok())
    })?;
    c.apply(&old)?;
    c.apply(&new.external(SHARED))?;
    let took = c.until("it goes with the address", || {
        // The first Service keeps its cluster IP, whose client must lose no reply.
        ensure!(kept.ask()?.who == "near", "who stays was moved, too");
        Ok(moved.ask().is_ok_and(|answer| answer.who == "far"))
    })?;
    println!("    it goes with the address within {took:.0?}");
    c.stop()
}
