//! Tests paths on which requests arrive, but replies may be lost. Compares the predictions of
//! `kube-proxy explain` with real packets.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{Place, Transport};
use scenarios::{Cluster, Outcome, SOON, Service, at, kube_proxy, tcp};
use serde_json::Value;

use crate::clients::{Mode, answers_come_back, place, policies, start};

/// Timeout of a request if explain predicts no reply. All nodes and pods are on one machine, where
/// replies take milliseconds.
const BRIEFLY: Duration = Duration::from_millis(100);

/// Senders and destinations of requests. Senders are a pod of this node, this node, and an external
/// host. The requests cover both IP families, with and without masquerading.
const QUESTIONS: [(&str, &str); 9] = [
    ("pod", "10.96.3.1:80"),
    ("pod", "10.96.3.2:80"),
    ("node", "10.96.3.2:80"),
    ("node", "172.35.0.100:30181"),
    ("outside", "172.35.0.100:30181"),
    ("outside", "172.35.0.100:30182"),
    ("outside", "172.35.0.100:30183"),
    ("pod", "[fd96::3:2]:80"),
    ("outside", "[fd35::100]:30181"),
];

/// Names of the Services to which the destinations in [`QUESTIONS`] belong.
const SERVICES: [&str; 3] = ["default/web1", "default/web2", "default/host"];

/// An obstacle on the node that may stop replies to clients.
struct Fault {
    what: &'static str,
    /// Script that adds the obstacle.
    put: &'static str,
    /// Script that removes the obstacle.
    take: &'static str,
    /// True if every mode is tested with this obstacle, false if only IPVS mode.
    is_for_all: bool,
}

/// Obstacles for replies: kernel settings, chain policies and rules. The first row tests without an
/// obstacle.
const FAULTS: [Fault; 10] = [
    Fault {
        what: "nothing",
        put: "true",
        take: "true",
        is_for_all: true,
    },
    Fault {
        what: "no forwarding",
        put: "sysctl -qw net.ipv4.ip_forward=0",
        take: "sysctl -qw net.ipv4.ip_forward=1",
        is_for_all: true,
    },
    Fault {
        what: "no forwarding of IPv6",
        put: "sysctl -qw net.ipv6.conf.all.forwarding=0",
        take: "sysctl -qw net.ipv6.conf.all.forwarding=1",
        is_for_all: true,
    },
    Fault {
        what: "no forwarding of what comes in by one interface",
        put: "sysctl -qw net.ipv4.conf.cni0.forwarding=0 net.ipv6.conf.cni0.forwarding=0",
        take: "sysctl -qw net.ipv4.conf.cni0.forwarding=1 net.ipv6.conf.cni0.forwarding=1",
        is_for_all: false,
    },
    Fault {
        what: "a rule against what comes from an endpoint",
        put: "iptables-$backend -I FORWARD -s 10.244.2.10 -j DROP",
        take: "iptables-$backend -D FORWARD -s 10.244.2.10 -j DROP",
        is_for_all: true,
    },
    Fault {
        what: "a rule against answers from a port",
        put: "iptables-$backend -I FORWARD -p tcp --sport 8080 -m conntrack --ctdir REPLY --ctstate ESTABLISHED -j DROP",
        take: "iptables-$backend -D FORWARD -p tcp --sport 8080 -m conntrack --ctdir REPLY --ctstate ESTABLISHED -j DROP",
        is_for_all: false,
    },
    Fault {
        what: "nothing but what is known is forwarded",
        put: "iptables-$backend -P FORWARD DROP",
        take: "iptables-$backend -P FORWARD ACCEPT",
        is_for_all: false,
    },
    Fault {
        what: "a rule before what is masqueraded is known",
        put: "iptables-$backend -t mangle -I PREROUTING -s 10.244.1.10 -j DROP",
        take: "iptables-$backend -t mangle -D PREROUTING -s 10.244.1.10 -j DROP",
        is_for_all: false,
    },
    Fault {
        what: "rules against what this node answers, and what it is answered",
        put: "iptables-$backend -I OUTPUT -p tcp -m tcp --tcp-flags SYN,ACK SYN,ACK -j DROP
              iptables-$backend -I INPUT -m conntrack --ctdir REPLY -j DROP",
        take: "iptables-$backend -D OUTPUT -p tcp -m tcp --tcp-flags SYN,ACK SYN,ACK -j DROP
               iptables-$backend -D INPUT -m conntrack --ctdir REPLY -j DROP",
        is_for_all: true,
    },
    Fault {
        what: "a bridge past the rules",
        put: "sysctl -qw net.bridge.bridge-nf-call-iptables=0",
        take: "sysctl -qw net.bridge.bridge-nf-call-iptables=1",
        is_for_all: false,
    },
];

