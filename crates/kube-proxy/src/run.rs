//! The daemon's loop: it waits for whatever comes, and for nothing else.
//!
//! ```text
//!   stop, clock ┐
//!   events      │            ┌─▶ drain the queued events into the model
//!   addresses   ├─ select! ──┼─▶ book what kernel threads have finished
//!   kernel      │            ├─▶ take in ─▶ update, where a family is ready for more
//!   options     ┘            └─▶ proceed: start all that is due on kernel threads
//! ```
//!
//! Draining is what coalesces: however many events arrive while a family's thread writes virtual servers, they are one update
//! after it. Families know nothing of each other.

use std::future::poll_fn;
use std::mem;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::{FutureExt as _, try_join};
use futures::stream::{BoxStream, StreamExt as _};
use ipnet::IpNet;
use iptables::Iptables;
use proxy::{Event, Mode, Model, Notice};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{unconstrained, yield_now};
use tokio::time::{sleep_until, timeout};
use tracing::{error, info, warn};

use crate::addresses::AddressChanges;
use crate::config::Configz;
use crate::events::{self, Recorder};
use crate::family::Family;
use crate::flags::{DetectLocal, Options};
use crate::health::Health;
use crate::healthz::Status;
use crate::http_server::{self, ListenError, Server};
use crate::metrics::{CountRequests, Metrics, Pages};
use crate::mode::Kernels;
use crate::renewal::{Prepared, Renewal};
use crate::sysctl::{self, Step};
use crate::{healthz, logging, memory, metrics, mode, vanished};

/// How many queued events are taken in before the kernel is written, so that a flood cannot put that off for ever.
const MAX_DRAINED: usize = 50_000;
/// How often a start that still waits for its sources says so.
const WAITING_NOTICE: Duration = Duration::from_secs(10);
/// How long after what takes much memory for a while: it is to be over.
const TRIM_DELAY: Duration = Duration::from_secs(1);
/// How long the end waits for what has begun: longer than iptables waits for its lock.
const END_PATIENCE: Duration = Duration::from_secs(6);
/// How long the start waits for the own Node, as upstream.
const NODE_PATIENCE: Duration = Duration::from_secs(30);

/// Serves until SIGTERM or SIGINT. Whatever is programmed stays: a restart must not cost a connection.
///
/// Options that come by `changed` take the place of those before. They may differ in what a changed configuration file can say
/// without a new start ([`Change::Live`](crate::config::Change)).
///
/// Where events are recorded is told by `recording`, for those who have some of their own.
pub async fn run(
    options: Options,
    changed: mpsc::Receiver<Options>,
    recording: oneshot::Sender<Recorder>,
) -> Result<()> {
    // A task of its own: to wake the future that the runtime blocks on costs two system calls, another task none.
    match tokio::spawn(live(options, changed, recording)).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(error) => Err(error.into()),
        },
    }
}

async fn live(
    options: Options,
    mut changed: mpsc::Receiver<Options>,
    recording: oneshot::Sender<Recorder>,
) -> Result<()> {
    let mut stop = Stop::subscribe()?;
    let observed = Observed::new(&options);
    let (mut events, client) = source::open(&options.source, &options.node_name, |host| {
        CountRequests::new(observed.metrics.clone(), host)
    })
    .await?;
    let recorder = client.map_or_else(Recorder::off, |client| {
        Recorder::start(client, &options.node_name)
    });
    // Nobody need listen.
    drop(recording.send(recorder.clone()));
    // With what cannot be done here taken out of them.
    let mut settled = options.clone();
    let prepared = async {
        let kernels = mode::open(&options).await?;
        kernels.tell_left_out();
        sysctl::settle(&mut settled, Step::Start)?;
        let servers = observed.serve(&options, &recorder).await?;
        // Subscribed before anything is read, so that no change falls between.
        let addresses = AddressChanges::subscribe()
            .context("cannot subscribe to address changes (rtnetlink)")?;
        anyhow::Ok((kernels, servers, addresses))
    };
    let mut model = Model::of_node(&options.node_name).with_external_ips(options.external_ips());
    let gathered = gather(&mut events, &mut model, &options).map(anyhow::Ok);
    let (kernels, _servers, addresses) = tokio::select! {
        ready = try_join(prepared, gathered) => ready?.0,
        () = stop.requested() => return Ok(()),
    };
    kernels.require(mode::primary(&options, &model))?;
    let options = settled;
    let predecessor = kernels.clears_with().map(|iptables| Predecessor {
        iptables,
        excluded: options.exclude_cidrs.clone(),
    });
    let now = Instant::now();
    let modes = kernels.into_modes(&options, &model, now)?;
    observed.status.note_node(&model);
    recorder.record(events::Event::starting(&options.node_name, options.mode));
    let mut daemon = Daemon::new(
        options, events, addresses, model, modes, &recorder, observed, now,
    )?;
    daemon.predecessor = predecessor;
    let result = daemon.serve(stop, &mut changed).await;
    daemon.end().await;
    result
}

