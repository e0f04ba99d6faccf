//! Defines the maps of the nf\_tables table, and the elements of a redirect in these maps.

use std::net::IpAddr;
use std::sync::Arc;

use kube_rules::nft::address_type;
use nftables_netlink::{Bytes, Concatenation, DataType, Element, Set, SetKind, Table};
use proxy::IpFamily;

use crate::plan::RedirectTarget;
use crate::port::Portal;

/// Name of the table, in the families `ip` and `ip6`.
pub(crate) const TABLE: &str = "kube-proxy-userspace";

/// Origin of packets. Each origin has its own maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Packets that arrive on an interface.
    Outside,
    /// Packets from pods of this node, which also arrive on an interface.
    Pods,
    /// Packets from this node itself.
    Node,
}

impl Origin {
    pub(super) const ALL: [Self; 3] = [Self::Outside, Self::Pods, Self::Node];

    /// Returns the names of the two maps for packets of this origin: one for addresses with ports,
    /// one for NodePorts.
    pub(super) const fn maps(self) -> [&'static str; 2] {
        match self {
            Self::Outside => ["portals", "nodeports"],
            Self::Pods => ["portals-pods", "nodeports-pods"],
            Self::Node => ["portals-node", "nodeports-node"],
        }
    }

    /// Returns the name of the map for packets of this origin that contains the portal.
    pub(super) const fn map(self, portal: &Portal) -> &'static str {
        let [portals, node_ports] = self.maps();
        match portal.address {
            Some(_) => portals,
            None => node_ports,
        }
    }
}

pub(crate) fn table(family: IpFamily) -> Table {
    Table {
        comment: Some("redirects to the listening ports of kube-proxy".into()),
        ..Table::new(family.into(), TABLE.into())
    }
}

/// Returns the definitions of the table's six maps, without elements.
pub(crate) fn maps(family: IpFamily) -> impl Iterator<Item = Set> {
    Origin::ALL.into_iter().flat_map(move |from| {
        let address = address_type(family);
        let port = vec![DataType::InetProto, DataType::InetService];
        let of_address = [vec![address], port.clone()].concat();
        let [portals, node_ports] = from.maps();
        [(portals, of_address), (node_ports, port)].map(|(name, key)| {
            Set::new(
                name.into(),
                key,
                SetKind::Map(vec![address, DataType::InetService]),
            )
        })
    })
}

/// Returns the elements of a redirect, each with the name of its map.
pub(super) fn elements(
    family: IpFamily,
    portal: &Portal,
    aim: &RedirectTarget,
) -> Vec<(&'static str, Element)> {
    let protocol = portal.protocol.number();
    let key = match portal.address {
        Some(address) => Concatenation::new().address(address),
        None => Concatenation::new(),
    };
    let key: Bytes = key.protocol(protocol).port(portal.port).into_key();
    let element = |from: Origin, address: IpAddr, port: u16| {
        let value = Concatenation::new().address(address).port(port).into_key();
        let comment: Arc<str> = Arc::clone(&aim.name);
        let element = Element::of_map(key.clone(), value).with_comment(comment);
        (from.map(portal), element)
    };
    let mut elements = Vec::new();
    if let Some(via) = aim.via {
        elements.push(element(Origin::Outside, via, aim.outside));
        if aim.pods != aim.outside {
            elements.push(element(Origin::Pods, via, aim.pods));
        }
    }
    elements.push(element(Origin::Node, family.localhost(), aim.node));
    elements
}
