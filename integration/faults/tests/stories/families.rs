//! Tests a dual-stack cluster with a node on which IPv6 is disabled.

use std::thread::sleep;
use std::time::Duration;

use anyhow::ensure;
use lab::Transport;
use scenarios::{Cluster, Outcome, SOON, Service, at, health, tcp};

/// Checks that the daemon logs the missing IP family once, at level info, and serves IPv4. Nodes
/// without IPv6 are common.
pub(crate) fn disabled_ipv6_is_skipped_and_logged_once(c: &mut Cluster) -> Outcome {
    const IPVS: &[&str] = &["--ipvs-sync-period=1s"];
    const IPTABLES: &[&str] = &["--proxy-mode=iptables", "--iptables-sync-period=1s"];
    let web = Service::new("web", "10.96.0.10 fd96::10").port(tcp(80, 8080).node_port(30080));
    // Disables IPv6 first only for new links such as kube-ipvs0 (`default`), then for all links.
    for (scope, mode) in [("default", IPVS), ("all", IPVS), ("all", IPTABLES)] {
        c.sh(&format!("sysctl -q net.ipv6.conf.{scope}.disable_ipv6=1"))?;
        let said_before = c.said().len();
        c.apply(&web.clone().endpoints("10.244.1.10 fd44:1::10"))?;
        c.launch(mode)?;
        let took = c.until("readiness", || {
            Ok(health(c, "/readyz").is_ok_and(|code| code == 200))
        })?;
        println!(
            "    disabled by {scope}, {}: ready after {took:.1?}",
            mode.join(" ")
        );
        for (from, to) in [
            (&c.client, "10.96.0.10:80"),
            (&c.outside, "10.96.0.10:80"),
            (&c.outside, "172.35.0.100:30080"),
        ] {
            c.until_answered(from, to)?;
        }
        c.apply(&web.clone().endpoints("10.244.2.10 fd44:2::10"))?;
        let to = at("10.96.0.10:80");
        c.until("the other endpoint", || {
            let answer = c.client.dial(Transport::Tcp, to).timeout(SOON).ask();
            Ok(answer.is_ok_and(|answer| answer.who == "far"))
        })?;
        // Waits for several periodic checks of the daemon.
        sleep(Duration::from_secs(3));
        ensure!(health(c, "/readyz")? == 200 && health(c, "/healthz")? == 200);
        ensure!(!c.state()?.contains("fd96::"), "nothing is of IPv6");
        let said = c.said();
        let said = said.get(said_before..).unwrap_or_default();
        let about = said.lines().filter(|line| line.contains("IPv6"));
        let [line] = about.collect::<Vec<_>>()[..] else {
            anyhow::bail!("it is said once: {said}");
        };
        ensure!(
            line.starts_with('I')
                && line.contains("does not serve this family")
                && line.contains("disable_ipv6"),
            "{line}"
        );
        ensure!(said.lines().all(|line| !line.starts_with('E')), "{said}");
        c.stop()?;
    }
    Ok(())
}
