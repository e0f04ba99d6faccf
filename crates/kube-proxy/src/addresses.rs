//! What the kernel tells of this node's addresses and of `kube-ipvs0` (rtnetlink multicast groups of rtnetlink(7)), as it
//! happens.
//!
//! ```text
//!   kernel ─BPF─▶ Subscription ─▶ Notices ─▶ AddressChanges::next ─▶ each mode
//! ```
//!
//! What we bind to `kube-ipvs0` comes by the ten thousand, and the kernel leaves it out. Link-local addresses serve no NodePort
//! and do not count. When the kernel had to drop messages, anything may have changed. It should not have to: a task of its own
//! reads them, and there is room for many.

use std::io;
use std::mem;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use netlink_batch::{Connection, Protocol};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use proxy::Notice;
use rustix::net::sockopt;
use socket2::{SockFilter, SockRef};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tracing::debug;

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR` of linux/rtnetlink.h.
const GROUPS: [u32; 3] = [1, 5, 9];

/// Of linux/rtnetlink.h, linux/if_link.h and linux/if.h.
const IFLA_IFNAME: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const IFF_UP: u32 = 1;

/// The link that holds the service addresses.
const SERVICE_LINK: &str = "kube-ipvs0";

/// Room for messages that wait to be read, in bytes; one of them takes about 800.
const ROOM: usize = 8 << 20;

/// More than so many that nobody has asked for yet come to: anything may have changed.
const MOST: usize = 10_000;

/// A subscription to what the kernel tells. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct AddressChanges {
    told: Arc<Told>,
    task: JoinHandle<()>,
}

/// What nobody has asked for yet.
#[derive(Debug)]
struct Told {
    notices: Mutex<io::Result<Vec<Notice>>>,
    wake: Notify,
}

impl AddressChanges {
    /// Subscribes. Must be called within a tokio runtime.
    pub(crate) fn subscribe() -> io::Result<Self> {
        let mut subscription = Subscription::new()?;
        let told = Arc::new(Told {
            notices: Mutex::new(Ok(Vec::new())),
            wake: Notify::new(),
        });
        let heard = Arc::clone(&told);
        let task = tokio::spawn(async move {
            loop {
                let next = subscription.next().await;
                let has_ended = next.is_err();
                heard.add(next);
                if has_ended {
                    return;
                }
            }
        });
        Ok(Self { told, task })
    }

    /// Waits until there is something to tell, and tells all of it. Cancel safe.
    ///
    /// # Errors
    ///
    /// Nothing more can be told.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<Notice>> {
        loop {
            let notices = self.told.take()?;
            if !notices.is_empty() {
                return Ok(notices);
            }
            self.told.wake.notified().await;
        }
    }
}

impl Drop for AddressChanges {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Told {
    fn add(&self, next: io::Result<Vec<Notice>>) {
        let mut told = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut *told, next) {
            (Ok(told), Ok(next)) => {
                told.extend(next);
                if told.len() > MOST {
                    *told = vec![Notice::Anything];
                }
            }
            (told, Err(error)) => *told = Err(error),
            (Err(_), Ok(_)) => {}
        }
        drop(told);
        self.wake.notify_one();
    }

    fn take(&self) -> io::Result<Vec<Notice>> {
        let mut told = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        mem::replace(&mut *told, Ok(Vec::new()))
    }
}

struct Subscription {
    socket: AsyncFd<Socket>,
    /// The link that holds the service addresses, as it was last told or looked up.
    own_link: Option<Link>,
    /// The link that the filter is about.
    unheard: Option<u32>,
}

/// A link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link {
    index: u32,
    is_up: bool,
}

impl Subscription {
    fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
        make_room(&socket);
        socket.bind(&SocketAddr::new(0, 0))?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        #[allow(
            unsafe_code,
            reason = "tokio leaves it to its caller to keep the descriptor open while it is registered"
        )]
        // SAFETY: a Socket owns its descriptor and closes it only when dropped; the AsyncFd owns the Socket, gives it out by
        // shared reference only, and deregisters it before dropping it.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
        let mut subscription = Self {
            socket: socket.map_err(io::Error::from)?,
            own_link: None,
            unheard: None,
        };
        subscription.look_up_own_link();
        Ok(subscription)
    }

    /// Has the kernel leave out what it would tell of addresses that our link is given. They come by the ten thousand at a first
    /// sync, each for nothing.
    fn look_up_own_link(&mut self) {
        self.own_link = link_named(SERVICE_LINK);
        let index = self.own_link.map(|link| link.index);
        if let Some(index) = index.filter(|_| index != self.unheard) {
            match SockRef::from(self.socket.get_ref()).attach_filter(&unheard(index)) {
                Ok(()) => self.unheard = Some(index),
                Err(error) => {
                    debug!(%error, "messages about service addresses are left out one by one");
                }
            }
        }
    }

    /// What there is to tell; never nothing.
    async fn next(&mut self) -> io::Result<Vec<Notice>> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| socket.get_ref().recv_from_full()) {
                Ok(Ok((datagram, _))) => {
                    let notices = self.take(&datagram);
                    if !notices.is_empty() {
                        return Ok(notices);
                    }
                }
                // Messages were dropped (ENOBUFS).
                Ok(Err(error))
                    if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) =>
                {
                    debug!("messages about addresses were lost");
                    self.look_up_own_link();
                    return Ok(vec![Notice::Anything]);
                }
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }

    fn take(&mut self, datagram: &[u8]) -> Vec<Notice> {
        if self.own_link.is_none() {
            self.look_up_own_link();
        }
        let before = self.own_link;
        let notices = notices(datagram, &mut self.own_link);
        if self.own_link.is_none() && before.is_some() {
            // There may be another one by now.
            self.look_up_own_link();
        }
        notices
    }
}

/// As much as may be: beyond `net.core.rmem_max` it takes CAP_NET_ADMIN in the initial user namespace.
fn make_room(socket: &Socket) {
    let is_made = sockopt::set_socket_recv_buffer_size_force(socket, ROOM)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, ROOM));
    if let Err(error) = is_made {
        debug!(%error, "messages about addresses have little room");
    }
}

/// A filter (classic BPF, linux/filter.h) that drops what tells of an address that this link is given. A notification is one
/// message: a header (`struct nlmsghdr`), whose type is at 4, and `struct ifaddrmsg`, whose index is at 20. What is loaded
/// counts as big endian.
fn unheard(index: u32) -> [SockFilter; 6] {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let added = u16::from_be_bytes(RTM_NEWADDR.to_ne_bytes());
    [
        SockFilter::new(LOAD_HALF, 0, 0, 4),
        SockFilter::new(JUMP_IF_EQUAL, 0, 3, added.into()),
        SockFilter::new(LOAD_WORD, 0, 0, 20),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, index.to_be()),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
}

/// The link of this name. Asked over rtnetlink: for a name that it does not know, the ioctl starts modprobe first.
fn link_named(name: &str) -> Option<Link> {
    let mut connection = Connection::open(Protocol::Route).ok()?;
    let answer = connection.request(RTM_GETLINK, 0, |message| {
        // `struct ifinfomsg`.
        message.bytes(&[0; 16]);
        message.attr_str(IFLA_IFNAME, name);
    });
    let answer = answer.ok()?;
    let (_, payload) = answer.iter().next()?;
    Link::read(payload)
}

impl Link {
    /// Of a `struct ifinfomsg`: the index is at 4, the flags are at 8. Its attributes are many, change with the kernel, and do
    /// not matter.
    fn read(payload: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = payload.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_ne_bytes(bytes))
        };
        Some(Self {
            index: word(4)?,
            is_up: word(8)? & IFF_UP != 0,
        })
    }
}

/// What the messages in a datagram tell. `own_link` follows them.
fn notices(mut datagram: &[u8], own_link: &mut Option<Link>) -> Vec<Notice> {
    let mut notices = Vec::new();
    while !datagram.is_empty() {
        if let Some((kind, link, length)) = link_message(datagram) {
            notices.extend(of_link(kind, link, own_link));
            datagram = after(datagram, length);
            continue;
        }
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(datagram) else {
            // What cannot be read may be anything.
            notices.push(Notice::Anything);
            return notices;
        };
        let own_index = own_link.map(|link| link.index);
        match &message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(added))
                if Some(added.header.index) != own_index =>
            {
                notices.extend(address(added).map(Notice::AddressAdded));
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelAddress(removed)) => {
                let told = if Some(removed.header.index) == own_index {
                    Notice::ServiceAddressRemoved
                } else {
                    Notice::AddressRemoved
                };
                notices.extend(address(removed).map(told));
            }
            _ => {}
        }
        datagram = after(datagram, message.header.length);
    }
    notices
}

/// What a message about a link tells: that ours is gone, or was set up or down.
fn of_link(kind: u16, link: Link, own_link: &mut Option<Link>) -> Option<Notice> {
    let own = own_link.as_mut().filter(|own| own.index == link.index)?;
    if kind == RTM_DELLINK {
        *own_link = None;
        return Some(Notice::ServiceLink);
    }
    let was_up = mem::replace(&mut own.is_up, link.is_up);
    (was_up != link.is_up).then_some(Notice::ServiceLink)
}

/// The kind, the link and the length of a message that a datagram begins with, if it tells of a link: a header (`struct
/// nlmsghdr`), and `struct ifinfomsg`.
fn link_message(datagram: &[u8]) -> Option<(u16, Link, u32)> {
    let (header, payload) = datagram.split_at_checked(16)?;
    let [l0, l1, l2, l3, k0, k1, ..] = *header else {
        return None;
    };
    let length = u32::from_ne_bytes([l0, l1, l2, l3]);
    let kind = u16::from_ne_bytes([k0, k1]);
    if !matches!(kind, RTM_NEWLINK | RTM_DELLINK) || length < 32 {
        return None;
    }
    Some((kind, Link::read(payload)?, length))
}

