use std::time::{Duration, SystemTime};

use super::shared::{ELSEWHERE, FEW_SHARED};
use super::*;
use crate::names::{IpFamily, Protocol};
use crate::object::Endpoint;

fn name(name: &str) -> NamespacedName {
    NamespacedName::new("default", name)
}

fn service(service: &str) -> Event {
    Event::ServiceApplied(Service {
        ..Service::at(name(service), ["10.96.0.10".parse().unwrap()])
    })
}

fn complete(kind: Kind, is_whole: bool) -> Event {
    Event::ListComplete { kind, is_whole }
}

fn unreadable(service: &str) -> Event {
    Event::Unreadable(Kind::Service, name(service))
}

#[test]
fn an_event_affects_only_the_ip_families_that_it_changes() {
    let service_at = |ips: &[&str]| {
        let ips = ips.iter().map(|ip| ip.parse().unwrap());
        Event::ServiceApplied(Service::at(name("web"), ips))
    };
    let slice = |family, port: u16| {
        Event::SliceApplied(EndpointSlice {
            name: name("web-6"),
            service: name("web"),
            family,
            ports: [crate::object::EndpointPort {
                name: "".into(),
                protocol: Protocol::Tcp,
                port,
            }]
            .into_iter()
            .collect(),
            endpoints: Vec::new().into(),
            change_trigger: None,
        })
    };
    let mut model = Model::new();
    let mut families = |event: Event| {
        model.apply(event);
        let changes = model.take_changes();
        let mut all = IpFamily::ALL.into_iter();
        (
            all.next().is_some_and(|of| changes.concerns(of)),
            all.next().is_some_and(|of| changes.concerns(of)),
        )
    };
    let (v4, v6) = ("10.96.0.1", "fd96::1");
    let is_v4_first = IpFamily::ALL[0] == IpFamily::V4;
    assert!(is_v4_first);
    for (event, concerned) in [
        (service_at(&[v4]), (true, false)),
        (service_at(&[v4]), (false, false)),
        (slice(IpFamily::V6, 80), (false, true)),
        (slice(IpFamily::V6, 81), (false, true)),
        (Event::SliceDeleted(name("web-6")), (false, true)),
        (service_at(&[v4, v6]), (true, true)),
        (service_at(&[v6]), (true, true)),
        (Event::ServiceDeleted(name("web")), (false, true)),
        (Event::NodeApplied(Node::default()), (true, true)),
    ] {
        assert_eq!(families(event.clone()), concerned, "{event:?}");
    }
}

/// Creates a model with these events, and completes the initial list of EndpointSlices.
fn model(events: impl IntoIterator<Item = Event>) -> Model {
    let mut model = Model::new();
    model.apply(Event::ListStarted(Kind::EndpointSlice));
    model.apply(complete(Kind::EndpointSlice, true));
    for event in events {
        model.apply(event);
    }
    model
}

fn names(model: &Model) -> Vec<&str> {
    let mut names: Vec<_> = model.service_names().map(NamespacedName::name).collect();
    names.sort_unstable();
    names
}

const START: Event = Event::ListStarted(Kind::Service);

#[test]
fn the_model_ignores_external_ips_if_configured() {
    let with = |address: &str| {
        let mut event = service("web");
        if let Event::ServiceApplied(service) = &mut event {
            service.external_ips = vec![address.parse().unwrap()];
        }
        event
    };
    let seen = |external_ips| {
        let mut model = Model::new().with_external_ips(external_ips);
        model.apply(with("192.0.2.1"));
        let view = model.view(&name("web")).unwrap();
        let seen = view.service.external_ips.len();
        model.take_changes();
        model.apply(with("192.0.2.2"));
        (seen, model.has_changes())
    };
    assert_eq!(seen(ExternalIps::Served), (1, true));
    // The changed Service differs only in its external IPs, which the model ignores.
    assert_eq!(seen(ExternalIps::Ignored), (0, false));
}

/// Returns an event that adds an EndpointSlice with 100 ready endpoints. `placement` returns the
/// node, zone and hints of the endpoint with a given number.
fn slice_of_100(placement: impl Fn(u8) -> Placement) -> Event {
    let endpoints = (0..100).map(|number| Endpoint {
        address: [10, 244, 0, number].into(),
        ready: true,
        serving: true,
        terminating: false,
        placement: Arc::new(placement(number)),
    });
    Event::SliceApplied(EndpointSlice {
        name: name("web-a"),
        service: name("web"),
        family: IpFamily::V4,
        ports: [].into_iter().collect(),
        endpoints: endpoints.collect(),
        change_trigger: None,
    })
}

