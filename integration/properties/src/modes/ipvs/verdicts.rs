//! Converts the state of IPVS mode (rules, sets, virtual servers) for the simulation of packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use ipvs_netlink::{DestinationEntry, Flags, ServiceEntry, ServiceKey, Statistics};
use packet_path::nft::{InMemoryTables, Nft};
use packet_path::{Interface, Ruleset, Server, Snapshot, Xtables};
use proxy::IpFamily;
use proxy_ipvs::fake::{NativeTable, State};
use proxy_ipvs::{Member, Rules, Set, SetKind, ShimStyle, VirtualServer, VirtualServerKey};

use super::Former;
use crate::packets;
use crate::stepped_threads::Front;
use crate::verdict::Verdicts;

/// Returns the verdicts on packets to these frontends, from virtual servers, addresses, sets and
/// rules. `former` has the former shim's sets and rules, if its rules are still in the kernel.
pub(super) fn verdicts(
    fronts: &BTreeSet<Front>,
    state: &State,
    former: Option<&Former>,
) -> Verdicts {
    let there = &state.snapshot;
    let none = Rules::default();
    let present = Some((&there.sets, there.rules.as_ref().unwrap_or(&none)));
    let former = former.map(|(sets, _, rules)| (sets, rules));
    let (ipsets, native) = match state.shim {
        ShimStyle::Nftables => (former, present),
        ShimStyle::Upstream | ShimStyle::Lean => (present, former),
    };
    let mut node = node(state);
    let mut rulesets: Vec<Box<dyn Ruleset>> = Vec::new();
    if let Some((sets, rules)) = ipsets {
        node.sets = sets
            .iter()
            .map(|(set, members)| saved_set(*set, members, state.family))
            .collect();
        rulesets.push(Box::new(Xtables::of(&saved(rules))));
    }
    if let Some((sets, rules)) = native {
        match Nft::read(in_memory(rules, sets, state.family), state.family) {
            Ok(nft) => rulesets.push(Box::new(nft)),
            Err(_) => return Verdicts::new(),
        }
    }
    let rulesets: Vec<&dyn Ruleset> = rulesets.iter().map(AsRef::as_ref).collect();
    packets::verdicts(fronts, &rulesets, &node)
}

/// Converts the nf_tables table of `--ipvs-shim=nftables` for the simulation of packets.
fn in_memory(
    rules: &Rules,
    sets: &BTreeMap<Set, BTreeSet<Member>>,
    family: IpFamily,
) -> InMemoryTables {
    let table = NativeTable::of(rules, sets, family);
    let (family, mut held) = (family.into(), InMemoryTables::default());
    held.add_table(family, table.name);
    for (set, elements) in table.sets {
        held.add_set(family, table.name, &set, elements);
    }
    for (chain, rules) in table.chains {
        held.add_chain(family, table.name, &chain, rules);
    }
    held
}

/// Formats a set like `ipset save`: its name, its type and its members.
fn saved_set(
    set: Set,
    members: &BTreeSet<Member>,
    family: IpFamily,
) -> (String, (String, Vec<String>)) {
    let kind = match set.kind() {
        SetKind::Address => "hash:ip",
        SetKind::AddressPort | SetKind::AddressPortMark => "hash:ip,port",
        SetKind::AddressPortAddress => "hash:ip,port,ip",
        SetKind::AddressPortNet => "hash:ip,port,net",
        SetKind::Port => "bitmap:port",
    };
    let members = members.iter().map(saved_member).collect();
    (set.name(family), (kind.to_owned(), members))
}

fn node(state: &State) -> Snapshot {
    let there = &state.snapshot;
    let mut node = packets::node(state.family, there.interface_addresses.iter().copied());
    let link = Interface {
        index: Some(4),
        name: "kube-ipvs0".to_owned(),
    };
    let is_within = |address: &IpAddr| there.ranges.keys().any(|net| net.contains(address));
    let served = there.servers.keys().filter_map(VirtualServerKey::address);
    let served: Vec<IpAddr> = served.map(|at| at.address).filter(is_within).collect();
    let bound = there.bound.iter().chain(&there.bound_otherwise);
    let bound = bound.chain(&served);
    let bound = bound.filter(|_| there.has_link).copied();
    let bound = bound.map(|address| (link.clone(), IpNet::from(address)));
    node.addresses.extend(bound);
    let servers = there.servers.iter();
    node.servers = servers
        .filter_map(|(key, server)| entry(*key, server))
        .collect();
    let conntrack = ("net/ipv4/vs/conntrack".to_owned(), "1".to_owned());
    node.settings.extend([conntrack]);
    node
}

/// Formats a member of a set like `ipset save`.
fn saved_member(member: &Member) -> String {
    match member {
        Member::AddressPortMark(address, protocol, port, mark) => {
            let plain = Member::AddressPort(*address, *protocol, *port);
            format!("{plain} skbmark {mark:#x}")
        }
        _ => member.to_string(),
    }
}

fn entry(key: VirtualServerKey, server: &VirtualServer) -> Option<(ServiceKey, Server)> {
    let key = ServiceKey::from(key);
    let scheduler = server.properties.scheduler.parse().ok()?;
    let mut service = ipvs_netlink::Service::new(key, scheduler);
    service.flags = Flags::from_bits_retain(server.properties.flags);
    service.timeout = server.properties.timeout;
    let destinations = server.destinations.iter().map(|real| {
        let to = std::net::SocketAddr::new(real.target.ip, real.target.port);
        DestinationEntry {
            destination: ipvs_netlink::Destination::new(to, real.weight.into()),
            active: 0,
            inactive: 0,
            persistent: 0,
            statistics: Statistics::default(),
        }
    });
    let entry = ServiceEntry {
        service,
        statistics: Statistics::default(),
    };
    let destinations = destinations.collect();
    Some((
        key,
        Server {
            entry,
            destinations,
        },
    ))
}

/// Formats rules like `iptables-save`. The daemon inserts each jump at the head of its chain, so
/// the kernel has the jumps in reverse order.
fn saved(rules: &Rules) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut head = 0;
    for line in rules.restore_text(&Rules::default()).lines() {
        if let Some(jump) = line.strip_prefix("-I ") {
            lines.insert(head, format!("-A {jump}"));
        } else {
            lines.push(line.to_owned());
            if line.starts_with(['*', ':']) {
                head = lines.len();
            }
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use proxy_ipvs::{Config, Shim};

    use super::*;

    #[test]
    fn inserted_jumps_are_printed_before_appended_rules() {
        let shim = Shim {
            family: IpFamily::V4,
            filled: BTreeSet::new(),
            forbidden_to_node: BTreeSet::new(),
            ranges: proxy_ipvs::Ranges::default(),
        };
        let saved = saved(&shim.rules(&Config::default()));
        let at = |rule: &str| saved.lines().position(|line| line.contains(rule));
        let (ports, access) = (
            at("-A INPUT -m comment --comment \"kubernetes health"),
            at("-A INPUT -m comment --comment \"kubernetes ipvs"),
        );
        assert!(access.is_some() && access < ports, "{saved}");
        assert!(!saved.contains("\n-I"));
    }
}
