//! Tests that the shims of IPVS mode (its rules beside IPVS) replace each other while clients
//! continuously open connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Place, Transport};
use scenarios::{Cluster, Outcome, Service, at, kube_proxy, tcp, with_backend};

const LEAN: &str = "--ipvs-shim=lean";
const NFTABLES: &str = "--ipvs-shim=nftables";
/// Timeout of a connection attempt, shorter than TCP's initial retransmission timeout (1 s). A lost
/// SYN therefore makes the attempt fail.
const FIRST_TRY: Duration = Duration::from_millis(900);

/// Sends requests from the three places until `is_over` is true. Returns their number.
fn ask_on(places: &[Place; 3], is_over: &AtomicBool) -> Result<usize> {
    let [client, outside, node] = places;
    let ask =
        |from: &Place, to: &str, within| from.dial(Transport::Tcp, at(to)).timeout(within).ask();
    let mut asked = 0;
    while !is_over.load(Ordering::Relaxed) {
        for (from, to, is_kept) in [
            (client, "10.96.0.10:80", true),
            (client, "[fd96::10]:80", true),
            (node, "10.96.0.10:80", false),
            (outside, "172.35.0.100:30080", false),
            (outside, "[2001:db8::20]:80", false),
        ] {
            let answer = ask(from, to, FIRST_TRY)?;
            let source = answer.seen_source.ip().to_string();
            let is_clients =
                ["10.244.1.99", "fd44:1::99", "172.35.0.9", "fd35::9"].contains(&&*source);
            ensure!(
                is_clients == is_kept && !source.starts_with("10.96."),
                "{to}: {source} is seen"
            );
            asked += 1;
        }
        // The shim must reject requests to an unexposed port, and requests from a client outside
        // all source ranges.
        for (from, to) in [
            (client, "10.96.0.10:2222"),
            (outside, "192.0.2.20:2222"),
            (outside, "192.0.2.10:80"),
        ] {
            let answer = ask(from, to, Duration::from_millis(100));
            ensure!(answer.is_err(), "{to} answers");
        }
    }
    Ok(asked)
}

pub(crate) fn upstreams_and_lean_shims_switch_under_traffic(c: &mut Cluster) -> Outcome {
    follow(c, change, LEAN)
}

pub(crate) fn nftables_and_iptables_shims_switch_under_traffic(c: &mut Cluster) -> Outcome {
    follow(c, change_carrier, NFTABLES)
}

fn follow(c: &mut Cluster, change: fn(&mut Cluster, &str) -> Outcome, last: &str) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .external("192.0.2.20 2001:db8::20")
        .ingress("192.0.2.10")
        .spec("loadBalancerSourceRanges: [10.244.0.0/16]")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10");
    let process = c.node1.serve_tcp(2222)?;
    c.apply(&web)?;
    c.start(&[])?;
    c.until_served(&web)?;
    let places = [c.client.clone(), c.outside.clone(), (*c.node1).clone()];
    c.until_answered(&c.client, "[fd96::10]:80")?;
    c.until_answered(&c.outside, "[2001:db8::20]:80")?;
    let upstream = c.state()?;
    let is_over = AtomicBool::new(false);
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_on(&places, &is_over));
        let changed = change(c, &upstream);
        is_over.store(true, Ordering::Relaxed);
        let asked = asking.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
        changed.and(asked)
    })?;
    ensure!(asked > 50, "only {asked} questions");
    ensure!(process.answers() == 0);

    // `--cleanup` must remove the state of the last shim, too.
    c.start(&[last])?;
    c.stop()?;
    let kube_proxy = kube_proxy()?;
    c.sh(&format!("{} --cleanup", kube_proxy.display()))?;
    let left =
        c.sh("iptables-$backend-save; ip6tables-$backend-save; ipset list -name; ipvsadm -Sn")?;
    ensure!(
        !left.contains("KUBE-") && !left.contains("10.96.0.10"),
        "{left}"
    );
    let left = c.sh(TABLES)?;
    ensure!(!left.contains("kube-proxy"), "{left}");
    Ok(())
}

/// Script that lists the nftables tables, if any.
const TABLES: &str = "nft list tables 2>&1 || true";
/// Part of a line of `check` that names the shim's nftables table.
const NATIVE: &str = "nftables kube-proxy-ipvs";
/// Script that prints iptables rules and the names of ipsets.
const OF_IPTABLES: &str = "iptables-$backend-save; ip6tables-$backend-save; ipset list -name";

