//! Tests of NodePorts on localhost in nftables mode, with real packets. Each test has its own
//! network namespace.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use namespace::in_namespace;
use nftables_netlink::{Family, Nftables};
use proxy::{
    Endpoint, EndpointPort, EndpointSlice, Event, IpFamily, Kind, Mode as _, Model, NamespacedName,
    NodeFacts, NodePortAddresses, Placement, Protocol, Report, Service, ServicePort,
};
use proxy_nftables::{
    Config, Lanes, Layout, Localhost, LocalhostNodePorts, NetlinkKernel, Proxier, TABLE,
};
use relay::{AllowedClients, Dial, Limits, Pin, Relay};

const NODE_PORT: u16 = 30_080;
const LAYOUTS: [Layout; 2] = [Layout::Upstream, Layout::Flat];

/// A simulated node: a proxier on the real kernel, a model, a relay, and endpoints that reply.
struct World {
    family: IpFamily,
    layout: Layout,
    proxier: Proxier<NetlinkKernel>,
    model: Model,
    relay: Relay,
    endpoints: Vec<SocketAddr>,
}

fn sh(script: &str) {
    let done = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(done.success(), "{script}");
}

/// Starts an endpoint at the IP address `at`, which replies with its name. Returns its address and
/// port.
fn named(at: IpAddr, name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((at, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let _ = connection.unwrap().write_all(name.as_bytes());
        }
    });
    at
}

fn lives(
    family: IpFamily,
    layout: Layout,
    localhost: LocalhostNodePorts,
) -> (Proxier<NetlinkKernel>, Relay) {
    let relay = Relay::start(Limits {
        linger: Duration::ZERO,
        dial: Dial::Once(Duration::from_secs(5)),
        pin: Pin::Port,
        reach: AllowedClients::Anybody,
        ..Limits::default()
    })
    .unwrap();
    let served = Localhost::new(relay.clone());
    let mut node = NodeFacts::new(family, "node1");
    node.node_port_addresses = NodePortAddresses::Primary;
    let config = Config {
        layout,
        localhost,
        ..Config::default()
    };
    let lanes = Lanes::inline(|| NetlinkKernel::new(family).on_localhost(Some(served.clone())));
    let proxier = Proxier::new(config, node, lanes, Instant::now());
    (proxier, relay)
}

