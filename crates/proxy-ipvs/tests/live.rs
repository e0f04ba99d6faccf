//! Tests of the proxier on the real kernel, with ipset and iptables. They check the results with
//! `ipvsadm`, `ipset`, `iptables-save` and `ip`.
//!
//! Each test has a simulated node in its own network namespace, with one interface, `eth0`
//! (192.168.99.10/24 and fd00:99::10/64). `tests/dualstack/` has dumps of the entries that
//! upstream's kube-proxy 1.36.2 writes for the same objects on the same node.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use iptables::SourcePort;
use namespace::in_namespace;
use proxy::{
    Event, IpFamily, Kind, LocalDetector, Mode as _, Model, NodeFacts, Protocol, Service,
    ServiceAddress, Target, Unreadable,
};
use proxy_ipvs::{
    Config, Fault, FoundAddresses, FoundRules, FoundSets, Glance, Iptables, Kernel, Lanes, Member,
    NetlinkKernel, Op, Outcome, Plan, Properties, Proxier, RealServer, Rules, Set, Shim, VipMode,
    VirtualServer, VirtualServerKey, probe_scheduler,
};
use route_netlink::{Lookup, Rtnetlink};
use support::{
    DumpableKernel as _, NODE, SyncSummary, ip, name, read_ahead, server, service, slice,
};

/// Runs a test in a thread of its own, in the network namespace of its simulated node.
fn on_a_node(story: impl FnOnce() + Send + 'static) {
    in_namespace(move || {
        sh(
            "modprobe -q ipv6 || true; ip link set lo up; ip link add eth0 type veth peer name peer0
            ip addr add 192.168.99.10/24 dev eth0; ip -6 addr add fd00:99::10/64 dev eth0 nodad
            ip link set peer0 up; ip link set eth0 up; ip route add default dev eth0",
        );
        story();
    });
}

/// Runs a shell script in the calling thread's network namespace, and returns its output.
fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// A simulated node: the proxiers of both IP families, and the model that feeds them.
struct Node {
    model: Model,
    iptables: Iptables,
    proxiers: Vec<Proxier<CountingKernel>>,
    /// Number of netlink messages that both proxiers have sent for writes.
    sent: Arc<AtomicU32>,
    now: Instant,
}

/// Kernel access that counts the netlink messages of all writes.
struct CountingKernel(NetlinkKernel, Arc<AtomicU32>);

impl Kernel for CountingKernel {
    fn read_servers(&mut self) -> Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable> {
        self.0.read_servers()
    }

    fn read_sets(&mut self) -> Result<FoundSets, Unreadable> {
        self.0.read_sets()
    }

    fn read_addresses(&mut self) -> Result<FoundAddresses, Unreadable> {
        self.0.read_addresses()
    }

    fn read_rules(&mut self) -> Result<FoundRules, Unreadable> {
        self.0.read_rules()
    }

    fn glance(&mut self, one: &VirtualServerKey) -> Result<Glance, Unreadable> {
        self.0.glance(one)
    }

    fn load_scheduler(&mut self, name: &str) -> Result<(), String> {
        self.0.load_scheduler(name)
    }

    fn apply(&mut self, plan: &Plan) -> Vec<Outcome> {
        let before = self.0.sent();
        let outcomes = self.0.apply(plan);
        self.1.fetch_add(self.0.sent() - before, Ordering::Relaxed);
        outcomes
    }

    fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable> {
        self.0.connections(keys)
    }
}

fn config(family: IpFamily, iptables: &Iptables) -> Config {
    let pods = match family {
        IpFamily::V4 => "10.244.0.0/16",
        IpFamily::V6 => "fd00:244::/56",
    };
    Config {
        detector: LocalDetector::SourceNet(pods.parse().unwrap()),
        source_port: iptables.source_port(),
        ..Config::default()
    }
}

impl Node {
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// Starts a simulated daemon with a changed configuration. Its initial lists are complete and
    /// empty.
    fn with(change: impl Fn(&mut Config)) -> Self {
        Self::in_vip_mode(VipMode::Address, change)
    }

    /// Starts a simulated daemon with this `--ipvs-vip-mode`. Its initial lists are complete and
    /// empty.
    fn in_vip_mode(vip_mode: VipMode, change: impl Fn(&mut Config)) -> Self {
        let iptables = Iptables::choose(None).unwrap();
        let sent = Arc::new(AtomicU32::new(0));
        let now = Instant::now();
        let proxier = |family| {
            let mut config = Config {
                vip_mode,
                ..config(family, &iptables)
            };
            change(&mut config);
            let lanes = Lanes::inline(|| {
                let kernel = NetlinkKernel::open(family, iptables.clone()).unwrap();
                CountingKernel(kernel.with_vip_mode(vip_mode), Arc::clone(&sent))
            });
            Proxier::new(config, NodeFacts::new(family, NODE), lanes, now)
        };
        let mut model = Model::new();
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            model.apply(Event::ListStarted(kind));
            model.apply(Event::ListComplete {
                kind,
                is_whole: true,
            });
        }
        model.apply(Event::NodeApplied(proxy::Node {
            name: NODE.into(),
            addresses: vec![ip("192.168.99.10"), ip("fd00:99::10")],
            ..proxy::Node::default()
        }));
        Self {
            model,
            proxiers: IpFamily::ALL.map(proxier).into(),
            iptables,
            sent,
            now,
        }
    }

    fn add(&mut self, service: Service, endpoints: &[&[&str]]) {
        for endpoints in endpoints {
            self.endpoints(&service, endpoints);
        }
        self.model.apply(Event::ServiceApplied(service));
    }

    /// Replaces a Service's EndpointSlice for the IP family of these endpoints.
    fn endpoints(&mut self, of: &Service, endpoints: &[&str]) {
        let at = format!("{}/{}", of.name.namespace(), of.name.name());
        let mut slice = slice(&at, endpoints);
        slice.name = name(&format!("{at}-{}", slice.family));
        slice.ports[0].protocol = of.ports[0].protocol;
        self.model.apply(Event::SliceApplied(slice));
    }

    fn delete(&mut self, at: &str) {
        self.model.apply(Event::ServiceDeleted(name(at)));
    }

    /// Handles all pending events, as the daemon does. Returns a summary per IP family.
    fn sync(&mut self) -> Vec<SyncSummary> {
        let changes = self.model.take_changes();
        let model = &self.model;
        let sync = |proxier: &mut Proxier<CountingKernel>| {
            read_ahead(proxier, model, self.now);
            proxier.update(model, &changes, self.now);
            support::settle(proxier, model, &mut self.now)
        };
        self.proxiers.iter_mut().map(sync).collect()
    }

    /// Syncs until no write is pending. Returns the number of writes.
    fn settle(&mut self) -> usize {
        let all = self.sync();
        for synced in &all {
            assert!(
                synced.failures.is_empty() && synced.pending == 0 && synced.unreadable.is_empty(),
                "{synced:?}"
            );
        }
        all.iter().map(|synced| synced.written).sum()
    }

    /// Syncs until no write is pending. Returns the number of netlink messages for the writes.
    fn messages(&mut self) -> u32 {
        self.sent.store(0, Ordering::Relaxed);
        self.settle();
        self.sent.load(Ordering::Relaxed)
    }

    /// Checks for drift, including rules, and repairs it. Returns the number of writes.
    fn resettle(&mut self) -> usize {
        self.now += Duration::from_secs(31);
        for proxier in &mut self.proxiers {
            proxier.check(self.now);
        }
        self.settle()
    }

    /// Reads the kernel entries that the golden dumps contain.
    fn dump(&self) -> Dump {
        let backend = self.iptables.backend();
        Dump {
            servers: lines(&sh("ipvsadm -Sn")),
            sets: lines(&sh("ipset save")),
            rules: rules(&sh(&format!("iptables-{backend}-save"))),
            rules6: rules(&sh(&format!("ip6tables-{backend}-save"))),
            bound: lines(&sh(
                "ip -o addr show dev kube-ipvs0 | awk '$4 !~ /^fe80/ {print $4}'",
            )),
        }
    }
}

