//! Plans the next transaction, from the tables of wanted and actual objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashSet;
use nftables_netlink::Name;
use proxy::{IpFamily, Owner, Rank, Share, Shares};

use crate::base::{Base, BaseKey, BaseValue, SERVICES_CHAIN};
use crate::budget::Budget;
use crate::claims::Claims;
use crate::config::Config;
use crate::content::Content;
use crate::edits::MANY_RULES;
use crate::layout::Layout;
use crate::name::{NODE_PORT_IPS, affinity_of_chain};
use crate::pending::{PendingChanges, SHARE, has_later, in_turns, is_due};
use crate::plan::{
    BaseChange, ChainState, ChainWrite, ClientsChange, ExistingObject, LocalhostPort, Plan,
    PortChanges, Removal, SlotChange, StaleObject, Timeouts,
};
use crate::port::Slot;
use crate::tables::Tables;

/// Largest number of Service ports in a transaction, for two reasons. For each new map, the kernel
/// searches all maps of the transaction (docs/design/nftables-cost.md). Each port takes about a
/// kilobyte of memory.
const MANY_PARTS: usize = 1_000;
/// Largest number of sets of session affinity clients in a transaction. For each new set, the
/// kernel searches all sets of the table.
const MANY_SETS: usize = 4_000;
/// Largest number of endpoints in a transaction. Each endpoint takes about 60 bytes of memory.
const MANY_ENDPOINTS: usize = 100_000;
/// Largest number of slots (addresses and ports) whose elements a transaction writes or deletes.
const MANY_SLOTS: usize = 10_000;
/// Largest number of sets of session affinity clients that a transaction writes for one Service
/// port.
const MANY_CLIENTS: usize = MANY_RULES;
/// Number of pending slots (addresses and ports) from which a plan contains only some of the
/// pending Service ports.
const MANY_ENTRIES: usize = 4_000;
/// Number of pending Service ports above which urgent ports get a separate transaction. The ports
/// of the API server and DNS are urgent, because the whole node waits for them.
const FEW_PARTS: usize = 256;
/// Largest number of unwanted objects that one transaction deletes.
const MANY_STALE: usize = 20_000;

/// Input from which a plan is computed: tables, claims, limits and the time.
pub(crate) struct Planner<'a> {
    pub(crate) family: IpFamily,
    pub(crate) tables: &'a Tables,
    pub(crate) claims: &'a Claims,
    pub(crate) base: &'a Arc<Base>,
    pub(crate) removal: Removal,
    pub(crate) timeouts: Timeouts,
    pub(crate) budget: Budget,
    /// True if the mode may delete unwanted objects.
    pub(crate) may_delete: bool,
    pub(crate) now: Instant,
}