/// What needs privileges, alone (`--init-only`): IPVS is loaded, its time-outs and the sysctls are
/// set. No rule stays. An error if the mode cannot be served here.
pub async fn init(options: &Options) -> Result<()> {
    mode::prepare(options).await?;
    Ok(sysctl::settle(&mut options.clone(), Step::Prepare)?)
}

/// Takes in events until Services and EndpointSlices have been told, and the own Node, if it comes in time.
pub(crate) async fn gather(
    events: &mut BoxStream<'static, Event>,
    model: &mut Model,
    options: &Options,
) {
    let needs_node = matches!(options.source, source::Settings::Api(_));
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
            () = sleep_until(enough.into()), if is_patient => {}
            () = sleep_until(notice.into()) => {
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
        let needs_node = matches!(options.source, source::Settings::Api(_));
        Self {
            metrics: Metrics::of(options.mode, &options.gates),
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
            let pages = Pages::new(self.metrics.clone(), self.configz.clone(), options);
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
    renewal: Renewal,
    /// Those of the own Node that modes were opened with, or are to be.
    pod_networks: Vec<IpNet>,
    /// Before this, no family takes over further changes.
    not_before: Instant,
    /// When the kernel is next compared unasked.
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

impl Daemon {
    #[allow(
        clippy::too_many_arguments,
        reason = "what the start has opened, each for itself"
    )]
    fn new(
        options: Options,
        events: BoxStream<'static, Event>,
        addresses: AddressChanges,
        model: Model,
        modes: Vec<Box<dyn Mode>>,
        recorder: &Recorder,
        observed: Observed,
        now: Instant,
    ) -> Result<Self> {
        let (health, metrics) = (&observed.health, &observed.metrics);
        let families = modes
            .into_iter()
            .map(|mode| Family::new(mode, &options, health, metrics, recorder, now));
        let families: Vec<Family> = families
            .collect::<Result<_, _>>()
            .context("cannot start a thread for stale UDP flows")?;
        let served = families.iter().map(Family::family);
        observed.status.expect(served.collect());
        let pod_networks = model.node().map(|node| node.pod_cidrs.clone());
        Ok(Self {
            next_tick: now + options.sync_period,
            options,
            events,
            addresses,
            pod_networks: pod_networks.unwrap_or_default(),
            model,
            observed,
            families,
            renewal: Renewal::default(),
            not_before: now,
            trim_at: None,
            predecessor: None,
        })
    }

    async fn serve(&mut self, mut stop: Stop, changed: &mut mpsc::Receiver<Options>) -> Result<()> {
        let mut is_listening = true;
        // One timer for all, which is set anew only when it is another time: that costs system calls.
        let mut timer = pin!(sleep_until(self.next_tick.into()));
        loop {
            let now = Instant::now();
            self.turn(now).await?;
            let due = self.next_due(now).into();
            if timer.deadline() != due {
                timer.as_mut().reset(due);
            }
            let families = &mut self.families;
            // Not biased: none of these may put off another for ever.
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
                event = self.events.next() => match event {
                    Some(event) => self.drain(event).await,
                    None => anyhow::bail!("the source of Services has ended"),
                },
                Some(options) = changed.recv() => self.renewal.want(options, false),
                prepared = self.renewal.finished() => if let Some(prepared) = prepared {
                    self.renew(prepared);
                },
            }
        }
    }

    /// Lets kernel threads finish what they have begun, for a while: a program that writes rules would otherwise go on beside a new
    /// kube-proxy. One that hangs is left to the kernel.
    async fn end(mut self) {
        let finish = async {
            while !self.families.iter().all(Family::is_idle) {
                let families = &mut self.families;
                poll_fn(|context| poll_finished(families, context)).await;
                for family in families {
                    family.book(&self.model, Instant::now()).await;
                }
            }
        };
        if timeout(END_PATIENCE, finish).await.is_err() {
            warn!("ending while something that was begun in the kernel goes on");
            // To drop a thread is to wait for it.
            mem::forget(self);
        }
    }

    /// Does all that can be done now.
    async fn turn(&mut self, now: Instant) -> Result<()> {
        self.renewal.start(&self.options, now);
        self.book(now).await?;
        self.hand_out(now);
        self.proceed(now);
        // What needed no write is settled already.
        if self.book(now).await? {
            self.proceed(now);
        }
        for family in &mut self.families {
            family.conclude(now);
        }
        if self.model.is_whole()
            && self.families.iter().all(Family::rests)
            && let Some(predecessor) = self.predecessor.take()
        {
            tokio::spawn(predecessor.clear());
        }
        Ok(())
    }

    /// Whether kernel threads had finished anything.
    async fn book(&mut self, now: Instant) -> Result<bool> {
        let mut is_any = false;
        for family in &mut self.families {
            let booked = family.book(&self.model, now).await;
            if let Some(why) = booked.gone {
                // A restart costs nothing, and finds what is programmed.
                anyhow::bail!("{}: {why}", family.family());
            }
            is_any |= booked.is_any;
            if booked.has_used_much {
                self.trim_at = Some(now + TRIM_DELAY);
            }
        }
        Ok(is_any)
    }

    /// Hands out what has changed, if a family can take it over.
    fn hand_out(&mut self, now: Instant) {
        let can = self.families.iter().any(Family::is_ready);
        if can && self.model.has_changes() && now >= self.not_before {
            let changes = self.model.take_changes();
            self.observed.metrics.taken(&changes);
            vanished::tell(&changes, &self.observed.metrics.vanished);
            for family in &mut self.families {
                family.add(changes.clone());
            }
            self.not_before = now + self.options.min_sync_period;
        }
    }

    /// One family after the other: what the first has begun goes on while the next one computes.
    fn proceed(&mut self, now: Instant) {
        for family in &mut self.families {
            family.take_in(&self.model, now);
            family.proceed(&self.model, now);
        }
    }

    /// Does what the clock asks for, beside what is due in a mode.
    fn tick(&mut self, now: Instant) {
        if now >= self.next_tick {
            self.next_tick = now + self.options.sync_period;
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

    /// Takes in an event and all that are queued behind it.
    async fn drain(&mut self, first: Event) {
        drain(&mut self.events, &mut self.model, first).await;
        self.observed.status.note_node(&self.model);
        self.follow_pod_networks();
        if self.model.has_changes() {
            let families = self.families.iter().map(Family::family);
            self.observed.metrics.queued(self.model.changes(), families);
        }
    }

    /// Takes over the Node's pod networks where they say which traffic is local (`--detect-local-mode=NodeCIDR`): they may come
    /// after the start. Upstream exits when they change. A Node that is gone, or has none, changes nothing.
    fn follow_pod_networks(&mut self) {
        let options = self.renewal.wanted().unwrap_or(&self.options);
        let networks = match (&options.detect_local, self.model.node()) {
            (DetectLocal::NodeCidr, Some(node)) if !node.pod_cidrs.is_empty() => &node.pod_cidrs,
            _ => return,
        };
        if *networks == self.pod_networks {
            return;
        }
        info!(?networks, "the Node has other pod networks");
        self.pod_networks.clone_from(networks);
        self.renewal.want(options.clone(), true);
    }

    /// Goes on with what is wanted, if it could be prepared. Where modes depend on it, other ones take over and find what is
    /// programmed, as after a start, so that only what differs is written; the model and its watches stay.
    fn renew(&mut self, prepared: Result<Prepared>) {
        let now = Instant::now();
        let opened = prepared.and_then(|Prepared { options, kernels }| {
            let modes = self.open_modes(kernels, &options, now)?;
            Ok((options, modes))
        });
        match opened {
            Ok((options, modes)) => {
                self.renewal.succeed();
                self.use_modes(modes);
                self.follow(*options, now);
            }
            Err(error) => {
                let delay = self.renewal.fail(now, self.options.sync_period);
                error!(
                    "the changed configuration is not in effect, and all stays as it was: {error:#}. It is tried again in {delay:?}"
                );
            }
        }
    }

    /// These options are in effect.
    fn follow(&mut self, options: Options, now: Instant) {
        if options.oom_score_adj != self.options.oom_score_adj {
            memory::set_oom_score(options.oom_score_adj);
        }
        logging::set_verbosity(&options);
        for family in &mut self.families {
            family.follow(&options);
        }
        self.observed.health.set_sync_period(options.sync_period);
        self.observed.configz.set(&options.configuration);
        self.next_tick = self.next_tick.min(now + options.sync_period);
        self.not_before = self.not_before.min(now + options.min_sync_period);
        self.options = options;
        info!("the changed configuration is in effect");
    }

    /// A mode for each family that is served, if there are to be other ones.
    fn open_modes(
        &self,
        kernels: Option<Kernels>,
        options: &Options,
        now: Instant,
    ) -> Result<Vec<Box<dyn Mode>>> {
        let Some(kernels) = kernels else {
            return Ok(Vec::new());
        };
        for family in &self.families {
            kernels.require(family.family())?;
        }
        kernels.into_modes(options, &self.model, now)
    }

    fn use_modes(&mut self, modes: Vec<Box<dyn Mode>>) {
        for mode in modes {
            let mut families = self.families.iter_mut();
            if let Some(family) = families.find(|family| family.family() == mode.family()) {
                family.renew(mode);
            }
        }
    }

    /// When something is due without a further event.
    fn next_due(&self, now: Instant) -> Instant {
        // Where no family is ready, one that becomes so wakes the loop.
        let can = self.families.iter().any(Family::is_ready);
        let events = (can && self.model.has_changes()).then_some(self.not_before);
        let families = self.families.iter();
        let families = families.filter_map(|family| family.next_due(now));
        let others = [events, self.trim_at, self.renewal.next_due()];
        let due = families.chain(others.into_iter().flatten());
        due.fold(self.next_tick, Instant::min)
    }
}

/// Ready when a kernel thread of any family has finished something.
fn poll_finished(families: &mut [Family], context: &mut Context<'_>) -> Poll<()> {
    let polled = families
        .iter_mut()
        .map(|family| family.poll_finished(context));
    // Each is to be polled, so that each wakes.
    let is_any = polled.fold(false, |any, poll| any | poll.is_ready());
    if is_any {
        Poll::Ready(())
    } else {
        Poll::Pending
    }
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
pub(crate) mod tests {
    use futures::stream::poll_fn;
    use proxy::{EndpointSlice, IpFamily, Kind, NamespacedName};
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::family::tests::Scripted;

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

    pub(crate) fn options(arguments: &[&str]) -> Options {
        let start = [
            "kube-proxy",
            "--manifests=/nowhere",
            "--hostname-override=node1",
            "--proxy-mode=ipvs",
        ];
        let arguments = start.iter().chain(arguments);
        match crate::flags::parse(arguments.map(std::ffi::OsString::from)) {
            Ok(crate::flags::Command::Run(options)) => *options,
            other => panic!("{other:?}"),
        }
    }

    /// A daemon that is told nothing.
    fn daemon_of(options: Options, modes: Vec<Box<dyn Mode>>) -> Daemon {
        let (_, received) = mpsc::channel(1);
        let observed = Observed::new(&options);
        let daemon = Daemon::new(
            options,
            stream(received),
            AddressChanges::subscribe().unwrap(),
            Model::new(),
            modes,
            &Recorder::off(),
            observed,
            Instant::now(),
        );
        daemon.unwrap()
    }

    #[tokio::test]
    async fn a_kernel_thread_that_is_gone_ends_the_daemon() {
        let (mode, script) = Scripted::mode(IpFamily::V6);
        let mut daemon = daemon_of(options(&[]), vec![mode]);
        daemon.turn(Instant::now()).await.unwrap();
        script.finish(proxy::Report {
            gone: Some("its thread has panicked".to_owned()),
            ..proxy::Report::default()
        });
        let error = daemon.turn(Instant::now()).await.unwrap_err();
        assert_eq!(error.to_string(), "IPv6: its thread has panicked");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_what_has_begun_and_not_for_what_hangs() {
        let (mode, script) = Scripted::mode(IpFamily::V4);
        let daemon = daemon_of(options(&[]), vec![mode]);
        let began = tokio::time::Instant::now();
        daemon.end().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        drop(script);
        let (mode, script) = Scripted::mode(IpFamily::V4);
        script.set_idle(false);
        daemon_of(options(&[]), vec![mode]).end().await;
        assert!(began.elapsed() < END_PATIENCE + Duration::from_millis(10));
    }

    #[tokio::test]
    async fn one_family_does_not_wait_for_the_other() {
        let ((four, of_four), (six, of_six)) =
            (Scripted::mode(IpFamily::V4), Scripted::mode(IpFamily::V6));
        let mut daemon = daemon_of(options(&["--ipvs-min-sync-period=0s"]), vec![four, six]);
        daemon.model.apply(slice(1));
        daemon.turn(Instant::now()).await.unwrap();
        assert_eq!((of_four.updates(), of_six.updates()), (1, 1), "the first");
        of_six.set_ready(false);
        for number in 2..5 {
            daemon.model.apply(slice(number));
            daemon.turn(Instant::now()).await.unwrap();
        }
        assert_eq!((of_four.updates(), of_six.updates()), (4, 1));
        of_six.set_ready(true);
        daemon.turn(Instant::now()).await.unwrap();
        assert_eq!((of_four.updates(), of_six.updates()), (4, 2), "all at once");
        assert_eq!(of_six.last_update().services.len(), 3);
    }

    #[tokio::test]
    async fn where_no_family_is_ready_nothing_is_due() {
        let (mode, script) = Scripted::mode(IpFamily::V4);
        let mut daemon = daemon_of(options(&["--ipvs-min-sync-period=0s"]), vec![mode]);
        daemon.turn(Instant::now()).await.unwrap();
        script.set_ready(false);
        daemon.model.apply(slice(1));
        let now = Instant::now();
        daemon.turn(now).await.unwrap();
        assert_eq!(daemon.next_due(now), daemon.next_tick);
        assert!(daemon.model.has_changes(), "they are gathered");
    }

    #[tokio::test]
    async fn changes_wait_for_the_least_sync_period() {
        let (mode, script) = Scripted::mode(IpFamily::V4);
        let mut daemon = daemon_of(options(&["--ipvs-min-sync-period=10s"]), vec![mode]);
        let start = Instant::now();
        daemon.model.apply(slice(1));
        daemon.turn(start).await.unwrap();
        daemon.model.apply(slice(2));
        let later = |seconds| start + Duration::from_secs(seconds);
        daemon.turn(later(9)).await.unwrap();
        assert_eq!(script.updates(), 1);
        assert_eq!(daemon.next_due(later(9)), later(10));
        daemon.turn(later(10)).await.unwrap();
        assert_eq!(script.updates(), 2);
    }

    #[tokio::test]
    async fn options_that_cannot_be_used_change_nothing_that_is_told() {
        let (mode, _) = Scripted::mode(IpFamily::V4);
        let mut daemon = daemon_of(options(&["--ipvs-scheduler=rr"]), vec![mode]);
        let other = options(&["--ipvs-scheduler=wrr", "--ipvs-sync-period=7s"]);
        daemon.renewal.want(other.clone(), false);
        daemon.renew(Err(anyhow::anyhow!("on purpose")));
        assert_eq!(daemon.options.scheduler, "rr");
        assert!(daemon.renewal.next_due().is_some(), "it is tried again");
        daemon.renew(Ok(Prepared {
            options: Box::new(other),
            kernels: None,
        }));
        assert_eq!(daemon.options.scheduler, "wrr");
        assert_eq!(daemon.options.sync_period, Duration::from_secs(7));
        assert!(daemon.renewal.next_due().is_none());
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
