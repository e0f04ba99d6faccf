//! Facts about this node, and the addresses that serve NodePorts.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::names::IpFamily;

/// Facts about this node that affect the compilation of Services, for one IP family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// IP family of the addresses and ranges in these facts.
    pub family: IpFamily,
    /// The node's name. An endpoint with this `nodeName` is local.
    pub name: Arc<str>,
    /// The node's zone, which is compared with the hints of endpoints. `None` if the zone is
    /// unknown.
    pub zone: Option<Arc<str>>,
    /// The node's address of this family in `--bind-address`, which overrides the Node object.
    /// `None` if the flag has no such address.
    pub flag_ip: Option<IpAddr>,
    /// The node's address of this family, from `--bind-address` or its Node object. `None` if the
    /// address is unknown.
    pub ip: Option<IpAddr>,
    /// Addresses of this family on the node's interfaces, without `kube-ipvs0`. Each mode decides
    /// whether loopback and link-local addresses count.
    pub interface_addresses: BTreeSet<IpAddr>,
    /// True once the daemon has read the interfaces' addresses.
    pub has_addresses: bool,
    /// The addresses that serve NodePorts.
    pub node_port_addresses: NodePortAddresses,
    /// ClusterIP ranges of this family, sorted and unique. A range may contain another range. Set
    /// only for modes that use the ranges. `None` while they are unknown: entries that depend on
    /// the ranges must then stay.
    pub service_cidrs: Option<Vec<IpNet>>,
}

/// Reports whether other hosts can reach an address. Returns false for loopback addresses and IPv6
/// link-local addresses. As in upstream, returns true for IPv4 link-local addresses.
pub fn is_outside(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

impl NodeFacts {
    /// Creates the facts about a node while only its name is known.
    pub fn new(family: IpFamily, name: &str) -> Self {
        Self {
            family,
            name: name.into(),
            zone: None,
            flag_ip: None,
            ip: None,
            interface_addresses: BTreeSet::new(),
            has_addresses: false,
            node_port_addresses: NodePortAddresses::All,
            service_cidrs: None,
        }
    }

    /// Reports whether `--nodeport-addresses` selects all addresses of this node.
    pub fn serves_node_ports_everywhere(&self) -> bool {
        self.node_port_addresses.of(self.family) == Selection::All
    }

    /// Returns the sorted addresses that serve NodePorts. Returns `None` while the node's addresses
    /// are unknown, or while `primary` needs the node's own IP and this IP is unknown. The caller
    /// must then keep the existing entries for NodePorts.
    ///
    /// `bound` are the addresses on `kube-ipvs0`. As in upstream, such an address serves NodePorts
    /// if a network in `--nodeport-addresses` contains it. If all addresses are selected, even as
    /// `0.0.0.0/0`, the addresses in `bound` are excluded.
    pub fn serving_node_ports(
        &self,
        bound: impl IntoIterator<Item = IpAddr>,
    ) -> Option<Vec<IpAddr>> {
        if !self.has_addresses {
            return None;
        }
        let all = || self.interface_addresses.iter().copied();
        Some(match self.node_port_addresses.of(self.family) {
            Selection::All => all().collect(),
            // Upstream turns `primary` into NODE_IP/32. So if the node lacks this address, no
            // address serves NodePorts.
            Selection::Primary => {
                let own = self.ip?;
                all().filter(|ip| *ip == own).collect()
            }
            Selection::PrimaryOrWithin(nets) => {
                let own = self.ip?;
                let within = self.within(&nets, bound);
                let own = all().filter(|ip| *ip == own);
                let selected: BTreeSet<IpAddr> = own.chain(within).collect();
                selected.into_iter().collect()
            }
            Selection::Within(nets) => {
                let within = self.within(&nets, bound);
                if within.is_empty() {
                    // If the networks contain no address of the node, returns `None` while the
                    // node's own IP is unknown.
                    self.ip?;
                }
                within
            }
        })
    }

    /// Reports whether a network in `--nodeport-addresses` contains this address. The address then
    /// serves NodePorts once the node has the address.
    pub fn is_in_node_port_networks(&self, address: IpAddr) -> bool {
        match self.node_port_addresses.of(self.family) {
            Selection::All | Selection::Primary => false,
            Selection::PrimaryOrWithin(nets) | Selection::Within(nets) => {
                nets.iter().any(|net| net.contains(&address))
            }
        }
    }

    /// Returns the sorted addresses of the node that are in the networks of `--nodeport-addresses`.
    /// The caller uses these addresses while the node's own IP is unknown.
    pub fn serving_node_ports_in_networks(&self) -> Vec<IpAddr> {
        match self.node_port_addresses.of(self.family) {
            Selection::All | Selection::Primary => Vec::new(),
            Selection::PrimaryOrWithin(nets) | Selection::Within(nets) => self.within(&nets, []),
        }
    }

    fn within(&self, nets: &[&IpNet], bound: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
        let all = self.interface_addresses.iter().copied();
        let all: BTreeSet<IpAddr> = all.chain(bound).collect();
        let is_within = |ip: &IpAddr| nets.iter().any(|net| net.contains(ip));
        all.into_iter().filter(is_within).collect()
    }
}

/// The value of `--nodeport-addresses`, which selects the node's addresses that serve NodePorts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NodePortAddresses {
    /// Every address of the node, because `--nodeport-addresses` is not set.
    #[default]
    All,
    /// The node's own IP (`primary`).
    Primary,
    /// The node's addresses in these networks. In a family without a network, all addresses serve
    /// NodePorts.
    Within(Vec<IpNet>),
    /// The node's own IP (`primary`), and addresses in these networks.
    PrimaryOrWithin(Vec<IpNet>),
}

