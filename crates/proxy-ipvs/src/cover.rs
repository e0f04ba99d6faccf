//! Which sets the rules are to match, which of them they do not match yet, and what waits for that.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::IpFamily;

use crate::claims::Claims;
use crate::config::Config;
use crate::sets::Set;
use crate::shim::Shim;
use crate::tables::Tables;

/// How long virtual servers of cluster IPs wait for the rules while there are none at all.
pub(crate) const HEAD_START: Duration = Duration::from_millis(500);

/// What rules are made from.
#[derive(Debug, PartialEq, Eq)]
struct Ground {
    /// The sets that they match.
    filled: BTreeSet<Set>,
    /// The lengths of the prefixes of source ranges.
    prefixes: BTreeSet<u8>,
    /// The number of what is forbidden to the node.
    version: u64,
}

/// How far the rules cover what the sets hold.
pub(crate) struct Cover {
    family: IpFamily,
    /// What the wanted rules were last made from.
    made_from: Option<Ground>,
    /// Sets that the rules are to match and do not match yet.
    pub(crate) uncovered: BTreeSet<Set>,
    /// Until when new virtual servers of cluster IPs wait for the rules, if there are none at the
    /// start.
    head_start: Option<Instant>,
    /// Until when, after a start, rules wait for sets that an earlier run has filled to be emptied,
    /// so that they are written once.
    emptied_by: Option<Instant>,
}

impl Cover {
    /// No rules are wanted, nor known to be there.
    pub(crate) fn new(family: IpFamily, now: Instant) -> Self {
        Self {
            family,
            made_from: None,
            uncovered: BTreeSet::new(),
            head_start: Some(now + HEAD_START),
            emptied_by: None,
        }
    }

    /// It is known from now on what rules are there.
    pub(crate) fn first_read(&mut self, now: Instant) {
        self.head_start = Some(now + HEAD_START);
    }

    /// It is known from now on what is wanted.
    pub(crate) fn first_update(&mut self, now: Instant) {
        self.emptied_by = Some(now + HEAD_START);
    }

    /// Nothing waits for time to pass.
    pub(crate) fn forgo_waiting(&mut self) {
        (self.head_start, self.emptied_by) = (None, None);
    }

    /// Wants the rules that match each set of which members are wanted. What is about to be filled
    /// needs its rules before; what empties keeps those it has until its members are gone, and does
    /// not get them back while one cannot be removed.
    pub(crate) fn want_rules(&mut self, tables: &mut Tables, claims: &Claims, config: &Config) {
        let had = self.made_from.as_ref();
        let keeps = |set: Set| had.is_none_or(|had| had.filled.contains(&set));
        let members = tables.all_members();
        let filled: BTreeSet<Set> = members
            .filter(|(set, table)| table.wanted_len() > 0 || (!table.is_empty() && keeps(*set)))
            .map(|(set, _)| set)
            .collect();
        let mut prefixes = claims.prefixes();
        // As long as ranges come and go, both are asked.
        if tables.members(Set::LoadBalancerSourceCidr).pending_len() > 0 {
            prefixes.extend(had.iter().flat_map(|had| &had.prefixes));
        }
        let ground = Ground {
            filled,
            prefixes,
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
        }
        .rules_with(&ground.prefixes, config);
        tables.rules.claim(&(), [((), Arc::new(rules))]);
        self.made_from = Some(ground);
        self.refresh(tables);
    }

    /// Computes again which sets the rules do not match yet.
    pub(crate) fn refresh(&mut self, tables: &Tables) {
        if tables.rules.actual(&()).is_some() {
            self.head_start = None;
        }
        let wanted = tables.rules.wanted(&()).cloned().unwrap_or_default();
        let installed = tables.rules.actual(&()).cloned().unwrap_or_default();
        self.uncovered = if Self::is_awaited(tables) {
            wanted.uncovered(&installed, self.family)
        } else {
            BTreeSet::new()
        };
    }

    /// Whether new virtual servers may have to wait for the rules: not where another mode's rules
    /// serve until all is made.
    pub(crate) fn is_awaited(tables: &Tables) -> bool {
        tables.rules.pending_len() > 0 && !tables.are_served_by_another_mode()
    }

    /// The rules are as they are to be.
    pub(crate) fn is_complete(&mut self) {
        self.emptied_by = None;
    }

    /// Whether new virtual servers of cluster IPs still wait for the rules.
    pub(crate) fn gives_head_start(&self, now: Instant) -> bool {
        self.head_start.is_some_and(|until| now < until)
    }

    /// Whether the rules still wait for sets to be emptied.
    pub(crate) fn awaits_emptying(&self, tables: &Tables, now: Instant) -> bool {
        self.emptied_by.is_some_and(|until| now < until) && tables.empties_sets()
    }

    /// When something has waited long enough.
    pub(crate) fn next_due(&self) -> [Option<Instant>; 2] {
        [self.head_start, self.emptied_by]
    }
}
