//! Tests of nftables mode on the real nf\_tables, each in its own network namespace.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use namespace::in_namespace;
use nftables_netlink::{
    Change, Element, Family, Generation, Nftables, Rule, Subscription, TableDump, Timeout,
    Transaction,
};
use proxy::{
    Endpoint, EndpointPort, EndpointSlice, Event, IpFamily, Kind, LocalDetector, Mode as _, Model,
    NamespacedName, NodeFacts, NodePortAddresses, Notice, Placement, Protocol, Service,
    ServicePort, Unreadable,
};
use proxy_nftables::{
    Config, Kernel, Lanes, Layout, LocalhostNodePorts, LocalhostPort, NetlinkKernel, Object,
    Proxier, Refusal, TABLE, probe,
};

/// Access to the real kernel that measures time. It adds the duration of each read of the table or
/// a chain, and of each commit, to the counter (in microseconds).
struct TimedKernel(NetlinkKernel, Arc<AtomicU64>);

/// Duration of the longest measured kernel call, in microseconds.
static LONGEST: AtomicU64 = AtomicU64::new(0);

impl TimedKernel {
    fn timed<T>(&mut self, what: impl FnOnce(&mut NetlinkKernel) -> T) -> T {
        let started = Instant::now();
        let done = what(&mut self.0);
        let micros = u64::try_from(started.elapsed().as_micros()).unwrap();
        self.1.fetch_add(micros, Ordering::Relaxed);
        LONGEST.fetch_max(micros, Ordering::Relaxed);
        done
    }
}

impl Kernel for TimedKernel {
    fn family(&self) -> IpFamily {
        self.0.family()
    }

    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        self.0.addresses()
    }

    fn table(&mut self, tell: &mut dyn FnMut(Object)) -> Result<(), Unreadable> {
        self.timed(|kernel| kernel.table(tell))
    }

    fn timeout(&mut self, set: &str) -> Result<Option<u32>, Unreadable> {
        self.0.timeout(set)
    }

    fn rules(&mut self, chain: &str) -> Result<Vec<(u64, Rule)>, Unreadable> {
        self.timed(|kernel| kernel.rules(chain))
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        self.timed(|kernel| kernel.commit(transaction))
    }

    fn listen(&mut self, port: &LocalhostPort) -> Result<(), String> {
        self.0.listen(port)
    }
}

/// A simulated node: a proxier for one IP family on the real kernel, with its model.
struct World {
    /// Time that reads and writes of the kernel took, in microseconds.
    kernel: Arc<AtomicU64>,
    proxier: Proxier<TimedKernel>,
    model: Model,
    now: Instant,
    family: IpFamily,
    protocol: Protocol,
}

const LAYOUTS: [Layout; 2] = [Layout::Upstream, Layout::Flat];

fn proxier(spent: &Arc<AtomicU64>, family: IpFamily, layout: Layout) -> Proxier<TimedKernel> {
    let mut node = NodeFacts::new(family, "node1");
    node.node_port_addresses = NodePortAddresses::All;
    let pods = match family {
        IpFamily::V4 => "10.244.0.0/16",
        IpFamily::V6 => "fd00:244::/64",
    };
    let config = Config {
        layout,
        detector: LocalDetector::SourceNet(pods.parse().unwrap()),
        ..Config::default()
    };
    let lanes = Lanes::inline(|| TimedKernel(NetlinkKernel::new(family), Arc::clone(spent)));
    Proxier::new(config, node, lanes, Instant::now())
}

impl World {
    fn new(layout: Layout) -> Self {
        Self::of(IpFamily::V4, layout)
    }

    /// Restarts the daemon with the layout `layout` and the same Kubernetes objects.
    fn again(self, layout: Layout) -> Self {
        let mut again = Self::of(self.family, layout);
        again.model = self.model;
        again
    }

