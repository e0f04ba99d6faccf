//! What is known of this node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::names::IpFamily;

/// Facts about this node that compiling depends on, for one IP family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// The family.
    pub family: IpFamily,
    /// The node's name: an endpoint with this `nodeName` is local.
    pub name: Arc<str>,
    /// The node's zone, for hints.
    pub zone: Option<Arc<str>>,
    /// The node's address of this family, from its Node object or `--bind-address`.
    pub ip: Option<IpAddr>,
    /// Addresses of this family on every interface but `kube-ipvs0`, without loopback and IPv6 link-local ones.
    pub interface_addresses: BTreeSet<IpAddr>,
    /// Which addresses serve NodePorts.
    pub node_port_addresses: NodePortAddresses,
}

impl NodeFacts {
    /// Facts of a node of which only the name is known.
    pub fn new(family: IpFamily, name: &str) -> Self {
        Self {
            family,
            name: name.into(),
            zone: None,
            ip: None,
            interface_addresses: BTreeSet::new(),
            node_port_addresses: NodePortAddresses::All,
        }
    }

    /// The addresses that NodePorts are served on, sorted.
    ///
    /// `bound` are the addresses on `kube-ipvs0`: upstream's filter by CIDR sees those too, all-addresses (also when it is
    /// spelled `0.0.0.0/0`) does not.
    pub fn serving_node_ports(&self, bound: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
        match &self.node_port_addresses {
            NodePortAddresses::All => self.interface_addresses.iter().copied().collect(),
            NodePortAddresses::Primary => {
                // Upstream turns `primary` into NODE_IP/32: an address that the node does not carry serves nothing.
                self.ip
                    .filter(|ip| self.interface_addresses.contains(ip))
                    .into_iter()
                    .collect()
            }
            NodePortAddresses::Within(cidrs) => {
                let own: Vec<_> = cidrs
                    .iter()
                    .filter(|cidr| family_of(cidr) == self.family)
                    .collect();
                if own.is_empty() || own.iter().any(|cidr| cidr.prefix_len() == 0) {
                    return self.interface_addresses.iter().copied().collect();
                }
                let all: BTreeSet<IpAddr> = self
                    .interface_addresses
                    .iter()
                    .copied()
                    .chain(bound)
                    .collect();
                all.into_iter()
                    .filter(|ip| own.iter().any(|cidr| cidr.contains(ip)))
                    .collect()
            }
        }
    }
}

fn family_of(net: &IpNet) -> IpFamily {
    IpFamily::of(net.addr())
}

/// `--nodeport-addresses`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NodePortAddresses {
    /// Not given: every address of the node.
    #[default]
    All,
    /// `primary`: the node's own IP.
    Primary,
    /// Addresses in these networks; a family with none is served on every address.
    Within(Vec<IpNet>),
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
        node.node_port_addresses = addresses;
        node
    }

    fn serving(addresses: NodePortAddresses) -> Vec<String> {
        node(addresses)
            .serving_node_ports(["10.96.0.1".parse().unwrap()])
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn node_port_addresses_follow_the_flag() {
        assert_eq!(
            serving(NodePortAddresses::All),
            ["10.0.0.1", "192.168.0.10"]
        );
        assert_eq!(serving(NodePortAddresses::Primary), ["192.168.0.10"]);
        let within = |cidr: &str| serving(NodePortAddresses::Within(vec![cidr.parse().unwrap()]));
        assert_eq!(within("192.168.0.0/16"), ["192.168.0.10"]);
        // As upstream: a network filter also sees what is bound to kube-ipvs0,
        assert_eq!(within("10.0.0.0/8"), ["10.0.0.1", "10.96.0.1"]);
        // but a network that holds everything is no filter,
        assert_eq!(within("0.0.0.0/0"), ["10.0.0.1", "192.168.0.10"]);
        // and a family without a network of its own is not filtered.
        assert_eq!(within("fd00::/8"), ["10.0.0.1", "192.168.0.10"]);
    }
}
