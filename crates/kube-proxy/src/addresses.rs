//! Changes of this node's addresses, told by the kernel as they happen (rtnetlink multicast groups of rtnetlink(7)).
//!
//! Only that something changed is told: what the addresses are is read with everything else. Changes on `kube-ipvs0` are
//! our own, and link-local ones serve no NodePort, so neither counts; but that the link itself is gone does, with all its
//! addresses. When the kernel had to drop messages, anything may have changed, which counts. It should not have to: a task of its own reads them, also while the loop waits for a sync that
//! binds thousands, and there is room for many.

use std::io;
use std::net::IpAddr;

use netlink_batch::{Connection, Protocol};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::sockopt;
use socket2::{SockFilter, SockRef};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::debug;

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR` of linux/rtnetlink.h.
const GROUPS: [u32; 3] = [1, 5, 9];

/// Of linux/rtnetlink.h and linux/if_link.h.
const IFLA_IFNAME: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;

/// The link that holds the service addresses.
const SERVICE_LINK: &str = "kube-ipvs0";

/// Room for messages that wait to be read, in bytes; one of them takes about 800.
const ROOM: usize = 8 << 20;

/// A subscription to address changes. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct AddressChanges {
    /// Holds one: changes that nobody has asked for yet are one change.
    changed: mpsc::Receiver<io::Result<()>>,
    task: JoinHandle<()>,
}

impl AddressChanges {
    /// Subscribes. Must be called within a tokio runtime.
    pub(crate) fn subscribe() -> io::Result<Self> {
        let mut subscription = Subscription::new()?;
        let (tell, changed) = mpsc::channel(1);
        let task = tokio::spawn(async move {
            loop {
                let change = subscription.next().await;
                let has_ended = change.is_err();
                // One that is not taken yet says the same; but an end is not to be lost.
                let is_unheard = if has_ended {
                    tell.send(change).await.is_err()
                } else {
                    matches!(
                        tell.try_send(change),
                        Err(mpsc::error::TrySendError::Closed(_))
                    )
                };
                if has_ended || is_unheard {
                    return;
                }
            }
        });
        Ok(Self { changed, task })
    }

    /// Waits until an address that matters was added or removed. Cancel safe.
    pub(crate) async fn next(&mut self) -> io::Result<()> {
        let change = self.changed.recv().await;
        change.unwrap_or_else(|| Err(io::Error::other("the subscription has ended")))
    }
}

impl Drop for AddressChanges {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Subscription {
    socket: AsyncFd<Socket>,
    /// The index of the link that holds the service addresses, as it was when its name was last looked up.
    own_link: Option<u32>,
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
        };
        subscription.look_up_own_link();
        Ok(subscription)
    }

    /// Has the kernel leave out what it would tell of our link's addresses. They come by the ten thousand at a first sync, each
    /// for nothing.
    fn look_up_own_link(&mut self) {
        let before = std::mem::replace(&mut self.own_link, link_named(SERVICE_LINK));
        if let Some(index) = self.own_link
            && self.own_link != before
            && let Err(error) = SockRef::from(self.socket.get_ref()).attach_filter(&unheard(index))
        {
            debug!(%error, "messages about service addresses are left out one by one");
        }
    }

    async fn next(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| socket.get_ref().recv_from_full()) {
                Ok(Ok((datagram, _))) => {
                    if self.own_link.is_none() {
                        self.look_up_own_link();
                    }
                    if !matters(&datagram, self.own_link) {
                        continue;
                    }
                    // Our link may be gone, or another one.
                    let before = self.own_link;
                    self.look_up_own_link();
                    let is_gone = before.is_some() && self.own_link != before;
                    if is_gone || matters(&datagram, self.own_link) {
                        return Ok(());
                    }
                }
                // Messages were dropped (ENOBUFS).
                Ok(Err(error))
                    if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) =>
                {
                    debug!("messages about addresses were lost");
                    return Ok(());
                }
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
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

/// A filter (classic BPF, linux/filter.h) that drops what tells of an address of this link. A notification is one message: a
/// header (`struct nlmsghdr`), whose type is at 4, and `struct ifaddrmsg`, whose index is at 20. What is loaded counts as big
/// endian.
fn unheard(index: u32) -> [SockFilter; 7] {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let kind = |kind: u16| u16::from_be_bytes(kind.to_ne_bytes()).into();
    [
        SockFilter::new(LOAD_HALF, 0, 0, 4),
        SockFilter::new(JUMP_IF_EQUAL, 1, 0, kind(RTM_NEWADDR)),
        SockFilter::new(JUMP_IF_EQUAL, 0, 3, kind(RTM_DELADDR)),
        SockFilter::new(LOAD_WORD, 0, 0, 20),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, index.to_be()),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
}

/// The index of the link of this name. Asked over rtnetlink: for a name that it does not know, the ioctl starts modprobe first.
fn link_named(name: &str) -> Option<u32> {
    let mut connection = Connection::open(Protocol::Route).ok()?;
    let answer = connection.request(RTM_GETLINK, 0, |message| {
        // `struct ifinfomsg`: the index is at 4.
        message.bytes(&[0; 16]);
        message.attr_str(IFLA_IFNAME, name);
    });
    let answer = answer.ok()?;
    let (_, payload) = answer.iter().next()?;
    let index = payload.get(4..8)?.try_into().ok()?;
    Some(u32::from_ne_bytes(index))
}

/// Whether one of the messages in a datagram tells of an address that matters, or of the end of our link.
fn matters(mut datagram: &[u8], own_link: Option<u32>) -> bool {
    while !datagram.is_empty() {
        if let Some((kind, index, length)) = link(datagram) {
            if kind == RTM_DELLINK && Some(index) == own_link {
                return true;
            }
            datagram = after(datagram, length);
            continue;
        }
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(datagram) else {
            // What cannot be read may be anything.
            return true;
        };
        if let NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address),
        ) = &message.payload
            && Some(address.header.index) != own_link
            && !is_link_local(address)
        {
            return true;
        }
        datagram = after(datagram, message.header.length);
    }
    false
}

/// The kind, the link's index and the length of a message that a datagram begins with, if it tells of a link: a header
/// (`struct nlmsghdr`), and `struct ifinfomsg`. Its attributes are many, change with the kernel, and do not matter.
fn link(datagram: &[u8]) -> Option<(u16, u32, u32)> {
    let [
        l0,
        l1,
        l2,
        l3,
        k0,
        k1,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        i0,
        i1,
        i2,
        i3,
    ] = *datagram.first_chunk()?;
    let length = u32::from_ne_bytes([l0, l1, l2, l3]);
    let kind = u16::from_ne_bytes([k0, k1]);
    let index = u32::from_ne_bytes([i0, i1, i2, i3]);
    (matches!(kind, RTM_NEWLINK | RTM_DELLINK) && length >= 24).then_some((kind, index, length))
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

fn is_link_local(message: &AddressMessage) -> bool {
    message.attributes.iter().any(|attribute| {
        matches!(attribute, AddressAttribute::Address(IpAddr::V6(address)) if address.is_unicast_link_local())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::NetlinkHeader;
    use netlink_packet_route::AddressFamily as Family;
    use std::os::unix::net::UnixDatagram;

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

    #[test]
    fn only_addresses_of_other_links_matter() {
        assert!(matters(&datagram(2, "192.168.0.1"), Some(7)));
        assert!(matters(&datagram(2, "192.168.0.1"), None));
        assert!(!matters(&datagram(7, "10.96.0.1"), Some(7)));
        assert!(!matters(&datagram(2, "fe80::1"), Some(7)));
        let both = [datagram(7, "10.96.0.1"), datagram(2, "192.168.0.1")].concat();
        assert!(matters(&both, Some(7)));
        assert!(matters(b"nonsense", Some(7)));
    }

    #[test]
    fn of_links_only_the_end_of_ours_matters() {
        let told = |kind: u16, index: u32| {
            let mut bytes = vec![0; 36];
            bytes[..4].copy_from_slice(&36_u32.to_ne_bytes());
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes[20..24].copy_from_slice(&index.to_ne_bytes());
            bytes
        };
        assert!(matters(&told(RTM_DELLINK, 7), Some(7)));
        assert!(!matters(&told(RTM_DELLINK, 8), Some(7)));
        assert!(!matters(&told(RTM_DELLINK, 7), None));
        assert!(!matters(&told(RTM_NEWLINK, 7), Some(7)));
        let then = [told(RTM_NEWLINK, 8), datagram(2, "192.168.0.1")].concat();
        assert!(matters(&then, Some(7)));
        let mut lying = told(RTM_NEWLINK, 8);
        lying[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(!matters(&lying, Some(7)));
    }

    #[test]
    fn a_link_is_found_by_its_name() {
        assert_eq!(link_named("lo"), Some(1));
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
        let mut deletion = datagram(7, "10.96.0.1");
        deletion[4..6].copy_from_slice(&RTM_DELADDR.to_ne_bytes());
        assert!(!comes(&deletion));
        let mut link = datagram(7, "10.96.0.1");
        link[4..6].copy_from_slice(&RTM_DELLINK.to_ne_bytes());
        assert!(comes(&link));
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
