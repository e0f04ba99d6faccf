//! Lists the kernel entries that kube-proxies left on a node where no daemon runs.

use std::fmt::Write as _;

use footprint::{Footprint, Footprints};
use serde::Serialize;

use super::Failure;
use super::table::shown;

/// Kernel entries that kube-proxies wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Leftovers {
    /// Always false, because no daemon responds.
    daemon: bool,
    /// Modes with an entry in the kernel that no other mode writes.
    modes: Vec<&'static str>,
    /// Entries, one line each.
    holds: Vec<String>,
    /// Unreadable parts of the kernel's state, each with the reason.
    unreadable: Vec<String>,
    /// Kernel features that this kernel lacks. So none of their entries can exist.
    absent: Vec<String>,
}

impl Leftovers {
    /// Reads the entries from the kernel, without loading a kernel module.
    pub(super) fn look(modes: Footprints) -> Self {
        let all = ::cleanup::survey(modes);
        let alone = modes.iter().map(|mode| {
            let found = ::cleanup::survey(&[*mode]).removed;
            (*mode, found)
        });
        let own = alone.filter(|(mode, found)| is_of(mode, found));
        Self {
            daemon: false,
            modes: own.map(|(mode, _)| mode.mode).collect(),
            holds: all.removed,
            unreadable: all.left,
            absent: all.absent,
        }
    }

    #[cfg(test)]
    pub(super) fn full() -> Self {
        let lines = || vec!["something".to_owned()];
        Self {
            daemon: false,
            modes: vec!["ipvs"],
            holds: lines(),
            unreadable: lines(),
            absent: lines(),
        }
    }

    /// Renders the entries as lines.
    pub(super) fn render(&self) -> String {
        let mut text = format!("{}\n\n", Failure::NoDaemon);
        // Ignores the results: a write to a String cannot fail.
        if self.holds.is_empty() {
            text.push_str("The kernel has no entries of a kube-proxy.\n");
        } else {
            let modes = match &*self.modes {
                [] => "by their chains, of mode iptables or userspace".to_owned(),
                modes => format!("by their objects, of mode {}", modes.join(" and ")),
            };
            let _ = writeln!(text, "Entries in the kernel, {modes}:");
            for line in &self.holds {
                let _ = writeln!(text, "  {}", shown(line));
            }
        }
        for line in &self.absent {
            let _ = writeln!(text, "nothing in {}", shown(line));
        }
        for line in &self.unreadable {
            let _ = writeln!(text, "cannot be read: {}", shown(line));
        }
        text
    }
}

/// Reports whether an entry belongs to this mode and to no other mode. Several modes use the same
/// iptables chains.
fn is_of(mode: &Footprint, found: &[String]) -> bool {
    let names = mode.link.map(|link| link.name).into_iter();
    let names: Vec<_> = names.chain(mode.nft_tables.iter().copied()).collect();
    found.iter().any(|line| {
        let is_served = mode.virtual_servers.is_some() && line.contains("virtual server");
        is_served || names.iter().any(|name| line.contains(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_the_kernel_send_no_escape_codes_to_the_terminal() {
        let lines = || vec!["\x1b[2Jone\ntwo".to_owned()];
        let leftovers = Leftovers {
            holds: lines(),
            unreadable: lines(),
            absent: lines(),
            ..Leftovers::full()
        };
        let text = leftovers.render();
        assert_eq!(
            text.matches("\u{fffd}[2Jone\u{fffd}two\n").count(),
            3,
            "{text}"
        );
        assert!(!text.contains('\x1b'));
    }
}
