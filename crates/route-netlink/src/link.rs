//! Network links, and the netlink messages about them.

use libc::{IFLA_INFO_KIND, IFLA_LINKINFO};
use netlink_batch::Malformed;
use netlink_packet_core::{Emitable, Parseable};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoKind, LinkAttribute, LinkFlags, LinkHeader,
    LinkInfo, LinkMessage,
};

use crate::message::attributes;

/// A network link, as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Kernel index of the link. No other link gets this index while the link exists.
    pub index: u32,
    /// Administrative state of the link.
    pub state: LinkState,
    /// True if the link resolves its neighbours' addresses, which means that it lacks `IFF_NOARP`.
    /// False for a dummy link.
    pub resolves_neighbours: bool,
    /// Link type (`IFLA_INFO_KIND`), such as `dummy` or `veth`. Empty for a hardware link.
    pub kind: String,
}

/// Administrative state of a link (`IFF_UP`). This state does not depend on the carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// The link is set up (`ip link set up`).
    Up,
    /// The link is set down (`ip link set down`). Its addresses are local to the node nevertheless.
    Down,
}

/// Method by which the kernel generates the link-local IPv6 address of a link when the link is set
/// up (`IN6_ADDR_GEN_MODE_*` of linux/if_link.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressGeneration {
    /// The kernel derives the address from the hardware address. This is the default.
    Eui64,
    /// The kernel generates no link-local address.
    None,
}

impl Link {
    /// Parses a message without its `nlmsghdr`.
    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let header = LinkHeader::parse(payload)?;
        let mut kind = String::new();
        for info in attributes(payload, header.buffer_len(), &[IFLA_LINKINFO]) {
            for part in attributes(info?.value(), 0, &[IFLA_INFO_KIND]) {
                kind = InfoKind::parse(&part?)?.to_string();
            }
        }
        let state = if header.flags.contains(LinkFlags::Up) {
            LinkState::Up
        } else {
            LinkState::Down
        };
        Ok(Self {
            index: header.index,
            state,
            resolves_neighbours: !header.flags.contains(LinkFlags::Noarp),
            kind,
        })
    }
}

/// Returns a message that names a link. Shortens a very long name to a length that the kernel also
/// rejects as too long.
pub(crate) fn named(name: &str) -> LinkMessage {
    const ENOUGH: usize = libc::IFNAMSIZ;
    let mut message = LinkMessage::default();
    let name = name.chars().take(ENOUGH).collect();
    message.attributes.push(LinkAttribute::IfName(name));
    message
}

pub(crate) fn dummy(name: &str) -> LinkMessage {
    let mut message = named(name);
    let kind = vec![LinkInfo::Kind(InfoKind::Dummy)];
    message.attributes.push(LinkAttribute::LinkInfo(kind));
    message
}

pub(crate) fn in_state(name: &str, state: LinkState) -> LinkMessage {
    let mut message = named(name);
    message.header.change_mask = LinkFlags::Up;
    if state == LinkState::Up {
        message.header.flags = LinkFlags::Up;
    }
    message
}

pub(crate) fn generating(name: &str, generation: AddressGeneration) -> LinkMessage {
    let mut message = named(name);
    let mode = AfSpecInet6::AddrGenMode(match generation {
        AddressGeneration::Eui64 => In6AddrGenMode::Eui64,
        AddressGeneration::None => In6AddrGenMode::None,
    });
    let families = vec![AfSpecUnspec::Inet6(vec![mode])];
    let families = LinkAttribute::AfSpecUnspec(families);
    message.attributes.push(families);
    message
}

#[cfg(test)]
mod tests {
    use netlink_batch::Batch;
    use proptest::prelude::*;

    use super::*;

    fn payload(flags: u32, attributes: impl FnOnce(&mut netlink_batch::Writer<'_>)) -> Vec<u8> {
        let mut batch = Batch::new();
        batch.push(0, 0, |message| {
            message.bytes(&[0; 4]);
            message.bytes(&7_u32.to_ne_bytes());
            message.bytes(&flags.to_ne_bytes());
            message.bytes(&[0; 4]);
            attributes(message);
        });
        batch.get(0).unwrap().payload.to_vec()
    }

    #[test]
    fn a_link_message_decodes_to_index_state_and_kind() {
        let hardware = Link {
            index: 7,
            state: LinkState::Down,
            resolves_neighbours: false,
            kind: String::new(),
        };
        // The flags are IFF_BROADCAST and IFF_NOARP.
        assert_eq!(Link::parse(&payload(0x82, |_| {})), Ok(hardware));
        let dummy = payload(0x83, |message| {
            message.nest(IFLA_LINKINFO, |info| {
                info.attr_str(IFLA_INFO_KIND, "dummy");
                // IFLA_INFO_DATA, with the data of another link type.
                info.attr(2, &[1]);
            });
        });
        let dummy = Link::parse(&dummy).unwrap();
        assert_eq!((&*dummy.kind, dummy.state), ("dummy", LinkState::Up));
        assert!(
            Link::parse(&payload(1, |_| {}))
                .unwrap()
                .resolves_neighbours
        );
        let new = payload(0, |message| {
            message.nest(IFLA_LINKINFO, |info| {
                info.attr_str(IFLA_INFO_KIND, "brandnew");
            });
        });
        assert_eq!(Link::parse(&new).unwrap().kind, "brandnew");
        assert!(Link::parse(&[0; 15]).is_err());
    }

    #[test]
    fn unused_link_attributes_are_ignored_even_if_invalid() {
        let odd = payload(1, |message| {
            message.attr(libc::IFLA_IFNAME, &[0xff, 0xfe]);
            message.attr(libc::IFLA_MTU, &[0; 8]);
        });
        assert_eq!(Link::parse(&odd).unwrap().state, LinkState::Up);
    }

    #[test]
    fn a_very_long_link_name_is_cut_to_16_bytes() {
        let message = named(&"x".repeat(100_000));
        let LinkAttribute::IfName(name) = &message.attributes[0] else {
            panic!("{message:?}");
        };
        assert_eq!(name.len(), 16);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_the_link_decoder(payload in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Link::parse(&payload);
        }

        #[test]
        fn arbitrary_link_info_never_panics_the_link_decoder(part in proptest::collection::vec(any::<u8>(), 0..32)) {
            let _ = Link::parse(&payload(0, |message| message.attr(IFLA_LINKINFO, &part)));
        }
    }
}
