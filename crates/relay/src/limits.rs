//! Time and size limits of a relay.

use std::time::Duration;

/// Time for an endpoint to accept a connection, one value for each try. Source: upstream's
/// `pkg/proxy/userspace/proxysocket.go` of Kubernetes 1.25.
pub const DIAL_TIMEOUTS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// Limits of a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Time that a UDP flow lasts without a datagram either way. Upstream: `--udp-timeout`.
    pub udp_idle: Duration,
    /// Maximum number of UDP flows. Beyond, the flow that was idle for longest is evicted.
    pub udp_flows: usize,
    /// Time that connections go on after their listening port was closed.
    pub drain: Duration,
    /// Time that ports still accept after the last handle to the relay is dropped. A successor
    /// needs it to redirect packets to its own ports first.
    pub linger: Duration,
    /// Maximum number of TCP connections. Further ones wait in the kernel's queue.
    pub connections: usize,
    /// Maximum number of pipes lent at once. Beyond, bytes are copied.
    pub pipes: usize,
    /// Maximum number of reads of 64 KiB that wait in memory at once for slow readers. Beyond, reads are of
    /// 4 KiB.
    pub waiting: usize,
    /// Maximum number of descriptors, including listening ports and pipes. `None` takes the soft limit of the
    /// process, less a reserve.
    pub descriptors: Option<usize>,
    /// Mark of connections and flows to endpoints (`SO_MARK`), by which redirecting rules let them
    /// pass.
    pub mark: Option<u32>,
    /// Number of endpoints that a connection tries.
    pub dial: Dial,
    /// Scope of session affinity.
    pub pin: Pin,
    /// Way that bytes are carried.
    pub carriage: Carriage,
    /// Clients that are accepted.
    pub reach: Reach,
}

/// The way that bytes move from one socket to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carriage {
    /// Through a buffer of the process.
    Copy,
    /// Through a pipe of the kernel, without a copy (`splice(2)`).
    Splice,
    /// Through a buffer, and through a pipe while there are many bytes.
    Adaptive,
}

/// The number of endpoints that a connection tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dial {
    /// Each endpoint in turn until one accepts, each within [`DIAL_TIMEOUTS`].
    Several,
    /// One endpoint, within this time.
    Once(Duration),
}

/// The scope of session affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// Each client keeps an endpoint of its own.
    Client,
    /// All clients of a listening port keep the same endpoint.
    Port,
}

/// The clients that may connect to a listening port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All clients.
    Anybody,
    /// Only clients that the kernel redirected from another address or port. Connections to the
    /// listening port itself are reset, and datagrams dropped. A TCP socket knows its original
    /// destination (`SO_ORIGINAL_DST`). For UDP, connection tracking is asked once for each flow;
    /// if it cannot answer, the client is accepted.
    Redirected,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Upstream's default.
            udp_idle: Duration::from_millis(250),
            udp_flows: 8_192,
            drain: Duration::from_mins(15),
            linger: Duration::from_secs(10),
            connections: 65_536,
            // 64 MiB of the kernel's memory at most.
            pipes: 256,
            // 64 MiB at most.
            waiting: 1_024,
            descriptors: None,
            mark: None,
            dial: Dial::Several,
            pin: Pin::Client,
            carriage: Carriage::Adaptive,
            reach: Reach::Redirected,
        }
    }
}
