//! Tests of nftables mode on the strict fake kernel.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

#[path = "proxier/localhost.rs"]
mod localhost;
#[path = "proxier/trouble.rs"]
mod trouble;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fixtures::{
    KINDS, SyncOutcome, complete_lists, name, node, numbered as service, settle_until_due,
    slice_of, start_lists,
};
use ipnet::IpNet;
use nftables_netlink::{
    Bytes, Chain, DataType, Element, ElementData, Name, Rule, Timeout, Verdict,
};
use proptest::prelude::*;
use proxy::{
    Conflict, Event, IpFamily, Kind, LocalDetector, Mode as _, Model, NamespacedName, Node,
    NodeFacts, NodePortAddresses, Notice, Protocol, Service, ServiceCidr, ServicePort, ServiceType,
};
use proxy_nftables::fake::{Content, FakeKernel};
use proxy_nftables::{Config, Lanes, Layout, LayoutSizes, Proxier};

/// A simulated node: a proxier of nftables mode, a model and a fake kernel.
struct World {
    kernel: FakeKernel,
    proxier: Proxier<FakeKernel>,
    model: Model,
    now: Instant,
    conflicts: Vec<Conflict>,
    layout: Layout,
    sizes: Option<LayoutSizes>,
}

const LAYOUTS: [Layout; 2] = [Layout::Upstream, Layout::Flat];

fn config(layout: Layout, sizes: Option<LayoutSizes>) -> Config {
    Config {
        layout,
        sizes,
        detector: LocalDetector::SourceNet("10.244.0.0/16".parse().unwrap()),
        ..Config::default()
    }
}

fn proxier_of(kernel: &FakeKernel, node: NodeFacts, layout: Layout) -> Proxier<FakeKernel> {
    proxier_with(kernel, node, config(layout, None))
}

fn proxier_with(kernel: &FakeKernel, node: NodeFacts, config: Config) -> Proxier<FakeKernel> {
    let lanes = Lanes::inline(|| kernel.clone());
    Proxier::new(config, node, lanes, Instant::now())
}

fn node1() -> NodeFacts {
    let mut node = NodeFacts::new(IpFamily::V4, "node1");
    node.node_port_addresses = NodePortAddresses::Primary;
    node
}

impl World {
    fn new(layout: Layout) -> Self {
        let addresses = ["127.0.0.1", "192.168.0.10"];
        Self::on(FakeKernel::new(IpFamily::V4, &addresses), layout)
    }

    fn on(kernel: FakeKernel, layout: Layout) -> Self {
        let mut world = Self::unlisted(kernel, layout);
        world.list(true);
        world
    }

    fn unlisted(kernel: FakeKernel, layout: Layout) -> Self {
        Self {
            proxier: proxier_of(&kernel, node1(), layout),
            layout,
            sizes: None,
            kernel,
            model: Model::new(),
            now: Instant::now(),
            conflicts: Vec::new(),
        }
    }

    fn list(&mut self, is_whole: bool) {
        start_lists(&mut self.model, &KINDS);
        self.apply(node([192, 168, 0, 10].into()));
        complete_lists(&mut self.model, &KINDS, is_whole);
    }

    /// Restarts the daemon on the same kernel with the same objects.
    fn restart(&mut self) {
        let config = config(self.layout, self.sizes);
        self.proxier = proxier_with(&self.kernel, node1(), config);
        self.made();
    }

    /// Restarts the daemon on the same kernel with another layout.
    fn lay_out(&mut self, layout: Layout) {
        self.layout = layout;
        self.restart();
    }

    fn apply(&mut self, event: Event) {
        self.model.apply(event);
    }

    /// Runs the daemon's loop with the model's new changes until no work is due.
    fn sync(&mut self) -> SyncOutcome {
        let changes = self.model.take_changes();
        self.proxier.update(&self.model, &changes, self.now);
        self.settle()
    }

    /// Runs the daemon's loop without new changes until no work is due.
    fn settle(&mut self) -> SyncOutcome {
        let (model, now) = (&self.model, &mut self.now);
        settle_until_due(&mut self.proxier, model, now, &mut self.conflicts)
    }

    /// Changes the table as another program would, notifies the proxier, and runs the daemon's
    /// loop.
    fn damage(&mut self, change: impl FnOnce(&mut Content)) -> SyncOutcome {
        change(self.kernel.state().table.as_mut().unwrap());
        self.proxier.notice(&Notice::Ruleset, self.now);
        self.settle()
    }

    /// Returns the transactions committed since the last call, each as its changes' descriptions.
    fn made(&self) -> Vec<Vec<String>> {
        mem::take(&mut self.kernel.state().made)
    }

    fn content(&self) -> Content {
        self.kernel.state().table.clone().unwrap()
    }

    fn chains(&self) -> Vec<String> {
        let chains = self.content().chains.into_keys();
        let own = chains.filter(|name| name.contains('/'));
        own.map(|name| name.to_string()).collect()
    }

    /// Returns two numbers: of the addresses whose map elements lead to endpoints, and of the
    /// addresses whose map elements reject or drop packets.
    fn served_and_refused(&self) -> (usize, usize) {
        let content = self.content();
        let (mut served, mut refused) = (BTreeSet::new(), BTreeSet::new());
        for (name, (_, elements)) in &content.sets {
            let is_of_endpoints = name.starts_with("endpoints-");
            for (key, element) in elements {
                let verdict = match &element.data {
                    Some(ElementData::Verdict(verdict)) => Some(verdict),
                    _ if is_of_endpoints => None,
                    _ => continue,
                };
                let is_refused = verdict.is_some_and(
                    |to| !matches!(to, Verdict::Goto(chain) if !chain.starts_with("reject")),
                );
                let address = if is_of_endpoints {
                    &key[4..8]
                } else {
                    &key[..4]
                };
                if is_refused {
                    refused.insert(address.to_vec());
                } else {
                    served.insert(address.to_vec());
                }
            }
        }
        (served.len(), refused.len())
    }

    /// Returns the number of chains that the proxier writes for `services` Services with only a
    /// ClusterIP.
    fn of_plain(&self, services: usize) -> usize {
        match self.layout {
            Layout::Upstream => services,
            Layout::Flat => 0,
        }
    }

    fn elements(&self, set: &str) -> usize {
        self.content().sets.get(set).map_or(0, |(_, all)| all.len())
    }
}

fn web(world: &mut World, number: u16, endpoints: impl IntoIterator<Item = u16>) {
    world.apply(Event::ServiceApplied(service(number)));
    world.apply(slice_of(number, endpoints));
}

fn with_affinity(number: u16, seconds: u32) -> Event {
    Event::ServiceApplied(Service {
        affinity_seconds: Some(seconds),
        ..service(number)
    })
}

#[test]
fn a_cold_start_is_one_transaction_and_a_restart_writes_nothing() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        for number in 1..=20 {
            web(&mut world, number, [1, 2]);
        }
        let synced = world.sync();
        assert_eq!((synced.failures.len(), synced.pending), (0, 0));
        assert_eq!((world.made().len(), synced.settled.len()), (1, 20));
        assert_eq!(world.chains().len(), world.of_plain(20));
        assert_eq!(world.served_and_refused(), (20, 0));
        assert_eq!(world.elements("hairpin-connections"), 1, "shared");
        let before = world.content();
        world.restart();
        assert_eq!(world.sync().pending, 0);
        assert_eq!(world.made().len(), 0);
        assert_eq!(world.content(), before);
        assert_eq!(world.proxier.next_due(world.now), None, "idle is idle");
    }
}

#[test]
fn a_changed_endpoint_does_not_wait_for_many_changes_in_another_namespace() {
    let mut world = World::new(Layout::Upstream);
    web(&mut world, 1, [1]);
    world.sync();
    world.made();
    let tenant = |number: u16| NamespacedName::new("tenant", &format!("s{number}"));
    for number in 1..=60_u16 {
        let [ip] = &service(number).cluster_ips[..] else {
            panic!("one cluster IP");
        };
        let ports = (1..=80).map(|port| ServicePort {
            port,
            name: format!("p{port}").into(),
            ..service(number).ports[0].clone()
        });
        world.apply(Event::ServiceApplied(Service {
            name: tenant(number),
            cluster_ips: [*ip].into_iter().collect(),
            ports: ports.collect(),
            ..service(number)
        }));
    }
    world.apply(slice_of(1, [1, 3]));
    world.sync();
    let made = world.made();
    let is_web = |lines: &Vec<String>| lines.iter().any(|line| line.contains("web-1/"));
    assert!(made.len() > 4, "{}", made.len());
    assert_eq!(made.iter().position(is_web), Some(0), "of {}", made.len());

    for number in 1..=60_u16 {
        world.apply(Event::ServiceDeleted(tenant(number)));
    }
    world.sync();
    assert_eq!(world.served_and_refused(), (1, 0));
}

