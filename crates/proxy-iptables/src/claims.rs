//! Claims: the rules that each Service wants, and their number. Also decides whether the rules'
//! comments name endpoints.

use std::sync::Arc;

use hashbrown::HashMap;
use proxy::{NamespacedName, Owner, released};
use reconcile::Table as Entries;

use crate::chain::Table;
use crate::config::Config;
use crate::port::{RuleContext, ServedPort, ServiceAddress, Slot};
use crate::tables::Tables;

/// Number of endpoints in an IP family above which rule comments omit endpoints, as in upstream.
const MANY_ENDPOINTS: usize = 1000;
/// Number of endpoints up to which rule comments name endpoints again, after they had omitted them.
/// Because of the gap to `MANY_ENDPOINTS`, a single endpoint that comes and goes does not rewrite
/// every chain.
const FEW_ENDPOINTS: usize = 900;

/// Wanted rules (claims) of all Services of one IP family.
#[derive(Default)]
pub(crate) struct Claims {
    /// Compiled ports of each Service.
    ports: HashMap<NamespacedName, Vec<Arc<ServedPort>>>,
    /// Compiled port of each owner, with the number of its rules.
    by_owner: HashMap<Arc<Owner>, (Arc<ServedPort>, RuleCounts)>,
    /// For each address and port, the Service ports that claim it. The first Service port owns all
    /// rules for the address and port, in every chain.
    pub(crate) places: Entries<ServiceAddress, (), Arc<Owner>>,
    endpoints: usize,
    /// Total numbers of the rules that all Services claim.
    pub(crate) rules: RuleCounts,
    pub(crate) is_terse: bool,
    /// True once every Service and EndpointSlice is known. Until then, the mode must not remove
    /// unwanted rules.
    pub(crate) may_delete: bool,
}

/// Number of rules in table filter, then in table nat.
pub(crate) type RuleCounts = [usize; 2];

impl Claims {
    /// Returns the names of all Services that claim rules.
    pub(crate) fn services(&self) -> impl Iterator<Item = &NamespacedName> {
        self.ports.keys()
    }

