//! The relay: listening ports of this process, whose connections and datagrams go to endpoints. It
//! knows nothing of Kubernetes, nor how packets come to its ports.
//!
//! ```text
//!   Relay (a handle, for any thread) ── orders ─▶ its thread: a runtime with a task for each
//!     open: the socket is made by the caller          port, connection, and UDP flow
//! ```
//!
//! All runs on one thread, so that nothing is locked, and whoever gives orders waits for nothing.
//! Memory is bounded by what is bounded here: connections and flows by [descriptors](Limits), what
//! waits to be written by a buffer for each direction, clients that are remembered by their number.
//! Connections and flows are shared among Services and clients (`shares`), and half of the node's
//! ephemeral ports are left to the node (`ports`).

mod balance;
mod counted;
mod datagram;
mod descriptors;
mod flow;
mod limits;
mod ports;
mod pump;
mod recent;
mod redirected;
mod shared;
mod shares;
mod tcp;
mod udp;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hashbrown::HashMap;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::coop::unconstrained;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

pub use balance::Serving;
pub use counted::{Carried, PortCounters};
pub use limits::{Carriage, DIAL_TIMEOUTS, Dial, Limits, Pin, Reach};
pub use shared::{Counters, Evictions};

use balance::Balance;
use descriptors::{Free, Held, OPEN};
use ports::{Counted, Ephemeral};
use shared::Shared;

/// A transport that the relay carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A listening port of a relay.
#[derive(Debug, Clone)]
pub struct Opened {
    /// What the relay calls it.
    pub number: u64,
    /// Where it listens.
    pub at: SocketAddr,
    /// What it counts.
    pub counters: Arc<PortCounters>,
}

/// The thread of the relay has ended: nothing is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the relay has ended; its cause is on standard error")]
pub struct Ended;

/// A relay. Clones are the same one. When the last of them is dropped it goes on to accept for
/// [`Limits::linger`], and ends once its connections have, or [`Limits::drain`] is over.
#[derive(Debug, Clone)]
pub struct Relay {
    orders: UnboundedSender<Order>,
    next: Arc<AtomicU64>,
    counters: Arc<Counters>,
    free: Free,
    ephemeral: Ephemeral,
}

enum Order {
    OpenTcp(TcpListener, Opening),
    OpenUdp(UdpSocket, Opening),
    Update(u64, Arc<Serving>),
    Close(u64),
    Finish(Duration, mpsc::Sender<usize>),
}

/// A port that is being opened.
struct Opening {
    number: u64,
    service: Arc<str>,
    serving: Arc<Serving>,
    counters: Arc<PortCounters>,
    holds: Holds,
}

/// What a port holds while it is open: a descriptor, and its number if that is an ephemeral one.
type Holds = (Held, Option<Counted>);

impl Relay {
    /// Starts one, on a thread of its own, in the network namespace of the caller.
    ///
    /// # Errors
    ///
    /// There is no thread, or no descriptor for its runtime.
    pub fn start(limits: Limits) -> io::Result<Self> {
        let (orders, received) = unbounded_channel();
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let counters = Arc::new(Counters::of_new_relay());
        let free = Free::new(limits.descriptors);
        let relay = Self {
            orders,
            next: Arc::default(),
            counters: Arc::clone(&counters),
            free: free.clone(),
            ephemeral: Ephemeral::default(),
        };
        thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || {
                let all = LocalSet::new();
                let done = all.block_on(&runtime, run(limits, free, counters, received));
                // What is left ends with it, before anybody is told.
                drop(all);
                drop(runtime);
                if let Some((done, left)) = done {
                    let _ = done.send(left);
                }
            })?;
        Ok(relay)
    }

    /// Opens a port of a Service: it serves once this returns. Where `at` has no number the system
    /// chooses one.
    ///
    /// # Errors
    ///
    /// The system's, that the relay has ended, that no descriptor is left, or that the number is an
    /// ephemeral one and half of those are taken.
    pub fn open(
        &self,
        transport: Transport,
        at: SocketAddr,
        service: &Arc<str>,
        serving: Arc<Serving>,
    ) -> io::Result<Opened> {
        // Where none is left, whoever asked asks again; the rest of the process keeps its own.
        let held = self.free.try_take(1);
        let held = held.ok_or_else(|| io::Error::other(OPEN))?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let counters = Arc::<PortCounters>::default();
        let counted = self.ephemeral.take(transport, at)?;
        let opening = Opening {
            number,
            service: Arc::clone(service),
            serving,
            counters: Arc::clone(&counters),
            holds: (held, counted),
        };
        let (at, order) = match transport {
            Transport::Tcp => {
                let socket = tcp::listen(at)?;
                (socket.local_addr()?, Order::OpenTcp(socket, opening))
            }
            Transport::Udp => {
                let socket = udp::bind(at)?;
                (socket.local_addr()?, Order::OpenUdp(socket, opening))
            }
        };
        self.order(order).map_err(io::Error::other)?;
        Ok(Opened {
            number,
            at,
            counters,
        })
    }

    /// Says who serves by now at a port. TCP connections go on, also those to endpoints that are
    /// not among them; UDP flows to these end.
    ///
    /// # Errors
    ///
    /// The relay has ended.
    pub fn update(&self, number: u64, serving: Arc<Serving>) -> Result<(), Ended> {
        self.order(Order::Update(number, serving))
    }

    /// Closes a port. TCP connections go on for [`Limits::drain`], UDP flows end.
    ///
    /// # Errors
    ///
    /// The relay has ended.
    pub fn close(&self, number: u64) -> Result<(), Ended> {
        self.order(Order::Close(number))
    }

    /// Closes all ports, and waits, by blocking, until no connection is left, or `limit` is over;
    /// how many are reset then.
    pub fn finish(&self, limit: Duration) -> usize {
        let (done, finished) = mpsc::channel();
        if self.order(Order::Finish(limit, done)).is_err() {
            return 0;
        }
        finished.recv().unwrap_or_default()
    }

    /// What it counts.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn order(&self, order: Order) -> Result<(), Ended> {
        self.orders.send(order).map_err(|_| Ended)
    }
}