/// Manifest of an EndpointSlice whose endpoint is the node itself.
const ON_NODE: &str = "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {name: host-more, labels: {kubernetes.io/service-name: host}}
ports: [{protocol: TCP, port: 8081}]
endpoints: [{addresses: [172.35.0.100], nodeName: node1, conditions: {ready: true}}]
";

/// Compares predictions of `kube-proxy explain` with packets:
///
/// - If explain expects a reply, the reply must arrive.
/// - If explain expects no reply, no reply may arrive.
/// - If the node cannot know whether the reply arrives, explain must report this.
pub(crate) fn explain_predicts_replies(c: &mut Cluster) -> Outcome {
    c.node1.serve_tcp(8081)?;
    for (number, endpoint) in [(1, "10.244.1.10 fd44:1::10"), (2, "10.244.2.10 fd44:2::10")] {
        c.apply(&web(&format!("web{number}"), number).endpoints(endpoint))?;
    }
    c.write("host", &format!("{}---\n{ON_NODE}", web("host", 3)))?;
    let policies = policies(true, false);
    c.apply(&web("away", 4).endpoints("10.244.2.10").spec(&policies))?;
    start(c, &[])?;
    let (mut compared, mut wrong) = (Comparison::default(), Vec::new());
    let is_ipvs = Mode::of(c) == Mode::Ipvs;
    for fault in FAULTS.iter().filter(|fault| is_ipvs || fault.is_for_all) {
        c.sh(fault.put)?;
        let said = SERVICES.map(|service| explain(c, service));
        let said = said.into_iter().collect::<Result<Vec<_>>>()?;
        for (from, to) in QUESTIONS {
            let said = said.iter().find_map(|said| said.of(c, from, to));
            let said = said.with_context(|| format!("explain says nothing of {from} to {to}"))?;
            let differs = compared.differs(c, from, to, said);
            wrong.extend(differs.map(|differs| format!("{}: {differs}", fault.what)));
        }
        c.sh(fault.take)?;
    }
    nobody_knows(c, &mut compared, &mut wrong)?;
    no_service(c, &mut compared, &mut wrong)?;
    let Comparison { all, lost, unsure } = compared;
    println!(
        "    explain: {all} answers compared with packets, {lost} of them lost, {unsure} not known, {} differ",
        wrong.len()
    );
    ensure!(
        wrong.is_empty(),
        "explain and packets differ:\n{}",
        wrong.join("\n")
    );
    ensure!(lost > 0, "no answer was lost");
    Ok(())
}

fn web(name: &str, number: u16) -> Service {
    let cluster_ips = format!("10.96.3.{number} fd96::3:{number}");
    Service::new(name, &cluster_ips).port(tcp(80, 8080).node_port(30_180 + number))
}

/// The node forwards an external client's packet to another node, without masquerading. The reply
/// takes another path, so explain cannot know whether it arrives. If a mode drops the packet,
/// explain must report the drop.
fn nobody_knows(c: &Cluster, compared: &mut Comparison, wrong: &mut Vec<String>) -> Outcome {
    let to = "172.35.0.100:30184";
    let is_forwarded = Mode::of(c) == Mode::Ipvs;
    for (is_by_here, comes) in [(false, false), (true, is_forwarded)] {
        if is_by_here {
            answers_come_back(c)?;
        }
        let all = explain_from(c, to, &[&c.outside])?;
        let (said, exit) = (all.of(c, "outside", to).unwrap_or_default(), all.exit);
        let expected = if is_forwarded {
            ("not sure", 2)
        } else {
            ("lost", 1)
        };
        if (said, exit) != expected {
            wrong.push(format!(
                "outside to {to}: explain says {said}, and ends with {exit}"
            ));
        }
        if is_answered(place(c, "outside"), to, BRIEFLY) != comes {
            wrong.push(format!("outside to {to}: packets are answered: {}", !comes));
        }
        compared.all += 1;
        compared.unsure += usize::from(is_forwarded);
        compared.lost += usize::from(!is_forwarded);
    }
    Ok(())
}

