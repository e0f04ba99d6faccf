//! Queries the kernel for the route of one packet.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};

use libc::{EHOSTUNREACH, EINVAL, ENETUNREACH, EXDEV, RTA_GATEWAY, RTA_OIF, RTA_PREFSRC};
use netlink_batch::{Error, Malformed, Refusal};
use netlink_packet_core::{Emitable, ParseableParametrized};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteLwEnCapType, RouteMessage, RouteType,
};

use crate::Family;
use crate::message::attributes;

/// Returns the source address that the kernel chooses for packets to other hosts. If `own` lacks
/// this address, returns the lowest address of this family in `own`, if any. Sends no packet.
pub fn outward_source(family: Family, own: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let (any, far) = match family {
        Family::Inet => ("0.0.0.0:0", ["198.18.0.1:9", "203.0.113.1:9", "8.8.8.8:9"]),
        Family::Inet6 => (
            "[::]:0",
            ["[2001:2::1]:9", "[3fff::1]:9", "[2001:4860:4860::8888]:9"],
        ),
    };
    let source = |far| {
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(far).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let mut sources = far.into_iter().filter_map(source);
    let chosen = sources.find(|ip| own.contains(ip));
    chosen.or_else(|| own.iter().find(|ip| Family::of(**ip) == family).copied())
}

/// A packet whose route the kernel should look up (`RTM_GETROUTE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// Destination address of the packet.
    pub destination: IpAddr,
    /// Source address of the packet, or `None` for the kernel's choice. If this node sends the
    /// packet, the address must be one of the node's addresses.
    pub source: Option<IpAddr>,
    /// Kernel index of the link on which the packet arrives, or `None` if this node sends the
    /// packet. For an arriving packet, the kernel also checks the source.
    pub link: Option<u32>,
    /// Firewall mark of the packet, which policy routing may match.
    pub mark: u32,
}

/// The route that the kernel chooses for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PacketRoute {
    /// Type of the route (`RTN_*` of linux/rtnetlink.h): 1 to another host, 2 to this node, 3
    /// broadcast, 5 multicast, 6 dropped, 7 and 8 refused.
    pub kind: u8,
    /// Kernel index of the outgoing link, if any.
    pub link: Option<u32>,
    /// Next hop, or `None` if the destination is directly on the link.
    pub gateway: Option<IpAddr>,
    /// Source address that the kernel chooses for packets of this node, or `None` if the kernel
    /// reports no source address.
    pub source: Option<IpAddr>,
}

/// Reason why the kernel has no route for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouteRefusal {
    /// No route matches the packet (`ENETUNREACH`).
    NoRoute,
    /// The packet is for another host, and this node does not forward packets; or a route refuses
    /// the packet (`EHOSTUNREACH`).
    NotForwarded,
    /// The packet must not arrive on this link, because the route to its source uses another link
    /// (sysctl `rp_filter`, error `EXDEV`).
    WrongLink,
    /// The arriving packet has an invalid source or destination (`EINVAL`): a loopback address, or
    /// an address of this node as the source.
    Martian,
    /// The kernel refused the lookup for another reason, with this error number.
    Other(i32),
}

impl RouteRefusal {
    /// Returns the reason in a refusal which means that the kernel has no route for the packet.
    /// Returns `None` for any other refusal.
    pub(crate) fn of(refusal: &Refusal) -> Option<Self> {
        Some(match refusal.errno {
            ENETUNREACH => Self::NoRoute,
            EHOSTUNREACH => Self::NotForwarded,
            EXDEV => Self::WrongLink,
            EINVAL => Self::Martian,
            errno @ (libc::EACCES | libc::ESRCH) => Self::Other(errno),
            _ => return None,
        })
    }
}

