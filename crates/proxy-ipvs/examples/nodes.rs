//! Measures how IPVS schedulers spread the connections of 100 nodes over one Service's endpoints.
//!
//! ```text
//! cargo build -p proxy-ipvs -p lab --example nodes --bin lab
//! target/debug/lab run --timeout 600 -- target/debug/examples/nodes
//! ```
//!
//! - Each node is a proxier of this crate, with its own node name and one Service.
//! - Each proxier writes its own virtual server to the real kernel.
//! - All clients and endpoints are addresses in one network namespace.
//! - Each figure counts real TCP connections, by the endpoint that accepted them.
//!
//! The program prints the tables of docs/service-options.md. With a directory as its argument, it
//! also writes the charts to this directory: `lab run --keep docs/pictures --
//! target/debug/examples/nodes docs/pictures`. Names after the directory select measurements:
//! `spread slow-start`.
#![allow(clippy::restriction, reason = "a measurement")]
#![allow(clippy::print_stdout, reason = "a measurement")]
#![allow(clippy::cast_precision_loss, reason = "the counts are small")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use charts::Line;
use iptables::Iptables;
use proxy::options::{MAX_CONNECTIONS, SCHEDULER, SCHEDULER_FLAGS, SLOW_START, WEIGHTS};
use proxy::{Endpoint, EndpointSlice, IpFamily, NodeFacts, Placement, Service, ServiceOptions};
use proxy_ipvs::fake::FakeKernel;
use proxy_ipvs::{Config, Kernel as _, Lanes, NetlinkKernel, Op, Outcome, Plan, Proxier};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use support::{World, ip, service, slice};

const NODES: u8 = 100;
/// Number of endpoints of the Service.
const ENDPOINTS: u8 = 10;
/// Numbers of connections per node after which the program measures each endpoint's share.
const CONNECTIONS: [u8; 3] = [1, 2, 4];
/// Number of clients. Each of them connects through every node.
const CLIENTS: u8 = 200;
/// Number of clients that connect once before and once after an endpoint was added or removed.
const MANY_CLIENTS: u16 = 2_000;

/// Last byte of the address of the endpoint that accepted the connection, or `None` if the kernel
/// refused it.
type Reached = Option<u8>;

/// The virtual servers of all nodes in one kernel, and the endpoints of their Service.
struct Lab {
    kernel: NetlinkKernel,
    endpoints: TcpListener,
    /// Number of finished cases. Each case has service addresses of its own, because the kernel
    /// keeps the statistics of removed destinations for two to three minutes.
    cases: u8,
    /// Directory in which to write the charts, or `None` for no charts.
    charts: Option<PathBuf>,
}

impl Lab {
    fn new(charts: Option<PathBuf>) -> Self {
        let script = "ip link set lo up; ip route add local 10.0.0.0/8 dev lo";
        let status = Command::new("sh").args(["-ec", script]).status();
        assert!(status.unwrap().success(), "{script}");
        let iptables = Iptables::choose(None).unwrap();
        Self {
            kernel: NetlinkKernel::open(IpFamily::V4, iptables).unwrap(),
            endpoints: TcpListener::bind("0.0.0.0:8080").unwrap(),
            cases: 0,
            charts,
        }
    }

    fn draw(&self, name: &str, chart: Option<String>) {
        if let Some(folder) = &self.charts {
            std::fs::write(folder.join(name), chart.expect("points")).unwrap();
        }
    }

    /// Starts `count` nodes, each with one Service without endpoints, and with this scheduler and
    /// these scheduler flags.
    fn nodes(&mut self, count: u8, scheduler: &str, flags: &str) -> Vec<Node> {
        let annotations = [(SCHEDULER, scheduler), (SCHEDULER_FLAGS, flags)];
        self.nodes_with(count, &annotations, None)
    }

    /// Starts `count` nodes, each with one Service without endpoints, and with these annotations
    /// and this session affinity.
    fn nodes_with(
        &mut self,
        count: u8,
        annotations: &[(&str, &str)],
        affinity_seconds: Option<u32>,
    ) -> Vec<Node> {
        self.cases += 1;
        let options = ServiceOptions::read(annotations.iter().copied());
        let of = |number| {
            let at = Ipv4Addr::new(10, 96, self.cases, number);
            let service = Service {
                options: options.clone(),
                affinity_seconds,
                ..service("default/web", &at.to_string(), 80)
            };
            Node::new(&format!("node-{number}"), at, service)
        };
        (0..count).map(of).collect()
    }

