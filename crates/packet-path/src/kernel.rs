//! The kernel's state, except its rules, that decides a packet's path.

use std::fmt;
use std::net::IpAddr;

use ipset_netlink::Mark;
use ipvs_netlink::{DestinationEntry, ServiceEntry, ServiceKey};

use crate::packet::Interface;

/// Interface to kernel state, read from the kernel or from a snapshot. While one packet is
/// followed, equal queries return equal results.
pub trait Kernel {
    /// Returns the route of a packet. The kernel may refuse to route a packet from outside because
    /// of its source address.
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read.
    fn route(&self, question: &RouteQuestion) -> Result<Route, ReadFailure>;

    /// Returns the type of an address, such as local. If `interface` is given, only addresses of
    /// this interface count as local (as for `fib` and `addrtype`).
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read.
    fn address_type(
        &self,
        address: IpAddr,
        interface: Option<&Interface>,
    ) -> Result<AddressType, ReadFailure>;

    /// Returns the node's address on an interface for traffic with `to`: the source of packets that
    /// are masqueraded, or the destination of packets that are redirected. Returns `None` if the
    /// interface has no address.
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

    /// Returns the member of an ipset that matches `key`, in the format of `ipset`, or `None` if no
    /// member matches.
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be sent, or its response cannot be read.
    fn member(&self, set: &str, key: &SetKey) -> Result<Option<String>, ReadFailure>;

    /// Returns the `skbmark` of the ipset's member that matches `key`: `None` if no member matches,
    /// and [`Mark::NONE`] for a member without a mark.
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

    /// Returns the value of a setting under /proc/sys, such as `net/ipv4/ip_forward`. Returns
    /// `None` if the setting does not exist.
    ///
    /// # Errors
    ///
    /// Fails if the setting cannot be read.
    fn setting(&self, name: &str) -> Result<Option<String>, ReadFailure>;
}

/// Failure to read a part of the kernel's state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReadFailure {
    /// Name of the unread part, such as `the set KUBE-CLUSTER-IP` or `the rules of
    /// iptables-legacy`.
    pub part: String,
    /// Reason for the failure, and the next step for the user.
    pub reason: String,
}

impl fmt::Display for ReadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read {}: {}", self.part, self.reason)
    }
}

/// Query for the route of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteQuestion {
    /// Destination address of the packet.
    pub destination: IpAddr,
    /// Source address of the packet. `None` if this node sends it, and the sender has not chosen a
    /// source.
    pub source: Option<IpAddr>,
    /// Input interface, or `None` if this node itself sends the packet.
    pub iif: Option<Interface>,
    /// Mark of the packet, which rules of policy routing may match.
    pub mark: u32,
}

/// Result of a route look-up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Route {
    /// The packet is for this node itself.
    Local {
        /// Source address that the kernel would choose for a packet of this node, if any.
        source: Option<IpAddr>,
    },
    /// The packet leaves this node.
    Out {
        /// Interface through which the packet leaves the node.
        interface: Interface,
        /// Next hop, or `None` if the destination is directly reachable.
        gateway: Option<IpAddr>,
        /// Source address that the kernel would choose for a packet of this node, if any.
        source: Option<IpAddr>,
    },
    /// The packet has no usable route.
    None {
        /// Reason, such as `no route to host` or `a martian source`.
        why: String,
        /// True if the packet's sender gets an error or an ICMP message.
        is_told: bool,
    },
}

/// Type of an address from the node's view (`RTN_*` of linux/rtnetlink.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AddressType {
    /// An address of another host, or an address that no host has.
    Unicast = 1,
    /// An address of this node.
    Local = 2,
    /// A broadcast address of one of the node's networks.
    Broadcast = 3,
    /// A multicast group.
    Multicast = 5,
    /// An address for which a route drops the packets (`blackhole`).
    Blackhole = 6,
    /// An address for which a route or a missing route causes the error `unreachable`.
    Unreachable = 7,
    /// An address for which a route causes the error `prohibited`.
    Prohibit = 8,
}

/// Key of a look-up in an ipset. The set's type decides which fields are compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct SetKey {
    /// First address of the key, or `None` if unknown.
    pub ip: Option<IpAddr>,
    /// IANA protocol number and port, or `None` if unknown.
    pub port: Option<(u8, u16)>,
    /// Second address of the key, or `None` if unknown.
    pub ip2: Option<IpAddr>,
}

/// An IPVS virtual server with its destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The virtual server without its destinations.
    pub entry: ServiceEntry,
    /// Destinations of the virtual server.
    pub destinations: Vec<DestinationEntry>,
}
