//! Opens listening TCP sockets for one or both IP families.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// Maximum number of connections that the kernel queues until the server accepts them. The kernel's
/// own limit may be lower (`net.core.somaxconn`).
const BACKLOG: u32 = 1024;

/// Opens a listening socket. As in Go, `0.0.0.0` and `::` stand for all addresses of both IP
/// families, if the kernel supports both.
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

/// IP families from which a socket on `::` accepts connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unspecified {
    /// Both families: IPv4 and IPv6.
    Both,
    /// Only IPv6. Another socket may listen on the same port for IPv4.
    V6Only,
}

/// Opens a listening socket on an address. If the address is `::`, `unspecified` selects the IP
/// families.
///
/// # Errors
///
/// Fails if another process has bound the address, or if the address does not belong to this node.
pub fn listen_on(at: SocketAddr, unspecified: Unspecified) -> io::Result<TcpListener> {
    let socket = match at {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            // Always sets this option, so that the sysctl bindv6only has no influence.
            rustix::net::sockopt::set_ipv6_v6only(&socket, unspecified == Unspecified::V6Only)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}
