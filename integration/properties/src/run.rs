//! Runs an event sequence. Its actions alone determine what happens, and in which order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::hash::Hasher;
use std::mem;
use std::time::{Duration, Instant};

use chance::Chance;
use proxy::{Event, Mode, Model, Notice};

use crate::action::{Action, Verb};
use crate::cluster::{self, Cluster};
use crate::real;
use crate::stepped_threads::{
    ClientLocation, Front, LaneProgress, Permit, RejectionCause, SteppedThread, ThreadOperation,
    Threads, Write,
};
use crate::subject::{FreshStart, Subject};
use crate::verdict::is_served;
use crate::watch::Watch;

/// Simulated time at the end of an event sequence. It exceeds every retry interval of the daemon.
const HORIZON: Duration = Duration::from_secs(100);

/// Maximum number of turns of the daemon's loop without a pause. More turns count as an endless
/// loop.
const MOST_TURNS: usize = 3_000;

/// Maximum number of writes of an entry that the kernel always refuses, within [`HORIZON`]. The
/// daemon retries every 30 s and after the periodic check. A retry may write the entry twice: with
/// other entries, and alone.
const MOST_TRIES: usize = 8;

/// Result of running an event sequence.
#[derive(Debug, Default)]
pub struct HistoryResult {
    /// Property that the event sequence violated, or `None`.
    pub failure: Option<Failure>,
    /// Checksum of all actions and steps. Runs with equal steps in equal order have equal
    /// checksums.
    pub trace: u64,
    /// Number of steps of the worker threads. A step is one read or write of the kernel.
    pub pieces: usize,
    /// Log of all steps for people. Empty if the caller requested none.
    pub log: Vec<String>,
}

/// Violation of a property during an event sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Index of the action after which the property was violated. At the end of the sequence, it is
    /// the number of actions.
    pub at: usize,
    /// Description of the violated property.
    pub what: String,
}

/// Runs an event sequence on a fake kernel.
pub fn run(
    subject: Box<dyn Subject>,
    actions: &[Action],
    threads: &Threads,
    is_told: bool,
) -> HistoryResult {
    live(World::new(subject, threads, is_told), actions)
}

/// Runs an event sequence on a real kernel. Does not check that the daemon is idle at the end,
/// because a real kernel does not tell which entries it always refuses.
pub fn run_on_kernel(
    subject: Box<dyn Subject>,
    actions: &[Action],
    threads: &Threads,
    is_told: bool,
) -> HistoryResult {
    let mut world = World::new(subject, threads, is_told);
    world.tries = Tries::Unasked;
    live(world, actions)
}

fn live(mut world: World<'_>, actions: &[Action]) -> HistoryResult {
    let failure = world.live(actions).err();
    world.kill();
    HistoryResult {
        failure: failure.map(|what| Failure { at: world.at, what }),
        trace: world.trace.finish(),
        pieces: world.pieces,
        log: world.log,
    }
}

/// Checksum (64-bit FNV-1a), which is equal on every machine.
struct Trace(u64);

impl Hasher for Trace {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Faults that the next reads and writes of the kernel get.
#[derive(Debug, Clone, Copy, Default)]
struct Armed {
    refusals: u64,
    blame: Option<RejectionCause>,
    /// Loss of the next write's reply, with true if the kernel carries out the write. `None` if no
    /// reply is lost.
    lost: Option<bool>,
    passes_over: Option<u64>,
    /// Index of the worker thread whose reads of the kernel fail, or `None`.
    unreadable: Option<usize>,
}

/// Counter of repeated writes by a daemon that has no other work.
enum Tries {
    /// The test never counts writes.
    Unasked,
    /// The test will count writes at the end of the event sequence.
    Later,
    /// The test counts writes now: number of attempts by the write's description.
    Counted(BTreeMap<String, usize>),
}

struct World<'a> {
    subject: Box<dyn Subject>,
    threads: &'a Threads,
    mode: Option<Box<dyn Mode>>,
    lanes: Vec<SteppedThread>,
    bystanders: Vec<Option<String>>,
    cluster: Cluster,
    model: Model,
    /// Events that the source has sent and the daemon has not received, with their numbers.
    events: VecDeque<(u64, Event)>,
    notices: VecDeque<Notice>,
    /// Number of the last event that the source has sent.
    made: u64,
    /// Number of the last event in the daemon's model.
    arrived: u64,
    /// Number of the last event that the mode has received with an update.
    heard: u64,
    has_updated: bool,
    /// Attempts of each write by a daemon without other work.
    tries: Tries,
    succeeds: bool,
    now: Instant,
    armed: Armed,
    watch: Watch,
    fronts: BTreeSet<Front>,
    at: usize,
    trace: Trace,
    pieces: usize,
    log: Vec<String>,
    is_told: bool,
}