#[test]
fn placements_of_deleted_nodes_are_dropped() {
    let mut model = Model::new();
    for generation in 0..100 {
        model.apply(slice_of_100(|number| Placement {
            node: Some(format!("node-{generation}-{number}").into()),
            ..Placement::default()
        }));
    }
    let held = model.placements.known.len();
    assert!(held <= 3 * 100 + FEW_SHARED, "{held} are held");
}

#[test]
fn endpoints_of_other_nodes_share_one_placement_per_zone() {
    for (zones, kept) in [(1, 1), (3, 3), (20, 20)] {
        let mut model = Model::of_node("own");
        model.apply(slice_of_100(|number| Placement {
            node: Some(format!("node-{number}").into()),
            zone: Some(format!("zone-{}", number % zones).into()),
            ..Placement::default()
        }));
        assert_eq!(model.placements.known.len(), kept);
    }
}

#[test]
fn endpoints_of_other_nodes_keep_no_node_name() {
    let placed = |node: &str, hints: &[&str]| Endpoint {
        address: [10, 244, 0, 1].into(),
        ready: true,
        serving: true,
        terminating: false,
        placement: Arc::new(Placement {
            node: Some(node.into()),
            zone: Some("z".into()),
            for_nodes: hints.iter().map(|hint| (*hint).into()).collect(),
            for_zones: ["a".into()].into(),
        }),
    };
    let slice = |endpoints: &[Endpoint]| EndpointSlice {
        name: name("a-1"),
        service: name("a"),
        family: IpFamily::V4,
        ports: [].into_iter().collect(),
        endpoints: endpoints.iter().cloned().collect(),
        change_trigger: None,
    };
    let told = [
        placed("own", &[]),
        placed("own", &["own"]),
        placed("other", &["other", "own"]),
        placed("other", &["other"]),
        placed("another", &["another"]),
        placed("another", &[]),
    ];
    let mut model = Model::of_node("own");
    model.apply(service("a"));
    model.apply(Event::SliceApplied(slice(&told)));
    let view = model.view(&name("a")).unwrap();
    let endpoints = view.slices().flat_map(|slice| slice.endpoints.iter());
    let kept: Vec<_> = endpoints
        .map(|endpoint| {
            let Placement {
                node,
                zone,
                for_nodes,
                for_zones,
            } = &**endpoint.placement;
            assert_eq!(zone.as_deref(), Some("z"));
            assert_eq!(**for_zones, ["a".into()]);
            let for_nodes: Vec<&str> = for_nodes.iter().map(|node| &**node).collect();
            (node.as_deref(), for_nodes)
        })
        .collect();
    let wanted = [
        (Some("own"), vec![]),
        (Some("own"), vec!["own"]),
        (None, vec!["own"]),
        (None, vec![ELSEWHERE]),
        (None, vec![ELSEWHERE]),
        (None, vec![]),
    ];
    assert_eq!(kept, wanted);
    model.take_changes();
    model.apply(Event::SliceApplied(slice(&told)));
    assert!(!model.has_changes(), "the same is no change");
}

#[test]
fn a_list_without_unreadable_objects_removes_missing_objects() {
    let mut model = model([START, service("a"), service("b")]);
    assert!(!model.is_complete());
    model.apply(complete(Kind::Service, true));
    assert!(model.is_complete() && model.is_whole());
    model.take_changes();
    for event in [START, service("b"), START, service("b")] {
        model.apply(event);
    }
    assert_eq!(names(&model), ["a", "b"], "a broken list takes nothing");
    model.apply(complete(Kind::Service, true));
    assert_eq!(names(&model), ["b"]);
    assert_eq!(model.take_changes().services, [name("a")].into());
}

