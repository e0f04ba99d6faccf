//! Values that describe IPVS virtual servers and destinations.

use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;
use ipvs_netlink::ServiceKey;
use proxy::{IpFamily, ServiceAddress, Target};

/// Identity of a virtual server in the kernel: a mark, or a service address. Sets and claims
/// contain only service addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VirtualServerKey {
    /// Virtual server for all packets with this firewall mark, to any destination. Plans create it
    /// before the virtual servers at addresses, which marked packets would otherwise use.
    Mark {
        /// IP family of the packets.
        family: IpFamily,
        /// Firewall mark of the packets, never 0.
        mark: u32,
    },
    /// Virtual server for packets to this address, protocol and port.
    Address(ServiceAddress),
}

impl VirtualServerKey {
    /// Returns the service address, or `None` for a firewall mark.
    pub fn address(&self) -> Option<ServiceAddress> {
        match *self {
            Self::Address(at) => Some(at),
            Self::Mark { .. } => None,
        }
    }

    /// Returns true if the service address lies in one of these networks. Returns false for a
    /// firewall mark.
    pub(crate) fn is_within(&self, nets: &[IpNet]) -> bool {
        let is_in = |at: ServiceAddress| nets.iter().any(|net| net.contains(&at.address));
        self.address().is_some_and(is_in)
    }
}

impl From<ServiceAddress> for VirtualServerKey {
    fn from(at: ServiceAddress) -> Self {
        Self::Address(at)
    }
}

impl fmt::Display for VirtualServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(at) => at.fmt(f),
            Self::Mark { .. } => ServiceKey::from(*self).fmt(f),
        }
    }
}

impl From<VirtualServerKey> for ServiceKey {
    fn from(key: VirtualServerKey) -> Self {
        match key {
            VirtualServerKey::Address(at) => {
                let protocol = ipvs_netlink::Protocol(at.protocol.number());
                Self::new(protocol, at.address, at.port)
            }
            VirtualServerKey::Mark { family, mark } => Self::Fwmark { family, mark },
        }
    }
}

/// Properties of a virtual server, except its destinations. [`Properties::OWNED`] does not affect
/// equality.
#[derive(Debug, Clone, Eq)]
pub struct Properties {
    /// Name of the IPVS scheduler, such as `rr`.
    pub scheduler: Arc<str>,
    /// Flags `IP_VS_SVC_F_*` of linux/ip_vs.h, and [`Properties::OWNED`]. `HASHED`, which the
    /// kernel sets itself, is never included.
    pub flags: u32,
    /// Persistence timeout in seconds, or 0 without [`Properties::PERSISTENT`].
    pub timeout: u32,
}

impl Properties {
    /// Flag of session affinity (`IP_VS_SVC_F_PERSISTENT`): a client stays with its first
    /// destination.
    pub const PERSISTENT: u32 = 0x1;
    /// Flag that the kernel sets itself (`IP_VS_SVC_F_HASHED`). The proxy ignores it.
    pub const HASHED: u32 = 0x2;
    /// Flag of the schedulers `mh` and `sh`: they choose another destination if the hashed one has
    /// weight 0 or is full (`IP_VS_SVC_F_SCHED_MH_FALLBACK`, `IP_VS_SVC_F_SCHED_SH_FALLBACK`).
    pub const FALLBACK: u32 = 0x8;
    /// Flag of the schedulers `mh` and `sh`: they hash the client's port as well as its address
    /// (`IP_VS_SVC_F_SCHED_MH_PORT`, `IP_VS_SVC_F_SCHED_SH_PORT`).
    pub const HASH_PORT: u32 = 0x10;
    /// Flag of a virtual server that a kube-proxy created, for cases without other evidence of
    /// ownership:
    ///
    /// - Sets of NodePorts contain only ports. So a virtual server at an address that the node has
    ///   lost could belong to any program.
    /// - No set contains fwmark virtual servers.
    ///
    /// The kernel stores and returns this bit without giving it a meaning: it tests only the six
    /// low bits (`net/netfilter/ipvs/ip_vs_ctl.c`). No tool shows the bit (`ipvsadm`,
    /// `/proc/net/ip_vs`), so the visible state equals upstream's.
    ///
    /// If upstream kube-proxy runs on the node later, it finds an unwanted flag, and writes such a
    /// virtual server once. The kernel keeps the destinations and connections.
    ///
    /// Alternatives are worse:
    ///
    /// - An additional set, set member or address would be visible.
    /// - Timeout and netmask are in use for session affinity.
    /// - A file may contradict the kernel after a reboot, or after another program's change.
    ///
    /// Exceptions:
    ///
    /// - Upstream's virtual servers, and those of an earlier build of this proxy, lack the bit and
    ///   never get it. Sets and addresses prove that a kube-proxy owns them.
    /// - If a kernel drops the bit, only this evidence is lost.
    /// - If a kernel refuses the bit, the proxy creates the virtual server without it.
    pub const OWNED: u32 = 1 << 30;