    fn of(family: IpFamily, layout: Layout) -> Self {
        let mut model = Model::new();
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            model.apply(Event::ListStarted(kind));
            model.apply(Event::ListComplete {
                kind,
                is_whole: true,
            });
        }
        let kernel = Arc::default();
        Self {
            proxier: proxier(&kernel, family, layout),
            family,
            protocol: Protocol::Tcp,
            kernel,
            model,
            now: Instant::now(),
        }
    }

    /// Runs the daemon's loop until no work is due within the time `within`. Returns the number of
    /// changes that the daemon wrote, and the failures.
    fn settle(&mut self, within: Duration) -> (usize, Vec<String>) {
        let (mut written, mut failures) = (0, Vec::new());
        let end = self.now + within;
        loop {
            self.proxier.proceed(&self.model, self.now);
            let mut has_booked = false;
            while let Some(report) = self.proxier.book(&self.model, self.now) {
                has_booked = true;
                written += report.written;
                assert!(report.unreadable.is_empty(), "{:?}", report.unreadable);
                let told = report.failures.into_iter();
                failures.extend(told.map(|of| format!("{}: {}", of.object, of.reason)));
            }
            match self.proxier.next_due(self.now).filter(|due| *due <= end) {
                _ if has_booked => {}
                Some(due) => {
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    self.now = due;
                }
                None => return (written, failures),
            }
        }
    }

    fn sync(&mut self) -> usize {
        let changes = self.model.take_changes();
        self.proxier.update(&self.model, &changes, self.now);
        let (written, failures) = self.settle(Duration::from_secs(5));
        assert_eq!(failures, [""; 0]);
        assert_eq!(self.proxier.standing().pending, 0);
        written
    }

    fn address(&self, net: u8, number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        match self.family {
            IpFamily::V4 => [10, net, high, low].into(),
            IpFamily::V6 => {
                let net = if net == 96 { 0x96 } else { 0x244 };
                [0xfd00, net, 0, 0, 0, 0, 0, number].into()
            }
        }
    }

    fn service(&mut self, number: u16, affinity: Option<u32>, endpoints: &[u16]) {
        let name = NamespacedName::new("default", &format!("web-{number}"));
        let mut service = Service::at(name.clone(), [self.address(96, number)]);
        service.affinity_seconds = affinity;
        service.ports.push(ServicePort {
            name: "".into(),
            protocol: self.protocol,
            port: 80,
            node_port: None,
        });
        self.model.apply(Event::ServiceApplied(service));
        let placement: Arc<Placement> = Arc::default();
        let endpoint = |host: &u16| Endpoint {
            address: self.address(244, *host),
            ready: true,
            serving: true,
            terminating: false,
            placement: Arc::clone(&placement),
        };
        let endpoints = endpoints.iter().map(endpoint).collect();
        self.model.apply(Event::SliceApplied(EndpointSlice {
            name: NamespacedName::new("default", &format!("web-{number}-a")),
            service: name,
            family: self.family,
            ports: [EndpointPort {
                name: "".into(),
                protocol: self.protocol,
                port: 8080,
            }]
            .into_iter()
            .collect(),
            endpoints,
            change_trigger: None,
        }));
    }
}

fn whole() -> TableDump {
    Nftables::open().unwrap().read(Family::Ip, TABLE).unwrap()
}

fn generation() -> Generation {
    Nftables::open().unwrap().generation().unwrap()
}

/// Returns the content of the table as text, without handles and without the ruleset's generation.
fn content(whole: &TableDump) -> Vec<String> {
    let chains = whole.chains.iter().map(|chain| format!("{chain:?}"));
    let rules = whole
        .rules
        .iter()
        .map(|found| format!("{}: {:?}", found.chain, found.rule));
    let sets = whole.sets.iter().flat_map(|(found, elements)| {
        let of = move |element: &Element| format!("{}: {element:?}", found.set.name);
        let elements = elements.iter().map(of);
        elements.chain([format!("{:?}", found.set)])
    });
    let mut all: Vec<String> = chains.chain(rules).chain(sets).collect();
    all.sort();
    all
}

fn change(changes: Vec<Change>) {
    let transaction = Transaction {
        family: Family::Ip,
        table: TABLE.into(),
        changes,
    };
    Nftables::open()
        .unwrap()
        .commit(&transaction, None)
        .unwrap();
}

#[test]
#[ignore = "needs nf_tables"]
fn the_probe_of_features_succeeds_and_leaves_the_kernel_unchanged() {
    in_namespace(|| {
        let before = generation();
        let subscription = Subscription::open(1 << 16).unwrap();
        for family in IpFamily::ALL {
            for layout in LAYOUTS {
                for localhost in [LocalhostNodePorts::Off, LocalhostNodePorts::Served] {
                    probe(family, layout, localhost).unwrap();
                }
            }
        }
        assert_eq!(generation(), before);
        let told = subscription.receive().map_err(|error| error.kind());
        assert_eq!(told, Err(ErrorKind::WouldBlock));
        let tables = Nftables::open().unwrap().tables(None).unwrap();
        assert!(tables.is_empty(), "{tables:?}");
    });
}

