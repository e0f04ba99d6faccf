//! The daemon's loop: a few triggers, one body.
//!
//! ```text
//!   event ┐
//!   retry │            ┌─▶ drain the queued events into the model
//!   tick  ├─ select! ──┼─▶ resync, if the kernel may have changed by itself
//!   node  │            ├─▶ update ─▶ sync, for each family
//!   stop  ┘            └─▶ say what happened
//! ```
//!
//! Draining is what coalesces: however many events arrive while a sync runs, they are one update after it.

use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use futures::future::{FutureExt as _, join_all, try_join};
use futures::stream::{BoxStream, StreamExt as _};
use ipnet::IpNet;
use iptables::Iptables;
use proxy::{Changes, Event, Mode, Model};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{unconstrained, yield_now};
use tokio::time::{Instant, sleep_until};
use tracing::{error, info, warn};

use crate::addresses::AddressChanges;
use crate::config::Configz;
use crate::conntrack::StaleFlows;
use crate::events::{self, Recorder};
use crate::flags::{DetectLocal, Options};
use crate::health::Health;
use crate::health_check::HealthChecks;
use crate::healthz::Status;
use crate::http_server::{self, ListenError, Server};
use crate::metrics::{Metrics, NoLocalEndpoints, Pages};
use crate::report::Reporter;
use crate::{healthz, memory, metrics, mode, source, sysctl};

/// How many queued events are taken in before the kernel is written, so that a flood cannot put that off for ever.
const MAX_DRAINED: usize = 50_000;
/// How soon after a change of the node's addresses the next resync comes: they change in bursts.
const ADDRESS_SETTLE: Duration = Duration::from_millis(50);
/// The first delay before a kernel that could not be read is read again; doubles up to the sync period.
const FIRST_REREAD: Duration = Duration::from_secs(1);
/// How many changes that are not in the kernel yet are measured, should it not be writable for long.
const MAX_TRIGGERS: usize = 100_000;
/// How often a start that still waits for its sources says so.
const WAITING_NOTICE: Duration = Duration::from_secs(10);
/// After so many writes at once, memory is given back.
const MANY_WRITES: usize = 1000;
/// How long after them, or after the kernel was read: what used the memory is to be over.
const TRIM_DELAY: Duration = Duration::from_secs(1);
/// How long the start waits for the own Node, as upstream.
const NODE_PATIENCE: Duration = Duration::from_secs(30);

/// Serves until SIGTERM or SIGINT. Whatever is programmed stays: a restart must not cost a connection.
///
/// Options that come by `changed` take the place of those before. They may differ in what a changed configuration file can say
/// without a new start ([`Change::Live`](crate::config::Change)).
pub async fn run(options: Options, changed: mpsc::Receiver<Options>) -> Result<()> {
    // A task of its own: to wake the future that the runtime blocks on costs two system calls, another task none.
    match tokio::spawn(live(options, changed)).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(error) => Err(error.into()),
        },
    }
}

async fn live(options: Options, mut changed: mpsc::Receiver<Options>) -> Result<()> {
    let mut stop = Stop::subscribe()?;
    let observed = Observed::new(&options);
    let (mut events, client) =
        source::open_counted(&options.source, &options.node_name, &observed.metrics).await?;
    let recorder = client.map_or_else(Recorder::off, |client| {
        Recorder::start(client, &options.node_name)
    });
    let prepared = async {
        let kernels = mode::open(&options).await?;
        set_sysctls(&options)?;
        let servers = observed.serve(&options, &recorder).await?;
        // Subscribed before anything is read, so that no change falls between.
        let addresses = AddressChanges::subscribe()
            .context("cannot subscribe to address changes (rtnetlink)")?;
        anyhow::Ok((kernels, servers, addresses))
    };
    let mut model = Model::of_node(&options.node_name);
    let gathered = gather(&mut events, &mut model, &options).map(anyhow::Ok);
    let (kernels, _servers, addresses) = tokio::select! {
        ready = try_join(prepared, gathered) => ready?.0,
        () = stop.requested() => return Ok(()),
    };
    let predecessor = kernels.clears_with().map(|iptables| Predecessor {
        iptables,
        excluded: options.exclude_cidrs.clone(),
    });
    let modes = kernels.into_modes(&options, &model);
    let families = modes.iter().map(|mode| mode.family());
    observed.status.expect(families.collect());
    observed.status.note_node(&model);
    recorder.record(events::Event::starting(&options.node_name));
    let mut daemon = Daemon::new(
        options, events, addresses, model, modes, &recorder, observed,
    );
    daemon.predecessor = predecessor;
    daemon.serve(stop, &mut changed).await
}

