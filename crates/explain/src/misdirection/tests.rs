use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use packet_path::{Fate as Found, Packet, Source};
use proxy::{IpFamily, Protocol};
use view::{
    Address, AddressKind, Condition, Endpoint, Explanation, Journey, Port, Service, ServiceName,
};

use super::*;
use crate::answer::EndpointReplies;
use crate::journeys::{Hop, PacketOrigin, Routing, Sender};
use crate::misdirection::told;
use crate::objects::Objects;
use crate::quotes::Quotes;
use crate::verdict::verdict;
use crate::walk_text::TextInputs;
use crate::{MODES, exit_status};

/// A fake node on which a process listens on port 22 only, and through which all replies pass.
struct Node;

impl Routing for Node {
    fn hop(&self, _: IpAddr) -> Option<Hop> {
        Some(Hop {
            interface: "cbr0".to_owned(),
            is_local: false,
            is_service: false,
            is_neighbour: true,
            is_inner: true,
        })
    }
}

impl EndpointReplies for Node {
    fn answers(&self, _: &packet_path::Walk) -> Vec<packet_path::Walk> {
        Vec::new()
    }

    fn listens(&self, at: SocketAddr, _: Protocol) -> Result<bool, String> {
        Ok(at.port() == 22)
    }
}

/// Returns a Service with an endpoint in each state, and with an address of each kind.
fn objects(lost_to: Option<&str>) -> Objects {
    let address = |(kind, at): (AddressKind, &str)| Address {
        kind,
        at: at.to_owned(),
        lost_to: lost_to.map(str::to_owned),
        ..Address::default()
    };
    let endpoint = |(at, condition): (&str, Condition)| Endpoint {
        at: at.to_owned(),
        condition,
        local: true,
        ..Endpoint::default()
    };
    let endpoints = [
        ("10.244.2.10:8080", Condition::Ready),
        ("10.244.2.11:8080", Condition::NotReady),
        ("10.244.2.12:8080", Condition::ServingTerminating),
        // `HeldEndpoints` adds a draining endpoint that is in no EndpointSlice.
        ("10.244.2.13:8080", Condition::default()),
    ];
    let addresses = [
        (AddressKind::ClusterIp, "10.96.0.9:80"),
        (AddressKind::NodePort, "172.35.0.100:30080"),
        (AddressKind::LoadBalancerIp, "192.0.2.9:80"),
    ];
    Objects {
        services: vec![Service {
            name: ServiceName {
                namespace: "t".to_owned(),
                name: "w".to_owned(),
            },
            ports: vec![Port {
                protocol: "TCP".to_owned(),
                port: 80,
                addresses: addresses.into_iter().map(address).collect(),
                endpoints: endpoints.into_iter().map(endpoint).collect(),
                ..Port::default()
            }],
            ..Service::default()
        }],
        ..Objects::default()
    }
}

/// A rule that changes the destination: its place and its text.
type Rule<'a> = (&'a str, &'a str);

const HOST_PORT: Rule<'_> = (
    "nat CNI-HOSTPORT-DNAT",
    "-A CNI-HOSTPORT-DNAT -p tcp --dport 80 -j DNAT --to-destination 10.244.1.10:8080",
);
const OWN_RULES: [Rule<'_>; 2] = [
    ("nat KUBE-SEP-A", "-A KUBE-SEP-A -p tcp -j DNAT"),
    (
        "table ip kube-proxy, chain endpoint-W2BRTWSS-t/w/tcp/__10.244.2.10/8080",
        "dnat to 10.244.2.10:8080",
    ),
];

/// Traces a packet that ends at `to`, after `rule` or, without a rule, IPVS.
fn traced(
    (objects, number): (&Objects, usize),
    to: &str,
    rule: Option<Rule<'_>>,
    fate: Found,
    quotes: Quotes,
) -> Journey {
    let of = objects.places().nth(number);
    let at = of.unwrap().at;
    let client: IpAddr = "10.244.1.9".parse().unwrap();
    let planned = TracedPacket {
        sender: Sender {
            words: String::new(),
            who: "a pod on this node".to_owned(),
            way: PacketOrigin::Comes("cbr0".to_owned(), client),
            is_here: true,
            has_service_address: false,
            stranger: None,
        },
        to: at,
        protocol: Protocol::Tcp,
        of,
        named_by: &[],
        proxied_by: &[],
    };
    let end: SocketAddr = to.parse().unwrap();
    let mut packet = Packet::new(6, client, at.ip(), at.port());
    if end != at {
        packet.translate(Some(end.ip()), Some(end.port()));
    }
    let (place, entry) = rule.unwrap_or(("IPVS", "-a -t 10.96.0.9:80"));
    let step = Arc::new(packet_path::Step::new(place, entry, "sent on"));
    let followed = packet_path::Walk {
        chance: 1.0,
        fate,
        presumed: fate,
        endpoint: Some(end),
        why: String::new(),
        source: Source::Kept,
        steps: vec![Arc::clone(&step)],
        redirected_by: rule.map(|_| step),
        passed: 0,
        doubts: Vec::new(),
        packet,
    };
    let around = TextInputs {
        kernel: &Node,
        listening: &|_: IpFamily, _: Protocol, _: u16| None,
        modes: MODES,
        endpoints: &planned.endpoints(),
    };
    let mut walks = told(&followed, &planned, &around);
    quotes.leave_out(&mut walks);
    Journey {
        verdict: verdict(&planned, &walks),
        walks,
        ..Journey::default()
    }
}

