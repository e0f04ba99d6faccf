//! Faults of the API server, the source of the daemon's objects.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::Transport;
use scenarios::{Service, at, tcp};
use serde_json::{Value, json};

use crate::churn::{Churn, record_crowd};
use crate::row::Row;
use crate::stage::{PATIENCE, Promise, Stage, crowd, web};

/// Time limit for the daemon to reconnect to the API server. After several failed attempts, it
/// waits up to 30 s before the next.
const BACK_OFF: Duration = Duration::from_secs(45);

pub(super) fn killed(s: &mut Stage<'_>) -> Result<Row> {
    let mut api = s.serve_on_api(&[])?;
    s.traffic()?;
    let began = Instant::now();
    let churn = Churn::start(api.objects(), 0, 100);
    sleep(Duration::from_secs(1));
    api.stop();
    sleep(Duration::from_secs(s.size.pick(1, 20)));
    churn.stop()?;
    // Compacts the history, so that the daemon must list all objects again instead of resuming its
    // watch.
    api.compact();
    api.start()?;
    let back = Instant::now();
    s.follows(&api.objects())?;
    s.repaired(back.elapsed());
    s.expect_line("cannot be reached")?;
    s.did("kept serving the last known state, and listed all objects again");
    s.close(began, Promise::NothingFails)
}

pub(super) fn emptied(s: &mut Stage<'_>) -> Result<Row> {
    let mut api = s.serve_on_api(&[])?;
    s.traffic()?;
    api.stop();
    api.lose_all()?;
    api.start()?;
    let damaged = Instant::now();
    // The API server has lost all objects. The daemon accepts its empty list as complete, and
    // removes the Service.
    s.c.until("the Service is gone", || {
        let dial = s.c.client.dial(Transport::Tcp, at("10.96.0.10:80"));
        Ok(dial.timeout(Duration::from_millis(300)).ask().is_err())
    })?;
    s.expect_line("the API server's list no longer names")?;
    sleep(Duration::from_millis(s.size.pick(500, 2_000)));
    api.apply(&web())?;
    let refilled = Instant::now();
    s.c.until_answered(&s.c.client, "10.96.0.10:80")?;
    s.repaired(refilled.elapsed());
    s.did("removed the missing objects, and programmed new objects at once");
    let within = refilled.duration_since(damaged) + Duration::from_secs(5);
    s.close(damaged, Promise::WholeWithin(within))
}

pub(super) fn garbage(s: &mut Stage<'_>) -> Result<Row> {
    let mut api = s.serve_on_api(&[])?;
    s.traffic()?;
    let began = Instant::now();
    api.stop();
    let nonsense = api.nonsense(&[
        "<html>It works!</html>",
        "{\"kind\": \"ServiceList\", \"items\": 7}",
        "null",
        "",
        "{}",
        "[]",
    ])?;
    s.c.patience = BACK_OFF;
    s.c.until("each kind was answered", || Ok(nonsense.answers() >= 9))?;
    drop(nonsense);
    api.start()?;
    let back = Instant::now();
    s.follows(&api.objects())?;
    s.repaired(back.elapsed());
    s.expect_line("answers nonsense")?;
    s.did("ignored the responses, and kept serving");
    s.close(began, Promise::NothingFails)
}

pub(super) fn silent(s: &mut Stage<'_>) -> Result<Row> {
    /// Time limit for the daemon to detect that its connection is silent: the connection's timeout
    /// plus the time to open the next watch.
    const LATEST: Duration = Duration::from_secs(100);
    let api = s.serve_on_api(&[])?;
    s.traffic()?;
    let began = Instant::now();
    api.faults().context("it serves")?.freeze();
    s.c.patience = LATEST;
    let took = s.follows(&api.objects())?;
    s.repaired(took);
    s.did("reopened the watches, and continued from the last version");
    s.close(began, Promise::NothingFails)
}

