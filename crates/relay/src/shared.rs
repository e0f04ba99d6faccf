//! The state that all tasks of a relay share on its thread, and counters that other threads read.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use socket2::SockRef;
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::Transport;
use super::descriptors::{DescriptorPermit, Descriptors, Free};
use super::flow::{Flow, FlowKey};
use super::limits::{AllowedClients, Limits};
use super::ports::ephemeral;
use super::pump::{CutSignal, Pump};
use super::recent::Recent;
use super::redirect_check::RedirectCheck;
use super::shares::{Client, ClientPlace, Shares};

/// Number of connections that a client may keep even if the relay has reached its limit of
/// connections.
const FEW: usize = 16;

/// Number of connections above the limit that the relay may accept. Each such connection evicts an
/// older connection, which may take a moment to end.
const SPARE: usize = 64;

/// Size of the datagram buffer in bytes. Larger than any datagram.
const LARGEST: usize = 64 * 1024;

/// State that all tasks of a relay share on the relay's thread.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) descriptors: Descriptors,
    pub(crate) pump: Pump,
    pub(crate) flows: RefCell<Recent<FlowKey, Flow>>,
    connection_places: Rc<Shares<Rc<CutSignal>>>,
    pub(crate) flow_places: Rc<Shares<FlowKey>>,
    pub(crate) redirected: RefCell<RedirectCheck>,
    datagram: RefCell<Box<[u8]>>,
    pub(crate) counters: Arc<Counters>,
    /// Signal that the relay's last connection has ended.
    pub(crate) idle: Notify,
}

impl Shared {
    pub(crate) fn new(limits: Limits, free: Free, counters: Arc<Counters>) -> Self {
        // A connection needs two descriptors. A flow needs one descriptor and one of the node's
        // ephemeral ports.
        let connections = limits.connections.min(free.most() / 2);
        let flows = limits.udp_flows.min(ephemeral() / 4).min(free.most() / 2);
        Self {
            pump: Pump::new(&limits, free.clone()),
            descriptors: Descriptors::new(free, connections + SPARE),
            flows: RefCell::new(Recent::new(limits.udp_idle, flows.max(1))),
            connection_places: Rc::new(Shares::new("connections", connections, FEW)),
            flow_places: Rc::new(Shares::new("UDP flows", flows, 0)),
            redirected: RefCell::new(match limits.reach {
                AllowedClients::Anybody => RedirectCheck::never_asked(),
                AllowedClients::Redirected => RedirectCheck::open(),
            }),
            datagram: RefCell::new(vec![0; LARGEST].into()),
            limits,
            counters,
            idle: Notify::new(),
        }
    }

    /// Takes `count` descriptors if enough are free. Otherwise, closes unused pipes and tries
    /// again.
    pub(crate) fn try_take(&self, count: u32) -> Option<DescriptorPermit> {
        self.descriptors.try_take(count).or_else(|| {
            self.pump.close_spare();
            self.descriptors.try_take(count)
        })
    }

    /// Waits for `count` descriptors for the next connection. If necessary, evicts a connection of
    /// the client with the most connections.
    pub(crate) async fn take(&self, count: u32) -> Option<DescriptorPermit> {
        if let Some(held) = self.try_take(count) {
            self.descriptors.tell_enough();
            return Some(held);
        }
        // Yields first, so that connections that were accepted earlier can occupy their connection
        // slots.
        yield_now().await;
        self.end(self.connection_places.make_room());
        self.descriptors.wait(count).await
    }

    /// Gives a client a slot for a connection to a Service, and evicts another connection if
    /// necessary. Waits while no connection may be evicted.
    pub(crate) async fn admit(
        &self,
        service: &Arc<str>,
        client: IpAddr,
        cut: &Rc<CutSignal>,
    ) -> ClientPlace<Rc<CutSignal>> {
        let client = Client::of(client);
        let places = &self.connection_places;
        loop {
            if let Some(admitted) = places.admit(service, client, Rc::clone(cut)) {
                self.end(admitted.evicted);
                return admitted.place;
            }
            places.until_freed().await;
        }
    }

    fn end(&self, evicted: Option<Rc<CutSignal>>) {
        if let Some(cut) = evicted {
            self.counters.add_evicted(Transport::Tcp);
            cut.end();
        }
    }

    /// Calls `work` with the datagram buffer that all tasks share.
    pub(crate) fn with_datagram<R>(&self, work: impl FnOnce(&mut [u8]) -> R) -> R {
        work(&mut self.datagram.borrow_mut())
    }

    /// Counts a TCP connection as open until the returned guard is dropped.
    pub(crate) fn count_connection(self: &Rc<Self>) -> OpenConnection {
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        self.counters.accepted.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Rc::clone(self))
    }
}

/// Sets the mark of a socket's packets. Ignores errors: a process that lacks the privilege for
/// marks also lacks the privilege for redirect rules, so no rule needs the mark.
pub(crate) fn set_mark(socket: &SockRef<'_>, mark: Option<u32>) {
    if let Some(mark) = mark {
        let _ = socket.set_mark(mark);
    }
}

/// Guard that counts one TCP connection as open until it is dropped.
pub(crate) struct OpenConnection(Rc<Shared>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let before = self.0.counters.connections.fetch_sub(1, Ordering::Relaxed);
        if before == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// Sum of the evictions by all relays of this process.
static EVICTIONS: AllEvictions = AllEvictions {
    is_any_relay: AtomicBool::new(false),
    connections: AtomicU64::new(0),
    flows: AtomicU64::new(0),
};

struct AllEvictions {
    is_any_relay: AtomicBool,
    connections: AtomicU64,
    flows: AtomicU64,
}

/// Numbers of connections and flows that relays have evicted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Number of evicted TCP connections.
    pub connections: u64,
    /// Number of evicted UDP flows.
    pub flows: u64,
}

impl Evictions {
    /// Returns the sum over all relays of this process. The sum never decreases. Returns `None`
    /// before the first relay.
    pub fn of_process() -> Option<Self> {
        let all = &EVICTIONS;
        let is_any_relay = all.is_any_relay.load(Ordering::Relaxed);
        is_any_relay.then(|| Self {
            connections: all.connections.load(Ordering::Relaxed),
            flows: all.flows.load(Ordering::Relaxed),
        })
    }
}

/// Counters of one relay: connections, flows, refusals and evictions.
#[derive(Debug, Default)]
pub struct Counters {
    connections: AtomicUsize,
    accepted: AtomicUsize,
    refused: AtomicUsize,
    evicted: AtomicUsize,
    flows: AtomicUsize,
}

impl Counters {
    /// Returns counters for a new relay, and records that this process has a relay.
    pub(crate) fn of_new_relay() -> Self {
        EVICTIONS.is_any_relay.store(true, Ordering::Relaxed);
        Self::default()
    }

    /// Returns the number of open TCP connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of TCP connections that the relay has accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that the relay has accepted and then reset. Either the
    /// client was not allowed, or no endpoint or connection slot was left.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the number of TCP connections and UDP flows that the relay has evicted.
    pub fn evicted(&self) -> usize {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Returns the number of open UDP flows.
    pub fn flows(&self) -> usize {
        self.flows.load(Ordering::Relaxed)
    }

    pub(crate) fn add_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_evicted(&self, transport: Transport) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        let of = match transport {
            Transport::Tcp => &EVICTIONS.connections,
            Transport::Udp => &EVICTIONS.flows,
        };
        of.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_flows(&self, count: usize) {
        self.flows.store(count, Ordering::Relaxed);
    }
}