/// What needs privileges, alone (`--init-only`): IPVS is loaded, its time-outs and the sysctls are set. No rule is written, and
/// iptables need not be here.
pub async fn init(options: &Options) -> Result<()> {
    mode::prepare(options).await?;
    set_sysctls(options)
}

fn set_sysctls(options: &Options) -> Result<()> {
    let written = sysctl::apply(options)?;
    if !written.is_empty() {
        info!(sysctls = written.join(" "), "kernel settings written");
    }
    Ok(())
}

/// Takes in events until Services and EndpointSlices have been told, and the own Node, if it comes in time.
pub(crate) async fn gather(
    events: &mut BoxStream<'static, Event>,
    model: &mut Model,
    options: &Options,
) {
    let needs_node = matches!(options.source, crate::flags::ObjectSource::Api { .. });
    gather_within(events, model, needs_node, NODE_PATIENCE).await;
}

/// Waits so long for the own Node. Where it is not needed, to be told that there is none will do.
async fn gather_within(
    events: &mut BoxStream<'static, Event>,
    model: &mut Model,
    needs_node: bool,
    patience: Duration,
) {
    let started = Instant::now();
    let mut notice = started + WAITING_NOTICE;
    let enough = started + patience;
    loop {
        let is_patient = Instant::now() < enough;
        let is_listed = model.is_node_listed();
        let is_node_known = model.node().is_some() || (is_listed && !needs_node);
        if model.is_complete() && (is_node_known || !is_patient) {
            if !is_node_known {
                let why = if is_listed {
                    "it does not exist; check --hostname-override"
                } else {
                    "it cannot be listed; check that this may list and watch nodes"
                };
                warn!(
                    why,
                    "going on without the own Node, its addresses and its zone"
                );
            }
            return;
        }
        tokio::select! {
            event = events.next() => match event {
                // As many as there are: each turn of this loop asks for the time, and sets timers.
                Some(event) => drain(events, model, event).await,
                None => return,
            },
            () = sleep_until(enough), if is_patient => {}
            () = sleep_until(notice) => {
                notice += WAITING_NOTICE;
                let awaited = if model.is_complete() { "the own Node" } else { "Services and EndpointSlices" };
                info!(waiting_for = awaited, "nothing is programmed before the first lists are complete");
            }
        }
    }
}

/// What the servers tell.
struct Observed {
    metrics: Metrics,
    health: Arc<Health>,
    status: Arc<Status>,
    configz: Configz,
}

impl Observed {
    fn new(options: &Options) -> Self {
        let health = Arc::new(Health::new(options.sync_period));
        let needs_node = matches!(options.source, crate::flags::ObjectSource::Api { .. });
        Self {
            metrics: Metrics::of_mode(options.mode),
            status: Arc::new(Status::new(Arc::clone(&health), needs_node)),
            health,
            configz: Configz::new(&options.configuration),
        }
    }

