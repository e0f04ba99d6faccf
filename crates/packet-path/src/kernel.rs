//! Kernel state, other than rules, that determines a packet's path.

use std::fmt;
use std::net::IpAddr;

use ipset_netlink::Mark;
use ipvs_netlink::{DestinationEntry, ServiceEntry, ServiceKey};

use crate::packet::Interface;

/// Kernel state, from the kernel or from a snapshot. While one packet is followed, equal queries
/// return equal results.
pub trait Kernel {
    /// Returns the route for a packet. If the packet comes from outside, the kernel may refuse a
    /// route because of the source address.
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read.
    fn route(&self, question: &RouteQuestion) -> Result<Route, ReadFailure>;

    /// Returns the type of an address. If `interface` is given, only addresses of this interface
    /// count as local (as for `fib` and `addrtype`).
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read.
    fn address_type(
        &self,
        address: IpAddr,
        interface: Option<&Interface>,
    ) -> Result<AddressType, ReadFailure>;

    /// Returns this node's address on an interface, for traffic with `to`. Masqueraded packets to
    /// `to` get this source, and redirected packets from `to` get this destination. Returns `None`
    /// if the interface has no address.
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read.
    fn address_of(&self, interface: &Interface, to: IpAddr) -> Result<Option<IpAddr>, ReadFailure>;

    /// Reports whether an interface is a bridge.
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read.
    fn is_bridge(&self, interface: &Interface) -> Result<bool, ReadFailure>;

    /// Returns the type of an ipset, such as `hash:ip,port`, or `None` if the set does not exist.
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read.
    fn set_type(&self, set: &str) -> Result<Option<String>, ReadFailure>;

    /// Returns the member of an ipset that matches this key, in the format of `ipset`, or `None` if
    /// no member matches.
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read.
    fn member(&self, set: &str, key: &SetKey) -> Result<Option<String>, ReadFailure>;

    /// Returns the mark of the ipset's member that matches this key (`skbmark`). Returns `None` if
    /// no member matches, and [`Mark::NONE`] for a member without a mark.
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read. Also fails if the set has
    /// too many members to list.
    fn mark(&self, set: &str, key: &SetKey) -> Result<Option<Mark>, ReadFailure>;

    /// Returns the IPVS virtual server with this key, if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read.
    fn server(&self, key: &ServiceKey) -> Result<Option<Server>, ReadFailure>;

    /// Returns a setting under /proc/sys, such as `net/ipv4/ip_forward`, if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the setting cannot be read.
    fn setting(&self, name: &str) -> Result<Option<String>, ReadFailure>;
}

/// Part of the kernel's state that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReadFailure {
    /// Name of the state, such as `the set KUBE-CLUSTER-IP` or `the rules of iptables-legacy`.
    pub part: String,
    /// Reason why the read failed, and the next step for the user.
    pub reason: String,
}

impl fmt::Display for ReadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {}: {}", self.part, self.reason)
    }
}

/// Question for the route of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteQuestion {
    /// Destination address of the packet.
    pub destination: IpAddr,
    /// Source address of the packet. For a packet from this node, `None` if its sender has not
    /// chosen a source.
    pub source: Option<IpAddr>,
    /// Input interface, or `None` if this node itself sends the packet.
    pub iif: Option<Interface>,
    /// Mark of the packet, which policy routing may use.
    pub mark: u32,
}

/// Result of a route lookup.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Route {
    /// A route to this node itself.
    Local {
        /// Source address that the kernel chooses for the node's own packets, if any.
        source: Option<IpAddr>,
    },
    /// A route to another host.
    Out {
        /// Interface through which the packet leaves the node.
        interface: Interface,
        /// Next hop, or `None` if the destination is directly reachable.
        gateway: Option<IpAddr>,
        /// Source address that the kernel chooses for the node's own packets, if any.
        source: Option<IpAddr>,
    },
    /// No usable route.
    None {
        /// Reason why the route is missing, such as `no route to host` or `a martian source`.
        why: String,
        /// True if an error or ICMP message notifies the packet's sender.
        is_told: bool,
    },
}

/// Type of an address from the node's view (`RTN_*` of linux/rtnetlink.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AddressType {
    /// An address of another host, or an unused address.
    Unicast = 1,
    /// An address of this node.
    Local = 2,
    /// A broadcast address of one of the node's networks.
    Broadcast = 3,
    /// A multicast group.
    Multicast = 5,
    /// An address whose packets a route drops.
    Blackhole = 6,
    /// An address that a route rejects as unreachable, or that has no route.
    Unreachable = 7,
    /// An address that a route prohibits.
    Prohibit = 8,
}

/// Key for a look-up in an ipset. The type of the set decides which fields of the key are compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct SetKey {
    /// First address of the key, if known.
    pub ip: Option<IpAddr>,
    /// IANA protocol number and port, if known.
    pub port: Option<(u8, u16)>,
    /// Second address of the key, if known.
    pub ip2: Option<IpAddr>,
}

/// A virtual server and its destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Virtual server without its destinations.
    pub entry: ServiceEntry,
    /// Destinations of the virtual server.
    pub destinations: Vec<DestinationEntry>,
}
