//! How many files the relay may have open, and what it does where there are no more: it stops
//! accepting, says so once, and goes on when one is free.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tracing::{info, warn};

/// Why there are none, and what to do.
pub(crate) const OPEN: &str =
    "as many files are open as may be: raise the limit (LimitNOFILE, `ulimit -n`)";

/// How many are left to the rest of the process at least.
const RESERVE: usize = 256;

/// How many files it allows itself at most: what Linux allows one process unless told otherwise
/// (`fs.nr_open`).
const MOST: u64 = 1 << 20;

/// The first pause after the kernel has refused one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// That there are none is said again after so long.
const QUIET: Duration = Duration::from_mins(1);

/// How many descriptors a relay has left. Clones are the same ones, for any thread.
#[derive(Debug, Clone)]
pub(crate) struct Free(Arc<Semaphore>, usize);

/// The descriptors of a relay, and its connections.
pub(crate) struct Descriptors {
    free: Free,
    connections: Arc<Semaphore>,
    /// Doubles each time that the kernel refuses one.
    pause: Cell<Duration>,
    /// When it was said that there are none.
    told: Cell<Option<Instant>>,
    shortage: Cell<Shortage>,
}

/// Whether there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortage {
    No,
    /// That was said lately, and is not said again.
    Untold,
    Told,
}

/// Descriptors that are held until this is dropped.
pub(crate) type Held = OwnedSemaphorePermit;

impl Free {
    pub(crate) fn new(most: Option<usize>) -> Self {
        let most = most.unwrap_or_else(|| {
            let soft =
                raise_limit().map_or(usize::MAX, |soft| soft.try_into().unwrap_or(usize::MAX));
            soft.saturating_sub(RESERVE).max(soft / 2)
        });
        Self(semaphore(most), most)
    }

    /// How many there were at first.
    pub(crate) fn most(&self) -> usize {
        self.1
    }

    /// Takes so many, if there are as many.
    pub(crate) fn try_take(&self, count: u32) -> Option<Held> {
        Arc::clone(&self.0).try_acquire_many_owned(count).ok()
    }
}

/// How many files this process may have open, once it is as many as it may allow itself, as Go's
/// runtime does: each Service port takes one before there is any connection. `None`: there is no
/// limit.
fn raise_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: Some(maximum.map_or(MOST, |most| most.min(MOST))),
        maximum,
    };
    if current.is_some_and(|soft| Some(soft) < raised.current)
        && setrlimit(Resource::Nofile, raised).is_ok()
    {
        return raised.current;
    }
    current
}

fn semaphore(most: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)))
}

impl Descriptors {
    /// Those that are free, for so many connections.
    pub(crate) fn new(free: Free, connections: usize) -> Self {
        let [first, _] = PAUSES;
        Self {
            free,
            connections: semaphore(connections),
            pause: Cell::new(first),
            told: Cell::new(None),
            shortage: Cell::new(Shortage::No),
        }
    }

    /// Takes some for what is opened whether there are any left or not.
    pub(crate) fn try_take(&self, count: u32) -> Option<Held> {
        self.free.try_take(count)
    }

    /// Waits until there are as many, for a connection that is to be accepted, and says so.
    pub(crate) async fn wait(&self, count: u32) -> Option<Held> {
        self.tell_short(OPEN);
        // It is never closed.
        let all = Arc::clone(&self.free.0);
        all.acquire_many_owned(count).await.ok()
    }

    /// Waits until there may be one connection more.
    pub(crate) async fn take_connection(&self) -> Option<Held> {
        let all = Arc::clone(&self.connections);
        if let Ok(held) = Arc::clone(&all).try_acquire_owned() {
            return Some(held);
        }
        self.tell_short("there are as many as this process carries");
        // It is never closed.
        all.acquire_owned().await.ok()
    }

    /// Waits for a while after the kernel has refused one.
    pub(crate) async fn back_off(&self, error: &io::Error) {
        let [_, longest] = PAUSES;
        let pause = self.pause.get();
        self.pause.set((pause * 2).min(longest));
        self.tell_short(&error.to_string());
        sleep(pause).await;
    }

    /// One could be had.
    pub(crate) fn succeeded(&self) {
        let [first, _] = PAUSES;
        self.pause.set(first);
        self.tell_enough();
    }

    fn tell_short(&self, reason: &str) {
        if self.shortage.get() != Shortage::No {
            return;
        }
        if self.told.get().is_some_and(|told| told.elapsed() < QUIET) {
            return self.shortage.set(Shortage::Untold);
        }
        self.shortage.set(Shortage::Told);
        self.told.set(Some(Instant::now()));
        warn!(reason, "no new connections are accepted until others end");
    }

    /// Says that connections are accepted again, if it was said that they are not.
    pub(crate) fn tell_enough(&self) {
        if self.shortage.replace(Shortage::No) == Shortage::Told {
            info!("connections are accepted again");
        }
    }
}

/// Whether the kernel says that it, or the process, has no more room.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno)
    })
}
