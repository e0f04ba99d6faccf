//! One IP family in the daemon's loop: its mode, and the reports about its progress.
//!
//! ```text
//!   take_in ─▶ Mode::update
//!   proceed ─▶ Mode::proceed
//!   book ────▶ Mode::book ─▶ log, metrics, health checks, stale flows
//! ```
//!
//! No function of this module waits for the kernel. A Service counts as done when the kernel has
//! all entries of the Service, even while other Services are pending.

pub(crate) mod conntrack;
mod delays;
pub(crate) mod report;
pub(crate) mod sync_log;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use inspect::{DRAINS, FamilyFacts, GroundOfFamily};
use modes::metrics::SyncExtent;
use proxy::{
    Changes, IpFamily, Mode, Model, NamespacedName, NodeFacts, NodePorts, Pieces, Report, Standing,
    Trigger, UnavailableOption,
};
use service_counters::Counters;
use tracing::warn;

use crate::config::options::Options;
use crate::events::Recorder;
use crate::family::conntrack::StaleFlows;
use crate::family::report::Reporter;
use crate::family::sync_log::Story;
use crate::health::Health;
use crate::health::health_check::{Answering, HealthChecks};
use crate::metrics::Metrics;
use crate::metrics::local_endpoints::NoLocalEndpoints;
use crate::node::one_family::{self, SettingWarning};
use delays::Delays;

/// Maximum number of pending changes whose latency is measured.
const TRIGGERS_MAX: usize = 100_000;

/// One IP family in the daemon's main loop: its mode, and the loop's state about this mode.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is noted and cleared at another time"
)]
pub(crate) struct Family {
    mode: Box<dyn Mode>,
    /// Mode that replaces the current mode once the current mode is idle, if any.
    successor: Option<Box<dyn Mode>>,
    /// Changes of the model that the mode has not received yet.
    changes: Changes,
    pieces: Pieces,
    late: Delays,
    /// Time at which the mode received the first full set of objects, or `None` before that.
    started: Option<Instant>,
    /// Sync in progress, or `None` if no sync is in progress.
    round: Option<Round>,
    /// True if the periodic check has requested the next sync, which then counts as a sync even
    /// without a write.
    is_asked: bool,
    /// True if the mode has received changes since the kernel was last up to date.
    has_taken_in: bool,
    is_served: bool,
    triggers: Triggers,
    heard: FirstReceived,
    reporter: Reporter,
    story: Story,
    /// True if the set of draining endpoints may differ from the last report.
    may_drain: bool,
    health: Arc<Health>,
    health_checks: HealthChecks,
    stale_flows: StaleFlows,
    no_local_endpoints: NoLocalEndpoints,
    /// Addresses on which NodePorts are served, or `None` before the mode has found them.
    node_ports: Option<NodePorts>,
    metrics: Metrics,
}

/// A sync, the unit of upstream's sync metrics. It begins with the first write or read, and ends
/// when all workers are idle.
struct Round {
    began: Instant,
    is_asked: bool,
    has_written: bool,
    /// True if some kernel state could not be read.
    has_unreadable: bool,
    /// Extent of the sync: partial or full. `None` if the mode does not distinguish partial and
    /// full syncs.
    extent: Option<SyncExtent>,
}

/// Results of finished kernel work, collected by one call of `Family::book`.
#[derive(Debug, Default)]
pub(crate) struct BookingResult {
    /// True if any job of the worker threads (kernel I/O) has finished.
    pub(crate) is_any: bool,
    /// True if the finished work temporarily needed much memory.
    pub(crate) has_used_much: bool,
    /// Reason why a worker thread (kernel I/O) ended, if one ended. The process must then exit,
    /// because the thread's state is lost.
    pub(crate) gone: Option<String>,
}

/// Trigger times of the changes that the kernel does not have yet, by Service. The latency metric
/// measures from these times.
#[derive(Debug, Default)]
struct Triggers {
    of: HashMap<NamespacedName, Vec<SystemTime>>,
    count: usize,
}

