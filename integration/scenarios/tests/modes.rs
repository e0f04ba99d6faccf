//! One mode follows the other on a node: connections are answered all the time, and nothing of the one before is left.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use scenarios::{Cluster, Outcome, Service, Story, tcp, tell, with_backend};

const CLUSTER_IP: &str = "10.96.0.10:80";
const NODE_PORT: &str = "172.35.0.100:30080";
const IPTABLES_MODE: [&str; 3] = [
    "--proxy-mode=iptables",
    "--iptables-min-sync-period=0s",
    "--iptables-sync-period=1s",
];

fn main() {
    let stories = [
        Story {
            name: "each_mode_clears_up_after_the_other",
            tell: each_mode_clears_up_after_the_other,
            is_possible: || true,
        },
        Story {
            name: "a_flushed_table_is_filled_again",
            tell: a_flushed_table_is_filled_again,
            is_possible: || true,
        },
        Story {
            name: "node_ports_are_served_on_localhost",
            tell: node_ports_are_served_on_localhost,
            is_possible: || true,
        },
    ];
    tell(&stories, Duration::from_mins(2))
}

fn set_up(c: &Cluster) -> Outcome {
    // In iptables mode no service address is one of the node: its own packets need a way.
    c.node1
        .read(["ip", "route", "replace", "default", "via", "172.35.0.9"])?;
    let port = tcp(80, 8080).node_port(30080);
    let service = Service::new("web", "10.96.0.10").port(port);
    c.apply(&service.endpoints("10.244.1.10 10.244.2.10"))?;
    Ok(())
}

fn is_served(c: &Cluster) -> Outcome {
    for place in [&c.client, &c.outside, &*c.node1] {
        c.until_answered(place, CLUSTER_IP)?;
        c.until_answered(place, NODE_PORT)?;
    }
    Ok(())
}

fn each_mode_clears_up_after_the_other(c: &mut Cluster) -> Outcome {
    set_up(c)?;
    for round in 0..2 {
        c.start(&[])?;
        is_served(c)?;
        let rules = with_backend("iptables-$backend-save; ip6tables-$backend-save");
        c.until("the rules of iptables mode to go", || {
            let saved = c.sh(&rules)?;
            Ok([
                "KUBE-SVC-",
                "KUBE-SEP-",
                "KUBE-EXT-",
                "KUBE-NODEPORTS",
                "KUBE-PROXY-CANARY",
            ]
            .iter()
            .all(|chain| !saved.contains(chain)))
        })
        .with_context(|| format!("round {round}"))?;
        is_served(c)?;
        c.stop()?;

        c.start(&IPTABLES_MODE)?;
        is_served(c)?;
        c.until("what is of IPVS mode to go", || {
            let saved = c.sh(&rules)?;
            let left = c.sh("ipvsadm -Sn; ipset list -name; ip -o link show")?;
            let is_left = saved.contains("IPVS")
                || saved.contains("match-set")
                || saved.contains("KUBE-LOAD-BALANCER")
                || left.contains("KUBE-")
                || left.contains("10.96.0.10")
                || left.contains("kube-ipvs0");
            Ok(!is_left)
        })
        .with_context(|| format!("round {round}"))?;
        is_served(c)?;
        c.stop()?;
    }
    Ok(())
}

fn a_flushed_table_is_filled_again(c: &mut Cluster) -> Outcome {
    set_up(c)?;
    c.start(&IPTABLES_MODE)?;
    is_served(c)?;
    let saved = with_backend("iptables-$backend-save | grep -v '^#' | sed 's/\\[.*//'");
    let before = c.sh(&saved)?;
    for table in ["mangle", "filter", "nat"] {
        c.sh(&with_backend(&format!(
            "iptables-$backend -t {table} -F; iptables-$backend -t {table} -X"
        )))?;
    }
    c.until(
        "the rules to be there again",
        || Ok(c.sh(&saved)? == before),
    )?;
    is_served(c)
}

fn node_ports_are_served_on_localhost(c: &mut Cluster) -> Outcome {
    set_up(c)?;
    c.start(&IPTABLES_MODE)?;
    c.until_answered(&c.node1, "127.0.0.1:30080")?;
    let rules = c.sh(&with_backend("iptables-$backend-save"))?;
    if rules.contains("-m nfacct") {
        let count = c.sh("nfacct get localhost_nps_accepted_pkts")?;
        let metrics = c.sh("curl -s http://127.0.0.1:10249/metrics")?;
        let metric = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total 1";
        ensure!(
            count.contains("pkts = 00000000000000000001") && metrics.contains(metric),
            "{count}"
        );
    }
    c.stop()?;
    c.start(
        &[
            &IPTABLES_MODE[..],
            &["--iptables-localhost-nodeports=false"],
        ]
        .concat(),
    )?;
    c.refuses(&c.node1, "127.0.0.1:30080")
}
