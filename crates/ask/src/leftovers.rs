//! Lists the kernel entries that kube-proxies left on a node where no daemon runs.

use std::fmt::Write as _;

use footprint::{Footprint, Footprints};
use serde::Serialize;

use super::Failure;
use super::table::shown;

/// Kernel entries that kube-proxies left on a node, as `kube-proxy status` prints them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Leftovers {
    /// Always false: this object exists only if no daemon responds.
    daemon: bool,
    /// Modes that ran on this node, detected by their leftover entries.
    modes: Vec<&'static str>,
    /// Descriptions of leftover kernel entries, one line each.
    holds: Vec<String>,
    /// Parts of the kernel's state that cannot be read, each with the reason.
    unreadable: Vec<String>,
    /// Kernel features that this node lacks, such as IPVS. They cannot have leftover entries.
    absent: Vec<String>,
}

impl Leftovers {
    /// Searches the kernel for entries that kube-proxies left in these modes. Loads no kernel
    /// module.
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

    /// Renders the leftover entries as text, one line each.
    pub(super) fn render(&self) -> String {
        let mut text = format!("{}\n\n", Failure::NoDaemon);
        // Ignores the results of writes to a String, which cannot fail.
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

/// Reports whether the entries in `found` are evidence that a mode ran on this node: a virtual
/// server, the mode's link or one of its nftables tables. An iptables chain is no evidence, because
/// several modes share the iptables chains.
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
    fn escape_codes_in_kernel_names_do_not_reach_the_terminal() {
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