    /// Returns all Service ports that claim rules.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &Arc<Owner>> {
        self.by_owner.keys()
    }

    /// Returns the compiled port of an owner.
    pub(crate) fn port(&self, owner: &Arc<Owner>) -> Option<&Arc<ServedPort>> {
        self.by_owner.get(owner).map(|(port, _)| port)
    }

    /// Reports whether the kernel has every rule that a Service claims.
    pub(crate) fn is_settled(&self, service: &NamespacedName, tables: &Tables) -> bool {
        let mut ports = self.ports.get(service).into_iter().flatten();
        let is_known = |port: &ServedPort| self.may_delete || !port.is_cut_off();
        tables.has_base() && ports.all(|port| is_known(port) && tables.has_all_of(&port.owner))
    }

    /// Replaces the wanted rules of a Service by the rules for `ports`.
    pub(crate) fn put(
        &mut self,
        service: &NamespacedName,
        ports: Vec<ServedPort>,
        tables: &mut Tables,
        config: &Config,
    ) {
        let ports: Vec<Arc<ServedPort>> = ports.into_iter().map(Arc::new).collect();
        let before = if ports.is_empty() {
            self.ports.remove(service)
        } else {
            self.ports.insert(service.clone(), ports.clone())
        };
        let before = before.unwrap_or_default();
        self.endpoints -= before.iter().map(|old| old.endpoints).sum::<usize>();
        for old in released(before, &ports, |port| &port.owner) {
            tables.slots.release(&old.owner);
            tables.chains.release(&old.owner);
            self.count(&old.owner, None);
            self.claim_places(&old.owner, &[], tables, config);
        }
        for port in ports {
            self.endpoints += port.endpoints;
            self.claim(port, tables, config);
        }
    }

    fn claim(&mut self, port: Arc<ServedPort>, tables: &mut Tables, config: &Config) {
        let style = RuleContext {
            config,
            is_terse: self.is_terse,
        };
        let slots = port.slots(style);
        let mut chains = port.chains(style);
        if !self.may_delete && port.is_cut_off() {
            // An object that the mode has not received yet, or cannot read, may contain endpoints
            // on this node. So this chain keeps the rules that the kernel has, and so do the chains
            // to which it jumps.
            let external = port.external_chain();
            let mut compiled = chains.iter_mut().filter(|(chain, _)| *chain == external);
            if let (Some((_, content)), Some(there)) =
                (compiled.next(), tables.chains.actual(&external))
            {
                *content = *there;
            }
        }
        tables.chains.claim(&port.owner, chains);
        self.claim_places(&port.owner, &slots, tables, config);
        self.claim_slots(port, slots, tables);
    }

    /// Sets the rules that a Service port wants in shared chains, for each address and port that it
    /// owns.
    fn claim_slots(
        &mut self,
        port: Arc<ServedPort>,
        mut slots: Vec<(Slot, Arc<str>)>,
        tables: &mut Tables,
    ) {
        let owner = Arc::clone(&port.owner);
        slots.retain(|(slot, _)| self.places.owner(&slot.place()) == Some(&owner));
        let [mut filter, mut nat] = RuleCounts::default();
        for (slot, text) in &slots {
            let of = if slot.chain.table() == Table::Nat {
                &mut nat
            } else {
                &mut filter
            };
            *of += text.lines().count();
        }
        let chains = tables.chains.keys_of(&owner).iter();
        let own = chains.filter_map(|chain| tables.chains.wanted(chain));
        nat += own.map(|content| content.rules as usize).sum::<usize>();
        tables.slots.claim(&owner, slots);
        self.count(&owner, Some((port, [filter, nat])));
    }

    /// Replaces the addresses and ports that a Service port claims by those of `slots`. If an
    /// address and port gets another owner, also updates the rules of its former and its new owner.
    fn claim_places(
        &mut self,
        owner: &Arc<Owner>,
        slots: &[(Slot, Arc<str>)],
        tables: &mut Tables,
        config: &Config,
    ) {
        let slots = slots.iter().map(|(slot, _)| slot.place());
        let mut places: Vec<ServiceAddress> = slots.collect();
        places.sort_unstable();
        places.dedup();
        let claimed = places.clone();
        let before = self.places.keys_of(owner).iter();
        let released = before.filter(|place| claimed.binary_search(place).is_err());
        places.extend(released);
        let first = |all: &Entries<ServiceAddress, (), Arc<Owner>>| {
            let firsts = places.iter().map(|place| all.owner(place).cloned());
            firsts.collect::<Vec<_>>()
        };
        let had = first(&self.places);
        let claimed = claimed.into_iter().map(|place| (place, ()));
        self.places.claim(owner, claimed);
        let has = first(&self.places);
        let changed = had.into_iter().zip(has).filter(|(had, has)| had != has);
        let others = changed.flat_map(|(had, has)| [had, has]).flatten();
        let mut others: Vec<Arc<Owner>> = others.filter(|other| other != owner).collect();
        others.sort_unstable();
        others.dedup();
        let style = RuleContext {
            config,
            is_terse: self.is_terse,
        };
        for other in others {
            if let Some(port) = self.port(&other).cloned() {
                let slots = port.slots(style);
                self.claim_slots(port, slots, tables);
            }
        }
    }

    /// Claims the rules of cut-off Service ports again, after a read of the kernel's rules. A
    /// cut-off port has no endpoint on this node for packets from outside. Until the mode may
    /// delete rules, the port's chain for these packets keeps the rules that the kernel has.
    pub(crate) fn go_on(&mut self, tables: &mut Tables, config: &Config) {
        let ports = self.ports.values().flatten();
        let cut_off: Vec<_> = ports.filter(|port| port.is_cut_off()).cloned().collect();
        for port in cut_off {
            self.claim(port, tables, config);
        }
    }

    /// Records an owner's compiled port and its numbers of rules, and updates the totals. `None`
    /// removes the owner.
    fn count(&mut self, owner: &Arc<Owner>, now: Option<(Arc<ServedPort>, RuleCounts)>) {
        let rules = now.as_ref().map_or([0; 2], |(_, rules)| *rules);
        let before = match now {
            Some(now) => self.by_owner.insert(Arc::clone(owner), now),
            None => self.by_owner.remove(owner),
        };
        let before = before.map_or([0; 2], |(_, rules)| rules);
        for (sum, (plus, minus)) in self.rules.iter_mut().zip(rules.into_iter().zip(before)) {
            *sum = *sum + plus - minus;
        }
    }

    /// Decides whether comments of rules name endpoints. If the decision changes, compiles all
    /// wanted rules again.
    pub(crate) fn settle_style(&mut self, tables: &mut Tables, config: &Config) {
        let most = if self.is_terse {
            FEW_ENDPOINTS
        } else {
            MANY_ENDPOINTS
        };
        let is_terse = self.endpoints > most;
        if is_terse == self.is_terse {
            return;
        }
        self.is_terse = is_terse;
        let ports: Vec<Arc<ServedPort>> = self.ports.values().flatten().cloned().collect();
        for port in ports {
            self.claim(port, tables, config);
        }
    }
}
