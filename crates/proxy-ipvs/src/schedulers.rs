//! Finds out which of the schedulers that Services request the kernel has.
//!
//! The kernel loads a scheduler's module when a virtual server names the scheduler, and blocks all
//! IPVS writes meanwhile. So a Service's virtual server must never cause this:
//!
//! 1. The proxy's read-only worker thread asks the kernel once for each scheduler.
//! 2. Until the kernel responds, the Service uses the node's scheduler.
//! 3. A scheduler that an existing virtual server uses needs no question. So a restart changes no
//!    scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::{Scheduler, Service, UnavailableOption, options};

use crate::balance::ServiceSchedulers;
use crate::config::Config;
use crate::server::VirtualServer;

/// Time after which the proxy asks again for a missing scheduler, whose module an operator may have
/// installed since.
const RETRY: Duration = Duration::from_mins(5);

/// Schedulers that Services request, with the kernel's response about each.
#[derive(Debug, Default)]
pub(crate) struct Schedulers {
    known: BTreeMap<Scheduler, SchedulerEntry>,
    /// True once a Service with session affinity needs [`Scheduler::SOURCE_HASH`].
    is_source_hash_needed: bool,
    /// True if the kernel has responded since the Services were last compiled.
    has_answers: bool,
    /// True if a response of the kernel differs from what was assumed when Services were last
    /// compiled.
    has_changed: bool,
}

/// A scheduler, and the kernel's response about it.
#[derive(Debug)]
struct SchedulerEntry {
    name: Arc<str>,
    state: SchedulerState,
    /// True if the proxy must ask the kernel for this scheduler.
    is_due: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum SchedulerState {
    /// The kernel has not responded yet.
    Unknown,
    There,
    /// The kernel lacks the scheduler, for this reason. The time is that of the response.
    Missing(String, Instant),
}

impl SchedulerEntry {
    fn new(scheduler: Scheduler) -> Self {
        Self {
            name: scheduler.name().into(),
            state: SchedulerState::Unknown,
            is_due: true,
        }
    }
}

impl Schedulers {
    /// Creates the state at the start, with the schedulers that a preview has already asked for
    /// (`foreseen_schedulers`).
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        let mut schedulers = Self::default();
        for (scheduler, answer) in &config.foreseen_schedulers {
            schedulers.ask(*scheduler);
            schedulers.take(*scheduler, answer.clone(), now);
        }
        (schedulers.has_answers, schedulers.has_changed) = (false, false);
        schedulers
    }

    fn ask(&mut self, scheduler: Scheduler) -> &mut SchedulerEntry {
        let of = self.known.entry(scheduler);
        of.or_insert_with(|| SchedulerEntry::new(scheduler))
    }

    /// Returns the scheduler that a Service requests, if the kernel has it, or else the node's
    /// scheduler.
    fn of(&mut self, service: &Service, config: &Config) -> Arc<str> {
        let asked = service.options.as_ref().and_then(|of| of.scheduler);
        match asked.filter(|asked| asked.name() != &*config.scheduler) {
            None => Arc::clone(&config.scheduler),
            Some(asked) => match self.ask(asked) {
                SchedulerEntry {
                    name,
                    state: SchedulerState::There,
                    ..
                } => Arc::clone(name),
                _ => Arc::clone(&config.scheduler),
            },
        }
    }

    /// Returns the scheduler of a Service's virtual servers, and `sh` if the kernel has it. An
    /// fwmark virtual server needs `sh` for session affinity if it must also translate ports.
    pub(crate) fn all_of(&mut self, service: &Service, config: &Config) -> ServiceSchedulers {
        let is_there = |entry: &&SchedulerEntry| entry.state == SchedulerState::There;
        let by_source = if *config.scheduler == *Scheduler::SOURCE_HASH.name() {
            Some(&config.scheduler)
        } else {
            let known = self.known.get(&Scheduler::SOURCE_HASH).filter(is_there);
            known.map(|entry| &entry.name)
        };
        ServiceSchedulers {
            by_source: by_source.cloned(),
            own: self.of(service, config),
        }
    }

