//! Tests the relay on loopback, with real sockets.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod support;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use relay::{AllowedClients, Carriage, Limits, PortBackends, Relay, Transport};
use socket2::{Domain, SockRef, Socket, Type};

use support::{
    ANY, LONG, World, answering, by, connect, echo, endpoint, limits, named, nobody,
    open as open_port, until,
};

#[test]
fn connections_rotate_over_the_endpoints() {
    let world = World::tcp(&[named("a"), named("b"), named("c")]);
    let mut counts = BTreeMap::new();
    for _ in 0..30 {
        *counts.entry(world.who()).or_insert(0) += 1;
    }
    let even = ["a", "b", "c"].map(|name| (name.to_owned(), 10));
    assert_eq!(counts, BTreeMap::from(even));
}

#[test]
fn a_client_keeps_its_endpoint_for_the_affinity_timeout() {
    let serving = PortBackends {
        affinity: Some(Duration::from_secs(3)),
        ..by(&[named("a"), named("b"), named("c")])
    };
    let world = World::new(limits(), Transport::Tcp, serving);
    let first = world.who();
    for _ in 0..10 {
        assert_eq!(world.who(), first);
    }
    thread::sleep(Duration::from_millis(3_100));
    assert_ne!(world.who(), first, "its time is over");
}

#[test]
fn an_endpoint_that_refuses_connections_is_skipped() {
    let world = World::tcp(&[nobody(), nobody(), named("a"), nobody(), nobody(), nobody()]);
    let start = Instant::now();
    for _ in 0..10 {
        assert_eq!(world.who(), "a");
    }
    assert!(start.elapsed() < Duration::from_secs(1), "it costs no wait");
}

#[test]
fn an_endpoint_that_does_not_answer_is_skipped_after_a_timeout() {
    // The accept queue of this endpoint is full, so its clients get no reply.
    let hangs = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    hangs.bind(&ANY.into()).unwrap();
    hangs.listen(0).unwrap();
    let at = hangs.local_addr().unwrap().as_socket().unwrap();
    let fill = Duration::from_millis(100);
    let _full: Vec<_> = (0..4)
        .map(|_| TcpStream::connect_timeout(&at, fill))
        .collect();
    let world = World::tcp(&[at, named("a")]);
    let times = (0..2).map(|_| {
        let start = Instant::now();
        assert_eq!(world.who(), "a");
        start.elapsed()
    });
    let slowest = times.max().unwrap();
    assert!(slowest >= Duration::from_millis(250), "{slowest:?}");
    assert!(slowest < Duration::from_millis(900), "{slowest:?}");
}

#[test]
fn a_connection_is_reset_if_no_endpoint_accepts() {
    for endpoints in [vec![], vec![nobody()]] {
        let world = World::tcp(&endpoints);
        let error = world.connect().read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        until("refused is counted", || {
            world.relay.counters().refused() == 1
        });
    }
}

#[test]
fn a_connection_from_outside_the_source_ranges_is_reset() {
    let serving = PortBackends {
        sources: Some(["127.0.0.2/32".parse().unwrap()].into()),
        ..by(&[named("a")])
    };
    let world = World::new(limits(), Transport::Tcp, serving.clone());
    let error = world.connect().read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let serving = PortBackends {
        sources: Some(["127.0.0.0/29".parse().unwrap()].into()),
        ..serving
    };
    let updated = world.relay.update(world.port.number, Arc::new(serving));
    updated.unwrap();
    assert_eq!(world.who(), "a");
}