    fn write(&mut self, ops: Vec<Op>) {
        let plan = Plan { ops };
        for (op, outcome) in plan.ops.iter().zip(self.kernel.apply(&plan)) {
            assert_eq!(outcome, Outcome::Done, "{op}");
        }
    }

    /// Connects a client through a node. Returns the endpoint that accepted the connection, and
    /// both sides of the connection. Returns `None` if the kernel refused it.
    fn open(&self, client: Ipv4Addr, node: &Node) -> Option<(u8, [TcpStream; 2])> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddrV4::new(client, 0)).unwrap();
        match connect(&socket, &SocketAddrV4::new(node.at, 80)) {
            Err(Errno::CONNREFUSED) => return None,
            told => told.unwrap(),
        }
        let (accepted, peer) = self.endpoints.accept().unwrap();
        assert_eq!(peer.ip(), client, "the kernel keeps the source");
        let IpAddr::V4(endpoint) = accepted.local_addr().unwrap().ip() else {
            panic!("{accepted:?}");
        };
        Some((endpoint.octets()[3], [TcpStream::from(socket), accepted]))
    }

    fn ask(&self, client: Ipv4Addr, node: &Node) -> Reached {
        self.open(client, node).map(|(endpoint, _)| endpoint)
    }

    /// Connects each client once through a node. Returns the endpoint that each client reached.
    fn ask_all(&self, node: &Node) -> Vec<Reached> {
        let client = |number: u16| {
            let [high, low] = number.to_be_bytes();
            Ipv4Addr::new(10, 2, high, low)
        };
        (0..MANY_CLIENTS)
            .map(|one| self.ask(client(one), node))
            .collect()
    }
}

/// A simulated node: a proxier on a fake kernel, whose writes the program repeats on the real
/// kernel.
struct Node {
    at: Ipv4Addr,
    world: World,
}

impl Node {
    fn new(name: &str, at: Ipv4Addr, service: Service) -> Self {
        let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
        kernel.state().schedulers.extend(["sed", "nq"]);
        let facts = NodeFacts::new(IpFamily::V4, name);
        let mut world = World::with(Config::default(), kernel.clone());
        let lanes = Lanes::inline(|| kernel.clone());
        world.proxier = Proxier::new(Config::default(), facts, lanes, world.now);
        world.service(service);
        let world = world.listed();
        Self { at, world }
    }

    /// Replaces the Service's endpoints. Returns the writes to the virtual server.
    fn endpoints(&mut self, hosts: &[u8]) -> Vec<Op> {
        let endpoints: Vec<String> = hosts
            .iter()
            .map(|host| format!("10.244.0.{host}@x"))
            .collect();
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        self.world.slice(EndpointSlice {
            family: IpFamily::V4,
            ..slice("default/web", &endpoints)
        });
        self.world.sync();
        self.writes()
    }

    /// Ends the drains, and returns the writes. No drain waits, because the fake kernel has no
    /// connections.
    fn end_drains(&mut self) -> Vec<Op> {
        self.world.wait(Duration::from_secs(10));
        self.world.settle();
        self.writes()
    }

    fn writes(&self) -> Vec<Op> {
        let ops = self.world.work().1.into_iter();
        ops.filter(|op| op.server().is_some()).collect()
    }
}

/// Order in which the Service's endpoints are added to a node.
#[derive(Debug, Clone, Copy)]
enum Arrival {
    /// All endpoints together, in the order of their addresses on all nodes.
    Ascending,
    /// All endpoints together, in the order that the planner chooses for the node.
    AtOnce,
    /// One endpoint after another, in the same order on all nodes.
    OneByOne,
}

impl Arrival {
    fn words(self) -> &'static str {
        match self {
            Self::Ascending => "at once, in one order on all nodes",
            Self::AtOnce => "at once, in each node's own order",
            Self::OneByOne => "one by one",
        }
    }

    fn writes(self, node: &mut Node) -> Vec<Op> {
        let all: Vec<u8> = (0..ENDPOINTS).collect();
        match self {
            Self::AtOnce => node.endpoints(&all),
            Self::Ascending => {
                let mut ops = node.endpoints(&all);
                ops.sort_by_key(|op| match op {
                    Op::AddDestination(_, real) => Some(real.target),
                    _ => None,
                });
                ops
            }
            Self::OneByOne => {
                // 7 and 10 have no common divisor, so each endpoint occurs once.
                let order: Vec<u8> = all.iter().map(|at| at * 7 % ENDPOINTS).collect();
                let parts = (1..=order.len()).map(|count| order[..count].to_vec());
                parts.flat_map(|hosts| node.endpoints(&hosts)).collect()
            }
        }
    }
}

type Measure = fn(&mut Lab);

