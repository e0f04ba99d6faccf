//! The footprint of one mode: the names that the mode uses in the kernel.

use std::net::{IpAddr, SocketAddr};

use inet::{IpFamily, Protocol};
use iptables::{Jump, Table};

use crate::origin::Origin;

/// Chains of the kubelet. Some modes also create or fill them. Like upstream's cleanup, ours keeps
/// them.
const KUBELET: [&str; 4] = [
    "KUBE-FIREWALL",
    "KUBE-MARK-DROP",
    "KUBE-KUBELET-CANARY",
    "KUBE-IPTABLES-HINT",
];

/// Reports whether a chain belongs to the kubelet.
pub fn is_kubelets(chain: &str) -> bool {
    KUBELET.contains(&chain)
}

/// Names that one mode uses in the kernel, including names of older versions.
#[derive(Debug, Clone, Copy)]
pub struct Footprint {
    /// Name of the mode in `--proxy-mode`.
    pub mode: &'static str,
    /// Chains of the mode with fixed names.
    pub chains: &'static [(Table, &'static str)],
    /// Name prefixes of the mode's other chains.
    pub prefixes: &'static [(Table, &'static str)],
    /// Rules of the mode in built-in chains, which jump to its own chains.
    pub jumps: &'static [Jump],
    /// Prefixes of the comments on such rules that older versions wrote.
    pub older_comments: &'static [&'static str],
    /// Names of the mode's nftables tables in the families `ip` and `ip6`.
    pub nft_tables: &'static [&'static str],
    /// Returns the ipsets that the mode uses in a family.
    pub sets: fn(IpFamily) -> Vec<OwnSet>,
    /// Returns the name of the mode's set of cluster IPs in a family: an ipset, or a set in the
    /// mode's nftables table. Returns `None` if the mode has no such set.
    pub cluster_ips: fn(IpFamily) -> Option<String>,
    /// Link that has the mode's service addresses, if any.
    pub link: Option<Link>,
    /// Properties of the mode's virtual servers, or `None` if the mode has none.
    pub virtual_servers: Option<VirtualServers>,
    /// Receiver of the packets that the mode's entries redirect.
    pub served_by: ServedBy,
    /// Origins of the mode's chains, and of all objects in its nftables tables.
    pub origins: &'static [Origin],
}

/// Receiver of the packets that a mode's entries redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedBy {
    /// The kernel. The kernel continues to serve by entries that the mode leaves behind.
    Kernel,
    /// The mode's process. After it has ended, packets that its entries redirect are lost.
    Process,
}

/// An ipset of a mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnSet {
    /// Name of the ipset.
    pub name: String,
    /// Evidence that the set's members provide.
    pub says: Says,
    /// Object or flag to which the members belong.
    pub origin: &'static str,
}

/// Evidence that the members of an ipset provide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// The members are no evidence.
    Nothing,
    /// Each member is the address and port of a virtual server.
    VirtualServers,
    /// Each member is a port of this protocol that the mode serves on the node's addresses.
    NodePorts(Protocol),
    /// Each member is an address that the mode had on its link.
    Bound,
    /// Each member maps an address and port to the firewall mark of a virtual server.
    Marks,
}

/// A link that holds service addresses, as interface addresses or as local routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Name of the link. If the link is a dummy, the cleanup deletes it with its addresses and
    /// routes.
    pub name: &'static str,
    /// Protocol number (`rtm_protocol`) of the mode's routes. It differs from the protocol number
    /// of the kernel's own routes.
    pub route_protocol: u8,
    /// Source address of the mode's routes. This address belongs to no Service.
    pub anchor: Option<IpAddr>,
    /// Objects to which the link's addresses belong.
    pub origin: &'static str,
}

/// Properties that identify a mode's virtual servers, besides its link and sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualServers {
    /// Flag bit on virtual servers that no set identifies: those of NodePorts and firewall marks.
    pub ownership_flag: u32,
    /// Address of a virtual server that the mode creates to test the kernel. This virtual server
    /// has no destinations.
    pub probe: Option<(SocketAddr, Protocol)>,
}

impl Footprint {
    /// Returns the footprint of a mode without any entries in the kernel.
    pub const fn none(mode: &'static str) -> Self {
        Self {
            mode,
            chains: &[],
            prefixes: &[],
            jumps: &[],
            older_comments: &[],
            nft_tables: &[],
            sets: |_| Vec::new(),
            cluster_ips: |_| None,
            link: None,
            virtual_servers: None,
            served_by: ServedBy::Kernel,
            origins: &[],
        }
    }

    /// Reports whether a chain belongs to this mode and is not one of the kubelet's.
    pub fn has_chain(&self, table: Table, name: &str) -> bool {
        let is_named = self.chains.contains(&(table, name));
        let mut prefixes = self.prefixes.iter();
        let has = is_named || prefixes.any(|(of, prefix)| *of == table && name.starts_with(prefix));
        has && !is_kubelets(name)
    }

    /// Reports whether `comment` is one of this mode's comments on rules in built-in chains.
    pub(crate) fn has_comment(&self, comment: &str) -> bool {
        let mut jumps = self.jumps.iter();
        let mut older = self.older_comments.iter();
        jumps.any(|jump| jump.comment == Some(comment))
            || older.any(|known| comment.starts_with(known))
    }
}

impl PartialEq for Footprint {
    /// Compares the names of the modes, because each mode has only one footprint.
    fn eq(&self, other: &Self) -> bool {
        self.mode == other.mode
    }
}

impl Eq for Footprint {}

/// Footprints of several modes.
pub type Footprints = &'static [&'static Footprint];

/// Returns the names of the modes' links. Addresses on these links are not addresses of the node.
pub fn links(modes: Footprints) -> Vec<&'static str> {
    let links = modes.iter().filter_map(|mode| mode.link);
    links.map(|link| link.name).collect()
}

/// Footprint of upstream's nftables mode.
pub const NFTABLES: Footprint = Footprint {
    nft_tables: &["kube-proxy"],
    cluster_ips: |_| Some("cluster-ips".to_owned()),
    ..Footprint::none("nftables")
};