type Claim = Result<(), String>;

impl<'a> World<'a> {
    fn new(subject: Box<dyn Subject>, threads: &'a Threads, is_told: bool) -> Self {
        let now = Instant::now();
        let watch = Watch::new(subject.refuses_in_pieces());
        let mut world = Self {
            bystanders: bystanders_of(&*subject),
            cluster: Cluster::new(subject.family()),
            subject,
            threads,
            mode: None,
            lanes: Vec::new(),
            model: cluster::model(),
            events: VecDeque::new(),
            notices: VecDeque::new(),
            made: 0,
            arrived: 0,
            heard: 0,
            has_updated: false,
            tries: Tries::Later,
            succeeds: false,
            now,
            armed: Armed::default(),
            watch,
            fronts: BTreeSet::new(),
            at: 0,
            trace: Trace(0xcbf2_9ce4_8422_2325),
            pieces: 0,
            log: Vec::new(),
            is_told,
        };
        world.start();
        world
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        if self.is_told {
            self.log.push(what());
        }
    }

    // ---- The daemon's process ----

    fn start(&mut self) {
        let (mode, lanes) = self.subject.start(self.now);
        (self.mode, self.lanes) = (Some(mode), lanes);
        self.model = cluster::model();
        self.notices.clear();
        let number = self.made;
        let listed = self.cluster.list_all();
        self.events = listed.into_iter().map(|event| (number, event)).collect();
        // A new process deletes nothing until its initial lists are complete. These lists contain
        // all earlier events, so it counts as having received them.
        (self.arrived, self.heard) = (number, number);
        (self.has_updated, self.succeeds) = (false, false);
    }

    fn kill(&mut self) {
        for lane in &mut self.lanes {
            lane.kill();
        }
        self.mode = None;
        self.lanes.clear();
    }

    /// Replaces the mode by a new instance in the same process, which gets the previous instance's
    /// model.
    fn succeed(&mut self) {
        self.kill();
        let (mode, lanes) = self.subject.start(self.now);
        (self.mode, self.lanes) = (Some(mode), lanes);
        self.has_updated = false;
        self.succeeds = false;
        self.heard = self.arrived;
        if self.subject.ends_with_process() {
            self.damaged();
        }
        // The first update of the new instance has every Service and the Node (see `update`).
        self.say(|| "another one takes over".to_owned());
    }

    fn with_mode<T>(
        &mut self,
        what: impl FnOnce(&mut dyn Mode, &Model, Instant) -> T,
    ) -> Option<T> {
        let mode = self.mode.as_mut()?;
        Some(what(&mut **mode, &self.model, self.now))
    }

    /// Runs one turn of the daemon's loop: records finished jobs, updates the mode, starts jobs.
    fn turn(&mut self) -> Claim {
        let has_booked = self.book()?;
        self.update();
        self.proceed();
        if has_booked && self.book()? {
            self.proceed();
        }
        Ok(())
    }

