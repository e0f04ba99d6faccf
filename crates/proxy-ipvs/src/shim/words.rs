//! Clauses of the shim's nftables rules, built with [`Line`].

use ipnet::IpNet;
use iptables::SourcePort;
use kube_rules::nft::{DESTINATION, Field, Line, SOURCE, Sense, Side};
use nftables_netlink::{Expression, Name, Verdict};
use proxy::{IpFamily, LocalDetector, Protocol};

/// Key fields of a set look-up. `TO`: destination, protocol, port. `FROM_TO`: source, destination,
/// protocol, port.
pub(super) use kube_rules::nft::{ADDRESS_AND_PORT as TO, CONNECTION as FROM_TO};

/// Key fields of a set look-up: source, protocol, destination port.
pub(super) const BY_SOURCE: &[Field] = &[SOURCE, Field::Protocol, Field::Port];
/// Key fields of a set look-up: destination, protocol, port, source.
pub(super) const TO_FROM: &[Field] = &[DESTINATION, Field::Protocol, Field::Port, SOURCE];

pub(super) type Clause = Vec<Expression>;

fn clause(family: IpFamily, write: impl FnOnce(Line) -> Line) -> Clause {
    write(Line::new(family)).rule().expressions
}

/// Returns a clause that is the same for IPv4 and IPv6.
fn any(write: impl FnOnce(Line) -> Line) -> Clause {
    clause(IpFamily::V4, write)
}

/// Matches packets whose fields are in a set or, depending on `sense`, not in it: `ip daddr . meta
/// l4proto . th dport @SET`.
pub(super) fn in_set(family: IpFamily, fields: &[Field], set: Name, sense: Sense) -> Clause {
    clause(family, |line| line.in_set(fields, sense, set))
}

/// Matches packets whose destination address is in a set: `ip daddr @SET`.
pub(super) fn address_in_set(family: IpFamily, set: Name) -> Clause {
    in_set(family, &[DESTINATION], set, Sense::Is)
}

/// Matches packets whose destination and source prefix are in a set: `… . ip saddr & 255.255.0.0
/// @SET`. The look-up uses the first `prefix` bits of the source address.
pub(super) fn in_set_by_prefix(family: IpFamily, prefix: u8, set: Name) -> Clause {
    clause(family, |line| line.in_set_of_nets(TO_FROM, prefix, set))
}

/// Matches packets whose destination port is in a set: `tcp dport @SET`.
pub(super) fn port_in_set(protocol: Protocol, set: Name) -> Clause {
    any(|line| {
        line.protocol(protocol)
            .in_set(&[Field::Port], Sense::Is, set)
    })
}

/// Matches packets whose destination port is not in a set: `th dport != @SET`. An earlier clause
/// must match the protocol.
pub(super) fn port_not_in_set(set: Name) -> Clause {
    any(|line| line.in_set(&[Field::Port], Sense::IsNot, set))
}

/// Matches packets whose source is inside or outside a network: `ip saddr NET`, or `ip saddr !=
/// NET`.
pub(super) fn source(family: IpFamily, sense: Sense, net: &IpNet) -> Clause {
    clause(family, |line| line.in_net(Side::Source, sense, *net))
}

/// Matches packets to a network: `ip daddr NET`.
pub(super) fn destination(family: IpFamily, net: &IpNet) -> Clause {
    clause(family, |line| {
        line.in_net(Side::Destination, Sense::Is, *net)
    })
}

/// Matches `ping` requests: `meta l4proto icmp icmp type echo-request`.
pub(super) fn echo_request(family: IpFamily) -> Clause {
    clause(family, Line::echo_request)
}

/// Matches packets that do not come from a pod of this node.
pub(super) fn not_local(family: IpFamily, detector: &LocalDetector) -> Clause {
    let line = Line::new(family).pod_traffic(Sense::IsNot, detector);
    line.map_or_else(Vec::new, |line| line.rule().expressions)
}

/// Matches packets that arrived on an interface: `iifname NAME`.
pub(super) fn from_interface(name: &str) -> Clause {
    any(|line| line.input_interface(Sense::Is, name))
}

/// Matches the first packet of a flow: `ct state new`.
pub(super) fn new_flow() -> Clause {
    any(Line::new_connection)
}

/// Matches packets to an address of this node: `fib daddr type local`.
pub(super) fn to_local() -> Clause {
    any(|line| line.of_this_node(Side::Destination))
}

/// Matches packets whose mark has all these bits: `meta mark & MARK == MARK`.
pub(super) fn marked(mark: u32) -> Clause {
    any(|line| line.marked_whole(mark))
}

/// Sets bits of the packet's mark: `meta mark set meta mark | MARK`.
pub(super) fn set_mark(mark: u32) -> Clause {
    any(|line| line.set_mark(mark))
}

/// Sets the packet's mark to the value of its destination in a map, if there is one: `meta mark set
/// ip daddr . meta l4proto . th dport map @MAP`.
pub(super) fn mark_by(family: IpFamily, map: Name) -> Clause {
    clause(family, |line| line.mark_by(TO, map))
}

/// Restores the mark from before [`mark_by`] if the present mark is kube-proxy's: not 0, and
/// without bits outside `bits`.
pub(super) fn restore_mark(bits: u32) -> Clause {
    any(|line| line.restore_mark(bits))
}

/// Inverts bits of the packet's mark: `meta mark set meta mark ^ MARK`.
pub(super) fn flip_mark(mark: u32) -> Clause {
    any(|line| line.flip_mark(mark))
}

/// Returns the clause that masquerades packets: `masquerade`, or `masquerade fully-random`.
pub(super) fn masquerade(port: SourcePort) -> Clause {
    any(|line| line.masquerade(port))
}

/// Translates a destination to itself, so that no later rule translates it: `meta l4proto tcp dnat
/// to :tcp dport`.
pub(super) fn keep_destination(family: IpFamily, protocol: Protocol) -> Clause {
    clause(family, |line| line.keep_destination(protocol))
}

/// Rejects packets with ICMP port unreachable: `reject`.
pub(super) fn reject(family: IpFamily) -> Clause {
    clause(family, Line::reject)
}

pub(super) fn verdict(verdict: Verdict) -> Clause {
    any(|line| line.verdict(verdict))
}
