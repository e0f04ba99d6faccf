//! The footprint of one mode: the names that the mode uses in the kernel.

use std::net::{IpAddr, SocketAddr};

use inet::{IpFamily, Protocol};
use iptables::{Jump, Table};

use crate::origin::Origin;

/// Chains of the kubelet. Some modes also create or fill them. A cleanup keeps these chains, as
/// upstream does.
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
    /// Name of the mode, as in `--proxy-mode`.
    pub mode: &'static str,
    /// Chains of the mode with fixed names.
    pub chains: &'static [(Table, &'static str)],
    /// Prefixes of the names of all other chains of the mode.
    pub prefixes: &'static [(Table, &'static str)],
    /// Rules of the mode in built-in chains.
    pub jumps: &'static [Jump],
    /// Prefixes of the comments that older versions wrote on such rules.
    pub older_comments: &'static [&'static str],
    /// Names of the mode's nftables tables in the families `ip` and `ip6`.
    pub nft_tables: &'static [&'static str],
    /// Returns the mode's ipsets of a family.
    pub sets: fn(IpFamily) -> Vec<OwnSet>,
    /// Returns the name of the mode's set of cluster IPs in a family. It is an ipset, or a set in
    /// the mode's nftables table.
    pub cluster_ips: fn(IpFamily) -> Option<String>,
    /// Link that holds the mode's service addresses.
    pub link: Option<Link>,
    /// Properties of the mode's virtual servers, or `None` for a mode without virtual servers.
    pub virtual_servers: Option<VirtualServers>,
    /// Receiver of the redirected packets: the kernel or the process.
    pub served_by: ServedBy,
    /// Origins of the mode's chains, and of all objects in its nftables tables.
    pub origins: &'static [Origin],
}

/// Receiver of the packets that a mode's entries redirect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedBy {
    /// The kernel. Leftover entries continue to serve.
    Kernel,
    /// The mode's process. When it ends, packets that its entries redirect are lost.
    Process,
}

/// An ipset of a mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnSet {
    /// Name of the ipset.
    pub name: String,
    /// Meaning of the set's members as evidence.
    pub says: Says,
    /// Object or flag from which the members are derived.
    pub origin: &'static str,
}

/// Meaning of an ipset's members as evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// The members are not evidence.
    Nothing,
    /// Each member is the address and port of a virtual server.
    VirtualServers,
    /// Each member is a port of this protocol that the mode serves on the node's addresses.
    NodePorts(Protocol),
    /// Each member is an address that was bound to the mode's link.
    Bound,
    /// Each member maps an address and port to a firewall mark. The mark names a virtual server.
    Marks,
}

/// A link that holds service addresses, as interface addresses or as local routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Name of the link. If the link is a dummy, cleanup deletes it with its addresses and routes.
    pub name: &'static str,
    /// Protocol number (`rtm_protocol`) of the mode's routes. The kernel's own routes have another
    /// number.
    pub route_protocol: u8,
    /// Source address of the routes, which belongs to no Service.
    pub anchor: Option<IpAddr>,
    /// Objects from which the link's addresses are derived.
    pub origin: &'static str,
}

/// Properties that identify a mode's virtual servers, in addition to its link and sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualServers {
    /// Flag bit of virtual servers whose ownership no set proves: NodePorts and firewall marks.
    pub ownership_flag: u32,
    /// Virtual server without destinations that the mode creates to probe the kernel.
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

    /// Reports whether a chain belongs to this mode and not to the kubelet.
    pub fn has_chain(&self, table: Table, name: &str) -> bool {
        let is_named = self.chains.contains(&(table, name));
        let mut prefixes = self.prefixes.iter();
        let has = is_named || prefixes.any(|(of, prefix)| *of == table && name.starts_with(prefix));
        has && !is_kubelets(name)
    }

    /// Reports whether a rule in a built-in chain has one of this mode's comments.
    pub(crate) fn has_comment(&self, comment: &str) -> bool {
        let mut jumps = self.jumps.iter();
        let mut older = self.older_comments.iter();
        jumps.any(|jump| jump.comment == Some(comment))
            || older.any(|known| comment.starts_with(known))
    }
}

impl PartialEq for Footprint {
    /// Compares the modes' names, because each mode has only one footprint.
    fn eq(&self, other: &Self) -> bool {
        self.mode == other.mode
    }
}

impl Eq for Footprint {}

/// Footprints of several modes.
pub type Footprints = &'static [&'static Footprint];

/// Returns the names of the modes' links. The addresses on these links do not belong to the node.
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
