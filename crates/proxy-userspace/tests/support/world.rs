//! Hosts for the tests with real packets: a node and a second host, each in its own network
//! namespace. The second host runs the endpoints and a client.
//!
//! ```text
//!   client, endpoints ── 192.0.2.2 ═══ 192.0.2.1 ── node: ClusterIP 10.96.0.1, NodePort 30080
//! ```

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::LONG;
use fixtures::KINDS;
use futures::executor::block_on;
use netlink_batch::Worker;
use proxy::{
    Endpoint, EndpointPort, EndpointSlice, Event, IpFamily, LocalDetector, Mode as _, Model,
    NamespacedName, NodeFacts, Placement, Protocol, Report, Service, ServicePort,
};
use proxy_userspace::{Config, Lanes, Proxier, UserspaceKernel};
use relay::{Limits, Relay};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::gettid;

/// Runs a shell script in the network namespace of the calling thread. Returns its output.
pub(crate) fn sh(script: &str) -> String {
    let script = format!("set -e; {script}");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The second host, with a network namespace of its own.
pub(crate) struct Host(mpsc::Sender<Job>);

impl Host {
    /// Creates the host, and connects it to the network namespace of the calling thread. The thread
    /// must already have left the machine's own namespace.
    pub(crate) fn new(family: IpFamily) -> Self {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (told, id) = mpsc::channel();
        thread::spawn(move || {
            namespace::enter().unwrap();
            told.send(gettid().as_raw_nonzero()).unwrap();
            for job in queue {
                job();
            }
        });
        let id = id.recv().unwrap();
        sh(&format!(
            "ip link set lo up; ip link add eth0 type veth peer name peer0 netns {id}"
        ));
        let host = Self(jobs);
        match family {
            IpFamily::V4 => {
                sh("ip addr add 192.0.2.1/24 dev eth0; ip link set eth0 up
                    ip addr add 198.51.100.1/24 dev eth0
                    ip route add default via 192.0.2.2");
                host.run(|| {
                    sh("ip link set lo up; ip addr add 192.0.2.2/24 dev peer0
                        ip link set peer0 up; ip route add default via 192.0.2.1")
                });
            }
            IpFamily::V6 => {
                sh(
                    "ip addr add 2001:db8::1/64 dev eth0 nodad; ip link set eth0 up
                    ip route add default via 2001:db8::2",
                );
                host.run(|| {
                    sh(
                        "ip link set lo up; ip addr add 2001:db8::2/64 dev peer0 nodad
                        ip link set peer0 up; ip route add default via 2001:db8::1",
                    )
                });
            }
        }
        host
    }

    pub(crate) fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> R {
        let (done, result) = mpsc::channel();
        let job: Job = Box::new(move || done.send(work()).unwrap());
        self.0.send(job).unwrap();
        result.recv().unwrap()
    }
}

/// Mark of the relay's packets to endpoints.
const MARK: Option<u32> = Some(0x4000);

/// A function that opens access to the kernel. The worker thread of each lane calls it.
pub(crate) type Opens = fn(IpFamily, Relay) -> UserspaceKernel;

/// A node with a proxier on the real kernel, a model and a relay, and a second host.
pub(crate) struct World {
    pub(crate) host: Host,
    pub(crate) mode: Proxier<UserspaceKernel>,
    pub(crate) model: Model,
    pub(crate) relay: Relay,
}

impl World {
    pub(crate) fn new(family: IpFamily, kernel: Opens) -> Self {
        let config = Config {
            own_mark: MARK,
            ..Config::default()
        };
        Self::with(family, kernel, config)
    }

    pub(crate) fn with(family: IpFamily, kernel: Opens, config: Config) -> Self {
        let host = Host::new(family);
        let limits = Limits {
            linger: Duration::ZERO,
            mark: config.own_mark,
            ..Limits::default()
        };
        let relay = Relay::start(limits).unwrap();
        let lane = |name| {
            let relay = relay.clone();
            Worker::spawn::<std::io::Error, _>(name, move || Ok(kernel(family, relay))).unwrap()
        };
        let lanes = Lanes::new([lane("sockets"), lane("rules")]);
        let node = NodeFacts::new(family, "node1");
        let mut model = Model::new();
        fixtures::start_lists(&mut model, &KINDS);
        fixtures::complete_lists(&mut model, &KINDS, true);
        Self {
            host,
            mode: Proxier::new(config, node, lanes, Instant::now()),
            model,
            relay,
        }
    }

    /// Applies the model's new changes, and runs the mode until no work is left.
    pub(crate) fn sync(&mut self) -> Report {
        let changes = self.model.take_changes();
        self.mode.update(&self.model, &changes, Instant::now());
        self.settle()
    }

    pub(crate) fn settle(&mut self) -> Report {
        let mut all = Report::default();
        loop {
            self.mode.proceed(&self.model, Instant::now());
            if self.mode.is_idle() {
                break;
            }
            block_on(std::future::poll_fn(|context| {
                self.mode.poll_finished(context)
            }));
            let report = self.mode.book(&self.model, Instant::now());
            let report = report.unwrap_or_default();
            assert!(report.failures.is_empty(), "{:?}", report.failures);
            assert!(report.unreadable.is_empty(), "{:?}", report.unreadable);
            fixtures::merge(&mut all, report);
        }
        all
    }

    /// Adds a Service with an address, a NodePort and these endpoints on the second host.
    pub(crate) fn serve(&mut self, address: &str, endpoints: &[SocketAddr]) {
        let name = NamespacedName::new("default", "web");
        let address: IpAddr = address.parse().unwrap();
        let ports = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];
        let port = |(name, protocol): (&str, Protocol)| ServicePort {
            name: name.into(),
            protocol,
            port: 80,
            node_port: Some(30_080),
        };
        self.model.apply(Event::ServiceApplied(Service {
            ports: ports.map(port).into_iter().collect(),
            ..Service::at(name.clone(), [address])
        }));
        for (number, endpoint) in endpoints.iter().enumerate() {
            let port = |(name, protocol): (&str, Protocol)| EndpointPort {
                name: name.into(),
                protocol,
                port: endpoint.port(),
            };
            let one = Endpoint {
                address: endpoint.ip(),
                ready: true,
                serving: true,
                terminating: false,
                placement: Arc::new(Placement::default()),
            };
            self.model.apply(Event::SliceApplied(EndpointSlice {
                name: NamespacedName::new("default", &format!("web{number}")),
                service: name.clone(),
                family: IpFamily::of(address),
                ports: ports.map(port).into_iter().collect(),
                endpoints: [one].into_iter().collect(),
                change_trigger: None,
            }));
        }
    }

    pub(crate) fn delete(&mut self) {
        let name = NamespacedName::new("default", "web");
        self.model.apply(Event::ServiceDeleted(name));
    }

    /// Opens endpoints on the second host, one for each name. Each endpoint has the same port
    /// number for TCP and UDP.
    pub(crate) fn endpoints(&self, at: &str, names: &'static [&'static str]) -> Vec<SocketAddr> {
        let at: IpAddr = at.parse().unwrap();
        self.host.run(move || {
            let open = |name: &&'static str| super::both(at, name);
            names.iter().map(open).collect()
        })
    }
}

/// Connects to an address and port over TCP. Returns the name of the endpoint that replies.
pub(crate) fn who(at: &str) -> Result<String, ErrorKind> {
    let at: SocketAddr = at.parse().unwrap();
    let connected = TcpStream::connect_timeout(&at, Duration::from_secs(3));
    let mut client = connected.map_err(|error| error.kind())?;
    client.set_read_timeout(Some(LONG)).unwrap();
    let mut name = [0; 1];
    client.read_exact(&mut name).map_err(|error| error.kind())?;
    Ok(String::from_utf8(name.into()).unwrap())
}

/// Sends a datagram to an address and port. Returns the name of the endpoint that replies.
pub(crate) fn who_by_udp(at: &str) -> Result<String, ErrorKind> {
    let at: SocketAddr = at.parse().unwrap();
    let any = if at.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let client = UdpSocket::bind(any).unwrap();
    client.connect(at).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(3)))
        .unwrap();
    client.send(b"x").map_err(|error| error.kind())?;
    let mut name = [0; 2];
    client.recv(&mut name).map_err(|error| error.kind())?;
    Ok(char::from(name[0]).to_string())
}