    /// Returns these properties with the scheduler `sh` (source hashing) instead of persistence.
    /// Persistence of an fwmark virtual server keeps the packet's destination port, so it works
    /// only for endpoints with that port.
    pub(crate) fn by_source(&self, scheduler: &Arc<str>) -> Self {
        Self {
            scheduler: Arc::clone(scheduler),
            flags: Self::FALLBACK | (self.flags & Self::OWNED),
            timeout: 0,
        }
    }

    /// Returns these properties without the persistence flag and timeout.
    pub(crate) fn without_persistence(self) -> Self {
        Self {
            flags: self.flags & !Self::PERSISTENT,
            timeout: 0,
            ..self
        }
    }

    /// Returns true if the flags contain [`OWNED`](Self::OWNED): a kube-proxy created the virtual
    /// server.
    pub fn is_owned(&self) -> bool {
        self.flags & Self::OWNED != 0
    }
}

impl VirtualServer {
    /// Returns true if `found` may be a kube-proxy's version of this wanted virtual server: they
    /// have a destination in common or, if `found` has none, equal properties.
    pub(crate) fn is_like(&self, found: &Self) -> bool {
        if found.destinations.is_empty() {
            return found.properties == self.properties;
        }
        let mut there = found.destinations.iter();
        there.any(|real| self.destination(real.target).is_some())
    }
}

impl PartialEq for Properties {
    fn eq(&self, other: &Self) -> bool {
        let parts = |of: &Self| (of.flags & !Self::OWNED, of.timeout);
        (&self.scheduler, parts(self)) == (&other.scheduler, parts(other))
    }
}

/// Virtual server with its destinations. Clones are cheap, because they share the list of
/// destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualServer {
    /// Scheduler, flags and persistence timeout of the virtual server.
    pub properties: Properties,
    /// Destinations, sorted by target, without duplicates.
    pub destinations: Destinations,
}

impl VirtualServer {
    /// Returns the destination with this target, or `None` if there is none.
    pub fn destination(&self, target: Target) -> Option<RealServer> {
        self.destinations.find(target)
    }
}

/// Destination of a virtual server, for one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RealServer {
    /// Address and port of the endpoint.
    pub target: Target,
    /// Weight in the scheduler, 0 during a drain. A larger weight than this type can hold counts as
    /// its maximum.
    pub weight: u16,
    /// Number of connections at which IPVS stops sending new ones to the destination, or 0 for no
    /// limit (`ipvsadm -x`).
    pub max_connections: u16,
    /// True if all other attributes are as this proxy sets them: no lower threshold, and NAT
    /// (`ipvsadm -m`). If false, their values are unknown.
    pub is_plain: bool,
}

impl RealServer {
    /// Creates a destination with upstream's defaults: NAT, weight 1, no connection limit.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            weight: 1,
            max_connections: 0,
            is_plain: true,
        }
    }

    /// Returns a copy of this destination with another weight.
    #[must_use]
    pub fn with_weight(self, weight: u16) -> Self {
        Self { weight, ..self }
    }
}