impl<'a> Planner<'a> {
    /// Returns the next plan, which is empty if no write is due.
    pub(crate) fn plan(&self, config: &Arc<Config>) -> Plan {
        let mut plan = Plan {
            family: self.family,
            config: Arc::clone(config),
            base: Arc::clone(self.base),
            base_changes: BTreeMap::new(),
            services_chain: None,
            node_ports: Vec::new(),
            parts: Vec::new(),
            listeners: self.listeners(),
            stale: Vec::new(),
            removal: self.removal,
            timeouts: self.timeouts,
        };
        self.plan_base(&mut plan);
        // Plans no Service port in two cases: an object that all Services need is missing and not
        // in this plan, or the plan replaces a set. A replaced set loses its elements, and only the
        // next read of the table shows this loss.
        if !self.is_founded(&plan) || plan.replaces_set() {
            return plan;
        }
        // Changes the layout in a single transaction, so that no packet finds a mixture of both
        // layouts.
        let is_moving = self.is_moving();
        let services_chain = plan.base_changes.get(&SERVICES_CHAIN);
        let is_there = services_chain
            .is_some_and(|services_chain| services_chain.there == ExistingObject::Same);
        if is_moving && is_there && self.base.layout() == Layout::Upstream {
            plan.services_chain = plan.base_changes.remove(&SERVICES_CHAIN);
        }
        let some = if is_moving {
            PendingChanges::default()
        } else {
            self.some_due()
        };
        let is_all = some.owned.is_empty();
        let mut due = if is_all { self.due() } else { some };
        let owned = in_turns(std::mem::take(&mut due.owned));
        let count = owned.len();
        let urgent = owned.iter();
        let urgent = urgent.take_while(|(owner, _)| owner.rank < Rank::Other);
        let urgent = urgent.count();
        let most = match urgent {
            _ if is_moving => usize::MAX,
            1.. if count > FEW_PARTS => urgent,
            _ => self.budget.of(MANY_PARTS),
        };
        let most = if is_moving {
            most
        } else {
            self.fitting(&owned).min(most)
        };
        let mut is_last = is_all && count <= most;
        let owned = owned.into_iter().take(most);
        plan.parts = owned
            .map(|(owner, mut part)| {
                part.port = self.claims.port(owner).cloned();
                self.add_waiting_chains(owner, &mut part);
                self.free_replaced(&mut part, config);
                // A change of the layout must be complete in one transaction, so the plan then
                // defers no change.
                is_last &= is_moving || !self.leave_for_later(&mut part, plan.timeouts);
                part.owner = Some(Arc::clone(owner));
                part
            })
            .collect();
        // Deletes unwanted elements last, and very many of them in several transactions.
        let many_slots = self.budget.of(MANY_SLOTS);
        if is_last && !is_moving && due.unowned.len() > many_slots {
            due.unowned.truncate(many_slots);
            is_last = false;
            // Deletes no chain before the last of these transactions, because other unwanted
            // elements may still lead to it.
            plan.parts.append(&mut due.unowned);
        }
        if is_last {
            plan.parts.append(&mut due.unowned);
            if !is_moving {
                due.stale.truncate(self.budget.of(MANY_STALE));
            }
            plan.stale = due.stale;
            if !self.is_wanted_later() {
                plan.stale.extend(self.stale_base());
            }
        }
        plan
    }

    /// Returns the part of the full budget that a plan uses.
    pub(crate) fn size(plan: &Plan) -> Budget {
        let (mut sets, mut endpoints, mut slots) = (0, 0, 0);
        for part in &plan.parts {
            sets += part.affinity.len();
            slots += part.slots.len();
            if !part.chains.is_empty() {
                endpoints += part.port.as_ref().map_or(0, |port| port.endpoints);
            }
        }
        let owned = plan.parts.iter().filter(|part| part.owner.is_some());
        Budget::share(owned.count(), MANY_PARTS)
            .max(Budget::share(sets, MANY_SETS))
            .max(Budget::share(endpoints, MANY_ENDPOINTS))
            .max(Budget::share(slots, MANY_SLOTS))
            .max(Budget::share(plan.stale.len(), MANY_STALE))
    }

    /// Returns the NodePorts on localhost that are due to be opened, updated or closed.
    fn listeners(&self) -> Vec<LocalhostPort> {
        let listeners = &self.tables.listeners;
        let due = listeners.due(self.now).map(|number| {
            let owner = listeners.owner(number);
            LocalhostPort {
                number: *number,
                name: owner.map(|owner| owner.name.clone()),
                serving: listeners.wanted(number).cloned(),
            }
        });
        let mut due: Vec<_> = due
            .filter(|port| port.serving.is_some() || self.may_delete)
            .collect();
        due.sort_by_key(|port| port.number);
        due
    }

