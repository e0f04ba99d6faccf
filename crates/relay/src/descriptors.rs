//! Limits the relay's open files. If no descriptor is free, the relay logs this once and accepts no
//! connection until a descriptor is free again.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tracing::{info, warn};

/// Log message for a lack of descriptors, with the remedy.
pub(crate) const OPEN: &str =
    "as many files are open as may be: raise the limit (LimitNOFILE, `ulimit -n`)";

/// Number of descriptors that the relay leaves to the rest of the process, but at most half of the
/// limit of open files.
const RESERVE: usize = 256;

/// Largest limit of open files that the relay sets. This is Linux's default for the largest limit
/// that a process may have (`fs.nr_open`).
const MOST: u64 = 1 << 20;

/// First and longest pause after the kernel has refused a descriptor.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// Shortest time between two warnings about a lack of descriptors.
const QUIET: Duration = Duration::from_mins(1);

/// Free descriptors of a relay, and their number at the start. All clones share these descriptors,
/// on any thread.
#[derive(Debug, Clone)]
pub(crate) struct Free(Arc<Semaphore>, usize);

/// Limits of a relay's descriptors and connections, with the state of the warning about a lack.
pub(crate) struct Descriptors {
    free: Free,
    connections: Arc<Semaphore>,
    /// Next pause. The pause doubles whenever the kernel refuses a descriptor.
    pause: Cell<Duration>,
    /// Time of the last warning about a lack of descriptors.
    told: Cell<Option<Instant>>,
    shortage: Cell<Shortage>,
}

/// State of the warning about a lack of descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortage {
    No,
    /// A lack that was not logged, because the last warning is recent.
    Untold,
    Told,
}

/// Permit for descriptors in use. Dropping the permit frees the descriptors.
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

    /// Returns the number of descriptors that were free at the start.
    pub(crate) fn most(&self) -> usize {
        self.1
    }

    /// Returns a permit for `count` descriptors, or `None` if fewer are free.
    pub(crate) fn try_take(&self, count: u32) -> Option<DescriptorPermit> {
        Arc::clone(&self.0).try_acquire_many_owned(count).ok()
    }
}

/// Raises the soft limit of open files to the hard limit, like Go's runtime, because each Service
/// port needs a descriptor even without a connection. Returns the new limit, or `None` if the
/// number is unlimited.
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
    /// Creates the limits of a relay: at most `connections` connections, which take their
    /// descriptors from `free`.
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

    /// Returns a permit for `count` descriptors, or `None` if fewer are free. Logs nothing.
    pub(crate) fn try_take(&self, count: u32) -> Option<DescriptorPermit> {
        self.free.try_take(count)
    }

    /// Logs a lack of descriptors, and waits until `count` descriptors are free for the next
    /// connection.
    pub(crate) async fn wait(&self, count: u32) -> Option<DescriptorPermit> {
        self.tell_short(OPEN);
        // Cannot fail, because the semaphore is never closed.
        let all = Arc::clone(&self.free.0);
        all.acquire_many_owned(count).await.ok()
    }

    /// Waits until the limit allows one more connection, and returns the permit. Logs if it must
    /// wait.
    pub(crate) async fn take_connection(&self) -> Option<DescriptorPermit> {
        let all = Arc::clone(&self.connections);
        if let Ok(held) = Arc::clone(&all).try_acquire_owned() {
            return Some(held);
        }
        self.tell_short("there are as many as this process carries");
        // Cannot fail, because the semaphore is never closed.
        all.acquire_owned().await.ok()
    }

    /// Logs that the kernel has refused a descriptor, and pauses. Each further refusal doubles the
    /// pause.
    pub(crate) async fn back_off(&self, error: &io::Error) {
        let [_, longest] = PAUSES;
        let pause = self.pause.get();
        self.pause.set((pause * 2).min(longest));
        self.tell_short(&error.to_string());
        sleep(pause).await;
    }

    /// Resets the pause, because the kernel has granted a descriptor.
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

    /// Logs that the relay accepts connections again, if it has logged the lack of descriptors.
    pub(crate) fn tell_enough(&self) {
        if self.shortage.replace(Shortage::No) == Shortage::Told {
            info!("connections are accepted again");
        }
    }
}

/// Reports whether the error means that the kernel or the process lacks descriptors or memory.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno)
    })
}
