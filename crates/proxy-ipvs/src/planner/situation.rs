//! Questions of all plans to the tables, and to the state beside them.

use std::sync::Arc;
use std::time::Instant;

use proxy::{Owner, Rank, ServiceAddress, Share, Shares, Target};
use reconcile::Table;

use crate::claims::Claims;
use crate::cover::Cover;
use crate::kinds::State;
use crate::part::Part;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::Set;
use crate::tables::Tables;

/// What a plan depends on beside the tables.
pub(crate) struct Situation<'a> {
    pub(crate) claims: &'a Claims,
    pub(crate) cover: &'a Cover,
    /// Nothing is written to parts of which it is not known what is there.
    pub(crate) state: &'a State,
    /// Whether the rules are not as they are to be.
    pub(crate) are_rules_pending: bool,
    /// Whether it is known which of the virtual servers that were there are ours.
    pub(crate) has_taken_over: bool,
    /// Whether no address is gone that is believed to be there, as far as the kernel has told.
    pub(crate) has_all_addresses: bool,
    pub(crate) now: Instant,
}

impl Situation<'_> {
    pub(super) fn knows(&self, part: Part) -> bool {
        self.state.knows(part)
    }
}

/// Returns the share of the next virtual server in a plan. What nobody wants is nobody's share.
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

/// The destinations that go, the last ones first.
pub(super) fn gone(actual: &VirtualServer, wanted: &VirtualServer) -> Vec<Target> {
    let pairs = actual.destinations.beside(&wanted.destinations);
    let gone = pairs.filter(|(_, wanted)| wanted.is_none());
    let mut gone: Vec<Target> = gone.filter_map(|(there, _)| Some(there?.target)).collect();
    gone.reverse();
    gone
}

/// Whether nothing but time is between the rules and what they are to be.
pub(super) fn are_rules_under_way(tables: &Tables, of: &Situation<'_>) -> bool {
    of.knows(Part::Rules) && !tables.rules.is_failing(&())
}

/// What a load balancer's firewall admits.
pub(super) const GUARDS: [Set; 2] = [Set::LoadBalancerSourceCidr, Set::LoadBalancerSourceIp];

/// Whether a virtual server is there that nobody wants, or may be: the answer was lost.
pub(super) fn is_left(tables: &Tables, key: &VirtualServerKey) -> bool {
    tables.is_ours(key) && tables.servers.wanted(key).is_none()
}

/// Their addresses.
pub(super) fn left(tables: &Tables) -> impl Iterator<Item = ServiceAddress> {
    let all = tables.servers.pending().chain(&tables.uncertain);
    let left = all.filter(|key| is_left(tables, key));
    left.filter_map(VirtualServerKey::address)
}

/// At a cold start the API server's own Service comes first, then DNS.
pub(super) fn rank<K, V>(table: &Table<K, V, Arc<Owner>>, key: &K) -> Rank
where
    K: Clone + Eq + std::hash::Hash,
    V: Clone + Eq,
{
    table.owner(key).map_or(Rank::Other, |owner| owner.rank)
}
