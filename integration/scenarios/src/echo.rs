//! ICMP requests: echo requests, as `ping` sends them, and timestamp requests.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use lab::Place;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with};

const AT_MOST: Duration = Duration::from_secs(2);
/// Timeout of a request that must get no reply. On one machine, replies take milliseconds.
const BRIEFLY: Duration = Duration::from_millis(300);

/// Sends an ICMP echo request from a node, pod or host, through a ping socket (icmp(7)). If
/// `expected` is `timeout`, waits only briefly. Returns one of these results:
///
/// - `answered`;
/// - `refused` (port unreachable);
/// - `not sent` (a rule rejected the request on output);
/// - `timeout`;
/// - another error.
pub fn ping(from: &Place, to: IpAddr, expected: &str) -> String {
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
        // Allows ping sockets for root's group. By default, no group may open them.
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
    outcome(from.enter(exchange).map(|_| "answered"))
}

/// Sends an ICMP timestamp request from a node, pod or host. Returns `answered`, `refused` (port
/// unreachable), `timeout`, or the error.
pub fn request_timestamp(from: &Place, to: Ipv4Addr) -> String {
    /// ICMP timestamp request: header, identifier 0x6b, sequence number 0, and three empty
    /// timestamps. The checksum is the complement of type and identifier.
    const REQUEST: [u8; 20] = [
        13, 0, 0xf2, 0x94, 0, 0x6b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    /// Length of an IP header without options.
    const IP: usize = 20;
    let exchange = || {
        let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, flags, Some(ipproto::ICMP))?;
        let socket = UdpSocket::from(socket);
        socket.set_read_timeout(Some(AT_MOST))?;
        socket.send_to(&REQUEST, (to, 0))?;
        // Reads until the reply arrives, because a raw socket receives all ICMP packets of its
        // network namespace.
        loop {
            let mut packet = [0; 128];
            let length = socket.recv(&mut packet)?;
            let icmp = packet.get(IP..length).unwrap_or_default();
            // An ICMP error quotes the start of the packet that caused it.
            match (icmp.first(), icmp.get(8 + IP), icmp.get(5)) {
                (Some(14), _, Some(0x6b)) => return Ok("answered"),
                (Some(3), Some(13), _) => return Ok("refused"),
                _ => {}
            }
        }
    };
    outcome(from.enter(exchange))
}

fn outcome(of: io::Result<&str>) -> String {
    match of {
        Ok(outcome) => outcome.to_owned(),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => "refused".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => "not sent".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => "timeout".to_owned(),
        Err(error) => error.to_string(),
    }
}
