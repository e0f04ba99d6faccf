//! Drains fwmark virtual servers that no Service wants any more, for example after a change of
//! `externalTrafficPolicy` or `--ipvs-semantics`.
//!
//! Once rules no longer mark packets, new connections use the virtual server at their destination
//! address. The fwmark virtual server keeps its open TCP connections; all its destinations have
//! weight 0.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proxy::{Protocol, ServiceAddress};

use crate::claims::Claims;
use crate::masquerading;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};
use crate::tables::Tables;

impl Claims {
    /// Drains unwanted fwmark virtual servers: they stay wanted, with weight 0 for all
    /// destinations, until their connections have ended.
    pub(crate) fn drain_former_marks(&mut self, tables: &mut Tables) {
        if !self.may_delete {
            return;
        }
        let is_unwanted = |key: &&VirtualServerKey| {
            matches!(key, VirtualServerKey::Mark { .. })
                && tables.servers.wanted(key).is_none()
                && !tables.uncertain.contains(*key)
        };
        let pending = tables.servers.pending();
        let unwanted: Vec<_> = pending.filter(is_unwanted).copied().collect();
        let owner = Arc::clone(&self.former_marks.owner);
        let kept = tables.servers.keys_of(&owner).to_vec();
        if unwanted.is_empty() && kept.is_empty() {
            return;
        }
        let mut claims = Vec::new();
        for key in &kept {
            let is_alone = tables.servers.owners(key).all(|of| *of == owner);
            let (wanted, actual) = (tables.servers.wanted(key), tables.servers.actual(key));
            if let (true, Some(wanted), Some(actual)) = (is_alone, wanted, actual)
                && !(wanted.destinations.is_empty() && actual.destinations.is_empty())
                && self.former_marks.is_reachable(key, tables)
            {
                claims.push((*key, wanted.clone()));
            }
        }
        let mut has_changed = claims.len() < kept.len();
        let mut marked = None;
        for key in unwanted {
            if masquerading::is_marked(tables, &self.marks, &key) {
                let marked = marked.get_or_insert_with(|| addresses_by_mark(tables));
                if let VirtualServerKey::Mark { mark, .. } = key
                    && let Some(addresses) = marked.get(&mark)
                {
                    let noted = self.former_marks.addresses.entry(key).or_default();
                    noted.extend(addresses);
                }
                continue;
            }
            let Some(actual) = tables.servers.actual(&key) else {
                continue;
            };
            let former = &self.former_marks;
            if actual.destinations.is_empty()
                || former.protocol(&key) != Protocol::Tcp
                || !former.is_reachable(&key, tables)
            {
                continue;
            }
            let targets: Vec<_> = actual.destinations.iter().map(|real| real.target).collect();
            self.growths.forget(&key);
            self.drains.set(key, &targets);
            let drained = VirtualServer {
                destinations: actual
                    .destinations
                    .iter()
                    .map(|real| real.with_weight(0))
                    .collect(),
                properties: actual.properties.clone(),
            };
            claims.push((key, drained));
            has_changed = true;
        }
        if has_changed {
            tables.servers.claim(&owner, claims);
        }
        let is_former = |key: &VirtualServerKey| {
            let mut owners = tables.servers.owners(key);
            tables.is_ours(key) && owners.all(|of| *of == owner)
        };
        let addresses = &mut self.former_marks.addresses;
        addresses.retain(|key, _| is_former(key));
    }
}

/// Returns, for each mark, the service addresses at which packets get this mark.
fn addresses_by_mark(tables: &Tables) -> BTreeMap<u32, BTreeSet<ServiceAddress>> {
    let mut marked = BTreeMap::<_, BTreeSet<_>>::new();
    for (member, ()) in tables.members(Set::LocalMark).iter_actual() {
        if let Member::AddressPortMark(address, protocol, port, mark) = *member {
            let at = ServiceAddress::new(address, port, protocol);
            marked.entry(mark).or_default().insert(at);
        }
    }
    marked
}
