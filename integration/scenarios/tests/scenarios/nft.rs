//! Tests the nft backend of iptables, and changes between the backends. The tests need a kernel
//! with nf_tables (lane B).

use std::thread;
use std::time::Duration;

use anyhow::ensure;
use lab::Transport;
use scenarios::{Cluster, Outcome, SOON, Service, at, kube_proxy, tcp, udp};

const SETS: &str = include_str!("../../../golden/cases/ipvs/dualstack/ipset-save");
const RULES: &str = include_str!("../../../golden/cases/ipvs/dualstack/iptables-save");
const RULES6: &str = include_str!("../../../golden/cases/ipvs/dualstack/ip6tables-save");

/// Shell filter that keeps the lines with kube-proxy's chains and rules, without the kubelet's
/// chain KUBE-IPTABLES-HINT.
const OURS: &str = "{ grep KUBE || true; } | { grep -v -e KUBE-IPTABLES-HINT || true; }";

fn web() -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .external("192.0.2.20 2001:db8::20")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10")
}

/// Returns kube-proxy's chains and rules of both families in one backend.
fn held(c: &Cluster, backend: &str) -> anyhow::Result<String> {
    c.sh(&format!(
        "for tables in iptables ip6tables; do $tables-{backend}-save 2>/dev/null; done | {OURS}"
    ))
}

/// Checks that one backend has all rules of both families, and that its rules masquerade packets
/// from outside.
fn is_served_with(c: &Cluster, backend: &str) -> Outcome {
    let other = if backend == "nft" { "legacy" } else { "nft" };
    c.until_served(&web())?;
    // The daemon removes the other backend's rules only after the new backend works.
    c.until("all rules are in one backend", || {
        Ok(held(c, other)?.is_empty())
    })?;
    let rules = held(c, backend)?;
    assert_eq!(rules.matches("-j MASQUERADE").count(), 4, "{rules}");
    for (to, seen) in [
        ("172.35.0.100:30080", "10.244.1.1 172.35.0.100"),
        ("[fd35::100]:30080", "fd44:1::1 fd35::100"),
        ("192.0.2.20:80", "10.244.1.1 172.35.0.100"),
        ("[2001:db8::20]:80", "fd44:1::1 fd35::100"),
    ] {
        let answer = c.outside.ask_tcp(at(to), SOON)?;
        let source = answer.seen_source.ip().to_string();
        assert!(
            seen.split(' ').any(|node| node == source),
            "{to}: {source} is not the node"
        );
    }
    let answer = c.client.ask_tcp(at("10.96.0.10:80"), SOON)?;
    assert_eq!(answer.seen_source.ip().to_string(), "10.244.1.99");
    Ok(())
}

pub(crate) fn iptables_nft_is_the_default_backend(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    c.start(&[])?;
    is_served_with(c, "nft")?;
    // The kernel must not have created legacy tables, because these slow down every packet.
    assert_eq!(c.sh("iptables-legacy-save; ip6tables-legacy-save")?, "");
    c.stop()
}

pub(crate) fn the_kubelets_hint_switches_the_iptables_backend(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    let mut open = Vec::new();
    // The kubelet's hint chain names the backend to use. Before the second and third start, the
    // kernel still has rules in the other backend, which the hint must overrule.
    for backend in ["legacy", "nft", "legacy"] {
        c.sh(&format!(
            "for other in legacy nft; do iptables-$other -t mangle -X KUBE-IPTABLES-HINT 2>/dev/null || true; done
             iptables-{backend} -t mangle -N KUBE-IPTABLES-HINT"
        ))?;
        c.start(&[])?;
        is_served_with(c, backend)?;
        for (from, to) in [
            (&c.client, "10.96.0.10:80"),
            (&c.outside, "172.35.0.100:30080"),
            (&c.outside, "[2001:db8::20]:80"),
        ] {
            open.push(from.open_tcp(at(to), SOON)?);
        }
        for connection in &mut open {
            connection.ask()?;
        }
        let hint = c.sh(&format!("iptables-{backend}-save -t mangle"))?;
        assert!(hint.contains(":KUBE-IPTABLES-HINT "), "{hint}");
        c.stop()?;
    }
    Ok(())
}

