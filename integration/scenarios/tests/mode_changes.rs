//! Tests changes between pairs of modes and back under traffic. Every request must succeed, every
//! open connection must survive, and the previous mode must leave no state.
//!
//! `migrate` tests changes from upstream's kernel state.
#![allow(
    clippy::indexing_slicing,
    reason = "what an object has not is null; a story stops at the first surprise"
)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Place, Transport};
use scenarios::{
    Cluster, FIRST_TRY, Outcome, SOON, Service, Story, ask_json, at, tcp, tell, udp, under_traffic,
    with_backend,
};

/// A mode with its flags, such as IPVS mode with a certain shim, and kernel state that identifies
/// it.
struct ModeForm {
    /// Name of this mode with its flags, as in test names.
    name: &'static str,
    flags: &'static [&'static str],
    /// Texts in the output of [`held`] while this mode is active with these flags. With any other
    /// mode or flags, the output lacks at least one of these texts.
    marks: &'static [&'static str],
}

impl ModeForm {
    fn is_exact(&self) -> bool {
        self.flags.contains(&"--ipvs-semantics=exact")
    }
}

const DEVICE: &str = "dev kube-ipvs0";
const SET: &str = "create KUBE-CLUSTER-IP";
/// Line of [`held`] for a Service address on `kube-ipvs0`. If a local route replaces this address,
/// the line is `RANGE` or `ROUTE` instead.
const ADDRESS: &str = "inet 10.96.0.10/32";
const RANGE: &str = "local 10.96.0.0/12 proto 107";
const ROUTE: &str = "local 10.96.0.10 proto 107";
const MATCH: &str = "-m set --match-set KUBE-CLUSTER-IP";

const IPVS: ModeForm = ModeForm {
    name: "ipvs",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=upstream"],
    marks: &[DEVICE, ADDRESS, SET, MATCH, "for masquerade purpose"],
};
const LEAN: ModeForm = ModeForm {
    name: "lean",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=lean"],
    marks: &[DEVICE, ADDRESS, SET, MATCH],
};
/// IPVS mode with `--ipvs-semantics=exact`, and with the shim in iptables and ipsets.
const EXACT_LEAN: ModeForm = ModeForm {
    name: "exact_lean",
    flags: &[
        "--proxy-mode=ipvs",
        "--ipvs-shim=lean",
        "--ipvs-semantics=exact",
    ],
    marks: &[DEVICE, ROUTE, SET, MATCH, MARKS],
};
/// IPVS mode with `--ipvs-semantics=exact`, with the shim in nftables, and with local routes for
/// whole networks of Service addresses.
const EXACT: ModeForm = ModeForm {
    name: "exact",
    flags: &[
        "--proxy-mode=ipvs",
        "--ipvs-shim=nftables",
        "--ipvs-semantics=exact",
        "--ipvs-vip-mode=range",
        "--ipvs-service-cidrs=10.96.0.0/12,fd96::/112",
    ],
    marks: &[DEVICE, RANGE, "kube-proxy-ipvs\n"],
};
const IPVS_NFTABLES: ModeForm = ModeForm {
    name: "ipvs_nftables",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=nftables"],
    marks: &[DEVICE, ADDRESS, "kube-proxy-ipvs\n"],
};
/// IPVS mode with local routes for whole networks of Service addresses.
const IPVS_RANGES: ModeForm = ModeForm {
    name: "ipvs_ranges",
    flags: &[
        "--proxy-mode=ipvs",
        "--ipvs-shim=nftables",
        "--ipvs-vip-mode=range",
        "--ipvs-service-cidrs=10.96.0.0/12,fd96::/112",
    ],
    marks: &[DEVICE, RANGE, "kube-proxy-ipvs\n"],
};
const IPTABLES: ModeForm = ModeForm {
    name: "iptables",
    flags: &["--proxy-mode=iptables"],
    marks: &[":KUBE-SVC-"],
};
const NFTABLES: ModeForm = ModeForm {
    name: "nftables",
    flags: &["--proxy-mode=nftables", "--nftables-layout=upstream"],
    marks: &[
        "table ip kube-proxy\n",
        "table ip6 kube-proxy\n",
        "map firewall-ips\n",
    ],
};
const NFTABLES_FLAT: ModeForm = ModeForm {
    name: "nftables_flat",
    flags: &["--proxy-mode=nftables", "--nftables-layout=flat"],
    marks: &[
        "table ip kube-proxy\n",
        "table ip6 kube-proxy\n",
        "map endpoints-tcp-2\n",
    ],
};
const ALL: [&ModeForm; 9] = [
    &IPVS,
    &LEAN,
    &EXACT_LEAN,
    &IPVS_NFTABLES,
    &EXACT,
    &IPVS_RANGES,
    &IPTABLES,
    &NFTABLES,
    &NFTABLES_FLAT,
];

