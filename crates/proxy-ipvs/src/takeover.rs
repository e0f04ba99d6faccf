//! Whose the virtual servers are that were there before this proxy wrote anything.

use std::collections::{BTreeMap, BTreeSet};

use footprint::Says;
use ipnet::IpNet;

use crate::kernel::{FoundAddresses, FoundSets, Snapshot};
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::Set;
use crate::tables::Tables;

/// What was found, until it is judged and all that is wanted is known.
#[derive(Default)]
pub(crate) struct TakeOver {
    /// Virtual servers that are not known to be ours, and what says whose they are.
    evidence: Snapshot,
    /// Whether what is ours by that has been adopted; the rest may still be wanted.
    is_judged: bool,
}

type Adopted = Vec<(VirtualServerKey, VirtualServer)>;

impl TakeOver {
    /// Virtual servers that nobody here wants yet.
    pub(crate) fn found_servers(&mut self, others: BTreeMap<VirtualServerKey, VirtualServer>) {
        self.evidence.servers = others;
    }

    pub(crate) fn found_sets(&mut self, found: &FoundSets) {
        let is_evidence = |(set, _): &(&Set, &BTreeSet<_>)| set.says() != Says::Nothing;
        let all = found.members.iter().chain(&found.former);
        for (set, of) in all.filter(is_evidence) {
            let members = self.evidence.sets.entry(*set).or_default();
            members.extend(of.iter().copied());
        }
    }

    pub(crate) fn found_addresses(&mut self, found: &FoundAddresses) {
        self.evidence.bound.clone_from(&found.bound);
        let otherwise = &mut self.evidence.bound_otherwise;
        otherwise.clone_from(&found.bound_otherwise);
        let others = &mut self.evidence.interface_addresses;
        others.clone_from(&found.interface_addresses);
    }

    /// What an earlier run, or upstream, has left: all that says so was read as it was before
    /// anything was written. Virtual servers in `excluded` are others'. `None` if that is done.
    pub(crate) fn judge(&mut self, excluded: &[IpNet]) -> Option<Adopted> {
        if self.is_judged {
            return None;
        }
        self.is_judged = true;
        let mut evidence = std::mem::take(&mut self.evidence);
        let is_ours = |key: &&VirtualServerKey| {
            !excluded.iter().any(|net| net.contains(&key.address)) && evidence.says_ours(key)
        };
        let ours: Vec<_> = evidence.servers.keys().filter(is_ours).copied().collect();
        let adopted = ours
            .into_iter()
            .filter_map(|key| evidence.servers.remove_entry(&key))
            .collect();
        self.evidence.servers = evidence.servers;
        Some(adopted)
    }

    /// What is wanted and was there before, whosever it was.
    pub(crate) fn take_wanted(&mut self, tables: &Tables) -> Adopted {
        let is_wanted =
            |key: &VirtualServerKey, _: &mut VirtualServer| tables.servers.wanted(key).is_some();
        let servers = &mut self.evidence.servers;
        servers.extract_if(.., is_wanted).collect()
    }

    /// Whether the rest is others', once all that is wanted is known.
    pub(crate) fn is_over(&self) -> bool {
        self.is_judged
    }
}
