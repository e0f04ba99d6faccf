//! The shim's nftables sets: their types, and the encoding of set members as elements.
//!
//! Each set has the name of the ipset that it replaces, except the ipset of source ranges
//! (`hash:ip,port,net`):
//!
//! - In nftables, source ranges would need one set with intervals, which the kernel copies as a
//!   whole on each commit (`nft_set_pipapo`).
//! - Instead, each prefix length in use has its own set. Rules mask the source address to that
//!   length before they look it up, as ipset does internally.
//! - Source ranges may overlap, and a change of a source range changes one element.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use kube_rules::nft::address_type;
use nftables_netlink::{Bytes, Concatenation, DataType, Element, ElementData, Name};
use proxy::{IpFamily, Protocol};

use crate::sets::{Member, Set, SetKind};

/// Set of service addresses to which this node must not open connections.
///
/// nftables cannot match IPVS connections. So each element has a source address that equals the
/// destination address: a packet from this node to a load-balancer address has that address as its
/// source until IPVS handles it.
pub(crate) const FORBIDDEN: &str = "KUBE-IPVS-OUT-FILTER";

/// Returns the length, in bytes, of an address of this family.
pub(super) const fn address_len(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 4,
        IpFamily::V6 => 16,
    }
}

/// A set member as nftables stores it: the name of an nftables set, and an element of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetElement {
    pub(crate) set: Name,
    pub(crate) element: Element,
}

/// Returns the nftables set and the element that represent a set member.
pub(crate) fn place(set: Set, member: &Member, family: IpFamily) -> SetElement {
    let key = Concatenation::new();
    let name = || Name::from(set.name(family));
    let (set, key) = match *member {
        Member::Address(address) => (name(), key.address(address)),
        Member::AddressPort(address, protocol, port) => (name(), to(key, address, protocol, port)),
        Member::AddressPortAddress(address, protocol, port, second) => {
            (name(), to(key, address, protocol, port).address(second))
        }
        Member::AddressPortNet(address, protocol, port, net) => (
            prefix_set(set, net.prefix_len(), family),
            to(key, address, protocol, port).address(net.network()),
        ),
        Member::Port(port) => (name(), key.port(port)),
        Member::AddressPortMark(address, protocol, port, _) => {
            (name(), to(key, address, protocol, port))
        }
    };
    let mut element = Element::of_set(key.into_key());
    if let Member::AddressPortMark(.., mark) = member {
        // The kernel compares packet marks in host byte order.
        let bytes = Bytes::from_slice(&mark.to_ne_bytes());
        element.data = Some(ElementData::Value(bytes));
    }
    SetElement { set, element }
}

fn to(key: Concatenation, address: IpAddr, protocol: Protocol, port: u16) -> Concatenation {
    key.address(address).protocol(protocol.number()).port(port)
}

/// Returns the name of the nftables set for source ranges of this prefix length.
pub(crate) fn prefix_set(set: Set, prefix: u8, family: IpFamily) -> Name {
    format!("{}-{prefix}", set.name(family)).into()
}

/// Returns the set that the nftables set with this name represents, if any. The nftables set has
/// all members of the set, or only those with one prefix length.
pub(crate) fn is_of(name: &str, family: IpFamily) -> Option<Set> {
    Set::by_name(name, family).or_else(|| prefix_of(name, family).map(|_| PREFIXED))
}

/// The set that nftables splits by prefix length.
const PREFIXED: Set = Set::LoadBalancerSourceCidr;

/// Returns the prefix length at the end of a set's name, or `None` if the name has none.
fn prefix_of(name: &str, family: IpFamily) -> Option<u8> {
    let number = name
        .strip_prefix(&*PREFIXED.name(family))?
        .strip_prefix('-')?;
    let prefix: u8 = number.parse().ok()?;
    (u32::from(prefix) <= address_len(family) * 8 && number == prefix.to_string()).then_some(prefix)
}

/// Returns the definition of the nftables set that represents `set`. Returns `None` for source
/// ranges, whose sets are created together with their members.
pub(crate) fn definition(set: Set, family: IpFamily) -> Option<nftables_netlink::Set> {
    (set != PREFIXED).then(|| made_for(set, set.name(family).into(), family))
}

/// Returns the definition of the nftables set with this name, or `None` if the name is not one of
/// ours.
pub(crate) fn definition_of(name: &str, family: IpFamily) -> Option<nftables_netlink::Set> {
    if name == FORBIDDEN {
        let address = address_type(family);
        let key = vec![address, address, DataType::InetProto, DataType::InetService];
        let comment = "load-balancer addresses that this node may not use";
        return Some(made(name.into(), key, comment));
    }
    Some(made_for(is_of(name, family)?, name.into(), family))
}

fn made_for(set: Set, name: Name, family: IpFamily) -> nftables_netlink::Set {
    let mut made = made(name, types(set, family), set.comment());
    if set.kind() == SetKind::AddressPortMark {
        made.kind = nftables_netlink::SetKind::Map(vec![DataType::Mark]);
    }
    made
}

fn made(name: Name, key: Vec<DataType>, comment: &str) -> nftables_netlink::Set {
    nftables_netlink::Set {
        comment: Some(comment.into()),
        // No size limit: the kernel grows the set as needed.
        ..nftables_netlink::Set::new(name, key, nftables_netlink::SetKind::Set)
    }
}

