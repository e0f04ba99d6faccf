//! Finds, in the output of `iptables-save`, the entries that modes have left behind. Writes the
//! `iptables-restore` input that removes these entries.
//!
//! The name of a chain identifies the mode that created it. A jump to this chain is one of two
//! kinds:
//!
//! * A kube-proxy's jump: it is in a built-in chain, with a comment that a mode writes.
//! * Another program's jump: any other jump. It stays, and so does its target chain, but without
//!   rules.
//!
//! Source: upstream's `pkg/proxy/iptables/cleanup.go`, `pkg/proxy/ipvs/cleanup.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use iptables::{BUILT_IN, Entry, Restore, RuleLine, Table, entries, restore_text};

use crate::footprint::{Footprint, Footprints};

/// iptables entries that kube-proxies have left in one IP family and iptables backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    tables: BTreeMap<Table, Chains>,
}

/// Leftover chains and jumps of one table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Chains {
    names: BTreeSet<String>,
    /// Leftover jumps to this table's chains, each as a line of `iptables-save` (`-A …`).
    jumps: Vec<String>,
    /// Leftover chains to which another program's rule jumps, each with that rule.
    holds: BTreeMap<String, String>,
}

/// Treatment of a leftover chain to which another program's rule jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferencedChain {
    /// The cleanup keeps the chain, but removes its rules.
    Keep,
    /// The cleanup also tries to delete the chain. The kernel refuses this, so the caller reports
    /// the chain and retries later.
    Delete,
}

/// Search for leftovers in the entries of `iptables-save`.
#[derive(Debug)]
pub struct Finder {
    theirs: Vec<&'static Footprint>,
    mine: Option<&'static Footprint>,
    /// Jumps that the current mode wants in built-in chains, each as a line of `iptables-save` (`-A
    /// CHAIN ...`).
    my_jumps: BTreeSet<(Table, String)>,
    held: ReferencedChain,
    /// Chains of other modes that the current mode does not use. The value is true if the chain has
    /// rules.
    names: BTreeMap<Table, BTreeMap<String, bool>>,
    found: Leftovers,
}

impl Finder {
    /// Creates a search for all iptables entries of these modes.
    pub fn all(modes: &[&'static Footprint]) -> Self {
        Self {
            theirs: modes.to_vec(),
            mine: None,
            my_jumps: BTreeSet::new(),
            held: ReferencedChain::Keep,
            names: BTreeMap::new(),
            found: Leftovers::default(),
        }
    }

    /// Creates a search for entries of `modes` that the current mode, `mine`, does not want. If
    /// `held` is [`ReferencedChain::Keep`], an empty chain to which another program's rule jumps is
    /// no leftover.
    pub fn beside(mine: &'static Footprint, modes: Footprints, held: ReferencedChain) -> Self {
        let my_jumps = mine.jumps.iter().map(|jump| (jump.table, jump.line()));
        Self {
            mine: Some(mine),
            my_jumps: my_jumps.collect(),
            held,
            theirs: modes.iter().copied().filter(|mode| *mode != mine).collect(),
            ..Self::all(&[])
        }
    }

    fn is_mine(&self, table: Table, chain: &str) -> bool {
        self.mine.is_some_and(|mine| mine.has_chain(table, chain))
    }

    /// Reports whether a mode other than `mine` uses a chain with this name. `mine` may use the
    /// name as well.
    fn is_theirs(&self, table: Table, chain: &str) -> bool {
        self.theirs.iter().any(|mode| mode.has_chain(table, chain))
    }

    /// Examines one chain or rule of a table.
    pub fn entry(&mut self, table: Table, entry: Entry<'_>) {
        match entry {
            Entry::Chain(name) => self.chain(table, name),
            Entry::Rule(rule) => self.rule(table, rule),
        }
    }

    /// Records a chain if another mode uses its name and `mine` does not.
    pub fn chain(&mut self, table: Table, name: &str) {
        if self.is_theirs(table, name) && !self.is_mine(table, name) {
            let names = self.names.entry(table).or_default();
            names.insert(name.to_owned(), false);
        }
    }

    /// Examines a rule. Records the rule if it is a leftover, or if it is another program's jump to
    /// a leftover chain.
    pub fn rule(&mut self, table: Table, rule: RuleLine<'_>) {
        let of_table = self.names.get_mut(&table);
        if let Some(has_rules) = of_table.and_then(|names| names.get_mut(rule.chain)) {
            *has_rules = true;
            return;
        }
        if self.is_mine(table, rule.chain) || self.is_theirs(table, rule.chain) {
            return;
        }
        let Some(target) = rule.target() else { return };
        let (is_mine, is_theirs) = (self.is_mine(table, &target), self.is_theirs(table, &target));
        if !(is_mine || is_theirs)
            || (is_mine && self.my_jumps.contains(&(table, rule.text.to_owned())))
        {
            return;
        }
        if self.is_jump_of_theirs(rule) {
            let jumps = &mut self.found.tables.entry(table).or_default().jumps;
            jumps.push(rule.text.to_owned());
        } else if !is_mine {
            let holds = &mut self.found.tables.entry(table).or_default().holds;
            holds.insert(target.into_owned(), rule.text.to_owned());
        }
    }

    fn is_jump_of_theirs(&self, rule: RuleLine<'_>) -> bool {
        BUILT_IN.contains(&rule.chain)
            && rule.comment().is_some_and(|comment| {
                let mut modes = self.theirs.iter();
                modes.any(|mode| mode.has_comment(&comment))
            })
    }

    /// Returns all leftovers among the examined entries.
    pub fn finish(self) -> Leftovers {
        let (mut found, held) = (self.found, self.held);
        for (table, mut names) in self.names {
            let of = found.tables.entry(table).or_default();
            if self.mine.is_some() && held == ReferencedChain::Keep {
                of.holds.retain(|chain, _| {
                    let is_empty = names.get(chain) == Some(&false);
                    if is_empty {
                        names.remove(chain);
                    }
                    !is_empty
                });
            }
            of.names = names.into_keys().collect();
        }
        if held == ReferencedChain::Delete {
            found.tables.values_mut().for_each(|of| of.holds.clear());
        }
        found.tables.retain(|_, of| {
            of.holds.retain(|chain, _| of.names.contains(chain));
            !(of.names.is_empty() && of.jumps.is_empty())
        });
        found
    }
}

impl Leftovers {
    /// Returns the leftovers that `finder` finds in the output of `iptables-save`.
    pub fn find(mut finder: Finder, saved: &str) -> Self {
        for (table, entry) in entries(saved) {
            finder.entry(table, entry);
        }
        finder.finish()
    }

