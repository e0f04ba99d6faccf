//! Virtual servers and real servers, as values.

use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;
use ipvs_netlink::ServiceKey;
use proxy::{IpFamily, ServiceAddress, Target};

/// Identity of a virtual server in the kernel. Sets, claims and evidence speak of service
/// addresses; each one has a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VirtualServerKey {
    /// Packets to this address and port.
    Address(ServiceAddress),
    /// Packets with this firewall mark, to any address. No Service uses one yet.
    Mark {
        /// Family of the packets.
        family: IpFamily,
        /// Mark, not 0.
        mark: u32,
    },
}

impl VirtualServerKey {
    /// Returns the address that it serves; `None` for a mark.
    pub fn address(&self) -> Option<ServiceAddress> {
        match *self {
            Self::Address(at) => Some(at),
            Self::Mark { .. } => None,
        }
    }

    /// True if its address is in one of these networks.
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

/// Properties of a virtual server beside its destinations. [`Properties::NODE_PORT`] does not count
/// when two are compared.
#[derive(Debug, Clone, Eq)]
pub struct Properties {
    /// Name of the scheduler in the kernel.
    pub scheduler: Arc<str>,
    /// `IP_VS_SVC_F_*` of linux/ip_vs.h, without `HASHED`, which is the kernel's own; and
    /// [`Properties::NODE_PORT`].
    pub flags: u32,
    /// Persistence timeout in seconds; 0 unless [`Properties::PERSISTENT`] is set.
    pub timeout: u32,
}

impl Properties {
    /// `IP_VS_SVC_F_PERSISTENT`: a client stays with its first destination.
    pub const PERSISTENT: u32 = 0x1;
    /// `IP_VS_SVC_F_HASHED`: set by the kernel, ignored here.
    pub const HASHED: u32 = 0x2;
    /// `IP_VS_SVC_F_SCHED_MH_PORT`: the `mh` scheduler hashes the client's port, too.
    pub const MH_PORT: u32 = 0x10;
    /// Note in the kernel that a kube-proxy made this virtual server for a NodePort. Sets of
    /// NodePorts name ports alone, so a virtual server at an address that the node has lost could
    /// be any program's.
    ///
    /// The note is a bit of the flags without meaning to the kernel. It keeps flags as given,
    /// returns them, and tests single bits from the low end, six so far
    /// (`net/netfilter/ipvs/ip_vs_ctl.c`). No tool shows the bit (`ipvsadm`, `/proc/net/ip_vs`), so
    /// the visible state equals upstream's. Upstream compares flags, and writes such a virtual
    /// server once when it takes over; destinations and connections stay.
    ///
    /// Other places are worse. A set, member or address of our own would be visible. Timeout and
    /// netmask are in use with session affinity. A file can disagree with the kernel after a reboot
    /// or another program's change.
    ///
    /// A virtual server of upstream or an earlier build has no note and is not written for it; its
    /// address decides. A kernel that drops the bit loses only the note. One that refuses it gets
    /// the virtual server without.
    pub const NODE_PORT: u32 = 1 << 30;

    /// True if it bears the note that it serves a NodePort.
    pub fn is_node_port(&self) -> bool {
        self.flags & Self::NODE_PORT != 0
    }
}

impl VirtualServer {
    /// True if a found virtual server looks as a kube-proxy would have made it here: it has one of
    /// these destinations or, without any, the same properties.
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
        let parts = |of: &Self| (of.flags & !Self::NODE_PORT, of.timeout);
        (&self.scheduler, parts(self)) == (&other.scheduler, parts(other))
    }
}

/// Virtual server with its destinations. Cheap to clone: the list is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualServer {
    /// Scheduler, flags, persistence.
    pub properties: Properties,
    /// Sorted by target, each target once.
    pub destinations: Destinations,
}

impl VirtualServer {
    /// Returns the destination at a target.
    pub fn destination(&self, target: Target) -> Option<RealServer> {
        self.destinations.find(target)
    }
}

/// Destination: a serving endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RealServer {
    /// Address and port.
    pub target: Target,
    /// Share of new connections; 0 while it drains. Larger values in the kernel count as the
    /// largest here.
    pub weight: u16,
    /// True if it has the defaults of this proxy otherwise: network address translation (`ipvsadm
    /// -m`), no limit on connections. Further details are not kept.
    pub is_plain: bool,
}

impl RealServer {
    /// Creates a destination as upstream does: network address translation, weight 1, no limits.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            weight: 1,
            is_plain: true,
        }
    }

    /// Returns a copy with another weight.
    #[must_use]
    pub fn with_weight(self, weight: u16) -> Self {
        Self { weight, ..self }
    }
}

/// Destinations of a virtual server, sorted by target. Cheap to clone: the list is shared. A large
/// node has 500,000. If all are IPv4 and differ in their address alone, as usual, each takes 4
/// bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Destinations(Packed);

#[derive(Clone, PartialEq, Eq)]
enum Packed {
    /// The form of every list that has at least one entry and allows it.
    Alike {
        addresses: Arc<[Ipv4Addr]>,
        port: u16,
        weight: u16,
        is_plain: bool,
    },
    Any(Arc<[RealServer]>),
}

impl Destinations {
    /// Returns their number.
    pub fn len(&self) -> usize {
        match &self.0 {
            Packed::Alike { addresses, .. } => addresses.len(),
            Packed::Any(list) => list.len(),
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all, sorted by target.
    pub fn iter(&self) -> impl Iterator<Item = RealServer> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// Merges two lists in one pass: returns every target of either, in order, with its entries in
    /// this list and in the other. Each plan does that for thousands of virtual servers.
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
                is_plain,
            } => Some(RealServer {
                target: Target {
                    ip: IpAddr::V4(*addresses.get(at)?),
                    port: *port,
                },
                weight: *weight,
                is_plain: *is_plain,
            }),
            Packed::Any(list) => list.get(at).copied(),
        }
    }

    /// Returns a list of all.
    pub fn to_vec(&self) -> Vec<RealServer> {
        self.iter().collect()
    }

    /// Returns the one at a target.
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
    /// Packs a list that is sorted by target, each target once.
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
            is_plain: weight == 1,
        }
    }

    #[test]
    fn destinations_are_what_they_were_made_of_and_most_are_packed() {
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
    fn the_note_of_a_node_port_makes_no_difference() {
        let plain = Properties {
            scheduler: "rr".into(),
            flags: Properties::PERSISTENT,
            timeout: 600,
        };
        let with = |flags| Properties {
            flags: plain.flags | flags,
            ..plain.clone()
        };
        assert!(with(Properties::NODE_PORT).is_node_port() && !plain.is_node_port());
        assert_eq!(with(Properties::NODE_PORT), plain);
        assert_ne!(with(Properties::MH_PORT), plain);
        let other = Properties {
            timeout: 601,
            ..with(Properties::NODE_PORT)
        };
        assert_ne!(other, plain);
    }

    #[test]
    fn destinations_that_differ_by_weight_or_forwarding_are_not_taken_for_alike() {
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
        for second in [other.with_weight(0), foreign] {
            let list = Destinations::from([one, second]);
            assert!(matches!(list.0, Packed::Any(_)) && list != plain.into());
            assert_eq!(list.to_vec(), [one, second]);
        }
    }
}
