//! Chains and jumps of iptables, and tables of nftables.

use footprint::{Finder, Footprints, Leftovers, nft};
use inet::IpFamily;
use iptables::Iptables;

use crate::report::{Cleanup, Manner, many};

/// Removes chains and jumps with these iptables.
pub(crate) fn remove(
    modes: Footprints,
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
            let leftovers = Leftovers::find(Finder::all(modes), &saved);
            if leftovers.is_empty() {
                continue;
            }
            let removed = match manner {
                Manner::Remove => {
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

/// Removes tables of nftables.
pub(crate) fn remove_tables(modes: Footprints, manner: Manner, cleanup: &mut Cleanup) {
    for (mode, table) in modes.iter().flat_map(|mode| {
        let tables = mode.nft_tables.iter();
        tables.map(|table| (mode.mode, *table))
    }) {
        let what = format!("the {mode} mode's table {table}");
        for family in IpFamily::ALL {
            let removed = nft::has_table(family, table).and_then(|is_there| {
                if is_there && manner == Manner::Remove {
                    nft::remove_table(family, table)?;
                }
                Ok(is_there)
            });
            match removed {
                Ok(true) => cleanup.removed.push(format!("{family}: {what}")),
                Ok(false) => {}
                Err(error) => cleanup.leave(family, &what, &error),
            }
        }
    }
}
