//! Measures connections, requests, datagrams and bytes per second through ordinary sockets. The
//! figures include the cost of the sockets' system calls.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lab::Place;
use rustix::net::sockopt::set_socket_linger;

use super::Target;
use crate::objects::TARGET_PORT;
use crate::schema::Axis;

const ROUNDS: usize = 7;
const CONNECTIONS: u32 = 200;
const REQUESTS: u32 = 1_000;
/// Time during which a round of the axis `throughput` sends data.
const STREAM: Duration = Duration::from_millis(250);
/// Timeout for connecting and for each reply.
const PATIENCE: Duration = Duration::from_secs(5);
const MESSAGE: [u8; 64] = [b'x'; 64];
const CHUNK: u32 = 256 * 1024;

/// Measures an axis on all targets in turn, round by round. Returns each series with its name, its
/// unit and the values of the rounds.
pub(crate) fn measure(
    axis: Axis,
    client: &Place,
    server: &Place,
    targets: &[Target],
) -> Result<Vec<(String, &'static str, Vec<f64>)>> {
    type Round = fn(SocketAddr) -> io::Result<f64>;
    let rounds: Vec<(&str, &'static str, Round)> = match axis {
        Axis::Connect => vec![("", "per_s", connect)],
        Axis::Keptalive => vec![("", "per_s", keptalive)],
        Axis::Throughput => vec![("", "gbit_per_s", throughput)],
        Axis::Udp => vec![("", "per_s", datagrams), ("new-", "per_s", new_sockets)],
        axis => bail!("the axis {axis} is no traffic"),
    };
    if axis != Axis::Udp {
        serve_tcp(server, axis == Axis::Throughput)?;
        for &(name, to) in targets {
            client
                .enter(|| TcpStream::connect_timeout(&to.into(), PATIENCE).map(drop))
                .with_context(|| format!("{name} ({to}) does not answer"))?;
        }
    }
    let mut series = Vec::new();
    for (prefix, unit, round) in rounds {
        let mut values: Vec<Vec<f64>> = vec![Vec::new(); targets.len()];
        for _ in 0..ROUNDS {
            for (&(name, to), values) in targets.iter().zip(&mut values) {
                let value = client
                    .enter(|| round(to.into()))
                    .with_context(|| format!("{name} ({to})"))?;
                values.push(value);
            }
        }
        for (&(name, _), values) in targets.iter().zip(values) {
            series.push((format!("{prefix}{name}"), unit, values));
        }
    }
    Ok(series)
}

/// Starts a TCP server that accepts one connection after another. It echoes the received bytes, or
/// only reads them if `is_sink` is true.
fn serve_tcp(server: &Place, is_sink: bool) -> Result<()> {
    let listener = server.enter(|| TcpListener::bind(("0.0.0.0", TARGET_PORT)))?;
    std::thread::spawn(move || {
        let mut buffer = vec![0; CHUNK as usize];
        for mut stream in listener.incoming().flatten() {
            let _ = stream.set_nodelay(true);
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let answer = buffer.get(..count).filter(|_| !is_sink);
                if answer.is_some_and(|answer| stream.write_all(answer).is_err()) {
                    break;
                }
            }
        }
    });
    Ok(())
}

/// Starts a UDP server at this address, which echoes each datagram.
pub(crate) fn serve_udp(server: &Place, at: SocketAddrV4) -> Result<()> {
    let socket = server.enter(|| UdpSocket::bind(at))?;
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        loop {
            if let Ok((count, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(buffer.get(..count).unwrap_or_default(), from);
            }
        }
    });
    Ok(())
}

/// Sends a datagram from a new socket. Returns true if a reply arrives within 100 ms.
pub(crate) fn answers_udp(client: &Place, to: SocketAddrV4) -> io::Result<bool> {
    client.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        socket.connect(to)?;
        match ask(&socket) {
            Ok(()) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock
                        | ErrorKind::TimedOut
                        | ErrorKind::ConnectionRefused
                        | ErrorKind::HostUnreachable
                        | ErrorKind::NetworkUnreachable
                ) =>
            {
                // Waits a moment after an immediate error such as ECONNREFUSED, so that the caller
                // does not retry in a busy loop.
                std::thread::sleep(Duration::from_millis(20));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    })
}

fn ask(socket: &UdpSocket) -> io::Result<()> {
    socket.send(&MESSAGE)?;
    let mut answer = [0; 128];
    match socket.recv(&mut answer)? {
        count if count == MESSAGE.len() => Ok(()),
        _ => Err(io::Error::other("a short answer")),
    }
}

/// Measures connections per second: opens a connection, exchanges one byte, and resets the
/// connection.
fn connect(to: SocketAddr) -> io::Result<f64> {
    rate(CONNECTIONS, || {
        let mut stream = TcpStream::connect(to)?;
        set_socket_linger(&stream, Some(Duration::ZERO))?;
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])
    })
}

/// Measures requests per second on one TCP connection.
fn keptalive(to: SocketAddr) -> io::Result<f64> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = [0; MESSAGE.len()];
    rate(REQUESTS, || {
        stream.write_all(&MESSAGE)?;
        stream.read_exact(&mut answer)
    })
}

/// Measures datagrams with replies per second, all from one socket.
fn datagrams(to: SocketAddr) -> io::Result<f64> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    rate(REQUESTS, || ask(&socket))
}

/// Measures datagrams with replies per second, each from a new socket.
fn new_sockets(to: SocketAddr) -> io::Result<f64> {
    rate(CONNECTIONS, || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(to)?;
        ask(&socket)
    })
}

/// Measures gigabits per second on one TCP connection, until the server has read the last byte.
fn throughput(to: SocketAddr) -> io::Result<f64> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (chunk, mut sent) = (vec![b'x'; CHUNK as usize], 0_u32);
    let started = Instant::now();
    while started.elapsed() < STREAM {
        stream.write_all(&chunk)?;
        sent += 1;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // Waits until the server closes the connection, which it does after it has read the last byte.
    let rest = stream.read(&mut [0])?;
    debug_assert_eq!(rest, 0, "a sink says nothing");
    Ok(f64::from(sent) * f64::from(CHUNK) * 8.0 / 1e9 / started.elapsed().as_secs_f64())
}

fn rate(count: u32, mut once: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let started = Instant::now();
    for _ in 0..count {
        once()?;
    }
    Ok(f64::from(count) / started.elapsed().as_secs_f64())
}
