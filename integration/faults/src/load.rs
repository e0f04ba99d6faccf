//! The traffic: new TCP connections by several ways at a steady rate, and connections that stay open
//! and are asked again and again.
//!
//! ```text
//!   a way:  from a place to an address   ──▶ a thread that opens, asks once, resets      sent, failed
//!           the same                     ──▶ a thread that asks on what it holds open    echoes, lost
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lab::{Connection, Crew, Failure, Over, Place, Transport};
use scenarios::{FIRST_TRY, Meter};

/// Between two new connections of one way.
const PAUSE: Duration = Duration::from_millis(25);
/// Between two questions on an open connection.
const ECHO: Duration = Duration::from_millis(100);
/// How long an open connection may wait for an answer. TCP sends again meanwhile: what comes late is
/// not lost.
const OPEN_WAITS: Duration = Duration::from_secs(20);
/// How often somebody who waits for traffic looks.
const GLANCE: Duration = Duration::from_millis(10);

/// Where traffic comes from and goes to.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    pub(crate) from: Place,
    pub(crate) to: SocketAddr,
    /// How many connections are held open.
    pub(crate) held: u16,
}

/// What became of the traffic.
#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    /// New connections that were tried.
    pub(crate) sent: usize,
    /// Of these, those without an answer within [`FIRST_TRY`], which is before a lost packet is sent
    /// again.
    pub(crate) failed: usize,
    /// Those without an answer by then, while the whole guest stood still for a part of that time:
    /// its machine gave it none. They are neither answered nor failed.
    pub(crate) unjudged: usize,
    /// Connections held open.
    pub(crate) open: usize,
    /// Of these, those that ended.
    pub(crate) lost: usize,
    /// The questions asked on them.
    pub(crate) echoes: usize,
    /// What failed, and how often.
    pub(crate) reasons: BTreeMap<String, usize>,
    /// When the last request that failed was over.
    pub(crate) last_failure: Option<Instant>,
    /// When somebody was answered last, by the number of the way.
    answered: BTreeMap<usize, Instant>,
    /// The longest that nothing ran here.
    pub(crate) stood_still: Duration,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} requests failed ({} not judged), {} of {} open connections lost ({} echoes); nothing ran for {:.2?}",
            self.failed,
            self.sent,
            self.unjudged,
            self.lost,
            self.open,
            self.echoes,
            self.stood_still
        )?;
        for (reason, times) in self.reasons.iter().take(4) {
            write!(f, "; {times} × {reason}")?;
        }
        Ok(())
    }
}

/// Shared by the threads.
#[derive(Debug, Default)]
struct Shared {
    account: Mutex<Account>,
    meter: Meter,
    /// While set, only a way that has been answered once counts what fails.
    from_first_answer: bool,
}

impl Shared {
    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fails(&self, reason: String) {
        *self.account().reasons.entry(reason).or_default() += 1;
    }
}

/// The work of a thread.
type Work = Box<dyn FnOnce(&Shared, &Over) + Send>;

/// Traffic under way.
#[derive(Debug)]
pub(crate) struct Load {
    shared: Arc<Shared>,
    ways: usize,
    threads: Crew,
}

impl Load {
    /// Starts it. All ways must be served already.
    pub(crate) fn start(ways: &[Way]) -> Result<Self> {
        Self::begin(ways, false)
    }

    /// Starts it where nothing is served yet: a way counts from its first answer on, and no
    /// connection is held.
    pub(crate) fn start_before(ways: &[Way]) -> Result<Self> {
        let ways: Vec<Way> = ways.iter().cloned().map(|w| Way { held: 0, ..w }).collect();
        Self::begin(&ways, true)
    }

    fn begin(ways: &[Way], from_first_answer: bool) -> Result<Self> {
        let shared = Arc::new(Shared {
            from_first_answer,
            ..Shared::default()
        });
        let mut threads = Crew::default();
        let mut spawn = |run: Work| {
            let shared = Arc::clone(&shared);
            threads.begin(move |over| run(&shared, over));
        };
        for (number, (way, mut ports)) in ways.iter().cloned().zip(ports()).enumerate() {
            let mut held = Vec::new();
            for port in ports.by_ref().take(way.held.into()) {
                let dial = way.from.dial(Transport::Tcp, way.to).from_port(port);
                let opened = dial.timeout(OPEN_WAITS).open();
                held.push(opened.with_context(|| format!("cannot open {}", name(&way)))?);
            }
            shared.account().open += held.len();
            if !held.is_empty() {
                let way = way.clone();
                spawn(Box::new(move |shared, over| echo(&way, held, shared, over)));
            }
            spawn(Box::new(move |shared, over| {
                ask(number, &way, &ports, shared, over);
            }));
        }
        spawn(Box::new(|shared, over| shared.meter.run(|| over.is_over())));
        Ok(Self {
            shared,
            ways: ways.len(),
            threads,
        })
    }