fn change_carrier(c: &mut Cluster, upstream: &str) -> Outcome {
    let of_iptables = with_backend(OF_IPTABLES);
    for shim in [None, Some(LEAN)] {
        c.stop()?;
        c.start(&[NFTABLES])?;
        c.until("rules and sets of iptables to go", || {
            Ok(!c.sh(&of_iptables)?.contains("KUBE-"))
        })?;
        let preview = c.check(&[NFTABLES])?;
        ensure!(!preview.contains(NATIVE), "{preview}");
        c.stop()?;
        c.launch(&[NFTABLES])?;
        for _family in 0..2 {
            let line = c.await_line("first sync done")?;
            ensure!(line.contains("written=0"), "{line}");
        }
        c.stop()?;
        c.start(shim.as_slice())?;
        c.until("the table to go", || {
            Ok(!c.sh(TABLES)?.contains("kube-proxy-ipvs"))
        })?;
        if shim.is_none() {
            ensure!(
                same(&c.state()?) == same(upstream),
                "not as before:\n{}",
                c.state()?
            );
        }
    }
    c.stop()
}

/// Another program replaces a set in the shim's table, adds a rule that uses the set, and later
/// makes the table dormant. The daemon repairs the table, which belongs to kube-proxy alone.
pub(crate) fn the_shims_nftables_table_is_repaired(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10");
    c.apply(&web)?;
    c.sh(
        "nft 'table ip kube-proxy-ipvs { set KUBE-CLUSTER-IP { type ipv4_addr; }
            chain others { ip daddr @KUBE-CLUSTER-IP drop; }; }'",
    )?;
    let foreseen = c.check(&[NFTABLES])?;
    let mut lines = foreseen.lines();
    let told = lines.find(|line| line.contains("set KUBE-CLUSTER-IP of table ip kube-proxy-ipvs"));
    ensure!(
        told.is_some_and(|line| line.contains("`ipv4_addr`") && line.contains("removes the set")),
        "{foreseen}"
    );
    c.start(&[NFTABLES])?;
    let listed = c.sh("nft list table ip kube-proxy-ipvs")?;
    ensure!(!listed.contains("chain others"), "{listed}");
    // node2's endpoint can reply only to masqueraded requests.
    let is_masqueraded = |c: &Cluster| -> Result<bool> {
        let asked = c.outside.ask_tcp(at("172.35.0.100:30080"), FIRST_TRY);
        Ok(asked.is_ok_and(|answer| answer.seen_source.ip().to_string() != "172.35.0.9"))
    };
    c.until("the rules to take packets", || is_masqueraded(c))?;
    for also in [
        "",
        "; flush chain ip kube-proxy-ipvs nat-prerouting; delete chain ip kube-proxy-ipvs nat-prerouting",
    ] {
        c.sh(&format!(
            "nft 'add table ip kube-proxy-ipvs {{ flags dormant; }}{also}'"
        ))?;
        c.until("the table to be switched on", || {
            let listed = c.sh("nft list table ip kube-proxy-ipvs")?;
            Ok(!listed.contains("dormant") && listed.contains("chain nat-prerouting"))
        })?;
        c.until("the rules to take packets", || is_masqueraded(c))?;
    }
    c.stop()
}

/// The daemon runs without the ipset and iptables programs. The kernel must then have no iptables
/// rules and ipsets of kube-proxy.
pub(crate) fn the_nftables_shim_needs_neither_iptables_nor_ipset(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .external("192.0.2.20 2001:db8::20")
        .ingress("192.0.2.10")
        .spec("loadBalancerSourceRanges: [172.35.0.0/24]")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10");
    c.apply(&web)?;
    let foreseen = c.check(&[])?;
    ensure!(!foreseen.contains(NATIVE), "{foreseen}");
    hide_programs(c)?;
    let foreseen = c.check(&[])?;
    ensure!(
        foreseen.contains(NATIVE) && !foreseen.contains("KUBE-MARK-MASQ"),
        "{foreseen}"
    );
    c.launch(&[])?;
    c.await_line("shim=\"nftables\"")?;
    c.await_first_sync()?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    c.until_answered(&c.client, "[fd96::10]:80")?;
    c.until_answered(&c.node1, "10.96.0.10:80")?;
    for to in [
        "172.35.0.100:30080",
        "192.0.2.20:80",
        "192.0.2.10:80",
        "[2001:db8::20]:80",
    ] {
        c.until_answered(&c.outside, to)?;
    }
    c.refuses(&c.client, "10.96.0.10:2222")?;
    let of_iptables = c.sh("iptables-legacy-save 2>/dev/null || true; ipset list -name")?;
    ensure!(!of_iptables.contains("KUBE"), "{of_iptables}");
    let more = web.clone().endpoints("10.244.2.10 fd44:2::10");
    c.apply(&more)?;
    c.until_served(&more)?;
    c.stop()
}

