//! Tests a kernel that refuses every Service's entries, and accepts only the entries that Services
//! share. The daemon must report that it serves no Service.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use scenarios::{Cluster, Faults, Modprobe, Outcome, Service, health, metric, tcp};

const SYNC_PERIOD: Duration = Duration::from_secs(2);

fn web() -> Service {
    Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10 10.244.2.10")
}

/// Returns when the daemon's last complete sync was (seconds since 1970), or `None` before the
/// first.
fn completed(c: &Cluster) -> Result<Option<f64>> {
    let series = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";
    metric(c, series)
}

/// Checks what the daemon reports while the kernel refuses all Services:
///
/// - `/readyz` fails.
/// - `/healthz` fails after two sync periods.
/// - The time of the last complete sync does not change.
fn is_told(c: &Cluster) -> Outcome {
    let before = completed(c)?;
    let pages = || -> Result<[u16; 2]> { Ok([health(c, "/readyz")?, health(c, "/healthz")?]) };
    let mut found = pages()?;
    let late = c.until("two sync periods are over", || {
        found = pages()?;
        Ok(found[0] == 200 || found[1] == 503)
    });
    println!(
        "    /readyz {}, /healthz {} after {late:.1?}",
        found[0], found[1]
    );
    ensure!(late? >= SYNC_PERIOD, "a sync may take its time");
    for _ in 0..4 {
        ensure!(pages()? == [503; 2]);
        ensure!(completed(c)? == before, "no sync was complete");
        sleep(SYNC_PERIOD / 2);
    }
    c.refuses(&c.client, "10.96.0.10:80")
}

/// Checks that the daemon recovers by itself once the kernel accepts the entries.
fn is_over(c: &Cluster, before: Option<f64>) -> Outcome {
    let took = c.until("readiness", || {
        Ok(health(c, "/readyz")? == 200 && health(c, "/healthz")? == 200)
    })?;
    println!("    ready and healthy {took:.1?} after the cause was gone");
    // The daemon records the end of a sync just after it becomes ready.
    c.until("a sync is complete", || Ok(completed(c)? > before))?;
    c.until_answered(&c.client, "10.96.0.10:80").map(drop)
}

/// Checks a daemon whose virtual servers are all refused. Removes the module of the IPVS scheduler
/// before the first Service, but after the daemon's start, which checks for the scheduler.
pub(crate) fn a_node_with_all_virtual_servers_refused_is_not_healthy(c: &mut Cluster) -> Outcome {
    let mut api = c.api_server(true)?;
    api.apply(&web())?;
    c.launch_on(&api, &["--ipvs-scheduler=mh", "--ipvs-sync-period=2s"])?;
    c.until("the health server", || Ok(health(c, "/livez").is_ok()))?;
    let taken_away = Modprobe::take_away()?;
    c.sh("rmmod ip_vs_mh 2>/dev/null || true")?;
    api.start()?;
    c.await_line("virtual server 10.96.0.10:80/TCP")?;
    is_told(c)?;
    let before = completed(c)?;
    c.sh("modprobe ip_vs_mh")?;
    is_over(c, before)?;
    drop(taken_away);
    c.stop()
}

/// Checks a daemon whose rules are all refused: `iptables-restore` fails for every input with a
/// Service's chain (`KUBE-SVC-…`).
pub(crate) fn a_node_with_all_rules_refused_is_not_healthy(c: &mut Cluster) -> Outcome {
    // Adds a route for the node's own packets to Services, because iptables mode binds no Service
    // address.
    c.node1
        .read(["ip", "route", "replace", "default", "via", "172.35.0.9"])?;
    let faults = Faults::prepare(c)?;
    c.apply(&web())?;
    let refusing = faults.refuse("iptables restore", &["KUBE-SVC-"])?;
    c.launch(&["--proxy-mode=iptables", "--iptables-sync-period=2s"])?;
    c.await_line("it refuses on purpose")?;
    let base = c.sh("iptables-$backend-save")?;
    ensure!(base.contains(":KUBE-SERVICES") && !base.contains("KUBE-SVC-"));
    is_told(c)?;
    let before = completed(c)?;
    drop(refusing);
    is_over(c, before)?;
    c.stop()
}
