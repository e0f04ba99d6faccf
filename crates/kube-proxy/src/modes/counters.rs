//! What the kernel (in userspace mode: the relay) has counted, for those who look: read by blocking,
//! over sockets of its own, so that no lane of a mode waits for it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use proxy::Protocol;

/// An address that a Service port is served at; a NodePort's is each address of the node that serves
/// it, as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct At {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
}

/// What is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which<'a> {
    /// All addresses, without their endpoints: one dump.
    Addresses,
    /// All addresses with their endpoints.
    All,
    /// These addresses with their endpoints.
    Of(&'a [At]),
}

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// By address.
    pub(crate) addresses: HashMap<At, OfAddress>,
    /// By address and endpoint.
    pub(crate) endpoints: HashMap<(At, SocketAddr), OfEndpoint>,
}

/// Of an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OfAddress {
    /// In IPVS mode.
    pub(crate) scheduler: Option<String>,
    pub(crate) count: Count,
}

/// Of an endpoint at an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OfEndpoint {
    /// In IPVS mode.
    pub(crate) weight: Option<u32>,
    pub(crate) count: Count,
}

/// Since the entry was made; what is not counted in a mode is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) connections: u64,
    pub(crate) packets_in: Option<u64>,
    pub(crate) packets_out: Option<u64>,
    pub(crate) bytes_in: Option<u64>,
    pub(crate) bytes_out: Option<u64>,
    pub(crate) active: Option<u64>,
    pub(crate) inactive: Option<u64>,
}

/// Reads what is counted.
pub(crate) trait ReadCounters: Send {
    /// Reads, by blocking.
    ///
    /// # Errors
    ///
    /// The kernel cannot be read; the reason, and what to do.
    fn read(&mut self, which: Which<'_>) -> Result<Counted>;
}
