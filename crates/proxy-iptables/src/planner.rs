//! Plans the next restore, from the recorded wanted and actual rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashSet;
use proxy::{Owner, Rank, Share, Shares};

use crate::chain::{Chain, Shared};
use crate::claims::Claims;
use crate::config::Config;
use crate::plan::{Change, Plan, PortWrites, RestoreStrategy, WholeChain};
use crate::port::{Content, Slot};
use crate::tables::Tables;

/// Number of changes up to which a plan changes single rules of a shared chain. With more changes,
/// the plan writes the whole chain if the changes also exceed an eighth of all wanted slots.
const FEW_CHANGES: usize = 64;
/// Approximate number of Service rules in one restore. iptables-nft writes this number in 25 ms.
/// The time of a larger restore grows with the square of its size.
const MANY_RULES: usize = 1_024;
/// Approximate largest number of restores that write all rules. iptables-legacy reads and writes a
/// whole table for each restore, so more restores would take too long.
const MAX_RESTORES: usize = 32;
/// Number of rules per restore up to which a Service or namespace keeps its place in the order of
/// writes. Its further rules follow the rules of all other Services.
const SHARE: usize = 256;

/// Inputs from which the planner makes a plan.
pub(crate) struct Planner<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) claims: &'a Claims,
    pub(crate) manner: RestoreStrategy,
    /// True if the plan may remove unwanted rules.
    pub(crate) may_delete: bool,
    /// True if a refused restore may have changed the kernel's rules.
    pub(crate) is_uncertain: bool,
    pub(crate) now: Instant,
}

