//! Receives the kernel's notifications about links and addresses (the multicast groups of
//! rtnetlink(7)).

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use libc::{
    RTM_DELADDR, RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR,
    RTNLGRP_LINK,
};
use netlink_batch::{Malformed, Message};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use socket2::{SockFilter, SockRef};

use crate::{Address, Link};

/// A change that the kernel has reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A link has got an address, or an address has changed.
    AddressAdded(Address),
    /// A link has lost an address.
    AddressRemoved(Address),
    /// A link was created, or a link has changed.
    Link(Link),
    /// A link was deleted.
    LinkRemoved(Link),
    /// The kernel dropped notifications (`ENOBUFS`), or a notification was malformed. Any link or
    /// address may have changed.
    Lost,
}

/// A subscription to changes of links and addresses, in the network namespace of the thread that
/// opened it. Its calls never block, so the caller waits until the descriptor is readable before it
/// calls `receive`.
#[derive(Debug)]
pub struct Subscription(Socket);

impl Subscription {
    /// Subscribes to changes of links and addresses, with a receive buffer of `room` bytes or of
    /// the kernel's maximum size. A notification needs about 800 bytes. A size above
    /// `net.core.rmem_max` needs `CAP_NET_ADMIN` in the initial user namespace.
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be opened.
    pub fn open(room: usize) -> io::Result<Self> {
        let groups = [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];
        netlink_batch::subscribe(NETLINK_ROUTE, &groups, room).map(Self)
    }

    /// Makes the kernel skip notifications about addresses that programs add to this link. Replaces
    /// an earlier filter. Notifications about removed addresses still arrive.
    ///
    /// # Errors
    ///
    /// Fails if the kernel accepts no filter, for example under a seccomp profile. All
    /// notifications then arrive as before.
    pub fn leave_out_added_to(&self, link: u32) -> io::Result<()> {
        SockRef::from(&self.0).attach_filter(&not_added_to(link))
    }

    /// Returns the notifications in the next datagram.
    ///
    /// # Errors
    ///
    /// Returns `WouldBlock` if there is no datagram. After any other error, no more notifications
    /// arrive.
    pub fn receive(&self) -> io::Result<Vec<Event>> {
        match self.0.recv_from_full() {
            Ok((datagram, _)) => Ok(events(&datagram)),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(vec![Event::Lost]),
            Err(error) => Err(error),
        }
    }
}