pub(super) fn flood(s: &mut Stage<'_>) -> Result<Row> {
    /// Endpoint changes per second.
    const RATE: u32 = 10_000;
    let count = s.size.pick(200, 1_000);
    let api = s.serve_on_api(&[])?;
    api.apply(&crowd(count))?;
    let changes = record_crowd(&api.objects(), count)?;
    s.follows(&api.objects())?;
    s.traffic()?;
    let began = Instant::now();
    let churn = Churn::replay(api.objects(), changes, RATE);
    sleep(Duration::from_secs(s.size.pick(2, 60)));
    let (made, rate) = churn.stop()?;
    let ended = Instant::now();
    s.follows(&api.objects())?;
    s.repaired(ended.elapsed());
    let memory = s.memory()?;
    let short = if rate < 0.99 * f64::from(RATE) {
        ", the limit of the lab's API server on one processor"
    } else {
        ""
    };
    s.did(format!(
        "applied {made} changes at {rate:.0} per second{short} in {memory:.0} MB of memory"
    ));
    s.close(began, Promise::NothingFails)
}

/// Returns the EndpointSlices of a Service with `count` endpoints, 100 in each slice. The endpoints
/// have consecutive addresses from `first` on.
fn many(count: u32, first: u32) -> Vec<Value> {
    (0..count / 100)
        .map(|number| {
            let endpoints: Vec<Value> = (0..100)
                .map(|of| std::net::Ipv4Addr::from(first + number * 100 + of).to_string())
                .map(|address| json!({"addresses": [address], "nodeName": "node2", "conditions": {"ready": true}}))
                .collect();
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": format!("large-{number}"), "namespace": "default",
                             "labels": {"kubernetes.io/service-name": "large"}},
                "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
                "endpoints": endpoints,
            })
        })
        .collect()
}

pub(super) fn all_endpoints(s: &mut Stage<'_>) -> Result<Row> {
    const FIRST: u32 = 0x0af4_4001; // 10.244.64.1
    const NEXT: u32 = 0x0af4_8001; // 10.244.128.1
    let count = s.size.pick(1_000, 10_000);
    // Makes the pod on node2 reply at the addresses of all these endpoints.
    s.c.far.read([
        "sh",
        "-ec",
        "for r in 10.244.64.0/18 10.244.128.0/18; do ip route add local $r dev lo; done",
    ])?;
    s.c.node2.read([
        "sh",
        "-ec",
        "for r in 10.244.64.0/18 10.244.128.0/18; do ip route add $r via 10.244.2.10; done",
    ])?;
    s.c.sh("for r in 10.244.64.0/18 10.244.128.0/18; do ip route add $r via 172.35.0.101; done")?;
    let api = s.serve_on_api(&[])?;
    let objects = api.objects();
    let apply = |slices: Vec<Value>| -> Result<()> {
        for slice in slices {
            objects
                .apply(slice)
                .map_err(|status| anyhow::anyhow!("{status:?}"))?;
        }
        Ok(())
    };
    apply(many(count, FIRST))?;
    api.apply(&Service::new("large", "10.96.0.50").port(tcp(80, 8080).named("")))?;
    s.c.until_answered(&s.c.client, "10.96.0.50:80")?;
    s.c.patience = 3 * PATIENCE;
    s.follows(&objects)?;
    s.more_ways(&["10.96.0.50:80"]);
    s.traffic()?;
    let began = Instant::now();
    apply(many(count, NEXT))?;
    let made = Instant::now();
    // The kernel must have all new endpoints. It may still have old endpoints that drain.
    let lines = match s.mode.name {
        "nftables" => {
            r"nft list table ip kube-proxy | grep -oE '10\.244\.1[2-6][0-9]\.[0-9]+ \. 8080' | sort -u | grep -c ."
        }
        _ => r"ipvsadm -Sn | grep -c -- '-a -t 10.96.0.50:80 -r 10.244.1[2-6][0-9]\..* -w 1$'",
    };
    let took = s.until_holds(&format!("test \"$({lines})\" = {count}"), made)?;
    s.follows(&objects)?;
    s.repaired(took);
    s.did(format!(
        "replaced {count} endpoints, and added new ones before it removed old ones"
    ));
    ensure!(took < 2 * PATIENCE, "it took {took:.0?}");
    s.close(began, Promise::NothingFails)
}