/// Returns the names of the endpoints that reply to four requests.
pub(crate) fn all(ask: fn(&str) -> Result<String, ErrorKind>, at: &str) -> BTreeSet<String> {
    (0..4).map(|_| ask(at).unwrap()).collect()
}

pub(crate) fn on_a_node(story: impl FnOnce() + Send + 'static) {
    let story = move || {
        namespace::enter().unwrap();
        story();
    };
    if let Err(panic) = thread::spawn(story).join() {
        std::panic::resume_unwind(panic);
    }
}

/// Checks that packets reach a Service over TCP and UDP, from the node and from the second host.
pub(crate) fn packets_find_their_way(kernel: Opens) {
    let mut world = World::new(IpFamily::V4, kernel);
    let endpoints = world.endpoints("192.0.2.2", &["a", "b"]);
    world.serve("10.96.0.1", &endpoints);
    assert_eq!(world.sync().settled.len(), 1);
    let both = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    let (cluster, node_port) = ("10.96.0.1:80", "192.0.2.1:30080");
    for at in [cluster, node_port, "127.0.0.1:30080"] {
        assert_eq!(all(who, at), both, "{at} from the node");
        assert_eq!(all(who_by_udp, at), both, "{at} by UDP from the node");
    }
    // Includes the node's second address, because a UDP socket by default replies from the first
    // address.
    for at in [cluster, node_port, "198.51.100.1:30080"] {
        let tcp = world.host.run(move || all(who, at));
        assert_eq!(tcp, both, "{at} from elsewhere");
        let udp = world.host.run(move || all(who_by_udp, at));
        assert_eq!(udp, both, "{at} by UDP from elsewhere");
    }
    // The rules do not redirect packets to an address and port that no Service has.
    assert!(who("10.96.0.1:81").is_err());
    assert_eq!(who("127.0.0.1:30081"), Err(ErrorKind::ConnectionRefused));
    // A drift check finds exactly the rules that the mode wrote.
    world.mode.check(Instant::now());
    let report = world.settle();
    assert_eq!((report.written, report.drift.is_empty()), (0, true));
    // The listening ports reject clients whose packets no rule redirected.
    let ports = sh("ss -Hltn | awk '{print $4}' | sed 's/.*://'");
    let port: u16 = ports.lines().next().unwrap().parse().unwrap();
    let direct = format!("192.0.2.1:{port}");
    let refused = world.relay.counters().refused();
    let answer = world.host.run(move || who(&direct));
    assert_eq!(answer, Err(ErrorKind::ConnectionReset));
    assert_eq!(world.relay.counters().refused(), refused + 1);
    let ports = sh("ss -Hlun | awk '{print $4}' | sed 's/.*://'");
    let port: u16 = ports.lines().next().unwrap().parse().unwrap();
    super::until("flows end", || world.relay.counters().flows() == 0);
    for at in [format!("192.0.2.1:{port}"), format!("198.51.100.1:{port}")] {
        let answer = world.host.run(move || who_by_udp(&at));
        assert_eq!(answer, Err(ErrorKind::WouldBlock));
    }
    let answer = who_by_udp(&format!("127.0.0.1:{port}"));
    assert_eq!(answer, Err(ErrorKind::WouldBlock));
    assert_eq!(world.relay.counters().flows(), 0);
    world.delete();
    world.sync();
    world.settle();
    assert_eq!(who("127.0.0.1:30080"), Err(ErrorKind::ConnectionRefused));
    super::until("all are closed", || sh("ss -Hltn").is_empty());
}