/// Requests go to two ports of the node that belong to no Service. A process on the node listens on
/// the first port, and replies.
fn no_service(c: &Cluster, compared: &mut Comparison, wrong: &mut Vec<String>) -> Outcome {
    c.node1.serve_tcp(30_999)?;
    for to in [
        "172.35.0.100:30999",
        "172.35.0.100:30998",
        "[fd35::100]:30999",
        "[fd35::100]:30998",
    ] {
        let all = explain(c, to)?;
        for from in ["outside", "pod", "node"] {
            let said = all.of(c, from, to).unwrap_or_default();
            wrong.extend(compared.differs(c, from, to, said));
            if all.exit != i32::from(said != "answered") {
                wrong.push(format!("explain {to} ends with {}", all.exit));
            }
        }
    }
    Ok(())
}

/// Numbers of compared requests: all requests, lost replies, and replies about which explain is
/// unsure.
#[derive(Default)]
struct Comparison {
    all: usize,
    lost: usize,
    unsure: usize,
}

impl Comparison {
    /// Compares explain's prediction for one path with a real request. Returns a description of the
    /// difference, if any.
    fn differs(&mut self, c: &Cluster, from: &str, to: &str, said: &str) -> Option<String> {
        let is_said = said == "answered";
        let patience = if is_said { SOON } else { BRIEFLY };
        let is_answered = is_answered(place(c, from), to, patience);
        self.all += 1;
        self.lost += usize::from(!is_answered);
        let is_right = is_said == is_answered && said != "not sure";
        (!is_right).then(|| {
            format!("{from} to {to}: explain says {said}; packets are answered: {is_answered}")
        })
    }
}

fn is_answered(from: &Place, to: &str, patience: Duration) -> bool {
    let dial = from.dial(Transport::Tcp, at(to)).timeout(patience);
    dial.reset_on_close().ask().is_ok()
}

/// JSON output of explain for a Service or an address, and its exit status.
struct ExplainOutput {
    all: Value,
    exit: i32,
}

/// Runs explain for a Service or an address, with the test's pod, external host and node as
/// senders.
fn explain(c: &Cluster, what: &str) -> Result<ExplainOutput> {
    explain_from(c, what, &[&c.client, &c.outside, &c.node1])
}

fn explain_from(c: &Cluster, what: &str, from: &[&Place]) -> Result<ExplainOutput> {
    let program = kube_proxy()?.display().to_string();
    let family = what.parse::<SocketAddr>().ok().map(|at| at.is_ipv4());
    let senders = from.iter().flat_map(|from| {
        let own = from.addresses().iter().map(ipnet::IpNet::addr);
        let own = own.filter(|ip| family.is_none_or(|is_v4| is_v4 == ip.is_ipv4()));
        match from.name() {
            "node1" => vec!["node".to_owned()],
            _ => own.map(|ip| ip.to_string()).collect(),
        }
    });
    let from = format!("--from={}", senders.collect::<Vec<_>>().join(","));
    let output = c
        .node1
        .run([&*program, "explain", what, &from, "-o", "json"])?;
    let all = serde_json::from_str(&output.stdout);
    Ok(ExplainOutput {
        all: all.with_context(|| format!("{what}: {} {}", output.stdout, output.stderr))?,
        exit: output.status.code().context("explain was killed")?,
    })
}

impl ExplainOutput {
    /// Returns explain's prediction for replies on one path: `answered`, `lost` or `not sure`.
    /// Returns `None` if explain does not mention the path.
    fn of(&self, c: &Cluster, from: &str, to: &str) -> Option<&'static str> {
        let is_v4 = at(to).is_ipv4();
        let own = place(c, from).addresses().iter().map(ipnet::IpNet::addr);
        let own = own.into_iter().find(|own| own.is_ipv4() == is_v4)?;
        let is_it = |journey: &&Value| {
            let said = journey["from"].as_str().unwrap_or_default();
            let is_from = match from {
                "node" => said == "this node",
                _ => said.split([' ', ',']).any(|word| word == own.to_string()),
            };
            is_from && journey["to"] == *to
        };
        let journey = self.all.get("journeys")?.as_array()?.iter().find(is_it)?;
        let walks = journey["walks"].as_array()?;
        let has = |field: &str| walks.iter().any(|walk| walk[field].is_string());
        let arrives = |walk: &Value| matches!(walk["fate"].as_str(), Some("delivered" | "local"));
        Some(if has("unanswered") || !walks.iter().all(arrives) {
            "lost"
        } else if has("unsure") {
            "not sure"
        } else {
            "answered"
        })
    }
}
