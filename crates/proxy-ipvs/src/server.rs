//! Virtual servers and real servers, as values.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use proxy::{Protocol, Target};

/// Identity of a virtual server: what a client connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VirtualServerKey {
    /// The service address.
    pub address: IpAddr,
    /// The service port.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl fmt::Display for VirtualServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}",
            SocketAddr::new(self.address, self.port),
            self.protocol
        )
    }
}

/// All of a virtual server but its destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// The kernel's name of the scheduler.
    pub scheduler: Arc<str>,
    /// `IP_VS_SVC_F_*` of linux/ip_vs.h, without `HASHED`, which is the kernel's own.
    pub flags: u32,
    /// Persistence time-out in seconds; 0 unless [`Properties::PERSISTENT`] is set.
    pub timeout: u32,
}

impl Properties {
    /// `IP_VS_SVC_F_PERSISTENT`: a client stays with the real server it got.
    pub const PERSISTENT: u32 = 0x1;
    /// `IP_VS_SVC_F_HASHED`: set by the kernel, ignored here.
    pub const HASHED: u32 = 0x2;
    /// `IP_VS_SVC_F_SCHED_MH_PORT`: the `mh` scheduler hashes the client's port, too.
    pub const MH_PORT: u32 = 0x10;
}

/// A virtual server with its destinations. Cheap to clone: the list is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualServer {
    /// Scheduler, flags, persistence.
    pub properties: Properties,
    /// Sorted by target, each target once.
    pub destinations: Arc<[RealServer]>,
}

impl VirtualServer {
    /// The destination at a target.
    pub fn destination(&self, target: Target) -> Option<&RealServer> {
        let at = self
            .destinations
            .binary_search_by_key(&target, |d| d.target)
            .ok()?;
        self.destinations.get(at)
    }
}

/// A destination: a pod that serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RealServer {
    /// Where it is.
    pub target: Target,
    /// Its share of new connections; 0 while it drains. What is larger in the kernel counts as the largest here.
    pub weight: u16,
    /// Whether it is as this proxy makes them in every other respect: packets reach it by network address translation
    /// (`ipvsadm -m`), and nothing limits its connections. There are 500,000 of these on a large node, so no more is kept.
    pub is_plain: bool,
}

impl RealServer {
    /// A real server as upstream makes it: network address translation, weight 1, no limits.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            weight: 1,
            is_plain: true,
        }
    }

    /// The same with another weight.
    #[must_use]
    pub fn with_weight(self, weight: u16) -> Self {
        Self { weight, ..self }
    }
}