    fn book(&mut self) -> Result<bool, String> {
        let report = self.with_mode(|mode, model, now| mode.book(model, now));
        let Some(Some(report)) = report else {
            return Ok(false);
        };
        if let Some(gone) = report.gone {
            return Err(format!("a kernel thread has panicked: {gone}"));
        }
        if self.is_told {
            for failure in &report.failures {
                self.log.push(format!("  reported: {failure}"));
            }
            for unreadable in &report.unreadable {
                self.log.push(format!("  reported: {unreadable}"));
            }
        }
        Ok(true)
    }

    fn update(&mut self) {
        let is_ready = self.mode.as_ref().is_some_and(|mode| mode.is_ready());
        let has_news = self.model.has_changes() || !self.has_updated;
        // The mode gets its first update only after the initial lists are complete.
        if !is_ready || self.succeeds || !has_news || !self.is_listed() {
            return;
        }
        let mut changes = self.model.take_changes();
        if !mem::replace(&mut self.has_updated, true) {
            changes.services.extend(self.model.service_names().cloned());
            changes.node = true;
        }
        self.heard = self.arrived;
        self.with_mode(|mode, model, now| mode.update(model, &changes, now));
        self.say(|| "  updated".to_owned());
    }

    /// Returns true if the initial lists are complete and contain the Node. (A real daemon waits
    /// for its Node only for a limited time.)
    fn is_listed(&self) -> bool {
        self.model.is_complete() && self.model.node().is_some()
    }

