//! Kernel footprint of a mode: the names of the chains, sets, tables and links that it creates.

use std::net::{IpAddr, SocketAddr};

use inet::{IpFamily, Protocol};
use iptables::{Jump, Table};

use crate::origin::Origin;

/// Chains of the kubelet that some modes also create or fill. Like upstream's `--cleanup`, ours
/// keeps them.
const KUBELET: [&str; 4] = [
    "KUBE-FIREWALL",
    "KUBE-MARK-DROP",
    "KUBE-KUBELET-CANARY",
    "KUBE-IPTABLES-HINT",
];

/// Reports whether `chain` is the name of one of the kubelet's chains.
pub fn is_kubelets(chain: &str) -> bool {
    KUBELET.contains(&chain)
}

/// Names of the kernel objects that one mode creates, or that its older versions created.
#[derive(Debug, Clone, Copy)]
pub struct Footprint {
    /// Name of the mode, as in `--proxy-mode`.
    pub mode: &'static str,
    /// The mode's iptables chains whose names are fixed, each with its table.
    pub chains: &'static [(Table, &'static str)],
    /// Name prefixes of the mode's other iptables chains (for example, one per Service port), each
    /// with the table.
    pub prefixes: &'static [(Table, &'static str)],
    /// The mode's rules in built-in chains, which jump to the mode's own chains.
    pub jumps: &'static [Jump],
    /// Prefixes of the rule comments by which the cleanup recognizes older versions' rules in
    /// built-in chains.
    pub older_comments: &'static [&'static str],
    /// Names of the mode's nftables tables in the families `ip` and `ip6`.
    pub nft_tables: &'static [&'static str],
    /// Returns the mode's ipsets of an IP family.
    pub sets: fn(IpFamily) -> Vec<OwnSet>,
    /// Returns the name of the mode's set of cluster IPs in an IP family: an ipset, or a set in the
    /// mode's nftables table. `None` if the mode has no such set.
    pub cluster_ips: fn(IpFamily) -> Option<String>,
    /// Link on which the mode binds service addresses, if any.
    pub link: Option<Link>,
    /// Properties of the mode's IPVS virtual servers, or `None` if the mode creates none.
    pub virtual_servers: Option<VirtualServers>,
    /// Handler of packets to Services: the kernel, or the mode's process.
    pub served_by: ServedBy,
    /// Kubernetes objects and flags that cause each chain, set and map of the mode.
    pub origins: &'static [Origin],
}

/// Part of the node that serves packets to Services in a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedBy {
    /// The kernel, which continues to serve after the mode's process has ended.
    Kernel,
    /// The mode's process, to which the mode's kernel entries redirect packets. Once it has ended,
    /// these packets are lost.
    Process,
}

/// An ipset of a mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnSet {
    /// Name of the ipset.
    pub name: String,
    /// Evidence that the set's members give about virtual servers.
    pub says: Says,
    /// Kubernetes object or flag that determines the set's members, as text for the operator.
    pub origin: &'static str,
}

/// Meaning of an ipset's members as evidence that a mode created a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// The members are not evidence for virtual servers.
    Nothing,
    /// Each member is the address and port of a virtual server.
    VirtualServers,
    /// Each member is a port of this protocol. The mode has a virtual server for this port on each
    /// of the node's addresses.
    NodePorts(Protocol),
    /// Each member is an address that the mode has bound to its link.
    Bound,
    /// Each member maps an address and port to the firewall mark of a virtual server.
    Marks,
}

/// A link on which a mode binds service addresses, as interface addresses or as local routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Name of the link. If it is a dummy link, the cleanup deletes it with its addresses and
    /// routes.
    pub name: &'static str,
    /// Protocol number (`rtm_protocol`) of the mode's routes, which distinguishes them from the
    /// kernel's own routes.
    pub route_protocol: u8,
    /// IPv4 address that stays on the link while service addresses are local routes, because the
    /// kernel removes a link's IPv4 routes with its last IPv4 address. No Service has this address.
    pub anchor: Option<IpAddr>,
    /// Kubernetes objects that determine the link's addresses, as text for the operator.
    pub origin: &'static str,
}

/// Properties by which the cleanup recognizes a mode's virtual servers that no link and no ipset
/// identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualServers {
    /// Flag bit that the mode sets on virtual servers of NodePorts and firewall marks, because no
    /// set identifies these virtual servers.
    pub ownership_flag: u32,
    /// Test virtual server, without destinations, that the mode creates to probe the kernel:
    /// address, port and protocol. `None` if the mode creates none.
    pub probe: Option<(SocketAddr, Protocol)>,
}

impl Footprint {
    /// Creates the footprint of a mode that creates no kernel objects.
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

    /// Reports whether this mode uses a chain with this name. Returns false for the kubelet's
    /// chains.
    pub fn has_chain(&self, table: Table, name: &str) -> bool {
        let is_named = self.chains.contains(&(table, name));
        let mut prefixes = self.prefixes.iter();
        let has = is_named || prefixes.any(|(of, prefix)| *of == table && name.starts_with(prefix));
        has && !is_kubelets(name)
    }

    /// Reports whether this mode, or an older version of it, writes this comment on rules in
    /// built-in chains.
    pub(crate) fn has_comment(&self, comment: &str) -> bool {
        let mut jumps = self.jumps.iter();
        let mut older = self.older_comments.iter();
        jumps.any(|jump| jump.comment == Some(comment))
            || older.any(|known| comment.starts_with(known))
    }
}

impl PartialEq for Footprint {
    /// Compares only the names of the modes, because each mode has only one footprint.
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
