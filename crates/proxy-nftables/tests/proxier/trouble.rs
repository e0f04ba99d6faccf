//! Tests of nftables mode with missing data about the node, a kernel that lacks memory, and a table
//! that cannot be read. Also tests the preview of a plan.

use futures::executor::block_on;
use nftables_netlink::Set;
use proxy_nftables::Plan;

use super::*;

/// Returns an event with a Node object that has only an IPv6 address.
fn without_address() -> Event {
    Event::NodeApplied(Node {
        name: "node1".into(),
        addresses: vec!["fd00:99::10".parse().unwrap()],
        ..Node::default()
    })
}

fn serves_everywhere(world: &World) -> bool {
    !world.content().sets.contains_key("nodeport-ips")
}

#[test]
fn node_ports_are_served_at_all_addresses_if_the_node_has_no_own_address() {
    for node in [None, Some(without_address())] {
        let kernel = FakeKernel::new(IpFamily::V4, &["127.0.0.1", "192.168.0.10", "10.0.0.1"]);
        let mut world = World::unlisted(kernel, Layout::Upstream);
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            world.apply(Event::ListStarted(kind));
            if let (Kind::Node, Some(node)) = (kind, &node) {
                world.model.apply(node.clone());
            }
            world.apply(Event::ListComplete {
                kind,
                is_whole: true,
            });
        }
        let synced = world.sync();
        assert_eq!((synced.failures.len(), synced.pending), (0, 0));
        assert!(serves_everywhere(&world));
        let addresses = |world: &World| world.proxier.node_ports().unwrap().addresses.len();
        assert_eq!(addresses(&world), 2);
        // The Node object gets an address.
        let own = Node {
            name: "node1".into(),
            addresses: vec!["192.168.0.10".parse().unwrap()],
            ..Node::default()
        };
        world.apply(Event::NodeApplied(own));
        assert_eq!(world.sync().pending, 0);
        assert_eq!(world.elements("nodeport-ips"), 1);
        assert_eq!(addresses(&world), 1);
        // The Node object loses its address, and the proxier keeps the last known address.
        world.apply(without_address());
        assert_eq!(world.sync().pending, 0);
        assert_eq!(world.elements("nodeport-ips"), 1);
    }
}

#[test]
fn a_table_that_vanishes_without_a_notification_is_written_again_at_once() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        // Another program owns the table, so the kernel refuses all changes to it.
        {
            let mut state = world.kernel.state();
            state.table.get_or_insert_default();
            state.refused = vec!["add ".to_owned()];
        }
        web(&mut world, 1, [1]);
        for _ in 0..8 {
            world.sync();
            world.now += Duration::from_secs(31);
        }
        // The program ends.
        {
            let mut state = world.kernel.state();
            state.refused.clear();
            state.table = None;
        }
        let began = world.now;
        let synced = world.sync();
        assert_eq!(synced.pending, 0);
        assert_eq!(world.served_and_refused(), (1, 0));
        assert!(world.now - began < Duration::from_secs(1));
    }
}

#[test]
fn node_ports_stay_closed_until_the_initial_lists_are_complete() {
    let kernel = FakeKernel::new(IpFamily::V4, &["127.0.0.1", "192.168.0.10"]);
    let mut world = World::unlisted(kernel, Layout::Upstream);
    web(&mut world, 1, [1]);
    world.sync();
    assert_eq!(world.elements("service-ips"), 1);
    assert!(!serves_everywhere(&world));
    assert_eq!(world.elements("nodeport-ips"), 0);
}

#[test]
fn the_preview_of_a_plan_equals_the_writes() {
    let mut world = World::new(Layout::Upstream);
    for number in 1..=20 {
        web(&mut world, number, [1, 2]);
    }
    let told = world.model.take_changes();
    let mut other = proxier_of(&world.kernel, node1(), Layout::Upstream);
    block_on(other.read(&world.model, world.now)).unwrap();
    other.update(&world.model, &told, world.now);
    let plans = block_on(other.preview(world.now, |_, _| {}));
    assert_eq!(world.made().len(), 0, "nothing is written");
    world.proxier.update(&world.model, &told, world.now);
    world.settle();
    let foreseen: usize = plans.iter().map(Plan::len).sum();
    assert_eq!(foreseen, world.made().concat().len());
    assert!(foreseen > 20 && plans.len() == 1);
}

/// Returns the sets of session affinity clients.
fn of_clients(world: &World) -> Vec<Set> {
    let sets = world.content().sets.into_values().map(|(set, _)| set);
    sets.filter(|set| set.name.starts_with("affinity-"))
        .collect()
}

/// Changes a set of session affinity clients with `what`, so that it has a wrong type. The proxier
/// gets no notification.
fn make_other(table: &mut Content, what: fn(&mut Set)) {
    let mut sets = table.sets.values_mut().map(|(set, _)| set);
    what(sets.find(|set| set.name.starts_with("affinity-")).unwrap());
}

fn with_ports(set: &mut Set) {
    set.key.push(DataType::InetService);
}