fn status(journey: &Journey) -> u8 {
    exit_status(&Explanation {
        journeys: vec![journey.clone()],
        ..Explanation::default()
    })
}

#[test]
fn a_foreign_redirection_to_another_pod_fails_at_addresses_of_every_kind() {
    let objects = objects(None);
    for number in 0..3 {
        let to = "10.244.1.10:8080";
        let trace = |quotes| {
            traced(
                (&objects, number),
                to,
                Some(HOST_PORT),
                Found::Delivered,
                quotes,
            )
        };
        let journey = trace(Quotes::All);
        let (place, rule) = HOST_PORT;
        assert_eq!(
            journey.verdict,
            format!(
                "a pod on this node reaches {to}, which is no endpoint of t/w: redirected by {place} \
                 (`{rule}`), not kube-proxy's: chain CNI-HOSTPORT-DNAT"
            )
        );
        assert_eq!(status(&journey), 1);
        let quoted = trace(Quotes::Own).verdict;
        assert!(
            quoted.ends_with(
                "by nat CNI-HOSTPORT-DNAT (a rule), not kube-proxy's: chain CNI-HOSTPORT-DNAT"
            ),
            "{quoted}"
        );
    }
}

#[test]
fn endpoints_in_any_state_belong_to_the_service() {
    let objects = objects(None);
    let [iptables, nftables] = OWN_RULES;
    for rule in [None, Some(iptables), Some(nftables), Some(HOST_PORT)] {
        for host in 10..14 {
            let to = format!("10.244.2.{host}:8080");
            let journey = traced((&objects, 0), &to, rule, Found::Delivered, Quotes::All);
            assert_eq!(status(&journey), 0, "{rule:?} {}", journey.verdict);
        }
    }
}

#[test]
fn an_endpoint_that_no_endpoint_slice_lists_is_uncertain() {
    let objects = objects(None);
    let [iptables, nftables] = OWN_RULES;
    for rule in [None, Some(iptables), Some(nftables)] {
        // The pod is an endpoint, but at another port.
        let to = "10.244.2.10:9090";
        let journey = traced((&objects, 0), to, rule, Found::Delivered, Quotes::All);
        assert_eq!(
            journey.verdict,
            "a pod on this node reaches 10.244.2.10:9090, which is no endpoint of t/w: none of its \
             EndpointSlices lists this address and port"
        );
        assert_eq!(status(&journey), 2);
    }
}

#[test]
fn an_address_that_is_served_for_another_owner_fails() {
    for (owner, why) in [
        (
            "t/old",
            "10.96.0.9:80 is served for t/old instead, which is older",
        ),
        (
            ANOTHER_PROGRAM,
            "another program has a virtual server at 10.96.0.9:80",
        ),
    ] {
        let objects = objects(Some(owner));
        let trace = |to: &str| traced((&objects, 0), to, None, Found::Delivered, Quotes::All);
        let journey = trace("10.244.1.10:8080");
        assert!(
            journey
                .verdict
                .ends_with(&format!("is no endpoint of t/w: {why}")),
            "{}",
            journey.verdict
        );
        assert_eq!(status(&journey), 1);
        assert_eq!(status(&trace("10.244.2.10:8080")), 0, "both have the pod");
    }
}

#[test]
fn a_process_of_the_node_answers_for_the_service_only_at_its_own_address() {
    let objects = objects(None);
    let local = |to: &str, rule| traced((&objects, 0), to, rule, Found::Local, Quotes::All);
    // NodeLocal DNSCache has the Service's address, and no rule changes the destination.
    let own = local("10.96.0.9:22", None);
    assert_eq!(status(&own), 0, "{}", own.verdict);
    let rule = Some(("nat PROXY", "-A PROXY -p tcp -j REDIRECT --to-ports 22"));
    let listens = local("172.35.0.100:22", rule);
    assert_eq!(
        listens.verdict,
        "a pod on this node reaches this node itself at 172.35.0.100:22, which is no endpoint of \
         t/w: redirected by nat PROXY (`-A PROXY -p tcp -j REDIRECT --to-ports 22`), not \
         kube-proxy's: chain PROXY"
    );
    assert_eq!(status(&listens), 1);
    let rule = Some(("nat PROXY", "-A PROXY -p tcp -j REDIRECT --to-ports 25"));
    let refused = local("172.35.0.100:25", rule);
    assert_eq!(
        refused.verdict,
        "a pod on this node reaches this node itself, and is refused: no process listens at \
         172.35.0.100:25/TCP; redirected by nat PROXY (`-A PROXY -p tcp -j REDIRECT --to-ports \
         25`), not kube-proxy's: chain PROXY"
    );
}