#[test]
#[ignore = "needs nf_tables"]
fn a_changed_endpoint_is_one_transaction_and_a_restart_writes_nothing() {
    in_namespace(|| {
        let mut world = World::new(Layout::Upstream);
        for number in 1..=300 {
            world.service(number, None, &[1, 2]);
        }
        let before = generation();
        world.sync();
        assert_eq!(generation(), before.next());
        world.service(7, None, &[1, 3]);
        let before = generation();
        // The transaction has two changes: it flushes the chain and adds its single rule.
        assert_eq!(world.sync(), 2);
        assert_eq!(generation(), before.next());
        // The restarted daemon adopts the table without a change.
        let before = (generation(), content(&whole()));
        let mut other = world.again(Layout::Upstream);
        other.sync();
        assert_eq!((generation(), content(&whole())), before);
    });
}

#[test]
#[ignore = "needs nf_tables"]
fn removed_endpoints_and_their_affinity_entries_are_deleted() {
    in_namespace(|| {
        let mut world = World::new(Layout::Upstream);
        for number in 1..=5 {
            world.service(number, Some(300), &[1, 2, 3]);
        }
        world.sync();
        let service_chains = || {
            let chains = whole().chains.into_iter();
            chains.filter(|chain| chain.name.contains('/')).count()
        };
        assert_eq!(service_chains(), 20);
        let started = Instant::now();
        for number in 1..=5 {
            world.service(number, Some(300), &[1, 2]);
            let before = generation();
            world.sync();
            let transactions = generation().0 - before.0;
            println!("one endpoint less: {transactions} transactions");
        }
        println!("all of it: {:?}", started.elapsed());
        assert_eq!(service_chains(), 15);
        for number in 1..=5 {
            world.service(number, Some(300), &[]);
        }
        world.sync();
        assert_eq!(service_chains(), 0);
        let sets = whole().sets;
        assert!(sets.iter().all(|(found, _)| !found.set.dynamic));
    });
}

/// Returns true if this kernel can change the timeout of an existing set.
fn changes_timeouts() -> bool {
    let table = nftables_netlink::Table::new(Family::Ip, "timeouts".into());
    let set = |seconds| {
        Change::AddSet(nftables_netlink::Set {
            dynamic: true,
            timeout: Some(Timeout::Default(Duration::from_secs(seconds))),
            ..nftables_netlink::Set::new(
                "clients".into(),
                vec![nftables_netlink::DataType::Ipv4Addr],
                nftables_netlink::SetKind::Set,
            )
        })
    };
    let mut nftables = Nftables::open().unwrap();
    let mut make = |changes| {
        let transaction = Transaction {
            family: Family::Ip,
            table: "timeouts".into(),
            changes,
        };
        nftables.commit(&transaction, None).map(drop)
    };
    make(vec![Change::AddTable(table), set(300)]).unwrap();
    let _ = make(vec![set(60)]);
    let found = Nftables::open().unwrap().sets(Family::Ip, "timeouts");
    let wanted = Some(Timeout::Default(Duration::from_mins(1)));
    let can = found.unwrap()[0].set.timeout == wanted;
    make(vec![Change::DeleteTable]).unwrap();
    can
}