/// The value of `--nodeport-addresses` for one IP family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection<'a> {
    /// Every address of the node.
    All,
    /// The node's own IP of this family.
    Primary,
    /// The node's addresses in these networks. The list has at least one network.
    Within(Vec<&'a IpNet>),
    /// The node's own IP, and its addresses in these networks. The list has at least one network.
    PrimaryOrWithin(Vec<&'a IpNet>),
}

impl NodePortAddresses {
    /// Returns the addresses that `--nodeport-addresses` selects in a family. As in upstream, a
    /// network of all addresses, such as `0.0.0.0/0`, selects all addresses of its family.
    pub fn of(&self, family: IpFamily) -> Selection<'_> {
        let (nets, has_primary) = match self {
            Self::All => return Selection::All,
            Self::Primary => return Selection::Primary,
            Self::Within(nets) => (nets, false),
            Self::PrimaryOrWithin(nets) => (nets, true),
        };
        let own: Vec<&IpNet> = of_family(nets, family).collect();
        let holds_all = own.iter().any(|net| net.prefix_len() == 0);
        match (own.is_empty(), has_primary) {
            _ if holds_all => Selection::All,
            (true, false) => Selection::All,
            (true, true) => Selection::Primary,
            (false, false) => Selection::Within(own),
            (false, true) => Selection::PrimaryOrWithin(own),
        }
    }

    /// Reports whether `--nodeport-addresses` has networks, but none of this family. In upstream,
    /// all addresses of this family then serve NodePorts.
    pub fn lacks(&self, family: IpFamily) -> bool {
        matches!(self, Self::Within(nets) if of_family(nets, family).next().is_none())
    }

    /// Reports whether `--nodeport-addresses` has a network of this family with only loopback
    /// addresses. Larger networks, such as 0.0.0.0/0, do not count (KEP-6032).
    pub fn names_loopback(&self, family: IpFamily) -> bool {
        let (Self::Within(nets) | Self::PrimaryOrWithin(nets)) = self else {
            return false;
        };
        let is_loopback = |net: &IpNet| net.addr().is_loopback() && net.broadcast().is_loopback();
        of_family(nets, family).any(is_loopback)
    }

    /// Reports whether IPv4 loopback addresses are selected, explicitly or within a larger network.
    pub fn has_localhost(&self) -> bool {
        let first = IpAddr::from([127, 0, 0, 0]);
        match self.of(IpFamily::V4) {
            Selection::All => true,
            Selection::Primary => false,
            Selection::Within(nets) | Selection::PrimaryOrWithin(nets) => {
                let mut nets = nets.iter();
                nets.any(|net| net.addr().is_loopback() || net.contains(&first))
            }
        }
    }

    /// Reports whether `--nodeport-addresses` explicitly names a loopback address of this family.
    /// Returns false for a selection of all addresses (KEP-6032).
    pub fn names_localhost(&self, family: IpFamily) -> bool {
        let nets = match self {
            Self::All | Self::Primary => return false,
            Self::Within(nets) | Self::PrimaryOrWithin(nets) => nets,
        };
        of_family(nets, family).any(|net| net.addr().is_loopback())
    }
}

fn of_family(nets: &[IpNet], family: IpFamily) -> impl Iterator<Item = &IpNet> {
    nets.iter()
        .filter(move |net| IpFamily::of(net.addr()) == family)
}

/// Addresses of this node at which NodePorts are served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodePorts {
    /// Sorted addresses of the node that serve NodePorts, without loopback addresses.
    pub addresses: Vec<IpAddr>,
    /// True if NodePorts are served at loopback addresses.
    pub on_localhost: bool,
}