    /// What has become of it so far.
    pub(crate) fn account(&self) -> Account {
        let account = self.shared.account().clone();
        let stood_still = self.shared.meter.longest();
        Account {
            stood_still,
            ..account
        }
    }

    /// Waits until each way was answered after `moment`, and none failed after that.
    pub(crate) fn until_whole(&self, moment: Instant, limit: Duration) -> Result<Duration> {
        let began = Instant::now();
        loop {
            let account = self.account();
            let since = account.last_failure.map_or(moment, |last| last.max(moment));
            let answered = account.answered.values().filter(|at| **at > since);
            if answered.count() == self.ways {
                return Ok(since.duration_since(moment));
            }
            anyhow::ensure!(
                began.elapsed() < limit,
                "traffic is not whole within {limit:.0?}: {account}"
            );
            thread::sleep(GLANCE);
        }
    }

    /// Ends it, and says what became of it.
    pub(crate) fn stop(mut self) -> Account {
        let _ = self.threads.stop();
        self.account()
    }
}

fn name(way: &Way) -> String {
    format!("{} to {}", way.from.name(), way.to)
}

/// Opens one connection after the other.
fn ask(number: usize, way: &Way, ports: &Range<u16>, shared: &Shared, over: &Over) {
    let mut was_answered = !shared.from_first_answer;
    for port in ports.clone().cycle() {
        if over.is_over() {
            return;
        }
        let dial = way.from.dial(Transport::Tcp, way.to).from_port(port);
        let stood_before = shared.meter.so_far();
        let answer = dial.timeout(FIRST_TRY).reset_on_close().ask();
        let stood_still = shared.meter.so_far() > stood_before;
        was_answered |= answer.is_ok();
        if was_answered {
            shared.account().sent += 1;
        }
        match answer {
            Ok(_) => {
                shared.account().answered.insert(number, Instant::now());
            }
            Err(Failure::TimedOut) if was_answered && stood_still => {
                shared.account().unjudged += 1;
            }
            Err(failure) if was_answered => {
                let mut account = shared.account();
                account.failed += 1;
                account.last_failure = Some(Instant::now());
                drop(account);
                shared.fails(format!("{}: {failure}", name(way)));
            }
            Err(_) => {}
        }
        thread::sleep(PAUSE);
    }
}

/// Asks on open connections, each until it ends.
fn echo(way: &Way, held: Vec<Connection>, shared: &Shared, over: &Over) {
    let mut held: Vec<(Connection, Option<String>)> = held.into_iter().map(|c| (c, None)).collect();
    while !over.is_over() {
        held.retain_mut(|(connection, pod)| {
            let answer = connection.ask();
            // Whoever answers must be who has always answered.
            let answer = answer.and_then(|answer| match pod {
                Some(pod) if *pod != answer.who => Err(Failure::Other("another pod".into())),
                _ => {
                    *pod = Some(answer.who);
                    Ok(())
                }
            });
            let mut account = shared.account();
            account.echoes += 1;
            account.lost += usize::from(answer.is_err());
            drop(account);
            if let Err(failure) = &answer {
                shared.fails(format!("open, {}: {failure}", name(way)));
            }
            answer.is_ok()
        });
        thread::sleep(ECHO);
    }
}

/// Source ports for each way. They are disjoint, as IPVS finds the connection of an answer by the
/// client's port and the pod's alone.
fn ports() -> impl Iterator<Item = Range<u16>> {
    (10_000..31_000)
        .step_by(3_000)
        .map(|first| first..first + 3_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_says_what_failed_and_how_often() {
        let shared = Shared::default();
        shared.account().sent = 7;
        for _ in 0..2 {
            shared.account().failed += 1;
            shared.fails("client to 10.96.0.10:80: timed out".into());
        }
        let account = shared.account().clone();
        let text = account.to_string();
        assert!(
            text.starts_with("2 of 7 requests failed (0 not judged), 0 of 0 open connections lost"),
            "{text}"
        );
        assert!(
            text.ends_with("2 × client to 10.96.0.10:80: timed out"),
            "{text}"
        );
    }

    #[test]
    fn no_two_ways_share_a_port() {
        let mut all: Vec<u16> = ports().take(7).flatten().collect();
        let count = all.len();
        all.dedup();
        assert_eq!((all.len(), count), (21_000, 21_000));
    }
}