    /// Reports whether one of these installed rules jumps to a leftover chain. If so, packets still
    /// traverse the rules of the mode that left the chain.
    pub fn serve<'a>(&self, installed: impl IntoIterator<Item = (Table, &'a str)>) -> bool {
        installed.into_iter().any(|(table, line)| {
            let Some(chains) = self.tables.get(&table) else {
                return false;
            };
            let target = RuleLine::parse(line).and_then(|rule| rule.target());
            target.is_some_and(|target| chains.names.contains(&*target))
        })
    }

    /// Reports whether `mode` uses the names of all leftover chains.
    pub fn are_of(&self, mode: &Footprint) -> bool {
        let mut chains = self.chains();
        chains.all(|(table, name)| mode.has_chain(table, name))
    }

    /// Removes a chain from the leftovers. Returns true if it was one of them.
    pub fn keep(&mut self, table: Table, chain: &str) -> bool {
        let Some(of) = self.tables.get_mut(&table) else {
            return false;
        };
        let is_there = of.names.remove(chain);
        if of.names.is_empty() && of.jumps.is_empty() {
            self.tables.remove(&table);
        }
        is_there
    }

    /// Reports whether there are no leftovers.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Reports whether `table` has leftovers.
    pub fn touches(&self, table: Table) -> bool {
        self.tables.contains_key(&table)
    }

    /// Returns the leftover chains, including those that stay without rules.
    pub fn chains(&self) -> impl Iterator<Item = (Table, &str)> {
        let tables = self.tables.iter();
        tables.flat_map(|(table, of)| of.names.iter().map(|name| (*table, name.as_str())))
    }

    /// Returns the leftover jumps, each as a line of `iptables-save`.
    pub fn jumps(&self) -> impl Iterator<Item = (Table, &str)> {
        let tables = self.tables.iter();
        tables.flat_map(|(table, of)| of.jumps.iter().map(|line| (*table, line.as_str())))
    }

    /// Returns the number of chains and the number of jumps to remove.
    pub fn counts(&self) -> (usize, usize) {
        let chains = |of: &Chains| of.names.len().saturating_sub(of.holds.len());
        (
            self.tables.values().map(chains).sum(),
            self.tables.values().map(|of| of.jumps.len()).sum(),
        )
    }

    /// Returns a sentence for each chain that must stay because another program's rule jumps to it.
    pub fn held(&self) -> impl Iterator<Item = String> {
        self.tables.iter().flat_map(|(table, chains)| {
            chains.holds.iter().map(move |(chain, rule)| {
                format!(
                    "chain {chain} of table {table} is empty but stays, because a rule of another \
                     program jumps to it: `{rule}`; \
                     remove that rule, then run this again"
                )
            })
        })
    }

    /// Writes an `iptables-restore` input that removes the leftovers and keeps all other entries.
    ///
    /// # Errors
    ///
    /// Fails if the writer behind `restore` returns an error.
    pub fn write(&self, restore: &mut Restore<'_>) -> io::Result<()> {
        for (table, chains) in &self.tables {
            restore.begin(*table)?;
            // Empties all chains first: the kernel deletes a chain only if no rule jumps to it.
            for name in &chains.names {
                restore.declare(name)?;
            }
            for jump in &chains.jumps {
                restore.delete(jump)?;
            }
            for name in &chains.names {
                if !chains.holds.contains_key(name) {
                    restore.remove(name)?;
                }
            }
            restore.commit()?;
        }
        Ok(())
    }

    /// Returns the `iptables-restore` input that removes the leftovers.
    pub fn restore_text(&self) -> String {
        restore_text(|restore| self.write(restore))
    }
}
