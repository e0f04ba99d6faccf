//! Worker threads of the daemon that stop before each read and write of the kernel, until the
//! test's driver lets them continue.
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

/// Read or write of the kernel, before which a worker thread waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadOperation {
    /// Read of a part of the kernel's state, by its name.
    Read(&'static str),
    /// Write of a part of a plan.
    Write(Write),
}

/// A write to the kernel: a netlink message, an nf_tables transaction or an `iptables-restore`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Description of the written entries.
    pub what: String,
    /// Clients that may lose service if the kernel refuses this write.
    pub serves: AffectedClients,
    /// Name of the entry that the write removes, as in
    /// [`Subject::ours`](crate::subject::Subject::ours). `None` if it removes none.
    pub removes: Option<String>,
}

/// Clients that the entries of a write serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffectedClients {
    /// Possibly all clients of all Services.
    All,
    /// Clients of this service address.
    Address(std::net::IpAddr),
    /// Clients of this load balancer address that its source-range firewall admits by this write.
    /// Without it, the firewall closes the port when it begins.
    Admitted(std::net::IpAddr),
    /// No clients.
    Nobody,
}

/// The driver's decision about a read or write of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// The kernel carries out the read or write.
    Go,
    /// The kernel refuses the write, or the read fails.
    Refuse(RejectionCause),
    /// The kernel carries out the write, but its reply is lost.
    LoseDone,
    /// The kernel does not carry out the write, and its reply is lost.
    LoseUndone,
    /// The read misses one entry, selected by this random number.
    PassOver(u64),
    /// The process has been killed: neither this operation nor a later one reaches the kernel.
    Dead,
}

/// Simulated reason why the kernel refuses a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionCause {
    /// The kernel refuses the entry of this write.
    Entry,
    /// The kernel refuses every write for the moment.
    Node,
    /// The daemon wrongly assumes that an entry exists, or that it does not exist.
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

/// Gate at which a worker thread waits for the driver's decision.
#[derive(Debug)]
pub struct Gate {
    told: Sender<LaneMessage>,
    permits: Receiver<Permit>,
    is_dead: bool,
    opened: Instant,
}

impl Gate {
    /// Returns the time at which the gate was created. Operations take no simulated time.
    pub fn clock(&self) -> Instant {
        self.opened
    }

    /// Tells the driver about an operation, and waits for its decision.
    pub fn pass(&mut self, ask: ThreadOperation) -> Permit {
        if !self.is_dead {
            // Treats the process as killed if the driver no longer exists, because nobody needs the
            // result.
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

/// A kernel with a gate, at which the worker thread waits before each read and write.
#[derive(Debug)]
pub struct Turnstile<K> {
    /// Kernel behind the gate.
    pub kernel: K,
    /// Gate at which the worker thread waits.
    pub gate: Gate,
}

impl<K> Turnstile<K> {
    /// Waits at the gate, then reads a part of the kernel's state. Returns an error if the driver
    /// refuses the read.
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

    /// Waits at the gate for a write that may affect all clients. Returns the driver's decision.
    pub fn pass_write(&mut self, what: String) -> Permit {
        self.gate.pass(ThreadOperation::Write(Write {
            what,
            serves: AffectedClients::All,
            removes: None,
        }))
    }
}

/// Guard that reports the end of a job to the driver when it is dropped, even after a panic.
struct End(Sender<LaneMessage>);

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.send(LaneMessage::Finished);
    }
}

type Run = Box<dyn FnOnce() + Send>;

/// System threads that run the daemon's jobs, reused by one sequence after another.
#[derive(Debug)]
pub struct Threads(Vec<Sender<Run>>);

impl Threads {
    /// Starts as many threads as the worker threads of any mode.
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
                        // Ignores a panic of the job: the engine notices it, and reports it.
                        let _ = catch_unwind(AssertUnwindSafe(job));
                    }
                })
                .expect("a thread for a lane");
            sender
        };
        Self((0..4).map(thread).collect())
    }
}

/// A worker thread of the daemon that runs step by step, as the driver decides.
pub struct SteppedThread {
    next: Box<dyn FnMut() -> Option<Run>>,
    told: Receiver<LaneMessage>,
    permits: Sender<Permit>,
    asks: Option<ThreadOperation>,
    /// Number of the last event that the mode had received when this thread's job began.
    pub heard: u64,
}

/// State of a worker thread after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneProgress {
    /// The thread waits before its next read or write of the kernel.
    Waits,
    /// The thread has finished its job, and the engine can record the results.
    Finished,
}

impl SteppedThread {
    /// Creates a stepped thread with this kernel behind its gate, and the worker by which the
    /// engine gives it jobs.
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

    /// Creates the `N` stepped threads of a mode, and the workers by which its engine gives them
    /// jobs.
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

    /// Returns the read or write before which the thread waits, or `None` if it has no job.
    pub fn asks(&self) -> Option<&ThreadOperation> {
        self.asks.as_ref()
    }

    /// Starts the engine's next job on this thread, and runs it up to its first read or write.
    /// Returns `None` if the thread is busy or has no job.
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

    /// Lets the waiting thread continue with this decision, up to its next read or write or to the
    /// end of its job.
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

    /// Ends the thread's job as if the process were killed: the pending read or write does not
    /// reach the kernel.
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

/// A frontend: address, protocol and port of a Service, for clients in one location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Front {
    /// Service address, or the node's address for a NodePort.
    pub address: std::net::IpAddr,
    /// Transport protocol of the Service port.
    pub protocol: Protocol,
    /// Port number of the Service port, or the NodePort.
    pub port: u16,
    /// Location of the clients that send packets to the frontend.
    pub from: ClientLocation,
}

/// Location of clients, relative to the daemon's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientLocation {
    /// Processes on the daemon's node.
    Node,
    /// A pod on the daemon's node.
    Pod,
    /// A host outside the cluster.
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