/// Line of [`held`] for the ipset with the firewall marks of `--ipvs-semantics=exact`.
const MARKS: &str = "create KUBE-LOCAL-MARK";

const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [\
                    {type: InternalIP, address: 172.35.0.100}, {type: InternalIP, address: 'fd35::100'}]}}";

/// Virtual server of another program, which every change of the mode must keep.
const FOREIGN: &str = "-a -t 198.51.100.9:9 -r 10.244.2.10:9 -m -w 1";

/// Number of additional Services, which get no traffic.
const CROWD: usize = 1_000;

/// Time for which conntrack keeps an idle UDP flow, minus the time of a request.
const TRACKED: Duration = Duration::from_secs(25);

/// Number of persistent connections on each path.
const HELD: usize = 2;

macro_rules! stories {
    ($is_possible:expr; $($one:ident, $other:ident: $name:literal),+ $(,)?) => {
        [$(Story {
            name: $name,
            tell: |c| there_and_back(c, &$one, &$other),
            is_possible: $is_possible,
        }),+]
    };
}

fn main() {
    let before = stories! { || true;
        IPVS, IPTABLES: "no_request_fails_from_ipvs_to_iptables_and_back",
        IPVS, LEAN: "no_request_fails_from_the_upstream_shim_to_the_lean_shim_and_back",
        EXACT_LEAN, IPTABLES: "no_request_fails_from_exact_semantics_on_iptables_to_iptables_and_back",
    };
    let many = [
        Story {
            name: "no_request_fails_from_ipvs_on_nftables_to_nftables_among_1_000_services",
            tell: |c| among_many(c, &IPVS_NFTABLES, &NFTABLES),
            is_possible: has_nftables,
        },
        Story {
            name: "no_request_fails_from_ipvs_to_nftables_among_1_000_services",
            tell: |c| among_many(c, &IPVS, &NFTABLES),
            is_possible: has_nftables,
        },
        Story {
            name: "no_request_fails_when_the_number_of_services_changes_the_nftables_layout",
            tell: by_number_of_services,
            is_possible: has_nftables,
        },
    ];
    let stories = stories! { has_nftables;
        IPTABLES, NFTABLES: "no_request_fails_from_iptables_to_nftables_and_back",
        IPVS, NFTABLES: "no_request_fails_from_ipvs_to_nftables_and_back",
        IPVS_NFTABLES, NFTABLES: "no_request_fails_from_ipvs_on_nftables_to_nftables_and_back",
        IPVS, IPVS_NFTABLES: "no_request_fails_from_ipvs_on_iptables_to_ipvs_on_nftables_and_back",
        LEAN, IPVS_NFTABLES: "no_request_fails_from_the_lean_shim_to_the_nftables_shim_and_back",
        EXACT, NFTABLES: "no_request_fails_from_exact_semantics_to_nftables_and_back",
        IPTABLES, IPVS_RANGES: "no_request_fails_from_iptables_to_ipvs_with_service_ranges_and_back",
        IPVS_NFTABLES, EXACT: "no_request_fails_from_upstreams_semantics_to_exact_semantics_and_back",
        IPVS, EXACT: "no_request_fails_from_ipvs_on_iptables_to_exact_semantics_and_back",
        LEAN, EXACT_LEAN: "no_request_fails_from_the_lean_shim_to_exact_semantics_on_iptables_and_back",
        EXACT_LEAN, EXACT: "no_request_fails_from_exact_semantics_on_iptables_to_nftables_and_back",
        EXACT_LEAN, IPVS_NFTABLES: "no_request_fails_from_exact_ipvs_on_iptables_to_ipvs_on_nftables_and_back",
        NFTABLES, NFTABLES_FLAT: "no_request_fails_from_upstreams_nftables_layout_to_flat_and_back",
    };
    tell(
        &[&before[..], &stories, &many].concat(),
        Duration::from_mins(10),
    )
}

