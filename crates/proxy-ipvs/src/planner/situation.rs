//! Inputs of the planners besides the tables, and checks that the planners share.

use std::sync::Arc;
use std::time::Instant;

use proxy::{Owner, Rank, ServiceAddress, Share, Shares, Target};
use reconcile::Table;

use super::order::Order;
use crate::claims::Claims;
use crate::cover::Cover;
use crate::kinds::State;
use crate::masquerading::GUARDS;
use crate::part::Part;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::Set;
use crate::tables::Tables;

/// Inputs of the planners besides the tables.
pub(crate) struct Situation<'a> {
    pub(crate) claims: &'a Claims,
    pub(crate) cover: &'a Cover,
    /// State of the reads of each part of the kernel (virtual servers, sets, addresses, rules). The
    /// planners write a part only after its first read.
    pub(crate) state: &'a State,
    /// True if the installed rules are unknown or differ from the wanted rules. False while another
    /// mode's rules serve packets.
    pub(crate) are_rules_pending: bool,
    /// True once the proxy knows who created each virtual server that existed at its start.
    pub(crate) has_taken_over: bool,
    /// True if the addresses in the tables agree with all notifications so far.
    pub(crate) has_all_addresses: bool,
    pub(crate) now: Instant,
}

impl Situation<'_> {
    pub(super) fn knows(&self, part: Part) -> bool {
        self.state.knows(part)
    }

    /// Returns true if the installed rules do not match this set yet, but the wanted rules do.
    pub(super) fn lacks_rule(&self, set: Set) -> bool {
        self.knows(Part::Rules) && self.cover.uncovered.contains(&set)
    }

    /// Returns true if the proxy has read the rules and sets that mark packets, including a former
    /// shim's.
    pub(super) fn knows_marks(&self) -> bool {
        self.knows(Part::Rules) && self.knows(Part::Sets)
    }
}

/// Returns the priority of a virtual server's writes, which falls once its Service or namespace has
/// used up its share of the plan. Unwanted virtual servers have no Service, and keep the highest
/// priority.
pub(super) fn share<'a>(
    shares: &mut Shares<'a>,
    tables: &'a Tables,
    key: &VirtualServerKey,
) -> Share {
    let (owner, wanted) = (tables.servers.owner(key), tables.servers.wanted(key));
    match (owner, wanted) {
        (Some(owner), Some(server)) => {
            shares.of(&owner.name.service, 1 + server.destinations.len())
        }
        _ => Share::Within,
    }
}

/// Returns the destinations to remove from a virtual server, in the reverse order of their
/// additions.
pub(super) fn gone(
    actual: &VirtualServer,
    wanted: &VirtualServer,
    of: &Situation<'_>,
) -> Vec<Target> {
    let pairs = actual.destinations.beside(&wanted.destinations);
    let gone = pairs.filter(|(_, wanted)| wanted.is_none());
    let mut gone: Vec<Target> = gone.filter_map(|(there, _)| Some(there?.target)).collect();
    Order::of(&wanted.properties, &of.state.node.name).sort_removed(&mut gone);
    gone
}

/// Returns true if the proxy knows the installed rules, and the last write of the wanted rules did
/// not fail.
pub(super) fn are_rules_under_way(tables: &Tables, of: &Situation<'_>) -> bool {
    of.knows(Part::Rules) && !tables.rules.is_failing(&())
}

/// Returns true while the rules that admit clients to load balancers with source ranges are being
/// written: the installed rules do not match all sets of these clients yet.
pub(super) fn awaits_guards(tables: &Tables, of: &Situation<'_>) -> bool {
    of.are_rules_pending
        && are_rules_under_way(tables, of)
        && GUARDS.iter().any(|set| of.cover.uncovered.contains(set))
}

/// Returns true if no Service wants this virtual server, and it is ours, or may be ours because the
/// reply to its creation was lost.
pub(super) fn is_left(tables: &Tables, key: &VirtualServerKey) -> bool {
    tables.is_ours(key) && tables.servers.wanted(key).is_none()
}

/// Returns the service addresses of unwanted virtual servers that still exist.
pub(super) fn left(tables: &Tables) -> impl Iterator<Item = ServiceAddress> {
    let all = tables.servers.pending().chain(&tables.uncertain);
    let left = all.filter(|key| is_left(tables, key));
    left.filter_map(VirtualServerKey::address)
}

/// Returns the rank of the Service that owns an entry: the API server's Service first, DNS second,
/// all others last.
pub(super) fn rank<K, V>(table: &Table<K, V, Arc<Owner>>, key: &K) -> Rank
where
    K: Clone + Eq + std::hash::Hash,
    V: Clone + Eq,
{
    table.owner(key).map_or(Rank::Other, |owner| owner.rank)
}
