//! Tests the shares of one client and of one Service, in a network namespace with several client
//! addresses and a short range of ephemeral ports.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use namespace::in_namespace;
use relay::{Evictions, Limits, ListeningPort, PortBackends, Relay, Transport};
use socket2::{Domain, Socket, Type};
use support::{ANY, LONG, World, by, connect, limits, named, open, until};

const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Runs a test on a node that has the addresses of several clients.
fn on_a_node(story: impl FnOnce() + Send) {
    in_namespace(|| {
        let up = "ip link set lo up && ip addr add 10.0.0.1/24 dev lo";
        let done = Command::new("sh").args(["-c", up]).status().unwrap();
        assert!(done.success());
        for last in 2..40 {
            let add = format!("addr add 10.0.0.{last}/32 dev lo");
            let done = Command::new("ip").args(add.split(' ')).status().unwrap();
            assert!(done.success(), "{add}");
        }
        story();
    });
}

/// Opens a connection from the address of this client.
fn connect_from(client: u8, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let from = SocketAddr::from(([10, 0, 0, client], 0));
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Reports whether a connection reaches an endpoint, which then sends its name.
fn is_served(stream: &mut TcpStream) -> bool {
    let mut name = [0];
    stream
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    matches!(stream.read(&mut name), Ok(1))
}

/// Opens listening ports until an attempt fails. Returns the ports and the error.
fn open_all(relay: &Relay, transport: Transport, at: IpAddr) -> (Vec<ListeningPort>, String) {
    let mut all = Vec::new();
    loop {
        match open(
            relay,
            transport,
            SocketAddr::new(at, 0),
            PortBackends::default(),
        ) {
            Ok(opened) => all.push(opened),
            Err(error) => return (all, error.to_string()),
        }
    }
}

#[test]
#[ignore = "needs root and a network namespace: run by make test in the lab"]
fn half_of_the_ephemeral_ports_stay_free_for_the_node() {
    on_a_node(|| {
        fs::write(RANGE, "40000 40099").unwrap();
        let relay = Relay::start(limits()).unwrap();
        let v6 = IpAddr::from(Ipv6Addr::UNSPECIFIED);
        let mut numbers = BTreeSet::new();
        let mut last = None;
        for at in [IpAddr::from([0, 0, 0, 0]), v6] {
            for transport in [Transport::Udp, Transport::Tcp] {
                let (all, why) = open_all(&relay, transport, at);
                assert_eq!(all.len(), 50, "{transport:?} at {at}: {why}");
                assert!(why.contains("50 of the 100 ephemeral ports"), "{why}");
                if transport == Transport::Tcp {
                    numbers.extend(all.iter().map(|opened| opened.at.port()));
                }
                last = Some((transport, at, all));
            }
        }
        assert!(
            numbers.len() <= 60,
            "both families have the same: {numbers:?}"
        );
        // The TCP ports of both families use at most 60 of the 100 numbers, so the node can still
        // open 40 connections.
        let server = TcpListener::bind(("127.0.0.1", 80)).unwrap();
        let at = server.local_addr().unwrap();
        let connected: Vec<_> = (0..40).map(|_| connect(at)).collect();
        assert_eq!(connected.len(), 40);
        UdpSocket::bind(ANY).unwrap();
        // A closed port frees its number for another port.
        let (transport, at, all) = last.unwrap();
        relay.close(all.first().unwrap().number).unwrap();
        let again = || {
            open(
                &relay,
                transport,
                SocketAddr::new(at, 0),
                PortBackends::default(),
            )
        };
        until("it is closed", || again().is_ok());
        assert!(again().is_err());
        fs::write(RANGE, "40000 40199").unwrap();
        assert!(again().is_ok(), "who widens the range gets more at once");
    });
}

#[test]
#[ignore = "needs root and a network namespace: run by make test in the lab"]
fn one_client_cannot_use_all_connections() {
    on_a_node(|| {
        let limits = Limits {
            connections: 64,
            ..limits()
        };
        let world = World::new(limits, Transport::Tcp, by(&[named("a")]));
        let at = world.port.at;
        let mut held: Vec<_> = (0..100).map(|_| connect_from(2, at)).collect();
        let mut other = connect_from(3, at);
        assert!(is_served(&mut other), "another client waits for nobody");
        assert!(
            is_served(held.last_mut().unwrap()),
            "nor does the first one"
        );
        until("its oldest ones end", || {
            world.relay.counters().connections() == 33
        });
        assert_eq!(world.relay.counters().evicted(), 68);
        let of_process = Evictions::of_process().unwrap();
        assert!(of_process.connections >= 68, "{of_process:?}");
        let ended = held.first_mut().unwrap().read_to_end(&mut Vec::new());
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
#[ignore = "needs root and a network namespace: run by make test in the lab"]
fn one_service_cannot_use_all_connections() {
    on_a_node(|| {
        let limits = Limits {
            connections: 64,
            ..limits()
        };
        let world = World::new(limits, Transport::Tcp, by(&[named("a")]));
        let serving = Arc::new(by(&[named("b")]));
        let other = world
            .relay
            .open(Transport::Tcp, ANY, &"default/other".into(), serving);
        let other = other.unwrap().at;
        let mut held: Vec<_> = (0..90)
            .map(|number| connect_from(2 + number % 2, world.port.at))
            .collect();
        until("it has its share", || {
            world.relay.counters().connections() == 48
        });
        // The relay may skip recently used connections, so it does not always evict the oldest
        // connections.
        let served = held.iter_mut().map(is_served).filter(|is| *is).count();
        assert!(served >= 48, "{served} of {} were served", held.len());
        let before = world.relay.counters().evicted();
        let mut more: Vec<_> = (0..16).map(|_| connect_from(20, other)).collect();
        assert!(more.iter_mut().all(is_served));
        assert_eq!(
            world.relay.counters().evicted(),
            before,
            "there was room for them"
        );
    });
}

#[test]
#[ignore = "needs root and a network namespace: run by make test in the lab"]
fn a_connection_of_the_largest_client_is_evicted_if_descriptors_run_short() {
    on_a_node(|| {
        let limits = Limits {
            // Enough descriptors for the listening ports and 40 connections.
            descriptors: Some(161),
            ..limits()
        };
        let world = World::new(limits, Transport::Tcp, by(&[named("a")]));
        for _ in 0..80 {
            open(&world.relay, Transport::Tcp, ANY, PortBackends::default()).unwrap();
        }
        let mut held: Vec<_> = (0..60)
            .map(|number| connect_from(2 + number % 2, world.port.at))
            .collect();
        for client in 4..14 {
            assert!(
                is_served(&mut connect_from(client, world.port.at)),
                "client {client}"
            );
        }
        assert!(is_served(held.last_mut().unwrap()));
    });
}

#[test]
#[ignore = "needs root and a network namespace: run by make test in the lab"]
fn one_client_cannot_use_all_udp_flows() {
    on_a_node(|| {
        // The endpoint replies with the source port of each datagram, which identifies its flow.
        let endpoint = UdpSocket::bind(ANY).unwrap();
        let to = endpoint.local_addr().unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 16];
            while let Ok((_, from)) = endpoint.recv_from(&mut buffer) {
                let _ = endpoint.send_to(&from.port().to_be_bytes(), from);
            }
        });
        let limits = Limits {
            udp_flows: 64,
            udp_idle: LONG,
            ..limits()
        };
        let world = World::new(limits, Transport::Udp, by(&[to]));
        let client = |last: u8| {
            let socket = UdpSocket::bind(SocketAddr::from(([10, 0, 0, last], 0))).unwrap();
            socket.set_read_timeout(Some(LONG)).unwrap();
            socket.connect(world.port.at).unwrap();
            socket
        };
        let ask = |socket: &UdpSocket| {
            socket.send(b"x").unwrap();
            let mut answer = [0; 2];
            socket.recv(&mut answer).unwrap();
            u16::from_be_bytes(answer)
        };
        let few = client(2);
        let port = ask(&few);
        let many: Vec<_> = (0..200).map(|_| client(3)).collect();
        for socket in &many {
            ask(socket);
        }
        assert_eq!(world.relay.counters().flows(), 33);
        assert_eq!(ask(&few), port, "its flow is the same");
    });
}

#[test]
#[ignore = "needs root and a network namespace: run by make test in the lab"]
fn udp_flows_leave_ephemeral_ports_to_the_node() {
    on_a_node(|| {
        fs::write(RANGE, "40000 40099").unwrap();
        let limits = Limits {
            udp_idle: LONG,
            ..limits()
        };
        let world = World::new(limits, Transport::Udp, by(&[support::answering("a")]));
        for client in 2..22 {
            for number in 0..10 {
                let from = SocketAddr::from(([10, 0, 0, client], 1_000 + number));
                let socket = UdpSocket::bind(from).unwrap();
                socket.send_to(b"x", world.port.at).unwrap();
            }
        }
        // The relay may use a quarter of the ephemeral ports for flows. One Service may use three
        // quarters of this quarter.
        until("all have come", || {
            world.relay.counters().evicted() == 200 - 19
        });
        let of_process = Evictions::of_process().unwrap();
        assert!(of_process.flows >= 200 - 19, "{of_process:?}");
        assert_eq!(world.relay.counters().flows(), 19);
        UdpSocket::bind("0.0.0.0:0").unwrap();
    });
}