impl Family {
    /// Creates an IP family whose mode has not received any objects yet.
    ///
    /// # Errors
    ///
    /// Fails if a thread cannot be started.
    pub(crate) fn new(
        mode: Box<dyn Mode>,
        options: &Options,
        answering: &Answering,
        metrics: &Metrics,
        counters: &Counters,
        recorder: &Recorder,
        now: Instant,
    ) -> io::Result<Self> {
        let family = mode.family();
        let node = &*options.process.node_name;
        metrics.begins(family);
        Ok(Self {
            successor: None,
            changes: Changes::default(),
            pieces: Pieces::default(),
            late: Delays::default(),
            started: None,
            round: None,
            is_asked: false,
            has_taken_in: false,
            is_served: false,
            triggers: Triggers::default(),
            heard: FirstReceived::default(),
            reporter: Reporter::new(family, recorder.clone(), now),
            story: Story::new(family),
            may_drain: false,
            health: Arc::clone(&answering.health),
            health_checks: HealthChecks::new(
                family,
                node,
                &options.modes.shared.node_port_addresses,
                answering.clone(),
                recorder.clone(),
            ),
            stale_flows: StaleFlows::new(family, metrics.clone(), counters.clone())?,
            no_local_endpoints: NoLocalEndpoints::new(family, node),
            node_ports: None,
            metrics: metrics.clone(),
            mode,
        })
    }

    pub(crate) fn family(&self) -> IpFamily {
        self.mode.family()
    }

    /// Returns the node's addresses of this IP family, or `None` while they are unknown.
    pub(crate) fn node_addresses(&self) -> Option<&BTreeSet<IpAddr>> {
        self.mode.node_addresses()
    }

    /// Returns the Service options (annotations) that this node does not support.
    pub(crate) fn unavailable_options(&self) -> Vec<UnavailableOption> {
        self.mode.unavailable_options()
    }

    /// Returns the node's own addresses that serve NodePorts, without service addresses. Returns
    /// `None` while the node's addresses are unknown.
    pub(crate) fn node_port_addresses(&self) -> Option<impl Iterator<Item = IpAddr>> {
        let own = self.mode.node_addresses()?;
        let serving = self.mode.node_ports()?.addresses.iter();
        Some(serving.filter(|ip| own.contains(ip)).copied())
    }

    /// Returns true if three conditions hold: the kernel has the first full set of objects, no
    /// successor waits to replace the mode, and the mode's worker threads are idle.
    pub(crate) fn rests(&self) -> bool {
        self.is_served && self.successor.is_none() && self.mode.is_idle()
    }

    /// Reports whether all worker threads (kernel I/O) are idle.
    pub(crate) fn is_idle(&self) -> bool {
        self.mode.is_idle()
    }

    /// Reports whether the family's mode can receive changes now.
    pub(crate) fn is_ready(&self) -> bool {
        self.mode.is_ready()
    }

    /// Reports whether changes are queued and the family's mode can receive them now.
    pub(crate) fn is_about_to_take_in(&self) -> bool {
        !self.changes.is_empty() && self.is_ready()
    }

    /// Sets the successor, which replaces the current mode once the current mode is idle. Until
    /// then, the current mode starts only work that clients wait for.
    pub(crate) fn renew(&mut self, mode: Box<dyn Mode>) {
        self.successor = Some(mode);
    }

    /// Applies changed options to this family's health-check node ports.
    pub(crate) fn follow(&mut self, options: &Options) {
        self.health_checks
            .select(&options.modes.shared.node_port_addresses);
    }

    /// Queues changes for the mode. `heard` is the time at which the first change arrived, or
    /// `None` to measure no latency.
    pub(crate) fn add(&mut self, mut changes: Changes, heard: Option<Instant>) {
        let family = self.family();
        if !changes.is_empty() {
            self.late.add(heard);
        }
        if let (true, Some(heard)) = (self.is_served, heard) {
            self.heard.extend(&changes, heard);
        }
        let room = TRIGGERS_MAX.saturating_sub(self.changes.triggers.len());
        changes
            .triggers
            .retain(|trigger| trigger.family == family && self.metrics.measures(trigger.at));
        changes.triggers.truncate(room);
        self.changes.extend(changes);
    }