fn has_nftables() -> bool {
    lab::iptables_backend() == "nft"
}

/// Returns the kernel state that identifies modes: tables, maps of nftables layouts, rules, sets,
/// virtual servers, addresses and local routes.
fn held(c: &Cluster) -> Result<String> {
    c.sh(&with_backend(
        "nft list tables 2>/dev/null || true
        for map in firewall-ips endpoints-tcp-2; do
            nft -t list map ip kube-proxy $map >/dev/null 2>&1 && echo map $map
        done
        iptables-$backend-save; ip6tables-$backend-save; ipset save; ipvsadm -Sn
        ip -oneline address show dev kube-ipvs0 2>/dev/null | sed 's/.*/dev kube-ipvs0 &/' || true
        ip route show table local dev kube-ipvs0 2>/dev/null || true",
    ))
}

fn set_up(c: &Cluster) -> Outcome {
    // The node's own packets to a Service need a route, because some modes make no Service address
    // local.
    c.sh("ip route replace default via 172.35.0.9; ip -6 route replace default via fd35::9")?;
    // nftables mode serves node ports only at the addresses of the Node object.
    c.write("node", NODE)?;
    let service = Service::new("web", "10.96.0.10 fd96::10").port(tcp(80, 8080).node_port(30080));
    let service = service.port(udp(80, 8080).named("udp"));
    let service = service.ingress("192.0.2.10").external("192.0.2.20");
    c.apply(&service.endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10"))?;
    // Adds another program's virtual server, which every change of the mode must keep.
    c.sh("ipvsadm -A -t 198.51.100.9:9 -s rr && ipvsadm -a -t 198.51.100.9:9 -r 10.244.2.10:9 -m")?;
    // With `--ipvs-semantics=exact`, a firewall mark selects the virtual server of this Service for
    // clients outside the cluster.
    let local = Service::new("local", "10.96.0.12 fd96::12").port(tcp(80, 8080));
    let local = local.ingress("192.0.2.30 2001:db8::30");
    let local = local.spec("externalTrafficPolicy: Local");
    c.apply(&local.endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10"))?;
    let inner = Service::new("inner", "10.96.0.11 fd96::11").port(tcp(80, 8080));
    c.apply(&inner.endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10"))?;
    Ok(())
}

/// Returns the paths of the clients' requests: pairs of a client and an address of the Service.
fn ways(c: &Cluster) -> [(&Place, &'static str); 6] {
    [
        (&c.client, "10.96.0.10:80"),
        (&c.client, "172.35.0.100:30080"),
        (&c.client, "192.0.2.10:80"),
        (&c.client, "[fd96::10]:80"),
        (&c.outside, "172.35.0.100:30080"),
        (&c.outside, "192.0.2.20:80"),
    ]
}

/// Addresses of the Service `inner`, for which the flat nftables layout creates no chain.
const INNER: [&str; 2] = ["10.96.0.11:80", "[fd96::11]:80"];

/// Addresses of the Service `local`, which has `externalTrafficPolicy: Local`.
const LOCAL: [&str; 2] = ["192.0.2.30:80", "[2001:db8::30]:80"];

/// Returns the manifests of [`CROWD`] Services without traffic.
fn crowd() -> String {
    let mut crowd = String::new();
    for number in 0..CROWD {
        let (high, low) = (number / 250, number % 250 + 1);
        let name = format!("crowd-{number}");
        let addresses = format!("10.90.{high}.{low} fd90::{high}:{low}");
        let service = Service::new(&name, &addresses).port(tcp(80, 8080));
        let service = service.endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10");
        crowd.extend(["---\n", &service.to_string(), "\n"]);
    }
    crowd
}

/// Changes modes among so many Services that the first sync is slow. The daemon programs the
/// Services with traffic last.
fn among_many(c: &mut Cluster, one: &ModeForm, other: &ModeForm) -> Outcome {
    c.write("crowd", &crowd())?;
    c.patience = Duration::from_mins(1);
    there_and_back(c, one, other)
}

/// Runs nftables mode with the default layout. Adds Services until the daemon switches to the flat
/// layout, and removes them until it switches back.
fn by_number_of_services(c: &mut Cluster) -> Outcome {
    set_up(c)?;
    c.patience = Duration::from_mins(1);
    let mut daemon = c.start_apart(&["--proxy-mode=nftables"])?;
    is_alone(c, &NFTABLES)?;
    let mut asked = ways(c).to_vec();
    asked.extend(INNER.map(|to| (&c.client, to)));
    for (form, layout) in [(&NFTABLES_FLAT, "flat"), (&NFTABLES, "upstream")] {
        let change = || {
            if layout == "flat" {
                c.write("crowd", &crowd())?;
            } else {
                c.delete("crowd")?;
            }
            is_alone(c, form)?;
            let (_, status) = ask_json(c, &["status"])?;
            let wanted = serde_json::json!(["layout auto", format!("layout {layout}")]);
            ensure!(status["forms"] == wanted, "{}", status["forms"]);
            Ok(())
        };
        under_traffic(&asked, HELD, FIRST_TRY, change).context(form.name)?;
    }
    let output = daemon.stop(SOON)?;
    ensure!(output.status.success(), "it ended with {}", output.status);
    clean(c)
}

fn there_and_back(c: &mut Cluster, one: &ModeForm, other: &ModeForm) -> Outcome {
    set_up(c)?;
    c.start(one.flags)?;
    is_alone(c, one)?;
    c.stop()?;
    let mut asked = ways(c).to_vec();
    if other.marks == NFTABLES_FLAT.marks {
        asked.extend(INNER.map(|to| (&c.client, to)));
    } else if [one, other].iter().any(|form| form.is_exact()) {
        // Only clients outside the cluster use these addresses, so IPVS selects their virtual
        // server by a firewall mark.
        asked.extend(LOCAL.map(|to| (&c.outside, to)));
    } else {
        // Adds requests of the node itself. The source address of its packets depends on the mode,
        // because some modes make the Service's address local to the node.
        asked.extend(["10.96.0.10:80", "[fd96::10]:80"].map(|to| (&*c.node1, to)));
    }
    for (from, to) in [(one, other), (other, one)] {
        let leaves_ipvs = from.marks.contains(&DEVICE) && !to.marks.contains(&DEVICE);
        let step = format!("from {} to {}", from.name, to.name);
        let mut flow = c
            .client
            .dial(Transport::Udp, at("10.96.0.10:80"))
            .timeout(SOON)
            .open()?;
        let (who, asked_at) = (flow.ask()?.who, Instant::now());
        let change = || {
            let mut daemon = c.start_apart(to.flags)?;
            if leaves_ipvs {
                drains(c, to)?;
                node_ports_are_told_at_the_nodes_addresses(c)?;
            } else {
                is_alone(c, to)?;
            }
            let output = daemon.stop(SOON)?;
            ensure!(output.status.success(), "it ended with {}", output.status);
            // The mode's state stays in the kernel after the daemon has ended.
            if leaves_ipvs {
                drains(c, to)
            } else {
                is_alone(c, to)
            }
        };
        if let Err(error) = under_traffic(&asked, HELD, FIRST_TRY, change) {
            // Prints the failure before the long evidence.
            let seen = c.sh(SEEN).unwrap_or_default();
            anyhow::bail!("{step}: {error:#}\nafterwards:\n{seen}");
        }
        let answer = flow
            .ask()
            .with_context(|| format!("{step}: the UDP flow"))?;
        ensure!(
            answer.who == who || asked_at.elapsed() > TRACKED,
            "{step}: the UDP flow changed its endpoint"
        );
        if leaves_ipvs {
            drain_ends(c, to).with_context(|| format!("{step}, after a restart"))?;
            // Allows for the loss of the UDP flow's first packet after the drain.
            c.until("the UDP flow goes the new way", || Ok(flow.ask().is_ok()))?;
        }
    }
    clean(c)
}

/// Waits until only the new mode serves, while IPVS still keeps the open connections of the
/// previous mode.
fn drains(c: &Cluster, to: &ModeForm) -> Outcome {
    let mut wrong = String::new();
    let waited = c.until("open connections in IPVS alone", || {
        wrong = match held(c) {
            Ok(held) => {
                let missing = to.marks.iter().filter(|mark| !held.contains(**mark));
                let mut wrong: Vec<String> = missing.map(|mark| format!("no {mark}")).collect();
                let is_vip = |line: &&str| line.contains(DEVICE) && !line.contains("127.107.0.1/");
                let destinations = held.lines().filter(|line| line.starts_with("-a "));
                let destinations = destinations.filter(|line| !line.contains(FOREIGN));
                let (drained, weighted): (Vec<_>, Vec<_>) =
                    destinations.partition(|line| line.ends_with("-w 0"));
                let is_drained = !drained.is_empty();
                wrong.extend((!is_drained).then(|| "no draining destination".to_owned()));
                wrong.extend(weighted.into_iter().map(str::to_owned));
                wrong.extend(held.lines().filter(is_vip).map(str::to_owned));
                wrong.extend(held.contains(MATCH).then(|| MATCH.to_owned()));
                wrong.join("; ")
            }
            Err(error) => format!("{error:#}"),
        };
        Ok(wrong.is_empty())
    });
    waited.map(drop).with_context(|| wrong)
}

/// Restarts the new mode after the clients have closed their connections. The daemon must continue
/// the drain, and end it.
fn drain_ends(c: &Cluster, to: &ModeForm) -> Outcome {
    // The drain timeout is short, because the UDP flow stays open, and the kernel still counts
    // closed connections for some time.
    let mut daemon = c.start_apart(&[to.flags, &["--ipvs-drain-timeout=1s"]].concat())?;
    is_alone(c, to)?;
    daemon.stop(SOON)?;
    Ok(())
}

/// Waits until `kube-proxy services` lists no node port at a Service address. As long as
/// `kube-ipvs0` exists, its addresses count as node addresses.
fn node_ports_are_told_at_the_nodes_addresses(c: &Cluster) -> Outcome {
    let mut told = serde_json::Value::Null;
    let waited = c.until("no node port at a service address", || {
        let (_, service) = ask_json(c, &["services", "default/web"])?;
        told = service["ports"][0]["addresses"].clone();
        let (mut node_ports, mut own) = (Vec::new(), Vec::new());
        for address in told.as_array().context("addresses")? {
            let at: SocketAddr = address["at"].as_str().context("at")?.parse()?;
            let is_node_port = address["kind"] == "nodePort";
            let ips = if is_node_port {
                &mut node_ports
            } else {
                &mut own
            };
            ips.push(at.ip());
        }
        Ok(!node_ports.is_empty() && !node_ports.iter().any(|ip| own.contains(ip)))
    });
    waited.map(drop).with_context(|| told.to_string())
}

/// Waits until the kernel has all state that identifies this mode, and no state that identifies
/// only other modes.
fn is_alone(c: &Cluster, way: &ModeForm) -> Outcome {
    let mut wrong = String::new();
    let waited = c.until("one mode alone", || {
        wrong.clear();
        // `iptables-save` looks up ipsets by name, and fails if a daemon removes an ipset at the
        // same time. The test then tries again.
        let held = match held(c) {
            Ok(held) => held,
            Err(error) => {
                wrong = format!("{error:#}");
                return Ok(false);
            }
        };
        let has = |mark: &&&str| held.contains(**mark);
        for mark in way.marks.iter().filter(|mark| !has(mark)) {
            wrong.extend(["no ", *mark, "; "]);
        }
        // Finds state that identifies other modes but not this mode.
        let others = ALL.iter().flat_map(|other| other.marks);
        for mark in others.filter(|mark| !way.marks.contains(mark)).filter(has) {
            wrong.extend(["still ", *mark, "; "]);
        }
        Ok(wrong.is_empty())
    });
    waited
        .map(drop)
        .with_context(|| format!("{}: {wrong}", way.name))
}

/// Script that prints evidence after a lost request.
const SEEN: &str =
    "conntrack -L 2>&1 || true; ipvsadm -Lnc; ipvsadm -Ln; nft list ruleset; iptables-save";

fn clean(c: &Cluster) -> Outcome {
    let program = scenarios::kube_proxy()?.display().to_string();
    c.sh(&format!("{program} --cleanup"))?;
    let left = held(c)?;
    ensure!(left.contains(FOREIGN), "{left}");
    ensure!(
        [
            "KUBE-SVC",
            "KUBE-SERVICES",
            "kube-proxy",
            "kube-ipvs0",
            "create KUBE-"
        ]
        .iter()
        .all(|mark| !left.contains(mark)),
        "{left}"
    );
    Ok(())
}
