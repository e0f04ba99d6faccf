//! A small HTTP/1.1 client for the lab's servers, which respond with their name.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

/// Timeout for connecting, and for each read and write.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connects from a source port (0: any), in the calling thread's network namespace. If `reset` is
/// true, dropping the connection sends a TCP reset.
///
/// # Errors
/// Fails if no server accepts the connection within five seconds.
pub fn connect(to: SocketAddr, port: u16, reset: bool) -> io::Result<TcpStream> {
    let (family, any) = match to {
        SocketAddr::V4(_) => (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
        SocketAddr::V6(_) => (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let socket = rustix::net::socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    )?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
    }
    if reset {
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    }
    let from = SocketAddr::new(any, port);
    rustix::net::bind(&socket, &from)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match rustix::net::connect(&socket, &to) {
            Ok(()) => return Ok(socket.into()),
            // connect(2) returns EINPROGRESS after the send timeout.
            Err(Errno::INPROGRESS) => return Err(io::ErrorKind::TimedOut.into()),
            // The source port is still in use: a child process between fork and exec holds a copy
            // of the previous connection.
            Err(Errno::ADDRNOTAVAIL) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends one request. If `is_last` is true, asks the server to close the connection. Returns the
/// response body, and true if the server closed the connection.
///
/// # Errors
/// Fails if the connection ends or times out before the end of the response, or if the status is
/// not 200.
pub fn get(socket: &mut TcpStream, path: &str, is_last: bool) -> io::Result<(String, bool)> {
    let connection = if is_last { "Connection: close\r\n" } else { "" };
    let request = format!("GET {path} HTTP/1.1\r\nHost: web\r\n{connection}\r\n");
    socket.write_all(request.as_bytes())?;
    let (answer, is_last) = read_answer(socket)?;
    // Waits until the server has closed the connection. The side that closes first keeps its port
    // in TIME_WAIT for a minute, so the client must not close first.
    if is_last && socket.read(&mut [0])? > 0 {
        return Err(io::Error::other("more than the answer came"));
    }
    Ok((answer, is_last))
}

/// Reads one response. Returns its body, and true if the server will close the connection.
fn read_answer(socket: &mut TcpStream) -> io::Result<(String, bool)> {
    let closed = || io::Error::new(io::ErrorKind::UnexpectedEof, "closed without an answer");
    let mut input = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let text = String::from_utf8_lossy(&input);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .split_once("Content-Length: ")
                .and_then(|(_, rest)| rest.split("\r\n").next()?.parse::<usize>().ok())
                .filter(|_| head.starts_with("HTTP/1.1 200 "))
                .ok_or_else(|| io::Error::other(format!("no answer of ours: {head:?}")))?;
            if body.len() >= length {
                return Ok((body.to_owned(), head.contains("\r\nConnection: close")));
            }
        }
        match socket.read(&mut buffer)? {
            0 => return Err(closed()),
            length => input.extend_from_slice(buffer.get(..length).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_truncated_http_response_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for reply in ["HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npod\n", ""] {
                let (mut socket, _) = listener.accept().unwrap();
                let _ = socket.read(&mut [0; 256]).unwrap();
                socket.write_all(reply.as_bytes()).unwrap();
            }
        });
        let ask = || get(&mut connect(at, 0, false).unwrap(), "/", false);
        assert_eq!(ask().unwrap(), ("pod\n".to_owned(), false));
        assert_eq!(ask().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        server.join().unwrap();
    }
}
