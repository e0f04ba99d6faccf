//! What is the network namespace's, and no service's.

/// What IPVS says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Info {
    /// Version of IPVS: major, minor, patch in a byte each (0x010201 is 1.2.1).
    pub version: u32,
    /// Slots of the connection table. Linux 7.2, whose table grows, has none (0) before the first
    /// service of a network namespace.
    pub table_size: u32,
}

/// How long idle connections are kept, in seconds. One setting for the network namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Established TCP. To set it, 0 means to leave it as it is, as for the others.
    pub tcp: u32,
    /// TCP after a FIN.
    pub tcp_fin: u32,
    /// UDP.
    pub udp: u32,
}