    /// Starts the servers of health and metrics; they end when they are dropped.
    async fn serve(&self, options: &Options, recorder: &Recorder) -> Result<Vec<Server>> {
        let is_fatal = options.bind_address_hard_fail;
        let mut servers = Vec::new();
        if let Some(at) = options.healthz_address {
            let (status, metrics) = (Arc::clone(&self.status), self.metrics.clone());
            let respond = move |head: &_| status.respond(head, &metrics);
            let started = http_server::start(healthz::PURPOSE, at, is_fatal, respond);
            servers.push((healthz::PURPOSE, started));
        }
        if let Some(at) = options.metrics_address {
            let pages = Pages::new(self.metrics.clone(), self.configz.clone(), options.mode);
            let respond = move |head: &_| pages.respond(head);
            let started = http_server::start(metrics::PURPOSE, at, is_fatal, respond);
            servers.push((metrics::PURPOSE, started));
        }
        let mut running = Vec::new();
        for (purpose, started) in servers {
            let failed = |error: &ListenError| {
                let note = error.to_string();
                events::Event::listen_failed(&options.node_name, purpose.event, note)
            };
            match started {
                Ok(server) => {
                    if let Err(error) = &server.address {
                        recorder.record(failed(error));
                    }
                    running.push(server);
                }
                Err(error) => {
                    recorder.record_last(failed(&error)).await;
                    return Err(error.into());
                }
            }
        }
        Ok(running)
    }
}

/// Takes in an event and all that the source has to tell behind it, which may be more than its queue holds.
async fn drain(events: &mut BoxStream<'static, Event>, model: &mut Model, first: Event) {
    model.apply(first);
    let mut drained = 0;
    loop {
        let before = drained;
        // Unconstrained: tokio lets a task receive 128 messages, then says that there are none until it has waited.
        while drained < MAX_DRAINED
            && let Some(Some(event)) = unconstrained(events.next()).now_or_never()
        {
            model.apply(event);
            drained += 1;
        }
        if drained == before || drained == MAX_DRAINED {
            return;
        }
        // The source goes on where its queue was full.
        yield_now().await;
    }
}

struct Daemon {
    options: Options,
    events: BoxStream<'static, Event>,
    addresses: AddressChanges,
    model: Model,
    observed: Observed,
    families: Vec<Family>,
    /// Whether families sync side by side. On one CPU nothing would be gained: kernel and programs work, they do not wait, and the
    /// first family would only be later.
    is_abreast: bool,
    /// Those of the own Node that modes were opened with.
    pod_networks: Vec<IpNet>,
    /// Before this, no sync starts because of events.
    not_before: Instant,
    /// When the kernel is next read unasked.
    next_tick: Instant,
    /// When memory is given back to the system.
    trim_at: Option<Instant>,
    /// Until it is cleared.
    predecessor: Option<Predecessor>,
}

/// What another mode may have left in the kernel, which goes once this one serves.
struct Predecessor {
    iptables: Iptables,
    excluded: Vec<IpNet>,
}

impl Predecessor {
    async fn clear(self) {
        let Self { iptables, excluded } = self;
        // Blocks on the kernel and on programs.
        let clear = move || proxy_ipvs::clean_up_beside(&iptables, &excluded);
        match tokio::task::spawn_blocking(clear).await {
            Ok(cleanup) => {
                for line in cleanup.removed {
                    info!("removed what another mode had left: {line}");
                }
                for line in cleanup.left {
                    warn!("left by another mode: {line}");
                }
            }
            Err(error) => error!(%error, "what another mode has left stays"),
        }
    }
}

/// One family's mode, and what the loop keeps about it.
struct Family {
    mode: Box<dyn Mode>,
    reporter: Reporter,
    health: Arc<Health>,
    health_checks: HealthChecks,
    stale_flows: StaleFlows,
    no_local_endpoints: NoLocalEndpoints,
    metrics: Metrics,
    /// When what is not in the kernel yet was triggered, to be measured once it is.
    triggers: Vec<SystemTime>,
    /// The kernel is to be read before the next sync, because of something seen outside.
    wants_resync: bool,
    /// After a failed read: no further one before this.
    reread: Option<(Instant, Duration)>,
    /// Whether everything has been in the kernel once.
    has_served: bool,
}

