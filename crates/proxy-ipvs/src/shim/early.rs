//! Rules for the first packet of each flow that precede IPVS (`--ipvs-semantics=exact`). The
//! iptables and nftables shims render the same list.

use iptables::{Match, Rule, Table, Target};

use super::{DST, DST_DST, NEW, Shim};
use crate::config::Config;
use crate::rules::EARLY_CHAINS;
use crate::sets::{Set, SetKind};

/// Hook at which early rules handle a packet before IPVS does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyHook {
    /// Hook input, for packets from pods and from other hosts.
    In,
    /// Hook output, for packets that the node itself sends.
    Out,
}

/// Name of the loopback interface. At hook input, packets from it are the node's own.
pub(super) const LOOPBACK: &str = "lo";

/// Clients whose packets an early rule handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clients {
    All,
    /// Clients outside the cluster: neither pods of this node nor the node itself.
    /// [`EarlyRule::SkipNode`] excludes the node.
    Outside,
}

/// Action of an early rule on a packet whose destination is in its set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyAction {
    Drop,
    /// Replaces the packet's whole mark with the set member's mark, because IPVS compares the whole
    /// mark.
    Mark,
}

/// A rule that handles packets before IPVS does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyRule {
    /// Exempts the node's own packets from the rules for clients outside the cluster. IPVS handles
    /// these packets at hook output, so they reach hook input only if their virtual server is
    /// missing.
    SkipNode,
    /// Handles the first packet of each flow whose destination is a member of this set.
    To {
        clients: Clients,
        set: Set,
        action: EarlyAction,
    },
}

impl Shim {
    /// Returns the early rules of a hook, in order. Omits the rules of empty sets.
    pub(super) fn early_rules(&self, hook: EarlyHook, config: &Config) -> Vec<EarlyRule> {
        use EarlyAction::{Drop, Mark};
        if !config.semantics.is_exact() {
            return Vec::new();
        }
        let rule = |clients, set, action| {
            let rule = EarlyRule::To {
                clients,
                set,
                action,
            };
            self.is_filled(set).then_some(rule)
        };
        let mut rules: Vec<_> = rule(Clients::All, Set::Unserved, Drop)
            .into_iter()
            .collect();
        if hook == EarlyHook::In {
            let outside = [
                rule(Clients::Outside, Set::UnservedOutside, Drop),
                rule(Clients::Outside, Set::LocalMark, Mark),
            ];
            let skip = outside.iter().any(Option::is_some);
            rules.extend(skip.then_some(EarlyRule::SkipNode));
            rules.extend(outside.into_iter().flatten());
        }
        rules
    }

    /// Renders the early rules as iptables chains, without empty ones. The chain for the node's own
    /// packets begins with the rules for source ranges. The chains are in table mangle, which
    /// precedes IPVS at both hooks. (At hook output, table filter comes after IPVS.)
    pub(super) fn early_chains(
        &self,
        config: &Config,
    ) -> impl Iterator<Item = (Table, &'static str, Vec<Rule>)> {
        let render = |hook| {
            let rules = self.early_rules(hook, config).into_iter();
            rules.map(|rule| self.early_rule(rule, config))
        };
        let ranges = config.semantics.is_exact().then(|| self.lean_firewall());
        let out = ranges.into_iter().flatten().chain(render(EarlyHook::Out));
        let chains = [render(EarlyHook::In).collect(), out.collect()];
        let chains = EARLY_CHAINS.into_iter().zip(chains);
        let chains = chains.map(|((table, name), rules): (_, Vec<Rule>)| (table, name, rules));
        chains.filter(|(.., rules)| !rules.is_empty())
    }

    fn early_rule(&self, of: EarlyRule, config: &Config) -> Rule {
        let (clients, set, action) = match of {
            EarlyRule::SkipNode => {
                let by_node = Match::InInterface(LOOPBACK.to_owned());
                return Rule::new([by_node], Target::Return);
            }
            EarlyRule::To {
                clients,
                set,
                action,
            } => (clients, set, action),
        };
        let fields = match set.kind() {
            SetKind::Address | SetKind::Port => DST,
            _ => DST_DST,
        };
        let from = match clients {
            Clients::All => None,
            Clients::Outside => kube_rules::not_local(&config.detector),
        };
        let new = [NEW, Match::comment(set.comment())].into_iter();
        let matches = new.chain(from);
        match action {
            EarlyAction::Drop => Rule::new(matches.chain([self.in_set(set, fields)]), Target::Drop),
            EarlyAction::Mark => {
                let name = set.static_name(self.family);
                Rule::new(matches, Target::MapMark(name, fields))
            }
        }
    }
}