pub(crate) fn a_cleanup_covers_both_iptables_backends(c: &mut Cluster) -> Outcome {
    let (created, added): (Vec<&str>, Vec<&str>) =
        SETS.lines().partition(|line| line.starts_with("create"));
    let file = c.folder().join("input");
    let load = |command: &str, text: &str| {
        std::fs::write(&file, text)?;
        c.sh(&format!("{command} <{}", file.display()))
    };
    load(
        "ipset restore",
        &([created, added].concat().join("\n") + "\n"),
    )?;
    for backend in ["legacy", "nft"] {
        for (tables, rules) in [("iptables", RULES), ("ip6tables", RULES6)] {
            load(&format!("{tables}-{backend}-restore --noflush"), rules)?;
            c.sh(&format!(
                "{tables}-{backend} -t nat -N OTHER; {tables}-{backend} -t nat -A POSTROUTING -j OTHER
                 {tables}-{backend} -t mangle -N KUBE-IPTABLES-HINT"
            ))?;
        }
        assert!(held(c, backend)?.contains(":KUBE-SERVICES"));
    }
    // iptables cannot parse this rule, and therefore cannot delete the rules after it.
    c.sh("nft insert rule ip nat POSTROUTING meta mark set ct mark")?;
    // No rule can jump to this chain, because it is a base chain.
    c.sh("nft add chain ip nat KUBE-SEP-AAAAAAAAAAAAAAAA '{ type nat hook input priority 5; }'")?;
    let program = kube_proxy()?.display().to_string();
    let cleanup = || c.node1.run([program.as_str(), "--cleanup"]);
    let output = cleanup()?;
    assert_eq!(output.status.code(), Some(1), "{}", output.stderr);
    let left = output.stderr.lines().filter(|line| line.contains("left: "));
    let left: Vec<&str> = left.collect();
    assert!(
        matches!(&left[..], [one] if one.contains("chain KUBE-SEP-AAAAAAAAAAAAAAAA of table ip nat")),
        "{left:?}"
    );
    c.sh("nft delete chain ip nat KUBE-SEP-AAAAAAAAAAAAAAAA")?;
    let chain = c.sh("nft -a list chain ip nat POSTROUTING")?;
    let own = chain
        .lines()
        .find(|line| line.contains("meta mark set ct mark"));
    let handle = own
        .and_then(|line| line.rsplit(' ').next())
        .unwrap_or_default();
    c.sh(&format!(
        "nft delete rule ip nat POSTROUTING handle {handle}"
    ))?;
    for backend in ["legacy", "nft"] {
        assert!(
            output.stdout.contains(&format!("of iptables ({backend})")),
            "{}",
            output.stdout
        );
        assert_eq!(held(c, backend)?, "");
        for tables in ["iptables", "ip6tables"] {
            let left = c.sh(&format!("{tables}-{backend}-save"))?;
            for part in ["-A POSTROUTING -j OTHER", ":KUBE-IPTABLES-HINT "] {
                assert!(left.contains(part), "{tables}-{backend}: {part}\n{left}");
            }
        }
    }
    let again = cleanup()?;
    assert_eq!(again.stdout, "nothing of a kube-proxy was here\n");
    Ok(())
}

/// Flows with the same addresses in other conntrack zones must stay. The test is in this module,
/// because only lane B's kernels support conntrack zones.
pub(crate) fn conntrack_flows_in_foreign_zones_stay(c: &mut Cluster) -> Outcome {
    let dns = Service::new("dns", "10.96.0.53")
        .port(udp(53, 8080))
        .endpoints("10.244.1.10 10.244.2.10");
    c.apply(&dns)?;
    c.start(&[])?;
    c.until_served(&dns)?;
    for zone in [0, 7] {
        c.sh(&format!(
            "conntrack -I -w {zone} -p udp -s 10.244.1.99 --sport 40002 -d 10.96.0.53 --dport 53 -t 600 \
             -r 10.244.2.10 -q 10.244.1.99 --reply-port-src 8080 --reply-port-dst 40002"
        ))?;
    }
    let flows = |c: &Cluster, zone| -> anyhow::Result<usize> {
        let flows = c.sh(&format!("conntrack -L -w {zone} -p udp -d 10.96.0.53"))?;
        Ok(flows.lines().count())
    };
    assert_eq!((flows(c, 0)?, flows(c, 7)?), (1, 1));
    c.apply(&dns.clone().endpoints("10.244.1.10"))?;
    c.until("the stale flow is gone", || Ok(flows(c, 0)? == 0))?;
    assert_eq!(flows(c, 7)?, 1);
    let asked = c.client.dial(Transport::Udp, at("10.96.0.53:53"));
    assert_eq!(asked.timeout(SOON).ask()?.who, "near");
    Ok(())
}

