//! Endpoints of the mode's live tests.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod world;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// A timeout longer than any step takes.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Opens an endpoint for TCP and UDP on one port of an address.
pub(crate) fn both(at: IpAddr, name: &'static str) -> SocketAddr {
    both_at(SocketAddr::new(at, 0), name)
}

/// Opens an endpoint for TCP and UDP at this address and port.
pub(crate) fn both_at(at: SocketAddr, name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(at).unwrap();
    let at = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(at).unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            thread::spawn(move || {
                let _ = connection.write_all(name.as_bytes());
                echo(connection);
            });
        }
    });
    thread::spawn(move || answer(&socket, name));
    at
}

fn echo(mut connection: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = connection.read(&mut buffer) {
        if connection.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

fn answer(socket: &UdpSocket, name: &str) {
    let mut buffer = vec![0; 65_536];
    while let Ok((count, from)) = socket.recv_from(&mut buffer) {
        let answer = [name.as_bytes(), &buffer[..count]].concat();
        let _ = socket.send_to(&answer, from);
    }
}

/// Waits until the condition holds.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}
