//! Tests of other programs' changes while events continue. A drift check or a notification of the
//! kernel reveals the change, and the proxier repairs and reports it.

use proxy::Notice;

use super::*;

/// Runs a drift check. Returns the writes that repair the drift.
fn check(world: &mut World) -> Vec<String> {
    world.work();
    world.wait(Duration::from_mins(1));
    world.check();
    assert_eq!(world.settle().pending, 0);
    world.written()
}

/// Returns the number of drifted entries, by kind.
fn told(drift: &proxy::Drift) -> Vec<(&'static str, usize)> {
    let kinds = drift.kinds();
    kinds.map(|(kind, of)| (kind, of.count)).collect()
}

#[test]
fn each_kind_of_drift_is_found_repaired_and_reported() {
    type Damage = fn(&mut Snapshot) -> bool;
    /// A change by another program, the write that repairs it, and the expected number of drifted
    /// entries by kind.
    type Case = (Damage, &'static str, &'static [(&'static str, usize)]);
    let real = |it: &mut Snapshot| {
        let server = it.servers.get_mut(&server("10.96.0.10:80")).unwrap();
        let mut destinations = server.destinations.to_vec();
        destinations[0].weight = 7;
        server.destinations = destinations.into();
        true
    };
    let set = |it: &mut Snapshot| {
        it.set_sizes.remove(&Set::LoopBack);
        it.sets.remove(&Set::LoopBack).is_some()
    };
    let more = |it: &mut Snapshot| {
        let ports = it.sets.get_mut(&Set::NodePortTcp).unwrap();
        ports.insert(Member::Port(9))
    };
    let damages: [Case; 9] = [
        (
            |it| std::mem::take(&mut it.has_link),
            "create link kube-ipvs0",
            &[("link", 1)],
        ),
        (
            set,
            "create set KUBE-LOOP-BACK for 65536 members",
            &[("set", 1), ("set member", 1)],
        ),
        (
            more,
            "remove 9 from set KUBE-NODE-PORT-TCP",
            &[("set member", 1)],
        ),
        (
            |it| it.sets.insert(Set::ClusterIp, [].into()).is_some(),
            "add 10.96.0.10,tcp:80 to set KUBE-CLUSTER-IP",
            &[("set member", 1)],
        ),
        (
            |it| it.servers.pop_first().is_some(),
            "add virtual server 10.96.0.10:80/TCP",
            &[("virtual server", 1)],
        ),
        (
            real,
            "set destination 10.244.1.5:8080 of 10.96.0.10:80/TCP to weight 1",
            &[("destination", 1)],
        ),
        (
            |it| it.bound.pop_first().is_some(),
            "bind 10.96.0.10 to kube-ipvs0",
            &[("address", 1)],
        ),
        (
            |it| it.bound.insert(ip("10.96.0.99")),
            "unbind 10.96.0.99 from kube-ipvs0",
            &[("address", 1)],
        ),
        (
            |it| it.rules.replace(Rules::default()).is_some(),
            "write ",
            &[("chain", 11), ("rule", 29)],
        ),
    ];
    let mut world = web();
    assert_eq!(check(&mut world), Vec::<String>::new());
    for (damage, repair, kinds) in damages {
        assert!(damage(&mut world.kernel.state().snapshot));
        world.work();
        world.wait(Duration::from_mins(1));
        world.check();
        let synced = world.settle();
        assert_eq!(synced.pending, 0, "after {repair}");
        assert_eq!(told(&synced.drift), kinds, "{repair}");
        let written = world.written();
        assert!(
            written.iter().any(|op| op.starts_with(repair)),
            "{repair}: {written:?}"
        );
        assert_eq!(check(&mut world), Vec::<String>::new(), "after {repair}");
    }
}

#[test]
fn a_service_is_reported_by_name_after_its_entries_were_repaired() {
    let mut world = web();
    world.kernel.state().snapshot.servers.clear();
    world.wait(Duration::from_mins(1));
    world.check();
    let synced = world.settle();
    assert_eq!(synced.repaired, ["default/web"]);
    let (_, drifted) = synced.drift.kinds().next().unwrap();
    assert_eq!(drifted.first, ["10.96.0.10:80/TCP"]);
    assert!(check(&mut world).is_empty());
    assert_eq!(world.settle().repaired, Vec::<String>::new());
}

#[test]
fn changes_by_the_proxier_itself_are_not_drift() {
    let mut world = web();
    world.slice(slice("default/web", &PAIR[..1]));
    let mut drifts = vec![world.sync().drift];
    world.delete_service("default/web");
    drifts.push(world.sync().drift);
    world.service(service("default/web", "10.96.0.10", 80));
    world.kernel.state().lose_acknowledgements = true;
    drifts.push(world.sync().drift);
    world.wait(Duration::from_mins(1));
    world.check();
    drifts.push(world.settle().drift);
    assert!(drifts.iter().all(proxy::Drift::is_empty), "{drifts:?}");
}

#[test]
fn entries_of_other_programs_are_not_drift() {
    let mut world = web();
    let mut state = world.kernel.state();
    let there = state.snapshot.servers[&server("10.96.0.10:80")].clone();
    state
        .snapshot
        .servers
        .insert(server("172.16.0.1:80"), there);
    drop(state);
    assert_eq!(check(&mut world), Vec::<String>::new());
}

#[test]
fn events_during_a_check_are_applied_and_are_not_drift() {
    let mut world = web();
    world.wait(Duration::from_mins(1));
    world.check();
    // The check's dump is older than all following changes.
    world.slice(slice(
        "default/web",
        &["10.244.2.5@node2", "10.244.2.6@node2"],
    ));
    world.service(service("default/new", "10.96.0.11", 80));
    let synced = world.sync();
    assert_eq!(synced.pending, 0);
    assert!(synced.drift.is_empty(), "{:?}", synced.drift);
    assert!(world.written().len() > 5, "an event does not wait");
    world.delete_service("default/new");
    assert_eq!(world.sync().pending, 0);
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.2.5:8080=1", "10.244.2.6:8080=1"]
    );
}

#[test]
fn a_check_of_many_entries_is_split_into_steps() {
    let mut world = World::new();
    for number in 0..5_000u32 {
        let at = format!("default/s{number}");
        let address = format!("10.{}.{}.1", 100 + number / 250, number % 250);
        world.service(service(&at, &address, 80));
    }
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    world.work();
    world.wait(Duration::from_mins(1));
    world.check();
    // 5,000 virtual servers, 10,000 set members and 5,000 addresses, in steps of at most 4,096
    // entries.
    let mut pieces = 0;
    loop {
        world.proxier.proceed(&world.model, world.now);
        while world.proxier.book(&world.model, world.now).is_some() {}
        if world.proxier.next_due(world.now) != Some(world.now) {
            break;
        }
        pieces += 1;
    }
    assert!((5..10).contains(&pieces), "{pieces}");
    assert_eq!(world.written(), Vec::<String>::new());
}

#[test]
fn a_check_compares_the_readable_parts_if_one_part_is_unreadable() {
    let mut world = web();
    for &part in Part::ALL {
        let damaged = || {
            let mut state = world.kernel.state();
            state.snapshot.servers.clear();
            state.snapshot.sets.insert(Set::ClusterIp, [].into());
            state.snapshot.bound.clear();
            let unreadable = (part.name(), "interrupted".to_owned());
            state.unreadable = [unreadable].into();
        };
        damaged();
        world.wait(Duration::from_mins(1));
        world.check();
        let synced = world.settle();
        assert!(!synced.unreadable.is_empty());
        let repairs = match part {
            Part::Servers | Part::Sets | Part::Addresses => 2,
            Part::Rules => 3,
        };
        assert_eq!(told(&synced.drift).len(), repairs, "{part:?}");
        world.kernel.state().unreadable.clear();
        world.wait(Duration::from_mins(1));
        world.check();
        world.settle();
        let state = world.kernel.state();
        let there = (
            state.snapshot.servers.len(),
            state.snapshot.sets[&Set::ClusterIp].len(),
            state.snapshot.bound.len(),
        );
        assert_eq!(there, (1, 1, 1), "{part:?}");
        drop(state);
    }
}

// ---- notifications of the kernel ----

#[test]
fn a_removed_service_address_is_bound_again_immediately() {
    let mut world = web();
    let address = ip("10.96.0.10");
    world.kernel.state().snapshot.bound.remove(&address);
    let notice = Notice::ServiceAddressRemoved(address);
    world.proxier.notice(&notice, world.now);
    let synced = world.settle();
    assert_eq!(world.written(), ["bind 10.96.0.10 to kube-ipvs0"]);
    assert_eq!(told(&synced.drift), [("address", 1)]);
    assert_eq!(world.work().0.dumps, 0, "nothing has to be read");
    // When this proxier removes an address, the kernel sends a notification, too.
    world.delete_service("default/web");
    world.sync();
    world.work();
    world.proxier.notice(&notice, world.now);
    let synced = world.settle();
    assert!(synced.drift.is_empty() && world.written().is_empty());
}

#[test]
fn a_lost_service_address_is_bound_again_after_a_refused_removal() {
    let mut world = web();
    let address = ip("10.96.0.10");
    let refusal = "unbind 10.96.0.10 from kube-ipvs0";
    let refusals = [(refusal.to_owned(), "no".to_owned())];
    world.kernel.state().refusals.extend(refusals);
    world.delete_service("default/web");
    assert_eq!(world.sync().failures.len(), 1);
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    world.sync();
    world.work();
    world.kernel.state().snapshot.bound.remove(&address);
    let notice = Notice::ServiceAddressRemoved(address);
    world.proxier.notice(&notice, world.now);
    world.settle();
    assert_eq!(world.written(), ["bind 10.96.0.10 to kube-ipvs0"]);
}

#[test]
fn a_deleted_link_is_created_again_even_during_a_check() {
    let mut world = web();
    world.wait(Duration::from_mins(1));
    world.check();
    {
        let snapshot = &mut world.kernel.state().snapshot;
        snapshot.has_link = false;
        snapshot.bound.clear();
    }
    world.proxier.notice(&Notice::ServiceLink, world.now);
    let before = world.now;
    assert_eq!(world.settle().pending, 0);
    assert!(world.now - before < Duration::from_millis(200));
    let written = world.written();
    assert_eq!(
        written,
        ["create link kube-ipvs0", "bind 10.96.0.10 to kube-ipvs0"]
    );
}

#[test]
fn only_added_or_removed_node_addresses_cause_a_read() {
    let mut world = web();
    let reads = |world: &mut World, notice: Notice| {
        world.kernel.state().work.address_reads = 0;
        world.proxier.notice(&notice, world.now);
        world.wait(Duration::from_secs(1));
        world.settle();
        world.kernel.state().work.address_reads
    };
    let (own, other) = (ip("192.168.99.10"), ip("192.168.99.11"));
    assert_eq!(reads(&mut world, Notice::AddressAdded(own)), 0, "refreshed");
    assert_eq!(reads(&mut world, Notice::AddressRemoved(other)), 0);
    assert_eq!(reads(&mut world, Notice::AddressAdded(other)), 1);
    assert_eq!(reads(&mut world, Notice::AddressRemoved(own)), 1);
    let six = ip("fd00::1");
    assert_eq!(reads(&mut world, Notice::AddressAdded(six)), 0);
}

// ---- changes by other programs without a notification ----

/// Returns a node with one Service and glances: the proxier asks for the kernel's number of virtual
/// servers every two seconds.
fn glancing(family: IpFamily) -> (World, &'static str) {
    let (address, node) = match family {
        IpFamily::V4 => ("10.96.0.10", "192.168.99.10"),
        IpFamily::V6 => ("fd00:96::10", "fd00:99::10"),
    };
    let config = Config {
        glance_period: Some(Duration::from_secs(2)),
        ..Config::default()
    };
    let mut world = World::with(config, FakeKernel::new(family, &[ip(node)]));
    world.service(service("default/web", address, 80));
    let mut world = world.listed();
    world.sync();
    (world, address)
}

/// Advances the clock by `seconds`. Returns the fake kernel's work and the writes in this time.
fn glances(world: &mut World, seconds: u64) -> (Work, Vec<Op>) {
    world.work();
    for _ in 0..seconds {
        world.wait(Duration::from_secs(1));
        world.settle();
    }
    world.work()
}

#[test]
fn the_periodic_count_notices_removed_virtual_servers() {
    for family in IpFamily::ALL {
        let (mut world, address) = glancing(family);
        let (work, _) = glances(&mut world, 20);
        assert_eq!((work.glances, work.dumps), (10, 0), "{family}");
        // The expected number follows virtual servers that the proxier itself adds or removes.
        world.service(service("default/other", &format!("{address}1"), 80));
        world.sync();
        assert_eq!(glances(&mut world, 4).0.dumps, 0, "{family}");
        world.kernel.state().snapshot.servers.clear();
        let (work, ops) = glances(&mut world, 3);
        // Two dumps: one for the check, one by the worker thread that writes virtual servers.
        assert_eq!((work.dumps, ops.len()), (2, 2), "{family}: {ops:?}");
        assert_eq!(glances(&mut world, 10).0.dumps, 0, "{family}");
    }
}

#[test]
fn the_first_periodic_count_notices_virtual_servers_removed_before_it() {
    for family in IpFamily::ALL {
        let (mut world, _) = glancing(family);
        world.kernel.state().snapshot.servers.clear();
        let (work, ops) = glances(&mut world, 3);
        assert_eq!((work.dumps, ops.len()), (2, 1), "{family}: {ops:?}");
    }
}

#[test]
fn sets_that_read_back_unchanged_are_not_drift() {
    let mut world = web();
    world.kernel.state().snapshot.rules = Some(Rules::default());
    world.wait(Duration::from_mins(1));
    world.check();
    // The proxier reads the sets as well, because a program that flushes the rules may flush the
    // sets.
    assert_eq!(told(&world.settle().drift), [("chain", 11), ("rule", 29)]);
}
