//! Cases beside the table: no endpoints, nothing exposed, the pod itself, the last endpoints,
//! source ranges, `ping`.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::ensure;
use lab::{Place, Transport};
use scenarios::{Cluster, Outcome, at};

use crate::cast::{
    Mode, PLACES, WAYS, answers_come_back, carried, is_flat, named, place, policies, service,
    start, transports, v4, v6,
};
use crate::echo::ping;
use crate::explained::Explained;
use crate::see::{see, see_by_chance};

/// The longest that an answer may take that comes at once: a lost first packet is sent again after
/// a second.
const AT_ONCE: Duration = Duration::from_millis(900);

const NEAR: &str = "10.244.1.10 fd44:1::10";

/// Manifest of node1.
const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: node1}, \
                    status: {addresses: [{type: InternalIP, address: 172.35.0.100}]}}";

/// Lets node1 say as often as it is asked that a port is unreachable. Otherwise the kernel limits
/// what it says to a host, to one a second in the end, and to all (`icmp_ratelimit`, icmp(7)): no
/// client asks as we do.
///
/// And gives what is asked a millisecond on its way, as a network does. Without one the answer is
/// there while the client's `connect` still holds its socket: the kernel takes such an error for a
/// passing one (`TcpExtLockDroppedIcmps` counts it) and goes by the next, a second later. Who polls
/// meets that over IPv6, on Linux 6.1 now and then, and on 6.12 each time (docs/kernels.md).
fn speak_freely(c: &Cluster) -> Outcome {
    // The types that limits apply to: none, and one that is no error.
    c.sh("sysctl -qw net.ipv4.icmp_ratemask=0 net.ipv6.icmp.ratemask=128")?;
    for (from, device) in [(&c.client, "eth0"), (&c.outside, "eth0"), (&c.node1, "lo")] {
        from.read([
            "tc", "qdisc", "add", "dev", device, "root", "netem", "delay", "1ms",
        ])?;
    }
    Ok(())
}

/// Service 0 with both policies Cluster, 1 with externalTrafficPolicy Local, 2 with
/// internalTrafficPolicy Local, 3 with both.
fn four_services(c: &mut Cluster, endpoints: &str) -> Outcome {
    for number in 0..4 {
        let policies = policies(number & 1 != 0, number & 2 != 0);
        c.apply(&service(number).endpoints(endpoints).spec(&policies))?;
    }
    start(c, &[])
}

/// Their addresses, all ways, in both families.
fn all_ways() -> impl Iterator<Item = SocketAddr> {
    (0..4).flat_map(|number| {
        WAYS.iter()
            .flat_map(move |way| [v4(way, number), v6(way, number)])
    })
}