    /// Returns how many Service ports at the start of `due` fit into one transaction, at least 1.
    fn fitting(&self, due: &[(&'a Arc<Owner>, PortChanges)]) -> usize {
        let (mut sets, mut endpoints, mut slots) = (0_usize, 0_usize, 0_usize);
        let fits = due.iter().position(|(owner, part)| {
            sets += part.affinity.len();
            slots += part.slots.len();
            if !part.chains.is_empty() || part.slots.iter().any(SlotChange::has_choices) {
                endpoints += self.claims.port(owner).map_or(0, |port| port.endpoints);
            }
            sets > self.budget.of(MANY_SETS)
                || endpoints > self.budget.of(MANY_ENDPOINTS)
                || slots > self.budget.of(MANY_SLOTS)
        });
        fits.unwrap_or(due.len()).max(1)
    }

    /// Adds chains and sets of a Service port that would otherwise wait for a retry, in two cases:
    ///
    /// - The kernel has refused a chain to which a new element leads. Without this chain, it would
    ///   also refuse the element.
    /// - The content of a chain is unknown, so the chain may lead packets to unwanted endpoints.
    fn add_waiting_chains(&self, owner: &Arc<Owner>, part: &mut PortChanges) {
        let (chains, affinity) = (&self.tables.chains, &self.tables.affinity);
        let is_left = |chain: &Name| !part.chains.contains_key(chain);
        let is_missing = |chain: &Name| chains.actual(chain).is_none() && is_left(chain);
        let is_doubted = |chain: &Name| chains.is_doubted(chain) && is_left(chain);
        let mut routes = part.slots.iter().filter_map(|slot| slot.after.as_ref());
        if !routes.any(|route| route.chains().any(is_missing))
            && !chains.keys_of(owner).iter().any(is_doubted)
        {
            return;
        }
        let mine = chains.keys_of(owner).iter();
        for chain in mine.filter(|chain| chains.is_pending(chain)) {
            if let Some(written) = self.written(chain) {
                part.chains.insert(Arc::clone(chain), written);
            }
        }
        let mine = affinity.keys_of(owner).iter();
        for set in mine.filter(|set| affinity.is_pending(set)) {
            let is_new = !part.affinity.iter().any(|(of, _)| of == set);
            let clients = self.clients(set).filter(|_| is_new);
            part.affinity
                .extend(clients.map(|of| (Arc::clone(set), of)));
        }
    }

    /// Defers some changes to a Service port with session affinity and many endpoints, because the
    /// kernel takes long to apply them. Returns true if any change is deferred. Plans write the
    /// changes in this order:
    ///
    /// 1. sets and chains of endpoints;
    /// 2. the chain that chooses an endpoint, in several transactions;
    /// 3. the elements that lead to this chain.
    fn leave_for_later(&self, part: &mut PortChanges, timeouts: Timeouts) -> bool {
        let mut sets = part.affinity.iter();
        if sets.any(|(_, clients)| clients.is_replacement(timeouts)) {
            return false;
        }
        if part.affinity.len() > MANY_CLIENTS {
            part.affinity.truncate(MANY_CLIENTS);
            let sets = part.affinity.iter().map(|(set, _)| set);
            let kept: BTreeSet<&Name> = sets.collect();
            part.chains
                .retain(|chain, _| affinity_of_chain(chain).is_some_and(|set| kept.contains(&set)));
        } else {
            let Some(port) = part.port.as_ref().filter(|port| port.has_affinity()) else {
                return false;
            };
            let long = port.chains_that_name_affinity();
            let is_long = |chain: &Name| {
                let there = self.tables.chains.actual(chain).map_or(0, |of| of.rules);
                let wanted = part.chains.get(chain).map_or(0, |of| of.content.rules);
                wanted.saturating_sub(there) as usize > MANY_RULES
            };
            if !long.iter().any(is_long) {
                return false;
            }
            part.chains
                .retain(|chain, _| long.contains(chain) || affinity_of_chain(chain).is_some());
        }
        part.slots.clear();
        part.members.clear();
        true
    }

    /// Adds all chains of a Service port to the plan if the plan replaces one of the port's sets,
    /// because the rules that use the set must then be written again.
    fn free_replaced(&self, part: &mut PortChanges, config: &Config) {
        let mut sets = part.affinity.iter();
        if !sets.any(|(_, clients)| clients.is_replacement(self.timeouts)) {
            return;
        }
        let Some(port) = &part.port else {
            return;
        };
        for (chain, content) in port.chains(config) {
            let there = self.known(&chain);
            part.chains.insert(chain, ChainWrite { content, there });
        }
        // Flushes existing chains that use the set but are no longer wanted. Otherwise, the kernel
        // would not delete the set. A later transaction deletes these chains.
        let left = port.chains_that_name_affinity().into_iter();
        part.emptied = left
            .filter(|chain| self.tables.chains.actual(chain).is_some())
            .filter(|chain| !part.chains.contains_key(chain))
            .collect();
    }

    /// Returns true if no object that Service ports share is missing: each exists, is in the plan,
    /// or waits for a change of layout.
    fn is_founded(&self, plan: &Plan) -> bool {
        let base = &self.tables.base;
        let mut missing = base.pending().filter(|key| base.wanted(key).is_some());
        missing.all(|key| plan.base_changes.contains_key(key) || self.has_to_wait(key))
    }

    /// Returns true if the next plan changes the table from one layout to the other.
    fn is_moving(&self) -> bool {
        self.may_delete && self.tables.has_other_layout()
    }

    /// Returns true if the write of the chain `services` must wait during a change of layout.
    ///
    /// * In upstream's layout, the chain waits while some Services are unknown, or while refused
    ///   objects of Services wait for a retry.
    /// * In the layout `flat`, the chain need not wait, because it leads to objects of both
    ///   layouts.
    fn has_to_wait(&self, key: &BaseKey) -> bool {
        let is_there = self.tables.base.actual(key).is_some();
        let leads = *key == SERVICES_CHAIN && self.base.layout() == Layout::Upstream;
        leads
            && is_there
            && (!self.may_delete || self.is_service_later())
            && self.tables.has_other_layout()
    }

    /// Returns true if the kernel refused a wanted object that waits for its retry. During a change
    /// of layout, Services may depend on objects of the old layout until the retry.
    fn is_wanted_later(&self) -> bool {
        has_later(&self.tables.base, self.now) || self.is_service_later()
    }

    /// Returns true if the kernel refused a wanted object of a Service port that waits for its
    /// retry.
    fn is_service_later(&self) -> bool {
        let Tables { slots, chains, .. } = self.tables;
        has_later(slots, self.now) || has_later(chains, self.now)
    }

    /// Returns the unwanted objects that do not depend on Services.
    fn stale_base(&self) -> Vec<StaleObject> {
        let base = &self.tables.base;
        let due = base.due(self.now).filter(|_| self.may_delete);
        let stale = due.filter(|key| base.wanted(key).is_none());
        let mut stale: Vec<BaseKey> = stale.cloned().collect();
        stale.sort_unstable();
        stale.into_iter().map(StaleObject::Base).collect()
    }

    /// Makes the plan flush unwanted chains that use a replaced set, so that the kernel can delete
    /// the set.
    fn empty_unwanted(&self, plan: &mut Plan) {
        let base = &self.tables.base;
        let replaced = plan.base_changes.iter();
        let replaced = replaced.filter(|(_, of)| of.there == ExistingObject::Other);
        let sets: Vec<&'static str> = replaced
            .filter_map(|(key, _)| match key {
                BaseKey::Set(name) => Some(*name),
                BaseKey::Table | BaseKey::Chain(_) | BaseKey::Counter(_) | BaseKey::Chooser(_) => {
                    None
                }
            })
            .collect();
        for (key, there) in base.iter_actual() {
            if base.wanted(key).is_none()
                && let BaseValue::Chain(hook, _) = there
                && sets.iter().any(|set| key.names_unwanted(set))
            {
                let change = BaseChange {
                    wanted: Some(BaseValue::Chain(*hook, Content::default())),
                    there: ExistingObject::Same,
                };
                plan.base_changes.insert(key.clone(), change);
            }
        }
    }

    fn plan_base(&self, plan: &mut Plan) {
        let base = &self.tables.base;
        for key in base.due(self.now) {
            let wanted = base.wanted(key).cloned();
            let there = base.actual(key);
            if wanted.is_none() || self.has_to_wait(key) {
                continue;
            }
            let there = match (there, &wanted) {
                (None, _) => ExistingObject::Nothing,
                (Some(BaseValue::Chain(there, _)), Some(BaseValue::Chain(wanted, _)))
                    if there != wanted =>
                {
                    ExistingObject::Other
                }
                (Some(BaseValue::Set(_)), Some(_)) => ExistingObject::Other,
                _ => ExistingObject::Same,
            };
            let change = BaseChange { wanted, there };
            plan.base_changes.insert(key.clone(), change);
        }
        if plan.replaces_set() {
            self.empty_unwanted(plan);
            // The kernel cannot delete a set while rules use it. So the plan flushes all chains of
            // the base, deletes the old set, adds the new set, and then writes the rules again.
            for (key, wanted) in base.iter_wanted() {
                let is_chain = matches!(key, BaseKey::Chain(_) | BaseKey::Chooser(_));
                if is_chain && base.actual(key).is_some() {
                    let change = BaseChange {
                        wanted: Some(wanted.clone()),
                        there: ExistingObject::Same,
                    };
                    plan.base_changes.entry(key.clone()).or_insert(change);
                }
            }
        }
        let addresses = &self.tables.node_ports;
        // Skips deletions if this plan creates the set, because a new set has no elements.
        let is_new = plan.base_changes.contains_key(&BaseKey::Set(NODE_PORT_IPS));
        for address in addresses.due(self.now) {
            let is_wanted = addresses.wanted(address).is_some();
            if is_new && !is_wanted {
                continue;
            }
            plan.node_ports.push((*address, is_wanted));
        }
        plan.node_ports.sort_unstable();
    }

    /// Returns the changes for some Service ports if very many changes are pending, as at a start.
    /// Otherwise, returns no changes. Urgent ports (API server, DNS) come first. Skips entries
    /// whose last write failed.
    fn some_due(&self) -> PendingChanges<'a> {
        let tables = self.tables;
        let mut due = PendingChanges::default();
        if tables.slots.pending_len() < MANY_ENTRIES {
            return due;
        }
        let mut urgent: HashSet<&'a Arc<Owner>> = HashSet::new();
        let mut within: HashSet<&'a Arc<Owner>> = HashSet::new();
        // Service ports beyond the share of their Service or namespace. Their changes come last.
        let mut more: HashSet<&'a Arc<Owner>> = HashSet::new();
        let mut shares = Shares::new(SHARE);
        let chains = tables.chains.due(self.now);
        let chains = chains.filter(|chain| !tables.chains.is_failing(*chain));
        // Includes changed chains. If only the endpoints of a Service change, the Service's chain
        // is the only pending entry.
        let changed = chains.filter(|chain| tables.chains.actual(*chain).is_some());
        let of_chains = changed.filter_map(|chain| tables.chains.owner(chain));
        let slots = tables.slots.due(self.now);
        let slots = slots.filter(|slot| !tables.slots.is_failing(*slot));
        let of_slots = slots.filter_map(|slot| tables.slots.owner(slot));
        for owner in of_chains.chain(of_slots) {
            if owner.rank < Rank::Other {
                urgent.insert(owner);
            } else if !within.contains(owner) && !more.contains(owner) {
                if shares.of(&owner.name.service, 1) == Share::Within {
                    within.insert(owner);
                } else if more.len() < self.budget.of(MANY_PARTS) {
                    more.insert(owner);
                }
            }
        }
        let mut others: Vec<&'a Arc<Owner>> = within.into_iter().collect();
        others.sort_unstable();
        others.extend(more);
        others.truncate(self.budget.of(MANY_PARTS));
        for owner in urgent.into_iter().chain(others) {
            let chains = tables.chains.keys_of(owner).iter();
            let chains = chains.filter(|chain| is_due(&tables.chains, chain));
            let sets = tables.affinity.keys_of(owner).iter();
            let sets = sets.filter(|set| is_due(&tables.affinity, set));
            let slots = tables.slots.keys_of(owner).iter();
            let slots = slots.filter(|slot| tables.slots.owner(slot) == Some(owner));
            let slots = slots.filter(|slot| is_due(&tables.slots, slot));
            let members = tables.members.keys_of(owner).iter();
            let members = members.filter(|member| tables.members.owner(member) == Some(owner));
            let members = members.filter(|member| is_due(&tables.members, member));
            let part = PortChanges {
                chains: chains
                    .filter_map(|chain| Some((Arc::clone(chain), self.written(chain)?)))
                    .collect(),
                affinity: sets
                    .filter_map(|set| Some((Arc::clone(set), self.clients(set)?)))
                    .collect(),
                slots: slots.map(|slot| self.change(slot)).collect(),
                members: members.map(|member| (*member, true)).collect(),
                ..PortChanges::default()
            };
            due.owned.insert((owner.rank, owner), part);
        }
        due
    }

    fn written(&self, chain: &Name) -> Option<ChainWrite> {
        let chains = &self.tables.chains;
        Some(ChainWrite {
            content: *chains.wanted(chain)?,
            there: self.known(chain),
        })
    }

    fn known(&self, chain: &Name) -> ChainState {
        let chains = &self.tables.chains;
        if chains.is_doubted(chain) {
            ChainState::Unknown
        } else if chains.actual(chain).is_some() {
            ChainState::Present
        } else {
            ChainState::Absent
        }
    }

    fn clients(&self, set: &Name) -> Option<ClientsChange> {
        let sets = &self.tables.affinity;
        Some(ClientsChange {
            wanted: *sets.wanted(set)?,
            there: sets.actual(set).copied(),
        })
    }

    fn change(&self, slot: &Slot) -> SlotChange {
        SlotChange {
            slot: *slot,
            before: self.tables.slots.actual(slot).cloned(),
            after: self.tables.slots.wanted(slot).cloned(),
        }
    }

    fn due(&self) -> PendingChanges<'a> {
        let (tables, now) = (self.tables, self.now);
        let mut due = PendingChanges::default();
        let mut stale: BTreeSet<(bool, &Name)> = BTreeSet::new();
        for chain in tables.chains.due(now) {
            match (tables.chains.owner(chain), self.written(chain)) {
                (Some(owner), Some(written)) => {
                    due.part(owner).chains.insert(Arc::clone(chain), written);
                }
                _ => {
                    stale.insert((false, chain));
                }
            }
        }
        for set in tables.affinity.due(now) {
            match (tables.affinity.owner(set), self.clients(set)) {
                (Some(owner), Some(clients)) => {
                    let part = due.part(owner);
                    part.affinity.push((Arc::clone(set), clients));
                }
                _ => {
                    stale.insert((true, set));
                }
            }
        }
        // Collects one element more than a transaction may have. The additional element shows that
        // further changes remain.
        let many_slots = if self.is_moving() {
            usize::MAX
        } else {
            self.budget.of(MANY_SLOTS) + 1
        };
        for slot in tables.slots.due(now) {
            match tables.slots.owner(slot) {
                Some(owner) => due.part(owner).slots.push(self.change(slot)),
                None if self.may_delete && due.unowned.len() < many_slots => {
                    due.unowned.push(PortChanges {
                        slots: vec![self.change(slot)],
                        ..PortChanges::default()
                    });
                }
                None => {}
            }
        }
        for member in tables.members.due(now) {
            match tables.members.owner(member) {
                Some(owner) => due.part(owner).members.push((*member, true)),
                None if self.may_delete => due.unowned.push(PortChanges {
                    members: vec![(*member, false)],
                    ..PortChanges::default()
                }),
                None => {}
            }
        }
        due.sort();
        if self.may_delete {
            let named = stale.into_iter().map(|(is_set, name)| {
                let name = Arc::clone(name);
                if is_set {
                    StaleObject::Set(name)
                } else {
                    StaleObject::Chain(name)
                }
            });
            due.stale = named.collect();
        }
        due
    }
}
