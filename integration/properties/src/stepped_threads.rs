//! Threads of the daemon that wait before each read and write of the kernel. The driver of the test
//! lets them continue.
//!
//! ```text
//!   engine ─ job ─▶ Worker::handing_out ─▶ SteppedThread::begin ─▶ a thread: Turnstile ─▶ kernel
//!                                              ▲  Waits, Finished  │
//!                                  the driver ─┘◀──────────────────┘
//!                                              Permit ────────────▶
//! ```
//!
//! Only one thread runs at any time: the driver, or the thread for which the driver waits. The
//! driver's decisions therefore determine all events and their order.

use std::array;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use netlink_batch::Worker;
use proxy::{IpFamily, Protocol, Unreadable};

/// Kernel operation before which a thread waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadOperation {
    /// Read of the named part of the kernel's state.
    Read(&'static str),
    /// Write of one step of a plan.
    Write(Write),
}

/// A write to the kernel: one step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Description of the write.
    pub what: String,
    /// Clients that the written entry serves. They may lose service if the kernel refuses the
    /// write.
    pub serves: AffectedClients,
    /// Entry that the write removes, or `None` if it removes none. It has the same name as in
    /// [`Subject::ours`](crate::subject::Subject::ours).
    pub removes: Option<String>,
}

/// Clients that a written entry serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffectedClients {
    /// The entry may serve all clients of all Services.
    All,
    /// The entry serves the clients of this service address.
    Address(std::net::IpAddr),
    /// The entry serves no client.
    Nobody,
}

/// The driver's decision about an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// The kernel does the operation.
    Go,
    /// The kernel refuses the write, or the read fails.
    Refuse(RejectionCause),
    /// The kernel does the write, but the daemon does not receive the reply.
    LoseDone,
    /// The kernel does not do the write, and the daemon does not receive a reply.
    LoseUndone,
    /// The read misses the entry that this random number selects.
    PassOver(u64),
    /// The process was killed. The kernel does neither this operation nor later operations.
    Dead,
}

/// Simulated cause of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionCause {
    /// The kernel refuses only the entry of this write.
    Entry,
    /// At present, the kernel refuses every write.
    Node,
    /// The kernel refuses the write because the daemon wrongly assumes that an entry exists or is
    /// missing.
    Belief,
}

impl fmt::Display for ThreadOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(part) => write!(f, "read {part}"),
            Self::Write(write) => f.write_str(&write.what),
        }
    }
}

enum LaneMessage {
    Asks(ThreadOperation),
    Finished,
}

/// Point at which a thread waits for the driver's decision.
#[derive(Debug)]
pub struct Gate {
    told: Sender<LaneMessage>,
    permits: Receiver<Permit>,
    is_dead: bool,
    opened: Instant,
}

impl Gate {
    /// Returns the thread's time. It never changes, because operations take no simulated time.
    pub fn clock(&self) -> Instant {
        self.opened
    }

    /// Waits for the driver's decision about an operation.
    pub fn pass(&mut self, ask: ThreadOperation) -> Permit {
        if !self.is_dead {
            // If the driver has ended, no test needs the result, so the process counts as dead.
            let permit = self
                .told
                .send(LaneMessage::Asks(ask))
                .ok()
                .and_then(|()| self.permits.recv().ok());
            let permit = permit.unwrap_or(Permit::Dead);
            self.is_dead = permit == Permit::Dead;
            return permit;
        }
        Permit::Dead
    }
}

/// A kernel behind a gate. A thread waits at the gate before each operation.
#[derive(Debug)]
pub struct Turnstile<K> {
    /// Kernel that a thread uses after the gate has let it pass.
    pub kernel: K,
    /// Gate at which threads wait before they use the kernel.
    pub gate: Gate,
}

impl<K> Turnstile<K> {
    /// Reads a part of the kernel's state, unless the driver makes the read fail.
    pub fn read<T>(
        &mut self,
        part: &'static str,
        read: impl FnOnce(&mut K) -> Result<T, Unreadable>,
    ) -> Result<T, Unreadable> {
        match self.gate.pass(ThreadOperation::Read(part)) {
            Permit::Go | Permit::PassOver(_) => read(&mut self.kernel),
            _ => Err(Unreadable::new(part, "on purpose")),
        }
    }

    /// Waits for the driver's permission for a write that may affect all clients.
    pub fn pass_write(&mut self, what: String) -> Permit {
        self.gate.pass(ThreadOperation::Write(Write {
            what,
            serves: AffectedClients::All,
            removes: None,
        }))
    }
}

/// Guard of a job. Dropping it reports the end of the job, even after a panic.
struct End(Sender<LaneMessage>);

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.send(LaneMessage::Finished);
    }
}

type Run = Box<dyn FnOnce() + Send>;

/// Threads that run the daemon's jobs. Successive event sequences use the same threads.
#[derive(Debug)]
pub struct Threads(Vec<Sender<Run>>);

