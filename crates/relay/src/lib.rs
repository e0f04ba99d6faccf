//! The relay: opens listening ports in this process, and forwards their connections and datagrams
//! to endpoints. This crate knows neither Kubernetes nor the rules that redirect packets to its
//! ports.
//!
//! ```text
//!   Relay (a handle, for any thread) ── orders ─▶ its thread: a runtime with a task for each
//!     open: the caller makes the socket               port, connection, and UDP flow
//! ```
//!
//! The relay runs on one thread, so it needs no locks. Callers send orders through a channel, and
//! wait only in [`Relay::finish`].
//!
//! All memory is bounded:
//!
//! * connections and flows by the limit of [descriptors](Limits);
//! * pending writes by one buffer for each direction;
//! * remembered clients by a fixed number.
//!
//! A Service or a client may use only a share of all connections and flows (`shares`). Half of the
//! ephemeral ports stay free for the node's other programs (`ports`).

mod balance;
mod datagram;
mod descriptors;
mod flow;
mod limits;
mod ports;
mod pump;
mod recent;
mod redirect_check;
mod shared;
mod shares;
mod tcp;
mod traffic;
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

pub use balance::PortBackends;
pub use limits::{AllowedClients, Carriage, DIAL_TIMEOUTS, Dial, Limits, Pin};
pub use shared::{Counters, Evictions};
pub use traffic::{PortCounters, TrafficCounts};

use balance::Balance;
use descriptors::{DescriptorPermit, Free, OPEN};
use ports::{Ephemeral, EphemeralPort};
use shared::Shared;

/// Transport protocol that the relay forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// TCP connections.
    Tcp,
    /// UDP datagrams.
    Udp,
}

/// A listening port of a relay.
#[derive(Debug, Clone)]
pub struct ListeningPort {
    /// Number that identifies the port within the relay.
    pub number: u64,
    /// Address and port of the listening socket.
    pub at: SocketAddr,
    /// Traffic counters of the port.
    pub counters: Arc<PortCounters>,
}

/// Error of an order to a relay whose thread has ended. The relay forwards no traffic any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the relay has ended; its cause is on standard error")]
pub struct RelayEnded;

/// A handle to a relay. Clones share one relay. After the last handle is dropped:
///
/// 1. Ports accept connections for another [`Limits::linger`].
/// 2. The relay's thread ends with the last connection, or after [`Limits::drain`].
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
    Update(u64, Arc<PortBackends>),
    Close(u64),
    Finish(Duration, mpsc::Sender<usize>),
}

/// Properties of a port whose socket the caller has opened and the relay will serve.
struct Opening {
    number: u64,
    service: Arc<str>,
    serving: Arc<PortBackends>,
    counters: Arc<PortCounters>,
    holds: Holds,
}

/// Resources of an open port: its descriptor and, if the port number is ephemeral, that number.
type Holds = (DescriptorPermit, Option<EphemeralPort>);

impl Relay {
    /// Starts a relay on a new thread, in the caller's network namespace.
    ///
    /// # Errors
    ///
    /// Fails if the thread cannot be started, or if no descriptor is free for its runtime.
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
                // Drops all remaining connections before `Relay::finish` returns to its caller.
                drop(all);
                drop(runtime);
                if let Some((done, left)) = done {
                    let _ = done.send(left);
                }
            })?;
        Ok(relay)
    }

    /// Opens a port of a Service. The port serves once this function returns. If `at` has port 0,
    /// the kernel chooses a port number.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the socket, the relay has ended, or no descriptor is free. If
    /// `at` has port 0, also fails if half of the ephemeral ports are in use.
    pub fn open(
        &self,
        transport: Transport,
        at: SocketAddr,
        service: &Arc<str>,
        serving: Arc<PortBackends>,
    ) -> io::Result<ListeningPort> {
        // Fails if no descriptor is free for this port, so that the rest of the process keeps its
        // descriptors. The caller retries later.
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
        Ok(ListeningPort {
            number,
            at,
            counters,
        })
    }

    /// Replaces the endpoints of a port. TCP connections continue, even to removed endpoints. UDP
    /// flows to removed endpoints end.
    ///
    /// # Errors
    ///
    /// Fails if the relay has ended.
    pub fn update(&self, number: u64, serving: Arc<PortBackends>) -> Result<(), RelayEnded> {
        self.order(Order::Update(number, serving))
    }

    /// Closes a port. Its TCP connections continue for [`Limits::drain`]. Its UDP flows end.
    ///
    /// # Errors
    ///
    /// Fails if the relay has ended.
    pub fn close(&self, number: u64) -> Result<(), RelayEnded> {
        self.order(Order::Close(number))
    }

    /// Closes all ports, and blocks until all connections have ended or `limit` is over. Then
    /// resets the remaining connections and returns their number.
    pub fn finish(&self, limit: Duration) -> usize {
        let (done, finished) = mpsc::channel();
        if self.order(Order::Finish(limit, done)).is_err() {
            return 0;
        }
        finished.recv().unwrap_or_default()
    }

    /// Returns the counters of the whole relay.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn order(&self, order: Order) -> Result<(), RelayEnded> {
        self.orders.send(order).map_err(|_| RelayEnded)
    }
}

/// A port, with the task that receives its connections or datagrams.
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

/// Runs the task of a port. Holds the port's descriptor and ephemeral port number until the task
/// ends or is aborted.
async fn with(holds: Holds, task: impl Future<Output = ()>) {
    let _holds = holds;
    task.await;
}

/// Executes orders until a caller requests the end or the last handle is dropped. Then waits for
/// connections to end. Returns the requesting caller's channel, if any, and the number of remaining
/// connections.
async fn run(
    limits: Limits,
    free: Free,
    counters: Arc<Counters>,
    mut orders: UnboundedReceiver<Order>,
) -> Option<(mpsc::Sender<usize>, usize)> {
    let shared = Rc::new(Shared::new(limits, free, counters));
    let mut ports: HashMap<u64, Port> = HashMap::new();
    let (mut limit, mut done) = (shared.limits.drain, None);
    // Executes all queued orders before another task runs. Otherwise a new rule could lead packets
    // to a port that is not open yet.
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
                // Cannot fail: the runtime can watch every socket that the system creates.
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