/// Every question must come to what is expected of it; if that is anything but a timeout, at once.
fn each<'a>(
    c: &Cluster,
    questions: impl IntoIterator<Item = (&'a Place, Transport, SocketAddr, &'a str)>,
) -> Outcome {
    let mut wrong = String::new();
    let explained = Explained::default();
    let mut unlike = Vec::new();
    for (from, transport, to, expected) in questions {
        let try_it = || {
            let asked = Instant::now();
            let seen = match Mode::of(c) {
                Mode::Ipvs => see(c, from, transport, to, expected),
                _ => see_by_chance(c, from, transport, to, expected),
            };
            (seen, asked.elapsed())
        };
        let is_late = |took: Duration| expected != "timeout" && took > AT_ONCE;
        let (mut seen, mut took) = try_it();
        // An ICMP error that finds the socket of a client in use is taken for a passing one, and
        // the SYN is sent again.
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

/// Returns the question for explain about an address and port: the Service, or the address where no
/// Service exposes it. One address stands for all addresses of a Service.
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

/// Whatever the policies, the client gets a port unreachable at once. The node itself gets it over
/// UDP as an error of the send, as from a rule that rejects. (An SCTP client gets it, too, but asks
/// on: it takes the ICMP for a passing error.)
pub(crate) fn no_endpoints_is_refused(c: &mut Cluster) -> Outcome {
    speak_freely(c)?;
    four_services(c, "")?;
    let mode = Mode::of(c);
    let questions = PLACES.iter().flat_map(|from| {
        let transports = [Transport::Tcp, Transport::Udp].into_iter();
        transports.flat_map(move |transport| {
            // What is not answered at all takes its time: one Service stands for all.
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
            // A node port on the node is asked by way of `lo`: its packets are refused when they
            // come in; in the flat layout of nftables before they go out, as all others.
            let is_by_lo = to.port() != 80 && !is_flat(c);
            let is_sent = mode != Mode::Ipvs && is_by_lo || mode == Mode::Userspace;
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

/// Returns the result for a port that no Service exposes, or for a ping: it is refused. If no
/// program on the node has the address and no rule matches, the packet is forwarded to where nobody
/// answers.
fn unexposed(mode: Mode, to: IpAddr) -> &'static str {
    let is_cluster_ip = all_cluster_ips().any(|cluster_ip| cluster_ip == to);
    match mode {
        Mode::Ipvs => "refused",
        Mode::Nftables if is_cluster_ip => "refused",
        _ => "timeout",
    }
}

fn all_cluster_ips() -> impl Iterator<Item = IpAddr> {
    (0..4).flat_map(|number| [v4("ClusterIP", number), v6("ClusterIP", number)].map(|to| to.ip()))
}

/// Their addresses with what is expected of an unexposed port there. What is not answered at all
/// takes its time, so that one Service stands for all.
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

/// A process on the node that listens everywhere is not reached by way of a service address
/// (k/k#72236); neither is a Service by its node port there.
pub(crate) fn unexposed_ports_reach_no_process(c: &mut Cluster) -> Outcome {
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
    // Where it is meant to be reached, it is.
    for (from, to) in [
        (&c.client, "10.244.1.1:2222"),
        (&c.outside, "172.35.0.100:2222"),
        (&c.outside, "[fd35::100]:2222"),
    ] {
        ensure!(from.ask_tcp(at(to), scenarios::SOON)?.who == "node1");
    }
    Ok(())
}

/// A pod that asks a Service whose only endpoint it is. It must not see its own address, or it
/// would answer to itself.
pub(crate) fn a_pod_reaches_itself(c: &mut Cluster) -> Outcome {
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

/// Endpoints here and elsewhere: ready, terminating but serving, or neither; the policies; and what
/// a pod sees at the ClusterIP and the host outside at the load balancer's address.
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

pub(crate) fn terminating_endpoints_are_the_last_resort(c: &mut Cluster) -> Outcome {
    answers_come_back(c)?;
    let conditions = |state: &str| match state {
        "ready" => "{ready: true, serving: true, terminating: false}",
        "serving" => "{ready: false, serving: true, terminating: true}",
        _ => "{ready: false, serving: false, terminating: true}",
    };
    for (number, (here, elsewhere, is_local, ..)) in LAST_ENDPOINTS.iter().enumerate() {
        // Its own slice is empty.
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
            // Only IPVS mode falls back to all others (C, F).
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

/// loadBalancerSourceRanges, and what comes of a question from outside, from another host there, a
/// pod and the node.
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

/// They hold for the load balancer's addresses only. The node is meant when they hold the address
/// of its Node object.
pub(crate) fn source_ranges(c: &mut Cluster) -> Outcome {
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

/// A service address is to `ping` as any port that no Service exposes; an address of the node
/// answers.
pub(crate) fn icmp_echo(c: &mut Cluster) -> Outcome {
    speak_freely(c)?;
    four_services(c, NEAR)?;
    let mode = Mode::of(c);
    let nodes = all_ways()
        .filter(|to| to.port() != 80)
        .map(|to| (to.ip(), "answered"));
    let addresses: Vec<_> = all_vips(mode).into_iter().chain(nodes).collect();
    for from in PLACES {
        for (to, expected) in &addresses {
            // The rule is in the way out of the node itself. IPv6 does not tell the sender of a
            // packet that was dropped there, but of the answer.
            let is_send =
                mode != Mode::Ipvs && to.is_ipv4() && from == "node" && *expected == "refused";
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
