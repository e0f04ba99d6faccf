//! Stage: the environment of one fault, a cluster with one daemon in one mode, and traffic to a
//! Service.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::Transport;
use scenarios::{ApiServer, Cluster, FIRST_TRY, METRICS, Service, at, get, tcp};

use crate::churn::{Churn, slice};
use crate::load::{Account, Load, TrafficPath};
use crate::mode::Mode;
use crate::row::Row;

/// Time limit for a repair, or for any other state for which a fault waits.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);
/// Interval between two checks of the state for which a fault waits.
const GLANCE: Duration = Duration::from_millis(50);
/// Duration of the traffic before a fault begins and after it ends. Failures during this time
/// count.
const QUIET: Duration = Duration::from_millis(500);
/// Text in the daemon's warning about drift, entries that another program has changed.
const DRIFT: &str = "another program has changed";

/// Length of a run, and the daemon's sync period in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// True for the short run in `make test`.
    pub(crate) is_short: bool,
    /// Sync period: interval between two periodic checks of the kernel by the daemon.
    pub(crate) period: Duration,
}

impl Size {
    /// Returns `short` in a short run, otherwise `long`.
    pub(crate) fn pick<T>(self, short: T, long: T) -> T {
        if self.is_short { short } else { long }
    }
}

/// Condition that the traffic must meet during a fault.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Promise {
    /// No request fails and no open connection ends.
    NothingFails,
    /// Every path works again within this time after another program's damage.
    WholeWithin(Duration),
}

/// A cluster with a daemon and traffic, and the results of a fault so far.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) c: &'a mut Cluster,
    pub(crate) mode: &'static Mode,
    pub(crate) size: Size,
    /// Path of the older kube-proxy that the fault `upgrade and back` starts, if given.
    pub(crate) before: Option<&'a std::path::Path>,
    row: Row,
    load: Option<Load>,
    /// Drift counters of the daemon, by kind of entry, at the start of the traffic.
    drifted: BTreeMap<String, f64>,
    /// Length in bytes of the daemon's log at the start of the traffic.
    said: usize,
    /// True if the endpoint of the Service `last` is the pod on node2, false if it is the pod on
    /// node1.
    is_far: bool,
    /// Additional destinations of traffic from the client pod.
    more: Vec<&'static str>,
}

/// Returns the Service `web`, to which all traffic goes.
pub(crate) fn web() -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .ingress("192.0.2.10")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10")
}

/// Returns the Service `late`, whose external IP needs additional rules.
pub(crate) fn external() -> Service {
    Service::new("late", "10.96.0.9 fd96::9")
        .port(tcp(80, 8080))
        .external("192.0.2.20")
        .endpoints("10.244.1.10 fd44:1::10")
}

/// Returns the Service `last`. A test changes its endpoint to find out whether the daemon still
/// applies changes.
fn last() -> Service {
    Service::new("last", "10.96.0.99")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10")
}

/// Returns manifests of `count` dual-stack Services that get no traffic (the crowd).
pub(crate) fn crowd(count: usize) -> String {
    crowd_with(count, |high, low| {
        let addresses = format!("10.96.{high}.{low} fd96::{high:x}:{low:x}");
        (addresses, "10.244.1.10 10.244.2.10 fd44:1::10")
    })
}

/// Returns manifests of `count` IPv4 Services that get no traffic (the crowd).
pub(crate) fn crowd_of_ipv4(count: usize) -> String {
    crowd_with(count, |high, low| {
        (format!("10.96.{high}.{low}"), "10.244.1.10 10.244.2.10")
    })
}

