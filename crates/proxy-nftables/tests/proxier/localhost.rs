//! Tests of NodePorts on localhost in nftables mode, on the strict fake kernel.

use proxy::ServicePort;
use proxy_nftables::{LocalhostNodePorts, localhost_counter};

use super::*;

const NODE_PORT: u16 = 30_080;

/// Restarts the daemon with this policy for NodePorts on localhost.
fn restart_with(world: &mut World, localhost: LocalhostNodePorts) {
    let kernel = world.kernel.clone();
    let config = Config {
        localhost,
        ..config(world.layout, None)
    };
    // Closes the relay's open ports, because the relay of the previous process ended with that
    // process.
    kernel.state().listening.clear();
    let lanes = Lanes::inline(|| kernel.clone());
    world.proxier = Proxier::new(config, node1(), lanes, world.now);
    world.made();
}

/// Returns a Service that has the same NodePort number for TCP and UDP.
fn exposed(number: u16) -> Service {
    let port = |name: &str, protocol| ServicePort {
        name: name.into(),
        protocol,
        port: 80,
        node_port: Some(NODE_PORT + number),
    };
    Service {
        ports: [port("", Protocol::Tcp), port("u", Protocol::Udp)]
            .into_iter()
            .collect(),
        ..service(number)
    }
}

fn exposing(layout: Layout, localhost: LocalhostNodePorts) -> World {
    let mut world = World::new(layout);
    restart_with(&mut world, localhost);
    world.apply(Event::ServiceApplied(exposed(1)));
    world.apply(slice_of(1, [1, 2]));
    let synced = world.sync();
    assert_eq!((synced.failures.len(), synced.pending), (0, 0));
    world
}

/// Returns the protocol numbers for which the rules reject NodePorts on localhost.
fn refused(world: &World) -> Vec<u8> {
    let content = world.content();
    let elements = content.sets.get("localhost-nodeports");
    let elements = elements.into_iter().flat_map(|(_, all)| all.keys());
    elements.map(|key| key[0]).collect()
}

fn listening(world: &World) -> Vec<(u16, usize)> {
    let state = world.kernel.state();
    let all = state.listening.iter();
    all.map(|(port, serving)| (*port, serving.endpoints.len()))
        .collect()
}

#[test]
fn node_ports_on_localhost_are_rejected_only_with_the_feature_gate() {
    const TCP_AND_UDP: [u8; 2] = [6, 17];
    for layout in LAYOUTS {
        let mut plain = exposing(layout, LocalhostNodePorts::Off);
        let mut world = exposing(layout, LocalhostNodePorts::Refused);
        assert_eq!(refused(&world), TCP_AND_UDP);
        let counters = world.content().counters;
        assert_eq!(counters.len(), 3);
        assert!(counters.contains(&Name::from(localhost_counter(Protocol::Sctp))));
        let before = world.content();
        restart_with(&mut world, LocalhostNodePorts::Refused);
        world.sync();
        assert_eq!((world.made().len(), world.content()), (0, before));
        assert_eq!(world.proxier.next_due(world.now), None, "idle is idle");
        // Without the feature gate, a restarted proxier deletes all objects for localhost, and
        // changes nothing else.
        restart_with(&mut world, LocalhostNodePorts::Off);
        assert_eq!(world.sync().pending, 0);
        assert_eq!(world.content(), plain.content(), "{layout:?}");
        // After a Service is deleted, the proxier also deletes its elements for localhost.
        restart_with(&mut plain, LocalhostNodePorts::Refused);
        plain.sync();
        assert_eq!(refused(&plain), TCP_AND_UDP);
        plain.apply(Event::ServiceDeleted(name("web-1")));
        plain.sync();
        assert_eq!(refused(&plain), [0_u8; 0]);
    }
}

/// The element that rejects TCP packets on localhost must not survive a restart that adds localhost
/// to `--nodeport-addresses` (kubernetes/kubernetes#142183).
#[test]
fn a_restart_with_localhost_in_nodeport_addresses_serves_node_ports_there() {
    for layout in LAYOUTS {
        let mut world = exposing(layout, LocalhostNodePorts::Refused);
        assert_eq!(listening(&world), []);
        restart_with(&mut world, LocalhostNodePorts::Served);
        assert_eq!(world.sync().pending, 0);
        assert_eq!(refused(&world), [17], "UDP alone");
        assert_eq!(listening(&world), [(NODE_PORT + 1, 2)]);
        restart_with(&mut world, LocalhostNodePorts::Refused);
        world.sync();
        assert_eq!((refused(&world).len(), listening(&world)), (2, vec![]));
    }
}