impl World {
    fn new(family: IpFamily, layout: Layout, localhost: LocalhostNodePorts) -> Self {
        sh(
            "ip link set lo up; ip addr add 10.244.0.1/32 dev lo; ip addr add fd00::1/128 dev lo nodad",
        );
        let mut model = Model::of_node("node1");
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            model.apply(Event::ListStarted(kind));
            let is_whole = true;
            model.apply(Event::ListComplete { kind, is_whole });
        }
        let at: IpAddr = match family {
            IpFamily::V4 => "10.244.0.1".parse().unwrap(),
            IpFamily::V6 => "fd00::1".parse().unwrap(),
        };
        let (proxier, relay) = lives(family, layout, localhost);
        let mut world = Self {
            family,
            layout,
            proxier,
            model,
            relay,
            endpoints: ["a", "b"].map(|name| named(at, name)).into(),
        };
        world.serve(world.service());
        world.sync();
        world
    }

    fn service(&self) -> Service {
        let port = |name: &str, protocol| ServicePort {
            name: name.into(),
            protocol,
            port: 80,
            node_port: Some(NODE_PORT),
        };
        let cluster_ip: IpAddr = match self.family {
            IpFamily::V4 => "10.96.0.1".parse().unwrap(),
            IpFamily::V6 => "fd00:96::1".parse().unwrap(),
        };
        Service {
            ports: [port("t", Protocol::Tcp), port("u", Protocol::Udp)]
                .into_iter()
                .collect(),
            ..Service::at(NamespacedName::new("default", "web"), [cluster_ip])
        }
    }

    fn serve(&mut self, service: Service) {
        let name = service.name.clone();
        self.model.apply(Event::ServiceApplied(service));
        for (number, at) in self.endpoints.iter().enumerate() {
            let port = |name: &str, protocol| EndpointPort {
                name: name.into(),
                protocol,
                port: at.port(),
            };
            let endpoint = Endpoint {
                address: at.ip(),
                ready: true,
                serving: true,
                terminating: false,
                placement: Placement {
                    node: Some("node2".into()),
                    ..Placement::default()
                }
                .into(),
            };
            self.model.apply(Event::SliceApplied(EndpointSlice {
                name: NamespacedName::new("default", &format!("web-{number}")),
                service: name.clone(),
                family: self.family,
                ports: [port("t", Protocol::Tcp), port("u", Protocol::Udp)]
                    .into_iter()
                    .collect(),
                endpoints: [endpoint].into_iter().collect(),
                change_trigger: None,
            }));
        }
    }

    fn sync(&mut self) -> Report {
        let changes = self.model.take_changes();
        self.proxier.update(&self.model, &changes, Instant::now());
        let mut all = Report::default();
        loop {
            self.proxier.proceed(&self.model, Instant::now());
            let Some(report) = self.proxier.book(&self.model, Instant::now()) else {
                return all;
            };
            all.written += report.written;
            all.failures.extend(report.failures);
            assert!(report.unreadable.is_empty(), "{:?}", report.unreadable);
        }
    }

    /// Restarts the daemon with this policy for NodePorts on localhost.
    fn again(&mut self, localhost: LocalhostNodePorts) -> Report {
        let (proxier, relay) = lives(self.family, self.layout, localhost);
        let at = self.at();
        drop((
            std::mem::replace(&mut self.proxier, proxier),
            std::mem::replace(&mut self.relay, relay),
        ));
        // Waits until the previous relay has closed its ports. It ends because the test has dropped
        // the last handle to it.
        let start = Instant::now();
        while TcpListener::bind(at).is_err() {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "it goes on to listen"
            );
            thread::sleep(Duration::from_millis(10));
        }
        self.sync()
    }

    fn at(&self) -> SocketAddr {
        SocketAddr::new(self.family.localhost(), NODE_PORT)
    }

    /// Connects to the NodePort over TCP. Returns the name of the endpoint that replies.
    fn who(&self) -> Result<String, ErrorKind> {
        let connected = TcpStream::connect_timeout(&self.at(), Duration::from_secs(3));
        let mut client = connected.map_err(|error| error.kind())?;
        client
            .set_read_timeout(Some(Duration::from_secs(3)))
            .unwrap();
        let mut name = [0];
        client.read_exact(&mut name).map_err(|error| error.kind())?;
        Ok(String::from_utf8(name.into()).unwrap())
    }

    fn all(&self) -> BTreeSet<String> {
        (0..8).map(|_| self.who().unwrap()).collect()
    }

    /// Returns true if a UDP packet to the NodePort is rejected within 500 ms.
    fn is_refused_by_udp(&self) -> bool {
        let socket = UdpSocket::bind(SocketAddr::new(self.family.localhost(), 0)).unwrap();
        socket.connect(self.at()).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let sent = socket.send(b"x").and_then(|_| socket.recv(&mut [0]));
        // Accepts two errors: PermissionDenied, if the rules make the send itself fail, and
        // ConnectionRefused, after an ICMP message.
        let kinds = [ErrorKind::PermissionDenied, ErrorKind::ConnectionRefused];
        kinds.contains(&sent.unwrap_err().kind())
    }

    fn counted(&self) -> BTreeMap<String, u64> {
        let family = Family::from(self.family);
        let counters = Nftables::open().unwrap().counters(family, TABLE).unwrap();
        let short = |name: &str| name.rsplit('-').next().unwrap().to_owned();
        counters
            .into_iter()
            .map(|counter| (short(&counter.name), counter.packets))
            .collect()
    }
}

