//! Tests that a mode removes all kernel entries of the previous mode. Also tests iptables mode
//! alone.
//!
//! The tests in `mode_changes` and `migrate` send requests during the change of the mode.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab::Transport;
use scenarios::{Cluster, Outcome, SOON, Service, ask, at, stories, tcp, tell, udp, with_backend};

const CLUSTER_IP: &str = "10.96.0.10:80";
const NODE_PORT: &str = "172.35.0.100:30080";
const IPTABLES_MODE: [&str; 3] = [
    "--proxy-mode=iptables",
    "--iptables-min-sync-period=0s",
    "--iptables-sync-period=1s",
];

fn main() {
    let stories = stories! {
        each_mode_removes_the_other_modes_entries,
        a_flushed_table_is_rewritten,
        a_dormant_table_is_reported if lab::iptables_backend() == "nft",
        node_ports_are_served_on_localhost,
        external_ips_need_their_feature_gate,
        a_node_port_wins_over_external_ips_at_node_addresses,
        clients_with_affinity_keep_their_endpoint_until_removal,
    };
    tell(&stories, Duration::from_mins(2))
}

fn set_up(c: &Cluster) -> Outcome {
    // The node's own packets to a Service need a route, because iptables mode makes no Service
    // address local.
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

fn each_mode_removes_the_other_modes_entries(c: &mut Cluster) -> Outcome {
    set_up(c)?;
    let shims = ["upstream", "lean"].into_iter();
    // Tests the shim in nftables only if the lab's kernel has nftables.
    let nftables = (lab::iptables_backend() == "nft").then_some("nftables");
    for (round, shim) in shims.chain(nftables).enumerate() {
        c.start(&[&format!("--ipvs-shim={shim}")])?;
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

        // The drain gets a short timeout, because IPVS counts closed connections for up to two
        // minutes.
        c.start(&[&IPTABLES_MODE[..], &["--ipvs-drain-timeout=2s"]].concat())?;
        is_served(c)?;
        c.until("what is of IPVS mode to go", || {
            let saved = c.sh(&rules)?;
            let left = c.sh(
                "ipvsadm -Sn; ipset list -name; ip -o link show; nft list tables 2>/dev/null || true",
            )?;
            let is_left = saved.contains("IPVS")
                || saved.contains("match-set")
                || saved.contains("KUBE-LOAD-BALANCER")
                || left.contains("KUBE-")
                || left.contains("10.96.0.10")
                || left.contains("kube-ipvs0")
                || left.contains("kube-proxy-ipvs");
            Ok(!is_left)
        })
        .with_context(|| format!("round {round}"))?;
        is_served(c)?;
        c.stop()?;
    }
    Ok(())
}

fn a_flushed_table_is_rewritten(c: &mut Cluster) -> Outcome {
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

/// An operator sets the flag `dormant` on an nftables table that other programs also use. The
/// daemon leaves the flag, and reports the table in its log and subcommands.
fn a_dormant_table_is_reported(c: &mut Cluster) -> Outcome {
    set_up(c)?;
    c.start(&IPTABLES_MODE)?;
    is_served(c)?;
    c.sh("nft add table ip nat '{ flags dormant; }'")?;
    c.await_line("table ip nat is dormant")?;
    let dial = c.client.dial(Transport::Tcp, at(CLUSTER_IP));
    ensure!(dial.timeout(Duration::from_millis(300)).ask().is_err());
    let (code, status) = ask(c, &["status"])?;
    ensure!(
        code == 1 && status.contains("table ip nat is dormant"),
        "{code} {status}"
    );
    let (_, explained) = ask(c, &["explain", CLUSTER_IP, "-v"])?;
    ensure!(
        explained.contains("table ip nat is dormant") && !explained.contains("  ok  "),
        "{explained}"
    );
    let checked = c.check(&IPTABLES_MODE)?;
    ensure!(
        checked.contains("[fail] iptables: table ip nat is dormant"),
        "{checked}"
    );
    ensure!(checked.contains("nothing would change"), "{checked}");
    let listed = c.sh("nft list table ip nat")?;
    ensure!(listed.contains("flags dormant"), "{listed}");
    // Runs the command that the daemon's message advises.
    c.sh("nft add table ip nat")?;
    c.await_line("no longer dormant")?;
    is_served(c)?;
    let (code, status) = ask(c, &["status"])?;
    ensure!(code == 0, "{status}");
    c.stop()
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

/// In IPVS and iptables mode, a daemon without the feature gate of KEP-5707 removes external IPs at
/// its start, and keeps all other entries.
fn external_ips_need_their_feature_gate(c: &mut Cluster) -> Outcome {
    const EXTERNAL: &str = "192.0.2.10:80";
    const OFF: &str = "--feature-gates=AllowServiceExternalIPs=false";
    let port = tcp(80, 8080).node_port(30080);
    let service = Service::new("web", "10.96.0.10").port(port);
    c.apply(
        &service
            .external("192.0.2.10")
            .endpoints("10.244.1.10 10.244.2.10"),
    )?;
    c.node1
        .read(["ip", "route", "replace", "default", "via", "172.35.0.9"])?;
    let holds_external = |c: &Cluster| {
        let held = c.sh("iptables-$backend-save; ipvsadm -Sn; ipset save; ip addr show; ip route show table local")?;
        anyhow::Ok(held.contains("192.0.2.10"))
    };
    for mode in [&[][..], &IPTABLES_MODE] {
        c.start(mode)?;
        c.until_answered(&c.outside, EXTERNAL)?;
        ensure!(holds_external(c)?);
        c.stop()?;
        let off = [mode, &[OFF]].concat();
        ensure!(
            c.check(&off)?.contains("192.0.2.10"),
            "it would be taken away"
        );
        c.start(&off)?;
        c.until("the external IP to go", || Ok(!holds_external(c)?))?;
        c.refuses(&c.outside, EXTERNAL)?;
        is_served(c)?;
        let metrics = c.sh("curl -s http://127.0.0.1:10249/metrics")?;
        let told = "kubernetes_feature_enabled{name=\"AllowServiceExternalIPs\",stage=\"\"} 0";
        ensure!(metrics.contains(told));
        c.stop()?;
    }
    Ok(())
}

/// A Service may claim the node's address as an external IP. In every mode, it gets each of its
/// ports there, except a port that is another Service's node port. The age of the Services does not
/// matter.
fn a_node_port_wins_over_external_ips_at_node_addresses(c: &mut Cluster) -> Outcome {
    let victim = Service::new("victim", "10.96.0.10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10")
        .metadata("creationTimestamp: '2024-01-01T00:00:00Z'");
    let thief = Service::new("thief", "10.96.0.66")
        .port(tcp(80, 8080).named("a"))
        .port(tcp(30080, 8080).named("b"))
        .endpoints("10.244.2.10")
        .external("172.35.0.100")
        .metadata("creationTimestamp: '2019-01-01T00:00:00Z'");
    c.apply(&victim)?;
    c.apply(&thief)?;
    c.node1
        .read(["ip", "route", "replace", "default", "via", "172.35.0.9"])?;
    let who = |c: &Cluster, to| {
        c.until_answered(&c.outside, to)?;
        Ok::<_, anyhow::Error>(c.outside.ask_tcp(at(to), SOON)?.who)
    };
    let nftables = (lab::iptables_backend() == "nft").then_some([
        &[
            "--proxy-mode=nftables",
            "--nodeport-addresses=172.35.0.0/24",
        ][..],
        &[
            "--proxy-mode=nftables",
            "--nftables-layout=flat",
            "--nodeport-addresses=172.35.0.0/24",
        ],
    ]);
    let modes: [&[&str]; 3] = [&[], &IPTABLES_MODE, &["--proxy-mode=userspace"]];
    for mode in modes.into_iter().chain(nftables.into_iter().flatten()) {
        c.start(mode)?;
        for _ in 0..4 {
            let answers = (who(c, NODE_PORT)?, who(c, "172.35.0.100:80")?);
            ensure!(
                answers == ("near".to_owned(), "far".to_owned()),
                "{mode:?}: {answers:?}"
            );
        }
        let said = c.said();
        let refused =
            "cannot serve 172.35.0.100:30080/TCP (spec.externalIPs) for Service default/thief";
        let is_told = |line: &str| line.contains(refused) && line.contains("default/victim");
        ensure!(said.lines().any(is_told), "{said}");
        // Deletes the Service with the node port. The external IP must then get the port until the
        // Service is back.
        c.delete("victim")?;
        c.until("the external IP to be served", || {
            let answer = c.outside.ask_tcp(at(NODE_PORT), SOON);
            Ok(answer.is_ok_and(|answer| answer.who == "far"))
        })?;
        c.apply(&victim)?;
        c.until("the node port to be served", || {
            let answer = c.outside.ask_tcp(at(NODE_PORT), SOON);
            Ok(answer.is_ok_and(|answer| answer.who == "near"))
        })?;
        c.stop()?;
    }
    Ok(())
}

fn clients_with_affinity_keep_their_endpoint_until_removal(c: &mut Cluster) -> Outcome {
    const BOTH: &str = "10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10";
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080))
        .affinity(60);
    let dns = Service::new("dns", "10.96.0.11 fd96::11").port(udp(53, 8080));
    c.apply(&web.clone().endpoints(BOTH))?;
    c.apply(&dns.clone().endpoints("10.244.1.10 fd44:1::10"))?;
    c.start(&IPTABLES_MODE)?;
    let ask = |to| {
        let dial = c.client.dial(Transport::Tcp, at(to)).timeout(SOON);
        dial.ask().map(|answer| answer.who)
    };
    let ways = ["10.96.0.10:80", "[fd96::10]:80"];
    for to in ways {
        let first = ask(to)?;
        // Without affinity, 20 equal replies happen by chance with a probability of 2⁻²⁰.
        for _ in 0..20 {
            ensure!(ask(to)? == first, "{to} is not always {first}");
        }
    }
    let mut flows = Vec::new();
    for to in ["10.96.0.11:53", "[fd96::11]:53"] {
        let dial = c.client.dial(Transport::Udp, at(to));
        let mut flow = dial.timeout(Duration::from_millis(100)).open()?;
        ensure!(flow.ask()?.who == "near", "{to}");
        flows.push(flow);
    }
    for endpoints in ["10.244.2.10 fd44:2::10", "10.244.1.10 fd44:1::10"] {
        let who = if endpoints.contains("244.2") {
            "far"
        } else {
            "near"
        };
        c.apply(&web.clone().endpoints(endpoints))?;
        c.apply(&dns.clone().endpoints(endpoints))?;
        for to in ways {
            c.until("the other endpoint to answer", || {
                Ok(ask(to).is_ok_and(|answered| answered == who))
            })?;
        }
        // Each flow keeps its source port. It moves only if the daemon deletes its conntrack entry
        // when its endpoint is removed.
        for flow in &mut flows {
            c.until("the flow to move", || {
                Ok(flow.ask().is_ok_and(|answer| answer.who == who))
            })?;
        }
    }
    Ok(())
}
