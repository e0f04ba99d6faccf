//! The daemon's loop. One `select` waits for every kind of event.
//!
//! ```text
//!   stop, clock ┐
//!   events      │            ┌─▶ drain the queued events into the model
//!   addresses   ├─ select! ──┼─▶ book the finished jobs of worker threads (kernel I/O)
//!   kernel      │            ├─▶ take in ─▶ update, if a family is ready
//!   options     ┘            └─▶ proceed: start pending work on idle worker threads
//! ```
//!
//! `drain` merges queued events: all events that arrive while a family's worker writes become one
//! update. The two families work independently.

use std::future::poll_fn;
use std::mem;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use footprint::uses::Uses;
use futures::stream::{BoxStream, SelectAll, StreamExt as _};
use http_server::Server;
use ipnet::IpNet;
use modes::definition::Ending;
use modes::predecessor::{Predecessor, PredecessorDrain, disarm};
use modes::rulesets::Notices;
use proxy::{Event, IpFamily, Mode, Model, Notice};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep_until;
use tracing::{error, info};

use super::observed::Observed;
use super::renewal::{Modes, Renewal};
use super::stop::Stop;
use crate::config::follow::problem::FileProblem;
use crate::config::options::Options;
use crate::events::Recorder;
use crate::family::Family;
use crate::health::health_check::Answering;
use crate::node::addresses::AddressChanges;
use crate::node::external_addresses::ExternalAddresses;
use crate::node::{missing_objects, one_family};
use crate::process::memory;
use crate::run::first_lists::drain;

/// Delay between kernel work that used much memory and the return of that memory to the system.
const TRIM_DELAY: Duration = Duration::from_secs(1);

/// State of the rules that an earlier process left in the kernel.
pub(super) enum LeftRules {
    /// Packets may still match rules of the earlier process.
    Armed,
    /// Task that disables the rules, so that packets bypass them. `None` if no such task is needed.
    Disarmed(Option<JoinHandle<()>>),
}

pub(super) struct Daemon {
    pub(super) options: Options,
    pub(super) events: BoxStream<'static, Event>,
    pub(super) addresses: AddressChanges,
    /// Kernel notifications about changes to the rules that the modes wrote.
    pub(super) rulesets: SelectAll<Notices>,
    pub(super) model: Model,
    pub(super) external_addresses: ExternalAddresses,
    pub(super) one_family: one_family::Watch,
    pub(super) observed: Observed,
    /// Health and metrics servers.
    pub(super) servers: Vec<Server>,
    pub(super) families: Vec<Family>,
    pub(super) renewal: Renewal,
    /// Reasons why the configuration file differs from the configuration in use.
    pub(super) file_problem: FileProblem,
    /// Pod networks of this Node that the modes use, or that modes in preparation will use.
    pub(super) pod_networks: Vec<IpNet>,
    /// Time before which no IP family receives further changes (minimum sync period).
    pub(super) not_before: Instant,
    /// Arrival time of the oldest change that no IP family has received, or `None` if the families
    /// have received all changes.
    pub(super) heard: Option<Instant>,
    /// Time of the next periodic comparison of the kernel with the desired state.
    pub(super) next_tick: Instant,
    /// Time at which unused memory is returned to the system. `None`: no return is planned.
    pub(super) trim_at: Option<Instant>,
    /// Cleanup of other modes' entries that waits to start, if any.
    pub(super) predecessor: Option<Predecessor>,
    pub(super) ended: LeftRules,
    /// Running cleanup of other modes' entries, if any. The cleanup returns the open connections
    /// that delay the removal of the last entries.
    pub(super) clearing: Option<JoinHandle<Option<PredecessorDrain>>>,
    /// Last work of the current mode before the process ends, if the mode has such work.
    pub(super) ending: Option<Ending>,
    /// Variant of the current mode, and the kernel features that the mode uses.
    pub(super) uses: Uses,
}