#[test]
fn a_connection_that_was_not_redirected_is_reset() {
    let with = Limits {
        reach: AllowedClients::Redirected,
        ..limits()
    };
    let world = World::new(with, Transport::Tcp, by(&[named("a")]));
    let error = world.connect().read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_half_closed_connection_still_carries_replies() {
    // In the first half, the endpoint replies only after the client has closed its direction. In
    // the second half, the endpoint reads after it has closed its own direction.
    let at = endpoint(|mut connection| {
        let mut told = Vec::new();
        connection.read_to_end(&mut told).unwrap();
        connection.write_all(&told).unwrap();
    });
    let world = World::tcp(&[at]);
    let mut client = world.connect();
    client.write_all(b"all").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "all");
    let at = endpoint(|mut connection| {
        connection.shutdown(Shutdown::Write).unwrap();
        let mut told = String::new();
        connection.read_to_string(&mut told).unwrap();
        assert_eq!(told, "later");
    });
    let world = World::tcp(&[at]);
    let mut client = world.connect();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    client.write_all(b"later").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    until("it is over", || world.relay.counters().connections() == 0);
}

#[test]
fn a_reset_of_one_side_resets_the_other_side() {
    let resets = endpoint(|mut connection| {
        connection.read_exact(&mut [0; 1]).unwrap();
        let socket = SockRef::from(&connection);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    });
    let world = World::tcp(&[resets]);
    let mut client = world.connect();
    client.write_all(b"x").unwrap();
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    // Repeats the test with the roles exchanged: the client resets its connection.
    let (told, seen) = std::sync::mpsc::channel();
    let at = endpoint(move |mut connection| {
        connection.write_all(b"a").unwrap();
        let error = connection.read(&mut [0; 1]).unwrap_err();
        told.send(error.kind()).unwrap();
    });
    let world = World::tcp(&[at]);
    let mut client = world.connect();
    client.read_exact(&mut [0; 1]).unwrap();
    let socket = SockRef::from(&client);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(seen.recv().unwrap(), ErrorKind::ConnectionReset);
}

/// Writes until all buffers are full. Returns the number of written bytes.
fn write_until_full(connection: &mut TcpStream) -> usize {
    connection
        .set_write_timeout(Some(Duration::from_millis(700)))
        .unwrap();
    let (chunk, mut written) = (vec![b'x'; 1 << 20], 0);
    while let Ok(count) = connection.write(&chunk) {
        written += count;
        assert!(written < 1 << 28, "nothing holds it back");
    }
    written
}

