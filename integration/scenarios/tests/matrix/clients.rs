//! The matrix's clients, and numbered Services with every kind of address.

use std::net::SocketAddr;

use lab::{Place, Transport};
use scenarios::{Cluster, Outcome, Service, at, sctp, tcp, udp};

/// Kinds of addresses of a Service from [`service`].
pub(crate) const WAYS: [&str; 4] = ["ClusterIP", "NodePort", "LoadBalancer", "externalIP"];
/// Names of the clients that send requests: a pod, the node, and an external host.
pub(crate) const PLACES: [&str; 3] = ["pod", "node", "outside"];

/// Returns the LoadBalancer Service `webNUMBER` with external IPs, on port 80 of TCP, UDP and SCTP
/// in both families.
pub(crate) fn service(number: usize) -> Service {
    let node_port = node_port(number);
    Service::new(
        &format!("web{number}"),
        &format!("10.96.1.{number} fd96::1{number}"),
    )
    .port(tcp(80, 8080).named("tcp").node_port(node_port))
    .port(udp(80, 8080).named("udp").node_port(node_port))
    .port(sctp(80, 8080).named("sctp").node_port(node_port))
    .ingress(&format!("192.0.2.1{number} 2001:db8::1{number}"))
    .external(&format!("192.0.2.2{number} 2001:db8::2{number}"))
}

/// Returns the Service `innerNUMBER` with only a ClusterIP.
pub(crate) fn inner_service(number: usize) -> Service {
    Service::new(&format!("inner{number}"), &format!("10.96.2.{number}")).port(tcp(80, 8080))
}

/// Returns the namespace and name of the Service to which the addresses of [`v4`] and [`v6`]
/// belong.
pub(crate) fn named(way: &str, number: usize) -> String {
    if way == "ClusterIP only" {
        format!("default/inner{number}")
    } else {
        format!("default/web{number}")
    }
}

/// Returns the IPv4 address of kind `way` that Service `number` has.
pub(crate) fn v4(way: &str, number: usize) -> SocketAddr {
    at(&match way {
        "ClusterIP" => format!("10.96.1.{number}:80"),
        "ClusterIP only" => format!("10.96.2.{number}:80"),
        "NodePort" => format!("172.35.0.100:{}", node_port(number)),
        "LoadBalancer" => format!("192.0.2.1{number}:80"),
        _ => format!("192.0.2.2{number}:80"),
    })
}

/// Returns the IPv6 address of kind `way` that Service `number` has.
pub(crate) fn v6(way: &str, number: usize) -> SocketAddr {
    at(&match way {
        "ClusterIP" => format!("[fd96::1{number}]:80"),
        "NodePort" => format!("[fd35::100]:{}", node_port(number)),
        "LoadBalancer" => format!("[2001:db8::1{number}]:80"),
        _ => format!("[2001:db8::2{number}]:80"),
    })
}

fn node_port(number: usize) -> u16 {
    30_080 + u16::try_from(number).unwrap_or_default()
}

/// Returns `spec` fields with these traffic policies.
pub(crate) fn policies(external_local: bool, internal_local: bool) -> String {
    let policy = |is_local| if is_local { "Local" } else { "Cluster" };
    format!(
        "externalTrafficPolicy: {}, internalTrafficPolicy: {}",
        policy(external_local),
        policy(internal_local)
    )
}

const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: node1}, status: {addresses: [\
                    {type: InternalIP, address: 172.35.0.100}, {type: InternalIP, address: 'fd35::100'}]}}";

/// Mode of a daemon. IPVS mode with `--ipvs-semantics=exact` counts as a separate mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Ipvs,
    /// IPVS mode with `--ipvs-semantics=exact`.
    Exact,
    Iptables,
    Nftables,
    Userspace,
}

impl Mode {
    /// Returns true for IPVS mode, with either value of `--ipvs-semantics`.
    pub(crate) fn is_ipvs(self) -> bool {
        matches!(self, Self::Ipvs | Self::Exact)
    }

