//! Tests cases outside the packet matrix's table: no endpoints, unexposed ports, hairpin
//! connections, a Service that loses its last endpoints, source ranges, `ping`.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::ensure;
use lab::{Place, Transport};
use scenarios::{Cluster, Outcome, at, ping};

use crate::clients::{
    Mode, PLACES, WAYS, answers_come_back, carried, is_flat, named, place, policies, service,
    start, transports, v4, v6,
};
use crate::explained::ExplainOutputs;
use crate::observe::{see, see_by_chance};

/// Maximum time of an immediate reply, shorter than TCP's initial retransmission timeout (1 s).
const AT_ONCE: Duration = Duration::from_millis(900);

const NEAR: &str = "10.244.1.10 fd44:1::10";

/// Manifest of the Node object node1 with its IPv4 address.
const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: node1}, \
                    status: {addresses: [{type: InternalIP, address: 172.35.0.100}]}}";

/// Disables node1's ICMP rate limits, and delays requests by a millisecond.
///
/// - Rate limits: the kernel normally sends each host at most one port unreachable message per
///   second (`icmp_ratelimit`, icmp(7)). These tests send more requests than any real client.
/// - Delay: without it, the ICMP error arrives while the client's `connect` still holds its socket.
///   The kernel then treats the error as transient (`TcpExtLockDroppedIcmps` counts it), and the
///   client waits a second for the next error. With polling over IPv6, this happens sometimes on
///   Linux 6.1, and always on 6.12 (docs/kernels.md).
fn speak_freely(c: &Cluster) -> Outcome {
    // Over IPv4, the kernel then limits no ICMP messages. Over IPv6, it limits only echo requests
    // (type 128), which are no errors.
    c.sh("sysctl -qw net.ipv4.icmp_ratemask=0 net.ipv6.icmp.ratemask=128")?;
    for (from, device) in [(&c.client, "eth0"), (&c.outside, "eth0"), (&c.node1, "lo")] {
        from.read([
            "tc", "qdisc", "add", "dev", device, "root", "netem", "delay", "1ms",
        ])?;
    }
    Ok(())
}

/// Creates Services 0 to 3 with different traffic policies:
///
/// - Service 0: both policies are Cluster.
/// - Service 1: externalTrafficPolicy is Local.
/// - Service 2: internalTrafficPolicy is Local.
/// - Service 3: both policies are Local.
fn four_services(c: &mut Cluster, endpoints: &str) -> Outcome {
    for number in 0..4 {
        let policies = policies(number & 1 != 0, number & 2 != 0);
        c.apply(&service(number).endpoints(endpoints).spec(&policies))?;
    }
    start(c, &[])
}

/// Returns all addresses and ports of the four Services, of every kind and in both families.
fn all_ways() -> impl Iterator<Item = SocketAddr> {
    (0..4).flat_map(|number| {
        WAYS.iter()
            .flat_map(move |way| [v4(way, number), v6(way, number)])
    })
}

/// Sends all requests, and checks their results. Any result except a timeout must be immediate.
fn each<'a>(
    c: &Cluster,
    questions: impl IntoIterator<Item = (&'a Place, Transport, SocketAddr, &'a str)>,
) -> Outcome {
    let mut wrong = String::new();
    let explained = ExplainOutputs::default();
    let mut unlike = Vec::new();
    for (from, transport, to, expected) in questions {
        let try_it = || {
            let asked = Instant::now();
            let seen = match Mode::of(c) {
                Mode::Ipvs | Mode::Exact => see(c, from, transport, to, expected),
                _ => see_by_chance(c, from, transport, to, expected),
            };
            (seen, asked.elapsed())
        };
        let is_late = |took: Duration| expected != "timeout" && took > AT_ONCE;
        let (mut seen, mut took) = try_it();
        // If the client's socket is busy, the kernel treats an ICMP error as transient, and the
        // client sends its SYN again after a second. The test therefore repeats a slow request
        // once.
        if seen == expected && is_late(took) {
            (seen, took) = try_it();
        }
        if let Some(asked) = explainable(transport, to) {
            unlike.extend(explained.differs(c, from, (transport, to), &asked, &seen)?);
        }
        if seen != expected || is_late(took) {
            let from = from.name();
            let _ = writeln!(
                wrong,
                "{from} to {to}, {transport:?}: {seen} after {took:.1?}, not {expected}"
            );
        }
    }
    ensure!(wrong.is_empty(), "\n{wrong}");
    explained.agree(&unlike)
}