#[test]
#[ignore = "needs nf_tables"]
fn a_changed_affinity_timeout_keeps_clients_if_the_kernel_can_change_timeouts() {
    in_namespace(|| {
        let mut world = World::new(Layout::Upstream);
        world.service(1, Some(300), &[1, 2]);
        world.service(2, Some(300), &[1, 2]);
        world.sync();
        let affinity = || {
            let sets = whole().sets.into_iter();
            sets.filter(|(found, _)| found.set.dynamic)
                .collect::<Vec<_>>()
        };
        for (found, _) in affinity() {
            let client = Element::of_set([10, 9, 9, 9].as_slice().into());
            change(vec![Change::AddElements(found.set.name, vec![client])]);
        }
        world.service(1, Some(60), &[1, 2]);
        world.sync();
        world.service(2, Some(60), &[1, 2]);
        world.sync();
        let wanted = Some(Timeout::Default(Duration::from_mins(1)));
        let sets = affinity();
        assert_eq!(sets.len(), 4);
        assert!(sets.iter().all(|(found, _)| found.set.timeout == wanted));
        // Reads the sets one by one, because a read of the table omits clients in sets.
        let has_clients = |name: &str| {
            let found = Nftables::open().unwrap().elements(Family::Ip, TABLE, name);
            !found.unwrap().is_empty()
        };
        let names = sets.iter().map(|(found, _)| &found.set.name);
        let kept = names.filter(|name| has_clients(name)).count();
        // If the kernel can change the timeout of a set (Linux 6.5 and later, and current releases
        // of 6.1), all clients stay. Otherwise, the proxier replaces the set by an empty set.
        let expected = if changes_timeouts() { 4 } else { 0 };
        println!("clients stayed in {kept} of 4 sets");
        assert_eq!(kept, expected);
        let before = content(&whole());
        let mut other = world.again(Layout::Upstream);
        assert_eq!(other.sync(), 0);
        assert_eq!(content(&whole()), before);
    });
}

/// Returns the kernel's own memory in megabytes: slab memory that cannot be reclaimed, vmalloc
/// memory and per-CPU memory.
fn kernel_memory() -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kilobytes = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    (kilobytes("SUnreclaim:") + kilobytes("VmallocUsed:") + kilobytes("Percpu:")) / 1024.0
}

#[test]
#[ignore = "needs nf_tables"]
fn a_thousand_endpoints_with_affinity_need_at_most_ten_megabytes() {
    for layout in LAYOUTS {
        let measured = || {
            let mut took = 0.0;
            in_namespace(|| {
                let hosts: Vec<u16> = (1..=100).collect();
                let mut world = World::new(layout);
                world.service(11, Some(300), &[1]);
                world.sync();
                // Waits, because the kernel removes the namespaces of earlier tests only after some
                // time.
                thread::sleep(Duration::from_millis(300));
                let before = kernel_memory();
                for number in 1..=10 {
                    world.service(number, Some(300), &hosts);
                }
                world.sync();
                took = kernel_memory() - before;
            });
            took
        };
        // Uses the median of three measurements, because other work of the kernel also allocates
        // and releases memory.
        let mut took = [(); 3].map(|()| measured());
        took.sort_by(f64::total_cmp);
        let [_, took, _] = took;
        println!("{layout:?}: {took:.1} MB");
        assert!(took < 10.0, "{layout:?}: {took} MB");
    }
}

/// Builds a table like an earlier version of this program, which gave sets of clients a size.
fn make_with_sizes(whole: &TableDump) {
    let named = |set: &nftables_netlink::Set| nftables_netlink::Set {
        size: set.dynamic.then_some(65_535).or(set.size),
        ..set.clone()
    };
    let mut changes = vec![Change::DeleteTable];
    changes.extend(whole.table.clone().map(Change::AddTable));
    let sets = whole.sets.iter();
    changes.extend(
        sets.clone()
            .map(|(found, _)| Change::AddSet(named(&found.set))),
    );
    changes.extend(whole.chains.iter().cloned().map(Change::AddChain));
    let rules = whole.rules.iter();
    changes.extend(rules.map(|of| Change::AddRule(of.chain.clone(), of.rule.clone())));
    changes.extend(
        sets.map(|(found, elements)| Change::AddElements(found.set.name.clone(), elements.clone())),
    );
    change(changes);
}