#[test]
fn a_changed_endpoint_writes_only_objects_of_its_service() {
    let mut world = World::new(Layout::Upstream);
    for number in 1..=20 {
        web(&mut world, number, [1]);
    }
    world.sync();
    world.made();
    world.apply(slice_of(7, [1, 3]));
    world.sync();
    let made = world.made();
    let chain = world
        .chains()
        .into_iter()
        .find(|of| of.contains("web-7/"))
        .unwrap();
    let wanted = [
        format!("flush chain {chain}"),
        format!("add a rule to chain {chain}"),
    ];
    assert_eq!(made, [wanted]);
    // For a new endpoint on this node, the proxier also adds an element to `hairpin-connections`,
    // so that the endpoint can connect to itself.
    world.apply(slice_of(7, [1, 2]));
    world.sync();
    assert_eq!(
        world.made()[0][2],
        "add to hairpin-connections: 10.244.0.2 . 10.244.0.2 . tcp . 8080"
    );
    assert_eq!(world.kernel.state().reads, 1, "nothing is listed to write");
}

#[test]
fn a_service_rejects_connections_until_it_has_an_endpoint() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, []);
        world.sync();
        world.made();
        assert_eq!(world.served_and_refused(), (0, 1));
        world.apply(slice_of(1, [1]));
        world.sync();
        let made = world.made().concat();
        let one_and_its_chain = 2 + 2 * world.of_plain(1);
        assert_eq!(made.len(), one_and_its_chain, "{made:?}");
        assert_eq!(world.served_and_refused(), (1, 0));
        world.apply(slice_of(1, []));
        world.sync();
        let chains = world.chains();
        assert!(chains.is_empty(), "stale chains go at once: {chains:?}");
        assert_eq!(world.made().len(), 1);
        world.apply(Event::ServiceDeleted(name("web-1")));
        world.sync();
        assert_eq!(world.served_and_refused(), (0, 0));
        assert_eq!(world.elements("cluster-ips"), 0);
    }
}

#[test]
fn no_object_is_deleted_before_the_initial_lists_are_complete() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, [1]);
        world.sync();
        let kernel = world.kernel.clone();
        let mut world = World::unlisted(kernel, layout);
        world.sync();
        assert_eq!(world.chains().len(), world.of_plain(1));
        assert_eq!(world.served_and_refused(), (1, 0));
        world.list(true);
        world.sync();
        assert_eq!(
            (world.chains().len(), world.served_and_refused()),
            (0, (0, 0))
        );
    }
}

#[test]
fn old_kernels_delete_chains_in_a_second_transaction() {
    let mut world = World::new(Layout::Upstream);
    world.kernel.state().is_old = true;
    web(&mut world, 1, [1]);
    web(&mut world, 2, [1]);
    world.sync();
    world.made();
    world.apply(slice_of(1, []));
    let synced = world.sync();
    assert_eq!((synced.failures.len(), synced.pending), (0, 0));
    assert_eq!((world.made().len(), world.chains().len()), (2, 1));
    assert_eq!(world.kernel.state().refusals, 1);
    // The proxier remembers that this kernel deletes chains only in a second transaction, so it
    // causes no further refusal.
    world.apply(slice_of(2, []));
    world.sync();
    assert_eq!((world.made().len(), world.chains().len()), (2, 0));
    assert_eq!(world.kernel.state().refusals, 1);
}

#[test]
fn a_refused_object_does_not_affect_other_objects() {
    for layout in LAYOUTS {
        for is_told in [true, false] {
            let mut world = World::new(layout);
            {
                let mut state = world.kernel.state();
                let refused = vec!["10.96.1.3 ".to_owned(), "10.96.1.9 ".to_owned()];
                if is_told {
                    state.refused = refused;
                } else {
                    state.refused_as_whole = refused;
                }
            }
            for number in 1..=20 {
                web(&mut world, number, [1, 2]);
            }
            let synced = world.sync();
            let mut blamed: Vec<String> = synced
                .failures
                .iter()
                .map(|failure| failure.owner.as_ref().unwrap().to_string())
                .collect();
            blamed.sort();
            assert_eq!(blamed, ["default/web-3", "default/web-9"], "{is_told}");
            assert_eq!(synced.settled.len(), 18);
            assert_eq!(world.served_and_refused().0, 18);
            assert_eq!(world.chains().len(), world.of_plain(18));
            let refusals = world.kernel.state().refusals;
            assert!(refusals <= 16, "{refusals}");
            // Once the kernel accepts the Services, the proxier's retry writes them.
            world.kernel.state().refused.clear();
            world.kernel.state().refused_as_whole.clear();
            world.now = world.proxier.next_due(world.now).unwrap();
            assert_eq!(world.settle().settled.len(), 2);
        }
    }
}

#[test]
fn services_are_not_written_until_the_kernel_accepts_the_base() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.kernel.state().refused = vec!["chain masquerading".to_owned()];
        web(&mut world, 1, [1]);
        let synced = world.sync();
        assert_eq!(synced.failures.len(), 1, "{:?}", synced.failures);
        assert!(world.kernel.state().table.is_none());
        assert!(world.proxier.standing().stuck_since.is_some());
        world.kernel.state().refused.clear();
        world.now = world.proxier.next_due(world.now).unwrap();
        assert_eq!(world.settle().settled, ["default/web-1"]);
    }
}

#[test]
fn a_lost_reply_causes_a_read_of_the_table() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, [1]);
        world.sync();
        world.kernel.state().lost = 1;
        world.made();
        world.apply(slice_of(1, [1, 3]));
        let synced = world.sync();
        // The kernel applied the transaction although its reply was lost, so the proxier writes
        // nothing more.
        assert_eq!((synced.pending, world.made().len()), (0, 1));
        assert_eq!(world.kernel.state().reads, 2);
        assert!(synced.drift.is_empty());
    }
}

#[test]
fn writes_without_permission_are_retried_later() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.kernel.state().held = Some("a right is missing".to_owned());
        web(&mut world, 1, [1]);
        let synced = world.sync();
        assert_eq!(synced.failures.len(), 1);
        assert!(synced.pending > 0);
        world.kernel.state().held = None;
        world.now = world.proxier.next_due(world.now).unwrap();
        assert_eq!(world.settle().pending, 0);
    }
}

#[test]
fn drift_is_repaired_after_a_kernel_notification() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, [1]);
        web(&mut world, 2, [2]);
        world.sync();
        let before = world.content();
        world.made();
        world.now += Duration::from_secs(1);
        let synced = world.damage(|table| {
            for set in ["service-ips", "endpoints-tcp-1"] {
                if let Some((_, elements)) = table.sets.get_mut(set) {
                    elements.clear();
                }
            }
        });
        assert_eq!(synced.repaired.len(), 2);
        assert_eq!(world.content(), before);
        assert_eq!(world.made().len(), 1);
        world.now += Duration::from_secs(1);
        world.damage(|table| {
            let chain = table
                .chains
                .keys()
                .find(|name| name.contains('/') || ***name == *"reject-chain")
                .unwrap()
                .clone();
            table.chains.get_mut(&chain).unwrap().1.clear();
            table.chains.get_mut("services").unwrap().1.pop();
        });
        assert_eq!(world.content(), before);
        assert_eq!(world.made().len(), 1);
        world.now += Duration::from_secs(1);
        world.damage(|table| *table = Content::default());
        assert_eq!(world.content(), before);
        // A notification alone causes no write: the table has not changed.
        world.made();
        world.now += Duration::from_secs(1);
        world.damage(|_| {});
        assert_eq!(world.made().len(), 0);
    }
}

#[test]
fn many_changes_by_other_programs_cause_one_read() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, [1]);
        world.sync();
        world.now += Duration::from_secs(1);
        for _ in 0..20 {
            world.proxier.notice(&Notice::Ruleset, world.now);
        }
        world.settle();
        assert_eq!(world.kernel.state().reads, 2);
        assert_eq!(world.proxier.next_due(world.now), None);
    }
}

#[test]
fn objects_of_other_programs_in_the_table_stay() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, [1]);
        world.sync();
        world.now += Duration::from_secs(1);
        world.damage(|table| {
            let chain = Chain {
                name: "other-chain".into(),
                base: None,
                comment: None,
            };
            let added = (chain.clone(), vec![Rule::default()]);
            table.chains.insert(Arc::clone(&chain.name), added);
            let stale = Chain {
                name: "service-AAAAAAAA-default/gone/tcp/".into(),
                ..chain
            };
            table
                .chains
                .insert(Arc::clone(&stale.name), (stale, Vec::new()));
        });
        assert!(world.content().chains.contains_key("other-chain"));
        assert_eq!(world.chains().len(), world.of_plain(1));
    }
}