#[test]
fn node_ports_on_localhost_follow_changes_to_endpoints_traffic_policy_and_affinity() {
    let mut world = exposing(Layout::Upstream, LocalhostNodePorts::Served);
    world.made();
    world.apply(slice_of(1, [1]));
    world.sync();
    assert_eq!(listening(&world), [(NODE_PORT + 1, 1)]);
    world.apply(Event::ServiceApplied(Service {
        external_local: true,
        affinity_seconds: Some(60),
        ..exposed(1)
    }));
    world.sync();
    assert_eq!(listening(&world), [], "no endpoint is on this node");
    world.apply(slice_of(1, [1, 2]));
    world.sync();
    assert_eq!(listening(&world), [(NODE_PORT + 1, 1)]);
    let affinity = world.kernel.state().listening[&(NODE_PORT + 1)].affinity;
    assert_eq!(affinity, Some(Duration::from_mins(1)));
    world.apply(Event::ServiceDeleted(name("web-1")));
    world.sync();
    assert_eq!(listening(&world), []);
    assert_eq!(world.proxier.next_due(world.now), None, "idle is idle");
}

#[test]
fn a_localhost_port_in_use_is_reported_and_other_ports_are_served() {
    let mut world = World::new(Layout::Upstream);
    world.kernel.state().taken.insert(NODE_PORT + 1);
    restart_with(&mut world, LocalhostNodePorts::Served);
    for number in [1, 2] {
        world.apply(Event::ServiceApplied(exposed(number)));
        world.apply(slice_of(number, [1]));
    }
    let synced = world.sync();
    assert_eq!(listening(&world), [(NODE_PORT + 2, 1)]);
    assert_eq!((synced.settled.len(), synced.pending), (2, 0));
    let [failure] = &synced.failures[..] else {
        panic!("{:?}", synced.failures);
    };
    assert_eq!(
        failure.object,
        "serve NodePort 30081/TCP at 127.0.0.1:30081"
    );
    assert!(failure.reason.contains("already in use"), "{failure:?}");
    assert_eq!(failure.owner.as_ref().unwrap().service, name("web-1"));
    // The other program closes the port, and the proxier's retry opens it.
    world.kernel.state().taken.clear();
    world.now = world.proxier.next_due(world.now).unwrap();
    world.settle();
    assert_eq!(listening(&world).len(), 2);
}

/// Checks with objects like upstream's, under names that this mode does not use:
///
/// * a chain that uses a counter for localhost, and a map that leads to this chain;
/// * a chain that looks up packets in this map.
#[test]
fn upstreams_localhost_objects_are_removed_whatever_their_names() {
    use nftables_netlink::{Expression, LookupFor, Register, Set, SetKind, SetRef};
    for layout in LAYOUTS {
        let mut world = exposing(layout, LocalhostNodePorts::Off);
        let own = world.content();
        {
            let mut state = world.kernel.state();
            let table = state.table.as_mut().unwrap();
            let chain = |name: &str| Chain {
                name: name.into(),
                base: None,
                comment: None,
            };
            let rule = |expressions: Vec<Expression>| Rule {
                expressions,
                comment: None,
            };
            let counter = localhost_counter(Protocol::Udp);
            table.counters.insert(counter.into());
            let counts = rule(vec![Expression::Object {
                kind: 1,
                name: counter.into(),
            }]);
            let asks = rule(vec![Expression::Lookup {
                key: Register::FIRST,
                set: SetRef::Named("some-map".into()),
                what: LookupFor::Verdict,
            }]);
            let jumps = rule(vec![Expression::Verdict(Verdict::Jump(
                "some-check".into(),
            ))]);
            let map = Set::new(
                "some-map".into(),
                vec![DataType::InetProto, DataType::InetService],
                SetKind::Verdicts,
            );
            let mut chains = table.chains.clone();
            chains.insert("some-reject".into(), (chain("some-reject"), vec![counts]));
            chains.insert("some-check".into(), (chain("some-check"), vec![asks]));
            let output = Name::from("nat-output");
            chains.get_mut(&output).unwrap().1.push(jumps);
            let foreign = (chain("not-ours"), Vec::new());
            chains.insert("not-ours".into(), foreign);
            table.chains = chains;
            let key = [17, 0, 0, 0, 0x75, 0x81, 0, 0];
            let element = Element::of_verdicts(
                key.into_iter().collect(),
                Verdict::Goto("some-reject".into()),
            );
            let elements = [(element.key.clone(), element)];
            table
                .sets
                .insert("some-map".into(), (map, elements.into_iter().collect()));
        }
        restart_with(&mut world, LocalhostNodePorts::Off);
        let synced = world.sync();
        assert_eq!(
            (synced.failures.len(), synced.pending),
            (0, 0),
            "{synced:?}"
        );
        let mut left = world.content();
        assert!(left.chains.remove(&Name::from("not-ours")).is_some());
        assert_eq!(left, own, "{layout:?}");
    }
}
