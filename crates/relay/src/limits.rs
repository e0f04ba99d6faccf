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
    /// Time that a UDP flow lasts without a datagram in either direction. Upstream:
    /// `--udp-timeout`.
    pub udp_idle: Duration,
    /// Maximum number of UDP flows. Above it, the longest idle flow is evicted.
    pub udp_flows: usize,
    /// Time that connections continue after their listening port was closed.
    pub drain: Duration,
    /// Time that ports still accept after the last handle to the relay is dropped. Meanwhile, a
    /// successor redirects packets to its own ports.
    pub linger: Duration,
    /// Maximum number of TCP connections. Further connections wait in the kernel's queue.
    pub connections: usize,
    /// Maximum number of pipes in use at one time. Above it, bytes are copied.
    pub pipes: usize,
    /// Maximum number of 64 KiB reads that wait in memory for slow receivers. Above it, reads are 4
    /// KiB.
    pub waiting: usize,
    /// Maximum number of descriptors, including listening ports and pipes. `None` means the soft
    /// limit of the process, less a reserve.
    pub descriptors: Option<usize>,
    /// Mark of connections and flows to endpoints (`SO_MARK`). Redirecting rules ignore marked
    /// packets.
    pub mark: Option<u32>,
    /// Number of endpoints that a connection tries.
    pub dial: Dial,
    /// Scope of session affinity.
    pub pin: Pin,
    /// Method of carrying bytes.
    pub carriage: Carriage,
    /// Clients that the relay accepts.
    pub reach: AllowedClients,
}

/// The method of moving bytes from one socket to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carriage {
    /// Through a buffer of the process.
    Copy,
    /// Through a pipe of the kernel, without a copy (`splice(2)`).
    Splice,
    /// Through a buffer, or through a pipe while the connection carries many bytes.
    Adaptive,
}

/// The number of endpoints that a connection tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dial {
    /// Each endpoint in turn until one accepts, with a limit from [`DIAL_TIMEOUTS`] for each try.
    Several,
    /// One endpoint, within this time limit.
    Once(Duration),
}

/// The scope of session affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// Each client keeps one endpoint.
    Client,
    /// All clients of a listening port keep the same endpoint.
    Port,
}

/// The clients that may connect to a listening port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedClients {
    /// All clients may connect.
    Anybody,
    /// Only clients that the kernel redirected from another address or port. Direct connections to
    /// the listening port are reset, and direct datagrams dropped. For TCP, the kernel reports a
    /// connection's original destination (`SO_ORIGINAL_DST`). For UDP, the relay queries connection
    /// tracking once for each flow, and accepts the client if the query fails.
    Redirected,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Upstream has this default.
            udp_idle: Duration::from_millis(250),
            udp_flows: 8_192,
            drain: Duration::from_mins(15),
            linger: Duration::from_secs(10),
            connections: 65_536,
            // All pipes together take at most 64 MiB of the kernel's memory.
            pipes: 256,
            // The bytes that wait in memory take at most 64 MiB together.
            waiting: 1_024,
            descriptors: None,
            mark: None,
            dial: Dial::Several,
            pin: Pin::Client,
            carriage: Carriage::Adaptive,
            reach: AllowedClients::Redirected,
        }
    }
}