fn types(set: Set, family: IpFamily) -> Vec<DataType> {
    let address = address_type(family);
    let (protocol, port) = (DataType::InetProto, DataType::InetService);
    match set.kind() {
        SetKind::Address => vec![address],
        SetKind::AddressPort | SetKind::AddressPortMark => vec![address, protocol, port],
        SetKind::AddressPortAddress | SetKind::AddressPortNet => {
            vec![address, protocol, port, address]
        }
        SetKind::Port => vec![port],
    }
}

/// Decodes an element of the set `name` to a set member. Returns `None` for an element that this
/// proxy cannot have written.
pub(crate) fn member(name: &str, element: &Element, family: IpFamily) -> Option<(Set, Member)> {
    let set = is_of(name, family)?;
    let mut key = Key {
        rest: &element.key,
        family,
    };
    let member = match set.kind() {
        SetKind::Address => Member::Address(key.address()?),
        SetKind::AddressPort => Member::AddressPort(key.address()?, key.protocol()?, key.port()?),
        SetKind::AddressPortAddress => {
            Member::AddressPortAddress(key.address()?, key.protocol()?, key.port()?, key.address()?)
        }
        SetKind::AddressPortNet => Member::AddressPortNet(
            key.address()?,
            key.protocol()?,
            key.port()?,
            IpNet::new(key.address()?, prefix_of(name, family)?).ok()?,
        ),
        SetKind::Port => Member::Port(key.port()?),
        SetKind::AddressPortMark => {
            let Some(ElementData::Value(mark)) = &element.data else {
                return None;
            };
            let mark = u32::from_ne_bytes(<[u8; 4]>::try_from(&mark[..]).ok()?);
            Member::AddressPortMark(key.address()?, key.protocol()?, key.port()?, mark)
        }
    };
    Some((set, member))
}

/// Key of an element, from which fields are taken one by one.
struct Key<'a> {
    rest: &'a [u8],
    family: IpFamily,
}

impl Key<'_> {
    fn part(&mut self, len: usize) -> Option<&[u8]> {
        let part = self.rest.get(..len)?;
        let filled = len.next_multiple_of(4).min(self.rest.len());
        self.rest = self.rest.get(filled..)?;
        Some(part)
    }

    fn address(&mut self) -> Option<IpAddr> {
        let family = self.family;
        let part = self.part(address_len(family) as usize)?;
        Some(match family {
            IpFamily::V4 => Ipv4Addr::from(<[u8; 4]>::try_from(part).ok()?).into(),
            IpFamily::V6 => Ipv6Addr::from(<[u8; 16]>::try_from(part).ok()?).into(),
        })
    }

    fn protocol(&mut self) -> Option<Protocol> {
        Protocol::from_number(*self.part(1)?.first()?)
    }

    fn port(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.part(2)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nftables_set_elements_decode_to_the_encoded_members() {
        let (v4, v6): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        let nets = ["10.1.0.0/16", "0.0.0.0/0", "10.1.2.3/32"];
        for ip in [v4, v6] {
            let family = IpFamily::of(ip);
            let mut all = vec![
                (Set::IpvsIps, Member::Address(ip)),
                (Set::ClusterIp, Member::AddressPort(ip, Protocol::Sctp, 9)),
                (
                    Set::LoopBack,
                    Member::AddressPortAddress(ip, Protocol::Udp, 53, ip),
                ),
                (Set::NodePortTcp, Member::Port(30000)),
                (
                    Set::LocalMark,
                    Member::AddressPortMark(ip, Protocol::Tcp, 80, 0x1001),
                ),
            ];
            let nets = match family {
                IpFamily::V4 => nets,
                IpFamily::V6 => ["fd00:1::/64", "::/0", "fd00::2/128"],
            };
            all.extend(nets.map(|net| {
                let net = net.parse().unwrap();
                (
                    Set::LoadBalancerSourceCidr,
                    Member::AddressPortNet(ip, Protocol::Tcp, 80, net),
                )
            }));
            for (set, there) in all {
                let SetElement { set: name, element } = place(set, &there, family);
                let read = member(&name, &element, family);
                assert_eq!(read, Some((set, there)), "{name}");
                let definition = definition_of(&name, family).unwrap();
                let parts = definition.key.iter().map(|part| part.len());
                let len = match definition.key.len() {
                    1 => parts.sum::<usize>(),
                    _ => parts.map(|len| len.next_multiple_of(4)).sum(),
                };
                assert_eq!(element.key.len(), len, "{name}");
            }
        }
        assert_eq!(
            is_of("KUBE-LOAD-BALANCER-SOURCE-CIDR-33", IpFamily::V4),
            None
        );
        assert_eq!(
            is_of("KUBE-LOAD-BALANCER-SOURCE-CIDR-016", IpFamily::V4),
            None
        );
        assert_eq!(is_of("OTHERS", IpFamily::V4), None);
        // The first key is too short. The second has protocol 1 (ICMP), which no Service can have.
        let icmp = [10, 0, 0, 1, 1, 0, 0, 0, 0, 80, 0, 0];
        for key in [&icmp[..3], &icmp] {
            let element = Element::of_set(Bytes::from_slice(key));
            assert_eq!(member("KUBE-CLUSTER-IP", &element, IpFamily::V4), None);
        }
    }
}