/// A port, and the task that accepts there.
enum Port {
    Tcp(Rc<tcp::Port>, JoinHandle<()>),
    Udp(Rc<udp::Port>, JoinHandle<()>),
}

impl Port {
    fn close(self, shared: &Shared) {
        match self {
            Self::Tcp(port, task) => {
                task.abort();
                let drain = shared.limits.drain;
                spawn_local(async move {
                    sleep(drain).await;
                    port.cut.end();
                });
            }
            Self::Udp(port, task) => {
                task.abort();
                port.end_all(shared);
            }
        }
    }
}

/// A task that holds what is its port's until it is over, or aborted.
async fn with(holds: Holds, task: impl Future<Output = ()>) {
    let _holds = holds;
    task.await;
}

/// Carries out orders until there are no more; whom to tell that, and how many connections are
/// left.
async fn run(
    limits: Limits,
    free: Free,
    counters: Arc<Counters>,
    mut orders: UnboundedReceiver<Order>,
) -> Option<(mpsc::Sender<usize>, usize)> {
    let shared = Rc::new(Shared::new(limits, free, counters));
    let mut ports: HashMap<u64, Port> = HashMap::new();
    let (mut limit, mut done) = (shared.limits.drain, None);
    // All that were given before, whatever their number: others have their turn after them, so that
    // nobody comes through a rule that was written since to one who does not serve yet.
    while let Some(order) = unconstrained(orders.recv()).await {
        match order {
            Order::OpenTcp(socket, opening) => {
                let balance = Balance::new(opening.serving);
                let port = tcp::Port::new(opening.service, balance, opening.counters);
                let port = Rc::new(port);
                let task = tcp::serve(Rc::clone(&shared), Rc::clone(&port), socket);
                let task = spawn_local(with(opening.holds, task));
                ports.insert(opening.number, Port::Tcp(port, task));
            }
            Order::OpenUdp(socket, opening) => {
                // The runtime watches each socket that the system has made.
                if let Ok((port, holds)) = udp::Port::new(opening, socket) {
                    let port = Rc::new(port);
                    let task = udp::serve(Rc::clone(&shared), Rc::clone(&port));
                    let number = port.number();
                    ports.insert(number, Port::Udp(port, spawn_local(with(holds, task))));
                }
            }
            Order::Update(number, serving) => match ports.get(&number) {
                Some(Port::Tcp(port, _)) => {
                    port.counters.retain(&serving);
                    port.balance.borrow_mut().update(serving);
                }
                Some(Port::Udp(port, _)) => {
                    port.balance.borrow_mut().update(Arc::clone(&serving));
                    port.end_stale(&shared);
                    port.counters.retain(&serving);
                }
                None => {}
            },
            Order::Close(number) => {
                if let Some(port) = ports.remove(&number) {
                    port.close(&shared);
                }
            }
            Order::Finish(within, sender) => {
                (limit, done) = (within, Some(sender));
                break;
            }
        }
    }
    if done.is_none() {
        sleep(shared.limits.linger).await;
    }
    for (_, port) in ports {
        port.close(&shared);
    }
    let idle = async {
        loop {
            let idle = shared.idle.notified();
            if shared.counters.connections() == 0 {
                return;
            }
            idle.await;
        }
    };
    let _ = timeout(limit, idle).await;
    Some((done?, shared.counters.connections()))
}