/// Checks that IPv6 packets reach a Service over TCP and UDP, from the node and from the second
/// host.
pub(crate) fn packets_find_their_way_over_ipv6(kernel: Opens) {
    let mut world = World::new(IpFamily::V6, kernel);
    let endpoints = world.endpoints("2001:db8::2", &["a", "b"]);
    world.serve("fd00:96::1", &endpoints);
    assert_eq!(world.sync().settled.len(), 1);
    let both = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    for at in ["[fd00:96::1]:80", "[2001:db8::1]:30080"] {
        assert_eq!(all(who, at), both, "{at} from the node");
        assert_eq!(all(who_by_udp, at), both, "{at} by UDP from the node");
        let tcp = world.host.run(move || all(who, at));
        assert_eq!(tcp, both, "{at} from elsewhere");
        let udp = world.host.run(move || all(who_by_udp, at));
        assert_eq!(udp, both, "{at} by UDP from elsewhere");
    }
    world.mode.check(Instant::now());
    let report = world.settle();
    assert_eq!((report.written, report.drift.is_empty()), (0, true));
}

/// Checks that clients reach endpoints in the node's own network namespace. One endpoint has the
/// NodePort as its port. Another endpoint has an address of the Service.
pub(crate) fn endpoints_of_the_node_itself_are_reached(kernel: Opens) {
    let mut world = World::new(IpFamily::V4, kernel);
    let node_port = "192.0.2.1:30080";
    let open = |at: &str| super::both_at(at.parse().unwrap(), "h");
    let endpoints = [node_port, "198.51.100.1:80"].map(open);
    world.serve("198.51.100.1", &endpoints);
    world.sync();
    let mut asked = 0;
    for at in ["198.51.100.1:80", node_port, "127.0.0.1:30080"] {
        assert_eq!(who(at).as_deref(), Ok("h"), "{at} from the node");
        assert_eq!(who_by_udp(at).as_deref(), Ok("h"), "{at} by UDP");
        asked += 1;
    }
    for at in ["198.51.100.1:80", node_port] {
        let answers = world.host.run(move || [who(at), who_by_udp(at)]);
        assert!(
            answers.iter().all(|answer| answer.as_deref() == Ok("h")),
            "{at} from elsewhere: {answers:?}"
        );
        asked += 1;
    }
    assert_eq!(world.relay.counters().accepted(), asked, "no detour");
    super::until("flows end", || world.relay.counters().flows() == 0);
}

