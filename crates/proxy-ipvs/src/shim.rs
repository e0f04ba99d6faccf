//! The shim: the few rules beside IPVS that masquerade and filter packets by sets. `--ipvs-shim`
//! selects one of three variants with the same verdicts:
//!
//! ```text
//!   upstream  upstream's chains and rules ╮ of iptables
//!   lean      fewer rules, same chains    ╯
//!   native    our nftables table, with separate sets
//! ```
//!
//! The number of rules depends on which sets have members, not on the number of Services. Only the
//! iptables chain KUBE-IPVS-OUT-FILTER has more: one rule for each load-balancer address whose
//! source ranges exclude this node.

mod early;
mod lean;
pub(crate) mod native;
mod upstream;
mod words;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use iptables::{Field, FlowState, Match, Rule, Target};
use kube_rules::LOCALHOST;
use proxy::{IpFamily, LocalDetector, Protocol, ServiceAddress};

use crate::config::{Config, ShimStyle};
use crate::ranges::Ranges;
use crate::rules::Rules;
use crate::sets::Set;

/// Packet fields with which a rule looks up a set.
const DST: &[Field] = &[Field::Destination];
const DST_DST: &[Field] = &[Field::Destination, Field::Destination];
const SRC_DST: &[Field] = &[Field::Source, Field::Destination];
const DST_DST_SRC: &[Field] = &[Field::Destination, Field::Destination, Field::Source];

/// Inputs of the shim's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shim {
    /// IP family of the rules.
    pub family: IpFamily,
    /// Sets that the rules must match.
    pub filled: BTreeSet<Set>,
    /// Load-balancer addresses to which this node must not connect, because their source ranges
    /// exclude it. See
    /// [`Fragment::forbidden_to_node`](crate::compile::Fragment::forbidden_to_node).
    pub forbidden_to_node: BTreeSet<ServiceAddress>,
    /// Ranges of service addresses: networks that local routes make local.
    pub ranges: Ranges,
}

impl Shim {
    /// Returns the rules of the shim variant in `config`. In nftables, they lack the rules for
    /// source ranges.
    pub fn rules(&self, config: &Config) -> Rules {
        self.rules_with(&BTreeSet::new(), config)
    }

    /// Returns the rules of the shim variant in `config`. `prefixes` has the prefix lengths of
    /// source ranges, for nftables only: in iptables, one set contains the ranges of all lengths.
    pub fn rules_with(&self, prefixes: &BTreeSet<u8>, config: &Config) -> Rules {
        match config.shim {
            ShimStyle::Upstream => Rules::in_iptables(&self.upstream(config)),
            ShimStyle::Lean => Rules::in_iptables(&self.lean(config)),
            ShimStyle::Nftables => Rules::in_nftables(self.native(prefixes, config)),
        }
    }

    fn is_filled(&self, set: Set) -> bool {
        self.filled.contains(&set)
    }

    fn if_filled(
        &self,
        set: Set,
        fields: &'static [Field],
        target: impl Into<Target>,
    ) -> Vec<Rule> {
        if self.is_filled(set) {
            vec![self.set_rule(set, fields, target)]
        } else {
            Vec::new()
        }
    }

    /// Matches packets if the set has a member with the packet's values of these fields.
    fn in_set(&self, set: Set, fields: &'static [Field]) -> Match {
        Match::InSet(set.name(self.family).into(), fields)
    }

    fn not_in_set(&self, set: Set, fields: &'static [Field]) -> Match {
        Match::NotInSet(set.name(self.family).into(), fields)
    }

    /// Returns the rule that accepts `ping` requests to service addresses (`--ipvs-answer-ping`),
    /// if it is needed. The kernel answers `ping` at every local address. Later rules still reject
    /// `ping` to unused addresses of a range.
    fn ping_rule(&self, config: &Config) -> Option<Rule> {
        let matches = [
            Match::Icmp(self.family),
            Match::EchoRequest(self.family),
            self.in_set(Set::IpvsIps, DST),
        ];
        self.lets_ping_pass(config)
            .then(|| Rule::new(matches, Target::Return))
    }

    fn lets_ping_pass(&self, config: &Config) -> bool {
        config.answers_ping && self.is_filled(Set::IpvsIps)
    }

    /// Returns the last rules of a chain that protects the node's own processes: they reject
    /// packets to ports without a Service. They match whole ranges, because no set has all
    /// addresses of a range. `exposed` has the matches for packets to such ports. It is empty if
    /// earlier rules have handled all packets to ports with a Service.
    fn range_rules(&self, exposed: &[Match]) -> Vec<Rule> {
        let Ranges { nets, except } = &self.ranges;
        let except = except.iter();
        let pass = except.map(|net| Rule::new([Match::Destination(*net)], Target::Return));
        let refuse = nets.iter().map(|net| {
            let to_range = [Match::Destination(*net), NEW];
            let matches = to_range.into_iter().chain(exposed.iter().cloned());
            Rule::new(matches, Target::Reject(self.family))
        });
        pass.chain(refuse).collect()
    }

    /// Returns the matches of the rule that masquerades the node's own packets to the members of a
    /// set. Only `--ipvs-semantics=exact` needs it, because the node may then use all endpoints
    /// under any traffic policy. Returns `None` for upstream's semantics, or for an empty set.
    fn own_packets_to(
        &self,
        set: Set,
        fields: &'static [Field],
        config: &Config,
    ) -> Option<[Match; 2]> {
        (config.semantics.is_exact() && self.is_filled(set))
            .then(|| [self.in_set(set, fields), Match::SourceLocal])
    }

    fn set_rule(&self, set: Set, fields: &'static [Field], target: impl Into<Target>) -> Rule {
        let comment = Match::comment(set.comment());
        Rule::new([comment, self.in_set(set, fields)], target)
    }
}

/// Returns the loopback network of this IP family.
pub(crate) fn loopback(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => LOCALHOST,
        IpFamily::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST).into(),
    }
}

/// Matches the first packet of each flow.
const NEW: Match = Match::State(&[FlowState::New]);

/// Returns the packet fields with which a rule looks up the set of a protocol's NodePorts.
fn node_port_fields(protocol: Protocol) -> &'static [Field] {
    match protocol {
        Protocol::Sctp => DST_DST,
        Protocol::Tcp | Protocol::Udp => DST,
    }
}

/// Returns the condition for masquerading packets to a cluster IP: a match, and the packet fields
/// with which the rule looks up the set. Returns `None` if no rule is needed.
///
/// Without a detector of local traffic, rules masquerade only packets whose source is a service
/// address. With `--ipvs-semantics=exact`, no packet has such a source.
fn not_local(config: &Config) -> Option<(Option<Match>, &'static [Field])> {
    Some(match &config.detector {
        _ if config.masquerade_all => (None, DST_DST),
        LocalDetector::None if config.semantics.is_exact() => return None,
        LocalDetector::None => (None, SRC_DST),
        detector => (kube_rules::not_local(detector), DST_DST),
    })
}

/// Returns the target that marks a packet for masquerading.
fn mark(config: &Config) -> Target {
    Target::set_mark(config.masquerade_mark)
}