/// Returns the argument for `explain`: the Service that exposes this address and port, or the
/// address itself if no Service exposes the port. Returns `None` for unexposed ports of Services
/// other than Service 0, because one Service is enough.
fn explainable(transport: Transport, to: SocketAddr) -> Option<String> {
    let ways = |number| {
        let ways = WAYS.into_iter();
        ways.flat_map(move |way| [v4(way, number), v6(way, number)])
    };
    let mut services = 0..LAST_ENDPOINTS.len();
    if let Some(number) = services.find(|number| ways(*number).any(|way| way == to)) {
        return Some(named("", number));
    }
    let is_first = ways(0).any(|way| way.ip() == to.ip());
    is_first.then(|| format!("{to}/{transport:?}"))
}

/// A client of a Service without endpoints immediately gets an ICMP port unreachable, with any
/// traffic policies.
///
/// - Over UDP, the node's own send fails, as with a REJECT rule on output.
/// - An SCTP client also gets the message, but treats it as transient and retries. This test skips
///   SCTP.
pub(crate) fn a_service_without_endpoints_is_refused(c: &mut Cluster) -> Outcome {
    speak_freely(c)?;
    four_services(c, "")?;
    let mode = Mode::of(c);
    let questions = PLACES.iter().flat_map(|from| {
        let transports = [Transport::Tcp, Transport::Udp].into_iter();
        transports.flat_map(move |transport| {
            // A request that times out is slow. If timeouts are expected, the test therefore uses
            // only the first Service.
            let is_dropped = carried(mode, transport, "refused") == "timeout";
            let most = if is_dropped {
                2 * WAYS.len()
            } else {
                usize::MAX
            };
            all_ways().take(most).map(move |to| (*from, transport, to))
        })
    });
    each(
        c,
        questions.map(|(from, transport, to)| {
            // Without IPVS, rules reject the node's packets to its own node port only on input,
            // after `lo`. So the send succeeds. The flat layout of nftables mode rejects these
            // packets on output, so the send fails. In userspace mode, every send succeeds.
            let is_by_lo = to.port() != 80 && !is_flat(c);
            let is_sent = !mode.is_ipvs() && is_by_lo || mode == Mode::Userspace;
            let is_send = from == "node" && transport == Transport::Udp && !is_sent;
            (
                place(c, from),
                transport,
                to,
                if is_send {
                    "not sent"
                } else {
                    carried(mode, transport, "refused")
                },
            )
        }),
    )
}

/// Returns the expected result of a ping, or of a request to an unexposed port. The node rejects
/// the packet if it has the address or a rule matches. Otherwise, it forwards the packet, and no
/// reply arrives.
fn unexposed(mode: Mode, to: IpAddr) -> &'static str {
    let is_cluster_ip = all_cluster_ips().any(|cluster_ip| cluster_ip == to);
    match mode {
        Mode::Ipvs | Mode::Exact => "refused",
        Mode::Nftables if is_cluster_ip => "refused",
        _ => "timeout",
    }
}

fn all_cluster_ips() -> impl Iterator<Item = IpAddr> {
    (0..4).flat_map(|number| [v4("ClusterIP", number), v6("ClusterIP", number)].map(|to| to.ip()))
}

/// Returns Service addresses, each with the expected result for an unexposed port. Of the addresses
/// with a timeout, which is slow, returns only the first Service's.
fn all_vips(mode: Mode) -> Vec<(IpAddr, &'static str)> {
    let vips = all_ways().filter(|to| to.port() == 80).map(|to| to.ip());
    let vips = vips.map(|to| (to, unexposed(mode, to)));
    let per_service = 2 * (WAYS.len() - 1);
    let is_told = |(index, (_, expected)): &(usize, (IpAddr, &str))| {
        *index < per_service || *expected != "timeout"
    };
    vips.enumerate()
        .filter(is_told)
        .map(|(_, vip)| vip)
        .collect()
}