impl Lookup {
    pub(crate) fn message(&self) -> RouteMessage {
        let family = Family::of(self.destination);
        let mut message = RouteMessage::default();
        message.header.address_family = family.number();
        message.header.destination_prefix_length = family.full_prefix();
        message
            .attributes
            .push(RouteAttribute::Destination(self.destination.into()));
        if let Some(source) = self.source {
            message.header.source_prefix_length = family.full_prefix();
            message
                .attributes
                .push(RouteAttribute::Source(source.into()));
        }
        if let Some(link) = self.link {
            message.attributes.push(RouteAttribute::Iif(link));
        }
        if self.mark != 0 {
            message.attributes.push(RouteAttribute::Mark(self.mark));
        }
        message
    }
}

impl PacketRoute {
    /// Parses a message without its `nlmsghdr`.
    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let header = RouteHeader::parse(payload)?;
        let context = (header.address_family, header.kind, RouteLwEnCapType::None);
        let mut way = Self {
            kind: header.kind.into(),
            link: None,
            gateway: None,
            source: None,
        };
        let kinds = [RTA_GATEWAY, RTA_OIF, RTA_PREFSRC];
        for attribute in attributes(payload, header.buffer_len(), &kinds) {
            match RouteAttribute::parse_with_param(&attribute?, context)? {
                RouteAttribute::Gateway(gateway) => way.gateway = ip(&gateway),
                RouteAttribute::PrefSource(source) => way.source = ip(&source),
                RouteAttribute::Oif(link) => way.link = Some(link),
                _ => {}
            }
        }
        Ok(way)
    }

    /// Returns true if the packet's destination is this node.
    pub fn is_local(&self) -> bool {
        self.kind == u8::from(RouteType::Local)
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(four) => Some(IpAddr::V4(*four)),
        RouteAddress::Inet6(six) => Some(IpAddr::V6(*six)),
        _ => None,
    }
}

/// Converts an error which means that the kernel has no route into its reason. Returns any other
/// error unchanged.
pub(crate) fn answer(error: Error) -> Result<RouteRefusal, Error> {
    match error {
        Error::Refused(refusal) => RouteRefusal::of(&refusal).ok_or(Error::Refused(refusal)),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use netlink_batch::Batch;
    use netlink_packet_route::RouteNetlinkMessage;
    use proptest::prelude::*;

    use super::*;

    /// Checks the bytes of a request against `struct rtmsg` and its attributes in
    /// linux/rtnetlink.h.
    #[test]
    fn lookup_requests_have_the_kernels_layout() {
        let lookup = Lookup {
            destination: [10, 96, 0, 1].into(),
            source: Some([10, 0, 0, 2].into()),
            link: Some(7),
            mark: 0x4000,
        };
        let mut batch = Batch::new();
        let message = RouteNetlinkMessage::GetRoute(lookup.message());
        crate::message::push(&mut batch, 0, &message);
        let sent = batch.get(0).unwrap();
        assert_eq!(sent.kind, libc::RTM_GETROUTE);
        let attribute = |kind: u16, value: [u8; 4]| {
            [&8_u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value].concat()
        };
        let expected = [
            vec![2, 32, 32, 0],
            sent.payload[4..12].to_vec(),
            attribute(libc::RTA_DST, [10, 96, 0, 1]),
            attribute(libc::RTA_SRC, [10, 0, 0, 2]),
            attribute(libc::RTA_IIF, 7_u32.to_ne_bytes()),
            attribute(libc::RTA_MARK, 0x4000_u32.to_ne_bytes()),
        ];
        assert_eq!(sent.payload, expected.concat());
        assert_eq!(sent.payload[8..12], [0; 4], "no flags");
    }

    #[test]
    fn route_refusals_are_distinguished_from_errors() {
        let refused = |errno| Refusal {
            errno,
            message: None,
            request: Vec::new(),
        };
        assert_eq!(
            RouteRefusal::of(&refused(EXDEV)),
            Some(RouteRefusal::WrongLink)
        );
        assert_eq!(RouteRefusal::of(&refused(libc::EPERM)), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_the_lookup_decoder(payload in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = PacketRoute::parse(&payload);
        }
    }
}
