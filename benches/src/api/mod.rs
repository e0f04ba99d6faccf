//! Measures the load that a kube-proxy puts on the API server (axis `api`). In one VM, a kube-proxy
//! goes through all occasions: start, restart, changes, and storms after broken connections.
//!
//! ```text
//!  changes without a watching client (to subtract their cost)
//!  first list ─▶ restart ─▶ reconnect (replayed by many clients)
//!    ─▶ changes ─▶ 504 to watches ─▶ 504 to watches and lists
//! ```
//!
//! - The fake API server reports the requests, and the bytes that it sent.
//! - The server's CPU time is that of its process.
//! - Hundreds of daemons do not fit on a machine. Instead, many clients replay the requests that
//!   one daemon sends when it reconnects.

mod replay;
mod traffic;

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::json;

use crate::http::Api;
use crate::objects::{ObjectContent, changed, path};
use crate::process::Process;
use crate::schema::{Cell, CellFigures, Outcome, RequestOccasion, ServerCost};
use crate::stage::Stage;
use crate::subject;
use crate::wait::WaitEnd;
use replay::Clients;
use traffic::{Mark, Request, Traffic};

/// Maximum number of clients that reconnect at once. A run with fewer changes has as many clients
/// as changes.
const CLIENTS: u32 = 500;
/// Number of clients that watch the changes besides the kube-proxy. With fewer, the cost of
/// watching would be smaller than the noise of the measurement.
const MORE: u32 = 20;
/// Number of changes below which the run is a smoke test: it only shows that this benchmark works.
const FEW: u32 = 100;
/// Interval between two reads of the fake API server's log.
const LOOK: Duration = Duration::from_millis(100);
/// Limit on open files of this process and of the fake API server. Each replayed request needs a
/// socket.
const FILES: u64 = 65_536;

/// Measures a cell (one benchmark run) of the axis `api`. Runs in a VM of the lab.
pub(crate) fn measure(cell: &Cell) -> Result<Outcome> {
    // The fake API server inherits this limit as a child process.
    let files = Rlimit {
        current: Some(FILES),
        maximum: Some(FILES),
    };
    setrlimit(Resource::Nofile, files).context("cannot have that many sockets")?;
    let mut stage = Stage::new(cell)?;
    stage.objects.set_looks(ObjectContent::Served);
    stage.serve()?;
    let mut run = Run {
        pace: Pace::of(cell),
        api: stage.api()?,
        turn: 0,
        watched: Vec::new(),
        costs: BTreeMap::new(),
    };
    let own = run.cpu_of_changes(&mut stage)?;

    let phase = run.begin(&stage)?;
    let (mut subject, started) = subject::start(&stage)?;
    if let Some(outcome) = programmed(&mut stage, &mut subject, started)? {
        return Ok(outcome);
    }
    run.watched = run.quiet(&stage, &mut subject, &phase)?.watched();
    run.end(&stage, &phase, RequestOccasion::First)?;

    subject.stop()?;
    let phase = run.begin(&stage)?;
    (subject, _) = subject::start(&stage)?;
    run.well(&stage, &mut subject, &phase)?;
    run.end(&stage, &phase, RequestOccasion::Restart)?;

    let phase = run.begin(&stage)?;
    run.api.post("/fixture/cut", &json!({}))?;
    let again = run.well(&stage, &mut subject, &phase)?.reads();
    run.reconnect(&stage, &again)?;

    let phase = run.begin(&stage)?;
    run.change_watched(&mut stage, &again)?;
    run.quiet(&stage, &mut subject, &phase)?;
    run.end(&stage, &phase, RequestOccasion::Watch)?;
    if let Some(cost) = run.costs.get_mut(&RequestOccasion::Watch) {
        // CPU time for each watching client, without the server's work on the changes themselves.
        cost.cpu_s = (cost.cpu_s - own).max(0.0) / f64::from(MORE + 1);
    }
    if let Some(outcome) = programmed(&mut stage, &mut subject, Instant::now())? {
        return Ok(outcome);
    }

    let watches = ["watch", "streamed-list"];
    run.storm(&stage, &mut subject, RequestOccasion::WatchStorm, &watches)?;
    let all = ["watch", "streamed-list", "list", "next-page"];
    run.storm(&stage, &mut subject, RequestOccasion::Storm, &all)?;
    run.change(&mut stage)?;
    let programmed = stage.until_programmed(&mut subject, Instant::now())?;
    let WaitEnd::Done(_, state) = programmed else {
        return Ok(Outcome::Wrong {
            differences: "the last changes have not been programmed".into(),
        });
    };

    Ok(Outcome::Measured(Box::new(CellFigures {
        server: run.costs,
        figures: [("clients", clients(cell)), ("changes", cell.changes)]
            .map(|(name, count)| (name.to_owned(), f64::from(count)))
            .into(),
        state: Some(state),
        ..CellFigures::default()
    })))
}