#[test]
fn a_base_chain_with_a_wrong_priority_is_repaired() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, [1]);
        world.sync();
        let before = world.content();
        world.now += Duration::from_secs(1);
        world.damage(|table| {
            let (chain, rules) = table.chains.get_mut("nat-prerouting").unwrap();
            chain.base.as_mut().unwrap().priority = -77;
            rules.clear();
        });
        assert_eq!(world.content(), before);
    }
}

#[test]
fn a_dormant_table_is_activated() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, [1]);
        world.sync();
        let before = world.content();
        world.now += Duration::from_secs(1);
        world.damage(|table| table.activity = nftables_netlink::Activity::Dormant);
        assert_eq!(world.content(), before);

        // The table also lacks a base chain. The proxier needs two transactions, because the kernel
        // refuses a new base chain in a transaction that activates the table.
        world.now += Duration::from_secs(1);
        let synced = world.damage(|table| {
            table.activity = nftables_netlink::Activity::Dormant;
            let mut chains = table.chains.iter();
            let base = chains.find(|(_, (chain, _))| chain.base.is_some());
            let name = base.unwrap().0.clone();
            table.chains.remove(&name);
        });
        assert_eq!((synced.failures.len(), synced.pending), (0, 0));
        assert_eq!(world.content(), before);
    }
}

#[test]
fn a_foreign_set_with_the_name_of_a_base_set_but_a_wrong_type_is_replaced() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, [1]);
        web(&mut world, 2, [1]);
        world.sync();
        let before = world.content();
        world.now += Duration::from_secs(1);
        let synced = world.damage(|table| {
            for name in ["service-ips", "hairpin-connections"] {
                let (set, elements) = table.sets.get_mut(name).unwrap();
                set.key.pop();
                elements.clear();
            }
        });
        assert_eq!((synced.failures.len(), synced.pending), (0, 0));
        assert_eq!(world.content(), before);
    }
}

#[test]
fn the_older_of_two_services_gets_a_shared_address() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        let same = |number: u16| Service {
            cluster_ips: [[10, 96, 1, 9].into()].into_iter().collect(),
            ..service(number)
        };
        world.apply(Event::ServiceApplied(same(2)));
        world.apply(slice_of(2, [1]));
        world.sync();
        world.apply(Event::ServiceApplied(same(1)));
        // The older Service gets the address, although it has no endpoints.
        world.sync();
        assert_eq!(world.served_and_refused(), (0, 1));
        assert_eq!(world.conflicts.len(), 1);
        assert_eq!(world.conflicts[0].winner.to_string(), "default/web-1");
        world.apply(Event::ServiceDeleted(name("web-1")));
        world.sync();
        assert_eq!(world.served_and_refused(), (1, 0));
        assert_eq!(world.elements("cluster-ips"), 1);
    }
}

/// Returns a Service with a load-balancer address and source ranges.
fn balanced(number: u16, vip: IpAddr) -> Service {
    Service {
        kind: ServiceType::LoadBalancer,
        ingress_ips: vec![vip],
        source_ranges: vec!["10.0.0.0/8".parse().unwrap()],
        ..service(number)
    }
}

/// Checks that the older Service owns a shared address. The younger Service's source ranges and
/// endpoints do not affect the address.
#[test]
fn only_the_older_load_balancer_has_elements_for_a_shared_address() {
    let vip = [198, 51, 100, 7];
    let of = |number: u16, (has_ranges, endpoints): (bool, &[u16])| {
        let mut service = balanced(number, vip.into());
        if !has_ranges {
            service.source_ranges.clear();
        }
        let endpoints = slice_of(number, endpoints.iter().copied());
        [Event::ServiceApplied(service), endpoints]
    };
    let about = |world: &World| {
        let sets = world.content().sets.into_iter();
        let elements = sets.flat_map(|(name, (_, all))| {
            let own = all.into_iter();
            own.map(move |(key, element)| (name.clone(), key, element.data))
        });
        let about = elements.filter(|(_, key, _)| key.windows(4).any(|part| *part == vip));
        about.collect::<Vec<_>>()
    };
    for layout in LAYOUTS {
        for (older, younger) in [
            ((false, &[][..]), (true, &[2][..])),
            ((false, &[1]), (true, &[2])),
            ((true, &[1]), (false, &[])),
            ((true, &[]), (true, &[2])),
        ] {
            let mut alone = World::new(layout);
            for event in of(1, older) {
                alone.apply(event);
            }
            alone.sync();
            let mut world = World::new(layout);
            for (number, one) in [(2, younger), (1, older)] {
                for event in of(number, one) {
                    world.apply(event);
                }
                world.sync();
            }
            assert_eq!(about(&world), about(&alone), "{older:?} {younger:?}");
            assert_eq!(world.conflicts.len(), 1);
        }
    }
}

#[test]
fn source_ranges_also_protect_a_load_balancer_address_that_is_an_external_ip() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        let vip = [203, 0, 113, 1].into();
        world.apply(Event::ServiceApplied(Service {
            external_ips: vec![vip],
            ..balanced(1, vip)
        }));
        world.apply(slice_of(1, [1]));
        world.sync();
        assert_eq!(world.elements("service-ips"), 2);
        // Checks the map that leads to the firewall chain: `firewall-ips` in upstream's layout, and
        // `service-ips` in the layout `flat`.
        let walled = match layout {
            Layout::Upstream => "firewall-ips",
            Layout::Flat => "service-ips",
        };
        let (_, elements) = &world.content().sets[walled];
        let leads = |of: &&Element| format!("{:?}", of.data).contains("firewall-");
        assert_eq!(elements.values().filter(leads).count(), 1);
    }
}

/// For each written rule that uses a set, the kernel searches all sets. So the proxier writes only
/// the affected rules of a long chain.
#[test]
fn one_changed_endpoint_with_affinity_costs_few_changes() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, 1..=40);
        world.apply(with_affinity(1, 300));
        world.sync();
        world.made();
        for endpoints in [vec![7], vec![], vec![1, 40]] {
            let left: Vec<u16> = (1..=40).filter(|host| !endpoints.contains(host)).collect();
            world.apply(slice_of(1, left.iter().copied()));
            assert_eq!(world.sync().pending, 0);
            let made = world.made().concat();
            assert!(made.len() <= 16, "{made:?}");
            let flushed = made.iter().any(|of| of.starts_with("flush chain service-"));
            assert!(!flushed, "{made:?}");
            let mut fresh = World::new(layout);
            web(&mut fresh, 1, left);
            fresh.apply(with_affinity(1, 300));
            fresh.sync();
            assert!(
                world.content() == fresh.content(),
                "as a fresh start leaves it"
            );
        }
    }
}

/// Checks that a Service with session affinity and very many endpoints is written in several
/// transactions. No packet reaches the Service before all its objects exist.
#[test]
fn a_service_with_affinity_and_many_endpoints_is_written_in_several_transactions() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, 1..=700);
        world.apply(with_affinity(1, 300));
        web(&mut world, 2, [1]);
        let synced = world.sync();
        assert_eq!((synced.failures.len(), synced.pending), (0, 0));
        let made = world.made();
        let len = |of: &Vec<String>| of.iter().filter(|change| change.contains("web-1/")).count();
        assert!(
            made.len() > 4 && made.iter().all(|of| len(of) <= 1_100),
            "{}",
            made.len()
        );
        let leads = |of: &Vec<String>| {
            of.iter()
                .any(|change| change.contains("10.96.1.1 . tcp . 80"))
        };
        let first = made.iter().position(leads);
        assert_eq!(first, Some(made.len() - 1), "only when it is whole");
        // All endpoints are replaced. The first two transactions delete no rule of the chain that
        // chooses an endpoint.
        world.apply(slice_of(1, 1_001..=1_700));
        assert_eq!(world.sync().pending, 0);
        let made = world.made();
        let deletes =
            |of: &Vec<String>| of.iter().any(|change| change.starts_with("delete a rule"));
        let first = made.iter().position(deletes);
        let flushes = |of: &Vec<String>| of.iter().any(|of| of.starts_with("flush chain service-"));
        let rewritten = made.iter().position(flushes);
        assert!(
            first.or(rewritten) >= Some(2),
            "{first:?} {rewritten:?} of {}",
            made.len()
        );
        let mut fresh = World::new(layout);
        web(&mut fresh, 1, 1_001..=1_700);
        fresh.apply(with_affinity(1, 300));
        web(&mut fresh, 2, [1]);
        fresh.sync();
        assert!(
            world.content() == fresh.content(),
            "as a fresh start leaves it"
        );
    }
}