/// A process listens on all addresses of the node. At a Service address, clients must reach neither
/// this process (kubernetes/kubernetes#72236) nor a node port.
pub(crate) fn unexposed_service_ports_reach_no_process(c: &mut Cluster) -> Outcome {
    speak_freely(c)?;
    let process = c.node1.serve_tcp(2222)?;
    four_services(c, NEAR)?;
    let mut questions = Vec::new();
    for from in PLACES {
        for (vip, expected) in all_vips(Mode::of(c)) {
            for port in [2222, 30_080] {
                questions.push((
                    place(c, from),
                    Transport::Tcp,
                    SocketAddr::new(vip, port),
                    expected,
                ));
            }
        }
    }
    each(c, questions)?;
    ensure!(
        process.answers() == 0,
        "the process was reached {} times",
        process.answers()
    );
    // At the node's own addresses, clients must still reach the process.
    for (from, to) in [
        (&c.client, "10.244.1.1:2222"),
        (&c.outside, "172.35.0.100:2222"),
        (&c.outside, "[fd35::100]:2222"),
    ] {
        ensure!(from.ask_tcp(at(to), scenarios::SOON)?.who == "node1");
    }
    Ok(())
}

/// A pod sends a request to a Service of which it is the only endpoint (hairpin). The node must
/// masquerade the request, because the pod would otherwise reply to itself.
pub(crate) fn a_pod_reaches_itself_through_its_service(c: &mut Cluster) -> Outcome {
    c.near.serve_sctp(8080)?;
    four_services(c, NEAR)?;
    let all = [Transport::Tcp, Transport::Udp, Transport::Sctp];
    let transports = transports(Mode::of(c), all);
    let questions = transports.flat_map(|transport| all_ways().map(move |to| (transport, to)));
    each(
        c,
        questions.map(|(transport, to)| (&c.near, transport, to, "local masq")),
    )
}

/// Cases in which at least one of a Service's two endpoints terminates or is gone. Each case has
/// five values:
///
/// 1. the endpoint on this node: ready, serving (and terminating) or gone;
/// 2. the endpoint on another node: ready, serving (and terminating) or gone;
/// 3. true if both traffic policies are Local;
/// 4. the result for a pod at the ClusterIP;
/// 5. the result for the external host at the load-balancer address.
const LAST_ENDPOINTS: [(&str, &str, bool, &str, &str); 8] = [
    ("serving", "serving", false, "both kept", "both masq"),
    ("serving", "serving", true, "local kept", "local kept"),
    ("serving", "ready", false, "remote kept", "remote masq"),
    ("serving", "ready", true, "local kept", "local kept"),
    ("gone", "serving", false, "remote kept", "remote masq"),
    ("gone", "serving", true, "remote kept", "remote kept"),
    ("gone", "gone", false, "refused", "refused"),
    ("gone", "gone", true, "refused", "refused"),
];

pub(crate) fn terminating_endpoints_serve_only_without_ready_endpoints(c: &mut Cluster) -> Outcome {
    answers_come_back(c)?;
    let conditions = |state: &str| match state {
        "ready" => "{ready: true, serving: true, terminating: false}",
        "serving" => "{ready: false, serving: true, terminating: true}",
        _ => "{ready: false, serving: false, terminating: true}",
    };
    for (number, (here, elsewhere, is_local, ..)) in LAST_ENDPOINTS.iter().enumerate() {
        // `service` has no endpoints. The EndpointSlice `slice` adds two endpoints to it.
        let service = service(number).spec(&policies(*is_local, *is_local));
        let slice = format!(
            "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
             metadata: {{name: web{number}-more, labels: {{kubernetes.io/service-name: web{number}}}}}, \
             ports: [{{name: tcp, protocol: TCP, port: 8080}}], endpoints: [\
             {{addresses: [10.244.1.10], nodeName: node1, conditions: {}}}, \
             {{addresses: [10.244.2.10], nodeName: node2, conditions: {}}}]}}\n",
            conditions(here),
            conditions(elsewhere)
        );
        c.write(service.name(), &format!("{service}{slice}"))?;
    }
    start(c, &[])?;
    let mode = Mode::of(c);
    let questions = LAST_ENDPOINTS.iter().enumerate().flat_map(
        |(number, (here, _, is_local, pod, outside))| {
            // If no endpoint on this node serves, only IPVS mode uses the endpoints of other nodes
            // (reasons C and F in docs/packet-matrix.md).
            let is_nobody = mode != Mode::Ipvs && *is_local && *here == "gone" && *pod != "refused";
            let of = |seen| {
                let by_rules = if is_nobody { "timeout" } else { seen };
                carried(mode, Transport::Tcp, by_rules)
            };
            [
                (&c.client, Transport::Tcp, v4("ClusterIP", number), of(*pod)),
                (
                    &c.outside,
                    Transport::Tcp,
                    v4("LoadBalancer", number),
                    of(*outside),
                ),
            ]
        },
    );
    each(c, questions)
}