impl Daemon {
    fn new(
        options: Options,
        events: BoxStream<'static, Event>,
        addresses: AddressChanges,
        model: Model,
        modes: Vec<Box<dyn Mode>>,
        recorder: &Recorder,
        observed: Observed,
    ) -> Self {
        let now = Instant::now();
        let Observed {
            health, metrics, ..
        } = &observed;
        let families = modes
            .into_iter()
            .map(|mode| Family {
                reporter: Reporter::new(mode.family(), recorder.clone()),
                health: Arc::clone(health),
                stale_flows: StaleFlows::new(mode.family(), metrics.clone()),
                no_local_endpoints: NoLocalEndpoints::new(mode.family(), &options.node_name),
                metrics: metrics.clone(),
                triggers: Vec::new(),
                health_checks: HealthChecks::new(
                    mode.family(),
                    &options,
                    Arc::clone(health),
                    recorder.clone(),
                ),
                mode,
                wants_resync: true,
                reread: None,
                has_served: false,
            })
            .collect();
        let next_tick = now + options.sync_period;
        let pod_networks = model.node().map(|node| node.pod_cidrs.clone());
        Self {
            options,
            events,
            addresses,
            pod_networks: pod_networks.unwrap_or_default(),
            model,
            observed,
            families,
            is_abreast: available_parallelism().is_ok_and(|cpus| cpus.get() > 1),
            not_before: now,
            next_tick,
            trim_at: None,
            predecessor: None,
        }
    }

    async fn serve(mut self, mut stop: Stop, changed: &mut mpsc::Receiver<Options>) -> Result<()> {
        let mut is_listening = true;
        // One timer for all, which is set anew only when it is another time: that costs system calls.
        let mut timer = pin!(sleep_until(self.next_tick));
        loop {
            let now = Instant::now();
            self.sync(now).await;
            let due = self.next_due(now);
            if timer.deadline() != due {
                timer.as_mut().reset(due);
            }
            // Not biased: none of these may put off another for ever.
            tokio::select! {
                () = stop.requested() => {
                    info!("stopping; everything programmed stays in the kernel");
                    return Ok(());
                }
                () = &mut timer => self.tick(Instant::now()),
                changed = self.addresses.next(), if is_listening => match changed {
                    Ok(()) => self.next_tick = self.next_tick.min(Instant::now() + ADDRESS_SETTLE),
                    Err(error) => {
                        is_listening = false;
                        error!(%error, "address changes can no longer be followed; they are seen at the next resync");
                    }
                },
                event = self.events.next() => match event {
                    Some(event) => self.drain(event).await,
                    None => anyhow::bail!("the source of Services has ended"),
                },
                Some(options) = changed.recv() => self.reconfigure(options).await,
            }
        }
    }

    /// Does what the clock asks for, beside the syncs.
    fn tick(&mut self, now: Instant) {
        if now >= self.next_tick {
            self.next_tick = now + self.options.sync_period;
            self.want_resync();
        }
        if self.trim_at.is_some_and(|at| now >= at) {
            self.trim_at = None;
            memory::trim();
        }
    }

    /// Goes on with other options. Where modes depend on them, they are opened anew and find what is programmed, as after a
    /// start, so that only what differs is written; the model and its watches stay.
    async fn reconfigure(&mut self, options: Options) {
        if let Err(error) = set_sysctls(&options) {
            error!("the changed configuration is not in effect as a whole: {error:#}");
        }
        if mode::differ(&self.options, &options)
            && let Err(error) = self.open_anew(&options).await
        {
            error!("the changed configuration is not in effect as a whole: {error:#}");
        }
        self.observed.health.set_sync_period(options.sync_period);
        self.observed.configz.set(&options.configuration);
        let now = Instant::now();
        self.next_tick = self.next_tick.min(now + options.sync_period);
        self.not_before = self.not_before.min(now + options.min_sync_period);
        self.options = options;
    }

    async fn open_anew(&mut self, options: &Options) -> Result<()> {
        let modes = mode::open(options).await?.into_modes(options, &self.model);
        self.replace_modes(modes);
        Ok(())
    }

    /// Takes over the Node's pod networks where they say which traffic is local (`--detect-local-mode=NodeCIDR`): they may come
    /// after the start. Upstream exits when they change. A Node that is gone, or has none, changes nothing.
    async fn follow_pod_networks(&mut self) {
        let networks = match (&self.options.detect_local, self.model.node()) {
            (DetectLocal::NodeCidr, Some(node)) if !node.pod_cidrs.is_empty() => &node.pod_cidrs,
            _ => return,
        };
        if *networks == self.pod_networks {
            return;
        }
        let networks = networks.clone();
        info!(?networks, "the Node has other pod networks");
        let options = self.options.clone();
        match self.open_anew(&options).await {
            Ok(()) => self.pod_networks = networks,
            Err(error) => {
                error!(
                    "the Node's pod networks are not in effect: {error:#}. It is tried again when the Node changes"
                );
            }
        }
    }