/// In the layout `flat`, a Service's endpoints are numbered. The removal of an endpoint changes the
/// number of at most one other endpoint.
#[test]
fn the_removal_of_an_endpoint_moves_at_most_one_other_endpoint() {
    let mut world = World::new(Layout::Flat);
    web(&mut world, 1, 1..=40);
    world.sync();
    world.made();
    let left = (1..=40).filter(|host| *host != 3);
    world.apply(slice_of(1, left));
    world.sync();
    let made = world.made().concat();
    let of = |what: &str| {
        let change = made.iter().find(|change| change.starts_with(what));
        change.map_or(0, |change| change.matches(", ").count() + 1)
    };
    let counts = (
        of("delete from endpoints-tcp:"),
        of("add to endpoints-tcp:"),
    );
    assert_eq!(counts, (2, 1), "{made:?}");
    // A restarted proxier keeps the endpoints at these positions.
    world.restart();
    assert_eq!(world.sync().pending, 0);
    let made = world.made().concat();
    assert!(
        !made.iter().any(|of| of.contains("to endpoints-")),
        "{made:?}"
    );
}

/// The kernel reserves 2 MiB for each set that is created with a size, as an earlier version of
/// this program did.
#[test]
fn new_affinity_sets_have_no_size_and_old_sets_release_their_memory() {
    let layout = Layout::Upstream;
    let mut world = World::new(layout);
    for number in 1..=3 {
        web(&mut world, number, [1, 2]);
        world.apply(with_affinity(number, 300));
    }
    world.sync();
    let sets = world.content().sets;
    let dynamic: Vec<_> = sets.values().filter(|(set, _)| set.dynamic).collect();
    assert_eq!(dynamic.len(), 6);
    assert!(dynamic.iter().all(|(set, _)| set.size.is_none()));
    // A restarted daemon writes nothing into a table of this version or of upstream.
    world.restart();
    world.sync();
    assert_eq!(world.made().len(), 0);
    // If the sets were created with a size, the proxier adds and removes one element of each set,
    // so that the kernel releases the memory. It changes no chain.
    world.kernel.state().handles.sets_first();
    let before = world.content();
    world.restart();
    assert_eq!(world.sync().pending, 0);
    let made = world.made().concat();
    let count = |what: &str| made.iter().filter(|of| of.starts_with(what)).count();
    let counts = [
        "add set affinity-",
        "add to affinity-",
        "delete from affinity-",
    ]
    .map(count);
    assert_eq!((counts, made.len()), ([6, 6, 6], 18), "{made:?}");
    assert_eq!(world.content(), before);
    // The proxier shrinks each set only once, even after another read of the table.
    world.damage(|content| {
        let (_, elements) = content.sets.get_mut("cluster-ips").unwrap();
        elements.pop_first();
    });
    assert_eq!(world.made().concat().len(), 1);
}

#[test]
fn affinity_clients_of_an_endpoint_stay_when_another_endpoint_is_removed() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.apply(with_affinity(1, 300));
        world.apply(slice_of(1, [1, 2, 3]));
        world.sync();
        let sets = |world: &World| -> Vec<Name> {
            let sets = world.content().sets.into_keys();
            sets.filter(|name| name.starts_with("affinity-")).collect()
        };
        assert_eq!((world.chains().len(), sets(&world).len()), (4, 3));
        // The proxier deletes only the set of clients of the removed endpoint.
        let stays = sets(&world)
            .into_iter()
            .find(|name| name.contains("__10.244.0.1/"))
            .unwrap();
        world.apply(slice_of(1, [1, 3]));
        world.made();
        let synced = world.sync();
        assert_eq!((world.chains().len(), sets(&world).len()), (3, 2));
        let made = world.made().concat();
        assert!(
            !made.iter().any(|change| change.contains(&*stays)),
            "{made:?}"
        );
        assert_eq!(synced.pending, 0);
        // The Service loses its session affinity.
        world.apply(Event::ServiceApplied(service(1)));
        world.sync();
        assert_eq!(
            (world.chains().len(), sets(&world).len()),
            (world.of_plain(1), 0)
        );
    }
}

#[test]
fn a_changed_affinity_timeout_applies_on_old_and_new_kernels() {
    for layout in LAYOUTS {
        for is_old in [false, true] {
            let mut world = World::new(layout);
            world.kernel.state().is_old = is_old;
            world.apply(with_affinity(1, 300));
            world.apply(slice_of(1, [1, 2]));
            world.sync();
            world.apply(with_affinity(1, 60));
            let synced = world.sync();
            assert_eq!((synced.failures.len(), synced.pending), (0, 0));
            let sets = world.content().sets.into_values();
            let wanted = Some(Timeout::Default(Duration::from_mins(1)));
            let affinity: Vec<_> = sets.filter(|(set, _)| set.dynamic).collect();
            assert_eq!(affinity.len(), 2);
            assert!(
                affinity.iter().all(|(set, _)| set.timeout == wanted),
                "{is_old}"
            );
        }
    }
}

#[test]
fn a_refused_service_does_not_disable_timeout_changes_of_sets() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        for number in [1, 2] {
            world.apply(with_affinity(number, 300));
            world.apply(slice_of(number, [1]));
        }
        world.sync();
        world.kernel.state().refused = vec!["/web-1/".to_owned()];
        for number in [1, 2] {
            world.apply(with_affinity(number, 60));
        }
        world.sync();
        world.kernel.state().refused.clear();
        world.made();
        world.apply(with_affinity(2, 300));
        world.sync();
        let made = world.made().concat();
        let is_deleted = |change: &String| change.starts_with("delete set");
        assert!(!made.iter().any(is_deleted), "it can be changed: {made:?}");
    }
}

#[test]
fn an_affinity_timeout_and_a_traffic_policy_can_change_on_old_and_new_kernels() {
    for layout in LAYOUTS {
        for is_old in [false, true] {
            let mut world = World::new(layout);
            world.kernel.state().is_old = is_old;
            world.apply(slice_of(1, [2]));
            for (seconds, internal_local) in [(60, false), (300, false), (60, true)] {
                world.apply(Event::ServiceApplied(Service {
                    affinity_seconds: Some(seconds),
                    internal_local,
                    ..service(1)
                }));
                let synced = world.sync();
                assert_eq!((synced.failures.len(), synced.pending), (0, 0), "{is_old}");
            }
            assert_eq!(world.chains().len(), 2, "its policy, and its endpoint");
        }
    }
}

#[test]
fn service_cidrs_apply_immediately_and_their_drop_rule_survives_a_restart() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, [1]);
        world.sync();
        let rules = |world: &World| world.content().chains["cluster-ips-check"].1.len();
        assert_eq!(rules(&world), 1);
        let net: IpNet = "10.96.0.0/12".parse().unwrap();
        world.apply(Event::ListStarted(Kind::ServiceCidr));
        world.apply(Event::ServiceCidrApplied(ServiceCidr {
            name: "kubernetes".into(),
            nets: vec![net],
        }));
        let kind = Kind::ServiceCidr;
        world.apply(Event::ListComplete {
            kind,
            is_whole: true,
        });
        world.sync();
        assert_eq!(rules(&world), 2);
        // The restarted daemon does not know the ServiceCIDRs yet, and keeps the rule.
        let kernel = world.kernel.clone();
        let mut world = World::on(kernel, layout);
        web(&mut world, 1, [1]);
        world.made();
        world.sync();
        assert_eq!((rules(&world), world.made().len()), (2, 0));
    }
}

#[test]
fn node_ports_are_served_at_the_addresses_that_the_flag_selects() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.sync();
        assert_eq!(world.elements("nodeport-ips"), 1);
        assert_eq!(world.proxier.node_ports().unwrap().addresses.len(), 1);
        // The node's own address is removed from the interface.
        world.kernel.state().addresses.clear();
        world.proxier.notice(&Notice::Anything, world.now);
        world.settle();
        assert_eq!(world.elements("nodeport-ips"), 0);
        // If all addresses of the node serve NodePorts, the table needs no set of addresses.
        let kernel = world.kernel.clone();
        let mut node = node1();
        node.node_port_addresses = NodePortAddresses::All;
        let mut other = World::on(kernel, layout);
        other.proxier = proxier_of(&other.kernel, node, other.layout);
        let synced = other.sync();
        assert_eq!((synced.failures.len(), synced.pending), (0, 0));
        assert!(!other.content().sets.contains_key("nodeport-ips"));
        // With only IPv6 networks in `--nodeport-addresses`, no IPv4 address serves NodePorts.
        let mut node = node1();
        let nets = vec!["fd00::/8".parse().unwrap()];
        node.node_port_addresses = NodePortAddresses::Within(nets);
        other.proxier = proxier_of(&other.kernel, node, other.layout);
        other.sync();
        assert!(other.content().sets.contains_key("nodeport-ips"));
        assert_eq!(other.elements("nodeport-ips"), 0);
    }
}

