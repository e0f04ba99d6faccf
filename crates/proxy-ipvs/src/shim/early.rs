//! Rules for the first packet of each flow before IPVS sees it, with `--ipvs-semantics=exact`.
//! Both carriers render the same list.

use super::Shim;
use crate::config::Config;
use crate::sets::Set;

/// Place of the rules: before IPVS at hook input, or at hook output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyHook {
    /// Packets from pods and from other hosts.
    In,
    /// The node's own packets.
    Out,
}

/// Clients whose packets a rule concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clients {
    All,
    /// Clients that are not pods of this node.
    Outside,
}

/// Action on packets to a member of the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyAction {
    Drop,
    /// Replaces the packet's mark by the member's. IPVS compares the whole mark.
    Mark,
}

/// A rule for new flows to the members of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EarlyRule {
    pub(super) clients: Clients,
    pub(super) set: Set,
    pub(super) action: EarlyAction,
}

impl Shim {
    /// Returns the rules of a hook in order. Empty sets need no rule.
    pub(super) fn early_rules(&self, hook: EarlyHook, config: &Config) -> Vec<EarlyRule> {
        use EarlyAction::{Drop, Mark};
        if !config.semantics.is_exact() {
            return Vec::new();
        }
        let rule = |clients, set, action| EarlyRule {
            clients,
            set,
            action,
        };
        let mut rules = match hook {
            EarlyHook::In => vec![
                rule(Clients::All, Set::Unserved, Drop),
                rule(Clients::Outside, Set::UnservedOutside, Drop),
                rule(Clients::Outside, Set::LocalMark, Mark),
            ],
            EarlyHook::Out => vec![rule(Clients::All, Set::Unserved, Drop)],
        };
        rules.retain(|rule| self.is_filled(rule.set));
        rules
    }
}
