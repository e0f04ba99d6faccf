//! What the parts of a relay share, on its thread; and what it counts, for everybody.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use socket2::SockRef;
use tokio::sync::Notify;

use super::descriptors::{Descriptors, Free, Held};
use super::flow::{Flow, FlowKey};
use super::limits::{Limits, Reach};
use super::pump::Pump;
use super::recent::Recent;
use super::redirected::Redirected;

/// The largest datagram, and more.
const LARGEST: usize = 64 * 1024;

/// What the parts of a relay share.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) descriptors: Descriptors,
    pub(crate) pump: Pump,
    pub(crate) flows: RefCell<Recent<FlowKey, Flow>>,
    pub(crate) redirected: RefCell<Redirected>,
    datagram: RefCell<Box<[u8]>>,
    pub(crate) counters: Arc<Counters>,
    /// That there is no connection any more.
    pub(crate) idle: Notify,
}

impl Shared {
    pub(crate) fn new(limits: Limits, free: Free, counters: Arc<Counters>) -> Self {
        Self {
            pump: Pump::new(&limits, free.clone()),
            descriptors: Descriptors::new(free, limits.connections),
            flows: RefCell::new(Recent::new(limits.udp_idle, limits.udp_flows)),
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

    /// Waits for descriptors of a connection that is to be accepted.
    pub(crate) async fn take(&self, count: u32) -> Option<Held> {
        match self.try_take(count) {
            Some(held) => {
                self.descriptors.tell_enough();
                Some(held)
            }
            None => self.descriptors.wait(count).await,
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

/// What a relay counts.
#[derive(Debug, Default)]
pub struct Counters {
    connections: AtomicUsize,
    accepted: AtomicUsize,
    refused: AtomicUsize,
    flows: AtomicUsize,
}

impl Counters {
    /// How many TCP connections there are.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// How many TCP connections were accepted.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// How many of these were reset for want of an endpoint, or because they may not come.
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many UDP flows there are.
    pub fn flows(&self) -> usize {
        self.flows.load(Ordering::Relaxed)
    }

    pub(crate) fn add_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_flows(&self, count: usize) {
        self.flows.store(count, Ordering::Relaxed);
    }
}
