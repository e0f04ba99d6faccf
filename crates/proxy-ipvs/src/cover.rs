//! Tracks which sets the installed rules match, which sets the wanted rules match, and which
//! entries wait for rules.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::IpFamily;

use crate::claims::Claims;
use crate::config::Config;
use crate::kinds::State;
use crate::plan::Op;
use crate::ranges::Ranges;
use crate::rules::Rules;
use crate::sets::Set;
use crate::shim::Shim;
use crate::tables::Tables;

/// Longest time that new virtual servers at cluster IPs wait for the first rules, and that rules
/// wait for the removal of set members from an earlier run.
pub(crate) const HEAD_START: Duration = Duration::from_millis(500);

/// Inputs from which the proxy computed the wanted rules.
#[derive(Debug, PartialEq, Eq)]
struct CoverInputs {
    /// Sets that the rules must match, because they have wanted members. A set that has only stale
    /// members keeps its rules, but gets no new ones.
    filled: BTreeSet<Set>,
    /// Prefix lengths of source ranges (`loadBalancerSourceRanges`).
    prefixes: BTreeSet<u8>,
    /// Ranges of service addresses: networks that local routes make local.
    ranges: Ranges,
    /// Version of the list of load-balancer addresses to which this node must not connect.
    version: u64,
}

/// Returns the rules that a worker thread is writing, if any.
pub(crate) fn rules_in_flight(state: &State) -> Option<&Rules> {
    let mut ops = state.in_flight().flat_map(|plan| &plan.ops);
    ops.find_map(|op| match op {
        Op::WriteRules { wanted, .. } => Some(&**wanted),
        _ => None,
    })
}

/// Sets that wanted rules match but installed rules do not match yet, and deadlines of the waits
/// for rules.
pub(crate) struct Cover {
    family: IpFamily,
    /// Inputs of the wanted rules, or `None` before the first computation.
    made_from: Option<CoverInputs>,
    /// Sets that the wanted rules match, but that the installed rules, or the rules being written,
    /// do not match.
    pub(crate) uncovered: BTreeSet<Set>,
    /// True if the rules that a worker thread is writing are no longer the wanted rules.
    pub(crate) is_outdated: bool,
    /// True if the installed rules do not mark packets yet, but the wanted rules do. Also true
    /// while another mode's or another shim's rules are in use.
    pub(crate) lacks_marks: bool,
    /// Deadline until which new virtual servers at cluster IPs wait for rules. `None` if they need
    /// not wait: the node had rules at the start, or the wait is over.
    head_start: Option<Instant>,
    /// Deadline until which rules wait for the removal of set members from an earlier run, which
    /// saves a second write of the rules. `None` if rules need not wait.
    emptied_by: Option<Instant>,
}

impl Cover {
    /// Creates the state before any rules are wanted or read.
    pub(crate) fn new(family: IpFamily, now: Instant) -> Self {
        Self {
            family,
            made_from: None,
            uncovered: BTreeSet::new(),
            is_outdated: false,
            lacks_marks: false,
            head_start: Some(now + HEAD_START),
            emptied_by: None,
        }
    }

    /// Makes new virtual servers at cluster IPs wait for rules, at most [`HEAD_START`] from the
    /// first read of the rules.
    pub(crate) fn first_read(&mut self, now: Instant) {
        self.head_start = Some(now + HEAD_START);
    }

    /// Makes rules wait for the removal of set members from an earlier run, at most [`HEAD_START`]
    /// from the first update.
    pub(crate) fn first_update(&mut self, now: Instant) {
        self.emptied_by = Some(now + HEAD_START);
    }

    /// Ends both waits early: virtual servers no longer wait for rules, and rules no longer wait
    /// for the removal of set members.
    pub(crate) fn forgo_waiting(&mut self) {
        (self.head_start, self.emptied_by) = (None, None);
    }

