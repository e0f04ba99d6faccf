//! Changes of this node's addresses, told by the kernel as they happen (rtnetlink multicast groups of rtnetlink(7)).
//!
//! Only that something changed is told: what the addresses are is read with everything else. Changes on `kube-ipvs0` are
//! our own, and link-local ones serve no NodePort, so neither counts. When the kernel had to drop messages, anything may
//! have changed, which counts.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::{AddressFamily, SocketType, netdevice};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR` of linux/rtnetlink.h.
const GROUPS: [u32; 2] = [5, 9];

/// The link that holds the service addresses.
const SERVICE_LINK: &str = "kube-ipvs0";

/// A subscription to address changes.
pub(crate) struct AddressChanges {
    socket: AsyncFd<Socket>,
}

impl AddressChanges {
    /// Subscribes. Must be called within a tokio runtime.
    pub(crate) fn subscribe() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
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
        Ok(Self {
            socket: socket.map_err(io::Error::from)?,
        })
    }

    /// Waits until an address that matters was added or removed. Cancel safe: what was read was looked at whole.
    pub(crate) async fn next(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| socket.get_ref().recv_from_full()) {
                Ok(Ok((datagram, _))) => {
                    if matters(&datagram, own_link()) {
                        return Ok(());
                    }
                }
                // Messages were dropped (ENOBUFS).
                Ok(Err(error))
                    if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) =>
                {
                    return Ok(());
                }
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }
}

impl std::fmt::Debug for AddressChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AddressChanges")
            .field(&self.socket.as_raw_fd())
            .finish()
    }
}

fn own_link() -> Option<u32> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    netdevice::name_to_index(&socket, SERVICE_LINK).ok()
}

/// Whether one of the messages in a datagram tells of an address that matters.
fn matters(mut datagram: &[u8], own_link: Option<u32>) -> bool {
    while !datagram.is_empty() {
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
        let length = usize::try_from(message.header.length)
            .unwrap_or(usize::MAX)
            .next_multiple_of(4);
        datagram = datagram.get(length..).unwrap_or_default();
    }
    false
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
}
