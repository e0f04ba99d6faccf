//! Converts networks to elements of an interval set.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use nftables_netlink::{Bytes, Element};

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => address.into(),
    }
}

/// Returns the elements of a set that contains these networks: the start and the end marker of each
/// range. Merges adjacent networks. Like `nft`, adds an end marker at address 0 if the first
/// network begins at a higher address.
pub(super) fn intervals(nets: &[IpNet], len: usize) -> Vec<Element> {
    let ends = |net: &IpNet| (bits(net.network()), bits(net.broadcast()));
    let mut ranges: Vec<(u128, u128)> = nets.iter().map(ends).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    let key = |number: u128| {
        let bytes = number.to_be_bytes();
        Bytes::from_slice(bytes.get(16 - len..).unwrap_or_default())
    };
    let most = if len == 4 {
        u128::from(u32::from(Ipv4Addr::BROADCAST))
    } else {
        u128::MAX
    };
    let end = |number: u128| Element {
        ends_interval: true,
        ..Element::of_set(key(number))
    };
    let mut elements = Vec::with_capacity(2 * merged.len() + 1);
    if merged.first().is_some_and(|(first, _)| *first > 0) {
        elements.push(end(0));
    }
    for (first, last) in merged {
        elements.push(Element::of_set(key(first)));
        if last < most {
            elements.push(end(last + 1));
        }
    }
    elements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_cidrs_are_merged_into_one_interval() {
        let nets = ["10.0.0.0/25", "10.0.0.128/25", "255.0.0.0/8", "10.0.0.7/32"];
        let nets = nets.map(|net| net.parse().unwrap());
        let told: Vec<(Vec<u8>, bool)> = intervals(&nets, 4)
            .into_iter()
            .map(|element| (element.key.to_vec(), element.ends_interval))
            .collect();
        assert_eq!(
            told,
            [
                (vec![0, 0, 0, 0], true),
                (vec![10, 0, 0, 0], false),
                (vec![10, 0, 1, 0], true),
                (vec![255, 0, 0, 0], false),
            ]
        );
    }
}
