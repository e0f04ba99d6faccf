//! Listening on an address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// Connections that wait to be accepted; the kernel may allow less (`net.core.somaxconn`).
const BACKLOG: u32 = 1024;

/// Listens; on an unspecified address, `0.0.0.0` or `::`, for both families where the kernel has
/// both, as Go does.
pub(super) fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    if !at.ip().is_unspecified() {
        return listen_on(at, Unspecified::Both);
    }
    let both = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match listen_on(SocketAddr::new(both, at.port()), Unspecified::Both) {
        Err(error) if is_without_ipv6(&error) => {
            listen_on((Ipv4Addr::UNSPECIFIED, at.port()).into(), Unspecified::Both)
        }
        result => result,
    }
}

fn is_without_ipv6(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// What a socket of IPv6 on an unspecified address, `::`, listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unspecified {
    /// Both families.
    Both,
    /// IPv6; IPv4 is left to another socket.
    V6Only,
}

/// Listens on an address.
///
/// # Errors
///
/// Something else has it, or it is none of this node.
pub fn listen_on(at: SocketAddr, unspecified: Unspecified) -> io::Result<TcpListener> {
    let socket = match at {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            // Whatever the sysctl bindv6only says.
            rustix::net::sockopt::set_ipv6_v6only(&socket, unspecified == Unspecified::V6Only)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}