#[test]
#[ignore = "needs nf_tables"]
fn affinity_sets_of_an_earlier_version_release_memory_and_keep_clients() {
    in_namespace(|| {
        let hosts: Vec<u16> = (1..=50).collect();
        let mut world = World::new(Layout::Upstream);
        world.service(1, Some(300), &hosts);
        world.sync();
        let as_wanted = content(&whole());
        let at_first = kernel_memory();
        make_with_sizes(&whole());
        let with_sizes = kernel_memory();
        assert_eq!(content(&whole()), as_wanted, "the kernel lists both alike");
        let sets = whole().sets.into_iter();
        let mut affinity = sets.filter(|(found, _)| found.set.dynamic);
        let set = affinity.next().unwrap().0.set.name;
        let client = Element::of_set([10, 9, 9, 9].as_slice().into());
        change(vec![Change::AddElements(set.clone(), vec![client])]);
        let before = generation();
        let mut again = world.again(Layout::Upstream);
        again.sync();
        assert_eq!(generation(), before.next());
        assert_eq!(content(&whole()), as_wanted);
        // The sets need about 100 MB. The test only checks that the kernel releases more than 50
        // MB, because other work and the removal of earlier namespaces change the memory in use by
        // tens of megabytes.
        let most = 50.0;
        // Repeats the check, because a kernel thread (kworker) shrinks the sets only after some
        // time.
        let freed = || with_sizes - kernel_memory();
        let is_freed = (0..50).any(|_| {
            thread::sleep(Duration::from_millis(100));
            freed() > most
        });
        let (took, freed) = (with_sizes - at_first, freed());
        println!("50 sets with a size: {took:.1} MB, of which {freed:.1} are given back");
        assert!(took > most && is_freed, "{took} MB, {freed} MB given back");
        let elements = Nftables::open().unwrap().elements(Family::Ip, TABLE, &set);
        assert_eq!(elements.unwrap().len(), 1);
    });
}

#[test]
#[ignore = "needs nf_tables"]
fn drift_is_repaired_and_objects_of_other_programs_stay() {
    in_namespace(|| {
        let mut world = World::new(Layout::Upstream);
        for number in 1..=5 {
            world.service(number, None, &[1]);
        }
        world.sync();
        let before = content(&whole());
        let chain = nftables_netlink::Chain {
            name: "other-chain".into(),
            base: None,
            comment: None,
        };
        change(vec![
            Change::AddChain(chain),
            Change::AddRule("other-chain".into(), Rule::default()),
            Change::FlushSet("service-ips".into()),
            Change::FlushChain("services".into()),
            Change::DeleteChain("nat-prerouting".into()),
        ]);
        world.now += Duration::from_secs(1);
        world.proxier.notice(&Notice::Ruleset, world.now);
        let (_, failures) = world.settle(Duration::from_secs(2));
        assert_eq!(failures, [""; 0]);
        let mut after = content(&whole());
        let all = after.len();
        after.retain(|line| !line.contains("other-chain"));
        assert_eq!((after, all), (before.clone(), before.len() + 2));
        change(vec![Change::DeleteTable]);
        world.now += Duration::from_secs(1);
        world.proxier.notice(&Notice::Ruleset, world.now);
        world.settle(Duration::from_secs(2));
        assert_eq!(content(&whole()), before);
    });
}

#[test]
#[ignore = "needs nf_tables"]
fn a_refused_object_does_not_affect_other_objects() {
    in_namespace(|| {
        let mut world = World::new(Layout::Upstream);
        for number in 1..=50 {
            world.service(number, None, &[1]);
        }
        // Another program deletes the table, and creates a base chain with the name of a Service's
        // chain. The kernel refuses a jump to a base chain.
        world.sync();
        let chains = whole().chains.into_iter();
        let own = chains.filter(|chain| chain.name.contains("/web-7/"));
        let own: Vec<_> = own.collect();
        assert_eq!(own.len(), 1);
        change(vec![Change::DeleteTable]);
        let table = nftables_netlink::Table::new(Family::Ip, TABLE.into());
        let mut chain = own[0].clone();
        chain.base = Some(nftables_netlink::BaseChain {
            kind: nftables_netlink::ChainKind::Filter,
            hook: nftables_netlink::Hook::Input,
            priority: 7,
            policy: nftables_netlink::Policy::Accept,
        });
        change(vec![Change::AddTable(table), Change::AddChain(chain)]);
        world.now += Duration::from_secs(1);
        world.proxier.notice(&Notice::Ruleset, world.now);
        let (_, failures) = world.settle(Duration::from_millis(200));
        assert!(!failures.is_empty());
        let is_its_own = |failure: &String| failure.contains("10.96.0.7");
        assert!(failures.iter().all(is_its_own), "{failures:?}");
        let elements = whole().sets.into_iter();
        let mut elements = elements.filter(|(found, _)| *found.set.name == *"service-ips");
        assert_eq!(elements.next().unwrap().1.len(), 49);
    });
}

