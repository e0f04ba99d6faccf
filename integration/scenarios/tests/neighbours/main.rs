//! Tests kube-proxy beside network plug-ins and other programs of a node. docs/neighbours.md has
//! the results.
//!
//! Debian has no packages for most of these programs. Scripts in this directory therefore create
//! the rules, sets, addresses and virtual servers of such a program. Of these programs, only
//! keepalived, BIRD and FRR run.
//!
//! Each test runs kube-proxy in one mode after another. In each mode, it sends packets, and checks
//! that the other program's state still exists. At the end, `--cleanup` must restore exactly the
//! state from before the first start.

mod announcers;
mod calico;
mod kube_router;
mod node;

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{Place, Transport};
use scenarios::{Cluster, Outcome, Service, at, kube_proxy, stories, tcp, tell};

/// Time limit of the lab's boot and all tests. Each test has its own, shorter limit.
const LIMIT: Duration = Duration::from_mins(10);

fn main() {
    let stories = stories! {
        announcers: services_are_reached_by_announced_addresses, frr_announces_load_balancer_addresses;
        calico: network_policies_of_calico_apply_to_services, network_policies_of_calico_apply_with_exact_semantics if has_nft(),
            network_policies_of_calico_in_nftables_apply_to_services if has_nft();
        node: services_work_beside_programs_of_the_node, services_work_beside_cilium_without_kube_proxy_replacement if has_nft();
        kube_router: network_policies_of_kube_router_apply_to_services if has_nft();
    };
    tell(&stories, LIMIT)
}

/// Returns true if the lab's kernel supports iptables-nft, which the tests then use.
pub(crate) fn has_nft() -> bool {
    lab::iptables_backend() == "nft"
}

/// Manifest of the Node object, whose addresses serve node ports in nftables mode.
pub(crate) const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [\
                    {type: InternalIP, address: 172.35.0.100}, {type: InternalIP, address: 'fd35::100'}]}}";

/// A mode with its name, its flags, and its need for nf_tables.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) name: &'static str,
    flags: &'static [&'static str],
    needs_nft: bool,
}

/// Name of IPVS mode with `--ipvs-semantics=exact` and the shim in nftables.
pub(crate) const EXACT: &str = "ipvs, exact, shim in nftables";

/// Modes in the order in which a test runs them. Each mode replaces the previous mode.
const FORMS: [Form; 6] = [
    Form {
        name: "ipvs, upstream's shim",
        flags: &["--proxy-mode=ipvs", "--ipvs-shim=upstream"],
        needs_nft: false,
    },
    Form {
        name: "iptables",
        flags: &["--proxy-mode=iptables"],
        needs_nft: false,
    },
    Form {
        name: "ipvs, exact, lean shim",
        flags: &[
            "--proxy-mode=ipvs",
            "--ipvs-semantics=exact",
            "--ipvs-shim=lean",
        ],
        needs_nft: false,
    },
    Form {
        name: "ipvs, shim in nftables",
        flags: &["--proxy-mode=ipvs", "--ipvs-shim=nftables"],
        needs_nft: true,
    },
    Form {
        name: "nftables",
        flags: &["--proxy-mode=nftables"],
        needs_nft: true,
    },
    Form {
        name: EXACT,
        flags: &[
            "--proxy-mode=ipvs",
            "--ipvs-semantics=exact",
            "--ipvs-shim=nftables",
        ],
        needs_nft: true,
    },
];

/// Flags for several resyncs during a test, and for a short drain when IPVS mode ends.
const FLAGS: [&str; 3] = [
    "--iptables-sync-period=2s",
    "--ipvs-sync-period=2s",
    "--ipvs-drain-timeout=1s",
];

/// Script that prints the kernel state that kube-proxy shares with other programs. It omits
/// counters, hash seeds, header lines of tables, and the chain KUBE-FIREWALL, which also belongs to
/// the kubelet.
const STATE: &str = "
    for t in iptables ip6tables; do $t-$backend-save | sed \"s/^/$t /\"; done |
        sed -E 's/ \\[[0-9]+:[0-9]+\\]$//' | grep -vE '^ip6?tables (#|COMMIT|\\*|:[A-Z]+ ACCEPT)|KUBE-FIREWALL' || true
    ipset save | sed 's/ initval 0x[0-9a-f]*//' | sort
    ipvsadm -Sn | sort
    for f in -4 -6; do
        ip $f -oneline address | sed 's/^[0-9]*: //'
        ip $f rule
        ip $f route show table all
    done
    ip -brief link | sed 's/@[^ ]*//'
    for f in ip ip6; do nft list table $f calico 2>/dev/null || true; done
    ip neigh show nud permanent; bridge fdb show dev flannel.1 2>/dev/null || true
";

fn state(c: &Cluster) -> Result<Vec<String>> {
    let text = c.sh(STATE)?;
    let lines = text.lines().map(|line| line.trim_end().to_owned());
    Ok(lines.filter(|line| !line.is_empty()).collect())
}

