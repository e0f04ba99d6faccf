//! What the parts of a relay share, on its thread; and what it counts, for everybody.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use socket2::SockRef;
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::Transport;
use super::descriptors::{Descriptors, Free, Held};
use super::flow::{Flow, FlowKey};
use super::limits::{Limits, Reach};
use super::ports::ephemeral;
use super::pump::{Cut, Pump};
use super::recent::Recent;
use super::redirected::Redirected;
use super::shares::{Client, Place, Shares};

/// A client that has so many connections, or less, loses none to others.
const FEW: usize = 16;

/// Connections that are let in while others end for them.
const SPARE: usize = 64;

/// The largest datagram, and more.
const LARGEST: usize = 64 * 1024;

/// What the parts of a relay share.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) descriptors: Descriptors,
    pub(crate) pump: Pump,
    pub(crate) flows: RefCell<Recent<FlowKey, Flow>>,
    connection_places: Rc<Shares<Rc<Cut>>>,
    pub(crate) flow_places: Rc<Shares<FlowKey>>,
    pub(crate) redirected: RefCell<Redirected>,
    datagram: RefCell<Box<[u8]>>,
    pub(crate) counters: Arc<Counters>,
    /// That there is no connection any more.
    pub(crate) idle: Notify,
}

impl Shared {
    pub(crate) fn new(limits: Limits, free: Free, counters: Arc<Counters>) -> Self {
        // A connection takes two descriptors, a flow one, and one of the node's ephemeral ports.
        let connections = limits.connections.min(free.most() / 2);
        let flows = limits.udp_flows.min(ephemeral() / 4).min(free.most() / 2);
        Self {
            pump: Pump::new(&limits, free.clone()),
            descriptors: Descriptors::new(free, connections + SPARE),
            flows: RefCell::new(Recent::new(limits.udp_idle, flows.max(1))),
            connection_places: Rc::new(Shares::new("connections", connections, FEW)),
            flow_places: Rc::new(Shares::new("UDP flows", flows, 0)),
            redirected: RefCell::new(match limits.reach {
                Reach::Anybody => Redirected::never_asked(),
                Reach::Redirected => Redirected::open(),
            }),
            datagram: RefCell::new(vec![0; LARGEST].into()),
            limits,
            counters,
            idle: Notify::new(),
        }
    }

    /// Takes descriptors, if there are as many; pipes that are spare give way.
    pub(crate) fn try_take(&self, count: u32) -> Option<Held> {
        self.descriptors.try_take(count).or_else(|| {
            self.pump.close_spare();
            self.descriptors.try_take(count)
        })
    }

    /// Waits for descriptors of a connection that is to be accepted. Whoever holds most connections
    /// makes room.
    pub(crate) async fn take(&self, count: u32) -> Option<Held> {
        if let Some(held) = self.try_take(count) {
            self.descriptors.tell_enough();
            return Some(held);
        }
        // Those that were accepted before take their places first.
        yield_now().await;
        self.end(self.connection_places.make_room());
        self.descriptors.wait(count).await
    }

    /// Gives a client a place for a connection to a Service, and ends another one for it if need be;
    /// or waits, where nobody has to make room.
    pub(crate) async fn admit(
        &self,
        service: &Arc<str>,
        client: IpAddr,
        cut: &Rc<Cut>,
    ) -> Place<Rc<Cut>> {
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

    fn end(&self, evicted: Option<Rc<Cut>>) {
        if let Some(cut) = evicted {
            self.counters.add_evicted(Transport::Tcp);
            cut.end();
        }
    }

    /// Lends the buffer for a datagram.
    pub(crate) fn with_datagram<R>(&self, work: impl FnOnce(&mut [u8]) -> R) -> R {
        work(&mut self.datagram.borrow_mut())
    }

    /// Counts a connection until what is returned is dropped.
    pub(crate) fn count_connection(self: &Rc<Self>) -> Counted {
        self.counters.connections.fetch_add(1, Ordering::Relaxed);
        self.counters.accepted.fetch_add(1, Ordering::Relaxed);
        Counted(Rc::clone(self))
    }
}

/// Marks what is sent. Without the right to it nothing is redirected either.
pub(crate) fn set_mark(socket: &SockRef<'_>, mark: Option<u32>) {
    if let Some(mark) = mark {
        let _ = socket.set_mark(mark);
    }
}

/// A connection that is counted.
pub(crate) struct Counted(Rc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        let before = self.0.counters.connections.fetch_sub(1, Ordering::Relaxed);
        if before == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// Evictions of all relays that this process has had.
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

/// Connections and flows that were ended to make room for others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evictions {
    /// TCP connections.
    pub connections: u64,
    /// UDP flows.
    pub flows: u64,
}

impl Evictions {
    /// Returns the sum over all relays that this process has had, so that it never goes down; `None`
    /// if it has had none.
    pub fn of_process() -> Option<Self> {
        let all = &EVICTIONS;
        let is_any_relay = all.is_any_relay.load(Ordering::Relaxed);
        is_any_relay.then(|| Self {
            connections: all.connections.load(Ordering::Relaxed),
            flows: all.flows.load(Ordering::Relaxed),
        })
    }
}

/// What a relay counts.
#[derive(Debug, Default)]
pub struct Counters {
    connections: AtomicUsize,
    accepted: AtomicUsize,
    refused: AtomicUsize,
    evicted: AtomicUsize,
    flows: AtomicUsize,
}

impl Counters {
    /// Returns the counters of a relay that starts.
    pub(crate) fn of_new_relay() -> Self {
        EVICTIONS.is_any_relay.store(true, Ordering::Relaxed);
        Self::default()
    }

    /// How many TCP connections there are.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// How many TCP connections were accepted.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// How many of these were reset for want of an endpoint or of a place, or because they may not
    /// come.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many TCP connections and UDP flows were ended to make room for others.
    pub fn evicted(&self) -> usize {
        self.evicted.load(Ordering::Relaxed)
    }

    /// How many UDP flows there are.
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