/// Values of loadBalancerSourceRanges, each with the results for the external host, a second
/// external host, a pod and the node.
const SOURCE_RANGES: [(&str, [&str; 4]); 4] = [
    (
        "172.35.0.9/32",
        ["local masq", "timeout", "timeout", "timeout"],
    ),
    (
        "172.35.0.9/32, 172.35.0.100/32",
        ["local masq", "timeout", "timeout", "local masq"],
    ),
    (
        "10.244.0.0/16",
        ["timeout", "timeout", "local masq", "timeout"],
    ),
    (
        "0.0.0.0/0",
        ["local masq", "local masq", "local masq", "local masq"],
    ),
];

/// Source ranges limit only load-balancer addresses. The node is admitted if its Node object has an
/// address in the ranges.
pub(crate) fn source_ranges_limit_load_balancer_addresses(c: &mut Cluster) -> Outcome {
    let other = c.world.host("other", "172.35.0.8/24")?;
    c.world
        .route(&other, "10.96.0.0/16 192.0.2.0/24", &c.node1)?;
    c.write("node", NODE)?;
    for (number, (ranges, _)) in SOURCE_RANGES.iter().enumerate() {
        let ranges = format!("loadBalancerSourceRanges: [{ranges}]");
        c.apply(&service(number).endpoints(NEAR).spec(&ranges))?;
    }
    start(c, &[])?;
    let mode = Mode::of(c);
    let places = [&c.outside, &other, &c.client, &c.node1];
    let mut questions = Vec::new();
    for (number, (_, expected)) in SOURCE_RANGES.iter().enumerate() {
        for (from, expected) in places.iter().zip(expected) {
            let expected = carried(mode, Transport::Tcp, expected);
            questions.push((*from, Transport::Tcp, v4("LoadBalancer", number), expected));
        }
        for way in ["ClusterIP", "NodePort", "externalIP"] {
            questions.push((&other, Transport::Tcp, v4(way, number), "local masq"));
        }
    }
    each(c, questions)
}

/// A `ping` to a Service address gets the result of a request to an unexposed port. The node
/// replies only to a ping of its own addresses.
pub(crate) fn pings_get_the_result_of_unexposed_service_ports(c: &mut Cluster) -> Outcome {
    speak_freely(c)?;
    four_services(c, NEAR)?;
    let mode = Mode::of(c);
    let nodes = all_ways()
        .filter(|to| to.port() != 80)
        .map(|to| (to.ip(), "answered"));
    let addresses: Vec<_> = all_vips(mode).into_iter().chain(nodes).collect();
    for from in PLACES {
        for (to, expected) in &addresses {
            // A rule in the node's output path rejects the packet. Over IPv4, the send therefore
            // fails. Over IPv6, the send succeeds, and the sender then receives the ICMP error.
            let is_send =
                !mode.is_ipvs() && to.is_ipv4() && from == "node" && *expected == "refused";
            let expected = if is_send { "not sent" } else { *expected };
            let seen = ping(place(c, from), *to, expected);
            ensure!(
                seen == expected,
                "{from} pings {to}: {seen}, not {expected}"
            );
        }
    }
    Ok(())
}
