//! Tables of this mode: wanted, actual and pending objects.
//!
//! The wanted objects may change while the kernel executes a plan. So the tables record each
//! outcome for the value that the plan wrote, even if another value is wanted now.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use nftables_netlink::Name;
use proxy::{Failure, Owner, Report};
use reconcile::{Removals, Table as Entries};
use relay::PortBackends;

use crate::base::{BaseKey, BaseValue, SERVICES_CHAIN, UPSTREAM_ONLY};
use crate::clients::Clients;
use crate::content::Content;
use crate::layout::Layout;
use crate::name::{LOCALHOST_CHECK, LOCALHOST_NODE_PORTS, NODE_PORT_IPS};
use crate::plan::{Outcomes, Plan, PortChanges, StaleObject, Timeouts, UnitOutcome};
use crate::port::{Member, Route, Slot};

/// Key of the set of addresses that serve NodePorts. Both layouts have this set, unless all
/// addresses serve NodePorts.
pub(crate) const NODE_PORTS: BaseKey = BaseKey::Set(NODE_PORT_IPS);

/// Returns true for an object that exists only if the rules reject NodePorts on localhost. Both
/// layouts have these objects.
fn is_of_localhost(key: &BaseKey) -> bool {
    matches!(
        key,
        BaseKey::Counter(_) | BaseKey::Set(LOCALHOST_NODE_PORTS) | BaseKey::Chain(LOCALHOST_CHECK)
    )
}

/// Record of the wanted and actual objects of one IP family, with one table for each kind of
/// object. These tables are not nf_tables tables.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) base: Entries<BaseKey, BaseValue, ()>,
    /// Elements of the set `nodeport-ips`: addresses of the node that serve NodePorts.
    pub(crate) node_ports: Entries<IpAddr, (), ()>,
    pub(crate) slots: Entries<Slot, Route, Arc<Owner>>,
    /// Elements of shared sets. An element that several Service ports want has several owners.
    pub(crate) members: Entries<Member, (), Arc<Owner>>,
    pub(crate) chains: Entries<Name, Content, Arc<Owner>>,
    pub(crate) affinity: Entries<Name, Clients, Arc<Owner>>,
    /// NodePorts that a relay serves on localhost.
    ///
    /// - Their actual state is always known, because the relay is a part of this process.
    /// - They never count as overdue, because another program may use the same port.
    pub(crate) listeners: Entries<u16, Arc<PortBackends>, Arc<Owner>>,
}

impl Tables {
    reconcile::tables!([base, node_ports, slots, members, chains, affinity] listeners);

    /// Creates the record without wanted and actual objects.
    pub(crate) fn new(now: Instant) -> Self {
        let mut tables = Self::default();
        tables.begin(now);
        tables.base.count_removals(Removals::Excused);
        tables
    }

    /// Sets whether unwanted objects of Services count as overdue if the mode does not delete them
    /// in time.
    pub(crate) fn count_removals(&mut self, removals: Removals) {
        self.slots.count_removals(removals);
        self.members.count_removals(removals);
        self.chains.count_removals(removals);
        self.affinity.count_removals(removals);
    }

    /// Makes all failed writes due now.
    pub(crate) fn retry_now(&mut self, now: Instant) {
        self.base.retry_now(now);
        self.node_ports.retry_now(now);
        self.slots.retry_now(now);
        self.members.retry_now(now);
        self.chains.retry_now(now);
        self.affinity.retry_now(now);
    }

    /// Returns true if the kernel has all wanted objects that do not depend on Services.
    pub(crate) fn has_base(&self) -> bool {
        let mut pending = self.base.pending();
        // Ignores unwanted objects, such as those of another layout, because they do not affect
        // packets.
        pending.all(|key| self.base.wanted(key).is_none()) && self.node_ports.pending_len() == 0
    }

    /// Returns the layout of the table in the kernel, or `None` if the table has no chain of a
    /// layout. Maps of the layout `flat` do not count: they may also exist in a table of upstream's
    /// layout, because upstream's kube-proxy does not delete them.
    pub(crate) fn actual_layout(&self) -> Option<Layout> {
        if self.base.actual(&UPSTREAM_ONLY).is_some() {
            return Some(Layout::Upstream);
        }
        let is_there = self.base.actual(&SERVICES_CHAIN).is_some();
        is_there.then_some(Layout::Flat)
    }

    /// Returns true if the kernel still has objects of the layout that the mode does not want.
    pub(crate) fn has_other_layout(&self) -> bool {
        self.base.pending().any(|key| self.is_of_other_layout(key))
    }