/// Checks that the mode reads back the rules that it wrote for pod detection. Repeats the check
/// after another program has listed these rules and written them again.
pub(crate) fn rules_that_detect_pods_read_back(kernel: Opens, again: &'static str) {
    let detectors = [
        LocalDetector::None,
        LocalDetector::SourceNet("10.244.0.0/16".parse().unwrap()),
        LocalDetector::SourceNet("10.244.4.0/22".parse().unwrap()),
        LocalDetector::Bridge("cni0".to_owned()),
        LocalDetector::InterfacePrefix("veth".to_owned()),
    ];
    for detector in detectors {
        let detector = detector.clone();
        on_a_node(move || {
            let config = Config {
                detector,
                localhost_node_ports: false,
                own_mark: MARK,
                ..Config::default()
            };
            let mut world = World::with(IpFamily::V4, kernel, config);
            world.serve("10.96.0.1", &world.endpoints("192.0.2.2", &["a"]));
            let name = NamespacedName::new("default", "web");
            let service = world.model.view(&name).unwrap().service.clone();
            world.model.apply(Event::ServiceApplied(Service {
                external_local: true,
                ..service
            }));
            assert!(world.sync().written > 0);
            world.mode.check(Instant::now());
            let report = world.settle();
            assert_eq!((report.written, report.drift.is_empty()), (0, true));
            sh(again);
            world.mode.check(Instant::now());
            let report = world.settle();
            assert_eq!((report.written, report.drift.is_empty()), (0, true));
        });
    }
}

/// Checks that a second process adopts the rules and ports of the first process.
pub(crate) fn one_process_comes_after_another(kernel: Opens) {
    let mut world = World::new(IpFamily::V4, kernel);
    let endpoints = world.endpoints("192.0.2.2", &["a"]);
    world.serve("10.96.0.1", &endpoints);
    world.sync();
    assert_eq!(who("10.96.0.1:80").unwrap(), "a");
    let World {
        host,
        model,
        mode,
        relay,
    } = world;
    // Ends the relay of the first process by dropping the last handles to it.
    drop((mode, relay));
    super::until("nobody listens", || who("10.96.0.1:80").is_err());
    let relay = Relay::start(Limits::default()).unwrap();
    let lane = |name| {
        let relay = relay.clone();
        let open = move || Ok(kernel(IpFamily::V4, relay));
        Worker::spawn::<std::io::Error, _>(name, open).unwrap()
    };
    let lanes = Lanes::new([lane("sockets"), lane("rules")]);
    let node = NodeFacts::new(IpFamily::V4, "node1");
    let mut world = World {
        host,
        mode: Proxier::new(Config::default(), node, lanes, Instant::now()),
        model,
        relay,
    };
    world.serve("10.96.0.1", &endpoints);
    world.sync();
    assert_eq!(who("10.96.0.1:80").unwrap(), "a");
}

/// Checks that the mode writes very many Services in one sync, then one more Service, and then
/// removes all Services.
pub(crate) fn very_many_are_served(kernel: Opens, many: u16) {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let mut world = World::new(IpFamily::V4, kernel);
    let port = ServicePort {
        name: "".into(),
        protocol: Protocol::Tcp,
        port: 80,
        node_port: None,
    };
    let service = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let name = NamespacedName::new("default", &format!("web{number}"));
        Service {
            ports: [port.clone()].into_iter().collect(),
            ..Service::at(name, [IpAddr::from([10, 97, high, low])])
        }
    };
    let time = |world: &mut World, what: &str| {
        let start = Instant::now();
        let report = world.sync();
        println!("{what}: {:?}, {} writes", start.elapsed(), report.written);
        report
    };
    for number in 0..many {
        world.model.apply(Event::ServiceApplied(service(number)));
    }
    let report = time(&mut world, "a start");
    assert_eq!(report.settled.len(), usize::from(many));
    world.model.apply(Event::ServiceApplied(service(many)));
    let report = time(&mut world, "one more");
    assert_eq!((report.settled.len(), report.written), (1, 2));
    world.mode.check(Instant::now());
    let report = world.settle();
    assert_eq!((report.written, report.drift.is_empty()), (0, true));
    for number in 0..=many {
        let name = service(number).name;
        world.model.apply(Event::ServiceDeleted(name));
    }
    time(&mut world, "all gone");
    super::until("all are closed", || sh("ss -Hltn | wc -l").trim() == "0");
}
