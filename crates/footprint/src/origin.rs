//! Origins of the names that modes use in the kernel: the Kubernetes objects or flags that cause an
//! entry with this name. Each name of a mode has a row, including names that only older upstream
//! versions use.

use inet::IpFamily;

use crate::{Footprint, Footprints};

/// Kind of a kernel object that has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space<'a> {
    /// A chain in the iptables table with this name.
    Iptables(&'a str),
    /// An ipset of the mode.
    Ipset,
    /// A chain, set or map in the nf\_tables table with this name.
    Nftables(&'a str),
    /// A network link of the mode.
    Link,
}

/// Cause of the entries with one name, or with a common prefix of their names.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Kind of the objects that have the name.
    pub space: Space<'static>,
    /// The whole name, or the common prefix of the names.
    pub name: &'static str,
    is_prefix: bool,
    /// Kubernetes objects and flags that cause such an entry, as text for the operator.
    pub says: &'static str,
}

impl Origin {
    /// Creates the origin of a single name.
    pub const fn of(space: Space<'static>, name: &'static str, says: &'static str) -> Self {
        Self {
            space,
            name,
            is_prefix: false,
            says,
        }
    }

    /// Creates the origin of all names that begin with `name`.
    pub const fn beginning(space: Space<'static>, name: &'static str, says: &'static str) -> Self {
        Self {
            is_prefix: true,
            ..Self::of(space, name, says)
        }
    }
}

/// Kind of the chains in the iptables table nat.
pub const NAT: Space<'static> = Space::Iptables("nat");
/// Kind of the chains in the iptables table filter.
pub const FILTER: Space<'static> = Space::Iptables("filter");
/// Kind of the chains in the iptables table mangle.
pub const MANGLE: Space<'static> = Space::Iptables("mangle");

// Texts of origins that several modes use.

/// Origin of entries that contain addresses of Services.
pub const ADDRESSES: &str =
    "Services: spec.clusterIPs, spec.externalIPs, status.loadBalancer.ingress";
/// Origin of entries that contain NodePorts.
pub const NODE_PORTS: &str = "Services: spec.ports[].nodePort; --nodeport-addresses";
/// Origin of entries that contain cluster IPs.
pub const CLUSTER_IPS: &str = "Services: spec.clusterIPs; whom it masquerades: --cluster-cidr, --detect-local-mode, --masquerade-all";
/// Origin of entries that contain source ranges of load balancers.
pub const RANGES: &str = "Services: spec.loadBalancerSourceRanges";
/// Origin of entries that contain health-check node ports.
pub const HEALTH: &str = "Services: spec.healthCheckNodePort";
/// Origin of rules that masquerade marked packets.
pub const MASQUERADE: &str = "kube-proxy: masquerades what was marked; --iptables-masquerade-bit";
/// Origin of rules that mark packets for masquerading.
pub const MARK: &str = "kube-proxy: marks what is to be masqueraded; --masquerade-all, --cluster-cidr, --detect-local-mode, \
                        externalTrafficPolicy";
/// Origin of entries for endpoints that connect to themselves through their Service.
pub const HAIRPIN: &str = "EndpointSlices: endpoints of this node, which may be sent to themselves";
/// Origin of entries for Services without endpoints.
pub const UNSERVED: &str = "EndpointSlices: no endpoint for this traffic is ready";
/// Origin of entries that contain ready endpoints.
pub const ENDPOINTS: &str = "EndpointSlices: endpoints that are ready";
/// Origin of entries that contain endpoints on this node.
pub const LOCAL_ENDPOINTS: &str =
    "EndpointSlices: endpoints of this node; internalTrafficPolicy or externalTrafficPolicy: Local";
/// Origin of entries for external traffic to Services.
pub const OUTSIDE: &str = "Services: externalTrafficPolicy";
/// Origin of rules that accept forwarded traffic.
pub const FORWARD: &str = "kube-proxy: lets traffic of Services pass";
/// Origin of the base chains, which packets pass first.
pub const ENTRY: &str = "kube-proxy: where packets come in";
/// End of the origin text for each rule that redirects packets to a port on which the daemon
/// listens.
pub const LISTENING: &str = "led to a listening port of kube-proxy";

const KUBELET: &str = "the kubelet's";
/// Origins of the kubelet's chains that iptables mode and IPVS mode use.
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

/// Returns the origin of a name. Returns `None` if these modes and the kubelet do not use the name.
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
            // A set in the mode's nftables table has the name of the ipset with the same meaning.
            // For source ranges, each prefix length has its own set, whose name ends in the length.
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

/// Returns the text of the row with this name, or otherwise of the first row whose prefix matches.
fn find(origins: &[Origin], space: Space<'_>, name: &str) -> Option<&'static str> {
    let here = || origins.iter().filter(|row| row.space == space);
    let whole = here().find(|row| !row.is_prefix && row.name == name);
    let row = whole.or_else(|| here().find(|row| row.is_prefix && name.starts_with(row.name)))?;
    Some(row.says)
}