#[test]
fn a_slow_reader_delays_the_writer_without_data_loss() {
    let all = [Carriage::Copy, Carriage::Splice, Carriage::Adaptive].map(|one| (one, 1_024));
    // All bytes also arrive if no large read may wait in memory (`waiting` is 0).
    for (carriage, waiting) in [&all[..], &[(Carriage::Copy, 0), (Carriage::Adaptive, 0)]].concat()
    {
        let with = Limits {
            carriage,
            waiting,
            ..limits()
        };
        let (go, waits) = std::sync::mpsc::channel::<()>();
        let waits = Arc::new(std::sync::Mutex::new(waits));
        let (told, counted) = std::sync::mpsc::channel();
        let at = endpoint(move |mut connection| {
            waits.lock().unwrap().recv().unwrap();
            let mut read = 0;
            let mut buffer = vec![0; 1 << 16];
            while let Ok(count @ 1..) = connection.read(&mut buffer) {
                assert!(buffer[..count].iter().all(|byte| *byte == b'x'));
                read += count;
            }
            told.send(read).unwrap();
        });
        let world = World::new(with, Transport::Tcp, by(&[at]));
        let mut client = world.connect();
        let before = resident();
        let written = write_until_full(&mut client);
        // Resident memory excludes socket buffers, which are the kernel's memory, bounded by
        // `tcp_rmem` and `tcp_wmem`. Parallel tests of this process allocate a few megabytes.
        let grown = resident().saturating_sub(before);
        assert!(grown < 48 << 20, "{carriage:?}: {grown} bytes");
        go.send(()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(counted.recv_timeout(LONG).unwrap(), written, "{carriage:?}");
    }
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn large_transfers_work_in_both_directions_simultaneously() {
    for carriage in [Carriage::Copy, Carriage::Splice, Carriage::Adaptive] {
        let with = Limits {
            carriage,
            ..limits()
        };
        let world = World::new(with, Transport::Tcp, by(&[endpoint(echo)]));
        let sizes = [1, 7, 4_096, 65_536, 300_001, 3 << 20];
        for size in sizes {
            let sent: Vec<u8> = (0..size).map(|at: u32| (at % 251) as u8).collect();
            let mut client = world.connect();
            let mut writer = client.try_clone().unwrap();
            let bytes = sent.clone();
            let writes = thread::spawn(move || {
                writer.write_all(&bytes).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let mut received = Vec::new();
            client.read_to_end(&mut received).unwrap();
            writes.join().unwrap();
            assert!(received == sent, "{carriage:?}, {size} bytes");
        }
    }
}

#[test]
fn connections_wait_for_a_free_descriptor() {
    let with = Limits {
        // Enough descriptors for the listening port and two connections.
        descriptors: Some(5),
        ..limits()
    };
    let world = World::new(with, Transport::Tcp, by(&[named("a")]));
    let hold = |mut client: TcpStream| {
        client.read_exact(&mut [0; 1]).unwrap();
        client
    };
    let (first, _second) = (hold(world.connect()), hold(world.connect()));
    let mut third = world.connect();
    third
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let error = third.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "it waits");
    assert_eq!(world.relay.counters().accepted(), 2);
    drop(first);
    third.set_read_timeout(Some(LONG)).unwrap();
    hold(third);
}

/// Checks that no port opens without a free descriptor, and that connections can use the
/// descriptors of closed ports.
#[test]
fn a_closed_listening_port_frees_its_descriptor() {
    let with = Limits {
        descriptors: Some(3),
        ..limits()
    };
    let world = World::new(with, Transport::Tcp, by(&[named("a")]));
    let open = |transport| {
        let serving = by(&[named("b")]);
        open_port(&world.relay, transport, ANY, serving)
    };
    let (one, other) = (open(Transport::Udp).unwrap(), open(Transport::Tcp).unwrap());
    let refused = open(Transport::Tcp).unwrap_err();
    assert!(refused.to_string().contains("LimitNOFILE"), "{refused}");
    world.relay.close(one.number).unwrap();
    world.relay.close(other.number).unwrap();
    assert_eq!(world.who(), "a");
}

#[test]
fn connections_beyond_the_limit_wait() {
    let with = Limits {
        connections: 1,
        ..limits()
    };
    let world = World::new(with, Transport::Tcp, by(&[named("a")]));
    let mut first = world.connect();
    first.read_exact(&mut [0; 1]).unwrap();
    let mut second = world.connect();
    let brief = Duration::from_millis(200);
    second.set_read_timeout(Some(brief)).unwrap();
    let error = second.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "it waits");
    drop(first);
    second.set_read_timeout(Some(LONG)).unwrap();
    second.read_exact(&mut [0; 1]).unwrap();
}

/// Checks that the relay copies bytes if no pipe is free, or if descriptors for a pipe are lacking.
#[test]
fn bytes_are_copied_if_no_pipe_is_free() {
    let none = Limits {
        pipes: 0,
        ..limits()
    };
    // Enough descriptors for the listening port and one connection.
    let few = Limits {
        descriptors: Some(3),
        ..limits()
    };
    for with in [none, few] {
        let with = Limits {
            carriage: Carriage::Splice,
            ..with
        };
        let world = World::new(with, Transport::Tcp, by(&[named("a")]));
        assert_eq!(world.who(), "a");
        assert_eq!(world.who(), "a");
    }
}

/// Checks that the relay closes unused pipes when a new connection needs descriptors.
#[test]
fn spare_pipes_are_closed_if_a_new_connection_needs_descriptors() {
    let with = Limits {
        descriptors: Some(5),
        carriage: Carriage::Splice,
        ..limits()
    };
    let world = World::new(with, Transport::Tcp, by(&[named("a")]));
    let held = [world.connect(), world.connect()].map(|mut client| {
        client.read_exact(&mut [0; 1]).unwrap();
        client
    });
    assert_eq!(world.relay.counters().connections(), held.len());
}

#[test]
fn a_closed_ports_connections_continue_for_the_drain_time() {
    let with = Limits {
        drain: Duration::from_millis(600),
        ..limits()
    };
    let world = World::new(with, Transport::Tcp, by(&[named("a")]));
    let mut client = world.connect();
    client.read_exact(&mut [0; 1]).unwrap();
    world.relay.close(world.port.number).unwrap();
    until("nobody listens", || {
        TcpStream::connect(world.port.at).is_err()
    });
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    let start = Instant::now();
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(start.elapsed() > Duration::from_millis(300));
}

#[test]
fn connections_to_a_removed_endpoint_continue() {
    let world = World::tcp(&[named("a")]);
    let mut client = world.connect();
    client.read_exact(&mut [0; 1]).unwrap();
    let others = by(&[named("b")]);
    let updated = world.relay.update(world.port.number, Arc::new(others));
    updated.unwrap();
    assert_eq!(world.who(), "b");
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
}

#[test]
fn shutdown_waits_a_limited_time_for_connections() {
    let world = World::tcp(&[named("a")]);
    let mut client = world.connect();
    client.read_exact(&mut [0; 1]).unwrap();
    let relay = world.relay.clone();
    let finished = thread::spawn(move || relay.finish(LONG));
    until("nobody listens", || {
        TcpStream::connect(world.port.at).is_err()
    });
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    drop(client);
    assert_eq!(finished.join().unwrap(), 0);
    assert!(
        world.relay.close(world.port.number).is_err(),
        "it has ended"
    );
    let world = World::tcp(&[named("a")]);
    let mut client = world.connect();
    client.read_exact(&mut [0; 1]).unwrap();
    assert_eq!(world.relay.finish(Duration::from_millis(100)), 1);
}

// ---- UDP ----

fn client(of: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind(ANY).unwrap();
    client.connect(of).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client
}

fn ask(client: &UdpSocket, what: &str) -> String {
    client.send(what.as_bytes()).unwrap();
    let mut buffer = vec![0; 65_536];
    let count = client.recv(&mut buffer).unwrap();
    String::from_utf8(buffer[..count].into()).unwrap()
}

fn udp(limits: Limits, endpoints: &[SocketAddr]) -> World {
    World::new(limits, Transport::Udp, by(endpoints))
}

#[test]
fn a_udp_flow_keeps_its_endpoint_until_the_flow_is_idle() {
    // Uses an idle time that is longer than the delay of a reply on a loaded machine.
    let with = Limits {
        udp_idle: Duration::from_secs(2),
        ..limits()
    };
    let world = udp(with, &[answering("a"), answering("b")]);
    let one = client(world.port.at);
    let first = ask(&one, "x");
    for _ in 0..10 {
        assert_eq!(ask(&one, "x"), first);
    }
    assert_ne!(ask(&client(world.port.at), "x"), first, "another client");
    until("flows end", || world.relay.counters().flows() == 0);
    let large = "y".repeat(60_000);
    assert_eq!(ask(&one, &large).len(), 60_001);
}

#[test]
fn traffic_is_counted_by_endpoint() {
    for carriage in [Carriage::Copy, Carriage::Splice, Carriage::Adaptive] {
        let at = endpoint(echo);
        let with = Limits {
            carriage,
            ..limits()
        };
        let world = World::new(with, Transport::Tcp, by(&[at]));
        let mut client = world.connect();
        let sent = vec![7; 300_000];
        let mut writer = client.try_clone().unwrap();
        let writing = thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut told = Vec::new();
        client.read_to_end(&mut told).unwrap();
        writing.join().unwrap();
        drop(client);
        until("the connection ends", || {
            world.port.counters.read().0.active == 0
        });
        let (sum, endpoints) = world.port.counters.read();
        assert_eq!(endpoints, [(at, sum)]);
        assert_eq!((sum.connections, sum.packets_in), (1, 0));
        assert_eq!(
            (sum.bytes_in, sum.bytes_out),
            (300_000, 300_000),
            "{carriage:?}"
        );
    }
    let at = answering("a");
    let with = Limits {
        udp_idle: LONG,
        ..limits()
    };
    let world = udp(with, &[at]);
    let one = client(world.port.at);
    for _ in 0..5 {
        assert_eq!(ask(&one, "xy"), "axy");
    }
    // The client may receive the reply before the relay has counted it.
    until("the last answer is counted", || {
        world.port.counters.read().0.packets_out >= 5
    });
    let (sum, endpoints) = world.port.counters.read();
    assert_eq!(endpoints, [(at, sum)]);
    assert_eq!((sum.connections, sum.active), (1, 1));
    assert_eq!((sum.packets_in, sum.packets_out), (5, 5));
    assert_eq!((sum.bytes_in, sum.bytes_out), (10, 15));
}

#[test]
fn a_udp_flow_to_a_removed_endpoint_ends() {
    let with = Limits {
        udp_idle: LONG,
        ..limits()
    };
    let world = udp(with, &[answering("a")]);
    let one = client(world.port.at);
    assert_eq!(ask(&one, "x"), "ax");
    let others = by(&[answering("b")]);
    let updated = world.relay.update(world.port.number, Arc::new(others));
    updated.unwrap();
    until("the flow ends", || world.relay.counters().flows() == 0);
    assert_eq!(ask(&one, "x"), "bx");
    world.relay.close(world.port.number).unwrap();
    until("all flows end", || world.relay.counters().flows() == 0);
}

#[test]
fn the_longest_idle_udp_flow_is_evicted_at_the_limit() {
    let with = Limits {
        udp_idle: LONG,
        // One client may have half of these flows.
        udp_flows: 16,
        ..limits()
    };
    let world = udp(with, &[answering("a")]);
    let clients: Vec<_> = (0..50).map(|_| client(world.port.at)).collect();
    for client in &clients {
        assert_eq!(ask(client, "x"), "ax");
    }
    assert_eq!(world.relay.counters().flows(), 8);
}

#[test]
fn an_unreachable_endpoint_ends_its_udp_flow() {
    let with = Limits {
        udp_idle: LONG,
        ..limits()
    };
    let gone = UdpSocket::bind(ANY).unwrap().local_addr().unwrap();
    let world = udp(with, &[gone, answering("a")]);
    let one = client(world.port.at);
    one.set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let start = Instant::now();
    let mut buffer = [0; 16];
    while one.send(b"x").is_err() || one.recv(&mut buffer).is_err() {
        assert!(start.elapsed() < LONG, "it never reaches the other one");
    }
}

#[test]
fn a_dropped_relay_accepts_connections_for_the_linger_time() {
    let with = Limits {
        linger: Duration::from_millis(500),
        ..limits()
    };
    let World { relay, port } = World::new(with, Transport::Tcp, by(&[named("a")]));
    drop(relay);
    connect(port.at).read_exact(&mut [0; 1]).unwrap();
    until("nobody listens", || TcpStream::connect(port.at).is_err());
}

#[test]
fn the_ports_of_a_relay_close_after_its_last_handle_is_dropped() {
    let at = {
        let world = World::tcp(&[named("a")]);
        assert_eq!(world.who(), "a");
        world.port.at
    };
    until("nobody listens", || TcpStream::connect(at).is_err());
    let relay = Relay::start(limits()).unwrap();
    let taken = connect(named("a")).peer_addr().unwrap();
    let opened = open_port(&relay, Transport::Tcp, taken, PortBackends::default());
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::AddrInUse);
}
