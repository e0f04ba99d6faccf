//! Counters of a listening port, for each endpoint.
//!
//! Only the relay's thread counts. So counting needs no lock, and costs one addition for each read.
//! Other threads read the counters.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;

use super::balance::PortBackends;

/// Traffic between clients and one endpoint since the port was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Number of TCP connections or UDP flows so far.
    pub connections: u64,
    /// Number of connections or flows that are open now.
    pub active: u64,
    /// Number of bytes from clients.
    pub bytes_in: u64,
    /// Number of bytes to clients.
    pub bytes_out: u64,
    /// Number of datagrams from clients. 0 for TCP.
    pub packets_in: u64,
    /// Number of datagrams to clients. 0 for TCP.
    pub packets_out: u64,
}

impl TrafficCounts {
    fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.active += other.active;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
    }
}

/// Counters of a listening port. Removed endpoints without open connections share one counter.
#[derive(Debug, Default)]
pub struct PortCounters(Mutex<Tallies>);

#[derive(Debug, Default)]
struct Tallies {
    endpoints: HashMap<SocketAddr, Arc<Tally>>,
    past: TrafficCounts,
}

impl PortCounters {
    /// Returns the totals of the port, and of each endpoint that serves or has an open connection.
    pub fn read(&self) -> (TrafficCounts, Vec<(SocketAddr, TrafficCounts)>) {
        let counted = self.lock();
        let mut sum = counted.past;
        let of = |(at, tally): (&SocketAddr, &Arc<Tally>)| (*at, tally.read());
        let endpoints: Vec<_> = counted.endpoints.iter().map(of).collect();
        for (_, carried) in &endpoints {
            sum.add(carried);
        }
        (sum, endpoints)
    }

    /// Counts a connection to an endpoint as open until the returned guard is dropped.
    pub(crate) fn connect(&self, endpoint: SocketAddr) -> CountedConnection {
        let tally = Arc::clone(self.lock().endpoints.entry(endpoint).or_default());
        tally.connections.fetch_add(1, Ordering::Relaxed);
        tally.active.fetch_add(1, Ordering::Relaxed);
        CountedConnection(tally)
    }

    /// Adds the counters of removed endpoints without open connections to one counter of past
    /// traffic.
    pub(crate) fn retain(&self, serving: &PortBackends) {
        let mut counted = self.lock();
        let Tallies { endpoints, past } = &mut *counted;
        endpoints.retain(|endpoint, tally| {
            let is_kept = serving.has(endpoint) || tally.active.load(Ordering::Relaxed) > 0;
            if !is_kept {
                past.add(&tally.read());
            }
            is_kept
        });
    }

    fn lock(&self) -> MutexGuard<'_, Tallies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counters of one endpoint, which several threads read.
#[derive(Debug, Default)]
struct Tally {
    connections: AtomicU64,
    active: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    packets_in: AtomicU64,
    packets_out: AtomicU64,
}

impl Tally {
    fn read(&self) -> TrafficCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TrafficCounts {
            connections: read(&self.connections),
            active: read(&self.active),
            bytes_in: read(&self.bytes_in),
            bytes_out: read(&self.bytes_out),
            packets_in: read(&self.packets_in),
            packets_out: read(&self.packets_out),
        }
    }
}

/// Guard that counts one connection or flow as open until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedConnection(Arc<Tally>);

impl CountedConnection {
    pub(crate) fn bytes_in(&self) -> &AtomicU64 {
        &self.0.bytes_in
    }

    pub(crate) fn bytes_out(&self) -> &AtomicU64 {
        &self.0.bytes_out
    }

    /// Counts a datagram from a client.
    pub(crate) fn datagram_in(&self, bytes: usize) {
        self.0.packets_in.fetch_add(1, Ordering::Relaxed);
        add(&self.0.bytes_in, bytes);
    }

    /// Counts a datagram to a client.
    pub(crate) fn datagram_out(&self, bytes: usize) {
        self.0.packets_out.fetch_add(1, Ordering::Relaxed);
        add(&self.0.bytes_out, bytes);
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Adds a number of bytes to a counter.
pub(crate) fn add(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(bytes as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_removed_endpoints_stay_in_the_sum_of_their_port() {
        let [one, other] = [1, 2].map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
        let counters = PortCounters::default();
        let open = counters.connect(one);
        add(open.bytes_in(), 10);
        counters.connect(other).datagram_out(5);
        counters.retain(&PortBackends::default());
        let (sum, endpoints) = counters.read();
        assert_eq!((sum.connections, sum.active), (2, 1));
        assert_eq!((sum.bytes_in, sum.bytes_out, sum.packets_out), (10, 5, 1));
        assert_eq!(endpoints.len(), 1, "one is carried still: {endpoints:?}");
        drop(open);
        counters.retain(&PortBackends::default());
        assert_eq!(counters.read().1, []);
        assert_eq!(counters.read().0, TrafficCounts { active: 0, ..sum });
    }
}