fn nft(arguments: &[&str]) -> String {
    let output = Command::new("nft").args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs nf_tables, and nft"]
fn nft_lists_and_restores_the_flat_layout() {
    for family in IpFamily::ALL {
        in_namespace(|| {
            let mut world = World::of(family, Layout::Flat);
            for number in 0..20 {
                let hosts: Vec<u16> = (1..=number % 8).collect();
                let affinity = (number >= 16).then_some(300);
                world.service(number, affinity, &hosts);
            }
            world.sync();
            let listed = nft(&["list", "ruleset"]);
            for part in [
                "numgen random mod 5 . ",
                "daddr . tcp dport map @endpoints-tcp",
                "typeof numgen random mod 2 . ",
                "goto reject-chain",
                "goto endpoints-of-tcp-4",
            ] {
                assert!(listed.contains(part), "{part} is not in {listed}");
            }
            let file = env::temp_dir().join(format!("flat-{}-{family:?}", std::process::id()));
            std::fs::write(&file, format!("flush ruleset\n{listed}")).unwrap();
            nft(&["-f", file.to_str().unwrap()]);
            std::fs::remove_file(&file).unwrap();
            let mut again: Vec<String> = nft(&["list", "ruleset"])
                .lines()
                .map(str::to_owned)
                .collect();
            let mut before: Vec<String> = listed.lines().map(str::to_owned).collect();
            // Sorts elements, because their order has no meaning.
            let sorted = |lines: &mut Vec<String>| {
                for line in lines.iter_mut() {
                    *line = line
                        .replace("elements = { ", "")
                        .replace(" }", ",")
                        .trim()
                        .to_owned();
                }
                let mut words: Vec<String> = lines
                    .iter()
                    .flat_map(|line| line.split(',').map(|part| part.trim().to_owned()))
                    .collect();
                words.sort();
                words
            };
            assert_eq!(sorted(&mut again), sorted(&mut before));
            // The proxier adopts a table that `nft` has written, without a change.
            let at = generation();
            assert_eq!(world.again(Layout::Flat).sync(), 0);
            assert_eq!(generation(), at);
        });
    }
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status();
    assert!(done.unwrap().success(), "ip {arguments}");
}

/// The rules reject a packet without an endpoint before the kernel confirms a conntrack entry for
/// it. So later packets of the flow reach an endpoint, once the map has an element for the Service
/// again.
#[test]
#[ignore = "needs nf_tables, and ip"]
fn a_rejected_flow_is_translated_after_the_map_gets_an_endpoint() {
    in_namespace(|| {
        ip("link set lo up");
        for host in 1..=4 {
            ip(&format!("address add 10.244.0.{host}/32 dev lo"));
        }
        ip("address add 192.168.7.1/32 dev lo");
        ip("route add 10.96.0.0/16 dev lo src 192.168.7.1");
        let servers: Vec<UdpSocket> = (1..=4)
            .map(|host| UdpSocket::bind((Ipv4Addr::new(10, 244, 0, host), 8080)).unwrap())
            .collect();
        for count in [4, 1] {
            let mut world = World::new(Layout::Flat);
            world.protocol = Protocol::Udp;
            let hosts: Vec<u16> = (1..=count).collect();
            world.service(1, None, &hosts);
            world.sync();
            let map = if count == 1 {
                "endpoints-udp-1"
            } else {
                "endpoints-udp"
            };
            let sets = whole().sets.into_iter();
            let mut maps = sets.filter(|(found, _)| *found.set.name == *map);
            let keys = maps.next().unwrap().1.into_iter().map(|of| of.key);
            let elements: Vec<Element> = keys.map(Element::of_set).collect();
            assert_eq!(elements.len(), hosts.len());
            change(vec![Change::DeleteElements(map.into(), elements)]);
            let client = UdpSocket::bind("192.168.7.1:0").unwrap();
            client.connect("10.96.0.1:80").unwrap();
            let refused = client.send(b"lost").map_err(|error| error.kind());
            assert_eq!(refused, Err(ErrorKind::PermissionDenied));
            world.now += Duration::from_secs(1);
            world.proxier.notice(&Notice::Ruleset, world.now);
            let (_, failures) = world.settle(Duration::from_secs(2));
            assert_eq!(failures, [""; 0]);
            // Tries twice: the first call may return the ICMP error for an earlier packet.
            assert!((0..2).any(|_| client.send(b"found").is_ok()));
            let has_come = |server: &UdpSocket| {
                server.set_nonblocking(true).unwrap();
                server.recv(&mut [0; 8]).is_ok_and(|len| len == 5)
            };
            thread::sleep(Duration::from_millis(100));
            assert_eq!(servers.iter().filter(|server| has_come(server)).count(), 1);
            change(vec![Change::DeleteTable]);
        }
    });
}

#[test]
#[ignore = "needs nf_tables"]
fn a_change_in_the_flat_layout_is_one_transaction_and_a_restart_writes_nothing() {
    in_namespace(|| {
        let mut world = World::new(Layout::Flat);
        for number in 1..=300 {
            world.service(number, None, &[1, 2]);
        }
        let before = generation();
        world.sync();
        assert_eq!(generation(), before.next());
        for hosts in [&[1, 3][..], &[1, 3, 4], &[1, 2, 3, 4], &[], &[9]] {
            world.service(7, None, hosts);
            let before = generation();
            world.sync();
            assert_eq!(generation(), before.next());
        }
        assert!(whole().chains.iter().all(|chain| !chain.name.contains('/')));
        // The restarted proxier deletes the chooser chain for four endpoints, because no Service
        // has four endpoints now.
        let mut other = world.again(Layout::Flat);
        assert_eq!(other.sync(), 2);
        let before = (generation(), content(&whole()));
        other.again(Layout::Flat).sync();
        assert_eq!((generation(), content(&whole())), before);
    });
}

#[test]
#[ignore = "needs nf_tables"]
fn the_nftables_layout_changes_in_both_directions_with_few_transactions() {
    in_namespace(|| {
        let mut world = World::new(Layout::Upstream);
        for number in 0..300 {
            let hosts: Vec<u16> = (1..=number % 6).collect();
            let affinity = number.is_multiple_of(7).then_some(300);
            world.service(number, affinity, &hosts);
        }
        world.sync();
        let upstream = content(&whole());
        for layout in [Layout::Flat, Layout::Upstream] {
            world = world.again(layout);
            let before = generation();
            world.sync();
            println!("to {layout:?}: {} transactions", generation().0 - before.0);
            assert!(generation().0 - before.0 <= 2);
        }
        let uncommented = |all: Vec<String>| -> Vec<String> {
            let others = all.into_iter();
            others
                .filter(|line| !line.contains("reject-chain"))
                .collect()
        };
        assert_eq!(uncommented(content(&whole())), uncommented(upstream));
    });
}

/// In both layouts, a changed endpoint of a Service with session affinity and many endpoints
/// changes only some rules of the chain that chooses an endpoint.
#[test]
#[ignore = "needs nf_tables"]
fn one_changed_endpoint_with_affinity_costs_few_changes() {
    /// Returns the rules of the chain that chooses an endpoint, in order.
    fn rules_of(family: IpFamily) -> Vec<Rule> {
        let whole = Nftables::open().unwrap().read(family.into(), TABLE);
        let rules = whole.unwrap().rules.into_iter();
        let of_service = rules.filter(|of| of.chain.starts_with("service-"));
        of_service.map(|of| of.rule).collect()
    }
    for layout in LAYOUTS {
        for family in IpFamily::ALL {
            let all: Vec<u16> = (1..=300).collect();
            let without = |gone: &[u16], new: &[u16]| -> Vec<u16> {
                let kept = all.iter().filter(|host| !gone.contains(host));
                kept.chain(new).copied().collect()
            };
            let steps = [
                without(&[100], &[]),
                without(&[100], &[400]),
                without(&[1, 300], &[400, 401]),
                all.clone(),
            ];
            let fresh = steps.clone().map(|hosts| {
                let mut of_fresh = Vec::new();
                in_namespace(|| {
                    let mut world = World::of(family, layout);
                    world.service(1, Some(300), &hosts);
                    world.sync();
                    of_fresh = rules_of(family);
                });
                of_fresh
            });
            in_namespace(|| {
                let mut world = World::of(family, layout);
                world.service(1, Some(300), &all);
                world.sync();
                for (hosts, fresh) in steps.iter().zip(fresh) {
                    world.service(1, Some(300), hosts);
                    let before = generation();
                    let written = world.sync();
                    println!("{layout:?} {family:?}: {written} changes");
                    assert!(written < 30, "{written}");
                    assert_eq!(generation(), before.next());
                    assert!(rules_of(family) == fresh, "in the same order");
                }
                let before = generation();
                assert_eq!(world.again(layout).sync(), 0);
                assert_eq!(generation(), before);
            });
        }
    }
}

/// Measures the time of a cold start and of an endpoint change, for a Service with session
/// affinity. Prints the kernel's share of both times. Usage: `ENDPOINTS=5000 LAYOUT=flat`.
#[test]
#[ignore = "takes long"]
fn measure_affinity() {
    let endpoints = env::var("ENDPOINTS").unwrap_or_default();
    let endpoints: u16 = endpoints.parse().unwrap_or(1000);
    let layout = match env::var("LAYOUT").as_deref() {
        Ok("flat") => Layout::Flat,
        _ => Layout::Upstream,
    };
    in_namespace(|| {
        let hosts: Vec<u16> = (1..=endpoints).collect();
        let mut world = World::new(layout);
        let mut timed = |what: &str, hosts: &[u16]| {
            world.service(1, Some(300), hosts);
            let changes = world.model.take_changes();
            world.kernel.store(0, Ordering::Relaxed);
            LONGEST.store(0, Ordering::Relaxed);
            let started = Instant::now();
            world.proxier.update(&world.model, &changes, world.now);
            let (written, failures) = world.settle(Duration::from_secs(1));
            let longest = Duration::from_micros(LONGEST.load(Ordering::Relaxed));
            let spent = Duration::from_micros(world.kernel.load(Ordering::Relaxed));
            let all = started.elapsed();
            assert_eq!(failures, [""; 0]);
            println!(
                "{what}: {written} changes, {all:?}, of it netlink {spent:?}, at once {longest:?}"
            );
        };
        let before = kernel_memory();
        timed("cold start", &hosts);
        println!("the kernel's memory: {:.1} MB", kernel_memory() - before);
        let middle = hosts.len() / 2;
        let mut changed = hosts.clone();
        changed.remove(middle);
        timed("one endpoint less", &changed);
        timed("one endpoint more", &hosts);
        changed.push(endpoints + 1);
        timed("one in the place of another", &changed);
    });
}

/// Measures the time of a cold start, a restart and an endpoint change. Prints the kernel's share
/// of each time. Usage: `SERVICES=10000 ENDPOINTS=2 LAYOUT=flat`.
#[test]
#[ignore = "takes long"]
fn measure_start_and_endpoint_change() {
    let number = |name: &str, default: u16| {
        let text = env::var(name).unwrap_or_default();
        text.parse().unwrap_or(default)
    };
    let (services, endpoints) = (number("SERVICES", 1000), number("ENDPOINTS", 2));
    in_namespace(|| {
        let hosts: Vec<u16> = (1..=endpoints).collect();
        let layout = match env::var("LAYOUT").as_deref() {
            Ok("flat") => Layout::Flat,
            _ => Layout::Upstream,
        };
        let mut world = World::new(layout);
        for number in 1..=services {
            world.service(number, None, &hosts);
        }
        let timed = |what: &str, world: &mut World| {
            let started = Instant::now();
            world.kernel.store(0, Ordering::Relaxed);
            let written = world.sync();
            let spent = Duration::from_micros(world.kernel.load(Ordering::Relaxed));
            let all = started.elapsed();
            println!("{what}: {written} changes, {all:?}, of it netlink {spent:?}");
        };
        timed("cold start", &mut world);
        for round in 0..5 {
            let mut hosts = hosts.clone();
            hosts.push(100 + round);
            world.service(7, None, &hosts);
            let changes = world.model.take_changes();
            let started = Instant::now();
            world.proxier.update(&world.model, &changes, world.now);
            world.kernel.store(0, Ordering::Relaxed);
            let (written, _) = world.settle(Duration::ZERO);
            let spent = Duration::from_micros(world.kernel.load(Ordering::Relaxed));
            let all = started.elapsed();
            println!("one endpoint: {written} changes, {all:?}, of it netlink {spent:?}");
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        println!(
            "{}",
            status
                .lines()
                .find(|line| line.starts_with("VmRSS"))
                .unwrap()
        );
        let mut other = world.again(layout);
        timed("restart", &mut other);
        for number in 1..=services {
            let name = NamespacedName::new("default", &format!("web-{number}"));
            other.model.apply(Event::ServiceDeleted(name));
        }
        timed("all of them go", &mut other);
        let whole = whole();
        assert!(whole.chains.iter().all(|chain| !chain.name.contains('/')));
        assert!(whole.sets.iter().all(|(_, elements)| elements.is_empty()));
    });
}
