//! Routes of type local. A local route makes an address one of the node's own.

use std::net::IpAddr;

use libc::{RT_TABLE_LOCAL, RTA_DST, RTA_OIF, RTA_PREFSRC};
use netlink_batch::{Batch, Malformed, NLM_F_CREATE};
use netlink_packet_core::{Emitable, ParseableParametrized};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteLwEnCapType, RouteMessage, RouteScope,
    RouteType,
};

use crate::Family;
use crate::message::{attributes, push};

/// A route of type local to one address, in the table `local`. The kernel creates one for each
/// address of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalRoute {
    /// The index of the link.
    pub link: u32,
    /// The address.
    pub address: IpAddr,
    /// Origin of the route, `RTPROT_*` of linux/rtnetlink.h or another number.
    pub protocol: u8,
    /// Source of the node's own packets to the destination, if not the kernel's choice.
    pub source: Option<IpAddr>,
}

impl LocalRoute {
    /// Origin of routes that the kernel creates for an address (`RTPROT_KERNEL`).
    pub const KERNEL: u8 = libc::RTPROT_KERNEL;

    /// Appends `RTM_NEWROUTE`, which adds the route, even if another route to the address exists.
    /// `EEXIST` if this route exists.
    pub fn push_new(&self, batch: &mut Batch) -> usize {
        let message = RouteNetlinkMessage::NewRoute(self.message());
        push(batch, NLM_F_CREATE, &message)
    }

    /// Appends `RTM_DELROUTE`, which removes the route. `ESRCH` if the route does not exist.
    pub fn push_del(&self, batch: &mut Batch) -> usize {
        push(batch, 0, &RouteNetlinkMessage::DelRoute(self.message()))
    }

    fn message(&self) -> RouteMessage {
        let family = Family::of(self.address);
        let mut message = request(family, self.protocol);
        message.header.destination_prefix_length = family.full_prefix();
        if family == Family::Inet {
            // With scope host, the kernel accepts a route on a link that is down. IPv6 has no
            // scopes.
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

    /// Parses a message after its `nlmsghdr`. Returns `None` unless the message is a route to a
    /// single address of this family, with this origin.
    pub(crate) fn parse(
        payload: &[u8],
        family: Family,
        protocol: u8,
    ) -> Result<Option<Self>, Malformed> {
        let header = RouteHeader::parse(payload)?;
        let wanted = RouteHeader {
            address_family: family.number(),
            destination_prefix_length: family.full_prefix(),
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
        for attribute in attributes(
            payload,
            header.buffer_len(),
            &[RTA_DST, RTA_OIF, RTA_PREFSRC],
        ) {
            match RouteAttribute::parse_with_param(&attribute?, context)? {
                RouteAttribute::Destination(RouteAddress::Inet(four)) => {
                    address = Some(IpAddr::V4(four));
                }
                RouteAttribute::Destination(RouteAddress::Inet6(six)) => {
                    address = Some(IpAddr::V6(six));
                }
                RouteAttribute::PrefSource(RouteAddress::Inet(four)) => {
                    source = Some(IpAddr::V4(four));
                }
                RouteAttribute::PrefSource(RouteAddress::Inet6(six)) => {
                    source = Some(IpAddr::V6(six));
                }
                RouteAttribute::Oif(index) => link = Some(index),
                _ => {}
            }
        }
        Ok(address.zip(link).map(|(address, link)| Self {
            link,
            address,
            protocol,
            source,
        }))
    }
}

/// Returns the request for all routes with this origin.
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

    /// Checks `struct rtmsg` and its attributes against the layout in linux/rtnetlink.h.
    #[test]
    fn route_requests_have_the_kernels_layout() {
        let route = |address| LocalRoute {
            link: 7,
            address,
            protocol: 107,
            source: None,
        };
        let mut batch = Batch::new();
        route([10, 96, 0, 1].into()).push_new(&mut batch);
        route(IpAddr::from([0xfd; 16])).push_del(&mut batch);
        let message = |index| batch.get(index).unwrap();
        let link = [&[8, 0, 4, 0][..], &7_u32.to_ne_bytes()].concat();
        let four = [2, 32, 0, 0, 255, 107, 254, 2, 0, 0, 0, 0];
        let four = [&four[..], &[8, 0, 1, 0, 10, 96, 0, 1], &link].concat();
        assert_eq!((message(0).kind, message(0).flags), (24, 0x401));
        assert_eq!(message(0).payload, four);
        let six = [10, 128, 0, 0, 255, 107, 0, 2, 0, 0, 0, 0];
        let six = [&six[..], &[20, 0, 1, 0], &[0xfd; 16], &link].concat();
        assert_eq!((message(1).kind, message(1).flags), (25, 1));
        assert_eq!(message(1).payload, six);
    }

    #[test]
    fn routes_of_another_protocol_or_family_are_ignored() {
        let route = LocalRoute {
            link: 7,
            address: [10, 96, 0, 1].into(),
            protocol: 107,
            source: None,
        };
        let mut batch = Batch::new();
        route.push_new(&mut batch);
        let payload = batch.get(0).unwrap().payload;
        let parse = |payload: &[u8]| LocalRoute::parse(payload, Family::Inet, 107);
        assert_eq!(parse(payload), Ok(Some(route)));
        assert_eq!(LocalRoute::parse(payload, Family::Inet, 2), Ok(None));
        assert_eq!(LocalRoute::parse(payload, Family::Inet6, 107), Ok(None));
        // The route leads to a network, is in another table, or has another type.
        for (at, value) in [(1, 24), (4, 254), (7, 1)] {
            let mut other = payload.to_vec();
            other[at] = value;
            assert_eq!(parse(&other), Ok(None));
        }
        assert_eq!(parse(&payload[..20]), Ok(None));
        assert!(parse(&payload[..11]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_route_decoder(payload in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = LocalRoute::parse(&payload, Family::Inet, 107);
        }

        #[test]
        fn no_attributes_panic_the_route_decoder(rest in proptest::collection::vec(any::<u8>(), 0..64)) {
            let payload = [&[10, 128, 0, 0, 255, 107, 0, 2, 0, 0, 0, 0][..], &rest].concat();
            let _ = LocalRoute::parse(&payload, Family::Inet6, 107);
        }
    }
}
