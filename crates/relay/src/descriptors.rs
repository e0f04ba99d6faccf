//! The limit of open files. Without a free descriptor, the relay stops accepting connections and
//! logs this once. It goes on when a descriptor is free.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tracing::{info, warn};

/// The log message for a shortage of descriptors, with the remedy.
pub(crate) const OPEN: &str =
    "as many files are open as may be: raise the limit (LimitNOFILE, `ulimit -n`)";

/// Minimum number of descriptors for the rest of the process.
const RESERVE: usize = 256;

/// Maximum of the relay's own limit of open files: Linux's default limit for one process
/// (`fs.nr_open`).
const MOST: u64 = 1 << 20;

/// First and longest pause after the kernel refused a descriptor.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Pause between two warnings about a shortage.
const QUIET: Duration = Duration::from_mins(1);

/// The free descriptors of a relay. Clones share them, on any thread.
#[derive(Debug, Clone)]
pub(crate) struct Free(Arc<Semaphore>, usize);

/// The descriptors of a relay, and its connections.
pub(crate) struct Descriptors {
    free: Free,
    connections: Arc<Semaphore>,
    /// Next pause. It doubles each time that the kernel refuses a descriptor.
    pause: Cell<Duration>,
    /// Time of the last warning about a shortage.
    told: Cell<Option<Instant>>,
    shortage: Cell<Shortage>,
}

/// The state of the shortage warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortage {
    No,
    /// A shortage that is not logged again, because the last warning is recent.
    Untold,
    Told,
}

/// Descriptors in use, freed on drop.
pub(crate) type DescriptorPermit = OwnedSemaphorePermit;

impl Free {
    pub(crate) fn new(most: Option<usize>) -> Self {
        let most = most.unwrap_or_else(|| {
            let soft =
                raise_limit().map_or(usize::MAX, |soft| soft.try_into().unwrap_or(usize::MAX));
            soft.saturating_sub(RESERVE).max(soft / 2)
        });
        Self(semaphore(most), most)
    }

    /// Returns the initial number of descriptors.
    pub(crate) fn most(&self) -> usize {
        self.1
    }

    /// Takes `count` descriptors if enough are free.
    pub(crate) fn try_take(&self, count: u32) -> Option<DescriptorPermit> {
        Arc::clone(&self.0).try_acquire_many_owned(count).ok()
    }
}

/// Raises the soft limit of open files to the allowed maximum, as Go's runtime does. Returns the
/// limit, or `None` for no limit. Each Service port takes a descriptor even without a connection.
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
    /// Wraps the free descriptors, for at most this number of connections.
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

    /// Takes descriptors if enough are free. Does not log a shortage.
    pub(crate) fn try_take(&self, count: u32) -> Option<DescriptorPermit> {
        self.free.try_take(count)
    }

    /// Logs a shortage, and waits until `count` descriptors are free for the next connection.
    pub(crate) async fn wait(&self, count: u32) -> Option<DescriptorPermit> {
        self.tell_short(OPEN);
        // Cannot fail: the semaphore is never closed.
        let all = Arc::clone(&self.free.0);
        all.acquire_many_owned(count).await.ok()
    }

    /// Waits until one more connection is allowed.
    pub(crate) async fn take_connection(&self) -> Option<DescriptorPermit> {
        let all = Arc::clone(&self.connections);
        if let Ok(held) = Arc::clone(&all).try_acquire_owned() {
            return Some(held);
        }
        self.tell_short("there are as many as this process carries");
        // Cannot fail: the semaphore is never closed.
        all.acquire_owned().await.ok()
    }

    /// Pauses after the kernel refused a descriptor.
    pub(crate) async fn back_off(&self, error: &io::Error) {
        let [_, longest] = PAUSES;
        let pause = self.pause.get();
        self.pause.set((pause * 2).min(longest));
        self.tell_short(&error.to_string());
        sleep(pause).await;
    }

    /// Resets the pause after the kernel gave a descriptor.
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

    /// Logs that connections are accepted again, if their refusal was logged.
    pub(crate) fn tell_enough(&self) {
        if self.shortage.replace(Shortage::No) == Shortage::Told {
            info!("connections are accepted again");
        }
    }
}

/// Reports whether the error is a shortage of the kernel or the process.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno)
    })
}