    /// Computes the wanted rules, which match each set that has wanted members.
    ///
    /// - The planner writes a set's rules before the set's first member.
    /// - A set's rules stay until its last member is removed. Rules that are not installed yet are
    ///   dropped at once: they would only drop packets, for members that no Service wants any more.
    /// - A stale member that the kernel refuses to remove does not bring removed rules back.
    ///
    /// `writing` is the rules that a worker thread is writing, if any.
    pub(crate) fn want_rules(
        &mut self,
        tables: &mut Tables,
        writing: Option<&Rules>,
        claims: &Claims,
        ranges: Ranges,
        config: &Config,
    ) {
        let had = self.made_from.as_ref();
        let lacks_rule =
            |set: &Set| tables.rules.actual(&()).is_some() && self.uncovered.contains(set);
        let keeps = |set: Set| had.is_none_or(|had| had.filled.contains(&set) && !lacks_rule(&set));
        let members = tables.all_members();
        let filled: BTreeSet<Set> = members
            .filter(|(set, table)| table.wanted_len() > 0 || (!table.is_empty() && keeps(*set)))
            .map(|(set, _)| set)
            .collect();
        let mut prefixes = claims.prefixes();
        // While source ranges change, rules match the former prefix lengths as well.
        if tables.members(Set::LoadBalancerSourceCidr).pending_len() > 0 {
            prefixes.extend(had.iter().flat_map(|had| &had.prefixes));
        }
        let ground = CoverInputs {
            filled,
            prefixes,
            ranges,
            version: claims.forbidden_version(),
        };
        if had == Some(&ground) {
            return;
        }
        let (forbidden_to_node, _) = claims.forbidden_to_node();
        let rules = Shim {
            family: self.family,
            filled: ground.filled.clone(),
            forbidden_to_node,
            ranges: ground.ranges.clone(),
        }
        .rules_with(&ground.prefixes, config);
        tables.rules.claim(&(), [((), Arc::new(rules))]);
        self.made_from = Some(ground);
        self.refresh(tables, writing);
    }

    /// Updates the list of sets that the wanted rules match, but that the installed rules or the
    /// rules being written (`writing`) do not match.
    pub(crate) fn refresh(&mut self, tables: &Tables, writing: Option<&Rules>) {
        if tables.rules.actual(&()).is_some() {
            self.head_start = None;
        }
        let wanted = tables.rules.wanted(&()).cloned().unwrap_or_default();
        let installed = tables.rules.actual(&()).cloned().unwrap_or_default();
        self.uncovered = if tables.rules.pending_len() > 0 {
            wanted.uncovered(&installed, self.family)
        } else {
            BTreeSet::new()
        };
        let outdated = writing.filter(|writing| **writing != *wanted);
        self.is_outdated = outdated.is_some();
        if let Some(outdated) = outdated {
            let missing = wanted.uncovered(outdated, self.family);
            self.uncovered.extend(missing);
        }
        self.lacks_marks = self.uncovered.contains(&Set::LocalMark);
        if !self.is_awaited(tables) {
            self.uncovered.clear();
        }
    }

    /// Returns true if new virtual servers may have to wait for rules. None waits while another
    /// mode's rules serve.
    pub(crate) fn is_awaited(&self, tables: &Tables) -> bool {
        let is_pending = tables.rules.pending_len() > 0 || self.is_outdated;
        is_pending && !tables.are_served_by_another_mode()
    }

    /// Records that the wanted rules are installed, so that rules no longer wait for removals.
    pub(crate) fn is_complete(&mut self) {
        self.emptied_by = None;
    }

    /// Returns true while new virtual servers at cluster IPs wait for rules.
    pub(crate) fn gives_head_start(&self, now: Instant) -> bool {
        self.head_start.is_some_and(|until| now < until)
    }

    /// Returns true while rules wait for the removal of set members from an earlier run.
    pub(crate) fn awaits_emptying(&self, tables: &Tables, now: Instant) -> bool {
        self.emptied_by.is_some_and(|until| now < until) && tables.empties_sets()
    }

    /// Returns the deadlines of both waits: for rules, and for the removal of set members.
    pub(crate) fn next_due(&self) -> [Option<Instant>; 2] {
        [self.head_start, self.emptied_by]
    }
}
