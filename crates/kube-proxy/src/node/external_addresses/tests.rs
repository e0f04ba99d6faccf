use std::iter::from_fn;
use std::net::Ipv4Addr;

use proxy::options::SCHEDULER;
use proxy::{AddressRules, Event as ModelEvent, ServiceOptions};

use super::*;

#[test]
fn an_oversized_service_is_reported_once() {
    let name = NamespacedName::new("tenant", "big");
    let service = |addresses: u8, cluster_ip: IpAddr| {
        let hosts = (0..40).flat_map(|net| (0..addresses).map(move |host| (net, host)));
        let external_ips = hosts.map(|(net, host)| Ipv4Addr::new(198, 51, net, host).into());
        ModelEvent::ServiceApplied(Service {
            external_ips: external_ips.collect(),
            ports: [80].map(port).into_iter().collect(),
            ..Service::at(name.clone(), [cluster_ip])
        })
    };
    let (recorder, mut recorded) = Recorder::queued();
    let now = Instant::now();
    let counts = counts();
    let mut addresses = ExternalAddresses::new("node1", "ipvs", recorder, counts.clone(), now);
    let mut model = Model::new();
    let limited = OfReason { reason: "limit" };
    for (count, left) in [(200, 3_905), (250, 5_905)] {
        model.apply(service(count, [10, 96, 0, 1].into()));
        addresses.look(&model, None::<std::iter::Empty<&IpAddr>>, now);
        assert_eq!(counts.get_or_create(&limited).get(), left);
        let told: Vec<_> = addresses.refused().collect();
        let [(one, _)] = told[..] else {
            panic!("{told:?}");
        };
        let line = one.line(&model);
        let start = format!("cannot serve {left} of its external IPs for Service tenant/big: ");
        assert!(line.starts_with(&start), "{line}");
    }
    assert!(recorded.try_recv().is_ok());
    assert!(
        recorded.try_recv().is_err(),
        "it was told, though not how large it is now"
    );
    model.apply(service(1, [10, 96, 0, 1].into()));
    addresses.look(&model, None::<std::iter::Empty<&IpAddr>>, now);
    assert_eq!(counts.get_or_create(&limited).get(), 0);
}

#[test]
fn an_ignored_option_is_logged_and_reported_once() {
    let (recorder, mut recorded) = Recorder::queued();
    let now = Instant::now();
    let mut addresses = ExternalAddresses::new("node1", "ipvs", recorder, counts(), now);
    let mut model = Model::new();
    let give = |model: &mut Model, value: &str| {
        let options = [(SCHEDULER, value)].into_iter();
        model.apply(ModelEvent::ServiceApplied(Service {
            options: ServiceOptions::read(options),
            ..Service::at(
                NamespacedName::new("default", "web"),
                [[10, 96, 0, 1].into()],
            )
        }));
    };
    let lack = || UnavailableOption {
        annotation: SCHEDULER,
        value: "lblc".to_owned(),
        reason: "the kernel has no scheduler `lblc`".to_owned(),
    };
    let wrong = "cannot apply annotation kube-proxy-ipvs/scheduler \"best\" for Service default/web: give one of rr, ";
    let lacking = "cannot apply annotation kube-proxy-ipvs/scheduler \"lblc\" for Service default/web: the kernel has no \
                   scheduler `lblc`; the default applies until then: --ipvs-scheduler";
    for (value, lacks, line, is_everywhere) in [
        ("best", vec![], Some(wrong), true),
        ("sh", vec![], None, true),
        ("lblc", vec![], None, true),
        ("lblc", vec![lack()], Some(lacking), false),
        ("lblc", vec![], None, true),
    ] {
        give(&mut model, value);
        addresses.support("rr", lacks);
        addresses.look(&model, None::<std::iter::Empty<&IpAddr>>, now);
        addresses.look(&model, None::<std::iter::Empty<&IpAddr>>, now);
        let told: Vec<_> = addresses
            .refused()
            .map(|(one, _)| one.line(&model))
            .collect();
        assert_eq!(told.len(), usize::from(line.is_some()), "{told:?}");
        assert!(
            line.is_none_or(|line| told[0].starts_with(line)),
            "{told:?}"
        );
        let events: Vec<Event> = from_fn(|| Some(recorded.try_recv().ok()?.event)).collect();
        let wanted = line.map(|_| {
            let node = (!is_everywhere).then_some("node1");
            let name = NamespacedName::new("default", "web");
            Event::option_not_heeded(&name, &model, node, told[0].clone())
        });
        assert_eq!(events, Vec::from_iter(wanted));
    }
    let heeding = OptionSupport {
        mode: "iptables",
        ..OptionSupport::default()
    };
    let foreseen = refused(&model, &heeding);
    let here = "it has no effect in iptables mode, only in: ipvs";
    assert!(
        foreseen.len() == 1 && foreseen[0].ends_with(here),
        "{foreseen:?}"
    );
}

fn port(number: u16) -> proxy::ServicePort {
    proxy::ServicePort {
        name: "".into(),
        protocol: proxy::Protocol::Tcp,
        port: number,
        node_port: None,
    }
}

