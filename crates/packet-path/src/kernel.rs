//! What the walk asks of the kernel, beside its rules.

use std::fmt;
use std::net::IpAddr;

use ipvs_netlink::{DestinationEntry, ServiceEntry, ServiceKey};

use crate::packet::Interface;

/// Answers of the kernel, or of what was read of it. An answer is the same each time within a walk.
pub trait Kernel {
    /// Which way it takes; what comes in may be turned away by its source.
    ///
    /// # Errors
    ///
    /// It cannot be asked.
    fn route(&self, question: &RouteQuestion) -> Result<Route, Unread>;

    /// What an address is to the node: of `interface` alone, where one is given (`fib`'s and
    /// `addrtype`'s question).
    ///
    /// # Errors
    ///
    /// It cannot be asked.
    fn address_type(
        &self,
        address: IpAddr,
        interface: Option<&Interface>,
    ) -> Result<AddressType, Unread>;

    /// The address that what leaves by this interface to there gets where it is masqueraded, and what
    /// comes in by it where it is redirected (there `to` is the sender); `None` where the interface
    /// has none.
    ///
    /// # Errors
    ///
    /// It cannot be asked.
    fn address_of(&self, interface: &Interface, to: IpAddr) -> Result<Option<IpAddr>, Unread>;

    /// Whether an interface is a bridge.
    ///
    /// # Errors
    ///
    /// It cannot be asked.
    fn is_bridge(&self, interface: &Interface) -> Result<bool, Unread>;

    /// The type of the ipset with this name, as `hash:ip,port`; `None` if there is no such set.
    ///
    /// # Errors
    ///
    /// It cannot be asked.
    fn set_type(&self, set: &str) -> Result<Option<String>, Unread>;

    /// The member of an ipset that holds for this key, as `ipset` writes it; `None` if there is none.
    ///
    /// # Errors
    ///
    /// It cannot be asked.
    fn member(&self, set: &str, key: &SetKey) -> Result<Option<String>, Unread>;

    /// A virtual server of IPVS; `None` if there is none with this key.
    ///
    /// # Errors
    ///
    /// It cannot be asked.
    fn server(&self, key: &ServiceKey) -> Result<Option<Server>, Unread>;

    /// A setting under /proc/sys, as `net/ipv4/ip_forward`; `None` if there is no such.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn setting(&self, name: &str) -> Result<Option<String>, Unread>;
}

/// What cannot be told, and why.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Unread {
    /// `the set KUBE-CLUSTER-IP`, `the rules of iptables-legacy`.
    pub part: String,
    /// Why, and what to do next.
    pub reason: String,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {}: {}", self.part, self.reason)
    }
}

/// What a route is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteQuestion {
    /// To where.
    pub destination: IpAddr,
    /// From where; of what the node sends, only where its source is chosen.
    pub source: Option<IpAddr>,
    /// By which interface it came in; none of what the node sends.
    pub iif: Option<Interface>,
    /// Its mark: policy routing may ask for it.
    pub mark: u32,
}

/// Which way a packet takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Route {
    /// It is for this node. `source` is the address that the node itself sends from.
    Local {
        /// The address that the kernel gives what the node sends there.
        source: Option<IpAddr>,
    },
    /// It leaves.
    Out {
        /// By this interface.
        interface: Interface,
        /// To this neighbour; else to the destination itself.
        gateway: Option<IpAddr>,
        /// The address that the kernel gives what the node sends there.
        source: Option<IpAddr>,
    },
    /// It goes nowhere.
    None {
        /// In words: `no route to host`, `a martian source`.
        why: String,
        /// True if its sender is told: by an error, or by ICMP.
        is_told: bool,
    },
}

/// What an address is to the node (`RTN_*` of linux/rtnetlink.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AddressType {
    /// Somewhere else, or nowhere.
    Unicast = 1,
    /// Its own.
    Local = 2,
    /// All in a network of its own.
    Broadcast = 3,
    /// A group.
    Multicast = 5,
    /// Dropped by a route.
    Blackhole = 6,
    /// Refused by a route, or there is none.
    Unreachable = 7,
    /// Refused by a route.
    Prohibit = 8,
}

/// What is looked for in an ipset: of which parts of these a member is made its type says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct SetKey {
    /// The first address.
    pub ip: Option<IpAddr>,
    /// The protocol, by IANA's number, and the port.
    pub port: Option<(u8, u16)>,
    /// The second address.
    pub ip2: Option<IpAddr>,
}

/// A virtual server with its destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Itself.
    pub entry: ServiceEntry,
    /// Where it sends to.
    pub destinations: Vec<DestinationEntry>,
}
