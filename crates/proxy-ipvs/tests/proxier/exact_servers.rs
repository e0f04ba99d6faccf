//! Tests of fwmark virtual servers (`--ipvs-semantics=exact`): their session affinity, and one that
//! the kernel refuses at first.

use proxy_ipvs::{MarkBits, VirtualServerKey};

use super::exact::{assert_order, destinations, exposed, marked, marks, synced, world_of};
use super::*;

/// Returns scheduler, flags and timeout of the fwmark virtual server. The flags lack
/// [`Properties::OWNED`].
fn balancing(world: &World) -> (String, u32, u32) {
    let family = IpFamily::V4;
    let key = VirtualServerKey::Mark { family, mark: 1 };
    let state = world.kernel.state();
    let of = &state.snapshot.servers.get(&key).unwrap().properties;
    let flags = of.flags & !Properties::OWNED;
    (of.scheduler.to_string(), flags, of.timeout)
}

#[test]
fn session_affinity_by_mark_uses_scheduler_sh_only_if_the_kernel_has_it() {
    for has_sh in [true, false] {
        let mut world = world_of(MarkBits::DEFAULT);
        if !has_sh {
            world.kernel.state().schedulers.remove("sh");
        }
        world.service(Service {
            affinity_seconds: Some(600),
            ..exposed("default/web", 10, true)
        });
        world.slice(slice("default/web", &PAIR));
        let mut world = world.listed();
        synced(&mut world);
        let flags = Properties::FALLBACK;
        let expected = if has_sh {
            ("sh".to_owned(), flags, 0)
        } else {
            ("rr".to_owned(), 0, 0)
        };
        assert_eq!(balancing(&world), expected);
        assert_eq!(world.work().0.scheduler_questions, 1);
        synced(&mut world);
        assert_eq!(world.work().0.scheduler_questions, 0);
    }
}

#[test]
fn affinity_by_mark_gets_persistence_after_endpoints_with_other_ports_are_gone() {
    let mut world = world_of(MarkBits::DEFAULT);
    world.service(Service {
        affinity_seconds: Some(600),
        ..exposed("default/web", 10, true)
    });
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    synced(&mut world);
    world.work();
    let mut with_own_port = slice("default/web", &["10.244.1.6@node1"]);
    with_own_port.ports.iter_mut().for_each(|of| of.port = 80);
    world.slice(with_own_port);
    synced(&mut world);
    assert_order(
        &world.written(),
        &[
            "add destination 10.244.1.6:80 to FWM 1",
            "set destination 10.244.1.5:8080 of FWM 1 to weight 0",
            "change virtual server FWM 1",
        ],
    );
    assert_eq!(balancing(&world).1, Properties::PERSISTENT);
    // Without an endpoint on this node, the virtual server loses its persistence again.
    world.slice(slice("default/web", &["10.244.2.5@node2"]));
    synced(&mut world);
    assert_eq!(balancing(&world).0, "sh");
}

#[test]
fn packets_lose_their_mark_while_a_refused_fwmark_virtual_server_is_created() {
    let mut world = world_of(MarkBits::DEFAULT);
    let refusal = ("add virtual server FWM 1".to_owned(), "no".to_owned());
    world.kernel.state().refusals.extend([refusal]);
    world.service(exposed("default/web", 10, true));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    world.sync();
    assert_eq!(destinations(&world), [Some(2), None]);
    world.work();
    world.kernel.state().refusals.clear();
    world.wait(Duration::from_mins(10));
    synced(&mut world);
    assert_order(
        &world.written(),
        &[
            "remove 192.0.2.10,tcp:80,0x1 from set KUBE-LOCAL-MARK",
            "add virtual server FWM 1",
            "add destination 10.244.1.5:8080 to FWM 1",
            "add 192.0.2.10,tcp:80,0x1 to set KUBE-LOCAL-MARK",
        ],
    );
    assert_eq!(marks(&world), [marked(10, 1)]);
}
