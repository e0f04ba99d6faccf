//! Opens sockets for the kernel's notifications.

use std::io;

use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt;

/// Subscribes to multicast groups of a netlink protocol. The socket never blocks. Its receive
/// buffer has `room` bytes, or the kernel's maximum. A size above `net.core.rmem_max` needs
/// `CAP_NET_ADMIN` in the initial user namespace.
///
/// # Errors
///
/// Fails if the kernel does not have the protocol or a group.
pub fn subscribe(protocol: isize, groups: &[u32], room: usize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.set_non_blocking(true)?;
    // Ignores a failure. With a smaller buffer, the kernel drops more notifications, but the socket
    // reports each loss (`ENOBUFS`).
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, room)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, room));
    socket.bind(&SocketAddr::new(0, 0))?;
    for group in groups {
        socket.add_membership(*group)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use netlink_sys::protocols::NETLINK_ROUTE;

    use super::*;

    #[test]
    fn a_notification_socket_has_the_requested_receive_buffer() {
        const ROOM: usize = 8 << 20;
        let socket = subscribe(NETLINK_ROUTE, &[], ROOM).unwrap();
        let usual = std::fs::read_to_string("/proc/sys/net/core/rmem_default").unwrap();
        let room = sockopt::socket_recv_buffer_size(&socket).unwrap();
        assert!(room >= usual.trim().parse().unwrap(), "{room}");
        // The kernel doubles the requested size, for its own bookkeeping.
        let other = Socket::new(NETLINK_ROUTE).unwrap();
        let may_force = sockopt::set_socket_recv_buffer_size_force(&other, ROOM).is_ok();
        assert!(!may_force || room >= 2 * ROOM, "{room}");
    }
}