/// What follows a message of this length.
fn after(datagram: &[u8], length: u32) -> &[u8] {
    let length = usize::try_from(length)
        .ok()
        .and_then(|length| length.checked_next_multiple_of(4));
    length
        .and_then(|length| datagram.get(length..))
        .unwrap_or_default()
}

/// The address that a message is about, if it counts. With a peer, the local one is the node's (`IFA_LOCAL`).
fn address(message: &AddressMessage) -> Option<IpAddr> {
    let attributes = message.attributes.iter();
    let local = attributes.clone().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let any = attributes.clone().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    local
        .or(any)
        .filter(|address| !matches!(address, IpAddr::V6(six) if six.is_unicast_link_local()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::NetlinkHeader;
    use netlink_packet_route::AddressFamily as Family;
    use std::os::unix::net::UnixDatagram;

    const RTM_DELADDR: u16 = 21;

    fn datagram(index: u32, address: &str) -> Vec<u8> {
        let mut message = AddressMessage::default();
        message.header.family = Family::Inet;
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

    const OWN: Link = Link {
        index: 7,
        is_up: false,
    };

    fn told(datagram: &[u8]) -> Vec<Notice> {
        notices(datagram, &mut Some(OWN))
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
        bytes
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_told_by_what_they_mean() {
        let node = ip("192.168.0.1");
        let (added, gone) = (Notice::AddressAdded(node), Notice::AddressRemoved(node));
        assert_eq!(told(&datagram(2, "192.168.0.1")), [added]);
        assert_eq!(notices(&datagram(2, "192.168.0.1"), &mut None), [added]);
        assert_eq!(told(&removed(2, "192.168.0.1")), [gone]);
        let unbound = Notice::ServiceAddressRemoved(ip("10.96.0.1"));
        assert_eq!(told(&removed(7, "10.96.0.1")), [unbound]);
        assert_eq!(told(&datagram(7, "10.96.0.1")), []);
        assert_eq!(told(&datagram(2, "fe80::1")), []);
        assert_eq!(told(&removed(7, "fe80::1")), []);
        let all = [datagram(7, "10.96.0.1"), removed(2, "192.168.0.1")].concat();
        assert_eq!(told(&all), [gone]);
        assert_eq!(told(b"nonsense"), [Notice::Anything]);
    }

    #[test]
    fn of_a_link_with_a_peer_the_local_address_counts() {
        let mut message = AddressMessage::default();
        message.attributes = vec![
            AddressAttribute::Address(ip("192.0.2.2")),
            AddressAttribute::Local(ip("192.0.2.1")),
        ];
        assert_eq!(address(&message), Some(ip("192.0.2.1")));
    }

    #[test]
    fn of_links_only_the_end_of_ours_and_whether_it_is_up_matter() {
        assert_eq!(told(&link(RTM_DELLINK, 7, 0)), [Notice::ServiceLink]);
        assert_eq!(told(&link(RTM_DELLINK, 8, 0)), []);
        assert_eq!(notices(&link(RTM_DELLINK, 7, 0), &mut None), []);
        // Carrier and the like.
        assert_eq!(told(&link(RTM_NEWLINK, 7, 0x82)), []);
        let up = link(RTM_NEWLINK, 7, 0x83);
        assert_eq!(told(&up), [Notice::ServiceLink]);
        let twice = [up.clone(), up, link(RTM_NEWLINK, 7, 0x82)].concat();
        assert_eq!(told(&twice), [Notice::ServiceLink; 2]);
        let then = [link(RTM_NEWLINK, 8, 1), datagram(2, "192.168.0.1")].concat();
        assert_eq!(told(&then).len(), 1);
        let mut lying = link(RTM_NEWLINK, 8, 1);
        lying[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(told(&lying), []);
    }

    #[test]
    fn a_link_is_found_by_its_name() {
        let there = link_named("lo").unwrap();
        assert_eq!((there.index, there.is_up), (1, there.is_up));
        assert_eq!(link_named("no-such-link"), None);
    }

    #[test]
    fn the_kernel_leaves_out_what_is_unheard() {
        // The kernel runs the filter on any kind of socket.
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        receiver.set_nonblocking(true).unwrap();
        SockRef::from(&receiver).attach_filter(&unheard(7)).unwrap();
        let comes = |bytes: &[u8]| {
            sender.send(bytes).unwrap();
            receiver.recv(&mut [0; 512]).is_ok()
        };
        assert!(!comes(&datagram(7, "10.96.0.1")));
        assert!(comes(&datagram(2, "192.168.0.1")));
        assert!(comes(&removed(7, "10.96.0.1")));
        assert!(comes(&link(RTM_DELLINK, 7, 0)));
    }

    #[test]
    fn what_is_too_much_is_anything() {
        let told = Told {
            notices: Mutex::new(Ok(Vec::new())),
            wake: Notify::new(),
        };
        let notice = Notice::ServiceAddressRemoved(ip("10.96.0.1"));
        told.add(Ok(vec![notice; MOST]));
        assert_eq!(told.take().unwrap().len(), MOST);
        for _ in 0..=MOST {
            told.add(Ok(vec![notice]));
        }
        assert_eq!(told.take().unwrap(), [Notice::Anything]);
        assert_eq!(told.take().unwrap(), []);
        told.add(Err(io::Error::other("ended")));
        assert!(told.take().is_err());
    }

    #[tokio::test]
    async fn there_is_room_for_many_messages() {
        let subscription = Subscription::new().unwrap();
        let usual = std::fs::read_to_string("/proc/sys/net/core/rmem_default").unwrap();
        let room = sockopt::socket_recv_buffer_size(subscription.socket.get_ref()).unwrap();
        assert!(room >= usual.trim().parse().unwrap(), "{room}");
        // The kernel doubles it, for its own bookkeeping.
        let other = Socket::new(NETLINK_ROUTE).unwrap();
        let may_force = sockopt::set_socket_recv_buffer_size_force(&other, ROOM).is_ok();
        assert!(!may_force || room >= 2 * ROOM, "{room}");
    }
}