/// Runs kube-proxy beside another program, in each mode that the lab's kernel supports. For the
/// arguments, see [`in_modes`].
pub(crate) fn in_each_mode(
    c: &mut Cluster,
    refresh: &str,
    packets: impl Fn(&Cluster, &Form) -> Outcome,
) -> Outcome {
    in_modes(c, |_| true, refresh, packets)
}

/// Runs kube-proxy in each chosen mode beside another program. The script `refresh` repairs the
/// other program's state after each start of kube-proxy, as that program would. `packets` checks
/// the traffic in a mode.
pub(crate) fn in_modes(
    c: &mut Cluster,
    is_chosen: impl Fn(&Form) -> bool,
    refresh: &str,
    packets: impl Fn(&Cluster, &Form) -> Outcome,
) -> Outcome {
    let before = state(c)?;
    let possible = FORMS.iter().filter(|form| has_nft() || !form.needs_nft);
    for form in possible.filter(|form| is_chosen(form)) {
        c.start(&[form.flags, &FLAGS].concat())?;
        c.sh(refresh)?;
        packets(c, form).with_context(|| form.name)?;
        stays(c, &before).with_context(|| form.name)?;
        c.stop()?;
    }
    let program = kube_proxy()?;
    c.sh(&format!("{} --cleanup", program.display()))?;
    let after = state(c)?;
    let extra = after.iter().filter(|line| !before.contains(line));
    let extra: Vec<_> = extra.collect();
    ensure!(
        after == before,
        "after --cleanup, the state differs; new: {extra:#?}\n{}",
        after.join("\n")
    );
    Ok(())
}

/// Checks that all lines of the state `before` still exist, in the same order.
fn stays(c: &Cluster, before: &[String]) -> Outcome {
    let now = state(c)?;
    let mut rest = now.iter();
    for line in before {
        ensure!(
            rest.any(|other| other == line),
            "{line:?} is not there, or not at its place:\n{}",
            now.join("\n")
        );
    }
    Ok(())
}

/// Timeout of a request, which counts as denied if no reply arrives in this time.
const DENIED_AFTER: Duration = Duration::from_millis(900);

/// Adds Services with two endpoints. A network policy protects their endpoint on node1, the pod
/// `near`.
pub(crate) fn policed_services(c: &Cluster) -> Outcome {
    c.sh("ip route replace default via 172.35.0.9; ip -6 route replace default via fd35::9")?;
    c.write("node", NODE)?;
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 fd44:1::10");
    c.apply(&web)?;
    let local = Service::new("local", "10.96.0.11 fd96::11")
        .port(tcp(80, 8080).node_port(30081))
        .ingress("192.0.2.11 2001:db8::11")
        .spec("externalTrafficPolicy: Local")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10");
    c.apply(&local)?;
    // No network policy of node1 applies to this endpoint, which is on node2.
    let far = Service::new("far", "10.96.0.12 fd96::12")
        .port(tcp(80, 8080))
        .endpoints("10.244.2.10 fd44:2::10");
    c.apply(&far)
}

/// Checks that only `client` and the node reach the pod `near`, directly and through Services.
pub(crate) fn policies_hold(c: &Cluster, other: &Place) -> Outcome {
    for (from, to) in [
        (&c.client, "10.96.0.10:80"),
        (&c.client, "[fd96::10]:80"),
        (&c.client, "172.35.0.100:30080"),
        (&c.client, "10.96.0.12:80"),
        (&*c.node1, "10.96.0.10:80"),
        (&*c.node1, "[fd96::10]:80"),
        (&*c.node1, "10.96.0.12:80"),
        (other, "10.96.0.12:80"),
        (other, "[fd96::12]:80"),
    ] {
        c.until_answered(from, to)?;
    }
    let denied = [
        (other, "10.96.0.10:80"),
        (other, "[fd96::10]:80"),
        (other, "172.35.0.100:30080"),
        (&c.outside, "172.35.0.100:30080"),
        (&c.outside, "172.35.0.100:30081"),
        (&c.outside, "192.0.2.11:80"),
        (&c.outside, "[2001:db8::11]:80"),
    ];
    let answered = thread::scope(|scope| {
        let asked = denied.map(|(from, to)| {
            scope.spawn(move || {
                let dial = from.dial(Transport::Tcp, at(to));
                let answer = dial.timeout(DENIED_AFTER).ask().ok()?;
                Some(format!(
                    "{} asks {to}, and {} answers",
                    from.name(),
                    answer.who
                ))
            })
        });
        let asked = asked.map(thread::ScopedJoinHandle::join);
        asked.into_iter().flatten().flatten().collect::<Vec<_>>()
    });
    ensure!(
        answered.is_empty(),
        "a network policy does not apply: {answered:?}"
    );
    Ok(())
}
