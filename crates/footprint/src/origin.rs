//! Origins of the names that modes use in the kernel: the Kubernetes objects and flags that cause
//! an entry with this name. Names that only older upstream versions use have an origin as well.

use inet::IpFamily;

use crate::{Footprint, Footprints};

/// Kind of a named kernel object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space<'a> {
    /// A chain in this iptables table.
    Iptables(&'a str),
    /// An ipset of the mode.
    Ipset,
    /// A chain, set or map in this nf\_tables table.
    Nftables(&'a str),
    /// A network link of the mode.
    Link,
}

/// The reason why kernel objects with a name, or with a common name prefix, exist.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Kind of the named objects.
    pub space: Space<'static>,
    /// The whole name, or a prefix that many names share.
    pub name: &'static str,
    is_prefix: bool,
    /// Kubernetes objects and flags that cause these objects, as text for the operator.
    pub says: &'static str,
}

impl Origin {
    /// Creates the origin of the objects with exactly this name.
    pub const fn of(space: Space<'static>, name: &'static str, says: &'static str) -> Self {
        Self {
            space,
            name,
            is_prefix: false,
            says,
        }
    }

    /// Creates the origin of all objects whose names begin with `name`.
    pub const fn beginning(space: Space<'static>, name: &'static str, says: &'static str) -> Self {
        Self {
            is_prefix: true,
            ..Self::of(space, name, says)
        }
    }
}

/// Kind of a chain in the iptables table `nat`.
pub const NAT: Space<'static> = Space::Iptables("nat");
/// Kind of a chain in the iptables table `filter`.
pub const FILTER: Space<'static> = Space::Iptables("filter");
/// Kind of a chain in the iptables table `mangle`.
pub const MANGLE: Space<'static> = Space::Iptables("mangle");

// Origin texts that several modes share.

/// Origin text of kernel entries that contain service addresses.
pub const ADDRESSES: &str =
    "Services: spec.clusterIPs, spec.externalIPs, status.loadBalancer.ingress";
/// Origin text of kernel entries that contain node ports.
pub const NODE_PORTS: &str = "Services: spec.ports[].nodePort; --nodeport-addresses";
/// Origin text of kernel entries that contain cluster IPs.
pub const CLUSTER_IPS: &str = "Services: spec.clusterIPs; whom it masquerades: --cluster-cidr, --detect-local-mode, --masquerade-all";
/// Origin text of kernel entries that contain the source ranges that may use a load balancer.
pub const RANGES: &str = "Services: spec.loadBalancerSourceRanges";
/// Origin text of kernel entries that contain health-check node ports.
pub const HEALTH: &str = "Services: spec.healthCheckNodePort";
/// Origin text of rules that masquerade marked packets.
pub const MASQUERADE: &str = "kube-proxy: masquerades what was marked; --iptables-masquerade-bit";
/// Origin text of rules that mark packets for masquerading.
pub const MARK: &str = "kube-proxy: marks what is to be masqueraded; --masquerade-all, --cluster-cidr, --detect-local-mode, \
                        externalTrafficPolicy";
/// Origin text of entries that match an endpoint's connection to itself through its Service
/// (hairpin).
pub const HAIRPIN: &str = "EndpointSlices: endpoints of this node, which may be sent to themselves";
/// Origin text of entries for Services without ready endpoints.
pub const UNSERVED: &str = "EndpointSlices: no endpoint for this traffic is ready";
/// Origin text of kernel entries that contain ready endpoints.
pub const ENDPOINTS: &str = "EndpointSlices: endpoints that are ready";
/// Origin text of kernel entries that contain endpoints on this node.
pub const LOCAL_ENDPOINTS: &str =
    "EndpointSlices: endpoints of this node; internalTrafficPolicy or externalTrafficPolicy: Local";
/// Origin text of kernel entries for external traffic to Services.
pub const OUTSIDE: &str = "Services: externalTrafficPolicy";
/// Origin text of rules that accept forwarded packets of Services.
pub const FORWARD: &str = "kube-proxy: lets traffic of Services pass";
/// Origin text of the chains in which a packet enters the mode's rules.
pub const ENTRY: &str = "kube-proxy: where packets come in";
/// End of the origin text of each rule that redirects packets to a port on which the daemon
/// listens.
pub const LISTENING: &str = "led to a listening port of kube-proxy";

const KUBELET: &str = "the kubelet's";
/// Origins of the kubelet's chains, some of which modes also use.
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

/// Returns the origin text for a kernel object's name. Returns `None` if neither these modes nor
/// the kubelet use the name.
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
            // A set in the mode's nftables table has the name of the ipset with the same content.
            // Source ranges have one set per prefix length; its name ends in the length.
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

/// Returns the origin text of the row with exactly this name, or else of the first row whose prefix
/// matches.
fn find(origins: &[Origin], space: Space<'_>, name: &str) -> Option<&'static str> {
    let here = || origins.iter().filter(|row| row.space == space);
    let whole = here().find(|row| !row.is_prefix && row.name == name);
    let row = whole.or_else(|| here().find(|row| row.is_prefix && name.starts_with(row.name)))?;
    Some(row.says)
}
