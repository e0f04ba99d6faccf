//! Sends requests from a node, pod or external host to the lab's servers. Each request has a
//! timeout, and each failure a type.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::Place;

/// Default timeout for connecting, and for each request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Transport protocols that a Service can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP over IPv4 or IPv6.
    Tcp,
    /// UDP over IPv4 or IPv6.
    Udp,
    /// SCTP over IPv4 or IPv6, with one stream (`SOCK_STREAM`, RFC 9260).
    Sctp,
}

/// A lab server's reply to a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Name of the node, pod or host whose server replied.
    pub who: String,
    /// Client's address and port, as the server saw them.
    pub seen_source: SocketAddr,
}

/// Reason why a request got no reply from a lab server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// The destination refused: it sent a TCP reset to the SYN, an SCTP abort, or an ICMP port
    /// unreachable.
    #[error("connection refused")]
    Refused,
    /// An ICMP error arrived (host or network unreachable, administratively prohibited), or the
    /// sender has no route.
    #[error("unreachable")]
    Unreachable,
    /// No reply arrived within the timeout.
    #[error("timed out")]
    TimedOut,
    /// The peer reset an open connection.
    #[error("connection reset")]
    Reset,
    /// The server closed the connection without a reply.
    #[error("connection closed without an answer")]
    Closed,
    /// Any other failure, such as a source port that is in use, or a reply that does not come from
    /// a lab server.
    #[error("{0}")]
    Other(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionRefused => Self::Refused,
            Kind::HostUnreachable | Kind::NetworkUnreachable => Self::Unreachable,
            Kind::TimedOut | Kind::WouldBlock => Self::TimedOut,
            Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => Self::Reset,
            Kind::UnexpectedEof => Self::Closed,
            // EACCES: an ICMP or ICMPv6 error "administratively prohibited", which iptables' target
            // REJECT can send.
            Kind::PermissionDenied
                if error.raw_os_error() == Some(Errno::ACCESS.raw_os_error()) =>
            {
                Self::Unreachable
            }
            _ => Self::Other(error.to_string()),
        }
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// Settings for opening a connection: sender, destination, timeout, and optionally the source.
#[derive(Debug, Clone)]
#[must_use]
pub struct Dial<'a> {
    place: &'a Place,
    transport: Transport,
    to: SocketAddr,
    from_ip: Option<IpAddr>,
    from_port: u16,
    reset: bool,
    timeout: Duration,
}

impl<'a> Dial<'a> {
    pub(super) fn new(place: &'a Place, transport: Transport, to: SocketAddr) -> Self {
        Self {
            place,
            transport,
            to,
            from_ip: None,
            from_port: 0,
            reset: false,
            timeout: PATIENCE,
        }
    }

    /// Sets the source port, with `SO_REUSEADDR`. After a TCP connection with this port to the same
    /// destination has closed, the port is not available for a minute (TIME_WAIT), unless
    /// [`reset_on_close`](Self::reset_on_close) is set.
    pub fn from_port(self, from_port: u16) -> Self {
        Self { from_port, ..self }
    }

    /// Sets the source address: one of the sender's addresses.
    pub fn from_ip(self, from_ip: IpAddr) -> Self {
        Self {
            from_ip: Some(from_ip),
            ..self
        }
    }

    /// Closes the connection with a TCP reset (`SO_LINGER` of zero), which frees the source port
    /// immediately.
    pub fn reset_on_close(self) -> Self {
        Self {
            reset: true,
            ..self
        }
    }