    /// Returns true for an object that only the unwanted layout has. Returns false for a chooser
    /// chain: a chooser that no Service needs may belong to the wanted layout.
    fn is_of_other_layout(&self, key: &BaseKey) -> bool {
        self.base.wanted(key).is_none()
            && !matches!(key, BaseKey::Table | BaseKey::Chooser(_))
            && *key != NODE_PORTS
            && !is_of_localhost(key)
    }

    /// Returns true if the kernel has all objects that an owner wants.
    pub(crate) fn has_all_of(&self, owner: &Arc<Owner>) -> bool {
        fn has<K, V>(entries: &Entries<K, V, Arc<Owner>>, owner: &Arc<Owner>) -> bool
        where
            K: Clone + Eq + std::hash::Hash,
            V: Clone + Eq,
        {
            let mut keys = entries.keys_of(owner).iter();
            keys.all(|key| !entries.is_pending(key))
        }
        has(&self.slots, owner)
            && has(&self.members, owner)
            && has(&self.chains, owner)
            && has(&self.affinity, owner)
    }

    /// Gives endpoints in shared maps the positions that they have in the kernel. This saves
    /// writes, because the order of endpoints has no effect on packets.
    pub(crate) fn keep_places(&mut self) {
        let slots = self.slots.pending().filter_map(|slot| {
            let (wanted, there) = (self.slots.wanted(slot)?, self.slots.actual(slot)?);
            let kept = wanted.clone().arranged(Some(there));
            let owner = self.slots.owner(slot)?;
            (kept != *wanted).then(|| (*slot, owner.clone(), kept))
        });
        for (slot, owner, route) in slots.collect::<Vec<_>>() {
            self.slots.adjust(&owner, &slot, route);
        }
    }

    // ---- outcome of a plan ----

    /// Records the outcome of each object of a plan, and adds refusals to the report.
    pub(crate) fn settle(
        &mut self,
        plan: &Plan,
        outcomes: &Outcomes,
        now: Instant,
        report: &mut Report,
    ) {
        let mut tell = |object: String, owner: Option<&Arc<Owner>>, reason: &Arc<str>| {
            report.failures.push(Failure {
                object,
                owner: owner.map(|owner| owner.name.clone()),
                reason: reason.to_string(),
            });
        };
        if let UnitOutcome::Refused(reason) = &outcomes.base {
            let what = "write the nftables chains and sets that all Services need";
            tell(what.to_owned(), None, reason);
        }
        let booking = Booking {
            outcome: &outcomes.base,
            now,
            lateness: Lateness::Late,
        };
        for (key, change) in &plan.base_changes {
            booking.book(&mut self.base, key, change.wanted.clone());
        }
        if let Some(services_chain) = &plan.services_chain {
            let booking = Booking {
                outcome: &outcomes.services_chain,
                ..booking
            };
            booking.book(
                &mut self.base,
                &SERVICES_CHAIN,
                services_chain.wanted.clone(),
            );
            if let UnitOutcome::Refused(reason) = &outcomes.services_chain {
                tell("write the nftables chain services".to_owned(), None, reason);
            }
        }
        if outcomes.base == UnitOutcome::Done
            && plan.base_changes.contains_key(&BaseKey::Set(NODE_PORT_IPS))
        {
            // The plan created this set, so the set has no elements except those of the plan.
            self.node_ports.observe([]);
        }
        for (address, is_wanted) in &plan.node_ports {
            booking.book(&mut self.node_ports, address, is_wanted.then_some(()));
        }
        let is_kept = plan.timeouts == Timeouts::Unknown && outcomes.timeouts == Timeouts::Kept;
        for (part, outcome) in plan.parts.iter().zip(&outcomes.parts) {
            if let UnitOutcome::Refused(reason) = outcome {
                let what = "write nftables chains and elements".to_owned();
                tell(what, part.owner.as_ref(), reason);
            }
            self.settle_part(part, outcome, &outcomes.partial, now);
            for (set, clients) in &part.affinity {
                // The kernel reported success, but kept the old timeout. So the mode must replace
                // the set.
                if *outcome == UnitOutcome::Done
                    && is_kept
                    && clients.is_change()
                    && let Some(there) = clients.there
                {
                    let kept = Clients::new(there.seconds);
                    self.affinity.set_actual(set, Some(kept));
                }
            }
        }
        for (stale, outcome) in plan.stale.iter().zip(&outcomes.stale) {
            // Reports a refused deletion only from the second time: at first, rules that the
            // transaction deleted may keep the object in use for a moment.
            let is_first = match stale {
                StaleObject::Chain(name) => !self.chains.is_failing(name),
                StaleObject::Set(name) => !self.affinity.is_failing(name),
                StaleObject::Base(key) => !self.base.is_failing(key),
            };
            if let UnitOutcome::Refused(reason) = outcome
                && !is_first
            {
                tell(format!("remove nftables {stale}"), None, reason);
            }
            let booking = Booking {
                outcome,
                now,
                lateness: if is_first {
                    Lateness::Late
                } else {
                    Lateness::Excused
                },
            };
            match stale {
                StaleObject::Chain(name) => booking.book(&mut self.chains, name, None),
                StaleObject::Set(name) => booking.book(&mut self.affinity, name, None),
                StaleObject::Base(key) => booking.book(&mut self.base, key, None),
            }
        }
        let parts = plan.parts.iter().zip(&outcomes.parts);
        let written = parts
            .filter(|(_, outcome)| matches!(outcome, UnitOutcome::Done | UnitOutcome::Unknown));
        let changes = written.flat_map(|(part, _)| &part.slots);
        for change in changes.filter(|change| change.after.is_none()) {
            let slot = &change.slot;
            report.withdraw(slot.address, slot.protocol, slot.port);
        }
    }

