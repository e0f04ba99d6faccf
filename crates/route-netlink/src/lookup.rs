//! One question to the kernel's routing: which way does a packet take?

use std::net::IpAddr;

use libc::{EHOSTUNREACH, EINVAL, ENETUNREACH, EXDEV, RTA_GATEWAY, RTA_OIF, RTA_PREFSRC};
use netlink_batch::{Error, Malformed, Refusal};
use netlink_packet_core::{Emitable, ParseableParametrized};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteLwEnCapType, RouteMessage, RouteType,
};

use crate::Family;
use crate::message::attributes;

/// What is asked (`RTM_GETROUTE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// To where.
    pub destination: IpAddr,
    /// From where. Of what this node sends, one of its own addresses.
    pub source: Option<IpAddr>,
    /// The index of the link by which it comes in; none of what this node sends. With a link, the
    /// kernel judges as it does of what comes in: also by its source.
    pub link: Option<u32>,
    /// Its mark, which policy routing may ask for.
    pub mark: u32,
}

/// Which way a packet takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Way {
    /// `RTN_*` of linux/rtnetlink.h: 1 to elsewhere, 2 to this node, 3 to all of a network, 5 to a
    /// group, 6 dropped, 7 and 8 refused.
    pub kind: u8,
    /// The index of the link by which it leaves.
    pub link: Option<u32>,
    /// The neighbour that it is given to; else the destination itself.
    pub gateway: Option<IpAddr>,
    /// The address that the kernel gives what this node sends there.
    pub source: Option<IpAddr>,
}

/// Why there is no way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoWay {
    /// No route leads there (`ENETUNREACH`).
    NoRoute,
    /// It comes in and would leave again, which this node does not let through, or a route refuses it
    /// (`EHOSTUNREACH`).
    NotForwarded,
    /// What comes from there may not come in by that link: another one leads there (`rp_filter`,
    /// `EXDEV`).
    WrongLink,
    /// Source or destination may not be in a packet that comes in: a loopback address, an address of
    /// this node as the source (`EINVAL`).
    Martian,
    /// Another refusal of the kernel, by its number.
    Other(i32),
}

impl NoWay {
    /// A refusal that is an answer; `None` of one that says that it was not understood or not
    /// allowed to be asked.
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

impl Way {
    /// Of a message after its `nlmsghdr`.
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

    /// Whether it leads to this node itself.
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

/// Of what the kernel answers, what is an answer.
pub(crate) fn answer(error: Error) -> Result<NoWay, Error> {
    match error {
        Error::Refused(refusal) => NoWay::of(&refusal).ok_or(Error::Refused(refusal)),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use netlink_batch::Batch;
    use netlink_packet_route::RouteNetlinkMessage;
    use proptest::prelude::*;

    use super::*;

    /// `struct rtmsg` and its attributes, as linux/rtnetlink.h lays them out.
    #[test]
    fn bytes_are_the_kernels() {
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
    fn refusals_are_answers_or_errors() {
        let refused = |errno| Refusal {
            errno,
            message: None,
            request: Vec::new(),
        };
        assert_eq!(NoWay::of(&refused(EXDEV)), Some(NoWay::WrongLink));
        assert_eq!(NoWay::of(&refused(libc::EPERM)), None);
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(payload in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Way::parse(&payload);
        }
    }
}
