use view::{Address, AddressKind, Chance, Endpoint, Port, Service, ServiceName, Step};

use super::*;
use crate::journeys::Sender;
use crate::objects::Objects;

fn delivered(endpoint: &str, chance: f64, source: &str) -> Walk {
    Walk {
        chance: Chance(chance),
        fate: Fate::Delivered,
        endpoint: Some(endpoint.to_owned()),
        source: source.to_owned(),
        ..Walk::default()
    }
}

fn failed(fate: Fate, chance: f64, place: &str, entry: &str, origin: &str) -> Walk {
    let step = Step {
        place: place.to_owned(),
        entry: entry.to_owned(),
        origin: origin.to_owned(),
        ..Step::default()
    };
    Walk {
        chance: Chance(chance),
        fate,
        steps: vec![step],
        ..Walk::default()
    }
}

fn pod(of: Option<ServicePortAddress<'_>>) -> TracedPacket<'_> {
    TracedPacket {
        sender: Sender {
            words: "pod 10.244.1.9 on this node".to_owned(),
            who: "a pod on this node".to_owned(),
            is_here: true,
            has_service_address: false,
            stranger: None,
            way: PacketOrigin::Comes("cbr0".to_owned(), "10.244.1.9".parse().unwrap()),
        },
        to: "10.96.0.9:80".parse().unwrap(),
        protocol: proxy::Protocol::Tcp,
        of,
        named_by: &[],
        proxied_by: &[],
    }
}

const MASQUERADED: &str = "masqueraded, to an address of this node";

#[test]
fn a_verdict_names_endpoints_with_their_shares() {
    let told = |walks: &[Walk]| verdict(&pod(None), walks);
    assert_eq!(
        told(&[
            delivered("10.244.1.5:8080", 0.5, "kept"),
            delivered("10.244.2.7:8080", 0.5, "kept"),
        ]),
        "a pod on this node reaches 10.244.1.5:8080 or 10.244.2.7:8080, half each; the endpoint \
         sees the client's own address"
    );
    assert_eq!(
        told(&[delivered("10.244.2.7:8080", 1.0, MASQUERADED)]),
        "a pod on this node reaches 10.244.2.7:8080; the endpoint sees an address of this node as \
         the client"
    );
    assert_eq!(
        told(&[
            delivered("10.244.2.7:8080", 0.75, "kept"),
            delivered("10.244.2.8:8080", 0.25, "kept"),
        ]),
        "a pod on this node reaches 10.244.2.7:8080 (75 %) or 10.244.2.8:8080 (25 %); the \
         endpoint sees the client's own address"
    );
    let many: Vec<Walk> = (0..50)
        .map(|host| delivered(&format!("10.244.2.{host}:80"), 0.02, "kept"))
        .collect();
    let told = told(&many);
    assert!(
        told.contains("10.244.2.3:80 or one of 46 more, one in 50 each;"),
        "{told}"
    );
}

#[test]
fn a_verdict_says_whether_a_pod_may_reach_itself() {
    let told = verdict(
        &pod(None),
        &[
            delivered("10.244.1.9:8080", 0.5, MASQUERADED),
            delivered("10.244.2.7:8080", 0.5, "kept"),
        ],
    );
    assert_eq!(
        told,
        "a pod on this node reaches itself (10.244.1.9:8080) or 10.244.2.7:8080, half each; \
         10.244.1.9:8080 sees an address of this node as the client, the others the client's own"
    );
}

fn objects(policy: &str, lost_to: Option<&str>, endpoints: Vec<Endpoint>) -> Objects {
    let port = Port {
        protocol: "TCP".to_owned(),
        port: 80,
        addresses: vec![Address {
            kind: AddressKind::ClusterIp,
            at: "10.96.0.9:80".to_owned(),
            lost_to: lost_to.map(str::to_owned),
            ..Address::default()
        }],
        endpoints,
        ..Port::default()
    };
    let service = Service {
        name: ServiceName {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        internal_traffic_policy: policy.to_owned(),
        ports: vec![port],
        ..Service::default()
    };
    Objects {
        services: vec![service],
        ..Objects::default()
    }
}

#[test]
fn a_verdict_on_a_failure_says_where_and_why() {
    let endpoint = |ready, local| Endpoint {
        at: "10.244.1.5:8080".to_owned(),
        ready,
        local,
        node: Some("node2".to_owned()),
        cluster: ready,
        ..Endpoint::default()
    };
    let ipvs = failed(
        Fate::Refused,
        1.0,
        "IPVS",
        "TCP 10.96.0.9:80 rr",
        "clusterIP of default/web",
    );
    let by_ipvs = "a pod on this node is refused by IPVS (`TCP 10.96.0.9:80 rr`): ";
    for (objects, why) in [
        (
            objects("Cluster", None, vec![]),
            "default/web has no endpoints",
        ),
        (
            objects("Cluster", None, vec![endpoint(false, true)]),
            "no endpoint of default/web is ready",
        ),
        (
            objects("Local", None, vec![endpoint(true, false)]),
            "internalTrafficPolicy is Local, and no endpoint of default/web on this node is ready",
        ),
        (
            objects(
                "Local",
                None,
                vec![Endpoint {
                    node: None,
                    ..endpoint(true, false)
                }],
            ),
            "internalTrafficPolicy is Local, and no endpoint of default/web on this node is ready; \
             10.244.1.5:8080 counts as on another node, because its EndpointSlice has no nodeName for it",
        ),
        (
            objects(
                "Cluster",
                None,
                vec![Endpoint {
                    at: "[fd44:1::10]:8080".to_owned(),
                    cluster: false,
                    why: Reason::NoClusterIp(IpFamily::V6).to_string(),
                    ..endpoint(true, true)
                }],
            ),
            "default/web has no IPv4 endpoints; [fd44:1::10]:8080 is not used: IPv6, and the \
             Service has no IPv6 cluster IP",
        ),
        (
            objects(
                "Cluster",
                None,
                vec![Endpoint {
                    at: "[fd44:1::10]:8080".to_owned(),
                    ..endpoint(true, true)
                }],
            ),
            "default/web has endpoints, but no IPv4 endpoints",
        ),
        (
            objects(
                "Cluster",
                None,
                vec![Endpoint {
                    at: "10.244.1.5".to_owned(),
                    why: Reason::OtherPort.to_string(),
                    ..endpoint(true, true)
                }],
            ),
            "default/web has no endpoints; 10.244.1.5: its EndpointSlice has no port of this name \
             and protocol",
        ),
        (
            objects("Cluster", Some("default/older"), vec![]),
            "10.96.0.9:80 is served for default/older instead, which is older",
        ),
        // The address has a ready endpoint, so the objects show no reason for the failure.
        (
            objects("Cluster", None, vec![endpoint(true, false)]),
            "it comes from clusterIP of default/web",
        ),
    ] {
        let place = objects.places().next();
        let told = verdict(&pod(place), std::slice::from_ref(&ipvs));
        assert_eq!(told, format!("{by_ipvs}{why}"));
    }
    let others = failed(
        Fate::Dropped,
        1.0,
        "filter DOCKER-USER",
        "-A DOCKER-USER -j DROP",
        "not kube-proxy's: chain DOCKER-USER",
    );
    let objects = objects("Cluster", None, vec![]);
    assert_eq!(
        verdict(&pod(objects.places().next()), &[others]),
        "a pod on this node is dropped by filter DOCKER-USER (`-A DOCKER-USER -j DROP`), and \
         hears nothing: \
         not kube-proxy's: chain DOCKER-USER"
    );
}

#[test]
fn a_verdict_lists_different_outcomes_with_their_probabilities() {
    let mut lost = delivered("10.244.2.7:8080", 0.25, "kept");
    lost.unanswered =
        Some("it sees 10.96.0.9, which is an address of its own node, too".to_owned());
    let told = verdict(
        &pod(None),
        &[
            delivered("10.244.1.5:8080", 0.5, "kept"),
            lost,
            failed(Fate::Dropped, 0.25, "filter FORWARD", "", ""),
        ],
    );
    assert_eq!(
        told,
        "a pod on this node half of the time reaches 10.244.1.5:8080; the endpoint sees the \
         client's own address; \
         25 % of the time reaches 10.244.2.7:8080, but gets no answer: it sees 10.96.0.9, which \
         is an address of its own node, \
         too; 25 % of the time is dropped by filter FORWARD, and hears nothing"
    );
}

#[test]
fn a_verdict_covers_packets_that_match_no_service() {
    let told = |fate| verdict(&pod(None), &[failed(fate, 1.0, "routing", "", "")]);
    assert_eq!(
        told(Fate::Forwarded),
        "a pod on this node is forwarded to 10.96.0.9:80 unchanged: no Service matches here"
    );
    assert_eq!(
        told(Fate::Local),
        "a pod on this node reaches a process of this node that listens at 10.96.0.9:80: no \
         Service is served there"
    );
    let nobody = failed(Fate::Refused, 1.0, THIS_NODE, "", "");
    assert_eq!(
        verdict(&pod(None), &[nobody]),
        "a pod on this node reaches this node itself, and is refused: no Service is served at \
         10.96.0.9:80, and no process \
         listens there"
    );
    assert!(told(Fate::Unknown).contains("cannot be followed beyond routing"));
    assert!(verdict(&pod(None), &[]).contains("is unknown"));
}

#[test]
fn a_verdict_groups_endpoints_with_the_same_reply_outcome() {
    let lost = |at: &str, chance| Walk {
        unanswered: Some("its answer is dropped by filter FORWARD".to_owned()),
        ..delivered(at, chance, "kept")
    };
    let unsure = Walk {
        unsure: Some("the endpoint is on another node".to_owned()),
        ..delivered("10.244.3.7:8080", 0.5, "kept")
    };
    let walks = [
        lost("10.244.1.5:8080", 0.25),
        lost("10.244.2.7:8080", 0.25),
        unsure,
    ];
    assert_eq!(
        verdict(&pod(None), &walks),
        "a pod on this node half of the time reaches 10.244.3.7:8080; the endpoint sees the \
         client's own address; a reply is not certain: the endpoint is on another node; half of \
         the time reaches 10.244.1.5:8080 or 10.244.2.7:8080, \
         half each, but gets no answer: its answer is dropped by filter FORWARD"
    );
}

#[test]
fn an_address_bound_by_ipvs_mode_is_reported_with_its_service() {
    let mut planned = pod(None);
    let names = ["Service default/nginx (spec.externalIPs)".to_owned()];
    planned.named_by = &names;
    for place in [THIS_NODE, "filter KUBE-IPVS-FILTER"] {
        let told = verdict(&planned, &[failed(Fate::Refused, 1.0, place, "", "")]);
        let wanted = "10.96.0.9 is an address of Service default/nginx (spec.externalIPs), which \
                      IPVS mode gives to this node";
        assert!(told.contains(wanted), "{told}");
    }
}

#[test]
fn an_address_that_is_not_served_is_reported_with_its_service() {
    let mut planned = pod(None);
    let names = ["Service default/web (status.loadBalancer.ingress)".to_owned()];
    planned.named_by = &names;
    for fate in [Fate::Forwarded, Fate::Unrouted] {
        let told = verdict(&planned, &[failed(fate, 1.0, "routing", "", "")]);
        let wanted = ". 10.96.0.9 is an address of Service default/web \
                      (status.loadBalancer.ingress), which is not served at this port: the errors \
                      of `kube-proxy services` name the reason";
        assert!(told.ends_with(wanted), "{told}");
    }
}

#[test]
fn an_address_that_is_left_to_a_load_balancer_is_reported_with_its_service() {
    let mut planned = pod(None);
    let names = ["default/web".to_owned()];
    planned.proxied_by = &names;
    let told = verdict(&planned, &[failed(Fate::Forwarded, 1.0, "routing", "", "")]);
    assert_eq!(
        told,
        "a pod on this node is forwarded to 10.96.0.9:80 unchanged: no Service matches here. \
         Service default/web has 10.96.0.9 with `ipMode: Proxy`, so packets to it go to the load \
         balancer"
    );
}

#[test]
fn a_verdict_on_a_routing_failure_has_advice() {
    let told = |fate, says: &str, has_service_address| {
        let mut planned = pod(None);
        planned.sender.has_service_address = has_service_address;
        let mut walk = failed(fate, 1.0, "routing", "", "");
        walk.steps[0].says = says.to_owned();
        verdict(&planned, &[walk])
    };
    assert_eq!(
        told(Fate::Unrouted, "cannot be sent: no route to there", false),
        "a pod on this node does not get to 10.96.0.9:80: no route to there, and the sender gets \
         an error"
    );
    let martian = "dropped: this node has its source 192.0.2.20 itself (martian)";
    let dropped = told(Fate::Dropped, martian, false);
    assert!(dropped.ends_with("itself (martian)"), "{dropped}");
    let balancer = told(Fate::Dropped, martian, true);
    assert!(
        balancer.contains("itself (martian)") && balancer.contains("ipMode: Proxy"),
        "{balancer}"
    );
}