/// Destinations of a virtual server, sorted by target. Clones are cheap, because they share the
/// list.
///
/// A large node has 500,000 destinations. Mostly, all destinations of a list are IPv4 and differ
/// only in the address, and then each takes 4 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Destinations(Packed);

#[derive(Clone, PartialEq, Eq)]
enum Packed {
    /// Compact form of every nonempty list of IPv4 destinations that differ only in the address.
    Alike {
        addresses: Arc<[Ipv4Addr]>,
        port: u16,
        weight: u16,
        max_connections: u16,
        is_plain: bool,
    },
    Any(Arc<[RealServer]>),
}

impl Destinations {
    /// Returns the number of destinations.
    pub fn len(&self) -> usize {
        match &self.0 {
            Packed::Alike { addresses, .. } => addresses.len(),
            Packed::Any(list) => list.len(),
        }
    }

    /// Returns true if there are no destinations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all destinations, sorted by target.
    pub fn iter(&self) -> impl Iterator<Item = RealServer> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// Merges this list and `others` by target. Returns, for each target in order, its destination
    /// in this list and in `others`, or `None` where the list lacks the target. One pass over both
    /// lists matters, because each plan merges thousands of them.
    pub(crate) fn beside(
        &self,
        others: &Self,
    ) -> impl Iterator<Item = (Option<RealServer>, Option<RealServer>)> {
        let (mut own, mut others) = (self.iter().peekable(), others.iter().peekable());
        std::iter::from_fn(move || {
            let order = match (own.peek(), others.peek()) {
                (Some(one), Some(other)) => one.target.cmp(&other.target),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return None,
            };
            let one = order.is_le().then(|| own.next()).flatten();
            let other = order.is_ge().then(|| others.next()).flatten();
            Some((one, other))
        })
    }

    fn get(&self, at: usize) -> Option<RealServer> {
        match &self.0 {
            Packed::Alike {
                addresses,
                port,
                weight,
                max_connections,
                is_plain,
            } => Some(RealServer {
                target: Target {
                    ip: IpAddr::V4(*addresses.get(at)?),
                    port: *port,
                },
                weight: *weight,
                max_connections: *max_connections,
                is_plain: *is_plain,
            }),
            Packed::Any(list) => list.get(at).copied(),
        }
    }

    /// Returns all destinations as a vector.
    pub fn to_vec(&self) -> Vec<RealServer> {
        self.iter().collect()
    }

    /// Returns the destination with this target, or `None` if there is none.
    fn find(&self, target: Target) -> Option<RealServer> {
        let at = match (&self.0, target.ip) {
            (
                Packed::Alike {
                    addresses, port, ..
                },
                IpAddr::V4(address),
            ) if *port == target.port => addresses.binary_search(&address),
            (Packed::Alike { .. }, _) => return None,
            (Packed::Any(list), _) => list.binary_search_by_key(&target, |real| real.target),
        };
        self.get(at.ok()?)
    }
}

impl From<&[RealServer]> for Destinations {
    /// Packs a list of destinations, which must be sorted by target and without duplicates.
    fn from(list: &[RealServer]) -> Self {
        let any = || Packed::Any(list.into());
        let Some(&first) = list.first() else {
            return Self(any());
        };
        let address = |real: &RealServer| match real.target.ip {
            IpAddr::V4(address) => {
                let ip = first.target.ip;
                let port = real.target.port;
                let alike = RealServer {
                    target: Target { ip, port },
                    ..*real
                };
                (alike == first).then_some(address)
            }
            IpAddr::V6(_) => None,
        };
        let addresses: Option<Vec<Ipv4Addr>> = list.iter().map(address).collect();
        Self(addresses.map_or_else(any, |addresses| Packed::Alike {
            addresses: addresses.into(),
            port: first.target.port,
            weight: first.weight,
            max_connections: first.max_connections,
            is_plain: first.is_plain,
        }))
    }
}