    /// Returns the mode that the flags of a cluster's daemons select.
    pub(crate) fn of(c: &Cluster) -> Self {
        let is = |mode: &str| {
            c.flags
                .iter()
                .any(|flag| *flag == *format!("--proxy-mode={mode}"))
        };
        let exact = "--ipvs-semantics=exact";
        if c.flags.iter().any(|flag| *flag == *exact) {
            Self::Exact
        } else if is("userspace") {
            Self::Userspace
        } else if is("nftables") {
            Self::Nftables
        } else if is("iptables") {
            Self::Iptables
        } else {
            Self::Ipvs
        }
    }
}

/// Returns true if the daemons' flags select the flat layout of nftables mode.
pub(crate) fn is_flat(c: &Cluster) -> bool {
    c.flags
        .iter()
        .any(|flag| *flag == *"--nftables-layout=flat")
}

/// Returns those of `all` transports that a mode supports.
pub(crate) fn transports<const N: usize>(
    mode: Mode,
    all: [Transport; N],
) -> impl Iterator<Item = Transport> {
    let mut all = all.into_iter().collect::<Vec<_>>();
    all.retain(|transport| mode != Mode::Userspace || *transport != Transport::Sctp);
    all.into_iter()
}

/// Converts an expected result of the rule-based modes into that of userspace mode (reason G in
/// docs/packet-matrix.md). In userspace mode, the endpoint sees the node's address, and the relay
/// resets connections to a Service without endpoints.
pub(crate) fn carried(mode: Mode, transport: Transport, by_rules: &'static str) -> &'static str {
    match by_rules {
        said if mode != Mode::Userspace => said,
        "both kept" => "both masq",
        "local kept" => "local masq",
        "remote kept" => "remote masq",
        "timeout" | "refused" if transport == Transport::Udp => "timeout",
        "timeout" | "refused" => "reset",
        said => said,
    }
}

/// Returns true if the kernel has nf_tables. Of the lab's VM kernels, only the kernel of lane B has
/// nf_tables. The host's kernel may or may not have them.
pub(crate) fn has_nftables() -> bool {
    lab::iptables_backend() == "nft"
}

/// Starts the daemon, and waits until its entries work in the kernel.
pub(crate) fn start(c: &mut Cluster, flags: &[&str]) -> Outcome {
    if Mode::of(c) == Mode::Exact {
        // The node's own packets to a Service need a route, from which the kernel also takes their
        // source address.
        c.sh("ip route replace default via 172.35.0.9; ip -6 route replace default via fd35::9")?;
        return c.start(flags);
    }
    if Mode::of(c) != Mode::Ipvs {
        // nftables mode serves node ports only at the addresses of the Node object.
        if !c.manifests().join("node.yaml").exists() {
            c.write("node", NODE)?;
        }
        // The node's own packets to a Service need a route: rules translate them only after the
        // route lookup, and the mode makes no Service address local.
        c.sh("ip route replace default via 172.35.0.9; ip -6 route replace default via fd35::9")?;
        return c.start(flags);
    }
    c.start(flags)?;
    // An IPv6 address works only after a kernel worker has added its route.
    c.until("routes of the IPv6 addresses", || {
        let addresses = c.addresses()?;
        let addresses = addresses
            .iter()
            .filter(|line| line.starts_with("kube-ipvs0 ") && line.contains(':'));
        let routes = c.sh("ip -6 route show table local dev kube-ipvs0")?;
        Ok(routes.lines().count() == addresses.count())
    })?;
    Ok(())
}

/// Returns the pod, node or host with this name, which is one of [`PLACES`].
pub(crate) fn place<'a>(c: &'a Cluster, name: &str) -> &'a Place {
    match name {
        "pod" => &c.client,
        "node" => &c.node1,
        _ => &c.outside,
    }
}

/// Routes packets from node2's pods to the outside host through node1, which must translate the
/// replies to unmasqueraded requests. Otherwise, replies would bypass node1, and the test could not
/// see which endpoint replied.
pub(crate) fn answers_come_back(c: &Cluster) -> Outcome {
    c.node1.read([
        "sysctl",
        "-qw",
        "net.ipv4.conf.all.send_redirects=0",
        "net.ipv4.conf.eth0.send_redirects=0",
    ])?;
    c.node2
        .read(["sysctl", "-qw", "net.ipv6.conf.eth0.accept_redirects=0"])?;
    c.world.route(&c.node2, "172.35.0.9 fd35::9", &c.node1)?;
    Ok(())
}
