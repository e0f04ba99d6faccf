//! One shim follows the other on a node, while new connections come all the time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{Place, Transport};
use scenarios::{Cluster, Outcome, Service, at, kube_proxy, tcp, with_backend};

const LEAN: &str = "--ipvs-shim=lean";
/// A SYN that gets no answer is sent again after a second.
const FIRST_TRY: Duration = Duration::from_millis(900);

/// Asks on until told to stop; how often.
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
        // What is filtered: a port that is not exposed, and who is in no source range.
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

pub(crate) fn one_follows_the_other_under_traffic(c: &mut Cluster) -> Outcome {
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

    // All that the lean one leaves goes, too.
    c.start(&[LEAN])?;
    c.stop()?;
    let kube_proxy = kube_proxy()?;
    c.sh(&format!("{} --cleanup", kube_proxy.display()))?;
    let left = c.sh("iptables-$backend-save; ip6tables-$backend-save; ipset list -name")?;
    ensure!(!left.contains("KUBE-"), "{left}");
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

/// Without the order of lines: a jump that comes back is the first one.
fn same(state: &str) -> Vec<&str> {
    let mut lines: Vec<_> = state.lines().collect();
    lines.sort_unstable();
    lines
}
