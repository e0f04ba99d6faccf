//! Relays, endpoints and clients on loopback, for tests of the relay.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fixtures::endpoint::answer;
pub(crate) use fixtures::endpoint::{LONG, echo, until};
use relay::{AllowedClients, Limits, ListeningPort, PortBackends, Relay, Transport};

pub(crate) const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Returns the limits that most tests use. These tests have no redirect rules, so any client may
/// connect.
pub(crate) fn limits() -> Limits {
    Limits {
        reach: AllowedClients::Anybody,
        linger: Duration::ZERO,
        ..Limits::default()
    }
}

/// A relay with one open port.
pub(crate) struct World {
    pub(crate) relay: Relay,
    pub(crate) port: ListeningPort,
}

impl World {
    pub(crate) fn new(limits: Limits, transport: Transport, serving: PortBackends) -> Self {
        let relay = Relay::start(limits).unwrap();
        let port = open(&relay, transport, ANY, serving).unwrap();
        Self { relay, port }
    }

    pub(crate) fn tcp(endpoints: &[SocketAddr]) -> Self {
        Self::new(limits(), Transport::Tcp, by(endpoints))
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.port.at)
    }

    /// Returns the name of the endpoint that replies to a new connection.
    pub(crate) fn who(&self) -> String {
        let mut client = self.connect();
        let mut name = [0; 1];
        client.read_exact(&mut name).unwrap();
        String::from_utf8(name.into()).unwrap()
    }
}

/// Opens a port of the Service port `default/web:http`.
pub(crate) fn open(
    relay: &Relay,
    transport: Transport,
    at: SocketAddr,
    serving: PortBackends,
) -> io::Result<ListeningPort> {
    relay.open(transport, at, &"default/web:http".into(), Arc::new(serving))
}

/// Returns the endpoints of a port without session affinity that accepts all clients.
pub(crate) fn by(endpoints: &[SocketAddr]) -> PortBackends {
    let mut endpoints = endpoints.to_vec();
    endpoints.sort();
    PortBackends {
        endpoints: endpoints.into(),
        ..PortBackends::default()
    }
}

pub(crate) fn connect(at: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client
}

/// Opens a TCP endpoint that calls `serve` for each connection.
pub(crate) fn endpoint(serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind(ANY).unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let serve = serve.clone();
            thread::spawn(move || serve(connection.unwrap()));
        }
    });
    at
}

/// Opens an endpoint at an address, with one port number for both TCP and UDP.
pub(crate) fn both(at: IpAddr, name: &'static str) -> SocketAddr {
    both_at(SocketAddr::new(at, 0), name)
}

/// Opens an endpoint for TCP and UDP at this address and port.
pub(crate) fn both_at(at: SocketAddr, name: &'static str) -> SocketAddr {
    fixtures::endpoint::open(at, name).unwrap()
}

/// Opens an endpoint that sends its name, and then returns all bytes that it receives.
pub(crate) fn named(name: &'static str) -> SocketAddr {
    endpoint(move |mut connection| {
        let _ = connection.write_all(name.as_bytes());
        echo(connection);
    })
}

/// Returns an address and port at which no process listens.
pub(crate) fn nobody() -> SocketAddr {
    let listener = TcpListener::bind(ANY).unwrap();
    listener.local_addr().unwrap()
}

/// Opens a UDP endpoint that replies with its name and the datagram.
pub(crate) fn answering(name: &'static str) -> SocketAddr {
    let socket = UdpSocket::bind(ANY).unwrap();
    let at = socket.local_addr().unwrap();
    thread::spawn(move || answer(&socket, name));
    at
}