/// Kernel entries, in the form of the golden dumps. Lists without a meaningful order are sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Dump {
    servers: BTreeSet<String>,
    sets: BTreeSet<String>,
    rules: BTreeMap<String, Vec<String>>,
    rules6: BTreeMap<String, Vec<String>>,
    bound: BTreeSet<String>,
}

impl Dump {
    /// Returns the destinations of a virtual server, each with its weight: `10.244.1.5:8080=1`.
    fn destinations(&self, at: &str) -> Vec<String> {
        let prefix = format!("-a {at} -r ");
        let lines = self.servers.iter();
        let destinations = lines.filter_map(|line| line.strip_prefix(&prefix));
        destinations
            .map(|line| line.replace(" -m -w ", "="))
            .collect()
    }
}

fn lines(text: &str) -> BTreeSet<String> {
    let without_chance = |line: &str| {
        let end = line.find(" bucketsize").unwrap_or(line.len());
        line[..end].to_owned()
    };
    text.lines().map(without_chance).collect()
}

/// Returns the rules in order, by table and chain (`TABLE CHAIN`). Omits other programs' empty
/// chains.
fn rules(saved: &str) -> BTreeMap<String, Vec<String>> {
    let (mut table, mut chains) = (String::new(), BTreeMap::<String, Vec<String>>::new());
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            name.clone_into(&mut table);
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let chain = rule.split(' ').next().unwrap();
            let chain = chains.entry(format!("{table} {chain}")).or_default();
            chain.push(line.to_owned());
        } else if line.starts_with(":KUBE-") {
            let chain = line[1..].split(' ').next().unwrap();
            chains.entry(format!("{table} {chain}")).or_default();
        }
    }
    chains
}

fn golden() -> Dump {
    Dump {
        servers: lines(include_str!("dualstack/ipvsadm-save")),
        sets: lines(include_str!("dualstack/ipset-save")),
        rules: rules(include_str!("dualstack/iptables-save")),
        rules6: rules(include_str!("dualstack/ip6tables-save")),
        bound: lines(include_str!("dualstack/kube-ipvs0-addresses")),
    }
}

fn kubernetes() -> Service {
    service("default/kubernetes", "10.96.0.1", 443)
}

/// Returns the Service of the golden dumps, which has every kind of address in both IP families.
fn web() -> Service {
    let mut web = service("default/web", "10.96.10.10", 80);
    web.cluster_ips.push(ip("fd00:96::10"));
    web.kind = proxy::ServiceType::LoadBalancer;
    web.ports[0].node_port = Some(30080);
    web.external_ips = vec![ip("198.51.100.7"), ip("2001:db8:1::7")];
    web.ingress_ips = vec![ip("203.0.113.10"), ip("2001:db8::10")];
    web.source_ranges = ["198.51.100.0/24", "2001:db8:2::/64", "fd00:99::/64"]
        .map(|net| net.parse().unwrap())
        .into();
    web
}

const PODS: [&str; 3] = ["10.244.1.5@node1", "10.244.2.5@node2", "10.244.3.5@node2"];
const PODS6: [&str; 2] = ["fd00:244:1::5@node1", "fd00:244:2::5@node2"];

/// Returns a simulated node that serves the golden dumps' Service.
fn golden_node() -> Node {
    serving_golden(Node::new())
}

