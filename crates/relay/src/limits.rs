//! How long the relay waits, and how much it takes.

use std::time::Duration;

/// How long an endpoint has to accept a connection, try by try. Source: upstream's
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
    /// How long a UDP flow lasts without a datagram either way. Upstream: `--udp-timeout`.
    pub udp_idle: Duration,
    /// How many UDP flows there may be; the one goes that was idle for longest.
    pub udp_flows: usize,
    /// How long connections go on after their listening port was closed.
    pub drain: Duration,
    /// How long ports go on to accept once nobody holds a handle to the relay: whoever takes over
    /// has to redirect packets to other ports first.
    pub linger: Duration,
    /// How many TCP connections there may be; further ones wait in the kernel's queue.
    pub connections: usize,
    /// How many pipes may be lent at once; where they are, bytes are copied.
    pub pipes: usize,
    /// How many reads of 64 KiB may wait in memory at once for who reads slowly; where they do,
    /// the next ones are of 4 KiB.
    pub waiting: usize,
    /// How many descriptors it may hold, those of listening ports and pipes included; `None`: those
    /// of the process's soft limit, less some.
    pub descriptors: Option<usize>,
    /// The mark of its connections and flows to endpoints (`SO_MARK`), by which whoever redirects
    /// packets lets them pass.
    pub mark: Option<u32>,
    /// How often an endpoint is tried.
    pub dial: Dial,
    /// Who keeps an endpoint where there is affinity.
    pub pin: Pin,
    /// How bytes are carried.
    pub carriage: Carriage,
    /// Whom it accepts.
    pub reach: Reach,
}

/// How bytes are carried from one socket to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carriage {
    /// Through a buffer of the process.
    Copy,
    /// Through a pipe of the kernel, without a copy (`splice(2)`).
    Splice,
    /// Through a buffer, and through a pipe while there is much.
    Adaptive,
}

/// How often an endpoint is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dial {
    /// Another one has its turn if one does not accept, each within [`DIAL_TIMEOUTS`].
    Several,
    /// One, within this time.
    Once(Duration),
}

/// Who keeps an endpoint where there is affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// Each client its own.
    Client,
    /// All clients of a listening port the same one.
    Port,
}

/// Who may connect to a listening port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Everybody.
    Anybody,
    /// Only who was redirected there by the kernel, and meant another address or port: what the
    /// listening port itself is sent is reset, or dropped. Of TCP the socket tells
    /// (`SO_ORIGINAL_DST`), of UDP connection tracking, which is asked once for each flow; where
    /// that cannot be asked, everybody is accepted.
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