fn counts(tcp: u64, udp: u64) -> BTreeMap<String, u64> {
    let all = [("sctp", 0), ("tcp", tcp), ("udp", udp)];
    all.map(|(name, count)| (name.to_owned(), count)).into()
}

fn everywhere(story: impl Fn(IpFamily, Layout) + Send + Sync) {
    for family in IpFamily::ALL {
        for layout in LAYOUTS {
            in_namespace(|| story(family, layout));
        }
    }
}

#[test]
#[ignore = "needs nf_tables and a network namespace: run by make test in the lab"]
fn localhost_serves_tcp_node_ports_and_rejects_udp() {
    everywhere(|family, layout| {
        let mut world = World::new(family, layout, LocalhostNodePorts::Served);
        let both = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        assert_eq!(world.all(), both, "{family} {layout:?}");
        assert_eq!(world.counted(), counts(0, 0));
        assert!(world.is_refused_by_udp());
        assert_eq!(world.counted(), counts(0, 1));
        // With session affinity, a client keeps its endpoint, so all replies have the same name.
        world.serve(Service {
            affinity_seconds: Some(60),
            ..world.service()
        });
        world.sync();
        assert_eq!(world.all().len(), 1);
        // No endpoint is on this node, so the relay closes the NodePort.
        world.serve(Service {
            external_local: true,
            ..world.service()
        });
        world.sync();
        let start = Instant::now();
        while world.who() != Err(ErrorKind::ConnectionRefused) {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "{:?}",
                world.who()
            );
            thread::sleep(Duration::from_millis(10));
        }
        world.serve(world.service());
        world.sync();
        assert_eq!(world.all(), both);
        let report = world.again(LocalhostNodePorts::Served);
        assert_eq!((report.written, report.failures.len()), (0, 0));
        assert_eq!(world.all(), both, "after a restart, too");
    });
}

#[test]
#[ignore = "needs nf_tables and a network namespace: run by make test in the lab"]
fn node_ports_on_localhost_are_rejected_until_nodeport_addresses_has_localhost() {
    everywhere(|family, layout| {
        let mut world = World::new(family, layout, LocalhostNodePorts::Refused);
        let start = Instant::now();
        assert_eq!(world.who(), Err(ErrorKind::ConnectionRefused));
        assert!(start.elapsed() < Duration::from_secs(1), "at once");
        assert!(world.is_refused_by_udp());
        assert_eq!(world.counted(), counts(1, 1), "{family} {layout:?}");
        // The counters of rejected packets survive the restart (kubernetes/kubernetes#142183).
        world.again(LocalhostNodePorts::Served);
        assert_eq!(world.all().len(), 2);
        assert_eq!(world.counted(), counts(1, 1), "they go on to count");
        world.again(LocalhostNodePorts::Off);
        assert_eq!(world.counted(), BTreeMap::new(), "{family} {layout:?}");
        assert_eq!(world.again(LocalhostNodePorts::Off).written, 0);
    });
}

#[test]
#[ignore = "needs nf_tables and a network namespace: run by make test in the lab"]
fn a_node_port_that_another_program_uses_on_localhost_is_reported() {
    in_namespace(|| {
        sh("ip link set lo up");
        let other = named("127.0.0.1".parse().unwrap(), "x");
        let mut world = World::new(IpFamily::V4, Layout::Upstream, LocalhostNodePorts::Refused);
        let mut service = world.service();
        for port in &mut service.ports {
            port.node_port = Some(other.port());
        }
        world.serve(service);
        let (proxier, _relay) = lives(world.family, world.layout, LocalhostNodePorts::Served);
        world.proxier = proxier;
        let report = world.sync();
        let [failure] = &report.failures[..] else {
            panic!("{:?}", report.failures);
        };
        assert!(
            failure.to_string().contains("Address already in use"),
            "{failure}"
        );
        let mut client = TcpStream::connect(other).unwrap();
        let mut name = [0];
        client.read_exact(&mut name).unwrap();
        assert_eq!(name, *b"x");
    });
}