fn crowd_with(count: usize, at: fn(usize, usize) -> (String, &'static str)) -> String {
    let mut text = String::new();
    for number in 0..count {
        let (addresses, endpoints) = at(number / 250 + 100, number % 250 + 1);
        let service = Service::new(&format!("crowd-{number}"), &addresses)
            .port(tcp(80, 8080))
            .endpoints(endpoints);
        let _ = writeln!(text, "---\n{service}");
    }
    text
}

impl<'a> Stage<'a> {
    /// Prepares the cluster, which has no Service and no running daemon yet.
    pub(crate) fn new(
        c: &'a mut Cluster,
        mode: &'static Mode,
        size: Size,
        row: Row,
        before: Option<&'a std::path::Path>,
    ) -> Result<Self> {
        c.patience = PATIENCE;
        // Adds default routes, without which the node's own packets to a Service fail in modes that
        // bind no Service addresses.
        c.sh("ip route replace default via 172.35.0.9; ip -6 route replace default via fd35::9")?;
        Ok(Self {
            c,
            mode,
            size,
            before,
            row,
            load: None,
            drifted: BTreeMap::new(),
            said: 0,
            is_far: false,
            more: Vec::new(),
        })
    }

    // ---- Start of the daemon ----

    /// Returns the flags of the daemon: those of the mode, the common ones, then `more`.
    pub(crate) fn flags(&self, more: &[&str]) -> Vec<String> {
        let mut flags: Vec<String> = self.mode.flags.iter().map(|&flag| flag.into()).collect();
        flags.push("--v=2".into());
        flags.push(format!(
            "--{}={}s",
            self.mode.period,
            self.size.period.as_secs()
        ));
        flags.extend(more.iter().map(|&flag| flag.into()));
        flags
    }

    /// Starts the daemon with the manifest directory as its source. Does not wait for its first
    /// sync.
    pub(crate) fn launch(&mut self, more: &[&str]) -> Result<()> {
        let flags = self.flags(more);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        self.c.launch(&flags)
    }

    /// Starts the daemon with an API server as its source. Does not wait for its first sync.
    pub(crate) fn launch_on(&mut self, api: &ApiServer, more: &[&str]) -> Result<()> {
        let flags = self.flags(more);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        self.c.launch_on(api, &flags)
    }

    /// Starts the daemon with the Service `web` in the manifest directory. Waits until every path
    /// of the traffic works.
    pub(crate) fn serve(&mut self, more: &[&str]) -> Result<()> {
        self.c.apply(&web())?;
        self.launch(more)?;
        self.until_served()
    }

    /// Starts the daemon with the Service `web` in an API server. Waits until every path of the
    /// traffic works.
    pub(crate) fn serve_on_api(&mut self, more: &[&str]) -> Result<ApiServer> {
        let mut api = self.c.api_server(true)?;
        api.apply(&web())?;
        api.apply(&last())?;
        api.start()?;
        self.launch_on(&api, more)?;
        self.until_served()?;
        Ok(api)
    }

    /// Waits for the daemon's first sync in both IP families, then until every path of the traffic
    /// works.
    pub(crate) fn until_served(&mut self) -> Result<()> {
        self.c.await_first_sync()?;
        for way in self.ways() {
            self.c.until_answered(&way.from, &way.to.to_string())?;
        }
        Ok(())
    }

    /// Waits until the daemon reports that it is ready. Returns how long this took.
    pub(crate) fn until_ready(&mut self) -> Result<Duration> {
        let began = Instant::now();
        self.c.await_first_sync()?;
        Ok(began.elapsed())
    }

    /// Moves the endpoint of the Service `last` to the other node. Returns the time until a client
    /// reaches it, by which the daemon has applied all earlier changes.
    pub(crate) fn follows(&mut self, objects: &apiserver::Cluster) -> Result<Duration> {
        self.is_far = !self.is_far;
        let (pod, address) = if self.is_far {
            ("far", "10.244.2.10")
        } else {
            ("near", "10.244.1.10")
        };
        let applied = objects.apply(slice("last", &[address.to_owned()]));
        applied.map_err(|status| anyhow!("it cannot be changed: {status:?}"))?;
        let dial = self.c.client.dial(Transport::Tcp, at("10.96.0.99:80"));
        let dial = dial.timeout(FIRST_TRY).reset_on_close();
        let followed = self.c.until("the other endpoint answers", || {
            Ok(dial.ask().is_ok_and(|answer| answer.who == pod))
        });
        followed.context("the daemon does not follow")
    }

    /// Changes the endpoints of `crowd` Services, `rate` times per second for the duration
    /// `lasting`. Returns the number of changes, and the time until the daemon has applied all of
    /// them.
    pub(crate) fn follows_changes(
        &mut self,
        api: &ApiServer,
        (crowd, rate): (usize, u32),
        lasting: Duration,
    ) -> Result<(usize, Duration)> {
        let churn = Churn::start(api.objects(), crowd, rate);
        sleep(lasting);
        let (made, _) = churn.stop()?;
        Ok((made, self.follows(&api.objects())?))
    }

    // ---- Traffic ----

    /// Returns the paths of the traffic to the Service `web`:
    ///
    /// - from a pod to the ClusterIP, in both IP families;
    /// - from an external host to the node port (IPv4) and to the load balancer's address;
    /// - from the node itself to the ClusterIP;
    /// - from the client pod to each additional destination ([`Self::more_ways`]).
    pub(crate) fn ways(&self) -> Vec<TrafficPath> {
        let way = |from: &lab::Place, to, held| TrafficPath {
            from: from.clone(),
            to: at(to),
            held,
        };
        let more = self.more.iter().map(|to| way(&self.c.client, to, 0));
        let all = [
            way(&self.c.client, "10.96.0.10:80", 2),
            way(&self.c.outside, "172.35.0.100:30080", 2),
            way(&self.c.client, "[fd96::10]:80", 1),
            way(&self.c.outside, "192.0.2.10:80", 1),
            way(&self.c.node1, "10.96.0.10:80", 0),
        ];
        all.into_iter().chain(more).collect()
    }

    /// Adds destinations for traffic from the client pod. Call this before the traffic starts.
    pub(crate) fn more_ways(&mut self, to: &[&'static str]) {
        self.more.extend(to);
    }

    /// Returns the daemon's resident memory (RSS) in MiB.
    pub(crate) fn memory(&self) -> Result<f64> {
        let kilobytes = lab::process::status(self.c.daemon_id()?, "VmRSS")?;
        Ok(f64::from(u32::try_from(kilobytes)?) / 1024.0)
    }

    /// Starts the traffic. From now on, the daemon's drift and log lines count as effects of the
    /// fault.
    pub(crate) fn traffic(&mut self) -> Result<()> {
        self.load = Some(Load::start(&self.ways())?);
        self.note_before();
        sleep(QUIET);
        Ok(())
    }

    /// Starts the traffic before the Service exists. A path's failures count only after its first
    /// reply.
    pub(crate) fn traffic_before(&mut self) -> Result<()> {
        self.load = Some(Load::start_before(&self.ways())?);
        Ok(())
    }

    /// Returns the results of the traffic so far, or empty results if no traffic runs.
    pub(crate) fn account(&self) -> Account {
        self.load.as_ref().map(Load::account).unwrap_or_default()
    }

    /// Records the current log and drift counters. Only later log lines and drift count as effects
    /// of the fault.
    pub(crate) fn note_before(&mut self) {
        self.drifted = self.drift().unwrap_or_default();
        self.said = self.c.said().len();
    }

    // ---- Observations of the daemon and the kernel ----

    /// Returns the daemon's counters of drifted entries by kind, summed over both IP families.
    pub(crate) fn drift(&self) -> Result<BTreeMap<String, f64>> {
        let (_, text) = get(&self.c.node1, METRICS, "/metrics")?;
        let mut drifted = BTreeMap::new();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix("kubeproxy_drifted_entries_total{") else {
                continue;
            };
            let kind = rest
                .split("kind=\"")
                .nth(1)
                .and_then(|k| k.split('"').next());
            let count = rest.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok());
            if let (Some(kind), Some(count)) = (kind, count) {
                *drifted.entry(kind.to_owned()).or_default() += count;
            }
        }
        Ok(drifted)
    }

    /// Runs a shell script on node1 repeatedly until it succeeds. Returns the time since `since`.
    pub(crate) fn until_holds(&self, script: &str, since: Instant) -> Result<Duration> {
        loop {
            if self.c.sh(script).is_ok() {
                return Ok(since.elapsed());
            }
            ensure!(
                since.elapsed() < PATIENCE + self.size.period,
                "not so after {:.0?}: {script}",
                since.elapsed()
            );
            sleep(GLANCE);
        }
    }

    /// Checks that the kernel state has the same lines as the state `before`, in any order.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first differing lines.
    pub(crate) fn holds(&self, before: &str) -> Result<()> {
        let now = self.c.state()?;
        let sorted = |text: &str| -> Vec<String> {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let (before, now) = (sorted(before), sorted(&now));
        let missing = before.iter().filter(|line| !now.contains(line));
        let more = now.iter().filter(|line| !before.contains(line));
        let differ: Vec<String> = missing
            .map(|line| format!("missing: {line}"))
            .take(4)
            .chain(more.map(|line| format!("too much: {line}")).take(4))
            .collect();
        ensure!(
            before == now,
            "the kernel holds something else ({} lines, and not {}): {}",
            now.len(),
            before.len(),
            differ.join("; ")
        );
        Ok(())
    }

    /// Returns how many entries of each kind have drifted since the start of the traffic.
    fn drifted_since(&self) -> Result<BTreeMap<String, f64>> {
        let now = self.drift()?;
        let grown = now.into_iter().filter_map(|(kind, count)| {
            let before = self.drifted.get(&kind).copied().unwrap_or_default();
            (count > before).then_some((kind, count - before))
        });
        Ok(grown.collect())
    }

    /// Waits until the daemon has counted drift of all these kinds, and checks that it has logged a
    /// warning. Adds the counts to the row.
    pub(crate) fn expect_drift(&mut self, kinds: &[&str]) -> Result<()> {
        let mut drifted = BTreeMap::new();
        let counted = self.c.until("the drift is counted", || {
            drifted = self.drifted_since()?;
            Ok(kinds.iter().all(|kind| drifted.contains_key(*kind)))
        });
        counted.with_context(|| format!("wanted {kinds:?}, counted {drifted:?}"))?;
        let seen: Vec<String> = drifted
            .iter()
            .map(|(kind, count)| format!("{kind} ×{count}"))
            .collect();
        self.sees(&format!("drift: {}", seen.join(", ")));
        let said = self.c.said();
        let new = said.get(self.said..).unwrap_or_default();
        let told = new.lines().find(|line| line.contains(DRIFT));
        told.with_context(|| format!("no line says “{DRIFT}”"))?;
        Ok(())
    }

    /// Waits for a line of the daemon's log that contains `part`, later than the start of the
    /// traffic. Adds `part` to the row.
    pub(crate) fn expect_line(&mut self, part: &str) -> Result<()> {
        let from = self.said;
        let is_said = |c: &Cluster| c.said().get(from..).is_some_and(|new| new.contains(part));
        self.c
            .until("the line of the log", || Ok(is_said(self.c)))?;
        self.sees(&format!("log: “{part}”"));
        Ok(())
    }

    /// Adds evidence of kube-proxy's reaction, such as a log line, to the row.
    pub(crate) fn sees(&mut self, what: &str) {
        if !self.row.seen.is_empty() {
            self.row.seen += "; ";
        }
        self.row.seen += what;
    }

    /// Records kube-proxy's reaction to the fault in the row.
    pub(crate) fn did(&mut self, what: impl Into<String>) {
        self.row.did = what.into();
    }

    /// Records in the row how long the repair took.
    pub(crate) fn repaired(&mut self, after: Duration) {
        self.row.repaired = Some(after.as_secs_f64());
    }

    /// Stops the traffic, checks the promise about it, and returns the row. `damaged` is when the
    /// fault began.
    pub(crate) fn close(&mut self, damaged: Instant, promise: Promise) -> Result<Row> {
        let load = self.load.take().context("there is no traffic")?;
        // Waits a moment, because failures just after the fault count.
        sleep(QUIET);
        let whole = match promise {
            Promise::NothingFails => Ok(Duration::ZERO),
            Promise::WholeWithin(limit) => load.until_whole(damaged, limit + QUIET),
        };
        let account = load.stop()?;
        println!("      {account}");
        self.row.count(&account);
        match promise {
            Promise::NothingFails => ensure!(
                account.new.failed == 0 && account.open.failed == 0,
                "nothing may fail: {account}"
            ),
            Promise::WholeWithin(limit) => {
                let took = whole?;
                ensure!(
                    took <= limit,
                    "whole after {took:.1?}, and not within {limit:.1?}: {account}"
                );
            }
        }
        ensure!(
            account.new.is_judged(),
            "too few requests can be judged: {account}"
        );
        Ok(self.row.clone())
    }
}