#[test]
fn objects_missing_from_a_list_are_reported_with_counts() {
    let names: Vec<_> = (0..9).map(|number| format!("s{number}")).collect();
    let mut model = model([START]);
    for name in &names {
        model.apply(service(name));
    }
    model.apply(complete(Kind::Service, true));
    assert_eq!(
        model.take_changes().vanished,
        [],
        "the first list takes nothing"
    );
    // Before the list ends, the watch adds one Service, and adds and deletes another Service.
    model.apply(Event::ServiceDeleted(name("s8")));
    for event in [
        START,
        service("s3"),
        service("new"),
        Event::ServiceDeleted(name("new")),
    ] {
        model.apply(event);
    }
    assert_eq!(
        model.take_changes().vanished,
        [],
        "not before it is complete"
    );
    model.apply(complete(Kind::Service, true));
    let mut vanished = MissingObjects {
        kind: Kind::Service,
        count: 7,
        known: 8,
        first: ["s0", "s1", "s2", "s4", "s5"].map(name).into(),
    };
    assert!(model.has_changes());
    assert_eq!(model.take_changes().vanished, [vanished.clone()]);
    for event in [START, complete(Kind::Service, false)] {
        model.apply(event);
    }
    assert_eq!(model.take_changes().vanished, [], "there may be more");
    model.apply(complete(Kind::Service, true));
    (vanished.count, vanished.known, vanished.first) = (1, 1, vec![name("s3")]);
    assert_eq!(model.take_changes().vanished, [vanished]);
}

#[test]
fn endpoint_slices_and_the_node_missing_from_a_list_are_reported() {
    let slice = Event::SliceApplied(EndpointSlice {
        name: name("a-1"),
        service: name("a"),
        family: IpFamily::V4,
        ports: [].into_iter().collect(),
        endpoints: Vec::new().into(),
        change_trigger: None,
    });
    let node = Event::NodeApplied(Node {
        name: "n".into(),
        ..Node::default()
    });
    for (kind, object, first) in [
        (Kind::EndpointSlice, slice, name("a-1")),
        (Kind::Node, node, NamespacedName::new("", "n")),
    ] {
        let list = |object| {
            [
                Some(Event::ListStarted(kind)),
                object,
                Some(complete(kind, true)),
            ]
        };
        let mut model = model(list(Some(object)).into_iter().flatten());
        assert_eq!(model.take_changes().vanished, []);
        for event in list(None)
            .into_iter()
            .flatten()
            .chain(list(None).into_iter().flatten())
        {
            model.apply(event);
        }
        let vanished = MissingObjects {
            kind,
            count: 1,
            known: 1,
            first: vec![first],
        };
        assert_eq!(model.take_changes().vanished, [vanished], "and once");
    }
}

