//! Origins of IPVS mode's kernel entries: the Kubernetes objects and flags that cause them.

use footprint::origin::{
    ADDRESSES, CLUSTER_IPS, ENTRY, FILTER, FORWARD, HAIRPIN, HEALTH, MANGLE, MARK, MASQUERADE, NAT,
    NODE_PORTS, Origin, RANGES, Space,
};

use crate::native::TABLE;
use crate::rules::{BEFORE_IPVS, OUT_BEFORE_IPVS};
use crate::sets::Set;

/// Kind of an object in the shim's nftables table.
const SHIM: Space<'static> = Space::Nftables(TABLE);
const LOAD_BALANCERS: &str = "Services: status.loadBalancer.ingress";
const OUTSIDE: &str = "Services: externalTrafficPolicy and internalTrafficPolicy: Local";
const UNEXPOSED: &str = "kube-proxy: ports that no Service exposes (kubernetes/kubernetes#72236)";
const NODE_RANGES: &str =
    "Services: spec.loadBalancerSourceRanges that hold no address of this node";

/// Origin of the rules in each chain. For sets, see [`of_set`].
pub(super) const ORIGINS: [Origin; 27] = [
    Origin::of(NAT, "KUBE-SERVICES", ADDRESSES),
    Origin::of(NAT, "KUBE-POSTROUTING", MASQUERADE),
    Origin::of(NAT, "KUBE-MARK-MASQ", MARK),
    Origin::of(FILTER, "KUBE-FORWARD", FORWARD),
    Origin::of(FILTER, "KUBE-PROXY-FIREWALL", RANGES),
    Origin::of(NAT, "KUBE-NODE-PORT", NODE_PORTS),
    Origin::of(NAT, "KUBE-LOAD-BALANCER", LOAD_BALANCERS),
    Origin::of(NAT, "KUBE-FIREWALL", RANGES),
    Origin::of(FILTER, "KUBE-NODE-PORT", HEALTH),
    Origin::of(FILTER, "KUBE-SOURCE-RANGES-FIREWALL", RANGES),
    Origin::of(FILTER, "KUBE-IPVS-FILTER", UNEXPOSED),
    Origin::of(FILTER, "KUBE-IPVS-OUT-FILTER", NODE_RANGES),
    Origin::of(MANGLE, BEFORE_IPVS, OUTSIDE),
    Origin::of(MANGLE, OUT_BEFORE_IPVS, NODE_RANGES),
    Origin::of(SHIM, "nat-prerouting", ENTRY),
    Origin::of(SHIM, "nat-output", ENTRY),
    Origin::of(SHIM, "nat-postrouting", MASQUERADE),
    Origin::of(SHIM, "filter-input", RANGES),
    Origin::of(SHIM, "filter-forward", RANGES),
    Origin::of(SHIM, "filter-input-behind-ipvs", UNEXPOSED),
    Origin::of(SHIM, "filter-input-before-ipvs", OUTSIDE),
    Origin::of(SHIM, "filter-output", NODE_RANGES),
    Origin::of(SHIM, "KUBE-KEEP-DESTINATION", ENTRY),
    Origin::of(SHIM, "KUBE-NODE-PORT", NODE_PORTS),
    Origin::of(SHIM, "KUBE-SOURCE-RANGES-FIREWALL", RANGES),
    Origin::of(SHIM, "KUBE-IPVS-FILTER", UNEXPOSED),
    Origin::of(SHIM, "KUBE-IPVS-OUT-FILTER", NODE_RANGES),
];

/// Returns the origin text of a set's members.
pub(super) fn of_set(set: Set) -> &'static str {
    match set {
        Set::LoopBack => HAIRPIN,
        Set::ClusterIp => CLUSTER_IPS,
        Set::ExternalIp => "Services: spec.externalIPs",
        Set::ExternalIpLocal => "Services: spec.externalIPs, externalTrafficPolicy: Local",
        Set::LoadBalancer => "Services: status.loadBalancer.ingress",
        Set::LoadBalancerLocal => {
            "Services: status.loadBalancer.ingress, externalTrafficPolicy: Local"
        }
        Set::LoadBalancerFirewall | Set::LoadBalancerSourceCidr | Set::LoadBalancerSourceIp => {
            RANGES
        }
        Set::NodePortTcp | Set::NodePortUdp | Set::NodePortSctp => NODE_PORTS,
        Set::NodePortLocalTcp | Set::NodePortLocalUdp | Set::NodePortLocalSctp => {
            "Services: spec.ports[].nodePort, externalTrafficPolicy: Local"
        }
        Set::HealthCheckNodePort => HEALTH,
        Set::IpvsIps => "Services: addresses on kube-ipvs0",
        Set::LocalMark => "Services: externalTrafficPolicy: Local, --ipvs-semantics=exact",
        Set::Unserved => "Services: internalTrafficPolicy: Local, no endpoint on this node",
        Set::UnservedOutside => "Services: externalTrafficPolicy: Local, no endpoint on this node",
    }
}