impl From<Vec<RealServer>> for Destinations {
    fn from(list: Vec<RealServer>) -> Self {
        list.as_slice().into()
    }
}

impl<const N: usize> From<[RealServer; N]> for Destinations {
    fn from(list: [RealServer; N]) -> Self {
        list.as_slice().into()
    }
}

impl FromIterator<RealServer> for Destinations {
    fn from_iter<T: IntoIterator<Item = RealServer>>(list: T) -> Self {
        Vec::from_iter(list).into()
    }
}

impl fmt::Debug for Destinations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(target: &str) -> RealServer {
        let target: std::net::SocketAddr = target.parse().unwrap();
        let weight = target.port() % 3;
        RealServer {
            target: Target {
                ip: target.ip(),
                port: target.port(),
            },
            weight,
            max_connections: 0,
            is_plain: weight == 1,
        }
    }

    #[test]
    fn equal_plain_destinations_are_packed_without_loss() {
        for (targets, is_packed) in [
            (&["10.0.0.1:80", "10.0.0.2:80", "10.1.0.0:80"][..], true),
            (&["10.0.0.1:80"], true),
            (&["10.0.0.1:80", "10.0.0.1:81", "10.0.0.2:79"], false),
            (&["[fd00::1]:80", "[fd00::2]:80"], false),
            (&["10.0.0.1:80", "[fd00::1]:80"], false),
            (&[], false),
        ] {
            let reals: Vec<_> = targets.iter().map(|text| real(text)).collect();
            let list = Destinations::from(reals.clone());
            assert_eq!(matches!(list.0, Packed::Alike { .. }), is_packed);
            assert_eq!((list.to_vec(), list.len()), (reals.clone(), reals.len()));
            for real in &reals {
                assert_eq!(list.find(real.target), Some(*real));
            }
            let beside: Vec<_> = list
                .beside(&Destinations::from([real("10.0.0.1:81")]))
                .collect();
            let one = |of: &(Option<RealServer>, _)| of.0;
            assert_eq!(beside.iter().filter_map(one).collect::<Vec<_>>(), reals);
            let is_both = |(one, other): &&(Option<RealServer>, Option<RealServer>)| one == other;
            let both = list.find(real("10.0.0.1:81").target).is_some();
            assert_eq!(beside.iter().filter(is_both).count(), usize::from(both));
            assert!(beside.is_sorted_by_key(|(one, other)| one.or(*other).unwrap().target));
            for missing in ["10.0.0.1:82", "10.0.0.0:80", "[fd00::1]:82"] {
                assert_eq!(list.find(real(missing).target), None);
            }
        }
    }

    #[test]
    fn virtual_servers_that_differ_only_in_the_ownership_flag_are_equal() {
        let plain = Properties {
            scheduler: "rr".into(),
            flags: Properties::PERSISTENT,
            timeout: 600,
        };
        let with = |flags| Properties {
            flags: plain.flags | flags,
            ..plain.clone()
        };
        assert!(with(Properties::OWNED).is_owned() && !plain.is_owned());
        assert_eq!(with(Properties::OWNED), plain);
        assert_ne!(with(Properties::HASH_PORT), plain);
        let other = Properties {
            timeout: 601,
            ..with(Properties::OWNED)
        };
        assert_ne!(other, plain);
    }

    #[test]
    fn destinations_with_different_weight_or_forwarding_are_not_packed() {
        let plain = ["10.0.0.1:80", "10.0.0.2:80"].map(|text| RealServer {
            weight: 1,
            is_plain: true,
            ..real(text)
        });
        let [one, other] = plain;
        let foreign = RealServer {
            is_plain: false,
            ..other
        };
        let limited = RealServer {
            max_connections: 9,
            ..other
        };
        for second in [other.with_weight(0), limited, foreign] {
            let list = Destinations::from([one, second]);
            assert!(matches!(list.0, Packed::Any(_)) && list != plain.into());
            assert_eq!(list.to_vec(), [one, second]);
        }
    }
}