/// Returns the number of clients that reconnect at once.
fn clients(cell: &Cell) -> u32 {
    CLIENTS.min(cell.changes)
}

/// Waits until the kernel has the state that the present objects require. Returns the outcome if
/// the measured kube-proxy does not write this state.
fn programmed(
    stage: &mut Stage,
    subject: &mut Process,
    started: Instant,
) -> Result<Option<Outcome>> {
    Ok(match stage.until_programmed(subject, started)? {
        WaitEnd::Done(..) => None,
        WaitEnd::Not(outcome) => Some(outcome),
    })
}

/// Durations of a measurement, which are equal for all kube-proxies.
#[derive(Clone, Copy)]
struct Pace {
    /// Duration of a storm, in which the server responds with 504 to some kinds of requests.
    storm: Duration,
    /// Time without a request or a response after which the server counts as idle.
    quiet: Duration,
}

impl Pace {
    fn of(cell: &Cell) -> Self {
        let (storm, quiet) = if cell.changes < FEW {
            (1_000, 400)
        } else {
            (10_000, 2_000)
        };
        Self {
            storm: Duration::from_millis(storm),
            quiet: Duration::from_millis(quiet),
        }
    }
}

/// State of a measurement, with the load on the server on each occasion so far.
struct Run {
    pace: Pace,
    api: Api,
    /// Number of endpoint changes so far.
    turn: u32,
    /// Kinds of objects that the measured kube-proxy watches.
    watched: Vec<String>,
    costs: BTreeMap<RequestOccasion, ServerCost>,
}

/// Position in the server's log and CPU time of the server at the start of an occasion. The load is
/// their increase until its end.
struct Phase {
    since: Mark,
    cpu_s: f64,
}

impl Run {
    fn begin(&mut self, stage: &Stage) -> Result<Phase> {
        Ok(Phase {
            since: Traffic::read(&mut self.api, None)?.mark(),
            cpu_s: stage.fixture_cpu_s()?,
        })
    }

    /// Records the load on the server on an occasion, which began with `phase` and ends now.
    fn end(&mut self, stage: &Stage, phase: &Phase, occasion: RequestOccasion) -> Result<()> {
        let cpu_s = stage.fixture_cpu_s()? - phase.cpu_s;
        let traffic = Traffic::read(&mut self.api, Some(phase.since))?;
        let cost = traffic.cost(phase.since, cpu_s);
        self.costs.insert(occasion, cost);
        Ok(())
    }

    /// Replaces endpoints through the API, one after another.
    fn change(&mut self, stage: &mut Stage) -> Result<()> {
        for _ in 0..stage.cell.changes {
            let (service, index) = changed(stage.cell.size, self.turn);
            stage.objects.replace(service, index, self.turn);
            self.turn += 1;
            let slices = stage.objects.slices(service);
            let (name, slice) = slices.get(index / 100).context("no such slice")?;
            let path = path("discovery.k8s.io/v1", "endpointslices", Some(name));
            self.api.put(&path, slice)?;
        }
        Ok(())
    }

