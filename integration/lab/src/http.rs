//! A small HTTP/1.1 client for test servers that respond with their name.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

/// Timeout for connecting, for each read and for each write.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens a TCP connection from the source port `port` (0: any), in the network namespace of the
/// calling thread. If `reset` is true, dropping the connection sends a TCP reset.
///
/// # Errors
/// Returns an error if no server accepts the connection within five seconds.
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
            // connect(2) returns EINPROGRESS once the socket's send timeout has passed.
            Err(Errno::INPROGRESS) => return Err(io::ErrorKind::TimedOut.into()),
            // Retries while the source port is in use: a child process between fork and exec can
            // still have a copy of the previous connection's socket.
            Err(Errno::ADDRNOTAVAIL) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends a GET request, and returns the body of the response, and true if the server closed the
/// connection. If `is_last` is true, requests that the server close it.
///
/// # Errors
/// Returns an error if the response is incomplete at the timeout or at the end of the connection,
/// or if its status is not 200 (OK).
pub fn get(socket: &mut TcpStream, path: &str, is_last: bool) -> io::Result<(String, bool)> {
    let connection = if is_last { "Connection: close\r\n" } else { "" };
    let request = format!("GET {path} HTTP/1.1\r\nHost: web\r\n{connection}\r\n");
    socket.write_all(request.as_bytes())?;
    let (answer, is_last) = read_answer(socket)?;
    // Waits until the server has closed the connection. If the client closed first, its port would
    // be in TIME_WAIT for a minute.
    if is_last && socket.read(&mut [0])? > 0 {
        return Err(io::Error::other("more than the answer came"));
    }
    Ok((answer, is_last))
}

/// Reads an HTTP response. Returns its body, and true if the server announces that it closes the
/// connection.
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
