//! Sends ICMP echo requests like `ping`, through the kernel's ping sockets (icmp(7)).

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use lab::Place;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with};

const AT_MOST: Duration = Duration::from_secs(2);
/// Timeout if the test expects no reply. Replies take milliseconds.
const BRIEFLY: Duration = Duration::from_millis(300);

/// Sends an echo request from a place. Returns `answered`, `refused` (port unreachable), `not sent`
/// (a rule rejected it on output), `timeout`, or the error. `expected` selects the timeout.
pub(crate) fn ping(from: &Place, to: IpAddr, expected: &str) -> String {
    let patience = if expected == "timeout" {
        BRIEFLY
    } else {
        AT_MOST
    };
    let (family, protocol, request) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128),
    };
    let exchange = || {
        // Allows ping sockets to root's group. By default, no group may open them.
        fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0")?;
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::DGRAM, flags, Some(protocol))?;
        connect(&socket, &SocketAddr::new(to, 0))?;
        let socket = UdpSocket::from(socket);
        socket.set_read_timeout(Some(patience))?;
        // The kernel fills in the checksum and the identifier, and delivers only replies with this
        // identifier.
        socket.send(&[request, 0, 0, 0, 0, 0, 0, 1])?;
        socket.recv(&mut [0; 64])
    };
    match from.enter(exchange) {
        Ok(_) => "answered".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => "refused".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => "not sent".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => "timeout".to_owned(),
        Err(error) => error.to_string(),
    }
}
