//! Routes of type local. The node receives packets to such a route's destination as its own.

use std::net::IpAddr;

use libc::{RT_TABLE_LOCAL, RT_TABLE_MAIN, RTA_DST, RTA_OIF, RTA_PREFSRC};
use netlink_batch::{Batch, Malformed, NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_core::{Emitable, ParseableParametrized};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteLwEnCapType, RouteMessage, RouteScope,
    RouteType,
};

use crate::Family;
use crate::message::{attributes, push};

/// A route of type local in the table `local`, to an address or a network. The kernel creates such
/// a route for each address of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalRoute {
    /// Kernel index of the route's link.
    pub link: u32,
    /// Destination address, or the first address of the destination network.
    pub address: IpAddr,
    /// Prefix length of the destination.
    pub prefix: u8,
    /// Origin of the route (`RTPROT_*` of linux/rtnetlink.h, or another number), which tells routes
    /// of different programs apart.
    pub protocol: u8,
    /// Source address of the node's own packets to the destination, or `None` for the kernel's
    /// choice. Over IPv4, the kernel then chooses the destination address itself.
    pub source: Option<IpAddr>,
}

impl LocalRoute {
    /// Origin of the routes that the kernel creates for addresses (`RTPROT_KERNEL`).
    pub const KERNEL: u8 = libc::RTPROT_KERNEL;

    /// Returns a route to a single address, without a source address.
    pub fn host(link: u32, address: IpAddr, protocol: u8) -> Self {
        Self {
            link,
            address,
            prefix: Family::of(address).full_prefix(),
            protocol,
            source: None,
        }
    }

    /// Returns true if the destination is a single address.
    pub fn is_host(&self) -> bool {
        self.prefix == Family::of(self.address).full_prefix()
    }

    /// Returns true if `address` is in the route's destination.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (bits, differing) = match (self.address, address) {
            (IpAddr::V4(to), IpAddr::V4(ip)) => (32, u128::from(u32::from(to) ^ u32::from(ip))),
            (IpAddr::V6(to), IpAddr::V6(ip)) => (128, u128::from(to) ^ u128::from(ip)),
            _ => return false,
        };
        let hosts = bits - u32::from(self.prefix).min(bits);
        differing.checked_shr(hosts).unwrap_or(0) == 0
    }

    /// Appends `RTM_NEWROUTE`, which adds the route, even if another route to the destination
    /// exists. The kernel replies `EEXIST` if this route exists. For IPv6, the kernel also replies
    /// `EEXIST` if an existing route differs only in its source address.
    pub fn push_new(&self, batch: &mut Batch) -> usize {
        let message = RouteNetlinkMessage::NewRoute(self.message());
        push(batch, NLM_F_CREATE, &message)
    }

    /// Appends `RTM_NEWROUTE`, which replaces a route to the same destination, such as a route with
    /// another source address. If there is no such route, the kernel adds the route.
    pub fn push_replace(&self, batch: &mut Batch) -> usize {
        let message = RouteNetlinkMessage::NewRoute(self.message());
        push(batch, NLM_F_CREATE | NLM_F_REPLACE, &message)
    }

    /// Appends `RTM_DELROUTE`, which removes the route. The kernel replies `ESRCH` if the route
    /// does not exist. If `source` is `None`, the kernel removes the route regardless of its source
    /// address.
    pub fn push_del(&self, batch: &mut Batch) -> usize {
        push(batch, 0, &RouteNetlinkMessage::DelRoute(self.message()))
    }

    fn message(&self) -> RouteMessage {
        let family = Family::of(self.address);
        let mut message = request(family, self.protocol);
        message.header.destination_prefix_length = self.prefix;
        if family == Family::Inet {
            // With scope host, the kernel accepts an IPv4 route on a link that is down. IPv6
            // routes have no scope.
            message.header.scope = RouteScope::Host;
        }
        message.attributes = vec![
            RouteAttribute::Destination(self.address.into()),
            RouteAttribute::Oif(self.link),
        ];
        let source = self.source.map(|ip| RouteAttribute::PrefSource(ip.into()));
        message.attributes.extend(source);
        message
    }

    /// Parses a message without its `nlmsghdr`. Returns `None` if the message is no local route, or
    /// has another family or origin.
    pub(crate) fn parse(
        payload: &[u8],
        family: Family,
        protocol: u8,
    ) -> Result<Option<Self>, Malformed> {
        let header = RouteHeader::parse(payload)?;
        let wanted = RouteHeader {
            address_family: family.number(),
            table: RT_TABLE_LOCAL,
            protocol: protocol.into(),
            kind: RouteType::Local,
            ..header.clone()
        };
        if header != wanted {
            return Ok(None);
        }
        let context = (header.address_family, header.kind, RouteLwEnCapType::None);
        let (mut address, mut link, mut source) = (None, None, None);
        let kinds = [RTA_DST, RTA_OIF, RTA_PREFSRC];
        for attribute in attributes(payload, header.buffer_len(), &kinds) {
            match RouteAttribute::parse_with_param(&attribute?, context)? {
                RouteAttribute::Destination(to) => address = ip(&to),
                RouteAttribute::PrefSource(from) => source = ip(&from),
                RouteAttribute::Oif(index) => link = Some(index),
                _ => {}
            }
        }
        Ok(address.zip(link).map(|(address, link)| Self {
            link,
            address,
            prefix: header.destination_prefix_length,
            protocol,
            source,
        }))
    }
}