impl Daemon {
    #[allow(
        clippy::too_many_arguments,
        reason = "what the start has opened, each for itself"
    )]
    pub(super) fn new(
        options: Options,
        events: BoxStream<'static, Event>,
        addresses: AddressChanges,
        model: Model,
        modes: Vec<Box<dyn Mode>>,
        recorder: &Recorder,
        observed: Observed,
        now: Instant,
    ) -> Result<Self> {
        let answering = Answering {
            health: Arc::clone(&observed.health),
            runtime: observed.http.runtime().clone(),
        };
        let (metrics, counters) = (&observed.metrics, &observed.counters.own);
        let families = modes
            .into_iter()
            .map(|mode| Family::new(mode, &options, &answering, metrics, counters, recorder, now));
        let families: Vec<Family> = families
            .collect::<Result<_, _>>()
            .context("cannot start a thread for stale UDP flows")?;
        let served = families.iter().map(Family::family);
        observed.status.expect(served.collect());
        let node = &*options.process.node_name.clone();
        let mode = options.modes.chosen.name();
        let metrics = observed.metrics.clone();
        let pod_networks = model.node().map(|node| node.pod_cidrs.clone());
        Ok(Self {
            next_tick: now + options.modes.shared.sync_period,
            options,
            events,
            addresses,
            rulesets: SelectAll::new(),
            pod_networks: pod_networks.unwrap_or_default(),
            external_addresses: ExternalAddresses::new(
                node,
                mode,
                recorder.clone(),
                metrics.contested.clone(),
                now,
            ),
            model,
            one_family: one_family::Watch::default(),
            observed,
            servers: Vec::new(),
            families,
            renewal: Renewal::default(),
            file_problem: FileProblem::default(),
            not_before: now,
            heard: None,
            trim_at: None,
            predecessor: None,
            ended: LeftRules::Disarmed(None),
            clearing: None,
            ending: None,
            uses: Uses::default(),
        })
    }

    pub(super) async fn serve(
        &mut self,
        mut stop: Stop,
        changed: &mut mpsc::Receiver<Options>,
    ) -> Result<()> {
        let mut is_listening = true;
        // One timer serves all deadlines. The loop resets the timer only if the deadline changes,
        // because a reset costs system calls.
        let mut timer = pin!(sleep_until(self.next_tick.into()));
        let health = Arc::clone(&self.observed.health);
        loop {
            let now = Instant::now();
            self.turn(now).await?;
            let due = self.next_due(now).into();
            if timer.deadline() != due {
                timer.as_mut().reset(due);
            }
            let families = &mut self.families;
            // The select is fair: no branch can starve another.
            tokio::select! {
                () = stop.requested() => {
                    info!("stopping; everything programmed stays in the kernel");
                    return Ok(());
                }
                () = &mut timer => self.tick(Instant::now()),
                () = poll_fn(|context| poll_finished(families, context)) => {}
                notices = self.addresses.next(), if is_listening => match notices {
                    Ok(notices) => self.notice(&notices),
                    Err(error) => {
                        is_listening = false;
                        error!(%error, "address changes can no longer be followed; they are seen at the next check");
                    }
                },
                Some((of, notice)) = self.rulesets.next(), if !self.rulesets.is_empty() => {
                    self.notice_of(of, &notice);
                }
                drain = ended(&mut self.clearing) => {
                    let metrics = self.observed.metrics.clone();
                    self.clearing = drain.map(|drain| tokio::spawn(async move {
                        drain.finish(|family, counts| metrics.former_mode_drains(family, counts)).await;
                        None
                    }));
                    // The cleanup removed a link whose addresses belonged to the node. The kernel
                    // sent no notification about these addresses.
                    self.notice(&[Notice::Anything]);
                }
                event = self.events.next() => match event {
                    Some(event) => self.drain(event).await,
                    None => anyhow::bail!("the source of Services has ended"),
                },
                () = health.pulse().asked() => health.pulse().answer(Instant::now()),
                Some(question) = self.observed.questions.recv() => self.answer(question),
                Some(options) = changed.recv() => self.renewal.want(options, Modes::AsSettingsSay),
                prepared = self.renewal.finished() => if let Some(prepared) = prepared {
                    self.renew(prepared);
                },
            }
        }
    }

    /// Runs one turn of the loop: does all work that is possible now.
    pub(super) async fn turn(&mut self, now: Instant) -> Result<()> {
        self.renewal.start(&self.options, now);
        self.book(now).await?;
        self.follow_node_ports();
        self.hand_out(now);
        self.proceed(now);
        // Reads the clock again, because two steps took time: handling Services that need no write,
        // and waiting for short writes.
        let now = Instant::now().max(now);
        if self.book(now).await? {
            self.follow_node_ports();
            self.hand_out(now);
            self.proceed(now);
        }
        let of_node: Option<Vec<_>> = self.families.iter().map(Family::node_addresses).collect();
        let of_node = of_node.map(|all| all.into_iter().flatten());
        let lacks = self.families.iter().flat_map(Family::unavailable_options);
        let scheduler = &self.options.modes.ipvs.scheduler;
        self.external_addresses.support(scheduler, lacks.collect());
        self.external_addresses.look(&self.model, of_node, now);
        let changed = self.model.has_changes().then(|| {
            let services = self.model.changes().services.len();
            (services.max(1), self.heard.unwrap_or(now))
        });
        for family in &mut self.families {
            family.note_late(changed, &self.model, now);
            family.conclude(now);
        }
        if self.families.iter().all(Family::rests) {
            self.succeed();
        }
        Ok(())
    }

    /// Starts the cleanup of other modes' entries once this mode serves. The cleanup waits until
    /// every object has been readable once. Until then, the entries may still serve a Service that
    /// the model does not know.
    ///
    /// Rules whose process has ended serve no client. So this function makes packets bypass such
    /// rules immediately.
    fn succeed(&mut self) {
        let is_whole = self.model.is_whole();
        match &mut self.ended {
            ended @ LeftRules::Armed if !is_whole => {
                let disarm = disarm(self.options.modes.chosen.name());
                *ended = LeftRules::Disarmed(Some(tokio::spawn(disarm)));
            }
            ended if is_whole => {
                let before = match mem::replace(ended, LeftRules::Disarmed(None)) {
                    LeftRules::Disarmed(before) => before,
                    LeftRules::Armed => None,
                };
                if let Some(predecessor) = self.predecessor.take() {
                    self.clearing = Some(tokio::spawn(async move {
                        if let Some(before) = before {
                            // Ignores the result: the task logs its own outcome.
                            let _ = before.await;
                        }
                        predecessor.clear().await
                    }));
                }
            }
            _ => {}
        }
    }

    /// Collects the results of finished kernel work from each IP family. Returns true if any work
    /// has finished.
    async fn book(&mut self, now: Instant) -> Result<bool> {
        let mut is_any = false;
        for family in &mut self.families {
            let booked = family.book(&self.model, now).await;
            if let Some(why) = booked.gone {
                // Exits. The restart does not interrupt traffic, because the new process finds the
                // entries in the kernel.
                anyhow::bail!("{}: {why}", family.family());
            }
            is_any |= booked.is_any;
            if booked.has_used_much {
                self.trim_at = Some(now + TRIM_DELAY);
            }
        }
        Ok(is_any)
    }

    /// Passes changes to the IP families if at least one of them can receive changes.
    fn hand_out(&mut self, now: Instant) {
        let can = self.families.iter().any(Family::is_ready);
        // Passes all changes to a family that was busy, because the family computes from the whole
        // current model. If it received only some changes, an address that moves between Services
        // could belong to no Service for a moment.
        let is_late = self.families.iter().any(Family::is_about_to_take_in);
        if can && self.model.has_changes() && (is_late || now >= self.not_before) {
            let changes = self.model.take_changes();
            self.one_family
                .look(&self.options.modes, &self.model, &changes);
            self.observed.metrics.taken(&changes);
            self.observed.metrics.note(&self.model, &changes);
            let heard = self.heard.take().unwrap_or(now);
            missing_objects::tell(&changes, &self.observed.metrics.vanished);
            for family in &mut self.families {
                family.add(changes.clone(), Some(heard));
            }
            self.not_before = now + self.options.process.min_sync_period;
        }
    }

    /// Updates the model's NodePort addresses, once every IP family knows its own addresses.
    fn follow_node_ports(&mut self) {
        let all = self.families.iter().map(Family::node_port_addresses);
        if let Some(all) = all.collect::<Option<Vec<_>>>() {
            let mut addresses: Vec<IpAddr> = all.into_iter().flatten().collect();
            addresses.sort_unstable();
            self.model.serve_node_ports_at(&addresses);
        }
    }

    /// Starts pending work in each IP family. While the kernel works for the first family, the
    /// second family computes.
    fn proceed(&mut self, now: Instant) {
        for family in &mut self.families {
            family.take_in(&self.model, now);
            family.proceed(&self.model, now);
        }
    }

    /// Starts the periodic check of the kernel and returns unused memory to the system, when due.
    /// The modes have their own timers.
    fn tick(&mut self, now: Instant) {
        if now >= self.next_tick {
            self.next_tick = now + self.sync_period();
            for family in &mut self.families {
                family.check(now);
            }
        }
        if self.trim_at.is_some_and(|at| now >= at) {
            self.trim_at = None;
            memory::trim();
        }
    }

    fn notice(&mut self, notices: &[Notice]) {
        let now = Instant::now();
        for family in &mut self.families {
            for notice in notices {
                family.notice(notice, now);
            }
        }
    }

    /// Passes a notification about rules to the mode of the affected IP family.
    fn notice_of(&mut self, of: IpFamily, notice: &Notice) {
        let now = Instant::now();
        for family in &mut self.families {
            if family.family() == of {
                family.notice(notice, now);
            }
        }
    }

    /// Applies an event and all queued events to the model.
    async fn drain(&mut self, first: Event) {
        drain(&mut self.events, &mut self.model, first).await;
        self.observed.status.note_node(&self.model);
        self.follow_pod_networks();
        if self.model.has_changes() {
            self.heard.get_or_insert_with(Instant::now);
            let families = self.families.iter().map(Family::family);
            self.observed.metrics.queued(self.model.changes(), families);
        }
    }

    /// Returns the time at which the loop's next work starts without a further event.
    pub(super) fn next_due(&self, now: Instant) -> Instant {
        // Without a ready IP family, no work can start. The loop wakes when a family becomes ready.
        let can = self.families.iter().any(Family::is_ready);
        let events = (can && self.model.has_changes()).then_some(self.not_before);
        let families = self.families.iter();
        let families = families.filter_map(|family| family.next_due(now));
        let others = [events, self.trim_at, self.renewal.next_due()];
        let due = families.chain(others.into_iter().flatten());
        due.fold(self.next_tick, Instant::min)
    }

    /// Returns the longest time between two comparisons of the kernel with the desired state.
    pub(super) fn sync_period(&self) -> Duration {
        self.options.modes.shared.sync_period
    }
}

/// Waits for the end of the cleanup `task`, and removes the task. Returns the open connections that
/// delay the removal of the last entries. Waits forever if there is no task.
async fn ended(
    task: &mut Option<JoinHandle<Option<PredecessorDrain>>>,
) -> Option<PredecessorDrain> {
    let drain = match task {
        // Ignores an error: the task logs its own outcome.
        Some(running) => running.await.ok().flatten(),
        None => std::future::pending().await,
    };
    *task = None;
    drain
}

/// Completes when a worker thread (kernel I/O) of any IP family has finished a job.
pub(super) fn poll_finished(families: &mut [Family], context: &mut Context<'_>) -> Poll<()> {
    let polled = families
        .iter_mut()
        .map(|family| family.poll_finished(context));
    // Polls every IP family, so that each of them can wake the loop.
    let is_any = polled.fold(false, |any, poll| any | poll.is_ready());
    if is_any {
        Poll::Ready(())
    } else {
        Poll::Pending
    }
}
