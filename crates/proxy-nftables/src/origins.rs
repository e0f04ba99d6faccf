//! Origins of this mode's objects in the kernel: for each name, the fields of Kubernetes objects or
//! the flags that need the object.

use footprint::origin::{
    ADDRESSES, CLUSTER_IPS, ENDPOINTS, ENTRY, HAIRPIN, LOCAL_ENDPOINTS, MARK, MASQUERADE,
    NODE_PORTS, OUTSIDE, Origin, RANGES, Space, UNSERVED,
};

use crate::TABLE;

/// The nftables table that contains this mode's objects.
const NFTABLES: Space<'static> = Space::Nftables(TABLE);
const ON_LOCALHOST: &str = "Services: spec.ports[].nodePort, which nobody serves on localhost; --nodeport-addresses, \
                            --feature-gates=KubeProxyNFTablesLocalhostNodePorts";
const AFFINITY: &str = "Services: sessionAffinity: ClientIP";

/// Origins of objects, by name or by the beginning of the name. If one name begins with another
/// name, the longer name comes first.
pub(crate) const ORIGINS: [Origin; 36] = [
    Origin::of(NFTABLES, "cluster-ips", CLUSTER_IPS),
    Origin::of(NFTABLES, "nodeport-ips", "--nodeport-addresses"),
    Origin::of(NFTABLES, "hairpin-connections", HAIRPIN),
    Origin::of(NFTABLES, "service-ips", ADDRESSES),
    Origin::of(NFTABLES, "service-nodeports", NODE_PORTS),
    Origin::of(NFTABLES, "firewall-ips", RANGES),
    Origin::of(NFTABLES, "no-endpoint-services", UNSERVED),
    Origin::of(NFTABLES, "no-endpoint-nodeports", UNSERVED),
    Origin::of(NFTABLES, "reject-chain", UNSERVED),
    Origin::of(NFTABLES, "localhost-nodeports", ON_LOCALHOST),
    Origin::of(NFTABLES, "localhost-nodeports-check", ON_LOCALHOST),
    Origin::of(NFTABLES, "services", ADDRESSES),
    Origin::of(NFTABLES, "masquerading", MASQUERADE),
    Origin::of(NFTABLES, "mark-for-masquerade", MARK),
    Origin::of(NFTABLES, "nodeport-endpoints-check", UNSERVED),
    Origin::of(NFTABLES, "service-endpoints-check", UNSERVED),
    Origin::of(NFTABLES, "firewall-check", RANGES),
    Origin::of(NFTABLES, "firewall-allow-check", RANGES),
    Origin::of(
        NFTABLES,
        "cluster-ips-check",
        "kube-proxy: ports that no Service exposes at its ClusterIP; ServiceCIDRs: addresses that no Service has",
    ),
    Origin::of(NFTABLES, "nat-prerouting", ENTRY),
    Origin::of(NFTABLES, "nat-output", ENTRY),
    Origin::of(NFTABLES, "nat-postrouting", MASQUERADE),
    Origin::of(NFTABLES, "filter-prerouting-pre-dnat", RANGES),
    Origin::of(NFTABLES, "filter-prerouting", RANGES),
    Origin::of(NFTABLES, "filter-output-pre-dnat", RANGES),
    Origin::of(NFTABLES, "filter-input", UNSERVED),
    Origin::of(NFTABLES, "filter-forward", UNSERVED),
    Origin::of(NFTABLES, "filter-output", ENTRY),
    Origin::of(NFTABLES, "filter-output-post-dnat", UNSERVED),
    Origin::beginning(NFTABLES, "endpoints-", ENDPOINTS),
    Origin::beginning(NFTABLES, "service-", ENDPOINTS),
    Origin::beginning(NFTABLES, "local-", LOCAL_ENDPOINTS),
    Origin::beginning(NFTABLES, "external-", OUTSIDE),
    Origin::beginning(NFTABLES, "firewall-", RANGES),
    Origin::beginning(NFTABLES, "endpoint-", AFFINITY),
    Origin::beginning(NFTABLES, "affinity-", AFFINITY),
];
