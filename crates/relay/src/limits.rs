//! Settings of a relay: timeouts, limits of its resources, and methods.

use std::time::Duration;

/// Time limits of the attempts to connect a client to an endpoint. After a timeout, the next limit
/// applies. Source: upstream's `pkg/proxy/userspace/proxysocket.go` of Kubernetes 1.25.
pub const DIAL_TIMEOUTS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// Settings of a relay: timeouts, limits of its resources, and methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Time after which a UDP flow ends if neither side sends a datagram. Upstream's flag is
    /// `--udp-timeout`.
    pub udp_idle: Duration,
    /// Largest number of UDP flows. Above this number, a new flow evicts the flow that was idle
    /// longest.
    pub udp_flows: usize,
    /// Time for which connections continue after their listening port was closed.
    pub drain: Duration,
    /// Time for which ports still accept connections after the last handle to the relay was
    /// dropped. In this time, the process that replaces this one redirects packets to its own
    /// ports.
    pub linger: Duration,
    /// Largest number of TCP connections. Further connections wait in the kernel's queue.
    pub connections: usize,
    /// Largest number of pipes in use at one time. Without a free pipe, the relay copies bytes.
    pub pipes: usize,
    /// Largest number of 64 KiB reads that wait in memory for slow receivers. Above this number,
    /// the relay reads only 4 KiB at a time.
    pub waiting: usize,
    /// Largest number of descriptors, including listening ports and pipes. If `None`, the relay
    /// uses the process's limit of open files, minus a reserve.
    pub descriptors: Option<usize>,
    /// Mark of packets to endpoints (`SO_MARK`). The rules that redirect packets ignore marked
    /// packets. If `None`, packets have no mark.
    pub mark: Option<u32>,
    /// Number of endpoints that the relay tries for a connection.
    pub dial: Dial,
    /// Scope of session affinity: each client, or all clients of a listening port.
    pub pin: Pin,
    /// Method of moving bytes between the client's socket and the endpoint's socket.
    pub carriage: Carriage,
    /// Clients from which the relay accepts connections and datagrams.
    pub reach: AllowedClients,
}

/// Method of moving bytes between the client's socket and the endpoint's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carriage {
    /// Bytes move through a buffer of the process.
    Copy,
    /// Bytes move through a kernel pipe, without a copy to the process (`splice(2)`).
    Splice,
    /// Bytes move through a buffer, or through a pipe while the connection carries many bytes.
    Adaptive,
}

/// Number of endpoints that the relay tries for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dial {
    /// The relay tries each endpoint in turn until one accepts the connection. [`DIAL_TIMEOUTS`]
    /// has the time limit of each attempt.
    Several,
    /// The relay tries one endpoint, within this time limit.
    Once(Duration),
}

/// Scope of session affinity: each client, or all clients of a listening port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// Each client stays with one endpoint. Other clients may get other endpoints.
    Client,
    /// All clients of a listening port share one endpoint.
    Port,
}

/// Clients from which a listening port accepts connections and datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedClients {
    /// The port accepts all clients.
    Anybody,
    /// The port accepts only clients whose packets the kernel redirected from another address or
    /// port.
    ///
    /// * TCP: the kernel reports the original destination of a connection (`SO_ORIGINAL_DST`). The
    ///   relay resets connections that clients open directly to the listening port.
    /// * UDP: the relay queries connection tracking once for each flow. The relay drops datagrams
    ///   that clients send directly to the listening port, and accepts the client if the query
    ///   fails.
    Redirected,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Upstream's default for `--udp-timeout`.
            udp_idle: Duration::from_millis(250),
            udp_flows: 8_192,
            drain: Duration::from_mins(15),
            linger: Duration::from_secs(10),
            connections: 65_536,
            // All pipes together use at most 64 MiB of kernel memory.
            pipes: 256,
            // All waiting reads together use at most 64 MiB of memory.
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