impl NodePorts {
    /// Reports whether NodePorts are served at an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        (self.on_localhost && address.is_loopback()) || self.addresses.contains(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(addresses: NodePortAddresses) -> NodeFacts {
        let mut node = NodeFacts::new(IpFamily::V4, "n");
        node.ip = Some("192.168.0.10".parse().unwrap());
        node.interface_addresses = ["192.168.0.10", "10.0.0.1"]
            .iter()
            .map(|a| a.parse().unwrap())
            .collect();
        node.has_addresses = true;
        node.node_port_addresses = addresses;
        node
    }

    fn serving(addresses: NodePortAddresses) -> Vec<String> {
        node(addresses)
            .serving_node_ports(["10.96.0.1".parse().unwrap()])
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn the_nodeport_addresses_flag_selects_the_addresses_that_serve_node_ports() {
        assert_eq!(
            serving(NodePortAddresses::All),
            ["10.0.0.1", "192.168.0.10"]
        );
        assert_eq!(serving(NodePortAddresses::Primary), ["192.168.0.10"]);
        let within = |cidr: &str| serving(NodePortAddresses::Within(vec![cidr.parse().unwrap()]));
        assert_eq!(within("192.168.0.0/16"), ["192.168.0.10"]);
        // As in upstream, networks in `--nodeport-addresses` include addresses on kube-ipvs0.
        assert_eq!(within("10.0.0.0/8"), ["10.0.0.1", "10.96.0.1"]);
        // A network of all addresses selects all, so addresses on kube-ipvs0 are excluded.
        assert_eq!(within("0.0.0.0/0"), ["10.0.0.1", "192.168.0.10"]);
        // `--nodeport-addresses` has no IPv4 network, so it does not restrict IPv4 addresses.
        assert_eq!(within("fd00::/8"), ["10.0.0.1", "192.168.0.10"]);
    }

    #[test]
    fn the_primary_node_address_and_cidrs_can_be_selected_together() {
        let with_primary = |nets: &[&str]| {
            let nets = nets.iter().map(|net| net.parse().unwrap()).collect();
            NodePortAddresses::PrimaryOrWithin(nets)
        };
        let of = |nets: &[&str]| serving(with_primary(nets));
        assert_eq!(of(&["127.0.0.0/8", "::1/128"]), ["192.168.0.10"]);
        assert_eq!(of(&["10.0.0.0/16"]), ["10.0.0.1", "192.168.0.10"]);
        // `0.0.0.0/0` selects all addresses. Without an IPv4 network, only `primary` selects an
        // IPv4 address.
        assert_eq!(of(&["0.0.0.0/0"]), ["10.0.0.1", "192.168.0.10"]);
        assert_eq!(of(&["fd00::/8"]), ["192.168.0.10"]);
        // While the node's own IP is unknown, NodePorts are served only at addresses in the
        // networks.
        let mut node = node(with_primary(&["10.0.0.0/16"]));
        node.ip = None;
        assert_eq!(node.serving_node_ports([]), None);
        let within = node.serving_node_ports_in_networks();
        assert_eq!(within, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn localhost_is_selected_by_name_or_with_all_addresses() {
        let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect();
        let within = |text: &[&str]| NodePortAddresses::Within(nets(text));
        let primary = |text: &[&str]| NodePortAddresses::PrimaryOrWithin(nets(text));
        for (addresses, has, names) in [
            (NodePortAddresses::All, true, [false, false]),
            (NodePortAddresses::Primary, false, [false, false]),
            (within(&["10.0.0.0/8"]), false, [false, false]),
            (within(&["0.0.0.0/0", "::/0"]), true, [false, false]),
            (within(&["0.0.0.0/0", "127.0.0.1/32"]), true, [true, false]),
            // `--nodeport-addresses` has no IPv4 network, so all IPv4 addresses serve NodePorts.
            (within(&["::1/128"]), true, [false, true]),
            (within(&["126.0.0.0/7"]), true, [false, false]),
            (primary(&["::1/128"]), false, [false, true]),
            (primary(&["127.0.0.0/8", "::1/128"]), true, [true, true]),
        ] {
            assert_eq!(addresses.has_localhost(), has, "{addresses:?}");
            let named =
                [IpFamily::V4, IpFamily::V6].map(|family| addresses.names_localhost(family));
            assert_eq!(named, names, "{addresses:?}");
        }
    }

    #[test]
    fn nodeport_addresses_stay_unknown_until_the_nodes_own_addresses_are_known() {
        let within = |net: &str| NodePortAddresses::Within(vec![net.parse().unwrap()]);
        let unknown = |addresses, change: fn(&mut NodeFacts)| {
            let mut node = node(addresses);
            change(&mut node);
            node.serving_node_ports([]).is_none()
        };
        let no_ip: fn(&mut NodeFacts) = |node| node.ip = None;
        assert!(unknown(NodePortAddresses::Primary, no_ip));
        assert!(unknown(within("172.16.0.0/12"), no_ip));
        assert!(!unknown(within("10.0.0.0/8"), no_ip));
        assert!(!unknown(NodePortAddresses::All, no_ip));
        for addresses in [NodePortAddresses::All, NodePortAddresses::Primary] {
            assert!(unknown(addresses, |node| node.has_addresses = false));
        }
        // The node's addresses are known, but none of them is in the network. As in upstream, no
        // address serves NodePorts.
        assert_eq!(serving(within("172.16.0.0/12")), [""; 0]);
    }
}
