//! A mode for tests. The mode follows a script, and records the calls of its functions.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use proxy::{Changes, IpFamily, Mode, Model, NodePorts, Notice, Report, Standing};

/// A mode that follows a [`Script`].
pub(crate) struct Scripted(Arc<Script>);

/// Script of a test mode: the state that the mode reports, and the calls that it has received.
pub(crate) struct Script {
    family: IpFamily,
    state: Mutex<State>,
}

/// State that the scripted mode reports, and the calls that it has received.
pub(crate) struct State {
    pub(crate) is_ready: bool,
    pub(crate) is_idle: bool,
    pub(crate) standing: Standing,
    pub(crate) finished: VecDeque<Report>,
    pub(crate) updates: Vec<Changes>,
    /// Time that each update takes.
    pub(crate) computes_for: Duration,
    /// Duration of the next write. The call that starts the write returns only after the write has
    /// ended.
    pub(crate) writes_for: Option<Duration>,
    has_written: bool,
    pub(crate) proceeds: usize,
    pub(crate) served_on: usize,
    pub(crate) checks: usize,
}

impl Scripted {
    /// Returns a mode that is ready and idle, and its script.
    pub(crate) fn mode(family: IpFamily) -> (Box<dyn Mode>, Arc<Script>) {
        let script = Arc::new(Script {
            family,
            state: Mutex::new(State {
                is_ready: true,
                is_idle: true,
                standing: Standing {
                    is_settled: true,
                    ..Standing::default()
                },
                finished: VecDeque::new(),
                updates: Vec::new(),
                computes_for: Duration::ZERO,
                writes_for: None,
                has_written: false,
                proceeds: 0,
                served_on: 0,
                checks: 0,
            }),
        });
        (Box::new(Self(Arc::clone(&script))), script)
    }
}

impl Script {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn set_ready(&self, is_ready: bool) {
        self.state().is_ready = is_ready;
    }

    pub(crate) fn set_idle(&self, is_idle: bool) {
        self.state().is_idle = is_idle;
    }

    /// Adds a finished job of a worker thread (kernel I/O).
    pub(crate) fn finish(&self, report: Report) {
        self.state().finished.push_back(report);
    }

    pub(crate) fn updates(&self) -> usize {
        self.state().updates.len()
    }

    pub(crate) fn last_update(&self) -> Changes {
        self.state().updates.last().unwrap().clone()
    }
}

impl Mode for Scripted {
    fn family(&self) -> IpFamily {
        self.0.family
    }
    fn is_ready(&self) -> bool {
        self.0.state().is_ready
    }
    fn update(&mut self, _: &Model, changes: &Changes, _: Instant) {
        let mut state = self.0.state();
        std::thread::sleep(state.computes_for);
        state.updates.push(changes.clone());
    }
    fn notice(&mut self, _: &Notice, _: Instant) {}
    fn check(&mut self, _: Instant) {
        self.0.state().checks += 1;
    }
    fn proceed(&mut self, _: &Model, _: Instant) {
        let mut state = self.0.state();
        state.proceeds += 1;
        if let Some(time) = state.writes_for.take() {
            std::thread::sleep(time);
            state.standing.is_settled = false;
            state.has_written = true;
            state.finished.push_back(Report {
                written: 1,
                ..Report::default()
            });
        }
    }
    fn poll_finished(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
    fn book(&mut self, _: &Model, _: Instant) -> Option<Report> {
        let mut state = self.0.state();
        let report = state.finished.pop_front()?;
        state.standing.is_settled |= std::mem::take(&mut state.has_written);
        Some(report)
    }
    fn is_idle(&self) -> bool {
        self.0.state().is_idle
    }
    fn next_due(&self, _: Instant) -> Option<Instant> {
        None
    }
    fn standing(&self) -> Standing {
        self.0.state().standing
    }
    fn go_on_serving(&mut self, _: Instant) {
        self.0.state().served_on += 1;
    }
    fn node_addresses(&self) -> Option<&BTreeSet<IpAddr>> {
        None
    }
    fn node_ports(&self) -> Option<&NodePorts> {
        static LOCALHOST: NodePorts = NodePorts {
            addresses: Vec::new(),
            on_localhost: true,
        };
        (self.0.state().updates.len() > 1).then_some(&LOCALHOST)
    }
}
