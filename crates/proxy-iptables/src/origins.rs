//! Origins of this mode's chains: for each chain name, the Kubernetes objects or flags that need
//! the chain.

use footprint::origin::{
    ADDRESSES, ENDPOINTS, FILTER, FORWARD, HEALTH, LOCAL_ENDPOINTS, MANGLE, MARK, MASQUERADE, NAT,
    NODE_PORTS, OUTSIDE, Origin, RANGES, UNSERVED,
};

const ENDPOINT: &str = "EndpointSlices: one endpoint";
const CANARY: &str = "kube-proxy: tells it whether the table was flushed";

/// One row for each chain name or name prefix. If one prefix begins with another prefix, the longer
/// prefix comes first.
pub(crate) const ORIGINS: [Origin; 18] = [
    Origin::of(NAT, "KUBE-SERVICES", ADDRESSES),
    Origin::of(NAT, "KUBE-NODEPORTS", NODE_PORTS),
    Origin::of(NAT, "KUBE-POSTROUTING", MASQUERADE),
    Origin::of(NAT, "KUBE-MARK-MASQ", MARK),
    Origin::beginning(NAT, "KUBE-SVC-", ENDPOINTS),
    Origin::beginning(NAT, "KUBE-SVL-", LOCAL_ENDPOINTS),
    Origin::beginning(NAT, "KUBE-XLB-", LOCAL_ENDPOINTS),
    Origin::beginning(NAT, "KUBE-SEP-", ENDPOINT),
    Origin::beginning(NAT, "KUBE-FW-", RANGES),
    Origin::beginning(NAT, "KUBE-EXT-", OUTSIDE),
    Origin::of(FILTER, "KUBE-SERVICES", UNSERVED),
    Origin::of(FILTER, "KUBE-EXTERNAL-SERVICES", UNSERVED),
    Origin::of(FILTER, "KUBE-NODEPORTS", HEALTH),
    Origin::of(FILTER, "KUBE-FORWARD", FORWARD),
    Origin::of(FILTER, "KUBE-PROXY-FIREWALL", RANGES),
    Origin::of(NAT, "KUBE-PROXY-CANARY", CANARY),
    Origin::of(FILTER, "KUBE-PROXY-CANARY", CANARY),
    Origin::of(MANGLE, "KUBE-PROXY-CANARY", CANARY),
];