impl Planner<'_> {
    /// Returns the next plan, which is empty if no write is due.
    pub(crate) fn plan(&self, config: &Arc<Config>) -> Plan {
        let mut plan = Plan {
            config: Arc::clone(config),
            is_terse: self.claims.is_terse,
            manner: self.manner,
            ..Plan::default()
        };
        let mut parts = self.due_parts();
        let is_last = self.leave_for_later(&mut parts);
        let written = parts.values().flat_map(|part| &part.slots);
        let written: HashSet<Slot> = written.map(|change| change.slot).collect();
        self.plan_base(&written, is_last, &mut plan);
        // Removes stale chains only in the last restore: until then, rules may still jump to the
        // stale chains.
        if is_last && self.may_delete {
            let due = self.tables.chains.due(self.now);
            let stale = due.filter(|chain| self.tables.chains.wanted(chain).is_none());
            plan.stale = stale.copied().collect();
            plan.stale.sort_unstable();
        }
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

    /// Returns the due changes of all Service ports, by owner.
    fn due_parts(&self) -> BTreeMap<Option<Arc<Owner>>, PortWrites> {
        let mut parts: BTreeMap<Option<Arc<Owner>>, PortWrites> = BTreeMap::new();
        for chain in self.tables.chains.due(self.now) {
            if let Some(owner) = self.tables.chains.owner(chain)
                && let Some(content) = self.tables.chains.wanted(chain)
            {
                let part = parts.entry(Some(Arc::clone(owner))).or_default();
                part.chains.insert(*chain, *content);
                part.rules += self.rules_written(chain, *content);
            }
        }
        let mut changed: BTreeMap<Option<&Arc<Owner>>, BTreeSet<Slot>> = BTreeMap::new();
        for slot in self.due_slots() {
            let owner = self.tables.slots.owner(&slot);
            changed.entry(owner).or_default().insert(slot);
        }
        for (owner, slots) in changed {
            let part = parts.entry(owner.cloned()).or_default();
            part.slots = self.in_order(owner, &slots);
        }
        // The rules of a Service port jump to other chains of the same port. So the plan also
        // writes pending chains of this port whose retry is not due yet.
        for (owner, part) in &mut parts {
            let chains = owner.iter().flat_map(|of| self.tables.chains.keys_of(of));
            for chain in chains.filter(|chain| self.tables.chains.is_pending(chain)) {
                if let Some(content) = self.tables.chains.wanted(chain)
                    && part.chains.insert(*chain, *content).is_none()
                {
                    part.rules += self.rules_written(chain, *content);
                }
            }
        }
        parts
    }

    /// Returns the number of rules that a write of this chain removes and adds.
    fn rules_written(&self, chain: &Chain, wanted: Content) -> usize {
        let actual = self.tables.chains.actual(chain);
        (actual.map_or(0, |there| there.rules) + wanted.rules) as usize
    }

    /// Keeps the Service ports that fit into one restore, and defers all other Service ports to
    /// later plans. Always keeps changes without an owner. The Service ports of the API server and
    /// DNS, and Service ports within their share, come first.
    ///
    /// Returns true if all Service ports fit.
    fn leave_for_later(&self, parts: &mut BTreeMap<Option<Arc<Owner>>, PortWrites>) -> bool {
        // At the start, the plan contains all Service ports, because no Service is served yet.
        if self.tables.slots.as_wanted_len() == 0 {
            return true;
        }
        let all: usize = self.claims.rules.iter().sum();
        let most = MANY_RULES.max(all / MAX_RESTORES);
        let rules = |part: &PortWrites| part.rules + part.slots.len();
        let owned = parts.iter();
        let owned = owned.filter_map(|(of, part)| Some((Arc::clone(of.as_ref()?), rules(part))));
        let owned: Vec<(Arc<Owner>, usize)> = owned.collect();
        if owned.iter().map(|(_, rules)| rules).sum::<usize>() <= most {
            return true;
        }
        let mut shares = Shares::new(SHARE);
        let placed = owned.iter().map(|(owner, rules)| {
            let share = if owner.rank < Rank::Other {
                Share::Within
            } else {
                shares.of(&owner.name.service, *rules)
            };
            (share, owner.rank, owner, *rules)
        });
        let mut placed: Vec<_> = placed.collect();
        placed.sort_unstable();
        let mut written = 0;
        let kept = placed.into_iter().take_while(|(.., rules)| {
            let is_first = written == 0;
            written += rules;
            is_first || written <= most
        });
        let kept: HashSet<&Arc<Owner>> = kept.map(|(_, _, owner, _)| owner).collect();
        parts.retain(|owner, _| owner.as_ref().is_none_or(|owner| kept.contains(owner)));
        false
    }

    /// Returns the changed slots in their final order, together with the owner's unchanged slots in
    /// the same chains. The write must include these unchanged slots, because it inserts each rule
    /// at the head of its chain.
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

    /// Returns the slots (addresses and ports in shared chains) whose rules are due. Includes
    /// unwanted slots only if the plan may remove their rules.
    fn due_slots(&self) -> Vec<Slot> {
        let due = self.tables.slots.due(self.now);
        due.filter(|slot| self.may_delete || self.tables.slots.wanted(slot).is_some())
            .copied()
            .collect()
    }

    fn plan_base(&self, written: &HashSet<Slot>, is_last: bool, plan: &mut Plan) {
        let Some(wanted) = self.tables.base.wanted(&()) else {
            return;
        };
        let installed = self.tables.base.actual(&()).cloned().unwrap_or_default();
        let mut whole: BTreeSet<Shared> = self.tables.disordered.due(self.now).copied().collect();
        // In a replaced chain, base rules follow the rules of Services. Unless the plan writes the
        // base, these are the base rules that the kernel has.
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
        if self.manner == RestoreStrategy::Together {
            for chain in Shared::ALL {
                // iptables searches the chain only to delete a rule. So before the last restore,
                // slots without rules in the kernel do not count. In the last restore, all count.
                let counts = |slot: &&Slot| is_last || self.tables.slots.actual(slot).is_some();
                let changes = written.iter().filter(|slot| slot.chain == chain);
                let changes = changes.filter(counts).count();
                if changes > FEW_CHANGES && changes > self.tables.slots.wanted_len() / 8 {
                    whole.insert(chain);
                }
            }
        }
        let mut texts = self.texts_of(&whole, written);
        plan.whole = whole
            .into_iter()
            .map(|chain| WholeChain {
                chain,
                slots: texts.remove(&chain).unwrap_or_default(),
                tail: tails.tail(chain).to_vec(),
            })
            .collect();
    }

    /// Returns the rules of all Services in these chains, in the order of their owners. For slots
    /// in `written`, these are the wanted rules. For all other slots, these are the rules in the
    /// kernel.
    fn texts_of(
        &self,
        chains: &BTreeSet<Shared>,
        written: &HashSet<Slot>,
    ) -> BTreeMap<Shared, Vec<Arc<str>>> {
        let mut texts: BTreeMap<Shared, Vec<Arc<str>>> = BTreeMap::new();
        if chains.is_empty() {
            return texts;
        }
        // True if the plan writes the slot's wanted rules with its chain. Otherwise, the chain gets
        // the rules that the kernel has: another piece or a later plan changes the slot, or the
        // kernel has refused the slot.
        let is_written =
            |slot: &Slot| self.manner == RestoreStrategy::Together && written.contains(slot);
        let mut put = |slot: &Slot, text: Option<&Arc<str>>| {
            if let Some(text) = text.filter(|_| chains.contains(&slot.chain)) {
                texts.entry(slot.chain).or_default().push(Arc::clone(text));
            }
        };
        let mut owners: Vec<&Arc<Owner>> = self.claims.owners().collect();
        owners.sort_unstable_by_key(|owner| (owner.rank, *owner));
        for owner in owners {
            let slots = self.tables.slots.keys_of(owner).iter();
            for slot in slots.filter(|slot| self.tables.slots.owner(slot) == Some(owner)) {
                if is_written(slot) {
                    put(slot, self.tables.slots.wanted(slot));
                } else {
                    put(slot, self.tables.slots.actual(slot));
                }
            }
        }
        for (slot, text) in self.tables.slots.iter_actual() {
            if self.tables.slots.wanted(slot).is_none() && !is_written(slot) {
                put(slot, Some(text));
            }
        }
        texts
    }

    /// Returns a plan that removes leftovers of other modes, or `None` until this mode serves all
    /// Services.
    pub(crate) fn plan_leftovers(&self) -> Option<Plan> {
        // After a rejected `iptables-restore`, the mode does not know which leftovers remain.
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
