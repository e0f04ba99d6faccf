//! The footprint of one mode.

use std::net::{IpAddr, SocketAddr};

use inet::{IpFamily, Protocol};
use iptables::{Jump, Table};

use crate::origin::Origin;

/// Chains that are the kubelet's, even where a mode makes or fills them, too. They stay, as
/// upstream leaves them.
const KUBELET: [&str; 4] = [
    "KUBE-FIREWALL",
    "KUBE-MARK-DROP",
    "KUBE-KUBELET-CANARY",
    "KUBE-IPTABLES-HINT",
];

/// Reports whether a chain is the kubelet's.
pub fn is_kubelets(chain: &str) -> bool {
    KUBELET.contains(&chain)
}

/// What one mode leaves, older versions included.
#[derive(Debug, Clone, Copy)]
pub struct Footprint {
    /// The name of the mode, as `--proxy-mode` has it.
    pub mode: &'static str,
    /// Chains of its own.
    pub chains: &'static [(Table, &'static str)],
    /// How the names of further ones begin.
    pub prefixes: &'static [(Table, &'static str)],
    /// Its rules in built-in chains.
    pub jumps: &'static [Jump],
    /// How the comments of those begin that older versions had.
    pub older_comments: &'static [&'static str],
    /// Its tables in nftables, by the name that they have in the families `ip` and `ip6`.
    pub nft_tables: &'static [&'static str],
    /// Its ipsets of a family.
    pub sets: fn(IpFamily) -> Vec<OwnSet>,
    /// The name of its set of cluster IPs in a family: an ipset, or a set in its tables of nftables.
    pub cluster_ips: fn(IpFamily) -> Option<String>,
    /// Its link.
    pub link: Option<Link>,
    /// Its virtual servers, if it makes any.
    pub virtual_servers: Option<VirtualServers>,
    /// Who carries what it leads packets to.
    pub served_by: ServedBy,
    /// Origins of its chains, and of what is in its tables of nftables.
    pub origins: &'static [Origin],
}

/// Who carries the packets of a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedBy {
    /// The kernel: what is left goes on serving.
    Kernel,
    /// The mode's process: what is left leads to nobody.
    Process,
}

/// An ipset of a mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnSet {
    /// Its name.
    pub name: String,
    /// What its members say of other things.
    pub says: Says,
    /// The object or flag that its members come from.
    pub origin: &'static str,
}

/// What the members of an ipset say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// Nothing.
    Nothing,
    /// Each address and port is a virtual server of the mode.
    VirtualServers,
    /// Each is a port of this protocol that the mode serves at the node's addresses.
    NodePorts(Protocol),
    /// Each is an address that was bound to the mode's link.
    Bound,
}

/// A link that holds service addresses, as addresses or as local routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Its name. One that is a dummy goes with all it holds.
    pub name: &'static str,
    /// The number (`rtm_protocol`) that tells the mode's routes from the kernel's.
    pub route_protocol: u8,
    /// An address that is no Service's, and is there for the routes.
    pub anchor: Option<IpAddr>,
    /// The objects that its addresses come from.
    pub origin: &'static str,
}

/// What tells virtual servers apart, beside the mode's link and sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualServers {
    /// The bit of the flags that notes one as made for a NodePort.
    pub node_port_flag: u32,
    /// One without destinations that the mode asks the kernel with.
    pub probe: Option<(SocketAddr, Protocol)>,
}

impl Footprint {
    /// That of a mode which leaves nothing.
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

    /// Whether a chain is this mode's, and not the kubelet's as well.
    pub fn has_chain(&self, table: Table, name: &str) -> bool {
        let is_named = self.chains.contains(&(table, name));
        let mut prefixes = self.prefixes.iter();
        let has = is_named || prefixes.any(|(of, prefix)| *of == table && name.starts_with(prefix));
        has && !is_kubelets(name)
    }

    /// Whether the comment of a rule in a built-in chain is one of this mode's.
    pub(crate) fn has_comment(&self, comment: &str) -> bool {
        let mut jumps = self.jumps.iter();
        let mut older = self.older_comments.iter();
        jumps.any(|jump| jump.comment == Some(comment))
            || older.any(|known| comment.starts_with(known))
    }
}

impl PartialEq for Footprint {
    /// There is one for each mode.
    fn eq(&self, other: &Self) -> bool {
        self.mode == other.mode
    }
}

impl Eq for Footprint {}

/// Those of several modes.
pub type Footprints = &'static [&'static Footprint];

/// The names of their links: what these hold are no addresses of the node.
pub fn links(modes: Footprints) -> Vec<&'static str> {
    let links = modes.iter().filter_map(|mode| mode.link);
    links.map(|link| link.name).collect()
}

/// That of upstream's nftables mode.
pub const NFTABLES: Footprint = Footprint {
    nft_tables: &["kube-proxy"],
    cluster_ips: |_| Some("cluster-ips".to_owned()),
    ..Footprint::none("nftables")
};
