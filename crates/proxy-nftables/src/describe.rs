//! Describes changes to the nftables table for the operator.

use std::net::IpAddr;

use nftables_netlink::{Change, Element, ElementData};

use crate::choice::Map;
use crate::name::{
    CLUSTER_IPS, HAIRPIN, LOCALHOST_NODE_PORTS, NO_ENDPOINT_NODE_PORTS, NODE_PORT_IPS,
    SERVICE_NODE_PORTS,
};

/// Describes a change in a few words, such as `flush chain services`.
pub fn describe(change: &Change) -> String {
    match change {
        Change::AddTable(table) => format!("add table {}", table.name),
        Change::DeleteTable => "delete the table".to_owned(),
        Change::AddChain(chain) => format!("add chain {}", chain.name),
        Change::FlushChain(chain) => format!("flush chain {chain}"),
        Change::DeleteChain(chain) => format!("delete chain {chain}"),
        Change::AddSet(set) => format!("add set {}", set.name),
        Change::DeleteSet(set) => format!("delete set {set}"),
        Change::FlushSet(set) => format!("flush set {set}"),
        Change::AddElements(set, elements) => {
            format!("add to {set}: {}", told(set, elements))
        }
        Change::DeleteElements(set, elements) => {
            format!("delete from {set}: {}", told(set, elements))
        }
        Change::AddCounter(name) => format!("add counter {name}"),
        Change::DeleteCounter(name) => format!("delete counter {name}"),
        Change::AddRule(chain, _) => format!("add a rule to chain {chain}"),
        Change::InsertRule(chain, ..) => format!("insert a rule into chain {chain}"),
        Change::DeleteRule(chain, _) => format!("delete a rule of chain {chain}"),
        Change::ReplaceRule(chain, ..) => format!("replace a rule of chain {chain}"),
    }
}

/// Describes the elements that one change adds to a set or deletes from it.
fn told(set: &str, elements: &[Element]) -> String {
    let one = |element: &Element| {
        let key: Vec<String> = if Map::find(set).is_some() {
            endpoint_words(element)
        } else {
            key_words(set, &element.key)
        };
        key.join(" . ")
    };
    let all: Vec<String> = elements.iter().map(one).collect();
    all.join(", ")
}

/// Returns the fields of an element in a map of endpoints, as `nft` shows them: number,
/// destination, endpoint.
fn endpoint_words(element: &Element) -> Vec<String> {
    let address_and_port = |bytes: &[u8]| -> Option<[String; 2]> {
        let (address, port) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        let address = match address.len() {
            4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
            _ => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
        };
        let port = u16::from_be_bytes(port.get(..2)?.try_into().ok()?);
        Some([address.to_string(), port.to_string()])
    };
    let Some((number, rest)) = element.key.split_first_chunk() else {
        return Vec::new();
    };
    let mut words = vec![u32::from_ne_bytes(*number).to_string()];
    let [address, port] = address_and_port(rest).unwrap_or_default();
    words.push(address);
    words.push(match &element.data {
        Some(ElementData::Value(to)) => {
            let [address, to_port] = address_and_port(to).unwrap_or_default();
            format!("{port} : {address} . {to_port}")
        }
        _ => port,
    });
    words
}

fn key_words(set: &str, key: &[u8]) -> Vec<String> {
    let has_address = !matches!(
        set,
        SERVICE_NODE_PORTS | NO_ENDPOINT_NODE_PORTS | LOCALHOST_NODE_PORTS
    );
    let mut words = Vec::new();
    let mut rest = key;
    let rests_on = |rest: &[u8]| match set {
        CLUSTER_IPS | NODE_PORT_IPS => 0,
        _ if rest.len() > 8 => 8,
        _ => rest.len(),
    };
    let tail = rests_on(rest);
    if has_address {
        let addresses = if set == HAIRPIN { 2 } else { 1 };
        let each = rest.len().saturating_sub(tail) / addresses;
        for _ in 0..addresses {
            let (address, further) = rest.split_at(each.min(rest.len()));
            rest = further;
            if let Ok(v4) = <[u8; 4]>::try_from(address) {
                words.push(IpAddr::from(v4).to_string());
            } else if let Ok(v6) = <[u8; 16]>::try_from(address) {
                words.push(IpAddr::from(v6).to_string());
            }
        }
    }
    if let [number, _, _, _, high, low, ..] = rest {
        let protocol = proxy::Protocol::from_number(*number);
        words.push(protocol.map_or(number.to_string(), |of| of.lower().to_owned()));
        words.push(u16::from_be_bytes([*high, *low]).to_string());
    }
    words
}