#[test]
fn service_cidrs_are_known_after_a_list_of_all_service_cidr_objects() {
    let cidr = |name: &str, nets: &[&str]| {
        Event::ServiceCidrApplied(ServiceCidr {
            name: name.into(),
            nets: nets.iter().map(|net| net.parse().unwrap()).collect(),
        })
    };
    let kind = Kind::ServiceCidr;
    let changed = |model: &mut Model| model.take_changes().service_cidrs;
    let of = |model: &Model| {
        let nets = model.service_cidrs(IpFamily::V4)?;
        Some(nets.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let mut model = Model::new();
    // This API server does not serve ServiceCIDRs.
    model.apply(complete(kind, false));
    assert!(model.are_service_cidrs_listed() && !changed(&mut model));
    assert_eq!(of(&model), None);
    model.apply(Event::ListStarted(kind));
    model.apply(cidr("a", &["10.0.0.0/16"]));
    assert_eq!(of(&model), None);
    model.apply(cidr("b", &["10.8.0.0/16", "fd00::/112"]));
    model.apply(complete(kind, true));
    assert!(changed(&mut model));
    assert_eq!(of(&model).unwrap(), ["10.0.0.0/16", "10.8.0.0/16"]);
    // A repeated ServiceCIDR changes nothing. The next list lacks the ServiceCIDR, so the model
    // deletes it.
    model.apply(cidr("a", &["10.0.0.0/16"]));
    assert!(!model.has_changes());
    model.apply(Event::ListStarted(kind));
    model.apply(cidr("b", &["10.8.0.0/16", "fd00::/112"]));
    model.apply(complete(kind, true));
    assert!(changed(&mut model));
    assert_eq!(of(&model).unwrap(), ["10.8.0.0/16"]);
    model.apply(Event::ServiceCidrDeleted("b".into()));
    assert!(changed(&mut model));
    assert_eq!(of(&model).unwrap(), [""; 0]);
    // A complete list of ServiceCIDRs does not make the lists of other kinds complete.
    assert!(!model.is_complete() && !model.is_node_listed());
}

#[test]
fn a_deletion_event_or_a_list_without_the_node_marks_the_node_as_absent() {
    let node = || {
        Event::NodeApplied(Node {
            name: "n".into(),
            ..Node::default()
        })
    };
    let list = |model: &mut Model, node: Option<Event>| {
        model.apply(Event::ListStarted(Kind::Node));
        if let Some(node) = node {
            model.apply(node);
        }
        model.apply(complete(Kind::Node, true));
        model.has_node()
    };
    let mut model = Model::new();
    assert_eq!(model.has_node(), None);
    assert_eq!(list(&mut model, None), Some(false));
    assert_eq!(list(&mut model, Some(node())), Some(true));
    model.apply(Event::NodeDeleted("n".into()));
    assert_eq!(model.has_node(), Some(false));
    model.apply(node());
    assert_eq!(model.has_node(), Some(true));
    assert_eq!(list(&mut model, None), Some(false));
    assert!(model.node().is_some(), "what was known of it stays");
}

#[test]
fn changes_are_counted_with_their_trigger_times() {
    let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let slice = |change_trigger| {
        Event::SliceApplied(EndpointSlice {
            name: name("a-1"),
            service: name("a"),
            family: IpFamily::V6,
            ports: [].into_iter().collect(),
            endpoints: Vec::new().into(),
            change_trigger,
        })
    };
    let mut model = model([service("a"), service("a"), slice(at(1)), slice(at(1))]);
    model.apply(slice(at(2)));
    let changes = model.take_changes();
    assert_eq!((changes.service_changes, changes.slice_changes), (1, 2));
    let triggers = [1, 2].map(|seconds| Trigger {
        service: name("a"),
        family: IpFamily::V6,
        at: at(seconds).unwrap(),
    });
    assert_eq!(changes.triggers, triggers);
    model.apply(Event::SliceDeleted(name("a-1")));
    let changes = model.take_changes();
    assert_eq!((changes.slice_changes, changes.triggers.len()), (1, 0));
}

#[test]
fn a_complete_list_with_unreadable_objects_removes_no_object() {
    let mut model = model([START, service("a"), complete(Kind::Service, false)]);
    assert!(model.is_complete() && !model.is_whole());
    for event in [START, complete(Kind::Service, false)] {
        model.apply(event);
    }
    assert_eq!(names(&model), ["a"]);
    model.apply(complete(Kind::Service, true));
    assert_eq!(names(&model), [""; 0]);
    assert!(model.is_whole());
}

#[test]
fn an_unreadable_object_keeps_its_last_known_state() {
    let mut model = model([START, service("a"), complete(Kind::Service, true)]);
    for event in [START, unreadable("a"), complete(Kind::Service, true)] {
        model.apply(event);
    }
    assert_eq!(names(&model), ["a"]);
    model.apply(unreadable("new"));
    assert!(model.is_whole(), "nothing of it can be in the kernel");
}

#[test]
fn a_never_readable_object_stays_unknown_after_another_unreadable_event() {
    let first = [START, unreadable("a"), complete(Kind::Service, true)];
    let mut model = model(first);
    model.apply(unreadable("a"));
    assert!(!model.is_whole(), "what it was may be in the kernel");
    model.apply(service("a"));
    assert!(model.is_whole());
}

#[test]
fn the_model_is_not_whole_while_an_object_has_never_been_readable() {
    let first = [
        START,
        unreadable("a"),
        unreadable("b"),
        complete(Kind::Service, true),
    ];
    let mut healed = model(first.clone());
    assert!(healed.is_complete() && !healed.is_whole());
    healed.apply(Event::ServiceDeleted(name("a")));
    assert!(!healed.is_whole());
    healed.apply(service("b"));
    assert!(healed.is_whole());

    let mut gone = model(first);
    for event in [START, unreadable("a"), complete(Kind::Service, true)] {
        gone.apply(event);
    }
    assert!(!gone.is_whole());
    for event in [START, complete(Kind::Service, true)] {
        gone.apply(event);
    }
    assert!(gone.is_whole());
}
