//! Removes iptables chains of modes, and the jumps to these chains.

use std::collections::{BTreeMap, BTreeSet};

use footprint::{Finder, Footprint, Leftovers};
use inet::IpFamily;
use iptables::{Entry, Iptables, Table, TakenChain, entries, restore_text};

use crate::report::{Cleanup, Manner, many};

/// Removes the chains of these modes, and the jumps to them, from the given iptables backends.
pub(crate) fn remove(
    modes: &[&'static Footprint],
    installed: &[Iptables],
    manner: Manner,
    cleanup: &mut Cleanup,
) {
    for family in IpFamily::ALL {
        if iptables::exists(family).is_err() {
            cleanup.miss(&format!(
                "iptables for {family}: this kernel has no {family}"
            ));
            continue;
        }
        for iptables in installed {
            let of = format!("iptables ({})", iptables.backend());
            let saved = match iptables.save(family) {
                Ok(saved) => saved,
                Err(error) if error.is_unsupported() => {
                    cleanup.miss(&format!("{of}: this kernel does not support it"));
                    continue;
                }
                Err(error) => {
                    cleanup.leave(
                        family,
                        &format_args!("the rules of {of} cannot be read"),
                        &error,
                    );
                    continue;
                }
            };
            let mut leftovers = Leftovers::find(Finder::all(modes), &saved);
            match iptables.taken_chains(family) {
                Ok(taken) => {
                    let is_kept = |of: &&TakenChain| {
                        let table = of.table.rsplit(' ').next().and_then(Table::find);
                        !of.is_built_in
                            && table.is_some_and(|table| leftovers.keep(table, &of.chain))
                    };
                    for kept in taken.iter().filter(is_kept) {
                        cleanup.leave(family, &of, kept);
                    }
                }
                Err(error) => cleanup.leave(family, &of, &error),
            }
            if leftovers.is_empty() {
                continue;
            }
            let removed = match manner {
                Manner::Remove | Manner::Drain => {
                    iptables.restore_among(saved.len(), family, &leftovers.restore_text())
                }
                Manner::Count => Ok(()),
            };
            match removed {
                Ok(()) => {
                    let (chains, jumps) = leftovers.counts();
                    cleanup.removed.push(format!(
                        "{family}: {} and {} of {of}",
                        many(chains, "chain"),
                        many(jumps, "jump")
                    ));
                    for held in leftovers.held() {
                        cleanup.leave(family, &of, &held);
                    }
                }
                Err(error) => {
                    cleanup.leave(family, &format_args!("the chains of {of} stay"), &error);
                }
            }
        }
    }
}

/// Empties the chains of these modes in the given iptables backends. Keeps the jumps to the chains,
/// so that a later cleanup still finds the chains.
pub(crate) fn empty(modes: &[&'static Footprint], installed: &[Iptables], cleanup: &mut Cleanup) {
    for family in IpFamily::ALL {
        if iptables::exists(family).is_err() {
            continue;
        }
        for iptables in installed {
            // Reads directly from the kernel whether the IP family has iptables rules. If it has
            // none, no iptables program needs to run.
            if iptables.is_empty(family) {
                continue;
            }
            let of = format!("iptables ({})", iptables.backend());
            let emptied = iptables.save(family).and_then(|saved| {
                let chains = filled(modes, &saved);
                if !chains.is_empty() {
                    let text = emptying(&chains);
                    iptables.restore_among(saved.len(), family, &text)?;
                }
                Ok(chains.values().map(BTreeSet::len).sum())
            });
            match emptied {
                Ok(0) => {}
                Ok(count) => cleanup.remove(
                    family,
                    format_args!("the rules in {} of {of}", many(count, "chain")),
                ),
                Err(error) if error.is_unsupported() => {}
                Err(error) => {
                    cleanup.leave(family, &format_args!("the rules of {of} stay"), &error);
                }
            }
        }
    }
}

/// Returns the chains of these modes that have rules in `saved`, the output of `iptables-save`.
fn filled(modes: &[&'static Footprint], saved: &str) -> BTreeMap<Table, BTreeSet<String>> {
    let mut chains: BTreeMap<Table, BTreeSet<String>> = BTreeMap::new();
    for (table, entry) in entries(saved) {
        if let Entry::Rule(rule) = entry
            && modes.iter().any(|mode| mode.has_chain(table, rule.chain))
        {
            let of_table = chains.entry(table).or_default();
            of_table.insert(rule.chain.to_owned());
        }
    }
    chains
}

/// Returns input for `iptables-restore` that empties these chains.
fn emptying(chains: &BTreeMap<Table, BTreeSet<String>>) -> String {
    restore_text(|restore| {
        for (table, names) in chains {
            restore.begin(*table)?;
            for name in names {
                restore.declare(name)?;
            }
            restore.commit()?;
        }
        Ok(())
    })
}