#[test]
fn node_ports_are_served_at_a_new_node_address_once_an_interface_has_the_address() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.sync();
        let served = |world: &World| world.proxier.node_ports().unwrap().addresses.clone();
        let [old, new] = ["192.168.0.10", "192.168.0.11"].map(|ip| ip.parse::<IpAddr>().unwrap());
        world.apply(Event::NodeApplied(Node {
            name: "node1".into(),
            addresses: vec![new],
            ..Node::default()
        }));
        world.made();
        world.sync();
        assert!(world.made().is_empty(), "no interface has it");
        assert_eq!(served(&world), [old]);
        world.kernel.state().addresses.insert(new);
        world.proxier.notice(&Notice::Anything, world.now);
        world.settle();
        assert_eq!(served(&world), [new]);
        assert_eq!(world.elements("nodeport-ips"), 1);
    }
}

#[test]
fn node_ports_are_served_at_the_primary_node_address_and_in_given_cidrs() {
    for layout in LAYOUTS {
        let serving = |nets: &[&str]| {
            let addresses = ["127.0.0.1", "192.168.0.10", "10.9.0.1", "10.9.0.2"];
            let mut world = World::unlisted(FakeKernel::new(IpFamily::V4, &addresses), layout);
            let mut node = node1();
            let nets = nets.iter().map(|net| net.parse().unwrap()).collect();
            node.node_port_addresses = NodePortAddresses::PrimaryOrWithin(nets);
            world.proxier = proxier_of(&world.kernel, node, layout);
            world.list(true);
            world.sync();
            let served = world.proxier.node_ports().unwrap().addresses.iter();
            let served = served.map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!(world.elements("nodeport-ips"), served.len());
            served
        };
        assert_eq!(serving(&["127.0.0.0/8", "::1/128"]), ["192.168.0.10"]);
        let both = serving(&["127.0.0.0/8", "10.9.0.2/32"]);
        assert_eq!(both, ["10.9.0.2", "192.168.0.10"]);
    }
}

#[test]
fn nodeport_addresses_without_an_address_of_the_node_serve_no_node_ports() {
    for layout in LAYOUTS {
        let mut node = node1();
        node.node_port_addresses = NodePortAddresses::All;
        let addresses = ["127.0.0.1", "192.168.0.10"];
        let mut world = World::unlisted(FakeKernel::new(IpFamily::V4, &addresses), layout);
        world.proxier = proxier_of(&world.kernel, node, layout);
        world.list(true);
        world.sync();
        assert!(!world.content().sets.contains_key("nodeport-ips"));
        let mut node = node1();
        let nets = vec!["10.99.0.0/16".parse().unwrap()];
        node.node_port_addresses = NodePortAddresses::Within(nets);
        world.proxier = proxier_of(&world.kernel, node, layout);
        world.apply(Event::NodeApplied(Node {
            name: "node1".into(),
            ..Node::default()
        }));
        world.sync();
        assert_eq!(world.elements("nodeport-ips"), 0);
    }
}

#[test]
fn a_cluster_ip_that_equals_a_load_balancer_address_keeps_source_ranges() {
    let mut world = World::new(Layout::Upstream);
    let own = service(1).cluster_ip(IpFamily::V4).unwrap();
    world.apply(Event::ServiceApplied(balanced(1, own)));
    world.apply(slice_of(1, [1]));
    world.sync();
    assert_eq!(world.elements("firewall-ips"), 1);
    let (_, elements) = &world.content().sets["service-ips"];
    let leads = |of: &&Element| format!("{:?}", of.data).contains("external-");
    assert_eq!(elements.values().filter(leads).count(), 1);
}

#[test]
fn a_set_that_another_programs_rule_uses_stays_and_blocks_no_service() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, [1]);
        world.sync();
        world.now += Duration::from_secs(1);
        world.damage(|table| {
            // A chain of another program has a copy of the rule that uses the set.
            let (_, rules) = &table.chains["services"];
            let names_it = |rule: &&Rule| format!("{rule:?}").contains("nodeport-ips");
            let rule = rules.iter().find(names_it).unwrap().clone();
            let chain = Chain {
                name: "other-chain".into(),
                base: None,
                comment: None,
            };
            let all = (chain.clone(), vec![rule]);
            table.chains.insert(chain.name, all);
        });
        let mut node = node1();
        node.node_port_addresses = NodePortAddresses::All;
        world.proxier = proxier_of(&world.kernel, node, layout);
        web(&mut world, 2, [1]);
        let synced = world.sync();
        assert_eq!(world.served_and_refused(), (2, 0), "{synced:?}");
        assert!(synced.settled.contains(&"default/web-2".to_owned()));
        assert!(world.proxier.standing().stuck_since.is_none());
        world.apply(Event::ServiceDeleted(name("web-1")));
        world.sync();
        assert_eq!(world.served_and_refused(), (1, 0));
        // Once the other program's rule is removed, the proxier deletes the set.
        world.damage(|table| drop(table.chains.remove("other-chain")));
        world.now += Duration::from_secs(40);
        world.settle();
        assert!(!world.content().sets.contains_key("nodeport-ips"));
    }
}

#[test]
fn a_replaced_set_does_not_contain_an_address_that_the_node_lost() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        web(&mut world, 1, [1]);
        world.sync();
        world.now += Duration::from_secs(1);
        world.kernel.state().addresses.clear();
        world.proxier.notice(&Notice::Anything, world.now);
        let synced = world.damage(|table| {
            let (set, _) = table.sets.get_mut("nodeport-ips").unwrap();
            set.key = vec![DataType::InetService];
        });
        assert_eq!((&synced.failures[..], synced.pending), (&[][..], 0));
        assert_eq!(world.elements("nodeport-ips"), 0);
    }
}

#[test]
fn an_element_is_written_after_the_kernel_accepts_its_chain() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.kernel.state().refused = vec!["to chain external-".to_owned()];
        let with = |external: &[u8]| {
            let ips = external.iter().map(|last| [198, 51, 100, *last].into());
            Event::ServiceApplied(Service {
                external_ips: ips.collect(),
                ..service(1)
            })
        };
        world.apply(with(&[1]));
        world.apply(slice_of(1, [1]));
        assert!(!world.sync().failures.is_empty());
        let reads = world.kernel.state().reads;
        // The Service gets a second external IP, whose element leads to the refused chain as well.
        world.apply(with(&[1, 2]));
        world.sync();
        world.now += Duration::from_secs(10);
        world.settle();
        assert_eq!(world.kernel.state().reads, reads, "it is as believed");
        world.kernel.state().refused.clear();
        world.now += Duration::from_secs(40);
        assert_eq!(world.settle().pending, 0);
    }
}

#[test]
fn services_of_the_api_server_and_dns_are_written_first() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        for number in 1..=200 {
            let mut service = service(number);
            service.ports.push(ServicePort {
                name: "more".into(),
                protocol: Protocol::Tcp,
                port: 81,
                node_port: None,
            });
            if number == 100 {
                service.name = NamespacedName::new("default", "kubernetes");
            }
            if number == 150 {
                service.name = NamespacedName::new("kube-system", "kube-dns");
            }
            world.apply(Event::ServiceApplied(service));
        }
        world.sync();
        let made = world.made();
        assert_eq!(made.len(), 2);
        let elements = |at: usize| made[at].iter().any(|of| of.contains("10.96.1.100"));
        assert!(elements(0));
    }
}

// ---- the layout `flat` ----