/// Hides the iptables and ipset programs from daemons that start later.
fn hide_programs(c: &mut Cluster) -> Outcome {
    // Mounts an empty directory over `/usr/sbin`, which contains these programs.
    let empty = c.folder().join("empty");
    std::fs::create_dir(&empty)?;
    let hide = format!("mount --bind {} /usr/sbin && exec \"$@\"", empty.display());
    c.prefix = ["unshare", "--mount", "sh", "-c", &hide, "sh"]
        .map(Into::into)
        .into();
    Ok(())
}

/// Without the iptables programs, the daemon cannot remove the rules of upstream's shim. Each start
/// must log these rules until a daemon with the programs removes them.
pub(crate) fn leftover_rules_without_iptables_are_logged_at_each_start(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10");
    c.apply(&web)?;
    c.launch(&[])?;
    c.await_line("shim=\"upstream\"")?;
    c.await_first_sync()?;
    c.stop()?;
    hide_programs(c)?;
    for _start in 0..2 {
        c.launch(&[])?;
        c.await_line("shim=\"nftables\"")?;
        c.await_line("holds chains of a kube-proxy, and its programs are not here")?;
        c.until_answered(&c.client, "10.96.0.10:80")?;
        c.until_answered(&c.client, "[fd96::10]:80")?;
        c.stop()?;
    }
    let rules = c.sh("iptables-$backend-save")?;
    ensure!(rules.contains("KUBE-SERVICES"), "{rules}");
    c.prefix.clear();
    let said = c.said().len();
    c.start(&[NFTABLES])?;
    let of_iptables = with_backend(OF_IPTABLES);
    c.until("rules and sets of iptables to go", || {
        Ok(!c.sh(&of_iptables)?.contains("KUBE-"))
    })?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    c.stop()?;
    let said = c.said().split_off(said);
    ensure!(!said.contains("its programs are not here"), "{said}");
    Ok(())
}

fn change(c: &mut Cluster, upstream: &str) -> Outcome {
    let rules = with_backend("iptables-$backend-save; ip6tables-$backend-save");
    for _ in 0..2 {
        c.stop()?;
        c.start(&[LEAN])?;
        let lean = c.state()?;
        let saved = c.sh(&rules)?;
        ensure!(
            saved.contains("-m set ! --match-set KUBE-6-CLUSTER-IP") && !saved.contains("physdev"),
            "{saved}"
        );
        c.stop()?;
        c.launch(&[LEAN])?;
        for _family in 0..2 {
            let line = c.await_line("first sync done")?;
            ensure!(line.contains("written=0"), "{line}");
        }
        ensure!(c.state()? == lean);
        c.stop()?;
        c.start(&[])?;
        ensure!(
            same(&c.state()?) == same(upstream),
            "not as before:\n{}",
            c.state()?
        );
    }
    c.stop()
}

/// Returns the lines of a state in sorted order. The order of rules may differ, because the daemon
/// restores a removed jump at the top of its chain.
fn same(state: &str) -> Vec<&str> {
    let mut lines: Vec<_> = state.lines().collect();
    lines.sort_unstable();
    lines
}

/// A network plug-in implements hostPort by a DNAT rule for a port on all local addresses. Service
/// addresses are local in IPVS mode, but the rule must not apply to them.
pub(crate) fn foreign_dnat_rules_do_not_affect_service_traffic(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .external("192.0.2.20")
        .ingress("192.0.2.10")
        .endpoints("10.244.1.10 10.244.2.10");
    c.apply(&web)?;
    // The DNAT rules exist before the daemon starts.
    c.sh(
        "iptables-$backend -t nat -A PREROUTING -p tcp --dport 80 -m addrtype --dst-type LOCAL -j DNAT --to-destination 10.244.1.66:1
        iptables-$backend -t nat -A OUTPUT -p tcp --dport 80 -m addrtype --dst-type LOCAL -j DNAT --to-destination 10.244.1.66:1
        nft add table ip others
        nft 'add chain ip others hostports { type nat hook prerouting priority dstnat; }'
        nft add rule ip others hostports tcp dport 80 fib daddr type local dnat to 10.244.1.66:1",
    )?;
    c.start(&[NFTABLES])?;
    c.until_served(&web)?;
    for (from, to) in [
        (&c.client, "10.96.0.10:80"),
        (&*c.node1, "10.96.0.10:80"),
        (&c.outside, "192.0.2.20:80"),
        (&c.outside, "192.0.2.10:80"),
    ] {
        c.until_answered(from, to)?;
    }
    c.stop()
}
