//! The check for drift while events go on.

use std::thread;

use super::*;

/// Waits until the reader has begun its dump, which the fake makes at once.
fn wait_for_dump(world: &World, dumps: usize) {
    let started = Instant::now();
    while world.kernel.state().work.dumps < dumps {
        assert!(started.elapsed() < Duration::from_secs(20), "no dump");
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(5));
}

/// Goes on as the loop does while something is due; how many syncs that took, none of which wrote.
fn finish(world: &mut World) -> usize {
    for syncs in 1.. {
        world.wait(Duration::from_millis(20));
        let now = world.now;
        let report = block_on(world.proxier.sync(now));
        assert_eq!(report.written, 0);
        if world.proxier.needs_resync() || !world.proxier_due_within(Duration::ZERO) {
            return syncs;
        }
    }
    0
}

/// A check that finds nothing, or what somebody has damaged; whether it did, and is repaired by what was written.
fn check(world: &mut World) -> Vec<String> {
    world.work();
    world.wait(Duration::from_mins(1));
    world.resync();
    wait_for_dump(world, 1);
    finish(world);
    if world.proxier.needs_resync() {
        assert_eq!(world.sync().pending, 0);
    }
    world.written()
}

#[test]
fn every_kind_of_damage_is_found_and_repaired() {
    type Damage = fn(&mut Snapshot) -> bool;
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
    let damages: [(Damage, &str); 9] = [
        (
            |it| std::mem::take(&mut it.has_link),
            "create link kube-ipvs0",
        ),
        (set, "create set LoopBack for 65536 members"),
        (more, "remove 9 from set NodePortTcp"),
        (
            |it| it.sets.insert(Set::ClusterIp, [].into()).is_some(),
            "add 10.96.0.10,tcp:80 to set ClusterIp",
        ),
        (
            |it| it.servers.pop_first().is_some(),
            "add virtual server 10.96.0.10:80/TCP",
        ),
        (
            real,
            "set destination 10.244.1.5:8080 of 10.96.0.10:80/TCP to weight 1",
        ),
        (
            |it| it.bound.pop_first().is_some(),
            "bind 10.96.0.10 to kube-ipvs0",
        ),
        (
            |it| it.bound.insert(ip("10.96.0.99")),
            "unbind 10.96.0.99 from kube-ipvs0",
        ),
        (|it| it.rules.replace(Rules::default()).is_some(), "write "),
    ];
    let mut world = web().with_reader();
    assert_eq!(check(&mut world), Vec::<String>::new());
    for (damage, repair) in damages {
        assert!(damage(&mut world.kernel.state().snapshot));
        let written = check(&mut world);
        assert!(
            written.iter().any(|op| op.starts_with(repair)),
            "{repair}: {written:?}"
        );
        assert_eq!(check(&mut world), Vec::<String>::new(), "after {repair}");
    }
}

#[test]
fn what_is_not_ours_is_no_drift() {
    let mut world = web().with_reader();
    let mut state = world.kernel.state();
    let there = state.snapshot.servers[&server("10.96.0.10:80")].clone();
    state
        .snapshot
        .servers
        .insert(server("172.16.0.1:80"), there);
    drop(state);
    assert_eq!(check(&mut world), Vec::<String>::new());
    assert_eq!(world.kernel.state().work.dumps, 0, "taken by the check");
}

#[test]
fn events_go_on_during_a_check_and_are_not_taken_for_drift() {
    let mut world = web().with_reader();
    world.wait(Duration::from_mins(1));
    world.resync();
    wait_for_dump(&world, 1);
    // The dump is older than all of this.
    world.slice(slice(
        "default/web",
        &["10.244.2.5@node2", "10.244.2.6@node2"],
    ));
    world.service(service("default/new", "10.96.0.11", 80));
    world.wait(Duration::from_millis(20));
    assert_eq!(world.sync().pending, 0);
    assert!(world.written().len() > 5, "an event does not wait");
    finish(&mut world);
    assert!(!world.proxier.needs_resync());
    world.delete_service("default/new");
    assert_eq!(world.sync().pending, 0);
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.2.5:8080=1", "10.244.2.6:8080=1"]
    );
}

#[test]
fn a_check_of_much_is_made_in_pieces() {
    let mut world = World::new();
    for number in 0..5_000u32 {
        let at = format!("default/s{number}");
        let address = format!("10.{}.{}.1", 100 + number / 250, number % 250);
        world.service(service(&at, &address, 80));
    }
    let mut world = world.listed().with_reader();
    assert_eq!(world.sync().pending, 0);
    world.work();
    world.wait(Duration::from_mins(1));
    world.resync();
    wait_for_dump(&world, 1);
    // 5,000 virtual servers, 10,000 members and 5,000 addresses, 4,096 at a time; before them a look for the dump.
    let syncs = finish(&mut world);
    assert!((6..20).contains(&syncs), "{syncs}");
    assert!(!world.proxier.needs_resync());
}

#[test]
fn a_check_that_fails_makes_the_kernel_uncertain() {
    let mut world = web().with_reader();
    world.kernel.state().unreadable = Some("interrupted".into());
    world.wait(Duration::from_mins(1));
    world.resync();
    let started = Instant::now();
    while !world.proxier.needs_resync() {
        assert!(started.elapsed() < Duration::from_secs(20));
        finish(&mut world);
    }
    let now = world.now;
    block_on(world.proxier.resync(&world.model, now)).unwrap_err();
    world.kernel.state().unreadable = None;
    assert_eq!(world.sync().pending, 0);
}