#[test]
fn in_the_flat_layout_a_changed_endpoint_changes_only_elements() {
    let mut world = World::new(Layout::Flat);
    for number in 1..=20 {
        web(&mut world, number, [1, 3]);
    }
    world.sync();
    world.made();
    world.apply(slice_of(7, [1, 5]));
    world.sync();
    let wanted = [
        "delete from endpoints-tcp-2: 1 . 10.96.1.7 . 80",
        "add to endpoints-tcp-2: 1 . 10.96.1.7 . 80 : 10.244.0.5 . 8080",
    ];
    assert_eq!(world.made(), [wanted]);
    // The Service now has four endpoints instead of two, so one transaction moves them to another
    // map. This transaction also adds a chooser chain, because no other Service has four endpoints.
    world.apply(slice_of(7, [1, 3, 5, 7]));
    world.sync();
    let made = world.made();
    assert_eq!(made.len(), 1);
    let has = |what: &str| made[0].iter().any(|change| change.starts_with(what));
    assert!(
        has("add chain endpoints-of-tcp-4") && has("add to endpoints-tcp: 0 . 10.96.1.7 . 80 : ")
    );
    assert!(has("delete from endpoints-tcp-2: 0 . ") && has("add to service-ips: 10.96.1.7 . tcp"));
    // A second Service with four endpoints needs no new chain. If one of four endpoints changes,
    // only elements change.
    world.apply(slice_of(8, [1, 3, 5, 7]));
    world.sync();
    world.apply(slice_of(7, [1, 3, 5, 9]));
    world.made();
    world.sync();
    let wanted = [
        "delete from endpoints-tcp: 3 . 10.96.1.7 . 80",
        "add to endpoints-tcp: 3 . 10.96.1.7 . 80 : 10.244.0.9 . 8080",
    ];
    assert_eq!(world.made(), [wanted]);
    assert!(world.chains().is_empty());
    assert_eq!(world.served_and_refused(), (20, 0));
    assert_eq!(world.kernel.state().reads, 1, "nothing is listed to write");
    // The proxier keeps an unneeded chooser chain until its next start.
    for number in [7, 8] {
        world.apply(slice_of(number, [1]));
    }
    world.sync();
    assert!(world.content().chains.contains_key("endpoints-of-tcp-4"));
    world.restart();
    assert_eq!(world.sync().pending, 0);
    assert_eq!(
        world.made(),
        [[
            "flush chain endpoints-of-tcp-4",
            "delete chain endpoints-of-tcp-4"
        ]]
    );
}

/// Applies 64 Services with all combinations of features, some without endpoints.
fn all_kinds(world: &mut World) {
    for number in 0..64 {
        let is = |bit: u8| number & 1 << bit != 0;
        let shape = Shape {
            affinity: is(0).then_some(300),
            node_port: false,
            is_balanced: is(1),
            has_ranges: is(2),
            external_local: is(3),
            internal_local: is(4),
            shares: false,
        };
        world.apply(Event::ServiceApplied(shaped(number, shape)));
        let hosts = if is(5) { 0 } else { number % 7 };
        // Endpoints with odd numbers are on another node. With a load balancer (`is(1)`), a Service
        // has only such endpoints.
        let hosts = (1..=hosts).map(|host| 2 * host - u16::from(is(1)));
        world.apply(slice_of(number, hosts));
    }
}

#[test]
fn a_change_of_the_nftables_layout_is_one_transaction_in_each_direction() {
    for is_old in [false, true] {
        let mut world = World::new(Layout::Upstream);
        world.kernel.state().is_old = is_old;
        all_kinds(&mut world);
        world.sync();
        let upstream = uncommented(&world);
        let mut fresh = World::new(Layout::Flat);
        all_kinds(&mut fresh);
        fresh.sync();
        let flat = uncommented(&fresh);
        assert!(flat.chains.len() < upstream.chains.len());
        for (layout, wanted) in [(Layout::Flat, flat), (Layout::Upstream, upstream)] {
            world.lay_out(layout);
            let synced = world.sync();
            assert_eq!((synced.failures.len(), synced.pending), (0, 0));
            // An old kernel (before Linux 6.2) keeps chains in use until the transaction ends, so a
            // second transaction deletes them.
            assert_eq!(world.made().len(), if is_old { 2 } else { 1 });
            assert!(uncommented(&world) == wanted, "{layout:?}");
            world.restart();
            world.sync();
            assert_eq!(world.made().len(), 0);
        }
    }
}

// ---- nftables layout that depends on the number of Service ports ----

/// Numbers of Service ports at which the layout changes, small enough for a test.
const SIZES: LayoutSizes = LayoutSizes {
    flat_above: 6,
    upstream_below: 3,
};

/// Creates a node whose layout depends on the number of Service ports, and for which no object has
/// been listed yet.
fn by_size(kernel: FakeKernel) -> World {
    let mut world = World::unlisted(kernel, Layout::Upstream);
    world.sizes = Some(SIZES);
    world.restart();
    world
}

fn empty_kernel() -> FakeKernel {
    FakeKernel::new(IpFamily::V4, &["127.0.0.1", "192.168.0.10"])
}

#[test]
fn crossing_a_service_port_limit_changes_the_layout_in_one_transaction() {
    let content_of = |layout, services: u16| {
        let mut fresh = World::new(layout);
        (1..=services).for_each(|number| web(&mut fresh, number, [1, 2, 3, 4]));
        fresh.sync();
        uncommented(&fresh)
    };
    let mut world = by_size(empty_kernel());
    world.list(true);
    let mut present = 0;
    for (services, layout) in [
        (6, Layout::Upstream),
        (7, Layout::Flat),
        (3, Layout::Flat),
        (2, Layout::Upstream),
        (6, Layout::Upstream),
        (8, Layout::Flat),
    ] {
        (present + 1..=services).for_each(|number| web(&mut world, number, [1, 2, 3, 4]));
        for number in services + 1..=present {
            world.apply(Event::ServiceDeleted(name(&format!("web-{number}"))));
        }
        world.made();
        let synced = world.sync();
        assert_eq!((synced.failures.len(), synced.pending), (0, 0));
        assert_eq!(world.made().len(), 1, "{services} {layout:?}");
        assert_eq!(world.proxier.form(), Some(layout.form()));
        let wanted = content_of(layout, services);
        assert!(uncommented(&world) == wanted, "{services} {layout:?}");
        // A restarted daemon keeps the layout, even between the two numbers of Service ports.
        world.restart();
        world.sync();
        assert!(world.made().is_empty(), "{services} {layout:?}");
        assert_eq!(world.proxier.form(), Some(layout.form()));
        present = services;
    }
}

#[test]
fn the_first_transaction_has_the_nftables_layout_for_the_number_of_services() {
    for (services, layout) in [(6, Layout::Upstream), (7, Layout::Flat)] {
        let mut world = by_size(empty_kernel());
        world.list(true);
        (1..=services).for_each(|number| web(&mut world, number, [1]));
        world.sync();
        let made = world.made().concat();
        let is_flat = made.iter().any(|change| change.contains("endpoints-tcp-1"));
        let is_upstream = made.iter().any(|change| change.contains("firewall-ips"));
        assert_eq!(is_flat, layout == Layout::Flat, "{made:?}");
        assert_eq!(is_upstream, layout == Layout::Upstream, "{made:?}");
    }
}

#[test]
fn the_nftables_layout_does_not_change_before_the_initial_lists_are_complete() {
    for (layout, listed) in [(Layout::Flat, 1), (Layout::Upstream, 9)] {
        let mut before = World::new(layout);
        (1..=4).for_each(|number| web(&mut before, number, [1]));
        before.sync();
        let mut world = by_size(before.kernel.clone());
        world.list(false);
        (1..=listed).for_each(|number| web(&mut world, number, [1]));
        world.sync();
        assert_eq!(world.proxier.form(), Some(layout.form()));
        assert_eq!(world.served_and_refused(), (listed.max(4).into(), 0));
        // Once the initial lists are complete, the number of Service ports determines the layout.
        world.list(true);
        (1..=listed).for_each(|number| web(&mut world, number, [1]));
        let synced = world.sync();
        assert_eq!((synced.failures.len(), synced.pending), (0, 0));
        assert_ne!(world.proxier.form(), Some(layout.form()));
        assert_eq!(world.served_and_refused(), (listed.into(), 0));
    }
}

#[test]
fn the_nftables_layout_stays_after_another_program_deleted_the_table() {
    let mut world = by_size(empty_kernel());
    world.list(true);
    (1..=7).for_each(|number| web(&mut world, number, [1]));
    world.sync();
    (4..=7).for_each(|number| world.apply(Event::ServiceDeleted(name(&format!("web-{number}")))));
    world.sync();
    world.kernel.state().table = None;
    world.proxier.notice(&Notice::Ruleset, world.now);
    world.settle();
    assert_eq!(world.proxier.form(), Some(Layout::Flat.form()));
    assert_eq!(world.served_and_refused(), (3, 0));
}