impl Threads {
    /// Creates as many threads as the daemon needs in any mode to read and write the kernel.
    ///
    /// # Panics
    ///
    /// Panics if the system cannot create a thread.
    #[allow(clippy::expect_used, reason = "without threads there are no histories")]
    pub fn start() -> Self {
        let thread = |_| {
            let (sender, jobs) = channel::<Run>();
            thread::Builder::new()
                .name("lane".to_owned())
                .spawn(move || {
                    for job in jobs {
                        // Ignores the panic here. The engine notices that the job has ended, and
                        // reports the panic.
                        let _ = catch_unwind(AssertUnwindSafe(job));
                    }
                })
                .expect("a thread for a lane");
            sender
        };
        Self((0..4).map(thread).collect())
    }
}

/// A thread of the daemon that reads and writes the kernel. The driver of the test decides when the
/// thread continues.
pub struct SteppedThread {
    next: Box<dyn FnMut() -> Option<Run>>,
    told: Receiver<LaneMessage>,
    permits: Sender<Permit>,
    asks: Option<ThreadOperation>,
    /// Number of the last event that the mode received before this thread's job began.
    pub heard: u64,
}

/// State of a thread after its read or write of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneProgress {
    /// The thread waits at the gate again.
    Waits,
    /// The job is done, and the engine can record it.
    Finished,
}

impl SteppedThread {
    /// Creates a stepped thread that uses this kernel, and the worker for the engine.
    pub fn new<K: Send + 'static>(kernel: K) -> (Self, Worker<Turnstile<K>>) {
        let (worker, mut jobs) = Worker::<Turnstile<K>>::handing_out();
        let (say, told) = channel();
        let (permits, permitted) = channel();
        let gate = Gate {
            told: say.clone(),
            permits: permitted,
            is_dead: false,
            opened: Instant::now(),
        };
        let value = Arc::new(Mutex::new(Turnstile { kernel, gate }));
        let next = move || {
            let job = jobs.next_job()?;
            let (value, say) = (Arc::clone(&value), say.clone());
            let run: Run = Box::new(move || {
                let _end = End(say);
                job(&mut *value.lock().unwrap_or_else(PoisonError::into_inner));
            });
            Some(run)
        };
        let lane = Self {
            next: Box::new(next),
            told,
            permits,
            asks: None,
            heard: 0,
        };
        (lane, worker)
    }

    /// Creates a stepped thread for each thread with which a mode reads and writes the kernel. Also
    /// returns the workers for the mode's engine.
    pub fn all<const N: usize, K: Send + 'static>(
        mut kernel: impl FnMut() -> K,
    ) -> (Vec<Self>, [Worker<Turnstile<K>>; N]) {
        let mut lanes = Vec::new();
        let workers = array::from_fn(|_| {
            let (lane, worker) = Self::new(kernel());
            lanes.push(lane);
            worker
        });
        (lanes, workers)
    }

    /// Returns the operation before which the thread waits, if any.
    pub fn asks(&self) -> Option<&ThreadOperation> {
        self.asks.as_ref()
    }

    /// Starts a job on this thread, and runs it to its first operation. Returns `None` if the
    /// engine has no job.
    pub fn begin(&mut self, threads: &Threads, number: usize, heard: u64) -> Option<LaneProgress> {
        if self.asks.is_some() {
            return None;
        }
        let run = (self.next)()?;
        self.heard = heard;
        let thread = threads.0.get(number)?;
        thread.send(run).ok()?;
        Some(self.wait())
    }

    /// Lets the thread continue with the driver's decision.
    pub fn permit(&mut self, permit: Permit) -> LaneProgress {
        self.asks = None;
        let _ = self.permits.send(permit);
        self.wait()
    }

    fn wait(&mut self) -> LaneProgress {
        if let Ok(LaneMessage::Asks(ask)) = self.told.recv() {
            self.asks = Some(ask);
            return LaneProgress::Waits;
        }
        LaneProgress::Finished
    }

    /// Kills the process. The kernel does not do the operation before which the thread waits.
    pub fn kill(&mut self) {
        while self.asks.is_some() {
            self.permit(Permit::Dead);
        }
    }
}

impl fmt::Debug for SteppedThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteppedThread")
            .field("asks", &self.asks)
            .finish_non_exhaustive()
    }
}

/// A frontend: address, protocol and port of a Service, as seen from one location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Front {
    /// Service address of the frontend.
    pub address: std::net::IpAddr,
    /// Transport protocol of the frontend.
    pub protocol: Protocol,
    /// Service port of the frontend.
    pub port: u16,
    /// Location of the frontend's clients.
    pub from: ClientLocation,
}

/// Location from which clients send packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientLocation {
    /// Clients are processes of the node itself.
    Node,
    /// Clients are in a pod of this node.
    Pod,
    /// Clients are on a host outside the cluster.
    Outside,
}

impl fmt::Display for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = std::net::SocketAddr::new(self.address, self.port);
        write!(f, "{at}/{} (from {:?})", self.protocol, self.from)
    }
}

impl Front {
    /// Returns the IP family of the frontend's address.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.address)
    }
}