    /// Requests that the proxy asks the kernel for the scheduler `sh`, which chooses a destination
    /// by the client's address.
    pub(crate) fn want_by_source(&mut self) {
        self.is_source_hash_needed = true;
        self.ask(Scheduler::SOURCE_HASH);
    }

    /// Records the schedulers of existing virtual servers as present in the kernel.
    pub(crate) fn found<'a>(&mut self, servers: impl Iterator<Item = &'a VirtualServer>) {
        let mut last: Option<&str> = None;
        for server in servers {
            let name = &*server.properties.scheduler;
            if last.replace(name) != Some(name)
                && let Some(scheduler) = Scheduler::ALL.into_iter().find(|of| of.name() == name)
            {
                self.put(scheduler, SchedulerState::There);
            }
        }
    }

    /// Returns the next scheduler about which to ask the kernel, and marks it as asked.
    pub(crate) fn next(&mut self) -> Option<Scheduler> {
        let mut all = self.known.iter_mut();
        let (scheduler, known) = all.find(|(_, known)| known.is_due)?;
        known.is_due = false;
        Some(*scheduler)
    }

    /// Stores the kernel's response. An error contains the reason why the scheduler is missing.
    pub(crate) fn take(&mut self, scheduler: Scheduler, answer: Result<(), String>, now: Instant) {
        let is_needed = self.is_source_hash_needed && scheduler == Scheduler::SOURCE_HASH;
        let state = match answer {
            Ok(()) => SchedulerState::There,
            Err(reason) => {
                if is_needed && self.ask(scheduler).state == SchedulerState::Unknown {
                    tracing::warn!(
                        "clients outside have no session affinity to Services with externalTrafficPolicy Local whose ports differ from \
                         those of their endpoints: {reason}"
                    );
                }
                SchedulerState::Missing(reason, now)
            }
        };
        self.put(scheduler, state);
        self.has_answers = true;
    }

    fn put(&mut self, scheduler: Scheduler, state: SchedulerState) {
        let known = self.ask(scheduler);
        known.is_due = false;
        let before = std::mem::replace(&mut known.state, state);
        // Without a response, a Service uses the node's scheduler, as if the kernel lacked the
        // scheduler.
        let was_there = before == SchedulerState::There;
        self.has_changed |= was_there != (known.state == SchedulerState::There);
    }

    /// Records that the kernel refused a virtual server because it lacks the scheduler.
    pub(crate) fn lacks(&mut self, name: &str, reason: String, now: Instant) {
        let mut known = self.known.keys();
        if let Some(scheduler) = known.find(|of| of.name() == name).copied() {
            self.take(scheduler, Err(reason), now);
        }
    }

    /// Asks again for each scheduler that has been missing for [`RETRY`]. The proxier calls this
    /// once per sync period.
    pub(crate) fn check(&mut self, now: Instant) {
        for known in self.known.values_mut() {
            if let SchedulerState::Missing(_, since) = known.state {
                known.is_due |= now.saturating_duration_since(since) >= RETRY;
            }
        }
    }

    /// Returns true if the kernel has responded since the last call of
    /// [`take_changed`](Self::take_changed).
    pub(crate) fn has_news(&self) -> bool {
        self.has_answers || self.has_changed
    }

    /// Returns true if the Services that request or need a scheduler must be recompiled. Forgets
    /// missing schedulers that no Service requests any more.
    pub(crate) fn take_changed(&mut self, is_named: impl Fn(Scheduler) -> bool) -> bool {
        let is_missing =
            |known: &SchedulerEntry| matches!(known.state, SchedulerState::Missing(..));
        self.known
            .retain(|of, known| !is_missing(known) || is_named(*of));
        self.has_answers = false;
        std::mem::take(&mut self.has_changed)
    }

    /// Lists the missing schedulers as values of the scheduler option that are unavailable on this
    /// node.
    pub(crate) fn unavailable(&self) -> Vec<UnavailableOption> {
        let missing = self
            .known
            .iter()
            .filter_map(|(scheduler, known)| match &known.state {
                SchedulerState::Missing(reason, _) => Some(UnavailableOption {
                    annotation: options::SCHEDULER,
                    value: scheduler.to_string(),
                    reason: reason.clone(),
                }),
                SchedulerState::Unknown | SchedulerState::There => None,
            });
        missing.collect()
    }
}