#[test]
fn a_change_of_the_nftables_layout_keeps_services_that_are_not_listed_yet() {
    for (before, after) in [
        (Layout::Upstream, Layout::Flat),
        (Layout::Flat, Layout::Upstream),
    ] {
        let mut world = World::new(before);
        web(&mut world, 1, [1]);
        web(&mut world, 2, [1]);
        world.sync();
        let kernel = world.kernel.clone();
        let mut world = World::unlisted(kernel, after);
        world.made();
        web(&mut world, 2, [3]);
        world.sync();
        assert_eq!(world.served_and_refused(), (2, 0));
        // Until the initial lists are complete, the chain `services` leads to objects of both
        // layouts.
        let services = world.content().chains["services"].1.clone();
        let leads = |to: &str| format!("{services:?}").contains(to);
        assert!(leads("endpoints-tcp-1") && leads("service-ips"));
        world.list(true);
        web(&mut world, 2, [3]);
        let synced = world.sync();
        assert_eq!((synced.failures.len(), synced.pending), (0, 0));
        assert_eq!(world.served_and_refused(), (1, 0));
        let mut fresh = World::new(after);
        web(&mut fresh, 2, [3]);
        fresh.sync();
        assert!(uncommented(&world) == uncommented(&fresh));
    }
}

/// After a change that makes the table invalid, the kernel also refuses all further changes in the
/// transaction.
#[test]
fn valid_services_are_written_although_other_services_make_the_table_invalid() {
    for layout in LAYOUTS {
        for guilty in [&[5][..], &[5, 17, 18], &[40]] {
            let mut world = World::new(layout);
            for number in 1..=40 {
                world.apply(with_affinity(number, 60));
                world.apply(slice_of(number, [1, 2]));
            }
            let is_guilty = |chain: &str| {
                guilty
                    .iter()
                    .any(|at| chain.contains(&format!("/web-{at}/")))
            };
            let mut fresh = World::new(layout);
            for number in 1..=40 {
                fresh.apply(with_affinity(number, 60));
                fresh.apply(slice_of(number, [1, 2]));
            }
            fresh.sync();
            let chains = fresh.chains().into_iter().filter(|chain| is_guilty(chain));
            let rules = chains.map(|chain| format!("add a rule to chain {chain}"));
            world.kernel.state().invalid = rules.collect();
            let failed = world.sync().failures;
            assert_eq!(failed.len(), guilty.len(), "{failed:?}");
            assert_eq!(world.served_and_refused(), (40 - guilty.len(), 0));
            assert!(world.kernel.state().refusals <= 2 + guilty.len());
        }
    }
}

/// The kernel does not delete a set while unwanted chains use it.
#[test]
fn a_set_with_a_wrong_key_type_is_replaced_although_unwanted_chains_use_it() {
    // In the first case, the layout changes and a chain of the old layout uses the set. In the
    // second case, a chooser chain that no Service needs uses the set.
    for (before, set) in [
        (Layout::Upstream, "nodeport-ips"),
        (Layout::Flat, "endpoints-tcp"),
    ] {
        let mut world = World::new(before);
        web(&mut world, 1, [1, 2, 3, 4]);
        world.sync();
        web(&mut world, 1, [1]);
        world.sync();
        if let Some(table) = world.kernel.state().table.as_mut() {
            table.sets.get_mut(set).unwrap().0.key.pop();
            table.sets.get_mut(set).unwrap().0.key.push(DataType::Mark);
        }
        world.lay_out(Layout::Flat);
        let synced = world.sync();
        assert_eq!((synced.failures.len(), synced.pending), (0, 0), "{set}");
        let mut fresh = World::new(Layout::Flat);
        web(&mut fresh, 1, [1]);
        fresh.sync();
        assert!(uncommented(&world) == uncommented(&fresh));
    }
}

/// Returns a Service with a load-balancer address and source ranges.
fn walled(number: u16) -> Event {
    Event::ServiceApplied(shaped(
        number,
        Shape {
            affinity: None,
            node_port: false,
            is_balanced: true,
            has_ranges: true,
            external_local: false,
            internal_local: false,
            shares: false,
        },
    ))
}

/// During a change of the layout, a chain that checks source ranges (a guard) stays until its
/// replacement exists.
#[test]
fn a_chain_that_checks_source_ranges_stays_until_its_replacement_is_written() {
    // If `is_late`, the initial lists become complete only after the first writes.
    for (is_old, is_late) in [(false, false), (true, false), (false, true), (true, true)] {
        for (before, after, guards) in [
            (
                Layout::Upstream,
                Layout::Flat,
                &["filter-prerouting-pre-dnat", "firewall-check"][..],
            ),
            (Layout::Flat, Layout::Upstream, &["firewall-"]),
        ] {
            for refused in ["chain external-", "chain services", "203.0.113.1 . "] {
                let mut world = World::new(before);
                world.kernel.state().is_old = is_old;
                world.apply(walled(1));
                world.apply(slice_of(1, [1, 2]));
                web(&mut world, 2, [1]);
                world.sync();
                let firewall = world.content().chains;
                let of_service = |name: &&Name| name.starts_with("firewall-") && name.contains('/');
                let firewall: Name = firewall.keys().find(of_service).unwrap().clone();
                let rules = world.content().chains[&firewall].1.len();
                world.kernel.state().refused = vec![refused.to_owned()];
                if is_late {
                    world = World::unlisted(world.kernel.clone(), after);
                    world.apply(walled(1));
                    world.apply(slice_of(1, [1, 2]));
                    web(&mut world, 2, [1]);
                    world.sync();
                    world.list(true);
                    world.apply(walled(1));
                    world.apply(slice_of(1, [1, 2]));
                    web(&mut world, 2, [1]);
                    world.settle();
                } else {
                    world.lay_out(after);
                }
                let is_refused = |world: &World| {
                    let content = world.content();
                    for guard in guards {
                        let is_there = content.chains.keys().any(|name| name.starts_with(guard));
                        assert!(is_there, "{guard} is gone: {refused}, {after:?}");
                    }
                    // The firewall chain still has its rules.
                    assert!(content.chains[&firewall].1.len() >= rules - 1);
                    if after == Layout::Flat {
                        assert_eq!(content.sets["firewall-ips"].1.len(), 1, "{refused}");
                    }
                };
                if world.sync().pending == 0 {
                    // The external chain may be equal in both layouts. Then the proxier does not
                    // write it, so the kernel cannot refuse it.
                    assert_eq!(refused, "chain external-");
                    continue;
                }
                is_refused(&world);
                // The guards also stay while their replacement waits for a retry.
                for _ in 0..20 {
                    world.now += Duration::from_secs(3);
                    world.settle();
                    is_refused(&world);
                }
                world.kernel.state().refused.clear();
                world.now += Duration::from_mins(1);
                world.settle();
                world.now += Duration::from_mins(1);
                world.settle();
                assert_eq!(world.proxier.standing().pending, 0);
                let mut fresh = World::new(after);
                mem::swap(&mut fresh.model, &mut world.model);
                fresh.sync();
                assert!(uncommented(&world) == uncommented(&fresh));
            }
        }
    }
}

/// Number of Services whose changes do not fit into one transaction.
const VERY_MANY: u16 = 5_000;

#[test]
fn many_failed_writes_are_all_retried() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.sync();
        world.kernel.state().held = Some("a right is missing".to_owned());
        for number in 1..=VERY_MANY {
            web(&mut world, number, [1]);
        }
        let synced = world.sync();
        assert!(synced.pending > usize::from(VERY_MANY));
        world.kernel.state().held = None;
        world.made();
        for _ in 0..16 {
            world.now = world.proxier.next_due(world.now).unwrap_or(world.now);
            world.settle();
        }
        assert_eq!(world.proxier.standing().pending, 0);
        let all = usize::from(VERY_MANY);
        assert_eq!(world.served_and_refused(), (all, 0));
        let made = world.made();
        assert!(made.iter().all(|changes| !changes.is_empty()));
        assert!(made.len() <= 8, "{}", made.len());
    }
}

#[test]
fn a_cold_start_takes_at_most_two_transactions_and_many_later_changes_are_split() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        for number in 1..=300 {
            web(&mut world, number, [1]);
        }
        world.sync();
        let start = world.made().len();
        // Later changes are split into smaller transactions, so that no change waits long.
        for number in 301..=600 {
            web(&mut world, number, [1]);
        }
        assert_eq!(world.sync().pending, 0);
        let changes = world.made().len();
        assert!(start <= 2 && changes >= 2, "{start}, then {changes}");
        assert_eq!(world.served_and_refused(), (600, 0));
    }
}

#[test]
fn a_transaction_too_large_for_one_send_is_split() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.kernel.state().room = Some(100);
        for number in 1..=400 {
            web(&mut world, number, [1]);
        }
        let synced = world.sync();
        assert_eq!((synced.failures.len(), synced.pending), (0, 0));
        assert!(world.made().iter().all(|changes| changes.len() <= 100));
        assert_eq!(world.kernel.state().reads, 1);
    }
}