    fn proceed(&mut self) {
        if self.succeeds {
            if self.mode.as_ref().is_some_and(|mode| mode.is_idle()) {
                return self.succeed();
            }
            self.with_mode(|mode, _, now| mode.go_on_serving(now));
        } else {
            self.with_mode(|mode, model, now| mode.proceed(model, now));
        }
        let heard = self.heard;
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            lane.begin(self.threads, number, heard);
        }
    }

    // ---- Worker threads ----

    /// Lets a worker thread of the daemon do its next read or write of the kernel. Returns false if
    /// the thread has no job.
    fn piece(&mut self, number: usize) -> Result<bool, String> {
        let Some(lane) = self.lanes.get_mut(number) else {
            return Ok(false);
        };
        let Some(ask) = lane.asks().cloned() else {
            return Ok(false);
        };
        let heard = lane.heard;
        let permit = self.decide(number, &ask);
        self.pieces += 1;
        let mut words = String::new();
        let _ = write!(words, "  lane {number}: {ask}");
        if permit != Permit::Go {
            let _ = write!(words, " -- {permit:?}");
        }
        self.trace.write(words.as_bytes());
        if let Permit::PassOver(which) = permit {
            self.subject.passes_over(which);
        }
        self.say(|| words);
        if let (ThreadOperation::Write(write), Permit::Go | Permit::LoseDone) = (&ask, permit) {
            let removes = write.removes.as_ref();
            if !removes.is_some_and(|entry| self.subject.may_disown(entry)) {
                self.watch.may(write, heard)?;
            }
            self.may_write(write)?;
        }
        if let (ThreadOperation::Write(write), Permit::Refuse(_) | Permit::LoseUndone) =
            (&ask, permit)
        {
            self.watch.refused(write);
            // A refused write has changed nothing. Still records the verdicts: frontends with
            // wanted verdicts count as undisturbed from now on.
            let verdicts = self.subject.verdicts(&self.fronts);
            let by_all = self.heard_by_all().min(heard);
            self.watch.note(verdicts, by_all);
        }
        if let (ThreadOperation::Read(part), Permit::Refuse(_)) = (&ask, permit)
            && self.subject.may_close_unread(part)
        {
            self.watch.may_close();
        }
        let moved = self.lanes.get_mut(number).map(|lane| lane.permit(permit));
        if let (ThreadOperation::Write(write), Permit::Go | Permit::LoseDone) = (&ask, permit) {
            self.subject.done(write);
            if self.watch.has_lost() {
                self.watch.repaired(&self.subject.ours());
            }
            let verdicts = self.subject.verdicts(&self.fronts);
            let by_all = self.heard_by_all().min(heard);
            self.watch.after(verdicts, heard, by_all)?;
            self.notices.extend(self.subject.told());
        }
        Ok(
            moved
                .is_some_and(|moved| matches!(moved, LaneProgress::Waits | LaneProgress::Finished)),
        )
    }

    /// Checks a write of a daemon that should have no work left. It may only retry entries that the
    /// kernel always refuses, each at most [`MOST_TRIES`] times.
    fn may_write(&mut self, write: &Write) -> Claim {
        let Tries::Counted(tries) = &mut self.tries else {
            return Ok(());
        };
        let barred = self.cluster.barred(self.subject.barred());
        if !self.subject.is_forbidden(write, &barred) {
            return Err(format!("it writes what is there: {}", write.what));
        }
        let tries = tries.entry(write.what.clone()).or_insert(0);
        *tries += 1;
        if *tries > MOST_TRIES {
            return Err(format!("it tries without pause: {}", write.what));
        }
        Ok(())
    }

    /// Returns the number of the last event that both the mode and every running job have received.
    fn heard_by_all(&self) -> u64 {
        let at_work = self.lanes.iter().filter(|lane| lane.asks().is_some());
        let heard = at_work.map(|lane| lane.heard).min();
        heard.unwrap_or(self.heard).min(self.heard)
    }

    fn decide(&mut self, lane: usize, ask: &ThreadOperation) -> Permit {
        match ask {
            ThreadOperation::Read(_) if self.armed.unreadable == Some(lane) => {
                Permit::Refuse(RejectionCause::Node)
            }
            ThreadOperation::Read(_) => match self.armed.passes_over.take() {
                Some(which) => Permit::PassOver(which),
                None => Permit::Go,
            },
            ThreadOperation::Write(_) if self.armed.refusals > 0 => {
                self.armed.refusals -= 1;
                Permit::Refuse(self.armed.blame.unwrap_or(RejectionCause::Entry))
            }
            ThreadOperation::Write(_) => match self.armed.lost.take() {
                Some(true) => Permit::LoseDone,
                Some(false) => Permit::LoseUndone,
                None => Permit::Go,
            },
        }
    }

    /// Runs the daemon until it has no work that is due within `horizon`.
    fn rest(&mut self, horizon: Duration) -> Claim {
        let end = self.now + horizon;
        for _ in 0..MOST_TURNS {
            self.turn()?;
            let mut is_any = false;
            for number in 0..self.lanes.len() {
                while self.piece(number)? {
                    is_any = true;
                }
            }
            if is_any || self.book()? {
                continue;
            }
            let is_idle = self.mode.as_ref().is_none_or(|mode| mode.is_idle());
            if !is_idle || self.succeeds {
                continue;
            }
            let due = self.with_mode(|mode, _, now| mode.next_due(now)).flatten();
            match due {
                Some(due) if due <= end => self.now = self.now.max(due),
                _ => return Ok(()),
            }
        }
        Err("it has no end".to_owned())
    }

    /// Records an idle state of the daemon, if no event, notification or write is pending.
    ///
    /// # Errors
    ///
    /// Returns an error if the daemon has not restored an entry whose removal the kernel has
    /// reported.
    fn note_rest(&mut self) -> Claim {
        let has_heard_all = self.events.is_empty() && self.notices.is_empty();
        let pending = self.mode.as_ref().map_or(1, |mode| mode.standing().pending);
        // Entries that the kernel always refuses stay pending, as after a fresh start.
        let is_done = pending == 0 || pending == self.subject.afresh(&self.cluster.model).pending;
        if has_heard_all && is_done && self.armed.unreadable.is_none() {
            self.watch.repaired(&self.subject.ours());
            if let Some(lost) = self.watch.lost().find(|lost| self.subject.is_told(lost)) {
                return Err(format!(
                    "the kernel has told that somebody took away {lost}"
                ));
            }
            self.watch.rests(self.made);
            self.watch
                .note(self.subject.verdicts(&self.fronts), self.made);
        }
        Ok(())
    }

    // ---- Events ----

    fn tell(&mut self, event: Event) {
        self.made += 1;
        self.say(|| format!("  #: {}", cluster::tell(&event)));
        self.events.push_back((self.made, event));
        self.want(Some(self.made));
    }

    /// Computes the wanted state again, after a change of the objects or of the node.
    fn want(&mut self, since: Option<u64>) {
        let FreshStart { subject: fresh, .. } = self.subject.afresh(&self.cluster.model);
        let addresses = self.subject.addresses();
        let claims = self
            .cluster
            .fronts(&addresses, self.subject.serves_localhost());
        if !self.subject.hands_over() {
            self.watch.begin_where_others_claim(&claims);
        }
        // Does not watch the frontends of a Service for which the kernel always refuses a part.
        // Another Service with the same address may serve them.
        let barred = self.cluster.barred_names(self.subject.barred());
        let is_barred = |claim: &String| {
            let service = claim.rsplit_once(':').map_or("", |(service, _)| service);
            barred.contains(service)
        };
        let asked = claims
            .into_iter()
            .filter(|(_, by)| !by.iter().any(is_barred));
        self.fronts = asked.map(|(front, _)| front).collect();
        let unseen = self.watch.unseen(&self.fronts);
        self.watch.see(self.subject.verdicts(&unseen));
        let makeshift = self.cluster.makeshift();
        let verdicts = fresh.verdicts(&self.fronts);
        let may_serve_former = self.subject.may_serve_former();
        self.watch.want(
            &verdicts,
            &fresh.ours(),
            &makeshift,
            may_serve_former,
            since,
        );
    }

    fn hear(&mut self, most: usize) {
        for _ in 0..most {
            let Some((number, event)) = self.events.pop_front() else {
                break;
            };
            self.model.apply(event);
            self.arrived = self.arrived.max(number);
        }
        if let Some(notice) = self.notices.pop_front() {
            self.say(|| format!("  told: {notice:?}"));
            self.with_mode(|mode, _, now| mode.notice(&notice, now));
        }
    }

    fn hear_all(&mut self) {
        while !self.events.is_empty() || !self.notices.is_empty() {
            self.hear(usize::MAX);
        }
    }

    fn live(&mut self, actions: &[Action]) -> Claim {
        self.want(Some(0));
        for (at, action) in actions.iter().enumerate() {
            self.at = at;
            self.say(|| action.to_string());
            self.trace.write(action.to_string().as_bytes());
            self.act(action.verb, &mut action.chance())?;
        }
        self.at = actions.len();
        self.say(|| "the end".to_owned());
        self.end()
    }

    fn act(&mut self, verb: Verb, chance: &mut Chance) -> Claim {
        match verb {
            Verb::Populate => {
                for _ in 0..4 {
                    let event = self.cluster.service(chance);
                    self.tell(event);
                }
                for _ in 0..5 {
                    let event = self.cluster.slice(chance);
                    self.tell(event);
                }
                self.hear_all();
                self.rest(Duration::from_secs(2))?;
            }
            Verb::Service
            | Verb::ServiceGone
            | Verb::Assign
            | Verb::Slice
            | Verb::SliceGone
            | Verb::Node
            | Verb::Garbled => {
                if let Some(event) = self.cluster.change(verb, chance) {
                    self.tell(event);
                }
            }
            Verb::Relist => {
                let number = self.made;
                let events = self.cluster.list_one(chance);
                self.events
                    .extend(events.into_iter().map(|event| (number, event)));
            }
            Verb::Address => {
                let notice = self.subject.change_address(chance);
                self.say(|| format!("  #: {notice:?}"));
                self.notices.push_back(notice);
                self.want(None);
                self.damaged();
            }
            Verb::Damage => {
                let before = self.subject.ours();
                if let Some(damage) = self.subject.damage(chance) {
                    self.say(|| format!("  #: {}", damage.what));
                    self.notices.extend(damage.told);
                    self.notices.extend(self.subject.told());
                    self.watch.lose(&before, &self.subject.ours());
                    self.damaged();
                }
            }
            Verb::Foreign => {
                if let Some(what) = self.subject.change_foreign(chance) {
                    self.say(|| format!("  #: {what}"));
                    let verdicts = self.subject.verdicts(&self.fronts);
                    let heard = self.heard_by_all();
                    self.watch.note(verdicts, heard);
                }
            }
            Verb::Refuse => {
                self.armed.refusals = chance.within(1..=4);
                self.armed.blame = chance
                    .one_of(&[
                        RejectionCause::Entry,
                        RejectionCause::Entry,
                        RejectionCause::Node,
                        RejectionCause::Belief,
                    ])
                    .copied();
            }
            Verb::Forbid => {
                if let Some(what) = self.subject.forbid(chance) {
                    self.say(|| format!("  #: {what}"));
                    self.want(None);
                }
            }
            Verb::Lose => self.armed.lost = Some(!chance.is_one_in(3)),
            Verb::Unreadable => self.armed.unreadable = Some(chance.index(self.lanes.len())),
            Verb::PassOver => self.armed.passes_over = Some(chance.number()),
            Verb::Lift => self.armed = Armed::default(),
            Verb::Hear => {
                self.hear(1 + chance.index(8));
                if !chance.is_one_in(3) {
                    self.turn()?;
                }
            }
            Verb::Step => self.step(chance)?,
            Verb::Turn => self.turn()?,
            Verb::Time => {
                let most = *chance.one_of(&[60, 2_000, 40_000]).unwrap_or(&60);
                self.now += Duration::from_millis(chance.below(most));
            }
            Verb::Due => {
                let due = self.with_mode(|mode, _, now| mode.next_due(now)).flatten();
                self.now = self.now.max(due.unwrap_or(self.now));
                self.turn()?;
            }
            Verb::Check => {
                self.with_mode(|mode, _, now| mode.check(now));
            }
            Verb::Told => {
                let notice = chance.one_of(self.subject.notices()).copied();
                self.notices.extend(notice);
            }
            Verb::Rest => {
                self.rest(Duration::from_millis(200))?;
                self.note_rest()?;
            }
            Verb::Kill => {
                self.kill();
                self.start();
                if self.subject.ends_with_process() {
                    self.damaged();
                }
            }
            Verb::Switch => {
                if let Some(how) = self.subject.switch(chance) {
                    self.say(|| format!("  #: {how}"));
                    self.kill();
                    self.start();
                    self.want(None);
                    self.damaged();
                }
            }
            Verb::Succeed => self.succeeds = true,
        }
        Ok(())
    }

    fn damaged(&mut self) {
        self.watch.damaged();
        let verdicts = self.subject.verdicts(&self.fronts);
        let heard = self.heard_by_all();
        self.watch.note(verdicts, heard);
    }

    /// Lets a random worker thread do some reads or writes of the kernel. If no thread has a job,
    /// runs a turn of the daemon's loop.
    fn step(&mut self, chance: &mut Chance) -> Claim {
        let waiting = self.lanes.iter().enumerate();
        let waiting = waiting.filter(|(_, lane)| lane.asks().is_some());
        let waiting: Vec<usize> = waiting.map(|(number, _)| number).collect();
        let Some(&number) = chance.one_of(&waiting) else {
            return self.turn();
        };
        let most = match chance.below(4) {
            0 => 40,
            1 => 6,
            _ => 1 + chance.below(2),
        };
        for _ in 0..most {
            if !self.piece(number)? {
                break;
            }
        }
        if chance.is_one_in(2) {
            self.turn()?;
        }
        Ok(())
    }

    // ---- The end of the event sequence ----

    /// Ends all faults, delivers all events, runs two periodic checks, and compares the final state
    /// with that of a start on an empty kernel.
    fn end(&mut self) -> Claim {
        self.armed = Armed::default();
        for event in self.cluster.mend() {
            self.tell(event);
        }
        self.hear_all();
        self.subject.end_connections();
        self.rest(HORIZON)?;
        self.note_rest()?;
        for number in 0..2 {
            self.say(|| "a check".to_owned());
            self.now += Duration::from_mins(1);
            self.with_mode(|mode, _, now| mode.check(now));
            if number > 0 && matches!(self.tries, Tries::Later) {
                self.tries = Tries::Counted(BTreeMap::new());
            }
            self.rest(HORIZON)?;
        }
        let standing = self.mode.as_ref().map(|mode| mode.standing());
        let standing = standing.unwrap_or_default();
        let FreshStart {
            subject: fresh,
            pending,
        } = self.subject.afresh_on_same(&self.cluster.model_of_now())?;
        let (mut there, mut made) = (self.subject.all_ours(), fresh.all_ours());
        let barred = self.cluster.barred(self.subject.barred());
        let unproven = self.subject.unproven();
        for entries in [&mut there, &mut made] {
            entries.retain(|entry, value| {
                let mut barred = barred.iter();
                !barred.any(|service| self.subject.is_of(entry, value, service))
            });
            let beside = |entry| self.subject.beside(entry, &unproven);
            let left = mem::take(entries).into_iter();
            *entries = left
                .filter_map(|(entry, value)| Some((beside(entry)?, value)))
                .collect();
        }
        for (entry, value) in &made {
            match there.get(entry) {
                Some(held) if held == value || self.subject.may_differ(value) => {}
                Some(held) => return Err(format!("{entry} is {held}, a start makes {value}")),
                None => return Err(format!("{entry} is not there, a start makes {value}")),
            }
        }
        let is_left = |entry: &String| !made.contains_key(entry) && !self.subject.may_stay(entry);
        if let Some((entry, value)) = there.iter().find(|(entry, _)| is_left(entry)) {
            return Err(format!(
                "{entry} is there ({value}), a start does not make it"
            ));
        }
        let most = if self.subject.may_serve_former() {
            usize::MAX
        } else {
            pending + unproven.len()
        };
        let is_as_much = (pending..=most).contains(&standing.pending) || !barred.is_empty();
        if !is_as_much || !standing.is_settled {
            return Err(format!("something is pending: {standing:?}"));
        }
        let (theirs, left) = (self.subject.foreign(), self.subject.foreign_left());
        if theirs != left {
            return Err(format!("of others there is {theirs:?}, they left {left:?}"));
        }
        let (bystanders, were) = (bystanders_of(&*self.subject), &self.bystanders);
        if bystanders != *were {
            return Err(format!(
                "beside us there is {bystanders:?}, there was {were:?}"
            ));
        }
        let verdicts = self.subject.verdicts(&self.fronts);
        let wanted = fresh.verdicts(&self.fronts);
        for (front, made) in &wanted {
            let held = verdicts.get(front);
            // Services with the same endpoint on this node share a hairpin element. The daemon
            // writes it together with the entries of one such Service. If the kernel refuses a part
            // of this Service, the element may be missing.
            if front.from == ClientLocation::Pod && !barred.is_empty() {
                continue;
            }
            // The daemon treats a virtual server as foreign if nothing proves that it is its own,
            // and then need not make the address local.
            if unproven.iter().any(|at| at.address == front.address) {
                continue;
            }
            if !is_served(made) && self.subject.may_serve_former() {
                continue;
            }
            if held != Some(made) {
                return Err(format!("{front} has {held:?}, a start makes {made:?}"));
            }
        }
        Ok(())
    }
}

/// Returns the kernel entries of other programs. Empty on a fake kernel.
fn bystanders_of(subject: &dyn Subject) -> Vec<Option<String>> {
    if subject.is_real() {
        real::bystanders()
    } else {
        Vec::new()
    }
}
