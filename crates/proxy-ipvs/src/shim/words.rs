//! Clauses of the shim's rules, as [`Line`] writes them.

use ipnet::IpNet;
use iptables::SourcePort;
use kube_rules::nft::{DESTINATION, Field, Line, SOURCE, Sense, Side};
use nftables_netlink::{Expression, Name, Verdict};
use proxy::{IpFamily, LocalDetector, Protocol};

/// Destination, protocol, port; and with the source before them.
pub(super) use kube_rules::nft::{ADDRESS_AND_PORT as TO, CONNECTION as FROM_TO};

/// Source, protocol, port of the destination.
pub(super) const BY_SOURCE: &[Field] = &[SOURCE, Field::Protocol, Field::Port];
/// Destination, protocol, port, and sender.
pub(super) const TO_FROM: &[Field] = &[DESTINATION, Field::Protocol, Field::Port, SOURCE];

pub(super) type Clause = Vec<Expression>;

fn clause(family: IpFamily, write: impl FnOnce(Line) -> Line) -> Clause {
    write(Line::new(family)).rule().expressions
}

/// Writes a clause that is equal in both families.
fn any(write: impl FnOnce(Line) -> Line) -> Clause {
    clause(IpFamily::V4, write)
}

/// `ip daddr . meta l4proto . th dport @SET`
pub(super) fn in_set(family: IpFamily, fields: &[Field], set: Name, sense: Sense) -> Clause {
    clause(family, |line| line.in_set(fields, sense, set))
}

/// `ip daddr @SET`
pub(super) fn address_in_set(family: IpFamily, set: Name) -> Clause {
    in_set(family, &[DESTINATION], set, Sense::Is)
}

/// `… . ip saddr & 255.255.0.0 @SET`: only the first bits of the source count.
pub(super) fn in_set_by_prefix(family: IpFamily, prefix: u8, set: Name) -> Clause {
    clause(family, |line| line.in_set_of_nets(TO_FROM, prefix, set))
}

/// `tcp dport @SET`
pub(super) fn port_in_set(protocol: Protocol, set: Name) -> Clause {
    any(|line| {
        line.protocol(protocol)
            .in_set(&[Field::Port], Sense::Is, set)
    })
}

/// `th dport != @SET`, for a known protocol.
pub(super) fn port_not_in_set(set: Name) -> Clause {
    any(|line| line.in_set(&[Field::Port], Sense::IsNot, set))
}

/// `ip saddr NET`, or `ip saddr != NET`.
pub(super) fn source(family: IpFamily, sense: Sense, net: &IpNet) -> Clause {
    clause(family, |line| line.in_net(Side::Source, sense, *net))
}

/// Matches packets that do not come from this node's pods.
pub(super) fn not_local(family: IpFamily, detector: &LocalDetector) -> Clause {
    let line = Line::new(family).pod_traffic(Sense::IsNot, detector);
    line.map_or_else(Vec::new, |line| line.rule().expressions)
}

/// `ct state new`
pub(super) fn new_flow() -> Clause {
    any(Line::new_connection)
}

/// `fib daddr type local`
pub(super) fn to_local() -> Clause {
    any(|line| line.of_this_node(Side::Destination))
}

/// `meta mark & MARK == MARK`
pub(super) fn marked(mark: u32) -> Clause {
    any(|line| line.marked_whole(mark))
}

/// `meta mark set meta mark | MARK`
pub(super) fn set_mark(mark: u32) -> Clause {
    any(|line| line.set_mark(mark))
}

/// `meta mark set meta mark ^ MARK`
pub(super) fn flip_mark(mark: u32) -> Clause {
    any(|line| line.flip_mark(mark))
}

/// `masquerade`, or `masquerade fully-random`
pub(super) fn masquerade(port: SourcePort) -> Clause {
    any(|line| line.masquerade(port))
}

/// `dnat to ip daddr`: keeps the destination, so that no later rule changes it.
pub(super) fn keep_destination(family: IpFamily) -> Clause {
    clause(family, Line::keep_destination)
}

/// `reject`: ICMP port unreachable.
pub(super) fn reject(family: IpFamily) -> Clause {
    clause(family, Line::reject)
}

pub(super) fn verdict(verdict: Verdict) -> Clause {
    any(|line| line.verdict(verdict))
}