#[test]
fn the_number_of_sets_in_a_transaction_is_limited() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        for number in 1..=300 {
            world.apply(with_affinity(number, 60));
            world.apply(slice_of(number, 1..=40));
        }
        assert_eq!(world.sync().pending, 0);
        let made = world.made();
        assert!(made.len() >= 3, "{}", made.len());
        for changes in made {
            let is_set = |change: &&String| change.starts_with("add set affinity-");
            let sets = changes.iter().filter(is_set).count();
            assert!(sets <= 4_000, "{sets}");
        }
    }
}

// ---- properties ----

#[derive(Debug, Clone)]
enum Step {
    Service(u16, Shape),
    Delete(u16),
    Endpoints(u16, Vec<u16>),
    Damage(u8),
    /// The kernel notifies the proxier of a changed table, so the proxier reads the table.
    Told,
    Refuse(u16),
    Forgive,
    Lose,
    Later,
    Layout(Layout),
}

#[derive(Debug, Clone, Copy)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a field of a Service"
)]
struct Shape {
    affinity: Option<u32>,
    node_port: bool,
    is_balanced: bool,
    has_ranges: bool,
    external_local: bool,
    internal_local: bool,
    shares: bool,
}

fn shaped(number: u16, shape: Shape) -> Service {
    let mut service = service(number);
    service.affinity_seconds = shape.affinity;
    service.internal_local = shape.internal_local;
    service.external_local = shape.external_local;
    service.kind = ServiceType::LoadBalancer;
    if shape.shares {
        service.external_ips = vec![[198, 51, 100, 1].into()];
    }
    if shape.is_balanced {
        service.ingress_ips = vec![[203, 0, 113, number.to_be_bytes()[1]].into()];
        // All Services with even numbers share this load-balancer address.
        if number.is_multiple_of(2) {
            service.ingress_ips.push([198, 51, 100, 1].into());
        }
    }
    if shape.has_ranges {
        service.source_ranges = vec![
            "10.0.0.0/8".parse().unwrap(),
            "192.168.0.0/24".parse().unwrap(),
        ];
    }
    for port in &mut service.ports {
        port.node_port = shape.node_port.then_some(30_000 + number % 3);
    }
    service
}

fn shape() -> impl Strategy<Value = Shape> {
    let flag = any::<bool>;
    let affinity = prop_oneof![Just(None), Just(Some(60)), Just(Some(300))];
    (affinity, flag(), flag(), flag(), flag(), flag(), flag()).prop_map(
        |(affinity, node_port, is_balanced, has_ranges, external_local, internal_local, shares)| {
            Shape {
                affinity,
                node_port,
                is_balanced,
                has_ranges,
                external_local,
                internal_local,
                shares,
            }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let number = 1u16..5;
    let hosts = proptest::collection::vec(1u16..7, 0..7);
    prop_oneof![
        4 => (number.clone(), shape()).prop_map(|(at, shape)| Step::Service(at, shape)),
        1 => number.clone().prop_map(Step::Delete),
        4 => (number.clone(), hosts).prop_map(|(at, hosts)| Step::Endpoints(at, hosts)),
        2 => (0u8..6).prop_map(Step::Damage),
        2 => Just(Step::Told),
        1 => number.prop_map(Step::Refuse),
        1 => Just(Step::Forgive),
        1 => Just(Step::Lose),
        1 => Just(Step::Later),
        1 => layout().prop_map(Step::Layout),
    ]
}

fn layout() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(Layout::Upstream), Just(Layout::Flat)]
}

/// Sorts the endpoints of each Service port over its positions. Otherwise, an endpoint's position
/// depends on the order of events, which the test must ignore.
fn sort_places(content: &mut Content) {
    let sets = content.sets.iter_mut();
    let maps = sets.filter(|(name, _)| name.starts_with("endpoints-"));
    for (_, (_, elements)) in maps {
        // Groups elements by key without its first four bytes, which are the position.
        let mut of_ports: BTreeMap<Bytes, Vec<_>> = BTreeMap::new();
        for (key, element) in elements.iter() {
            let port = of_ports.entry(key[4..].into()).or_default();
            port.push((key.clone(), element.data.clone()));
        }
        for of_port in of_ports.into_values() {
            let (keys, mut data): (Vec<Bytes>, Vec<_>) = of_port.into_iter().unzip();
            data.sort_by_key(|data| format!("{data:?}"));
            for (key, data) in keys.iter().zip(data) {
                elements.get_mut(key).unwrap().data = data;
            }
        }
    }
}

/// Removes the chooser chains from the content, and returns them. They may differ between two
/// tables for the same Services, because unneeded chooser chains stay until the next start.
fn take_choosers(content: &mut Content) -> Vec<(Chain, Vec<Rule>)> {
    let names = content.chains.keys().filter(|name| is_chooser(name));
    let names: Vec<Name> = names.cloned().collect();
    let taken = names.iter().filter_map(|name| content.chains.remove(name));
    taken.collect()
}

fn is_chooser(chain: &str) -> bool {
    chain.starts_with("endpoints-of-")
}

fn harm(table: &mut Content, which: u8) {
    match which {
        0 => table.sets.values_mut().for_each(|(_, all)| all.clear()),
        1 => table.chains.values_mut().for_each(|(_, rules)| {
            rules.pop();
        }),
        2 => *table = Content::default(),
        3 => {
            table
                .sets
                .get_mut("service-ips")
                .into_iter()
                .for_each(|(_, all)| {
                    all.pop_first();
                });
        }
        4 => table
            .chains
            .values_mut()
            .for_each(|(_, rules)| rules.clear()),
        _ => {
            if let Some((set, _)) = table.sets.values_mut().find(|(set, _)| set.dynamic) {
                set.timeout = Some(Timeout::Default(Duration::from_secs(7)));
            }
        }
    }
}

/// Returns the table's content without comments. The proxier writes comments but, like upstream,
/// does not compare them.
fn uncommented(world: &World) -> Content {
    let mut content = world.content();
    for (chain, _) in content.chains.values_mut() {
        chain.comment = None;
    }
    let sets = content.sets.values_mut();
    for element in sets.flat_map(|(_, elements)| elements.values_mut()) {
        element.comment = None;
    }
    content
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Checks that after any sequence of events, the table has the same content as after a fresh
    /// start with the same objects.
    #[test]
    fn any_event_sequence_ends_in_the_state_of_a_fresh_start(
        steps in proptest::collection::vec(step(), 0..30),
        is_old in any::<bool>(),
        layout in layout(),
    ) {
        let mut world = World::new(layout);
        world.kernel.state().is_old = is_old;
        for step in steps {
            match step {
                Step::Service(at, shape) => {
                    world.apply(Event::ServiceApplied(shaped(at, shape)));
                }
                Step::Delete(at) => {
                    world.apply(Event::ServiceDeleted(name(&format!("web-{at}"))));
                }
                Step::Endpoints(at, hosts) => world.apply(slice_of(at, hosts)),
                Step::Damage(which) => {
                    if let Some(table) = world.kernel.state().table.as_mut() {
                        harm(table, which);
                    }
                }
                Step::Told => world.proxier.notice(&Notice::Ruleset, world.now),
                Step::Refuse(at) => {
                    let of = [format!("/web-{at}/"), format!("10.96.1.{at}")];
                    world.kernel.state().refused.extend(of);
                }
                Step::Layout(layout) => world.lay_out(layout),
                Step::Forgive => world.kernel.state().refused.clear(),
                Step::Lose => world.kernel.state().lost = 1,
                Step::Later => world.now += Duration::from_secs(40),
            }
            world.sync();
        }
        world.kernel.state().refused.clear();
        world.proxier.notice(&Notice::Ruleset, world.now);
        world.sync();
        for _ in 0..8 {
            world.now += Duration::from_secs(40);
            world.settle();
        }
        prop_assert_eq!(world.proxier.standing().pending, 0);
        let mut fresh = World::new(world.layout);
        mem::swap(&mut fresh.model, &mut world.model);
        fresh.sync();
        let (mut ended, mut wanted) = (uncommented(&world), uncommented(&fresh));
        sort_places(&mut ended);
        sort_places(&mut wanted);
        let (ended_choosers, choosers) = (take_choosers(&mut ended), take_choosers(&mut wanted));
        prop_assert!(choosers.iter().all(|of| ended_choosers.contains(of)), "a chooser is missing");
        // Compares without printing, because the contents are very long.
        prop_assert!(ended.chains == wanted.chains, "chains differ");
        prop_assert!(ended.sets == wanted.sets, "sets differ");
    }
}
