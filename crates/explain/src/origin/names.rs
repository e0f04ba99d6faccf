//! What kube-proxies leave in the kernel, by name, and what in Kubernetes each comes from: a row for
//! each, of every mode, shim and layout, upstream's older ones included.

/// Where something has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space<'a> {
    /// A chain of this table of iptables.
    Iptables(&'a str),
    /// An ipset.
    Ipset,
    /// A chain, set or map of this table of nf\_tables.
    Nftables(&'a str),
    /// A network link.
    Link,
}

struct Row {
    space: Space<'static>,
    name: &'static str,
    is_prefix: bool,
    says: &'static str,
}

const fn row(space: Space<'static>, name: &'static str, says: &'static str) -> Row {
    Row {
        space,
        name,
        is_prefix: false,
        says,
    }
}

const fn beginning(space: Space<'static>, name: &'static str, says: &'static str) -> Row {
    Row {
        space,
        name,
        is_prefix: true,
        says,
    }
}

const NAT: Space<'static> = Space::Iptables("nat");
const FILTER: Space<'static> = Space::Iptables("filter");
const MANGLE: Space<'static> = Space::Iptables("mangle");
const SET: Space<'static> = Space::Ipset;
/// nftables mode's table, `proxy_nftables::TABLE`.
const NFTABLES: Space<'static> = Space::Nftables("kube-proxy");
/// That of IPVS mode's shim.
const SHIM: Space<'static> = Space::Nftables("kube-proxy-ipvs");
/// That of userspace mode.
const USERSPACE: Space<'static> = Space::Nftables("kube-proxy-userspace");

const ADDRESSES: &str = "Services: spec.clusterIPs, spec.externalIPs, status.loadBalancer.ingress";
const NODE_PORTS: &str = "Services: spec.ports[].nodePort; --nodeport-addresses";
const CLUSTER_IPS: &str = "Services: spec.clusterIPs; whom it masquerades: --cluster-cidr, --detect-local-mode, --masquerade-all";
const EXTERNAL_IPS: &str = "Services: spec.externalIPs";
const EXTERNAL_IPS_LOCAL: &str = "Services: spec.externalIPs, externalTrafficPolicy: Local";
const LOAD_BALANCERS: &str = "Services: status.loadBalancer.ingress";
const LOAD_BALANCERS_LOCAL: &str =
    "Services: status.loadBalancer.ingress, externalTrafficPolicy: Local";
const RANGES: &str = "Services: spec.loadBalancerSourceRanges";
const NODE_PORTS_LOCAL: &str = "Services: spec.ports[].nodePort, externalTrafficPolicy: Local";
const HEALTH: &str = "Services: spec.healthCheckNodePort";
const MASQUERADE: &str = "kube-proxy: masquerades what was marked; --iptables-masquerade-bit";
const MARK: &str = "kube-proxy: marks what is to be masqueraded; --masquerade-all, --cluster-cidr, --detect-local-mode, \
                    externalTrafficPolicy";
const HAIRPIN: &str = "EndpointSlices: endpoints of this node, which may be sent to themselves";
const UNEXPOSED: &str = "kube-proxy: ports that no Service exposes (kubernetes/kubernetes#72236)";
const UNSERVED: &str = "EndpointSlices: no endpoint for this traffic is ready";
const ON_LOCALHOST: &str = "Services: spec.ports[].nodePort, which nobody serves on localhost; --nodeport-addresses, \
                            --feature-gates=KubeProxyNFTablesLocalhostNodePorts";
const ENDPOINTS: &str = "EndpointSlices: endpoints that are ready";
const LOCAL_ENDPOINTS: &str =
    "EndpointSlices: endpoints of this node; internalTrafficPolicy or externalTrafficPolicy: Local";
const ENDPOINT: &str = "EndpointSlices: one endpoint";
const AFFINITY: &str = "Services: sessionAffinity: ClientIP";
const OUTSIDE: &str = "Services: externalTrafficPolicy";
const FORWARD: &str = "kube-proxy: lets traffic of Services pass";
const ENTRY: &str = "kube-proxy: where packets come in";
const KUBELET: &str = "the kubelet's";
const PORTALS: &str = "Services: their addresses, led to a listening port of kube-proxy";
const PORTALS_NODE_PORTS: &str =
    "Services: spec.ports[].nodePort, led to a listening port of kube-proxy";
/// What is in the origin of all that leads to the daemon's own ports.
pub(crate) const LISTENING: &str = "led to a listening port of kube-proxy";
const CANARY: &str = "kube-proxy: tells it whether the table was flushed";
const NODE_RANGES: &str =
    "Services: spec.loadBalancerSourceRanges that hold no address of this node";

/// Of names that begin alike, the longer one stands first.
const ROWS: &[Row] = &[
    // iptables mode, and what IPVS mode has by the same names.
    row(NAT, "KUBE-SERVICES", ADDRESSES),
    row(NAT, "KUBE-NODEPORTS", NODE_PORTS),
    row(NAT, "KUBE-POSTROUTING", MASQUERADE),
    row(NAT, "KUBE-MARK-MASQ", MARK),
    row(NAT, "KUBE-MARK-DROP", KUBELET),
    beginning(NAT, "KUBE-SVC-", ENDPOINTS),
    beginning(NAT, "KUBE-SVL-", LOCAL_ENDPOINTS),
    beginning(NAT, "KUBE-XLB-", LOCAL_ENDPOINTS),
    beginning(NAT, "KUBE-SEP-", ENDPOINT),
    beginning(NAT, "KUBE-FW-", RANGES),
    beginning(NAT, "KUBE-EXT-", OUTSIDE),
    row(FILTER, "KUBE-SERVICES", UNSERVED),
    row(FILTER, "KUBE-EXTERNAL-SERVICES", UNSERVED),
    row(FILTER, "KUBE-NODEPORTS", HEALTH),
    row(FILTER, "KUBE-FORWARD", FORWARD),
    row(FILTER, "KUBE-PROXY-FIREWALL", RANGES),
    row(
        FILTER,
        "KUBE-FIREWALL",
        "the kubelet's; --iptables-localhost-nodeports",
    ),
    row(NAT, "KUBE-PROXY-CANARY", CANARY),
    row(FILTER, "KUBE-PROXY-CANARY", CANARY),
    row(MANGLE, "KUBE-PROXY-CANARY", CANARY),
    row(NAT, "KUBE-KUBELET-CANARY", KUBELET),
    row(FILTER, "KUBE-KUBELET-CANARY", KUBELET),
    row(MANGLE, "KUBE-KUBELET-CANARY", KUBELET),
    row(MANGLE, "KUBE-IPTABLES-HINT", KUBELET),
    // IPVS mode.
    row(NAT, "KUBE-NODE-PORT", NODE_PORTS),
    row(NAT, "KUBE-LOAD-BALANCER", LOAD_BALANCERS),
    row(NAT, "KUBE-FIREWALL", RANGES),
    row(FILTER, "KUBE-NODE-PORT", HEALTH),
    row(FILTER, "KUBE-SOURCE-RANGES-FIREWALL", RANGES),
    row(FILTER, "KUBE-IPVS-FILTER", UNEXPOSED),
    row(FILTER, "KUBE-IPVS-OUT-FILTER", NODE_RANGES),
    row(SET, "KUBE-LOOP-BACK", HAIRPIN),
    row(SET, "KUBE-CLUSTER-IP", CLUSTER_IPS),
    row(SET, "KUBE-EXTERNAL-IP", EXTERNAL_IPS),
    row(SET, "KUBE-EXTERNAL-IP-LOCAL", EXTERNAL_IPS_LOCAL),
    row(SET, "KUBE-LOAD-BALANCER", LOAD_BALANCERS),
    row(SET, "KUBE-LOAD-BALANCER-LOCAL", LOAD_BALANCERS_LOCAL),
    row(SET, "KUBE-LOAD-BALANCER-FW", RANGES),
    row(SET, "KUBE-LOAD-BALANCER-SOURCE-CIDR", RANGES),
    row(SET, "KUBE-LOAD-BALANCER-SOURCE-IP", RANGES),
    row(SET, "KUBE-NODE-PORT-TCP", NODE_PORTS),
    row(SET, "KUBE-NODE-PORT-LOCAL-TCP", NODE_PORTS_LOCAL),
    row(SET, "KUBE-NODE-PORT-UDP", NODE_PORTS),
    row(SET, "KUBE-NODE-PORT-LOCAL-UDP", NODE_PORTS_LOCAL),
    row(SET, "KUBE-NODE-PORT-SCTP-HASH", NODE_PORTS),
    row(SET, "KUBE-NODE-PORT-LOCAL-SCTP-HASH", NODE_PORTS_LOCAL),
    row(SET, "KUBE-HEALTH-CHECK-NODE-PORT", HEALTH),
    row(SET, "KUBE-IPVS-IPS", "Services: addresses on kube-ipvs0"),
    row(
        SET,
        "KUBE-GROWING",
        "kube-proxy: a set that is about to be replaced by a larger one",
    ),
    row(
        Space::Link,
        "kube-ipvs0",
        "Services: the addresses that this node serves",
    ),
    // Its shim in nf_tables: sets as above.
    row(SHIM, "nat-prerouting", ENTRY),
    row(SHIM, "nat-output", ENTRY),
    row(SHIM, "nat-postrouting", MASQUERADE),
    row(SHIM, "filter-input", RANGES),
    row(SHIM, "filter-forward", RANGES),
    row(SHIM, "filter-input-behind-ipvs", UNEXPOSED),
    row(SHIM, "filter-output", NODE_RANGES),
    row(SHIM, "KUBE-NODE-PORT", NODE_PORTS),
    row(SHIM, "KUBE-SOURCE-RANGES-FIREWALL", RANGES),
    row(SHIM, "KUBE-IPVS-FILTER", UNEXPOSED),
    row(SHIM, "KUBE-IPVS-OUT-FILTER", NODE_RANGES),
    // nftables mode, in both layouts.
    row(NFTABLES, "cluster-ips", CLUSTER_IPS),
    row(NFTABLES, "nodeport-ips", "--nodeport-addresses"),
    row(NFTABLES, "hairpin-connections", HAIRPIN),
    row(NFTABLES, "service-ips", ADDRESSES),
    row(NFTABLES, "service-nodeports", NODE_PORTS),
    row(NFTABLES, "firewall-ips", RANGES),
    row(NFTABLES, "no-endpoint-services", UNSERVED),
    row(NFTABLES, "no-endpoint-nodeports", UNSERVED),
    row(NFTABLES, "reject-chain", UNSERVED),
    row(NFTABLES, "localhost-nodeports", ON_LOCALHOST),
    row(NFTABLES, "localhost-nodeports-check", ON_LOCALHOST),
    row(NFTABLES, "services", ADDRESSES),
    row(NFTABLES, "masquerading", MASQUERADE),
    row(NFTABLES, "mark-for-masquerade", MARK),
    row(NFTABLES, "nodeport-endpoints-check", UNSERVED),
    row(NFTABLES, "service-endpoints-check", UNSERVED),
    row(NFTABLES, "firewall-check", RANGES),
    row(NFTABLES, "firewall-allow-check", RANGES),
    row(
        NFTABLES,
        "cluster-ips-check",
        "kube-proxy: ports that no Service exposes at its ClusterIP; ServiceCIDRs: addresses that no Service has",
    ),
    row(NFTABLES, "nat-prerouting", ENTRY),
    row(NFTABLES, "nat-output", ENTRY),
    row(NFTABLES, "nat-postrouting", MASQUERADE),
    row(NFTABLES, "filter-prerouting-pre-dnat", RANGES),
    row(NFTABLES, "filter-prerouting", RANGES),
    row(NFTABLES, "filter-output-pre-dnat", RANGES),
    row(NFTABLES, "filter-input", UNSERVED),
    row(NFTABLES, "filter-forward", UNSERVED),
    row(NFTABLES, "filter-output", ENTRY),
    row(NFTABLES, "filter-output-post-dnat", UNSERVED),
    beginning(NFTABLES, "endpoints-", ENDPOINTS),
    beginning(NFTABLES, "service-", ENDPOINTS),
    beginning(NFTABLES, "local-", LOCAL_ENDPOINTS),
    beginning(NFTABLES, "external-", OUTSIDE),
    beginning(NFTABLES, "firewall-", RANGES),
    beginning(NFTABLES, "endpoint-", AFFINITY),
    beginning(NFTABLES, "affinity-", AFFINITY),
    // userspace mode.
    row(NAT, "KUBE-PORTALS-CONTAINER", PORTALS),
    row(NAT, "KUBE-PORTALS-HOST", PORTALS),
    row(NAT, "KUBE-NODEPORT-CONTAINER", PORTALS_NODE_PORTS),
    row(NAT, "KUBE-NODEPORT-HOST", PORTALS_NODE_PORTS),
    row(FILTER, "KUBE-NODEPORT-NON-LOCAL", PORTALS_NODE_PORTS),
    row(USERSPACE, "prerouting", PORTALS),
    row(USERSPACE, "output", PORTALS),
    row(USERSPACE, "portals", PORTALS),
    row(USERSPACE, "portals-pods", PORTALS),
    row(USERSPACE, "portals-node", PORTALS),
    row(USERSPACE, "nodeports", PORTALS_NODE_PORTS),
    row(USERSPACE, "nodeports-pods", PORTALS_NODE_PORTS),
    row(USERSPACE, "nodeports-node", PORTALS_NODE_PORTS),
];

/// The kernel's longest set name.
const MAX_SET: usize = 31;

/// What something comes from; `None` if it is not a kube-proxy's.
pub(crate) fn origin_of(space: Space<'_>, name: &str) -> Option<&'static str> {
    let exact = ROWS.iter().find(|row| {
        row.space == space && !row.is_prefix && (row.name == name || is_set_of(space, row, name))
    });
    let found = exact.or_else(|| {
        let mut rows = ROWS.iter();
        rows.find(|row| row.space == space && row.is_prefix && name.starts_with(row.name))
    });
    match found {
        Some(row) => Some(row.says),
        // Its sets are named as the ipsets; source ranges are one for each length of prefix.
        None if space == SHIM => {
            let (front, last) = name.rsplit_once('-').unwrap_or((name, ""));
            let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
            let ranges = is_number && front.contains("LOAD-BALANCER-SOURCE-CID");
            origin_of(SET, if ranges { front } else { name })
        }
        None => None,
    }
}

/// IPv6's sets have another prefix, and are cut to what the kernel takes.
fn is_set_of(space: Space<'_>, row: &Row, name: &str) -> bool {
    let suffix = (space == SET).then(|| row.name.strip_prefix("KUBE-"));
    let Some(suffix) = suffix.flatten() else {
        return false;
    };
    let Some(own) = name.strip_prefix("KUBE-6-") else {
        return false;
    };
    own == suffix || (name.len() == MAX_SET && suffix.starts_with(own))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use footprint::Footprints;
    use proxy::IpFamily;

    use super::*;

    const MODES: Footprints = &[
        &proxy_ipvs::FOOTPRINT,
        &proxy_iptables::FOOTPRINT,
        &proxy_userspace::FOOTPRINT,
        &proxy_nftables::FOOTPRINT,
    ];

    /// All that modes say they leave.
    fn named() -> BTreeSet<(String, String)> {
        let mut all = BTreeSet::new();
        for mode in MODES {
            for (table, chain) in mode.chains.iter().chain(mode.prefixes) {
                all.insert((table.to_string(), (*chain).to_owned()));
            }
            for jump in mode.jumps {
                all.insert((jump.table.to_string(), jump.to.to_owned()));
            }
            let sets = IpFamily::ALL.into_iter().flat_map(mode.sets);
            all.extend(sets.map(|set| ("ipset".to_owned(), set.name)));
            all.extend(
                mode.link
                    .map(|link| ("link".to_owned(), link.name.to_owned())),
            );
        }
        all
    }

    fn origin_in(space: &str, name: &str) -> Option<&'static str> {
        origin_of(
            match space {
                "ipset" => Space::Ipset,
                "link" => Space::Link,
                table => Space::Iptables(table),
            },
            name,
        )
    }

    #[test]
    fn everything_that_a_mode_leaves_has_an_origin() {
        let all = named();
        assert!(all.len() > 60, "{}", all.len());
        for (space, name) in &all {
            assert!(origin_in(space, name).is_some(), "{space} {name}");
        }
    }

    #[test]
    fn everything_in_the_tables_of_nftables_has_an_origin() {
        let mut tables = BTreeSet::new();
        for family in IpFamily::ALL {
            for (table, names) in [
                (proxy_nftables::TABLE, proxy_nftables::names(family)),
                ("kube-proxy-ipvs", proxy_ipvs::native_names(family)),
                (
                    "kube-proxy-userspace",
                    proxy_userspace::native_names(family),
                ),
            ] {
                assert!(names.len() >= 8, "{table}: {names:?}");
                tables.insert(table);
                for name in names {
                    assert!(
                        origin_of(Space::Nftables(table), &name).is_some(),
                        "{table} {name}"
                    );
                }
            }
        }
        let left = MODES.iter().flat_map(|mode| mode.nft_tables);
        assert_eq!(tables, left.copied().collect());
    }

    #[test]
    fn upstreams_own_tables_have_origins_too() {
        // Written by upstream's kube-proxy 1.36.2.
        const DUMPS: [&str; 4] = [
            include_str!("../../../../integration/golden/cases/nftables/affinity-clientip/nft-ip"),
            include_str!(
                "../../../../integration/golden/cases/nftables/lb-sourceranges-with-node/nft-ip"
            ),
            include_str!("../../../../integration/golden/cases/nftables/dualstack/nft-ip6"),
            include_str!("../../../../integration/golden/cases/nftables/itp-local/nft-ip"),
        ];
        for dump in DUMPS {
            let lines = dump.lines().map(str::trim);
            let names = lines.filter_map(|line| {
                let words = line.strip_suffix(" {")?;
                let (kind, name) = words.split_once(' ')?;
                matches!(kind, "chain" | "set" | "map").then_some(name)
            });
            let names: BTreeSet<&str> = names.collect();
            assert!(names.len() > 20, "{names:?}");
            for name in names {
                assert!(origin_of(NFTABLES, name).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn what_is_not_a_kube_proxys_has_none() {
        for (space, name) in [
            (NAT, "DOCKER"),
            (FILTER, "DOCKER-USER"),
            (FILTER, "KUBE-SVC-LOLE4ISW44XBNF3G"),
            (NAT, "cali-PREROUTING"),
            (SET, "cali40all-ipam-pools"),
            (SET, "KUBE-6-LOAD"),
            (Space::Nftables("firewalld"), "services"),
            (SHIM, "KUBE-SERVICES-8"),
        ] {
            assert_eq!(origin_of(space, name), None, "{name}");
        }
    }

    #[test]
    fn no_row_hides_another() {
        for (at, row) in ROWS.iter().enumerate() {
            let said = origin_of(row.space, row.name);
            assert_eq!(said, Some(row.says), "{}", row.name);
            let mut others = ROWS.iter().skip(at + 1);
            assert!(
                !others.any(|other| other.space == row.space && other.name == row.name),
                "{} is there twice",
                row.name
            );
        }
    }
}
