//! Decides who owns the virtual servers that existed before this process first wrote to the kernel.

use std::collections::BTreeSet;

use footprint::Says;
use ipnet::IpNet;

use crate::foreign::ForeignServers;
use crate::kernel::{Evidence, FoundAddresses, FoundSets, Snapshot};
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};

/// Kernel entries from before the proxy's first write, which show who created the virtual servers.
#[derive(Default)]
pub(crate) struct OwnershipEvidence {
    evidence: Snapshot,
    /// Firewall marks of service addresses, from the sets of a former shim.
    former_marks: BTreeSet<Member>,
}

type Adopted = Vec<(VirtualServerKey, VirtualServer)>;

impl OwnershipEvidence {
    pub(crate) fn found_sets(&mut self, found: &FoundSets) {
        let marks = found.former.get(&Set::LocalMark);
        self.former_marks.extend(marks.into_iter().flatten());
        let is_evidence = |(set, _): &(&Set, &BTreeSet<_>)| set.says() != Says::Nothing;
        let all = found.members.iter().chain(&found.former);
        for (set, of) in all.filter(is_evidence) {
            let members = self.evidence.sets.entry(*set).or_default();
            members.extend(of.iter().copied());
        }
    }

    /// Returns the firewall marks that an earlier run with another shim gave to addresses. This run
    /// keeps them, so that no virtual server changes.
    pub(crate) fn former_marks(&self) -> BTreeSet<Member> {
        self.former_marks.clone()
    }

    pub(crate) fn found_addresses(&mut self, found: &FoundAddresses) {
        self.evidence.bound.clone_from(&found.bound);
        let otherwise = &mut self.evidence.bound_otherwise;
        otherwise.clone_from(&found.bound_otherwise);
        let others = &mut self.evidence.interface_addresses;
        others.clone_from(&found.interface_addresses);
    }

    /// Removes from `foreign`, and returns, the virtual servers that an earlier run or upstream
    /// kube-proxy created. The caller must have read all evidence of ownership. Virtual servers
    /// within the networks of `excluded` stay foreign.
    pub(crate) fn judge(self, excluded: &[IpNet], foreign: &mut ForeignServers) -> Adopted {
        let Snapshot {
            bound,
            bound_otherwise,
            interface_addresses,
            sets,
            ..
        } = &self.evidence;
        let evidence = Evidence {
            bound,
            bound_otherwise,
            interface_addresses,
            sets,
        };
        let is_ours = |(key, server): &(&VirtualServerKey, &VirtualServer)| {
            !key.is_within(excluded) && evidence.says_ours(key, Some(server))
        };
        let ours: Vec<_> = foreign
            .iter()
            .filter(is_ours)
            .map(|(key, _)| *key)
            .collect();
        let adopted = ours
            .into_iter()
            .filter_map(|key| Some((key, foreign.remove(&key)?)));
        let adopted = adopted.collect();
        foreign.mark_judged();
        adopted
    }
}