    /// Replaces endpoints while additional clients watch the same objects as the measured
    /// kube-proxy.
    fn change_watched(&mut self, stage: &mut Stage, requests: &[Request]) -> Result<()> {
        let mut more = Clients::ask(stage, requests, MORE)?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| more.read_until(&is_over));
            let changed = self.change(stage);
            is_over.store(true, Ordering::Relaxed);
            let read = reader.join().unwrap_or_else(|panic| resume_unwind(panic));
            changed.and(read)
        })?;
        more.read(self.pace.quiet).map(drop)
    }

    /// Replaces endpoints while nobody watches. Returns the CPU time in seconds that this takes the
    /// server.
    fn cpu_of_changes(&mut self, stage: &mut Stage) -> Result<f64> {
        let before = stage.fixture_cpu_s()?;
        self.change(stage)?;
        Ok(stage.fixture_cpu_s()? - before)
    }

    /// Replays the requests of one client from many clients at once. Records the load on the
    /// server.
    fn reconnect(&mut self, stage: &Stage, requests: &[Request]) -> Result<()> {
        let clients = clients(&stage.cell);
        let before = stage.fixture_cpu_s()?;
        let mut all = Clients::ask(stage, requests, clients)?;
        let bytes = all.read(self.pace.quiet)?;
        let of_all = |count: usize| u64::from(clients) * count as u64;
        let lists = requests.iter().filter(|request| request.is_full_list());
        let cost = ServerCost {
            bytes,
            requests: of_all(requests.len()),
            lists: of_all(lists.count()),
            cpu_s: stage.fixture_cpu_s()? - before,
        };
        self.costs.insert(RequestOccasion::Reconnect, cost);
        Ok(())
    }

    /// Waits until the server is idle. Returns its traffic since the start of `phase`.
    fn quiet(&mut self, stage: &Stage, subject: &mut Process, phase: &Phase) -> Result<Traffic> {
        let started = Instant::now();
        let read = |api: &mut Api| Traffic::read(api, Some(phase.since));
        let (mut before, mut since) = (read(&mut self.api)?, Instant::now());
        while since.elapsed() < self.pace.quiet {
            self.rest(stage, subject, started)?;
            let now = read(&mut self.api)?;
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
        Ok(before)
    }

    /// Waits until the kube-proxy watches all kinds of objects again, and the server is idle.
    /// Returns the traffic since the start of `phase`.
    fn well(&mut self, stage: &Stage, subject: &mut Process, phase: &Phase) -> Result<Traffic> {
        let started = Instant::now();
        while Traffic::read(&mut self.api, Some(phase.since))?.watched() != self.watched {
            self.rest(stage, subject, started)?;
        }
        self.quiet(stage, subject, phase)
    }

    fn rest(&self, stage: &Stage, subject: &mut Process, started: Instant) -> Result<()> {
        ensure!(!subject.is_over(), "the subject ended: {}", subject.said());
        ensure!(
            started.elapsed() < stage.limit(),
            "the subject has not calmed down, or does not watch {} again",
            self.watched.join(", ")
        );
        sleep(LOOK);
        Ok(())
    }

    /// Breaks all connections to the server. For the duration of a storm, the server responds with
    /// 504 to requests of the kinds `refused`. Then waits until the kube-proxy has recovered.
    fn storm(
        &mut self,
        stage: &Stage,
        subject: &mut Process,
        occasion: RequestOccasion,
        refused: &[&str],
    ) -> Result<()> {
        let rules: Vec<_> = refused
            .iter()
            .map(|asked| json!({ "fault": { "refuse": { "code": 504 } }, "on": asked }))
            .collect();
        let phase = self.begin(stage)?;
        self.api.put("/fixture/faults", &json!(rules))?;
        self.api.post("/fixture/cut", &json!({}))?;
        sleep(self.pace.storm);
        self.api.put("/fixture/faults", &json!([]))?;
        self.well(stage, subject, &phase)?;
        self.end(stage, &phase, occasion)
    }
}
