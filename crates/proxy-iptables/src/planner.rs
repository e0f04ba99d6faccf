//! What is to be written next: from tables to a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use proxy::Owner;

use crate::chain::Shared;
use crate::claims::Claims;
use crate::config::Config;
use crate::plan::{Change, Manner, Part, Plan, Whole};
use crate::port::Slot;
use crate::tables::Tables;

/// So many changes in a shared chain are not worth writing it whole.
const FEW_CHANGES: usize = 64;

/// What a plan is made from.
pub(crate) struct Planner<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) claims: &'a Claims,
    pub(crate) manner: Manner,
    /// Whether what nobody wants may be taken away.
    pub(crate) may_delete: bool,
    /// Whether nobody knows what was written: a restore was refused.
    pub(crate) is_uncertain: bool,
    pub(crate) now: Instant,
}

impl Planner<'_> {
    /// What is written next.
    pub(crate) fn plan(&self, config: &Arc<Config>) -> Plan {
        let mut plan = Plan {
            config: Arc::clone(config),
            is_terse: self.claims.is_terse,
            manner: self.manner,
            ..Plan::default()
        };
        let due: Vec<Slot> = self.due_slots();
        self.plan_base(&due, &mut plan);
        let mut parts: BTreeMap<Option<Arc<Owner>>, Part> = BTreeMap::new();
        for chain in self.tables.chains.due(self.now) {
            match (
                self.tables.chains.owner(chain),
                self.tables.chains.wanted(chain),
            ) {
                (Some(owner), Some(content)) => {
                    let part = parts.entry(Some(Arc::clone(owner))).or_default();
                    part.chains.insert(*chain, *content);
                    part.rules += content.rules as usize;
                }
                _ if self.may_delete => plan.stale.push(*chain),
                _ => {}
            }
        }
        let mut changed: BTreeMap<Option<&Arc<Owner>>, BTreeSet<Slot>> = BTreeMap::new();
        for slot in due {
            let owner = self.tables.slots.owner(&slot);
            changed.entry(owner).or_default().insert(slot);
        }
        for (owner, slots) in changed {
            let part = parts.entry(owner.cloned()).or_default();
            part.slots = self.in_order(owner, &slots);
        }
        // Slots and chains lead to other chains of their owner, which are written with them, also if
        // one failed before and has time.
        for (owner, part) in &mut parts {
            let chains = owner.iter().flat_map(|of| self.tables.chains.keys_of(of));
            for chain in chains.filter(|chain| self.tables.chains.is_pending(chain)) {
                if let Some(content) = self.tables.chains.wanted(chain)
                    && part.chains.insert(*chain, *content).is_none()
                {
                    part.rules += content.rules as usize;
                }
            }
        }
        plan.stale.sort_unstable();
        plan.parts = parts
            .into_iter()
            .map(|(owner, mut part)| {
                let port = owner.as_ref().and_then(|owner| self.claims.port(owner));
                part.port = port.cloned();
                part.owner = owner;
                part
            })
            .collect();
        plan
    }

    /// The changes in slots, and what of their owner is in the same chains, in the order in which
    /// they are to stand: what is put in anew comes first.
    fn in_order(&self, owner: Option<&Arc<Owner>>, changed: &BTreeSet<Slot>) -> Vec<Change> {
        let change = |slot: &Slot| Change {
            slot: *slot,
            before: self.tables.slots.actual(slot).cloned(),
            after: self.tables.slots.wanted(slot).cloned(),
        };
        let Some(owner) = owner else {
            return changed.iter().map(change).collect();
        };
        let chains: BTreeSet<Shared> = changed.iter().map(|slot| slot.chain).collect();
        let own = self.tables.slots.keys_of(owner).iter().filter(|slot| {
            let is_settled = self.tables.slots.actual(slot) == self.tables.slots.wanted(slot);
            changed.contains(*slot)
                || (is_settled
                    && chains.contains(&slot.chain)
                    && self.tables.slots.owner(slot) == Some(owner))
        });
        own.map(change).collect()
    }

    /// The slots to be written; those that nobody wants only if they may go.
    fn due_slots(&self) -> Vec<Slot> {
        let due = self.tables.slots.due(self.now);
        due.filter(|slot| self.may_delete || self.tables.slots.wanted(slot).is_some())
            .copied()
            .collect()
    }

    fn plan_base(&self, due: &[Slot], plan: &mut Plan) {
        let Some(wanted) = self.tables.base.wanted(&()) else {
            return;
        };
        let installed = self.tables.base.actual(&()).cloned().unwrap_or_default();
        let mut whole: BTreeSet<Shared> = self.tables.disordered.due(self.now).copied().collect();
        // Where the base is put off, what is there of it stays.
        let mut tails = &installed;
        if self.tables.base.due(self.now).next().is_some() {
            plan.wanted = Some(Arc::clone(wanted));
            tails = wanted;
            for (table, name, lines) in wanted.differing(&installed) {
                match Shared::find(table, name) {
                    Some(chain) => {
                        whole.insert(chain);
                    }
                    None => plan.base.push((table, name, lines.to_vec())),
                }
            }
            plan.guests = wanted.missing_guests(&installed);
        }
        if self.manner == Manner::Together {
            for chain in Shared::ALL {
                let changes = due.iter().filter(|slot| slot.chain == chain).count();
                if changes > FEW_CHANGES && changes > self.tables.slots.wanted_len() / 8 {
                    whole.insert(chain);
                }
            }
        }
        let mut texts = self.texts_of(&whole);
        plan.whole = whole
            .into_iter()
            .map(|chain| Whole {
                chain,
                slots: texts.remove(&chain).unwrap_or_default(),
                tail: tails.tail(chain).to_vec(),
            })
            .collect();
    }

    /// Whether a slot was refused, and is to be tried again later.
    fn is_put_off(&self, slot: &Slot) -> bool {
        let slots = &self.tables.slots;
        slots.is_failing(slot) && !slots.is_due(slot, self.now)
    }

    /// All rules of Services that are to be in these chains, in the order of their owners.
    fn texts_of(&self, chains: &BTreeSet<Shared>) -> BTreeMap<Shared, Vec<Arc<str>>> {
        let mut texts: BTreeMap<Shared, Vec<Arc<str>>> = BTreeMap::new();
        if chains.is_empty() {
            return texts;
        }
        let mut put = |slot: &Slot, text: Option<&Arc<str>>| {
            if let Some(text) = text.filter(|_| chains.contains(&slot.chain)) {
                texts.entry(slot.chain).or_default().push(Arc::clone(text));
            }
        };
        let is_apart = self.manner == Manner::Apart;
        let mut owners: Vec<&Arc<Owner>> = self.claims.owners().collect();
        owners.sort_unstable_by_key(|owner| (owner.rank, *owner));
        for owner in owners {
            let slots = self.tables.slots.keys_of(owner).iter();
            for slot in slots.filter(|slot| self.tables.slots.owner(slot) == Some(owner)) {
                // What is tried apart stays out: only what the kernel has taken before.
                // So does what was refused, until its time comes.
                if is_apart || self.is_put_off(slot) {
                    put(slot, self.tables.slots.actual(slot));
                } else {
                    put(slot, self.tables.slots.wanted(slot));
                }
            }
        }
        if is_apart || !self.may_delete {
            for (slot, text) in self.tables.slots.iter_actual() {
                if self.tables.slots.wanted(slot).is_none() {
                    put(slot, Some(text));
                }
            }
        }
        texts
    }

    /// Once everything is served by this mode, what IPVS mode has left may go.
    pub(crate) fn plan_leftovers(&self) -> Option<Plan> {
        // After a refusal it is not known what of them is left.
        if !self.may_delete || !self.tables.serve_all() || self.is_uncertain {
            return None;
        }
        let due = self.tables.leftovers.due(self.now).next()?;
        Some(Plan {
            manner: self.manner,
            leftovers: self.tables.leftovers.actual(due)?.clone(),
            ..Plan::default()
        })
    }
}