    fn replace_modes(&mut self, modes: Vec<Box<dyn Mode>>) {
        let everything = Changes {
            services: self.model.service_names().cloned().collect(),
            node: true,
            ..Changes::default()
        };
        for mut mode in modes {
            let mut families = self.families.iter_mut();
            if let Some(family) = families.find(|family| family.mode.family() == mode.family()) {
                mode.update(&self.model, &everything);
                family.mode = mode;
                family.wants_resync = true;
                family.reread = None;
            }
        }
    }

    /// Takes in an event and all that are queued behind it.
    async fn drain(&mut self, first: Event) {
        let was_whole = self.model.is_whole();
        drain(&mut self.events, &mut self.model, first).await;
        self.observed.status.note_node(&self.model);
        self.follow_pod_networks().await;
        if self.model.has_changes() {
            let families = self.families.iter().map(|family| family.mode.family());
            self.observed.metrics.queued(self.model.changes(), families);
        }
        if !was_whole && self.model.is_whole() {
            // What had to stay may go now, though no object has changed.
            self.want_resync();
        }
    }

    fn want_resync(&mut self) {
        for family in &mut self.families {
            family.wants_resync = true;
        }
    }

    /// When something is due without a further event.
    fn next_due(&self, now: Instant) -> Instant {
        let events = self.model.has_changes().then_some(self.not_before);
        let families = self
            .families
            .iter()
            .filter_map(|family| family.next_due(now));
        let due = families.chain(events).chain(self.trim_at);
        due.fold(self.next_tick, Instant::min)
    }

    async fn sync(&mut self, now: Instant) {
        let has_due = self
            .families
            .iter()
            .any(|family| family.next_due(now).is_some_and(|due| due <= now));
        let takes_events = self.model.has_changes() && now >= self.not_before;
        if !has_due && !takes_events {
            return;
        }
        let changes = if now >= self.not_before {
            let changes = self.model.take_changes();
            self.observed.metrics.taken(&changes);
            changes
        } else {
            Changes::default()
        };
        let (model, period) = (&self.model, self.options.sync_period);
        let takes_changes = !changes.is_empty();
        for family in &mut self.families {
            family.take_in(model, &changes);
        }
        let mut used_much = false;
        if self.is_abreast {
            let families = self.families.iter_mut();
            let syncs = families.map(|family| family.sync(model, takes_changes, period, now));
            used_much = join_all(syncs).await.contains(&true);
        } else {
            // All read before one writes: IPVS tells everybody the virtual servers of both families.
            let mut readings = Vec::new();
            for family in &mut self.families {
                readings.push(family.read(model, period, now).await);
            }
            for (family, reading) in self.families.iter_mut().zip(readings) {
                used_much |= family.write(reading, model, takes_changes, now).await;
            }
        }
        let ended = Instant::now();
        if used_much {
            self.trim_at = Some(ended + TRIM_DELAY);
        }
        if !changes.is_empty() {
            self.not_before = ended + self.options.min_sync_period;
        }
        if self.model.is_whole()
            && self.families.iter().all(|family| family.has_served)
            && let Some(predecessor) = self.predecessor.take()
        {
            predecessor.clear().await;
        }
    }
}

impl Family {
    fn next_due(&self, now: Instant) -> Option<Instant> {
        match self.reread {
            // Without knowing the kernel nothing can be written.
            Some((at, _)) => Some(at),
            None if self.wants_resync || self.mode.needs_resync() => Some(now),
            None => self.mode.next_due().map(Instant::from_std),
        }
    }