fn percent(part: usize, of: usize) -> String {
    format!("{:.1} %", 100.0 * part as f64 / of as f64)
}

/// Prints the busiest endpoint's share of all nodes' connections.
fn spread(lab: &mut Lab) {
    println!("| scheduler | endpoints come | 1 connection a node | 2 | 4 |\n|---|---|---|---|---|");
    let all = [Arrival::Ascending, Arrival::AtOnce, Arrival::OneByOne];
    let mut bars = Vec::new();
    for scheduler in ["rr", "wrr", "lc", "wlc", "sed", "nq", "mh"] {
        for arrival in all {
            let mut nodes = lab.nodes(NODES, scheduler, "");
            for node in &mut nodes {
                let ops = arrival.writes(node);
                lab.write(ops);
            }
            let mut busy = BTreeMap::<u8, usize>::new();
            let (mut open, mut shares) = (Vec::new(), Vec::new());
            for round in 1..=CONNECTIONS[CONNECTIONS.len() - 1] {
                for (number, node) in (0..).zip(&nodes) {
                    let client = Ipv4Addr::new(10, 1, number, round);
                    let (endpoint, connection) = lab.open(client, node).expect("served");
                    *busy.entry(endpoint).or_default() += 1;
                    open.push(connection);
                }
                if CONNECTIONS.contains(&round) {
                    let most = *busy.values().max().unwrap();
                    shares.push(percent(most, open.len()));
                    if ["rr", "mh"].contains(&scheduler) {
                        let name = format!("{scheduler}, {}: {round} per node", arrival.words());
                        bars.push((name, 100.0 * most as f64 / open.len() as f64));
                    }
                }
            }
            let shares = shares.join(" | ");
            println!("| `{scheduler}` | {} | {shares} |", arrival.words());
        }
    }
    let title = format!("Connections of the busiest of {ENDPOINTS} endpoints, {NODES} nodes");
    let unit = format!("% of all, ideal {}", 100 / ENDPOINTS);
    lab.draw("spread.svg", charts::bars(&title, &unit, &bars));
}

/// Prints whether all nodes choose the same endpoint for a client.
fn agreement(lab: &mut Lab) {
    println!(
        "\n| scheduler | endpoints come | clients with one endpoint at all nodes | connections elsewhere |\n|---|---|---|---|"
    );
    for (scheduler, flags) in [("mh", "none"), ("sh", "none")] {
        for (words, arrivals) in [
            ("at once at all nodes", [Arrival::AtOnce, Arrival::AtOnce]),
            (
                "one by one at half of the nodes",
                [Arrival::AtOnce, Arrival::OneByOne],
            ),
        ] {
            let mut nodes = lab.nodes(NODES, scheduler, flags);
            for (node, arrival) in nodes.iter_mut().zip(arrivals.iter().cycle()) {
                let ops = arrival.writes(node);
                lab.write(ops);
            }
            let (mut agreed, mut elsewhere, mut all) = (0, 0, 0);
            for client in 0..CLIENTS {
                let mut chosen = BTreeMap::<Reached, usize>::new();
                for node in &nodes {
                    let reached = lab.ask(Ipv4Addr::new(10, 1, 0, client), node);
                    *chosen.entry(reached).or_default() += 1;
                }
                let most = chosen.values().max().unwrap();
                agreed += usize::from(chosen.len() == 1);
                elsewhere += nodes.len() - most;
                all += nodes.len();
            }
            println!(
                "| `{scheduler}` | {words} | {} | {} |",
                percent(agreed, CLIENTS.into()),
                percent(elsewhere, all)
            );
        }
    }
}

/// Prints how many clients reach another endpoint, or none, after the endpoints have changed.
fn moves(lab: &mut Lab) {
    println!(
        "\n| scheduler | flags | refused while one of {ENDPOINTS} drains | moved then | moved when it is gone | moved by an 11th |\n|---|---|---|---|---|---|"
    );
    for (scheduler, flags) in [
        ("mh", "none"),
        ("mh", "mh-fallback"),
        ("sh", "none"),
        ("sh", "sh-fallback"),
    ] {
        let mut nodes = lab.nodes(1, scheduler, flags);
        let node = &mut nodes[0];
        let mut hosts: Vec<u8> = (0..ENDPOINTS).collect();
        lab.write(node.endpoints(&hosts));
        let first = lab.ask_all(node);
        let removed = hosts.remove(4);
        lab.write(node.endpoints(&hosts));
        let draining = lab.ask_all(node);
        lab.write(node.end_drains());
        let gone = lab.ask_all(node);
        assert!(!gone.contains(&Some(removed)) && !gone.contains(&None));
        hosts.push(removed);
        lab.write(node.endpoints(&hosts));
        let back = lab.ask_all(node);
        hosts.push(ENDPOINTS);
        lab.write(node.endpoints(&hosts));
        let grown = lab.ask_all(node);
        let moved = |before: &[Reached], after: &[Reached]| {
            let pairs = before.iter().zip(after);
            let moved = pairs.filter(|(before, after)| after.is_some() && before != after);
            percent(moved.count(), before.len())
        };
        let refused = draining.iter().filter(|reached| reached.is_none()).count();
        println!(
            "| `{scheduler}` | {flags} | {} | {} | {} | {} |",
            percent(refused, draining.len()),
            moved(&first, &draining),
            moved(&first, &gone),
            moved(&back, &grown)
        );
    }
    let ideal = percent(1, ENDPOINTS.into());
    println!(
        "\nIdeal: {ideal} for one of {ENDPOINTS} that is gone, {} for an 11th.",
        percent(1, 11)
    );
}