/// nftables rules in iptables-nft's tables, which iptables cannot represent.
const NATIVE: &str = "
    table ip nat {
      set hosts { type ipv4_addr; flags interval; elements = { 10.9.0.0/16 }; }
      chain POSTROUTING {
        type nat hook postrouting priority 100; policy accept;
        ip saddr @hosts oifname \"eth0\" masquerade random
      }
    }
    table ip filter {
      chain INPUT {
        type filter hook input priority 0; policy accept;
        ct state vmap { established : accept, invalid : drop }
      }
    }";

/// Returns the number of jumps from each of three base chains to each of kube-proxy's chains.
fn jumps(c: &Cluster) -> anyhow::Result<String> {
    c.sh("for chain in nat.POSTROUTING nat.PREROUTING filter.INPUT; do
            nft list chain ip ${chain%.*} ${chain#*.} | grep -o 'jump KUBE-.*' | sed \"s/^/$chain /\" || true
          done | sort | uniq -c | sort -k2")
}

pub(crate) fn native_nft_rules_stay_beside_iptables_rules(c: &mut Cluster) -> Outcome {
    let native = |c: &Cluster| {
        c.sh(
            "nft -s list set ip nat hosts; nft -s list ruleset | grep -e @hosts -e 'ct state vmap'",
        )
    };
    c.sh(&format!("nft -f - <<'END'\n{NATIVE}\nEND"))?;
    let before = native(c)?;
    let modes: [&[&str]; 2] = [
        &[
            "--proxy-mode=ipvs",
            "--ipvs-shim=upstream",
            "--ipvs-sync-period=1s",
        ],
        &["--proxy-mode=iptables", "--iptables-sync-period=1s"],
    ];
    let program = kube_proxy()?.display().to_string();
    for flags in modes {
        c.apply(&web())?;
        let checked = c.check(flags)?;
        let told = "nft has put rules into ";
        let line = checked.lines().find(|line| line.contains(told));
        let line = line.unwrap_or_default().to_owned();
        for chain in ["POSTROUTING of table ip nat", "INPUT of table ip filter"] {
            ensure!(line.contains(chain), "{flags:?}: {chain}: {checked}");
        }
        let mut first = String::new();
        for endpoint in ["10.244.1.10", "10.244.2.10"] {
            c.apply(&web().endpoints(endpoint))?;
            c.start(flags)?;
            c.until_answered(&c.client, "10.96.0.10:80")?;
            let answer = c.outside.ask_tcp(at("172.35.0.100:30080"), SOON)?;
            let (source, who) = (answer.seen_source.ip().to_string(), answer.who);
            let node = ["10.244.1.1", "172.35.0.100"].contains(&source.as_str());
            let is_right = who
                == if endpoint.starts_with("10.244.1") {
                    "near"
                } else {
                    "far"
                };
            ensure!(node && is_right, "{flags:?}: {who} answers {source}");
            if first.is_empty() {
                first = jumps(c)?;
                // Waits for two periods (1 s each) in which the daemon compares all rules.
                thread::sleep(Duration::from_secs(2));
            }
            let now = jumps(c)?;
            ensure!(
                now.contains("KUBE-POSTROUTING") && now == first,
                "{flags:?}: {first}{now}"
            );
            assert_eq!(native(c)?, before, "{flags:?}");
            c.stop()?;
        }
        let cleaned = c.node1.run([program.as_str(), "--cleanup"])?;
        ensure!(cleaned.status.success(), "{flags:?}: {cleaned:?}");
        assert_eq!(native(c)?, before, "{flags:?}");
        let left = c.sh("nft list ruleset; ipset list -name")?;
        // KUBE-FIREWALL stays, because this chain belongs to the kubelet.
        let mut ours = left.lines().filter(|line| !line.contains("KUBE-FIREWALL"));
        ensure!(
            !ours.any(|line| line.contains("KUBE-")),
            "{flags:?}: {left}"
        );
    }
    Ok(())
}