impl AsRawFd for Subscription {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Returns a filter (classic BPF, linux/filter.h) that drops the notifications about addresses
/// added to one link.
///
/// A notification is one message: a `struct nlmsghdr` with the type at offset 4, and a `struct
/// ifaddrmsg` with the link's index at offset 20. BPF loads words in big-endian order.
fn not_added_to(link: u32) -> [SockFilter; 6] {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let added = u16::from_be_bytes(RTM_NEWADDR.to_ne_bytes());
    [
        SockFilter::new(LOAD_HALF, 0, 0, 4),
        SockFilter::new(JUMP_IF_EQUAL, 0, 3, added.into()),
        SockFilter::new(LOAD_WORD, 0, 0, 20),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, link.to_be()),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
}

/// Parses the notifications in a datagram.
pub(crate) fn events(datagram: &[u8]) -> Vec<Event> {
    let messages = netlink_batch::messages(datagram);
    messages
        .filter_map(|message| {
            // A malformed message may report any change.
            let event = message.and_then(event);
            event.unwrap_or(Some(Event::Lost))
        })
        .collect()
}

fn event(message: Message<'_>) -> Result<Option<Event>, Malformed> {
    let payload = message.payload;
    Ok(match message.kind {
        RTM_NEWADDR => Address::parse(payload)?.map(Event::AddressAdded),
        RTM_DELADDR => Address::parse(payload)?.map(Event::AddressRemoved),
        RTM_NEWLINK => Some(Event::Link(Link::parse(payload)?)),
        RTM_DELLINK => Some(Event::LinkRemoved(Link::parse(payload)?)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use netlink_packet_core::{NetlinkHeader, NetlinkMessage};
    use netlink_packet_route::RouteNetlinkMessage;
    use netlink_packet_route::address::{AddressAttribute, AddressMessage};
    use proptest::prelude::*;

    use super::*;
    use crate::LinkState;

    fn datagram(index: u32, address: &str) -> Vec<u8> {
        let mut message = AddressMessage::default();
        message.header.family = netlink_packet_route::AddressFamily::Inet;
        message.header.prefix_len = 24;
        message.header.index = index;
        message
            .attributes
            .push(AddressAttribute::Address(address.parse().unwrap()));
        let mut message = NetlinkMessage::new(
            NetlinkHeader::default(),
            RouteNetlinkMessage::NewAddress(message).into(),
        );
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn removed(index: u32, address: &str) -> Vec<u8> {
        let mut bytes = datagram(index, address);
        bytes[4..6].copy_from_slice(&RTM_DELADDR.to_ne_bytes());
        bytes
    }

    fn link(kind: u16, index: u32, flags: u32) -> Vec<u8> {
        let mut bytes = vec![0; 36];
        bytes[..4].copy_from_slice(&36_u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[20..24].copy_from_slice(&index.to_ne_bytes());
        bytes[24..28].copy_from_slice(&flags.to_ne_bytes());
        // The message ends with an attribute that has no payload (length 4).
        bytes[32..34].copy_from_slice(&4_u16.to_ne_bytes());
        bytes
    }

    fn address(link: u32, address: &str) -> Address {
        Address {
            link,
            address: address.parse().unwrap(),
            prefix: 24,
        }
    }

    #[test]
    fn each_message_of_a_datagram_is_an_event() {
        let datagram = [
            datagram(7, "10.96.0.1"),
            removed(2, "192.168.0.1"),
            link(RTM_NEWLINK, 8, 1),
            link(RTM_DELLINK, 9, 0),
            link(RTM_NEWADDR + 8, 9, 0),
        ];
        let seen = |index, state| Link {
            index,
            state,
            resolves_neighbours: true,
            kind: String::new(),
        };
        let told = [
            Event::AddressAdded(address(7, "10.96.0.1")),
            Event::AddressRemoved(address(2, "192.168.0.1")),
            Event::Link(seen(8, LinkState::Up)),
            Event::LinkRemoved(seen(9, LinkState::Down)),
        ];
        assert_eq!(events(&datagram.concat()), told);
    }

    #[test]
    fn an_unreadable_message_counts_as_lost_events() {
        assert_eq!(events(b"nonsense"), [Event::Lost]);
        let mut lying = link(RTM_NEWLINK, 8, 1);
        lying[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(events(&lying), [Event::Lost]);
        // The parser still reads the message that follows the malformed message.
        let mut odd = datagram(7, "10.96.0.1");
        odd[24] = 7;
        let all = [odd, removed(2, "192.168.0.1")].concat();
        assert_eq!(
            events(&all),
            [
                Event::Lost,
                Event::AddressRemoved(address(2, "192.168.0.1"))
            ]
        );
    }

    #[test]
    fn the_socket_filter_drops_only_events_of_addresses_added_to_its_link() {
        // The kernel runs such a filter on any kind of socket, so a Unix socket can test it.
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        receiver.set_nonblocking(true).unwrap();
        let filter = not_added_to(7);
        SockRef::from(&receiver).attach_filter(&filter).unwrap();
        let comes = |bytes: &[u8]| {
            sender.send(bytes).unwrap();
            receiver.recv(&mut [0; 512]).is_ok()
        };
        assert!(!comes(&datagram(7, "10.96.0.1")));
        assert!(comes(&datagram(2, "192.168.0.1")));
        assert!(comes(&removed(7, "10.96.0.1")));
        assert!(comes(&link(RTM_DELLINK, 7, 0)));
    }

    proptest! {
        #[test]
        fn arbitrary_datagrams_never_panic_the_event_decoder(datagram in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = events(&datagram);
        }

        #[test]
        fn arbitrary_messages_never_panic_the_event_decoder(
            kind in 16_u16..22, payload in proptest::collection::vec(any::<u8>(), 0..128),
        ) {
            let mut batch = netlink_batch::Batch::new();
            batch.push(kind, 0, |message| message.bytes(&payload));
            let message = batch.get(0).unwrap();
            let _ = event(message);
        }
    }
}
