//! Origins of the names that this mode uses in the kernel: the fields of Kubernetes objects or the
//! flags for which each name exists.

use footprint::origin::{FILTER, NAT, Origin, Space};

use super::nftables::TABLE;

/// The nftables table that contains this mode's objects.
const USERSPACE: Space<'static> = Space::Nftables(TABLE);
const PORTALS: &str = "Services: their addresses, led to a listening port of kube-proxy";
const PORTALS_NODE_PORTS: &str =
    "Services: spec.ports[].nodePort, led to a listening port of kube-proxy";

/// Origins of this mode's chains and maps, each by its whole name.
pub(super) const ORIGINS: [Origin; 13] = [
    Origin::of(NAT, "KUBE-PORTALS-CONTAINER", PORTALS),
    Origin::of(NAT, "KUBE-PORTALS-HOST", PORTALS),
    Origin::of(NAT, "KUBE-NODEPORT-CONTAINER", PORTALS_NODE_PORTS),
    Origin::of(NAT, "KUBE-NODEPORT-HOST", PORTALS_NODE_PORTS),
    Origin::of(FILTER, "KUBE-NODEPORT-NON-LOCAL", PORTALS_NODE_PORTS),
    Origin::of(USERSPACE, "prerouting", PORTALS),
    Origin::of(USERSPACE, "output", PORTALS),
    Origin::of(USERSPACE, "portals", PORTALS),
    Origin::of(USERSPACE, "portals-pods", PORTALS),
    Origin::of(USERSPACE, "portals-node", PORTALS),
    Origin::of(USERSPACE, "nodeports", PORTALS_NODE_PORTS),
    Origin::of(USERSPACE, "nodeports-pods", PORTALS_NODE_PORTS),
    Origin::of(USERSPACE, "nodeports-node", PORTALS_NODE_PORTS),
];