/// Connection limit of each endpoint in the Services that have one.
const CEILING: u16 = 20;

/// Prints how many connections the kernel refuses because endpoints are full.
fn full(lab: &mut Lab) {
    let ceiling = CEILING.to_string();
    let limit = (MAX_CONNECTIONS, &*ceiling);
    let room = u16::from(ENDPOINTS) * CEILING;
    let half = room / 2;
    println!(
        "\n| scheduler | flags | refused of {half} connections, with room for {room} |\n|---|---|---|"
    );
    let flags = [
        ("rr", "none"),
        ("mh", "none"),
        ("mh", "mh-fallback"),
        ("sh", "none"),
        ("sh", "sh-fallback"),
    ];
    for (scheduler, flags) in flags {
        let annotations = [(SCHEDULER, scheduler), (SCHEDULER_FLAGS, flags), limit];
        let mut nodes = lab.nodes_with(1, &annotations, None);
        let all: Vec<u8> = (0..ENDPOINTS).collect();
        lab.write(nodes[0].endpoints(&all));
        // Only two clients, so that hashing schedulers fill their endpoints.
        let client = |number: u16| Ipv4Addr::new(10, 1, 0, (number % 2) as u8);
        let open: Vec<_> = (0..half)
            .map(|number| lab.open(client(number), &nodes[0]))
            .collect();
        let refused = open.iter().filter(|one| one.is_none()).count();
        println!("| `{scheduler}` | {flags} | {refused} |");
    }

    println!("\n| one full endpoint, ceiling {CEILING} | new connection |\n|---|---|");
    let client = Ipv4Addr::new(10, 1, 0, 1);
    let mut cases = Vec::new();
    for left in [16, 15, 14] {
        let mut nodes = lab.nodes_with(1, &[limit], None);
        lab.write(nodes[0].endpoints(&[0]));
        let mut open: Vec<_> = (0..CEILING)
            .map(|_| lab.open(client, &nodes[0]).unwrap())
            .collect();
        assert!(lab.open(client, &nodes[0]).is_none(), "full");
        for (_, [connection, _]) in open.drain(left..) {
            set_socket_linger(&connection, Some(Duration::ZERO)).unwrap();
        }
        let words = |reached: Reached| {
            if reached.is_some() {
                "served"
            } else {
                "refused"
            }
        };
        let at_once = words(lab.ask(client, &nodes[0]));
        println!("| {left} connections left, the others just closed | {at_once} |");
        cases.push((left, nodes, open));
    }
    // IPVS keeps a connection for 10 s after a reset.
    std::thread::sleep(Duration::from_secs(13));
    for (left, nodes, _open) in &cases {
        let later = lab.ask(client, &nodes[0]).map_or("refused", |_| "served");
        println!("| {left} connections left, the entries of the others expired | {later} |");
    }

    let mut nodes = lab.nodes_with(1, &[limit], Some(10_800));
    let all: Vec<u8> = (0..ENDPOINTS).collect();
    lab.write(nodes[0].endpoints(&all));
    let open: Vec<_> = (0..2 * CEILING)
        .filter_map(|_| lab.open(client, &nodes[0]))
        .collect();
    let reached: std::collections::BTreeSet<u8> =
        open.iter().map(|(endpoint, _)| *endpoint).collect();
    println!(
        "\n`sessionAffinity: ClientIP`: one client has {} connections to {} endpoint(s), ceiling {CEILING}.",
        open.len(),
        reached.len()
    );
}