    /// Requests a comparison of the kernel with the desired state, even if nothing has changed.
    pub(crate) fn check(&mut self, now: Instant) {
        self.is_asked = true;
        if self.successor.is_none() {
            self.mode.check(now);
        }
    }

    /// Passes a kernel notification to the family's mode and to the mode's successor, if any.
    pub(crate) fn notice(&mut self, notice: &proxy::Notice, now: Instant) {
        self.mode.notice(notice, now);
        if let Some(successor) = &mut self.successor {
            successor.notice(notice, now);
        }
    }

    /// Passes all or some queued changes to the family's mode if it is ready. The first call passes
    /// every object of the model.
    pub(crate) fn take_in(&mut self, model: &Model, now: Instant) {
        let is_due = self.started.is_none() || !self.changes.is_empty();
        if !is_due || !self.is_ready() {
            return;
        }
        let changes = if self.started.is_none() {
            mem::take(&mut self.changes)
        } else if let Some(piece) = self.pieces.take(&mut self.changes, model, now) {
            piece
        } else {
            return;
        };
        if self.changes.is_empty() {
            self.late.taken();
        } else {
            self.late.go_on(self.heard.first_of(&self.changes));
        }
        self.has_taken_in = true;
        self.mode.update(model, &changes, now);
        self.started.get_or_insert(now);
        self.stale_flows.note(model, &changes);
        self.no_local_endpoints.note(model, &changes);
        self.no_local_endpoints.tell(&self.metrics);
        self.triggers.extend(changes.triggers.into_iter());
    }

    /// Starts all kernel work that is pending and can start now.
    pub(crate) fn proceed(&mut self, model: &Model, now: Instant) {
        if self.successor.is_some() && self.mode.is_idle() {
            self.succeed(model, now);
        }
        if self.successor.is_some() {
            return self.mode.go_on_serving(now);
        }
        self.mode.proceed(model, now);
        self.pieces.note_rest(self.is_ready());
        if self.round.is_none() && !self.mode.standing().is_settled {
            self.round = Some(Round {
                began: now,
                is_asked: mem::take(&mut self.is_asked),
                has_written: false,
                has_unreadable: false,
                extent: None,
            });
        }
    }

    /// Replaces the mode with its successor, and passes every object of the model to the new mode.
    fn succeed(&mut self, model: &Model, now: Instant) {
        if let Some(successor) = self.successor.take() {
            self.mode = successor;
            self.add(
                Changes {
                    services: model.service_names().cloned().collect(),
                    node: true,
                    ..Changes::default()
                },
                None,
            );
            self.is_asked = true;
            self.take_in(model, now);
        }
    }

    /// Completes when a worker thread (kernel I/O) has finished a job.
    pub(crate) fn poll_finished(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.mode.poll_finished(context)
    }

    /// Collects the results of finished kernel work. Passes them to the metrics, the log and the
    /// health state.
    pub(crate) async fn book(&mut self, model: &Model, now: Instant) -> BookingResult {
        let Some(report) = self.mode.book(model, now) else {
            return BookingResult::default();
        };
        self.tell(&report, model, now).await;
        BookingResult {
            is_any: true,
            has_used_much: report.has_used_much,
            gone: report.gone,
        }
    }