    /// What is to be measured of changes.
    fn note(&mut self, model: &Model, changes: &Changes) {
        self.no_local_endpoints.note(model, changes);
        let triggers = self.metrics.triggers(changes, self.mode.family());
        let room = MAX_TRIGGERS.saturating_sub(self.triggers.len());
        self.triggers.extend(triggers.take(room));
    }

    /// Takes over what changed.
    fn take_in(&mut self, model: &Model, changes: &Changes) {
        self.mode.update(model, changes);
        self.health_checks.note(changes);
        self.stale_flows.note(model, changes);
        self.note(model, changes);
    }

    /// True after what takes much memory for a while: the kernel was read, or compared, or much was written.
    async fn sync(
        &mut self,
        model: &Model,
        takes_changes: bool,
        longest: Duration,
        now: Instant,
    ) -> bool {
        let reading = self.read(model, longest, now).await;
        self.write(reading, model, takes_changes, now).await
    }

    /// Reads the kernel, if that is due.
    async fn read(&mut self, model: &Model, longest: Duration, now: Instant) -> Reading {
        self.health.begin(self.mode.family(), now.into_std());
        if !self.wants_resync && !self.mode.needs_resync() {
            return Reading::Known;
        }
        if self.reread.is_some_and(|(at, _)| now < at) {
            return Reading::Awaited;
        }
        match self.mode.resync(model, now.into_std()).await {
            Ok(()) => {
                self.reread = None;
                self.wants_resync = false;
                self.reporter.readable();
                Reading::Fresh
            }
            Err(failure) => {
                let delay = self
                    .reread
                    .map_or(FIRST_REREAD, |(_, delay)| (delay * 2).min(longest));
                self.reread = Some((now + delay, delay));
                self.reporter.unreadable(&failure);
                self.metrics.synced(self.mode.family(), now.elapsed(), None);
                Reading::Failed
            }
        }
    }

    /// Writes what is due, where it is known what is there. True as [`sync`](Self::sync).
    async fn write(
        &mut self,
        reading: Reading,
        model: &Model,
        takes_changes: bool,
        now: Instant,
    ) -> bool {
        let (is_asked, begun) = match reading {
            Reading::Known => (takes_changes, now),
            Reading::Fresh => (true, Instant::now()),
            Reading::Awaited => return false,
            Reading::Failed => return true,
        };
        let report = self.mode.sync(begun.into_std()).await;
        let ended = Instant::now();
        self.reporter.synced(&report, model, ended.into_std());
        // A piece of the check for drift, or a look at what drains, is no sync of rules.
        if is_asked || report.written > 0 || !report.failures.is_empty() {
            let took = ended.saturating_duration_since(now);
            self.metrics.synced(self.mode.family(), took, Some(&report));
        }
        self.no_local_endpoints.tell(&self.metrics);
        if self.mode.needs_resync() {
            // The kernel was not as believed: read it again, but never in a tight circle.
            let pause = Duration::from_millis(100);
            self.reread = Some((ended + pause, pause));
        } else if !report.is_base_failing {
            self.has_served |= report.pending == 0;
            self.health.complete(self.mode.family(), ended.into_std());
            self.metrics
                .complete(self.mode.family(), self.triggers.drain(..));
            let node_ports = self.mode.node_port_addresses();
            self.stale_flows.compare(model, node_ports);
            self.health_checks.update(model, node_ports).await;
        }
        // What was neither asked for nor wrote anything was a piece of the check.
        !takes_changes || report.written >= MANY_WRITES
    }
}

/// What is known of the kernel before a write.
#[derive(Debug, Clone, Copy)]
enum Reading {
    /// What was known before.
    Known,
    /// It has just been read.
    Fresh,
    /// Nothing: it will be read again later.
    Awaited,
    /// Nothing: it has just been refused.
    Failed,
}