#[test]
fn risky_external_addresses_are_reported_with_service_and_field() {
    let mut model = Model::new();
    let name = |name| NamespacedName::new("default", name);
    let ips = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect();
    model.apply(ModelEvent::ServiceApplied(Service {
        external_ips: ips(&["172.35.0.101", "172.35.0.100", "172.35.0.9", "192.0.2.20"]),
        ..Service::at(name("nginx"), [[10, 96, 0, 1].into()])
    }));
    model.apply(ModelEvent::ServiceApplied(Service {
        ingress_ips: ips(&["172.35.0.102", "172.35.0.9"]),
        ..Service::at(name("lb"), [[10, 96, 0, 2].into()])
    }));
    let (recorder, mut recorded) = Recorder::queued();
    let now = Instant::now();
    let mut addresses = ExternalAddresses::new("node1", "ipvs", recorder, counts(), now);
    addresses.read = || NearbyNetworks {
        next_hops: vec![[172, 35, 0, 9].into()],
        networks: vec!["172.35.0.0/24".parse().unwrap()],
    };
    let node: IpAddr = [172, 35, 0, 100].into();
    addresses.look(&model, Some([node].iter()), now);
    let told: Vec<String> = addresses.known.keys().map(|one| one.line(&model)).collect();
    let has = |parts: &[&str]| {
        let mut told = told.iter();
        told.any(|line| parts.iter().all(|part| line.contains(part)))
    };
    assert_eq!(told.len(), 4, "{told:?}");
    for parts in [
        [
            "172.35.0.101 (spec.externalIPs)",
            "Service default/nginx",
            "in 172.35.0.0/24",
        ],
        [
            "172.35.0.100 (spec.externalIPs)",
            "Service default/nginx",
            "address of this node",
        ],
        [
            "172.35.0.9 (spec.externalIPs)",
            "Service default/nginx",
            "next hop",
        ],
        [
            "172.35.0.9 (status.loadBalancer",
            "Service default/lb",
            "next hop",
        ],
    ] {
        assert!(has(&parts), "{parts:?}: {told:?}");
    }
    assert_eq!(from_fn(|| recorded.try_recv().ok()).count(), 4);
    // The user has corrected the Service.
    model.apply(ModelEvent::ServiceApplied(Service {
        external_ips: ips(&["192.0.2.20"]),
        ..Service::at(name("nginx"), [[10, 96, 0, 1].into()])
    }));
    addresses.look(&model, Some([node].iter()), now);
    assert_eq!(addresses.known.len(), 1, "{:?}", addresses.known);
}

#[test]
fn many_rejected_addresses_are_all_reported_over_time() {
    let node: IpAddr = [192, 0, 2, 1].into();
    let mut model = Model::new().with_address_rules(AddressRules {
        allowed: Some(vec!["192.0.2.0/24".parse().unwrap()]),
    });
    let mut give = |namespace: &str, name: &str, external_ips: Vec<IpAddr>| {
        let name = NamespacedName::new(namespace, name);
        let service = Service::at(name, [[10, 96, 0, 1].into()]);
        model.apply(ModelEvent::ServiceApplied(Service {
            external_ips,
            ..service
        }));
    };
    // The names of the flooding Services sort before all other names.
    for number in 0..60 {
        let many = (0..100).map(|host| Ipv4Addr::new(198, 51, number, host).into());
        give("a", &format!("a-{number}"), many.collect());
    }
    give("z", "z", vec![node]);
    give("z", "refused", vec![Ipv4Addr::new(198, 51, 99, 1).into()]);
    let (recorder, mut recorded) = Recorder::queued();
    let mut now = Instant::now();
    let mut addresses = ExternalAddresses::new("node1", "ipvs", recorder, counts(), now);
    let mut told = |now| {
        addresses.look(&model, Some([node].iter()), now);
        let mut count = 0;
        while recorded.try_recv().is_ok() {
            count += 1;
        }
        let is_told = |(one, known): (&Contested, &Finding)| known.is_told && !one.is_refused();
        (count, addresses.known.iter().any(is_told))
    };
    assert_eq!(told(now), (TOLD_MAX, true));
    assert_eq!(told(now), (0, true), "a minute has not passed");
    let mut all = TOLD_MAX;
    for _ in 0..60 {
        now += WINDOW;
        all += told(now).0;
    }
    // Findings of the namespace `z` are stored in addition to the maximum of the flooding
    // namespace.
    assert_eq!(all, KNOWN_OF_NAMESPACE + 2);
    let is_other = |one: &Contested| one.is_refused() && one.service.namespace() == "z";
    assert!(addresses.known.keys().any(is_other));

    // A new mode has not read the node's addresses yet. Until then, the reporter keeps all
    // findings.
    addresses.look(&model, None::<std::iter::Empty<&IpAddr>>, now);
    assert!(addresses.known.keys().any(|one| !one.is_refused()));
    assert_eq!(addresses.untold, 0);
}