    /// Records the outcomes of NodePorts on localhost. Adds failures to the report, and returns the
    /// number of failures.
    pub(crate) fn settle_listeners(
        &mut self,
        plan: &Plan,
        outcomes: &Outcomes,
        now: Instant,
        report: &mut Report,
    ) -> usize {
        let mut failed = 0;
        for (port, outcome) in plan.listeners.iter().zip(&outcomes.listeners) {
            let number = &port.number;
            let Err(reason) = outcome else {
                self.listeners.set_actual(number, port.serving.clone());
                continue;
            };
            self.listeners.excuse(number, now);
            failed += 1;
            let at = SocketAddr::new(plan.family.localhost(), *number);
            let owner = self.listeners.owner(number);
            report.failures.push(Failure {
                object: format!("serve NodePort {number}/TCP at {at}"),
                owner: owner.map(|owner| owner.name.clone()),
                reason: format!(
                    "{reason}; somebody else may listen there. The NodePort is served at other addresses"
                ),
            });
        }
        failed
    }

    fn settle_part(
        &mut self,
        part: &PortChanges,
        outcome: &UnitOutcome,
        partial: &BTreeMap<Name, Content>,
        now: Instant,
    ) {
        let booking = Booking {
            outcome,
            now,
            // Excuses these entries from being overdue: the kernel refused this unit in a separate
            // transaction, so the unit itself is invalid.
            lateness: Lateness::Excused,
        };
        for (chain, written) in &part.chains {
            let content = partial.get(chain).copied();
            let content = content.unwrap_or(written.content);
            booking.book(&mut self.chains, chain, Some(content));
        }
        for chain in &part.emptied {
            // The plan flushed this unwanted chain, so it has no rules now.
            if *outcome == UnitOutcome::Done {
                self.chains.set_actual(chain, Some(Content::default()));
            }
        }
        for (set, clients) in &part.affinity {
            booking.book(&mut self.affinity, set, Some(clients.wanted));
        }
        for change in &part.slots {
            booking.book(&mut self.slots, &change.slot, change.after.clone());
        }
        for (member, is_wanted) in &part.members {
            booking.book(&mut self.members, member, is_wanted.then_some(()));
        }
    }
}

/// Treatment of a refused entry: it counts as overdue, or it is excused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lateness {
    Late,
    Excused,
}

/// Outcome of a plan unit, with which its entries are recorded.
struct Booking<'a> {
    outcome: &'a UnitOutcome,
    now: Instant,
    lateness: Lateness,
}

impl Booking<'_> {
    fn book<K, V, O>(&self, entries: &mut Entries<K, V, O>, key: &K, written: Option<V>)
    where
        K: Clone + Eq + std::hash::Hash,
        V: Clone + Eq,
        O: Clone + Eq + std::hash::Hash + Ord,
    {
        match self.outcome {
            UnitOutcome::Done => entries.set_actual(key, written),
            UnitOutcome::Later => {}
            UnitOutcome::Unknown => entries.doubt(key, self.now),
            UnitOutcome::Refused(_) if self.lateness == Lateness::Excused => {
                entries.excuse(key, self.now);
            }
            UnitOutcome::Refused(_) | UnitOutcome::Untried => entries.fail(key, self.now),
        }
    }
}