/// Destination of a route in the table `main`. The route may have any type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MainRoute {
    /// Kernel index of the route's link. `None` if the route has no link or several links.
    pub link: Option<u32>,
    /// First address of the destination.
    pub address: IpAddr,
    /// Prefix length of the destination.
    pub prefix: u8,
}

impl MainRoute {
    /// Parses a message without its `nlmsghdr`. Returns `None` for a route in another table, of
    /// another family, or without a destination (a default route).
    pub(crate) fn parse(payload: &[u8], family: Family) -> Result<Option<Self>, Malformed> {
        let header = RouteHeader::parse(payload)?;
        if header.table != RT_TABLE_MAIN || header.address_family != family.number() {
            return Ok(None);
        }
        let context = (header.address_family, header.kind, RouteLwEnCapType::None);
        let (mut address, mut link) = (None, None);
        for attribute in attributes(payload, header.buffer_len(), &[RTA_DST, RTA_OIF]) {
            match RouteAttribute::parse_with_param(&attribute?, context)? {
                RouteAttribute::Destination(to) => address = ip(&to),
                RouteAttribute::Oif(index) => link = Some(index),
                _ => {}
            }
        }
        Ok(address.map(|address| Self {
            link,
            address,
            prefix: header.destination_prefix_length,
        }))
    }

    /// Returns the request for a dump of all routes in the table `main`.
    pub(crate) fn request(family: Family) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = family.number();
        message.header.table = RT_TABLE_MAIN;
        message
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(four) => Some(IpAddr::V4(*four)),
        RouteAddress::Inet6(six) => Some(IpAddr::V6(*six)),
        _ => None,
    }
}