/// SIGTERM and SIGINT.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn subscribe() -> Result<Self> {
        let subscribe = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: subscribe(SignalKind::terminate())?,
            interrupt: subscribe(SignalKind::interrupt())?,
        })
    }

    async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Instant as StdInstant;

    use futures::future::BoxFuture;
    use futures::stream::poll_fn;
    use proxy::{EndpointSlice, Failure, IpFamily, Kind, NamespacedName, SyncReport};
    use tokio::sync::{Barrier, mpsc};
    use tokio::time::timeout;

    use super::*;

    fn stream(mut received: mpsc::Receiver<Event>) -> BoxStream<'static, Event> {
        poll_fn(move |context| received.poll_recv(context)).boxed()
    }

    fn slice(number: usize) -> Event {
        let name = |name: &str| NamespacedName::new("default", name);
        Event::SliceApplied(EndpointSlice {
            name: name(&format!("web-{number}")),
            service: name(&format!("web{number}")),
            family: IpFamily::V4,
            ports: [].into_iter().collect(),
            endpoints: Vec::new().into(),
            change_trigger: None,
        })
    }

    #[tokio::test]
    async fn a_start_goes_on_without_a_node_that_cannot_be_listed() {
        let (told, received) = mpsc::channel(10);
        for kind in [Kind::Service, Kind::EndpointSlice] {
            let complete = Event::ListComplete {
                kind,
                is_whole: true,
            };
            told.send(complete).await.unwrap();
        }
        let (mut events, mut model) = (stream(received), Model::new());
        let patience = Duration::from_millis(20);
        let gathered = gather_within(&mut events, &mut model, true, patience);
        timeout(WAITING_NOTICE / 2, gathered).await.unwrap();
        assert!(model.is_complete());
    }

    fn options(arguments: &[&str]) -> Options {
        let start = [
            "kube-proxy",
            "--manifests=/nowhere",
            "--hostname-override=node1",
        ];
        let arguments = start.iter().chain(arguments);
        match crate::flags::parse(arguments.map(std::ffi::OsString::from)) {
            Ok(crate::flags::Command::Run(options)) => *options,
            other => panic!("{other:?}"),
        }
    }

    /// A mode whose every sync ends like this, once it has met the others'.
    struct Same {
        family: IpFamily,
        report: SyncReport,
        meeting: Option<Arc<Barrier>>,
    }

    impl Same {
        fn of(report: SyncReport) -> Box<dyn Mode> {
            Box::new(Self {
                family: IpFamily::V4,
                report,
                meeting: None,
            })
        }
    }

    impl Mode for Same {
        fn family(&self) -> IpFamily {
            self.family
        }
        fn update(&mut self, _: &Model, _: &Changes) {}
        fn sync(&mut self, _: StdInstant) -> BoxFuture<'_, SyncReport> {
            Box::pin(async {
                if let Some(meeting) = &self.meeting {
                    meeting.wait().await;
                }
                self.report.clone()
            })
        }
        fn resync<'a>(
            &'a mut self,
            _: &'a Model,
            _: StdInstant,
        ) -> BoxFuture<'a, Result<(), Failure>> {
            Box::pin(async { Ok(()) })
        }
        fn next_due(&self) -> Option<StdInstant> {
            None
        }
        fn needs_resync(&self) -> bool {
            false
        }
        fn node_port_addresses(&self) -> &[IpAddr] {
            &[]
        }
    }

    /// A daemon that is told nothing.
    fn daemon_of(options: Options, observed: Observed, modes: Vec<Box<dyn Mode>>) -> Daemon {
        let (_, received) = mpsc::channel(1);
        Daemon::new(
            options,
            stream(received),
            AddressChanges::subscribe().unwrap(),
            Model::new(),
            modes,
            &Recorder::off(),
            observed,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn families_sync_side_by_side_where_there_are_cpus() {
        for is_abreast in [true, false] {
            let options = options(&["--ipvs-min-sync-period=0s"]);
            let observed = Observed::new(&options);
            let meeting = Arc::new(Barrier::new(2));
            let modes = IpFamily::ALL.map(|family| -> Box<dyn Mode> {
                Box::new(Same {
                    family,
                    report: SyncReport::default(),
                    meeting: Some(Arc::clone(&meeting)),
                })
            });
            let mut daemon = daemon_of(options, observed, modes.into());
            daemon.is_abreast = is_abreast;
            // If one waited for the other's end, they would never meet.
            let synced = timeout(Duration::from_secs(1), daemon.sync(Instant::now())).await;
            assert_eq!(synced.is_ok(), is_abreast);
        }
    }

    #[tokio::test]
    async fn one_refused_object_is_no_illness_and_what_all_rely_on_is() {
        for is_base_failing in [false, true] {
            let options = options(&["--ipvs-sync-period=1s", "--ipvs-min-sync-period=0s"]);
            let observed = Observed::new(&options);
            let health = Arc::clone(&observed.health);
            let report = SyncReport {
                failing: 1,
                pending: 1,
                is_base_failing,
                ..SyncReport::default()
            };
            let mut daemon = daemon_of(options, observed, vec![Same::of(report)]);
            let family = daemon.families.first_mut().unwrap();
            for _ in 0..3 {
                family
                    .sync(&daemon.model, false, Duration::from_secs(1), Instant::now())
                    .await;
            }
            let at = |seconds| StdInstant::now() + Duration::from_secs(seconds);
            assert!(health.is_healthy(at(1)));
            assert_eq!(health.is_healthy(at(3)), !is_base_failing);
        }
    }

    #[tokio::test]
    async fn a_look_that_writes_nothing_is_no_sync_of_rules() {
        let written = |written| SyncReport {
            written,
            ..SyncReport::default()
        };
        let refused = SyncReport {
            failures: vec![Failure {
                object: "virtual server 10.96.0.1:80/TCP".to_owned(),
                owner: None,
                reason: "out of memory".to_owned(),
            }],
            ..SyncReport::default()
        };
        // The first look reads the kernel.
        for (report, takes_changes, wanted) in [
            (written(0), false, 1),
            (written(0), true, 3),
            (written(1), false, 3),
            (refused, false, 3),
        ] {
            let options = options(&["--ipvs-min-sync-period=0s"]);
            let observed = Observed::new(&options);
            let metrics = observed.metrics.clone();
            let mut daemon = daemon_of(options, observed, vec![Same::of(report)]);
            let family = daemon.families.first_mut().unwrap();
            for _ in 0..3 {
                family
                    .sync(
                        &daemon.model,
                        takes_changes,
                        Duration::from_secs(1),
                        Instant::now(),
                    )
                    .await;
            }
            let count = format!(
                "kubeproxy_sync_proxy_rules_duration_seconds_count{{ip_family=\"IPv4\"}} {wanted}\n"
            );
            assert!(metrics.classic().contains(&count), "{wanted}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_cannot_listen_is_an_event() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap();
        let healthz = (
            healthz::PURPOSE,
            format!("--healthz-bind-address={at}"),
            "--metrics-bind-address=",
        );
        let metrics = (
            metrics::PURPOSE,
            format!("--metrics-bind-address={at}"),
            "--healthz-bind-address=",
        );
        for (purpose, taken, off) in [healthz, metrics] {
            for is_fatal in [false, true] {
                let is_fatal_flag = format!("--bind-address-hard-fail={is_fatal}");
                let options = options(&[&taken, off, &is_fatal_flag]);
                let (recorder, mut recorded) = Recorder::queued();
                let served = Observed::new(&options).serve(&options, &recorder).await;
                assert_eq!(served.is_err(), is_fatal);
                let event = recorded.recv().await.unwrap().event;
                let error = match served {
                    Ok(servers) => servers[0].address.as_ref().unwrap_err().to_string(),
                    Err(error) => error.to_string(),
                };
                let wanted = events::Event::listen_failed("node1", purpose.event, error);
                assert_eq!(event, wanted);
                assert!(recorded.try_recv().is_err());
            }
        }
    }

    #[tokio::test]
    async fn all_that_is_told_at_once_is_one_update() {
        let (told, received) = mpsc::channel(300);
        tokio::spawn(async move {
            for number in 0..1000 {
                told.send(slice(number)).await.unwrap();
            }
            std::future::pending::<()>().await;
        });
        let (mut events, mut model) = (stream(received), Model::new());
        let first = events.next().await.unwrap();
        drain(&mut events, &mut model, first).await;
        assert_eq!(model.take_changes().services.len(), 1000);
    }
}