fn serving_golden(mut node: Node) -> Node {
    node.add(kubernetes(), &[]);
    node.add(web(), &[&PODS, &PODS6]);
    node.settle();
    node
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn the_kernel_state_equals_the_state_that_upstream_writes() {
    on_a_node(|| {
        let mut node = golden_node();
        let (found, golden) = (node.dump(), golden());
        assert_eq!(found.servers, golden.servers);
        assert_eq!(found.sets, golden.sets);
        assert_eq!(found.rules, golden.rules);
        assert_eq!(found.rules6, golden.rules6);
        assert_eq!(found.bound, golden.bound);
        let link = sh("ip -o -d link show kube-ipvs0");
        assert!(link.contains("dummy") && !link.contains("UP"), "{link}");

        assert_eq!(node.resettle(), 0, "a resync without drift writes nothing");
        let mut restarted = golden_node();
        assert_eq!(restarted.dump(), golden, "a restart changes nothing");
        assert_eq!(restarted.resettle(), 0);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn each_changed_entry_costs_one_netlink_message() {
    on_a_node(|| {
        let mut node = golden_node();
        let mut pods = PODS.to_vec();
        // A new endpoint costs one message per virtual server: cluster IP, external IP, load
        // balancer and NodePort.
        pods.push("10.244.3.6@node2");
        node.endpoints(&web(), &pods);
        assert_eq!(node.messages(), 4, "an endpoint elsewhere");
        pods.push("10.244.1.6@node1");
        node.endpoints(&web(), &pods);
        assert_eq!(node.messages(), 4 + 1, "an endpoint here: also loop-back");
        // The removed endpoint has no connections, so its destination gets weight 0 and is removed
        // immediately, and so is its loop-back member.
        pods.pop();
        node.endpoints(&web(), &pods);
        assert_eq!(node.messages(), 4 + 4 + 1, "it goes");
        let new = service("default/new", "10.96.10.20", 80);
        node.add(new, &[&["10.244.2.7@node2", "10.244.2.8@node2"]]);
        // A new Service costs seven messages: two set members, the virtual server, two
        // destinations, the address, and a query of the link.
        assert_eq!(node.messages(), 2 + 1 + 2 + 2, "a Service more");
        assert_eq!(node.messages(), 0);
        node.resettle();
        pods.push("10.244.3.7@node2");
        node.endpoints(&web(), &pods);
        assert_eq!(node.messages(), 4, "also after a dump");
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn protocols_affinity_and_schedulers_reach_the_kernel() {
    on_a_node(|| {
        let mut node = Node::with(|config| config.scheduler = "mh".into());
        for (at, cluster_ip, protocol) in [
            ("kube-system/dns", "10.96.10.10", Protocol::Udp),
            ("default/calls", "10.96.10.11", Protocol::Sctp),
            ("default/sticky", "fd00:96::12", Protocol::Tcp),
        ] {
            let mut service = service(at, cluster_ip, 53);
            service.ports[0].protocol = protocol;
            if protocol == Protocol::Tcp {
                service.affinity_seconds = Some(300);
                node.add(service, &[&["fd00:244:2::5@node2"]]);
            } else {
                service.ports[0].node_port = Some(30053);
                node.add(service, &[&["10.244.1.5@node1"]]);
            }
        }
        node.settle();
        let found = node.dump();
        let servers = [
            "-A --sctp-service 10.96.10.11:53 -s mh -b mh-port",
            "-A --sctp-service 192.168.99.10:30053 -s mh -b mh-port",
            "-A -t [fd00:96::12]:53 -s mh -p 300 -b mh-port",
            "-A -u 10.96.10.10:53 -s mh -b mh-port",
            "-A -u 192.168.99.10:30053 -s mh -b mh-port",
            "-a --sctp-service 10.96.10.11:53 -r 10.244.1.5:8080 -m -w 1",
            "-a --sctp-service 192.168.99.10:30053 -r 10.244.1.5:8080 -m -w 1",
            "-a -t [fd00:96::12]:53 -r [fd00:244:2::5]:8080 -m -w 1",
            "-a -u 10.96.10.10:53 -r 10.244.1.5:8080 -m -w 1",
            "-a -u 192.168.99.10:30053 -r 10.244.1.5:8080 -m -w 1",
        ];
        assert_eq!(found.servers, servers.map(str::to_owned).into());
        for entry in [
            "add KUBE-NODE-PORT-SCTP-HASH 192.168.99.10,sctp:30053",
            "add KUBE-NODE-PORT-UDP 30053",
            "add KUBE-CLUSTER-IP 10.96.10.11,sctp:53",
            "add KUBE-LOOP-BACK 10.244.1.5,sctp:8080,10.244.1.5",
        ] {
            assert!(found.sets.contains(entry), "{entry}");
        }
        assert_eq!(node.resettle(), 0);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn each_rule_that_the_proxier_wrote_reads_back_unchanged() {
    on_a_node(|| {
        let iptables = Iptables::choose(None).unwrap();
        for family in IpFamily::ALL {
            let mut kernel = NetlinkKernel::open(family, iptables.clone()).unwrap();
            let sets = Set::all().map(|set| Op::CreateSet(set, 65_536)).collect();
            assert_done(&kernel.apply(&Plan { ops: sets }));
            let (net, address) = match family {
                IpFamily::V4 => ("10.244.0.0/16", "203.0.113.10"),
                IpFamily::V6 => ("fd00:244::/56", "2001:db8::10"),
            };
            let detectors = [
                LocalDetector::None,
                LocalDetector::SourceNet(net.parse().unwrap()),
                LocalDetector::Bridge("cni0".into()),
                LocalDetector::InterfacePrefix("veth".into()),
            ];
            let mut installed = Arc::new(Rules::default());
            for detector in detectors {
                let sources = [(false, SourcePort::Random), (true, SourcePort::Kept)];
                for (masquerade_all, source_port) in sources {
                    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
                    let shim = Shim {
                        family,
                        filled: Set::all().collect(),
                        forbidden_to_node: protocols
                            .map(|protocol| ServiceAddress::new(ip(address), 80, protocol))
                            .into(),
                        ranges: proxy_ipvs::Ranges::default(),
                    };
                    let wanted = Arc::new(shim.rules(&Config {
                        detector: detector.clone(),
                        masquerade_all,
                        source_port,
                        masquerade_mark: 1 << 31,
                        ..Config::default()
                    }));
                    let ops = vec![Op::WriteRules {
                        wanted: wanted.clone(),
                        installed,
                    }];
                    assert_done(&kernel.apply(&Plan { ops }));
                    assert_eq!(kernel.dump(true).unwrap().rules.as_ref(), Some(&*wanted));
                    installed = wanted;
                }
            }
        }
    });
}

fn assert_done(outcomes: &[Outcome]) {
    assert!(
        outcomes.iter().all(|outcome| *outcome == Outcome::Done),
        "{outcomes:?}"
    );
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn the_removal_of_all_services_keeps_entries_of_other_programs() {
    on_a_node(|| {
        let mut node = golden_node();
        let backend = node.iptables.backend();
        sh(&format!(
            "ipvsadm -A -t 9.9.9.9:9 -s rr; ipvsadm -a -t 9.9.9.9:9 -r 9.9.9.8:9 -g
             ipvsadm -A -t 192.168.99.10:9 -s wrr; ipvsadm -A -f 7 -s rr; ipvsadm -A -f 8 -6 -s rr
             ipset create OTHER hash:net; ipset add OTHER 10.0.0.0/8
             iptables-{backend} -t nat -N OTHER; iptables-{backend} -t nat -A OTHER -j RETURN
             iptables-{backend} -t nat -I PREROUTING -j OTHER
             iptables-{backend} -N KUBE-ROUTER-FOREIGN
             ip addr add 192.168.99.11/32 dev eth0"
        ));
        let before = node.dump();
        // Ignores the state of duplicate address detection, which the kernel changes by itself.
        let interfaces = || sh("ip -o addr show dev eth0").replace(" tentative", "");
        let interfaces_before = interfaces();
        let mut foreign = before.servers.clone();
        foreign.retain(|line| !golden().servers.contains(line));
        assert_eq!(foreign.len(), 5, "{foreign:?}");

        node.endpoints(&web(), &PODS[..2]);
        node.settle();
        let found = node.dump();
        for at in [
            "-t 10.96.10.10:80",
            "-t 192.168.99.10:30080",
            "-t 198.51.100.7:80",
        ] {
            let left = ["10.244.1.5:8080=1", "10.244.2.5:8080=1"];
            assert_eq!(found.destinations(at), left, "{at}");
        }

        for at in ["default/web", "default/kubernetes"] {
            node.delete(at);
        }
        node.settle();
        let found = node.dump();
        assert_eq!(found.servers, foreign);
        assert_eq!(found.bound, BTreeSet::new());
        let entries = found.sets.iter().filter(|line| line.starts_with("add"));
        assert_eq!(entries.collect::<Vec<_>>(), ["add OTHER 10.0.0.0/8"]);
        assert_eq!(found.rules["nat OTHER"], ["-A OTHER -j RETURN"]);
        assert_eq!(found.rules["nat PREROUTING"][0], "-A PREROUTING -j OTHER");
        assert!(found.rules.contains_key("filter KUBE-ROUTER-FOREIGN"));
        assert_eq!(interfaces(), interfaces_before);
        assert_eq!(node.resettle(), 0);
        // The proxier reads and counts fwmark virtual servers like any other, and recognizes their
        // ownership flag.
        let of = |mark| VirtualServerKey::Mark {
            family: IpFamily::V4,
            mark,
        };
        let noted = Properties {
            flags: Properties::OWNED,
            ..properties("rr")
        };
        let mut kernel = open(IpFamily::V4);
        assert_done(&apply(&mut kernel, [Op::AddServer(of(9), noted)]));
        let servers = kernel.read_servers().unwrap();
        assert!(servers.contains_key(&of(7)) && servers[&of(9)].properties.is_owned());
        let count = u32::try_from(servers.len()).unwrap();
        assert_eq!(kernel.glance(&of(7)), Ok(Glance::Count(count)));
        assert_ne!(node.resettle(), 0);
        assert_eq!(node.dump().servers, foreign);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn a_resync_repairs_each_kind_of_damage() {
    on_a_node(|| {
        let mut node = golden_node();
        let intact = node.dump();
        let backend = node.iptables.backend();
        let damages = [
            "ipvsadm -C".to_owned(),
            "ipvsadm -d -t 10.96.10.10:80 -r 10.244.1.5:8080; ipvsadm -E -t [fd00:96::10]:80 -s wrr -p 60".to_owned(),
            "ipvsadm -e -t 10.96.10.10:80 -r 10.244.1.5:8080 -m -w 9".to_owned(),
            "ipset flush".to_owned(),
            "ipset add KUBE-NODE-PORT-TCP 1; ipset del KUBE-6-LOAD-BALANCER 2001:db8::10,tcp:80".to_owned(),
            format!("iptables-{backend} -t nat -F KUBE-SERVICES"),
            format!("iptables-{backend}-save | sed 's/:KUBE-[A-Z-]* .*//; /KUBE-/d' | iptables-{backend}-restore"),
            format!("ip6tables-{backend} -t filter -D INPUT 1; ip6tables-{backend} -t nat -F"),
            "ip addr del 10.96.10.10/32 dev kube-ipvs0; ip -6 addr del fd00:96::10/128 dev kube-ipvs0".to_owned(),
            "ip addr add 10.1.2.3/24 dev kube-ipvs0; ip -6 addr add fd00::7/64 dev kube-ipvs0".to_owned(),
            "ip link del kube-ipvs0".to_owned(),
            format!("for tables in iptables-{backend} ip6tables-{backend}; do $tables -F; $tables -t nat -F; done; ipset destroy || ipset flush"),
        ];
        for damage in damages {
            sh(&damage);
            assert_ne!(node.dump_or_nothing(), Some(intact.clone()), "{damage}");
            assert_ne!(node.resettle(), 0, "{damage}");
            assert_eq!(node.dump(), intact, "{damage}");
            assert_eq!(node.resettle(), 0, "{damage}");
        }
    });
}

impl Node {
    fn dump_or_nothing(&self) -> Option<Dump> {
        let has_link = sh("ip -o link").contains("kube-ipvs0");
        has_link.then(|| self.dump())
    }
}

/// Returns the service addresses that have a local route.
fn routes() -> BTreeSet<String> {
    let routes = "route show table local dev kube-ipvs0 proto 107";
    let routes = sh(&format!("ip -4 {routes}; ip -6 {routes}"));
    let address = |line: &str| line.split(' ').nth(1).map(str::to_owned);
    routes.lines().filter_map(address).collect()
}

/// Checks that the kernel routes packets to these addresses to this node throughout the run of
/// `happens`.
fn lead_here_while<T>(addresses: &BTreeSet<String>, happens: impl FnOnce() -> T) -> T {
    let mut asking = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut questions, mut answers) =
        (asking.stdin.take().unwrap(), asking.stdout.take().unwrap());
    let is_over = AtomicBool::new(false);
    let (result, seen) = thread::scope(|scope| {
        scope.spawn(|| {
            let round = addresses.iter().map(|ip| format!("route get {ip}\n"));
            let round: String = round.collect();
            while !is_over.load(Ordering::Relaxed) {
                questions.write_all(round.as_bytes()).unwrap();
            }
            drop(questions);
        });
        let seen = scope.spawn(move || {
            let mut seen = String::new();
            answers.read_to_string(&mut seen).unwrap();
            seen
        });
        let result = happens();
        is_over.store(true, Ordering::Relaxed);
        (result, seen.join().unwrap())
    });
    assert!(asking.wait().unwrap().success());
    let leads: Vec<_> = seen.lines().filter(|line| !line.starts_with(' ')).collect();
    assert!(leads.len() > 20 * addresses.len(), "{} looks", leads.len());
    let elsewhere = leads.iter().find(|line| !line.starts_with("local "));
    assert_eq!(elsewhere, None);
    result
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn a_restart_changes_bound_addresses_to_local_routes_and_back() {
    on_a_node(|| {
        let addressed = golden_node().dump();
        let bound = addressed.bound.iter();
        let all: BTreeSet<_> = bound
            .map(|net| net.split('/').next().unwrap().to_owned())
            .collect();
        assert!(all.len() > 4 && routes().is_empty());

        let route = || serving_golden(Node::in_vip_mode(VipMode::Route, |_| {}));
        let mut node = lead_here_while(&all, route);
        let routed = Dump {
            bound: BTreeSet::from(["127.107.0.1/32".to_owned()]),
            ..addressed.clone()
        };
        assert_eq!((node.dump(), routes()), (routed.clone(), all.clone()));
        assert_eq!(node.resettle(), 0, "a resync without drift writes nothing");
        assert_eq!(route().resettle(), 0, "nor does a restart");
        for damage in [
            "ip route del local 10.96.10.10 table local; ip -6 route del local fd00:96::10 dev kube-ipvs0 table local",
            "ip link set kube-ipvs0 down",
            "ip addr del 127.107.0.1/32 dev kube-ipvs0",
            "ip link del kube-ipvs0",
            "ip route add local 10.96.7.7 dev kube-ipvs0 table local proto 107",
            "ip addr add 10.96.10.10/32 dev kube-ipvs0; ip addr add fd00:96::10/128 dev kube-ipvs0",
        ] {
            sh(damage);
            assert_ne!(node.resettle(), 0, "{damage}");
            assert_eq!(
                (node.dump(), routes()),
                (routed.clone(), all.clone()),
                "{damage}"
            );
            assert_eq!(node.resettle(), 0, "{damage}");
        }
        // A route with another protocol number, or on another link, is not ours. So it does not
        // prove that the proxy owns a virtual server.
        sh("ipvsadm -A -t 10.96.7.8:80 -s rr; ip route add local 10.96.7.8 dev kube-ipvs0 table local proto 107
            ipvsadm -A -t 10.96.7.9:80 -s rr; ip route add local 10.96.7.9 dev lo table local proto 107
            ip route add local 10.96.7.10 dev kube-ipvs0 table local proto 4
            ip -6 route add local fd00:96::7 dev kube-ipvs0 table local proto 4");
        node.resettle();
        let servers = sh("ipvsadm -Sn");
        assert!(!servers.contains("10.96.7.8") && servers.contains("10.96.7.9"));
        let left = sh("ip route show table local; ip -6 route show table local");
        for (foreign, there) in [
            ("10.96.7.8", false),
            ("10.96.7.9", true),
            ("10.96.7.10", true),
            ("fd00:96::7", true),
        ] {
            let found = left.contains(&format!("local {foreign} "));
            assert_eq!(found, there, "{foreign}");
        }
        sh("ipvsadm -D -t 10.96.7.9:80");
        node.delete("default/web");
        node.settle();
        assert_eq!(routes(), BTreeSet::from(["10.96.0.1".to_owned()]));

        drop(route());
        let mut node = lead_here_while(&all, golden_node);
        assert_eq!((node.dump(), routes()), (addressed, BTreeSet::new()));
        assert_eq!(node.resettle(), 0);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn open_connections_of_a_removed_endpoint_drain() {
    on_a_node(|| {
        // The endpoints have node addresses instead of pod addresses, to which IPVS forwards as
        // well.
        sh("ip addr add 10.244.1.5/32 dev lo; ip addr add 10.244.2.5/32 dev lo");
        let listener = TcpListener::bind("10.244.1.5:8080").unwrap();
        let mut node = Node::new();
        let web = service("default/web", "10.96.10.10", 80);
        node.add(web.clone(), &[&["10.244.1.5@node1"]]);
        node.settle();
        let mut client = TcpStream::connect("10.96.10.10:80").unwrap();
        let (mut served, _) = listener.accept().unwrap();

        node.endpoints(&web, &["10.244.2.5@node1"]);
        node.settle();
        let draining = ["10.244.1.5:8080=0", "10.244.2.5:8080=1"];
        assert_eq!(node.dump().destinations("-t 10.96.10.10:80"), draining);
        client.write_all(b"still there?").unwrap();
        let mut heard = [0; 12];
        served.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"still there?");

        node.endpoints(&web, &["10.244.1.5@node1", "10.244.2.5@node1"]);
        node.settle();
        let both = ["10.244.1.5:8080=1", "10.244.2.5:8080=1"];
        assert_eq!(node.dump().destinations("-t 10.96.10.10:80"), both);

        node.endpoints(&web, &["10.244.2.5@node1"]);
        node.settle();
        // A reset puts the IPVS connection into state CLOSE, which lasts 10 s.
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        let started = Instant::now();
        while node.dump().destinations("-t 10.96.10.10:80") == draining {
            assert!(
                started.elapsed() < Duration::from_mins(1),
                "it drains for ever"
            );
            thread::sleep(Duration::from_millis(500));
            node.now = Instant::now() + Duration::from_mins(1);
            node.settle();
        }
        assert!(
            started.elapsed() > Duration::from_secs(2),
            "it was not drained"
        );
        assert_eq!(
            node.dump().destinations("-t 10.96.10.10:80"),
            ["10.244.2.5:8080=1"]
        );
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn two_thousand_services_are_programmed_in_one_sync() {
    on_a_node(|| {
        let mut node = Node::new();
        for number in 0..2000 {
            let (high, low) = (number / 250, number % 250 + 1);
            let at = format!("default/s{number}");
            let endpoints = [1, 2].map(|pod| format!("10.24{}.{high}.{low}@node{pod}", 3 + pod));
            let endpoints = endpoints.each_ref().map(String::as_str);
            node.add(
                service(&at, &format!("10.96.{high}.{low}"), 80),
                &[&endpoints],
            );
        }
        node.settle();
        let found = node.dump();
        assert_eq!(found.servers.len(), 3 * 2000);
        let entries = found.sets.iter().filter(|line| line.starts_with("add"));
        assert_eq!(entries.count(), 3 * 2000);
        assert_eq!(found.bound.len(), 2000);
        assert_eq!(node.resettle(), 0);

        node.endpoints(
            &service("default/s7", "10.96.0.8", 80),
            &["10.244.0.8@node1"],
        );
        assert_eq!(node.settle(), 2, "weight 0, then gone");
        for number in 0..2000 {
            node.delete(&format!("default/s{number}"));
        }
        node.settle();
        let found = node.dump();
        assert!(found.servers.is_empty() && found.bound.is_empty());
        assert!(!found.sets.iter().any(|line| line.starts_with("add")));
    });
}

/// Returns true if the kernel looks up the source of packets from eth0 in its routing table. It
/// then rejects packets from the broadcast address, which counts as local.
fn looks_up_sources() -> bool {
    let passes = |source: &str| {
        let asked = format!("route get 10.96.0.1 from {source} iif eth0");
        let answer = Command::new("ip").args(asked.split(' ')).output().unwrap();
        answer.status.success()
    };
    assert!(passes("192.168.99.20") && !passes("192.168.99.10"));
    !passes("192.168.99.255")
}

/// The kernel's default check of a packet's source takes longer the more addresses the node has.
/// With many addresses, the proxier makes the kernel use a route look-up instead.
#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn with_many_bound_addresses_the_kernel_validates_source_addresses_by_a_route_lookup() {
    on_a_node(|| {
        sh(
            "echo 0 | tee /proc/sys/net/ipv4/conf/all/rp_filter > /proc/sys/net/ipv4/conf/eth0/rp_filter",
        );
        let address = |number: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a60_0001 + number));
        let bind = |numbers: std::ops::Range<u32>| -> Vec<Op> {
            numbers
                .map(|number| Op::BindAddress(address(number)))
                .collect()
        };
        let mut kernel = open(IpFamily::V4);
        let messages_for = |kernel: &mut NetlinkKernel, ops: Vec<Op>| {
            let before = kernel.sent();
            assert_done(&apply(kernel, ops));
            kernel.sent() - before
        };
        assert_done(&apply(&mut kernel, [Op::CreateLink]));
        messages_for(&mut kernel, bind(0..4_095));
        assert!(routes().is_empty() && !looks_up_sources());

        // Three messages: a query of the link, the address, and the landmark route.
        assert_eq!(messages_for(&mut kernel, bind(4_095..4_096)), 1 + 2);
        let landmark = BTreeSet::from(["127.107.0.2".to_owned()]);
        assert_eq!(routes(), landmark);
        assert!(looks_up_sources());
        assert_eq!(messages_for(&mut kernel, bind(4_096..4_097)), 1 + 1, "once");

        let mut restarted = open(IpFamily::V4);
        let found = restarted.dump(false).unwrap();
        assert_eq!(
            (found.bound.len(), found.bound_otherwise),
            (4_097, BTreeSet::new())
        );
        assert_eq!(
            messages_for(&mut restarted, bind(4_097..4_098)),
            1 + 1,
            "nor after a restart"
        );

        // Another program, or another kube-proxy, has removed the landmark route.
        sh("ip route del local 127.107.0.2 dev kube-ipvs0 table local");
        restarted.dump(false).unwrap();
        let unbind = vec![Op::UnbindAddress(address(4_097))];
        assert_eq!(messages_for(&mut restarted, unbind), 1 + 2);
        assert_eq!(routes(), landmark);

        // The landmark route disappears with the link, but the kernel continues to look sources up
        // (`fib_has_custom_local_routes`).
        sh(
            "ip link del kube-ipvs0; ip link add kube-ipvs0 type dummy; ip addr add 10.96.0.1/32 dev kube-ipvs0",
        );
        assert!(routes().is_empty() && looks_up_sources());
    });
}

/// Executes a plan with these writes, and returns the outcomes.
fn apply(kernel: &mut NetlinkKernel, ops: impl Into<Vec<Op>>) -> Vec<Outcome> {
    let plan = Plan { ops: ops.into() };
    let outcomes = kernel.apply(&plan);
    assert_eq!(outcomes.len(), plan.ops.len());
    outcomes
}

fn refusal(outcome: &Outcome) -> (&str, Fault) {
    match outcome {
        Outcome::Refused { reason, fault } => (reason, *fault),
        other => panic!("{other:?}"),
    }
}

fn properties(scheduler: &str) -> Properties {
    Properties {
        scheduler: scheduler.into(),
        flags: 0,
        timeout: 0,
    }
}

fn real(at: &str) -> RealServer {
    let at: std::net::SocketAddr = at.parse().unwrap();
    RealServer::new(Target {
        ip: at.ip(),
        port: at.port(),
    })
}

fn open(family: IpFamily) -> NetlinkKernel {
    NetlinkKernel::open(family, Iptables::choose(None).unwrap()).unwrap()
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn each_refused_write_has_a_reason_and_all_other_writes_succeed() {
    on_a_node(|| {
        let mut kernel = open(IpFamily::V4);
        let (good, bad, long) = (
            server("10.0.0.1:80"),
            server("10.0.0.2:80"),
            server("10.0.0.3:80"),
        );
        let outcomes = apply(
            &mut kernel,
            [
                Op::AddServer(bad, properties("nonesuch")),
                Op::AddDestination(bad, real("10.1.0.1:80")),
                Op::AddServer(good, properties("rr")),
                Op::AddServer(long, properties("a-name-of-more-than-15-bytes")),
                Op::AddDestination(good, real("10.1.0.1:80")),
                Op::AddDestination(good, real("224.0.0.1:80")),
                Op::AddDestination(good, real("10.1.0.2:80")),
            ],
        );
        for (index, says, wanted) in [
            (0, "modprobe ip_vs_nonesuch", Fault::Scheduler),
            (1, "was refused", Fault::Node),
            (3, "--ipvs-scheduler", Fault::Node),
            (5, "EndpointSlice", Fault::Entry),
        ] {
            let (reason, fault) = refusal(&outcomes[index]);
            assert!(
                reason.contains(says) && fault == wanted,
                "{index}: {reason}"
            );
        }
        assert_done(&[&outcomes[2..3], &outcomes[4..5], &outcomes[6..]].concat());

        // These writes expect a state that the kernel does not have: they add existing entries, and
        // change missing ones.
        let outcomes = apply(
            &mut kernel,
            [
                Op::AddServer(good, properties("rr")),
                Op::AddDestination(good, real("10.1.0.1:80")),
                Op::SetServer(bad, properties("rr")),
                Op::AddDestination(bad, real("10.1.0.1:80")),
                Op::SetDestination(bad, real("10.1.0.1:80")),
                Op::SetDestination(good, real("10.1.0.9:80")),
                Op::AddMember(
                    Set::ClusterIp,
                    Member::AddressPort(ip("10.0.0.1"), Protocol::Tcp, 80),
                ),
                Op::BindAddress(ip("10.0.0.1")),
            ],
        );
        let (without_link, refused) = outcomes.split_last().unwrap();
        for outcome in refused {
            let (reason, fault) = refusal(outcome);
            assert_eq!(fault, Fault::Belief, "{reason}");
        }
        // The link is missing, as if another program had just removed it. The write has an unknown
        // outcome, so the proxier reads the addresses again.
        assert_eq!(*without_link, Outcome::Unknown);
        // The fault of `SetServer` distinguishes a missing scheduler from a missing virtual server.
        let outcomes = apply(&mut kernel, [Op::SetServer(good, properties("nonesuch"))]);
        assert_eq!(refusal(&outcomes[0]).1, Fault::Scheduler);

        // Removing a missing entry succeeds.
        assert_done(&apply(
            &mut kernel,
            [
                Op::RemoveServer(bad),
                Op::RemoveDestination(bad, real("10.1.0.1:80").target),
                Op::RemoveDestination(good, real("10.1.0.9:80").target),
                Op::RemoveMember(
                    Set::ClusterIp,
                    Member::AddressPort(ip("10.0.0.1"), Protocol::Tcp, 80),
                ),
                Op::UnbindAddress(ip("10.0.0.1")),
                Op::CreateLink,
                Op::CreateLink,
                Op::UnbindAddress(ip("10.0.0.1")),
                Op::BindAddress(ip("10.0.0.1")),
                Op::BindAddress(ip("10.0.0.1")),
                Op::RemoveServer(good),
            ],
        ));
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn one_write_replaces_the_mark_of_an_address_in_an_ipset() {
    on_a_node(|| {
        let mut kernel = open(IpFamily::V4);
        let set = Set::LocalMark;
        let mark = |mark| Member::AddressPortMark(ip("192.0.2.10"), Protocol::Tcp, 80, mark);
        for op in [
            Op::CreateSet(set, 65_536),
            Op::AddMember(set, mark(1)),
            Op::ReplaceMember(set, mark(1), mark(2)),
        ] {
            assert_done(&apply(&mut kernel, [op]));
        }
        let sets = kernel.dump(false).unwrap().sets;
        assert_eq!(sets[&set], [mark(2)].into());
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn a_foreign_ipset_with_our_name_but_a_wrong_type_is_reported_with_the_fix() {
    on_a_node(|| {
        sh("ipset create KUBE-CLUSTER-IP hash:ip; ipset create KUBE-6-CLUSTER-IP hash:ip,port family inet
            ipset create KUBE-LOOP-BACK hash:ip,port,ip timeout 60; ipset create KUBE-NODE-PORT-TCP bitmap:port range 1-9
            ipset create KUBE-EXTERNAL-IP hash:ip,port maxelem 2");
        let mut kernel = open(IpFamily::V4);
        let sets = kernel.dump(false).unwrap().sets;
        assert_eq!(
            sets.keys().collect::<Vec<_>>(),
            [&Set::ExternalIp],
            "another size is no other kind"
        );
        let outcomes = apply(
            &mut kernel,
            [
                Op::CreateSet(Set::ClusterIp, 65_536),
                Op::CreateSet(Set::LoopBack, 65_536),
                Op::CreateSet(Set::NodePortTcp, 65_536),
                Op::CreateSet(Set::ExternalIp, 2),
                Op::AddMember(
                    Set::ClusterIp,
                    Member::AddressPort(ip("10.0.0.1"), Protocol::Tcp, 80),
                ),
            ],
        );
        let (reason, fault) = refusal(&outcomes[0]);
        assert_eq!(fault, Fault::Node);
        assert!(
            reason.contains("exists as `hash:ip family inet"),
            "{reason}"
        );
        assert!(
            reason.contains("`ipset destroy KUBE-CLUSTER-IP`"),
            "{reason}"
        );
        assert!(refusal(&outcomes[1]).0.contains("timeout 60"));
        assert!(refusal(&outcomes[2]).0.contains("range 1-9"));
        assert_eq!(outcomes[3], Outcome::Done);
        let (reason, fault) = refusal(&outcomes[4]);
        assert!(reason.contains("could not be made") && fault == Fault::Node);
        let adds = (1..4).map(|port| {
            Op::AddMember(
                Set::ExternalIp,
                Member::AddressPort(ip("10.0.0.1"), Protocol::Tcp, port),
            )
        });
        let outcomes = apply(&mut kernel, adds.collect::<Vec<_>>());
        assert_done(&outcomes[..2]);
        let (reason, fault) = refusal(&outcomes[2]);
        assert!(
            reason.contains("full") && fault == Fault::Belief,
            "{reason}"
        );

        // A rule matches the set, so the kernel refuses to destroy it.
        let backend = Iptables::choose(None).unwrap().backend();
        sh(&format!(
            "iptables-{backend} -A INPUT -m set --match-set KUBE-LOOP-BACK dst,dst,src -j RETURN"
        ));
        let outcomes = apply(&mut kernel, [Op::CreateSet(Set::LoopBack, 65_536)]);
        let (reason, _) = refusal(&outcomes[0]);
        assert!(
            reason.contains("1 rules or sets use it")
                && reason.contains("`kube-proxy --cleanup`")
                && reason.contains("`iptables-save | grep KUBE-LOOP-BACK`"),
            "{reason}"
        );

        let mut kernel = open(IpFamily::V6);
        assert!(kernel.dump(false).unwrap().sets.is_empty());
        let outcomes = apply(&mut kernel, [Op::CreateSet(Set::ClusterIp, 65_536)]);
        assert!(refusal(&outcomes[0]).0.contains("family inet6"));
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn a_full_set_that_rules_use_is_swapped_for_a_larger_set() {
    on_a_node(|| {
        let backend = Iptables::choose(None).unwrap().backend();
        sh(&format!(
            "ipset create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 64 maxelem 2
            ipset add KUBE-CLUSTER-IP 10.96.0.1,tcp:443
            ipset create KUBE-GROWING hash:ip
            iptables-{backend} -A INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN"
        ));
        let mut kernel = open(IpFamily::V4);
        let member = |n: u8| {
            let address = format!("10.96.1.{n}").parse().unwrap();
            Op::AddMember(
                Set::ClusterIp,
                Member::AddressPort(address, Protocol::Tcp, 80),
            )
        };
        let mut ops = vec![Op::CreateSet(Set::ClusterIp, 8)];
        ops.extend((1..=6).map(member));
        assert_done(&apply(&mut kernel, ops));
        let saved = sh("ipset save");
        assert!(
            saved.contains("KUBE-CLUSTER-IP hash:ip,port family inet")
                && saved.contains("maxelem 8")
        );
        assert_eq!(saved.matches("add KUBE-CLUSTER-IP").count(), 7, "{saved}");
        assert!(!saved.contains("KUBE-GROWING"), "{saved}");
        assert!(
            sh(&format!("iptables-{backend}-save")).contains("--match-set KUBE-CLUSTER-IP dst,dst")
        );
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn the_proxiers_of_both_ip_families_grow_their_sets_at_the_same_time() {
    const MEMBERS: u16 = 4_000;
    on_a_node(|| {
        let together = Arc::new(std::sync::Barrier::new(2));
        let families = [(IpFamily::V4, "10.96.0.1"), (IpFamily::V6, "fd00::1")];
        let grown = families.map(|(family, address)| {
            let together = Arc::clone(&together);
            thread::spawn(move || {
                let mut kernel = open(family);
                let member =
                    |port| Member::AddressPort(address.parse().unwrap(), Protocol::Tcp, port);
                let mut ops = vec![Op::CreateSet(Set::ClusterIp, 65_536)];
                ops.extend((0..MEMBERS).map(|port| Op::AddMember(Set::ClusterIp, member(port))));
                assert_done(&apply(&mut kernel, ops));
                let grow = |size| {
                    together.wait();
                    apply(&mut kernel, [Op::CreateSet(Set::ClusterIp, size)])
                };
                // A barrier makes the threads of both IP families grow their sets at the same time.
                let outcomes: Vec<_> = (17..22).map(|power| 1 << power).flat_map(grow).collect();
                assert_done(&outcomes);
                let snapshot = kernel.dump(false).unwrap();
                assert_eq!(snapshot.set_sizes[&Set::ClusterIp], 1 << 21);
                assert_eq!(snapshot.sets[&Set::ClusterIp].len(), MEMBERS.into());
            })
        });
        for family in grown {
            family.join().unwrap();
        }
        assert!(!sh("ipset list -n").contains("GROWING"));
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn a_set_of_upstreams_size_accepts_its_full_capacity() {
    on_a_node(|| {
        let mut kernel = open(IpFamily::V4);
        kernel.dump(false).unwrap();
        let member = |number: u32| {
            let address = IpAddr::from(Ipv4Addr::from(0x0af4_0000 + number));
            Member::AddressPortAddress(address, Protocol::Tcp, 8080, address)
        };
        let add = |number| Op::AddMember(Set::LoopBack, member(number));
        let mut ops = vec![Op::CreateSet(Set::LoopBack, 65_536)];
        ops.extend((0..65_536).map(add));
        assert_done(&apply(&mut kernel, ops));
        // Adds all members again, and some new ones. Since Linux 5.6, a set accepts a few members
        // beyond its capacity while parts of its hash table have room.
        let all: Vec<Op> = (0..70_000).map(add).collect();
        let outcomes = apply(&mut kernel, all.clone());
        assert_done(&outcomes[..65_536]);
        let full = outcomes.iter().find(|outcome| **outcome != Outcome::Done);
        let (reason, fault) = refusal(full.unwrap());
        assert!(
            reason.contains("full") && fault == Fault::Belief,
            "{reason}"
        );
        assert_done(&apply(&mut kernel, [Op::CreateSet(Set::LoopBack, 131_072)]));
        assert_done(&apply(&mut kernel, all));
        let snapshot = kernel.dump(false).unwrap();
        assert_eq!(snapshot.set_sizes[&Set::LoopBack], 131_072);
        assert_eq!(snapshot.sets[&Set::LoopBack].len(), 70_000);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn the_kernel_keeps_the_ownership_flag_and_ipvsadm_hides_it() {
    on_a_node(|| {
        for (family, address) in [
            (IpFamily::V4, "192.168.99.10"),
            (IpFamily::V6, "fd00:99::10"),
        ] {
            let mut kernel = open(family);
            let key = |port| -> VirtualServerKey {
                ServiceAddress::new(ip(address), port, Protocol::Tcp).into()
            };
            let kinds = [
                (1, "rr", 0, 0),
                (2, "mh", Properties::HASH_PORT, 0),
                (3, "wlc", Properties::PERSISTENT, 600),
            ];
            let noted = |port: u16, note| {
                let (_, scheduler, flags, timeout) = kinds[usize::from(port) - 1];
                Properties {
                    scheduler: scheduler.into(),
                    flags: flags | note,
                    timeout,
                }
            };
            // Sorts lines and ignores sizes, because the kernel chooses the order and size of its
            // hash table and may rebuild it.
            let shown = || {
                sh("ipvsadm -Sn; ipvsadm -Ln | grep -v size=; grep -v size= /proc/net/ip_vs | sort")
            };
            let make = |kernel: &mut NetlinkKernel, note| {
                for (port, ..) in kinds {
                    let pod = RealServer::new(Target {
                        ip: ip(address),
                        port: 8080,
                    });
                    let add = Op::AddServer(key(port), noted(port, note));
                    assert_done(&apply(kernel, [add, Op::AddDestination(key(port), pod)]));
                }
                shown()
            };
            let without = make(&mut kernel, 0);
            sh("ipvsadm -C");
            assert_eq!(make(&mut kernel, Properties::OWNED), without);
            let notes = |kernel: &mut NetlinkKernel| {
                let servers = kernel.dump(false).unwrap().servers;
                for (key, server) in &servers {
                    let port = key.address().unwrap().port;
                    assert_eq!(server.properties, noted(port, 0), "{key}");
                }
                let notes = servers.values().map(|server| server.properties.is_owned());
                notes.collect::<Vec<_>>()
            };
            assert_eq!(notes(&mut kernel), [true; 3]);
            // This proxy's changes keep the ownership flag. A change by upstream removes only this
            // flag, because upstream does not know it.
            let change = Op::SetServer(key(2), noted(2, Properties::OWNED));
            assert_done(&apply(&mut kernel, [change]));
            assert_eq!(notes(&mut kernel), [true; 3]);
            assert_done(&apply(&mut kernel, [Op::SetServer(key(1), noted(1, 0))]));
            assert_eq!(notes(&mut kernel), [false, true, true]);
            assert_eq!(shown(), without);
            sh("ipvsadm -C");
        }
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn a_scheduler_probe_leaves_no_virtual_server() {
    on_a_node(|| {
        let servers = || sh("ipvsadm -Sn");
        for name in ["rr", "mh"] {
            probe_scheduler(name).unwrap();
            assert_eq!(servers(), "", "{name}");
        }
        let error = probe_scheduler("nosuch").unwrap_err().to_string();
        for part in [
            "no scheduler `nosuch`",
            "Run `modprobe ip_vs_nosuch`",
            "--ipvs-scheduler",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let error = probe_scheduler("no scheduler has such a name").unwrap_err();
        assert!(error.to_string().contains("1 to 15 bytes"), "{error}");
        assert_eq!(servers(), "");

        // The probe removes a virtual server that a crashed process left, even if the kernel is
        // known to have the scheduler.
        let others = "-A -t 10.0.0.1:80 -s wlc\n";
        for (there, wanted) in [("", "rr"), ("", "wlc"), (others, "wlc"), (others, "rr")] {
            sh(&format!(
                "ipvsadm -C; ipvsadm -A -t 198.51.100.0:20000 -s wlc
                printf %s '{there}' | ipvsadm -R"
            ));
            probe_scheduler(wanted).unwrap();
            assert_eq!(servers(), there, "{wanted}");
        }
        // Another program has a virtual server at the probe's address, so the probe changes
        // nothing.
        sh("ipvsadm -C; ipvsadm -A -t 198.51.100.0:20000 -s wlc
            ipvsadm -a -t 198.51.100.0:20000 -r 10.0.0.1:80 -m");
        let before = servers();
        probe_scheduler("rr").unwrap();
        assert_eq!(servers(), before);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn a_missing_scheduler_does_not_affect_sets_and_rules() {
    on_a_node(|| {
        let mut node = Node::with(|config| config.scheduler = "nonesuch".into());
        node.add(service("default/web", "10.96.10.10", 80), &[&PODS]);
        let report = node.sync().remove(0);
        let [failure] = &report.failures[..] else {
            panic!("{report:?}");
        };
        assert_eq!(failure.object, "add virtual server 10.96.10.10:80/TCP");
        assert!(
            failure.reason.contains("modprobe ip_vs_nonesuch"),
            "{failure}"
        );
        assert_eq!(report.pending, 1);
        let found = node.dump();
        assert!(
            found
                .sets
                .contains("add KUBE-CLUSTER-IP 10.96.10.10,tcp:80")
        );
        assert!(found.servers.is_empty() && found.rules.contains_key("nat KUBE-SERVICES"));
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn a_rule_that_the_kernel_refused_is_reported_with_its_line() {
    on_a_node(|| {
        let mut kernel = open(IpFamily::V4);
        let shim = Shim {
            family: IpFamily::V4,
            filled: Set::all().collect(),
            forbidden_to_node: BTreeSet::new(),
            ranges: proxy_ipvs::Ranges::default(),
        };
        let ops = [Op::WriteRules {
            wanted: Arc::new(shim.rules(&Config::default())),
            installed: Arc::new(Rules::default()),
        }];
        let outcomes = apply(&mut kernel, ops);
        let (reason, _) = refusal(&outcomes[0]);
        assert!(
            reason.contains("` is `-A KUBE-") || reason.contains("is `-A KUBE-"),
            "{reason}"
        );
        assert!(reason.contains("why the set could not be made"), "{reason}");
        let saved = kernel.dump(true).unwrap().rules.unwrap();
        assert!(saved.is_empty(), "each table changes whole or not at all");
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn an_existing_kube_ipvs0_that_is_no_dummy_link_is_used() {
    on_a_node(|| {
        sh("ip link add kube-ipvs0 type bridge");
        let mut node = golden_node();
        assert_eq!(node.dump().bound, golden().bound);
        assert_eq!(node.resettle(), 0);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn packets_to_a_bound_address_stay_on_the_node() {
    on_a_node(|| {
        // This thread gets the lab's only CPU, so the kernel's kworker threads run only while it
        // waits.
        let thread = rustix::thread::gettid().as_raw_nonzero();
        sh(&format!("chrt --fifo --pid 1 {thread}"));
        let mut rtnetlink = Rtnetlink::open().unwrap();
        for (family, network) in [(IpFamily::V4, "10.96.7."), (IpFamily::V6, "fd00:96::")] {
            let mut kernel = open(family);
            assert_done(&apply(&mut kernel, [Op::CreateLink]));
            for count in [1, 1, 1, 100] {
                let first = kernel.read_addresses().unwrap().bound.len() + 1;
                let all = (first..first + count).map(|number| ip(&format!("{network}{number}")));
                let all: Vec<_> = all.collect();
                let binds: Vec<_> = all.iter().copied().map(Op::BindAddress).collect();
                assert_done(&apply(&mut kernel, binds));
                for destination in all {
                    let packet = Lookup {
                        destination,
                        source: None,
                        link: None,
                        mark: 0,
                    };
                    let route = rtnetlink.way(&packet).unwrap().unwrap();
                    assert!(route.is_local(), "{destination}: {route:?}");
                }
            }
        }
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn kube_ipvs0_is_set_down_unless_that_would_remove_many_ipv6_addresses() {
    for (count, stays_up) in [(3, false), (1_500, true)] {
        on_a_node(move || {
            let [mut four, mut six] = [IpFamily::V4, IpFamily::V6].map(open);
            assert_done(&apply(&mut six, [Op::CreateLink]));
            let address = |number: u16| IpAddr::from([0xfd00, 0x96, 0, 0, 0, 0, 1, number]);
            let bind = |number| Op::BindAddress(address(number));
            assert_done(&apply(&mut six, (0..count).map(bind).collect::<Vec<_>>()));
            let is_up = || sh("ip -o link show kube-ipvs0").contains("UP");
            let own = || sh("ip -6 -o addr show dev kube-ipvs0 scope link");
            sh("ip link set kube-ipvs0 up");
            assert!(is_up() && !own().is_empty());
            // Only the IPv6 proxier sets the link down, so only the IPv6 proxier reports a link
            // that is not ready.
            assert!(four.read_addresses().unwrap().has_link);
            assert!(!six.read_addresses().unwrap().has_link);
            assert_done(&apply(&mut six, [Op::CreateLink]));
            let found = six.read_addresses().unwrap();
            assert_eq!((is_up(), own().as_str()), (stays_up, ""));
            let left = if stays_up { usize::from(count) } else { 0 };
            assert_eq!((found.has_link, found.bound.len()), (true, left));
            // A link that stayed up gets no link-local address the next time it is set up.
            sh("ip link set kube-ipvs0 down; ip link set kube-ipvs0 up");
            assert_eq!(own().is_empty(), stays_up);
        });
    }
    on_a_node(|| {
        let mut four = open(IpFamily::V4);
        let bind = Op::BindAddress(ip("10.96.0.10"));
        assert_done(&apply(&mut four, [Op::CreateLink, bind]));
        sh("ip link set kube-ipvs0 up");
        assert!(!four.read_addresses().unwrap().has_link);
        assert_done(&apply(&mut four, [Op::CreateLink]));
        let found = four.read_addresses().unwrap();
        assert_eq!((found.has_link, found.bound.len()), (true, 1));
        assert!(!sh("ip -o link show kube-ipvs0").contains("UP"));
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn an_ipv6_address_is_refused_with_advice_if_the_link_has_ipv6_disabled() {
    on_a_node(|| {
        let mut kernel = open(IpFamily::V6);
        assert_done(&apply(&mut kernel, [Op::CreateLink]));
        sh("sysctl -qw net.ipv6.conf.kube-ipvs0.disable_ipv6=1");
        let outcomes = apply(
            &mut kernel,
            [
                Op::BindAddress(ip("fd00::1")),
                Op::BindAddress(ip("ff02::1")),
            ],
        );
        let (reason, fault) = refusal(&outcomes[0]);
        assert!(
            reason.contains("disable_ipv6=0") && fault == Fault::Node,
            "{reason}"
        );
        sh("sysctl -qw net.ipv6.conf.kube-ipvs0.disable_ipv6=0");
        let outcomes = apply(
            &mut kernel,
            [
                Op::BindAddress(ip("ff02::1")),
                Op::BindAddress(ip("fd00::1")),
            ],
        );
        assert!(
            refusal(&outcomes[0]).0.contains("correct the Service"),
            "{outcomes:?}"
        );
        assert_eq!(outcomes[1], Outcome::Done);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn errors_without_capabilities_name_the_missing_capability() {
    on_a_node(|| {
        let iptables = Iptables::choose(None).unwrap();
        let mut kernel = open(IpFamily::V4);
        namespace::drop_rights();
        let outcomes = apply(
            &mut kernel,
            [
                Op::CreateLink,
                Op::CreateSet(Set::ClusterIp, 65_536),
                Op::AddMember(
                    Set::ClusterIp,
                    Member::AddressPort(ip("10.0.0.1"), Protocol::Tcp, 80),
                ),
                Op::AddServer(server("10.0.0.1:80"), properties("rr")),
                Op::AddServer(server("10.0.0.2:80"), properties("rr")),
                Op::BindAddress(ip("10.0.0.1")),
            ],
        );
        for outcome in &outcomes[..5] {
            let (reason, fault) = refusal(outcome);
            assert!(
                reason.contains("CAP_NET_ADMIN") && fault == Fault::Node,
                "{reason}"
            );
        }
        let error = NetlinkKernel::open(IpFamily::V4, iptables)
            .unwrap_err()
            .to_string();
        assert!(error.contains("CAP_NET_ADMIN"), "{error}");
        let error = kernel.dump(false).unwrap_err().to_string();
        assert!(error.contains("CAP_NET_ADMIN"), "{error}");
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn configured_ipvs_timeouts_reach_the_kernel() {
    on_a_node(|| {
        let mut kernel = open(IpFamily::V4);
        let seconds = Duration::from_secs;
        kernel
            .set_timeouts(seconds(700), seconds(0), seconds(70))
            .unwrap();
        let shown = sh("ipvsadm -L --timeout");
        assert!(shown.contains("700 120 70"), "{shown}");
    });
}