/// Returns the request for a dump of all local routes with this origin.
pub(crate) fn request(family: Family, protocol: u8) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family.number();
    message.header.table = RT_TABLE_LOCAL;
    message.header.protocol = protocol.into();
    message.header.kind = RouteType::Local;
    message
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Checks the bytes of a request against `struct rtmsg` and its attributes in
    /// linux/rtnetlink.h.
    #[test]
    fn route_requests_have_the_kernels_layout() {
        let route = |address| LocalRoute::host(7, address, 107);
        let mut batch = Batch::new();
        route([10, 96, 0, 1].into()).push_new(&mut batch);
        route(IpAddr::from([0xfd; 16])).push_del(&mut batch);
        let message = |index| batch.get(index).unwrap();
        // An attribute's header has length and kind, in host byte order.
        let head = |length: u16, kind: u16| [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        let link = [head(8, 4), 7_u32.to_ne_bytes().to_vec()].concat();
        let four = [2, 32, 0, 0, 255, 107, 254, 2, 0, 0, 0, 0];
        let four = [&four[..], &head(8, 1), &[10, 96, 0, 1], &link].concat();
        assert_eq!((message(0).kind, message(0).flags), (24, 0x401));
        assert_eq!(message(0).payload, four);
        let six = [10, 128, 0, 0, 255, 107, 0, 2, 0, 0, 0, 0];
        let six = [&six[..], &head(20, 1), &[0xfd; 16], &link].concat();
        assert_eq!((message(1).kind, message(1).flags), (25, 1));
        assert_eq!(message(1).payload, six);
        let range = LocalRoute {
            prefix: 12,
            source: Some([172, 35, 0, 100].into()),
            ..route([10, 96, 0, 0].into())
        };
        let mut batch = Batch::new();
        range.push_new(&mut batch);
        let four = [2, 12, 0, 0, 255, 107, 254, 2, 0, 0, 0, 0];
        let four = [&four[..], &head(8, 1), &[10, 96, 0, 0], &link].concat();
        let four = [&four[..], &head(8, 7), &[172, 35, 0, 100]].concat();
        assert_eq!(batch.get(0).unwrap().payload, four);
    }

    #[test]
    fn a_route_contains_the_addresses_of_its_prefix() {
        let range = |address: IpAddr, prefix| LocalRoute {
            prefix,
            ..LocalRoute::host(7, address, 107)
        };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let four = range(ip("10.96.0.0"), 12);
        assert!(four.contains(ip("10.111.255.255")) && !four.contains(ip("10.112.0.0")));
        assert!(!four.contains(ip("fd96::1")));
        let six = range(ip("fd96::"), 112);
        assert!(six.contains(ip("fd96::ffff")) && !six.contains(ip("fd96::1:0")));
        let host = range(ip("10.96.0.1"), 32);
        assert!(host.contains(ip("10.96.0.1")) && !host.contains(ip("10.96.0.0")));
        assert!(range(ip("::"), 0).contains(ip("fd96::1")));
    }

    #[test]
    fn routes_with_a_foreign_protocol_or_ip_family_are_ignored() {
        let route = LocalRoute::host(7, [10, 96, 0, 1].into(), 107);
        let range = LocalRoute {
            address: [10, 96, 0, 0].into(),
            prefix: 12,
            source: Some([172, 35, 0, 100].into()),
            ..route
        };
        let mut batch = Batch::new();
        route.push_new(&mut batch);
        range.push_new(&mut batch);
        let payload = batch.get(0).unwrap().payload;
        let parse = |payload: &[u8]| LocalRoute::parse(payload, Family::Inet, 107);
        assert_eq!(parse(payload), Ok(Some(route)));
        assert_eq!(parse(batch.get(1).unwrap().payload), Ok(Some(range)));
        assert_eq!(LocalRoute::parse(payload, Family::Inet, 2), Ok(None));
        assert_eq!(LocalRoute::parse(payload, Family::Inet6, 107), Ok(None));
        // The first case changes the table of the route. The second case changes its type.
        for (at, value) in [(4, 254), (7, 1)] {
            let mut other = payload.to_vec();
            other[at] = value;
            assert_eq!(parse(&other), Ok(None));
        }
        assert_eq!(parse(&payload[..20]), Ok(None));
        assert!(parse(&payload[..11]).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_the_route_decoder(payload in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = LocalRoute::parse(&payload, Family::Inet, 107);
        }

        #[test]
        fn arbitrary_attributes_never_panic_the_route_decoder(rest in proptest::collection::vec(any::<u8>(), 0..64)) {
            let payload = [&[10, 128, 0, 0, 255, 107, 0, 2, 0, 0, 0, 0][..], &rest].concat();
            let _ = LocalRoute::parse(&payload, Family::Inet6, 107);
        }
    }
}