    async fn tell(&mut self, report: &Report, model: &Model, now: Instant) {
        let family = self.family();
        self.metrics.booked(family, report);
        let standing = self.mode.standing();
        self.reporter.booked(report, &standing, model, now);
        self.story.booked(report);
        self.may_drain = true;
        if let Some(round) = &mut self.round {
            round.has_written |= report.written > 0 || !report.failures.is_empty();
            round.has_unreadable |= !report.unreadable.is_empty();
            round.extent = round.extent.max(self.metrics.extent(report));
        }
        for service in &report.settled {
            let heard = self.heard.take(service);
            // Skips Services that needed no write in this IP family. Both families receive every
            // Service. Without a write, a Service shows nothing about the kernel's speed.
            if let Some(since) = heard.filter(|_| report.written_for.contains(service)) {
                let took = now.saturating_duration_since(since);
                self.metrics.settled(family, took);
            }
        }
        let settled = report.settled.iter();
        let triggers: Vec<SystemTime> = settled
            .flat_map(|service| self.triggers.take(service))
            .collect();
        self.metrics.programmed(family, triggers.into_iter());
        if let Some(node_ports) = self.mode.node_ports()
            && self.node_ports.as_ref() != Some(node_ports)
        {
            self.metrics.note_node_ports(family, node_ports);
            self.node_ports = Some(node_ports.clone());
            if let Some(warning) = self.unmatched_node_ports(model) {
                warn!("{}", warning.message);
            }
        }
        self.stale_flows
            .compare(model, report, self.node_ports.as_ref());
        let addresses = self.node_ports.as_ref().map(|at| at.addresses.as_slice());
        self.health_checks
            .update(model, &report.settled, addresses)
            .await;
    }

    /// Returns a warning if no address of this node matches `--nodeport-addresses`.
    pub(crate) fn unmatched_node_ports(&self, model: &Model) -> Option<SettingWarning> {
        let family = self.family();
        let at = self.node_ports.as_ref()?;
        let is_nowhere = at.addresses.is_empty() && !at.on_localhost;
        let is_unmatched = is_nowhere
            && self.health_checks.is_selective()
            && one_family::families_of(model).contains(&family);
        is_unmatched.then(|| SettingWarning {
            flag: "--nodeport-addresses",
            message: format!(
                "--nodeport-addresses matches no {family} address of this node: NodePorts and \
                 health-check node ports are served nowhere in {family}; correct the flag, or \
                 with `primary` the addresses of the Node"
            ),
        })
    }

    /// Records delays that the mode cannot observe: changes that no IP family has received, and
    /// removals that the daemon holds back. `changed` is the number of Services whose changes no
    /// family has received, with the arrival time of the oldest change.
    pub(crate) fn note_late(
        &mut self,
        changed: Option<(usize, Instant)>,
        model: &Model,
        now: Instant,
    ) {
        self.late.wait(changed);
        self.late.look(model, || self.mode.standing(), now);
    }

    /// Returns the family's progress, including changes that its mode has not received yet.
    fn standing(&self) -> Standing {
        self.late.added_to(self.mode.standing(), &self.changes)
    }

    /// Records the family's progress in metrics and health state, and ends the sync if the kernel
    /// is up to date. The daemon calls this function after it has started all work that can start.
    pub(crate) fn conclude(&mut self, now: Instant) {
        let standing = self.mode.standing();
        let family = self.family();
        let shown = self.late.added_to(standing, &self.changes);
        self.metrics.stands(family, &shown);
        self.metrics.form(family, self.mode.form());
        let is_served = self.health.note(family, &standing, self.started, now);
        if is_served && !mem::replace(&mut self.is_served, is_served) {
            self.reporter.served(&standing, now);
            self.story.begin();
        }
        if mem::take(&mut self.may_drain) {
            let drains = self.mode.drains(0);
            self.metrics.drains(family, drains.count, drains.oldest);
        }
        // With constant changes, some kernel work is always running. The sync then ends once the
        // kernel has every change from before the start of the sync.
        let is_over = |round: &mut Round| {
            let since = standing.pending_since;
            standing.is_settled
                || (round.has_written && since.is_none_or(|since| since > round.began))
        };
        if let Some(round) = self.round.take_if(is_over) {
            self.end(&round, &shown, now);
        }
        self.complete_unwritten(&standing);
        if self.is_served {
            self.story.tell(&standing, now);
        }
    }

    /// Counts a sync as complete if the kernel is up to date without a write. Otherwise a change
    /// that needs no write would look like an overdue sync.
    fn complete_unwritten(&mut self, standing: &Standing) {
        let is_complete = self.is_served
            && self.changes.is_empty()
            && standing.is_settled
            && standing.pending_since.is_none()
            && !self.reporter.has_unreadable();
        if self.has_taken_in && is_complete {
            self.has_taken_in = false;
            self.metrics.complete(self.family(), SystemTime::now());
        }
    }