/// Prints the share of connections that near endpoints get in a Service with endpoint weights.
fn weights(lab: &mut Lab) {
    const VALUE: &str = "local=4,zone=2";
    println!(
        "\n| scheduler | to 1 endpoint here | to 3 in the zone | to 6 elsewhere |\n|---|---|---|---|"
    );
    // One endpoint on this node, three in its zone, six elsewhere. The sums of their weights are 4,
    // 6 and 6.
    let placed = |host: u8| Endpoint {
        address: [10, 244, 0, host].into(),
        ready: true,
        serving: true,
        terminating: false,
        placement: Arc::new(Placement {
            node: Some(if host == 0 { "node-0" } else { "other" }.into()),
            zone: Some(if host < 4 { "a" } else { "b" }.into()),
            ..Placement::default()
        }),
    };
    for scheduler in ["wrr", "wlc", "sed", "nq", "mh"] {
        let annotations = [(SCHEDULER, scheduler), (WEIGHTS, VALUE)];
        let node = &mut lab.nodes_with(1, &annotations, None)[0];
        node.world.node(proxy::Node {
            name: "node-0".into(),
            zone: Some("a".into()),
            ..proxy::Node::default()
        });
        node.world.slice(EndpointSlice {
            family: IpFamily::V4,
            endpoints: (0..ENDPOINTS).map(placed).collect(),
            ..slice("default/web", &[])
        });
        node.world.sync();
        lab.write(node.writes());
        let mut counts = [0; 3];
        let mut open = Vec::new();
        for number in 0..160 {
            let client = Ipv4Addr::new(10, 1, 1, number);
            let (endpoint, connection) = lab.open(client, node).expect("served");
            counts[match endpoint {
                0 => 0,
                1..4 => 1,
                _ => 2,
            }] += 1;
            open.push(connection);
        }
        let [local, zone, elsewhere] = counts.map(|count| percent(count, open.len()));
        println!("| `{scheduler}` | {local} | {zone} | {elsewhere} |");
    }
}

/// Prints a new endpoint's share of the open connections during its slow start.
fn slow_start(lab: &mut Lab) {
    const MINUTES: u8 = 9;
    /// Number of connections per minute. All end before the next minute.
    const OPEN: u8 = 200;
    println!(
        "\n| scheduler | minute 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    let mut lines = Vec::new();
    for scheduler in ["wrr", "wlc", "sed", "nq", "mh"] {
        let time = format!("{MINUTES}m");
        let annotations = [(SCHEDULER, scheduler), (SLOW_START, &*time)];
        let node = &mut lab.nodes_with(1, &annotations, None)[0];
        let hosts: Vec<u8> = (0..=ENDPOINTS).collect();
        lab.write(node.endpoints(&hosts[..ENDPOINTS.into()]));
        let mut writes = node.endpoints(&hosts);
        let mut points = Vec::new();
        for minute in 0..=MINUTES + 1 {
            assert_eq!(writes.len(), usize::from(minute <= MINUTES), "{writes:?}");
            lab.write(writes);
            let client = |number| Ipv4Addr::new(10, 3, minute, number);
            let open = (0..OPEN).map(|number| lab.open(client(number), node).expect("served"));
            let open: Vec<_> = open.collect();
            let newest = open.iter().filter(|(endpoint, _)| *endpoint == ENDPOINTS);
            let share = 100.0 * newest.count() as f64 / f64::from(OPEN);
            points.push((f64::from(minute), share));
            for (_, [connection, _]) in &open {
                set_socket_linger(connection, Some(Duration::ZERO)).unwrap();
            }
            node.world.wait(Duration::from_mins(1));
            node.world.settle();
            writes = node.writes();
        }
        let shares: Vec<String> = points
            .iter()
            .map(|(_, share)| format!("{share:.1} %"))
            .collect();
        println!("| `{scheduler}` | {} |", shares.join(" | "));
        lines.push(Line {
            name: scheduler.to_owned(),
            look: lines.len(),
            points,
            over: Vec::new(),
        });
    }
    let title = format!("An 11th endpoint with slow-start: {MINUTES}m");
    let unit = format!("% of {OPEN} concurrent connections");
    lab.draw(
        "slow-start.svg",
        charts::over_time(&title, &unit, 0.0, &lines),
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut lab = Lab::new(arguments.next().map(PathBuf::from));
    let only: Vec<String> = arguments.collect();
    let measurements: [(&str, Measure); 6] = [
        ("spread", spread),
        ("agreement", agreement),
        ("moves", moves),
        ("weights", weights),
        ("slow-start", slow_start),
        ("full", full),
    ];
    for (name, measure) in measurements {
        if only.is_empty() || only.iter().any(|only| only == name) {
            measure(&mut lab);
        }
    }
}