#[test]
fn an_affinity_set_of_the_wrong_type_is_replaced() {
    let kinds: [fn(&mut Set); 3] = [
        with_ports,
        |set| set.dynamic = false,
        |set| set.timeout = None,
    ];
    for is_old in [false, true] {
        for kind in kinds {
            let mut world = World::new(Layout::Upstream);
            world.kernel.state().is_old = is_old;
            world.apply(with_affinity(1, 300));
            world.apply(slice_of(1, [1, 2]));
            world.sync();
            let before = world.content();
            world.now += Duration::from_secs(1);
            let synced = world.damage(|table| make_other(table, kind));
            assert_eq!((synced.failures.len(), synced.pending), (0, 0));
            assert_eq!(world.content(), before);
            // The replaced set is a normal set: after a changed timeout, only a kernel that cannot
            // change timeouts makes the proxier replace it.
            world.made();
            world.apply(with_affinity(1, 60));
            assert_eq!(world.sync().pending, 0);
            let wanted = Some(Timeout::Default(Duration::from_mins(1)));
            assert!(of_clients(&world).iter().all(|set| set.timeout == wanted));
            let made = world.made().concat();
            let is_deleted = |change: &String| change.starts_with("delete set");
            assert_eq!(made.iter().any(is_deleted), is_old, "{made:?}");
        }
    }
}

#[test]
fn an_affinity_set_of_the_wrong_type_does_not_disable_timeout_changes() {
    let mut world = World::new(Layout::Upstream);
    world.apply(with_affinity(1, 300));
    world.apply(slice_of(1, [1]));
    world.sync();
    make_other(world.kernel.state().table.as_mut().unwrap(), with_ports);
    world.apply(with_affinity(1, 60));
    // The kernel refuses the write, so the proxier reads the table, and finds the set of the wrong
    // type.
    world.sync();
    world.now = world.proxier.next_due(world.now).unwrap_or(world.now);
    assert_eq!(world.settle().pending, 0);
    let address = DataType::Ipv4Addr;
    assert!(of_clients(&world).iter().all(|set| set.key == [address]));
    world.made();
    world.apply(with_affinity(1, 300));
    assert_eq!(world.sync().pending, 0);
    let made = world.made().concat();
    let is_deleted = |change: &String| change.starts_with("delete set");
    assert!(!made.iter().any(is_deleted), "{made:?}");
}

#[test]
fn if_the_kernel_lacks_memory_no_service_is_blamed_and_all_writes_are_retried() {
    let mut world = World::new(Layout::Upstream);
    world.kernel.state().no_memory_for = vec!["/web-3/".to_owned()];
    for number in 1..=20 {
        web(&mut world, number, [1]);
    }
    let synced = world.sync();
    assert_eq!(synced.failures.len(), 1, "{:?}", synced.failures);
    assert!(synced.failures[0].owner.is_none());
    assert_eq!(world.kernel.state().refusals, 1, "parts need as much");
    assert_eq!(world.kernel.state().reads, 1, "nothing was done");
    world.kernel.state().no_memory_for.clear();
    world.now = world.proxier.next_due(world.now).unwrap();
    let synced = world.settle();
    assert_eq!((synced.failures.len(), synced.pending), (0, 0));
    assert_eq!(world.chains().len(), 20);
}

/// Notifies the proxier of a changed table ten times a second, for the time `time`. Returns how
/// often the proxier read the table.
fn reads_within(world: &mut World, time: Duration) -> usize {
    let before = world.kernel.state().reads;
    let end = world.now + time;
    while world.now < end {
        world.now += Duration::from_millis(100);
        world.proxier.notice(&Notice::Ruleset, world.now);
        // Runs only work that is due now, because this loop itself advances the clock.
        world.proxier.proceed(&world.model, world.now);
        while world.proxier.book(&world.model, world.now).is_some() {}
    }
    world.kernel.state().reads - before
}

#[test]
fn reads_caused_by_other_programs_take_at_most_a_tenth_of_the_time() {
    let mut world = World::new(Layout::Upstream);
    web(&mut world, 1, [1]);
    world.kernel.state().reading = Duration::from_millis(20);
    world.sync();
    world.now += Duration::from_secs(1);
    // Reads may take a tenth of the 20 s, so 2 s. A read takes a little more than 20 ms.
    let reads = reads_within(&mut world, Duration::from_secs(20));
    assert!((10..=100).contains(&reads), "{reads}");
}

#[test]
fn a_table_that_cannot_be_read_is_retried_with_back_off_and_then_repaired() {
    let mut world = World::new(Layout::Upstream);
    web(&mut world, 1, [1]);
    world.sync();
    let before = world.content();
    world.now += Duration::from_secs(1);
    world.kernel.state().unreadable = Some("others write all the time".to_owned());
    let mut damaged = before.clone();
    damaged.sets.get_mut("service-ips").unwrap().1.clear();
    world.kernel.state().table = Some(damaged.clone());
    let reads = reads_within(&mut world, Duration::from_mins(1));
    assert!((3..=7).contains(&reads), "{reads}");
    assert_eq!(world.content(), damaged, "nothing is known");
    world.kernel.state().unreadable = None;
    reads_within(&mut world, Duration::from_mins(1));
    assert_eq!(world.content(), before);
}
