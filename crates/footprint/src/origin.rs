//! Origins of what modes leave in the kernel: the object or flag that each name comes from. A mode
//! brings a row for each of its names, upstream's older ones included.

use inet::IpFamily;

use crate::{Footprint, Footprints};

/// The place of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space<'a> {
    /// A chain of this table of iptables.
    Iptables(&'a str),
    /// An ipset.
    Ipset,
    /// A chain, set or map of this table of nf\_tables.
    Nftables(&'a str),
    /// A network link.
    Link,
}

/// The origin of a name, or of all names that begin alike.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// The place of the name.
    pub space: Space<'static>,
    /// The name, or its beginning.
    pub name: &'static str,
    is_prefix: bool,
    /// The objects and flags.
    pub says: &'static str,
}

impl Origin {
    /// Says where a name comes from.
    pub const fn of(space: Space<'static>, name: &'static str, says: &'static str) -> Self {
        Self {
            space,
            name,
            is_prefix: false,
            says,
        }
    }

    /// Says where names with this beginning come from.
    pub const fn beginning(space: Space<'static>, name: &'static str, says: &'static str) -> Self {
        Self {
            is_prefix: true,
            ..Self::of(space, name, says)
        }
    }
}

/// Table nat of iptables.
pub const NAT: Space<'static> = Space::Iptables("nat");
/// Table filter of iptables.
pub const FILTER: Space<'static> = Space::Iptables("filter");
/// Table mangle of iptables.
pub const MANGLE: Space<'static> = Space::Iptables("mangle");

// Origins that several modes have.

/// Addresses of Services.
pub const ADDRESSES: &str =
    "Services: spec.clusterIPs, spec.externalIPs, status.loadBalancer.ingress";
/// NodePorts.
pub const NODE_PORTS: &str = "Services: spec.ports[].nodePort; --nodeport-addresses";
/// Cluster IPs.
pub const CLUSTER_IPS: &str = "Services: spec.clusterIPs; whom it masquerades: --cluster-cidr, --detect-local-mode, --masquerade-all";
/// Source ranges.
pub const RANGES: &str = "Services: spec.loadBalancerSourceRanges";
/// Health-check node ports.
pub const HEALTH: &str = "Services: spec.healthCheckNodePort";
/// Masquerading of marked packets.
pub const MASQUERADE: &str = "kube-proxy: masquerades what was marked; --iptables-masquerade-bit";
/// Marks for masquerading.
pub const MARK: &str = "kube-proxy: marks what is to be masqueraded; --masquerade-all, --cluster-cidr, --detect-local-mode, \
                        externalTrafficPolicy";
/// Endpoints that reach themselves by their Service.
pub const HAIRPIN: &str = "EndpointSlices: endpoints of this node, which may be sent to themselves";
/// Services without endpoints.
pub const UNSERVED: &str = "EndpointSlices: no endpoint for this traffic is ready";
/// Ready endpoints.
pub const ENDPOINTS: &str = "EndpointSlices: endpoints that are ready";
/// Endpoints of this node.
pub const LOCAL_ENDPOINTS: &str =
    "EndpointSlices: endpoints of this node; internalTrafficPolicy or externalTrafficPolicy: Local";
/// Traffic from outside of the cluster.
pub const OUTSIDE: &str = "Services: externalTrafficPolicy";
/// Forwarding.
pub const FORWARD: &str = "kube-proxy: lets traffic of Services pass";
/// First chains.
pub const ENTRY: &str = "kube-proxy: where packets come in";
/// Part of every origin that leads to a port of the daemon's own.
pub const LISTENING: &str = "led to a listening port of kube-proxy";

const KUBELET: &str = "the kubelet's";
/// Chains of the kubelet, which the modes of old rely on.
const KUBELETS: [Origin; 6] = [
    Origin::of(NAT, "KUBE-MARK-DROP", KUBELET),
    Origin::of(
        FILTER,
        "KUBE-FIREWALL",
        "the kubelet's; --iptables-localhost-nodeports",
    ),
    Origin::of(NAT, "KUBE-KUBELET-CANARY", KUBELET),
    Origin::of(FILTER, "KUBE-KUBELET-CANARY", KUBELET),
    Origin::of(MANGLE, "KUBE-KUBELET-CANARY", KUBELET),
    Origin::of(MANGLE, "KUBE-IPTABLES-HINT", KUBELET),
];

/// Returns the origin of a name; `None` if it belongs neither to these modes nor to the kubelet.
pub fn origin_of(modes: Footprints, space: Space<'_>, name: &str) -> Option<&'static str> {
    let mut all = modes.iter();
    let own = all.find_map(|mode| mode.origin_of(space, name));
    own.or_else(|| find(&KUBELETS, space, name))
}

impl Footprint {
    fn origin_of(&self, space: Space<'_>, name: &str) -> Option<&'static str> {
        find(self.origins, space, name).or_else(|| match space {
            Space::Ipset => self.origin_of_set(name),
            Space::Link => {
                let link = self.link.filter(|link| link.name == name)?;
                Some(link.origin)
            }
            // Its sets are named as the ipsets; source ranges are one for each length of prefix.
            Space::Nftables(table) if self.nft_tables.contains(&table) => {
                let is_number = |text: &str| text.parse::<u8>().is_ok();
                let (front, last) = name.rsplit_once('-')?;
                let by_length = || self.origin_of_set(front).filter(|_| is_number(last));
                self.origin_of_set(name).or_else(by_length)
            }
            Space::Nftables(_) | Space::Iptables(_) => None,
        })
    }

    fn origin_of_set(&self, name: &str) -> Option<&'static str> {
        let mut sets = IpFamily::ALL.into_iter().flat_map(self.sets);
        Some(sets.find(|set| set.name == name)?.origin)
    }
}

/// Prefers the whole name; of beginnings, the first.
fn find(origins: &[Origin], space: Space<'_>, name: &str) -> Option<&'static str> {
    let here = || origins.iter().filter(|row| row.space == space);
    let whole = here().find(|row| !row.is_prefix && row.name == name);
    let row = whole.or_else(|| here().find(|row| row.is_prefix && name.starts_with(row.name)))?;
    Some(row.says)
}