    /// Sets the timeout for connecting and for each request. The default is five seconds.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Opens the connection. For UDP, only connects the socket, and sends no packet.
    pub fn open(&self) -> Result<Connection, Failure> {
        let deadline = Instant::now() + self.timeout;
        let (kind, protocol) = match self.transport {
            Transport::Tcp => (SocketType::STREAM, ipproto::TCP),
            Transport::Udp => (SocketType::DGRAM, ipproto::UDP),
            Transport::Sctp => (SocketType::STREAM, ipproto::SCTP),
        };
        let (family, any) = match self.to {
            SocketAddr::V4(_) => (AddressFamily::INET, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            SocketAddr::V6(_) => (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = self.place.netns().enter(|| {
            Ok(rustix::net::socket_with(
                family,
                kind,
                flags,
                Some(protocol),
            )?)
        })?;
        if self.from_port != 0 || self.from_ip.is_some() {
            sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(
                &socket,
                &SocketAddr::new(self.from_ip.unwrap_or(any), self.from_port),
            )?;
        }
        if self.reset && self.transport != Transport::Udp {
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        }
        match rustix::net::connect(&socket, &self.to) {
            Ok(()) => {}
            Err(Errno::INPROGRESS) => {
                if !ready(&socket, PollFlags::OUT, deadline)? {
                    return Err(Failure::TimedOut);
                }
                sockopt::socket_error(&socket)??;
            }
            Err(error) => return Err(error.into()),
        }
        let socket = match self.transport {
            Transport::Udp => Socket::Datagram(socket.into()),
            Transport::Tcp | Transport::Sctp => Socket::Stream(socket.into()),
        };
        Ok(Connection {
            socket,
            timeout: self.timeout,
            input: Vec::new(),
        })
    }

    /// Opens the connection, sends one request, and returns the reply.
    pub fn ask(&self) -> Result<Answer, Failure> {
        self.open()?.ask()
    }
}

/// An open connection, whose requests all have the same source port. For UDP: a connected socket.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    timeout: Duration,
    input: Vec<u8>,
}

#[derive(Debug)]
enum Socket {
    Stream(TcpStream),
    Datagram(UdpSocket),
}

impl Connection {
    /// Sends one request, and returns the reply.
    pub fn ask(&mut self) -> Result<Answer, Failure> {
        let deadline = Instant::now() + self.timeout;
        match &mut self.socket {
            Socket::Datagram(socket) => {
                socket.send(b"?\n")?;
                let mut datagram = [0; 2048];
                loop {
                    match socket.recv(&mut datagram) {
                        Ok(length) => return parse(datagram.get(..length).unwrap_or_default()),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error.into()),
                    }
                    if !ready(socket, PollFlags::IN, deadline)? {
                        return Err(Failure::TimedOut);
                    }
                }
            }
            Socket::Stream(socket) => {
                // Sends a request of two bytes, which always fit into an idle connection's send
                // buffer.
                socket.write_all(b"?\n")?;
                loop {
                    if let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
                        return parse(&self.input.drain(..=end).collect::<Vec<u8>>());
                    }
                    let mut buffer = [0; 512];
                    match socket.read(&mut buffer) {
                        Ok(0) => return Err(Failure::Closed),
                        Ok(length) => self
                            .input
                            .extend_from_slice(buffer.get(..length).unwrap_or_default()),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            if !ready(socket, PollFlags::IN, deadline)? {
                                return Err(Failure::TimedOut);
                            }
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }

    /// Returns the local address and port of this connection.
    pub fn source(&self) -> io::Result<SocketAddr> {
        match &self.socket {
            Socket::Stream(socket) => socket.local_addr(),
            Socket::Datagram(socket) => socket.local_addr(),
        }
    }
}

fn parse(line: &[u8]) -> Result<Answer, Failure> {
    let text = String::from_utf8_lossy(line);
    let answer = text.trim_end().rsplit_once(' ').and_then(|(who, source)| {
        Some(Answer {
            who: who.to_owned(),
            seen_source: source.parse().ok()?,
        })
    });
    answer.ok_or_else(|| {
        Failure::Other(format!(
            "answered by something that is not one of our servers: {text:?}"
        ))
    })
}

/// Waits until `socket` is readable or writable (as `what` says), or has an error. Returns false at
/// the deadline.
fn ready(
    socket: &impl std::os::fd::AsFd,
    what: PollFlags,
    deadline: Instant,
) -> Result<bool, Failure> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|error| Failure::Other(error.to_string()))?;
        match poll(&mut [PollFd::new(socket, what)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_reply_is_a_name_and_an_address() {
        let answer = |who: &str, source: &str| {
            Ok(Answer {
                who: who.into(),
                seen_source: source.parse().unwrap(),
            })
        };
        assert_eq!(
            parse(b"nginx-1 10.0.0.1:80\n"),
            answer("nginx-1", "10.0.0.1:80")
        );
        assert_eq!(parse(b"a b [fd00::1]:80"), answer("a b", "[fd00::1]:80"));
        assert!(matches!(
            parse(b"HTTP/1.1 400 Bad Request"),
            Err(Failure::Other(_))
        ));
    }

    #[test]
    fn error_numbers_map_to_connection_failures() {
        assert_eq!(Failure::from(Errno::CONNREFUSED), Failure::Refused);
        assert_eq!(Failure::from(Errno::HOSTUNREACH), Failure::Unreachable);
        assert_eq!(Failure::from(Errno::ACCESS), Failure::Unreachable);
        assert_eq!(Failure::from(Errno::TIMEDOUT), Failure::TimedOut);
        assert_eq!(Failure::from(Errno::CONNRESET), Failure::Reset);
        assert!(matches!(Failure::from(Errno::ADDRINUSE), Failure::Other(_)));
    }
}