    fn end(&mut self, round: &Round, standing: &Standing, now: Instant) {
        // A step of the drift check, or a read of draining endpoints, does not count as a sync.
        if !round.is_asked && !round.has_written {
            return;
        }
        let family = self.family();
        let took = now.saturating_duration_since(round.began);
        self.metrics.synced(family, took, round.extent);
        if round.has_written {
            self.story.synced(took);
        }
        if round.has_unreadable || !self.is_served {
            return;
        }
        let ago = standing
            .pending_since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let before = SystemTime::now().checked_sub(ago);
        if let Some(before) = before {
            self.metrics.complete(family, before);
        }
    }

    /// Returns the family's progress and problems for the status, at most `most` of each kind.
    pub(crate) fn told(&self, model: &Model, most: usize, now: Instant) -> FamilyFacts {
        FamilyFacts {
            family: self.family(),
            standing: self.standing(),
            is_served: self.is_served,
            seen: self.reporter.seen(most, now),
            health_checks: self.health_checks.failing(model, most, now),
            form: self.mode.form(),
            drains: self.mode.drains(most),
            node_ports: self.node_ports.clone(),
        }
    }

    /// Returns the data of this IP family that the display of Services needs, with at most `most`
    /// failures.
    pub(crate) fn ground(
        &self,
        model: &Model,
        node: NodeFacts,
        most: usize,
        now: Instant,
    ) -> GroundOfFamily {
        let seen = self.reporter.seen(most, now);
        let failures = seen.failures.into_iter().map(|(failure, _)| failure);
        let unbound = self.health_checks.failing(model, most, now).into_iter();
        let unbound = unbound.map(|(failure, _)| failure);
        GroundOfFamily {
            node,
            node_ports: self.node_ports.clone(),
            failures: failures.chain(unbound).collect(),
            conflicts: seen.conflicts,
            held_by_others: self.mode.held_by_others().into_iter().collect(),
            drains: self.mode.drains(DRAINS),
            now,
        }
    }

    /// Returns the time at which this family has work again, if no event comes earlier.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        if self.successor.is_some() {
            // Needs no timer: a worker wakes the family when it finishes, and the successor then
            // takes over.
            return None;
        }
        let story = self.story.next_due(now).filter(|_| self.is_served);
        let piece = self
            .is_about_to_take_in()
            .then(|| self.pieces.next_due(now));
        self.mode
            .next_due(now)
            .into_iter()
            .chain(story)
            .chain(piece)
            .min()
    }
}

/// Arrival times of changes, by Service. An entry stays until the kernel has the change.
#[derive(Debug, Default)]
struct FirstReceived(HashMap<NamespacedName, Instant>);

impl FirstReceived {
    fn extend(&mut self, changes: &Changes, heard: Instant) {
        let room = TRIGGERS_MAX.saturating_sub(self.0.len());
        for service in changes.services.iter().take(room) {
            self.0.entry(service.clone()).or_insert(heard);
        }
    }

    fn take(&mut self, service: &NamespacedName) -> Option<Instant> {
        self.0.remove(service)
    }

    /// Returns the earliest arrival time of `changes`, if known.
    fn first_of(&self, changes: &Changes) -> Option<Instant> {
        let services = changes.services.iter();
        services.filter_map(|name| self.0.get(name)).min().copied()
    }
}

impl Triggers {
    fn extend(&mut self, triggers: impl Iterator<Item = Trigger>) {
        let room = TRIGGERS_MAX.saturating_sub(self.count);
        for trigger in triggers.take(room) {
            self.of.entry(trigger.service).or_default().push(trigger.at);
            self.count += 1;
        }
    }

    fn take(&mut self, service: &NamespacedName) -> Vec<SystemTime> {
        let taken = self.of.remove(service).unwrap_or_default();
        self.count -= taken.len();
        taken
    }
}

#[cfg(test)]
pub(crate) mod tests;
