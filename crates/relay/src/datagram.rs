//! Receives datagrams with their destination address. The relay sends replies from this address, so
//! that they match the flow's conntrack entry.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd as _;

use libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::cmsg_space;
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage,
    recvmsg, sendmsg, setsockopt,
};
use socket2::Socket;
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A client, and the local address to which the client has sent a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) client: SocketAddr,
    pub(crate) own: IpAddr,
}

/// A UDP socket that reports the destination address of each datagram.
pub(crate) struct Datagrams(UdpSocket);

/// Makes a socket report the destination address of each datagram (`IP_PKTINFO`,
/// `IPV6_RECVPKTINFO`).
pub(crate) fn want_destination(socket: &Socket, at: SocketAddr) -> io::Result<()> {
    match at {
        SocketAddr::V4(_) => setsockopt(socket, Ipv4PacketInfo, &true)?,
        SocketAddr::V6(_) => setsockopt(socket, Ipv6RecvPacketInfo, &true)?,
    }
    Ok(())
}

impl Datagrams {
    pub(crate) fn new(socket: UdpSocket) -> Self {
        Self(socket)
    }

    /// Waits until the socket may have a datagram.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.0.readable().await
    }

    /// Receives a datagram. Returns its length and its peer, or `WouldBlock` if none has arrived.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Peer)> {
        let receive = || receive(&self.0, buffer);
        self.0.try_io(Interest::READABLE, receive)
    }

    /// Sends a datagram from the peer's `own` address to its client. Returns `WouldBlock` if the
    /// socket's send buffer is full.
    pub(crate) fn send(&self, to: Peer, bytes: &[u8]) -> io::Result<usize> {
        send(&self.0, to, bytes)
    }
}

fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, Peer)> {
    let mut space = cmsg_space!(in_pktinfo, in6_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::empty(),
    )?;
    let own = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes()))
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::from(info.ipi6_addr.s6_addr)),
        _ => None,
    });
    let client = received.address.and_then(address);
    match (client, own) {
        (Some(client), Some(own)) => Ok((received.bytes, Peer { client, own })),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn address(from: SockaddrStorage) -> Option<SocketAddr> {
    let v4 = from.as_sockaddr_in().map(|v4| SocketAddrV4::from(*v4));
    let v6 = || from.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6));
    v4.map(SocketAddr::V4).or_else(|| v6().map(SocketAddr::V6))
}

fn send(socket: &UdpSocket, to: Peer, bytes: &[u8]) -> io::Result<usize> {
    let parts = [IoSlice::new(bytes)];
    let (socket, flags) = (socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
    let sent = match (to.client, to.own) {
        (SocketAddr::V4(client), IpAddr::V4(own)) => {
            let source = in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: in_addr {
                    s_addr: u32::from_ne_bytes(own.octets()),
                },
                ipi_addr: in_addr { s_addr: 0 },
            };
            let control = [ControlMessage::Ipv4PacketInfo(&source)];
            sendmsg(
                socket,
                &parts,
                &control,
                flags,
                Some(&SockaddrIn::from(client)),
            )
        }
        (SocketAddr::V6(client), IpAddr::V6(own)) => {
            let source = in6_pktinfo {
                ipi6_addr: in6_addr {
                    s6_addr: own.octets(),
                },
                ipi6_ifindex: 0,
            };
            let control = [ControlMessage::Ipv6PacketInfo(&source)];
            sendmsg(
                socket,
                &parts,
                &control,
                flags,
                Some(&SockaddrIn6::from(client)),
            )
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    Ok(sent?)
}
