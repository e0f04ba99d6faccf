//! What the kernel holds of kube-proxies, where no daemon answers.

use std::fmt::Write as _;

use footprint::{Footprint, Footprints};
use serde::Serialize;

use super::Failure;
use super::table::shown;

/// What the kernel holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Held {
    /// Whether a daemon answers: it does not.
    daemon: bool,
    /// The modes of which something is there that no other one makes.
    modes: Vec<&'static str>,
    /// What is there, a line each.
    holds: Vec<String>,
    /// What cannot be read, and why.
    unreadable: Vec<String>,
    /// What this kernel does not have.
    absent: Vec<String>,
}

impl Held {
    /// Looks, and loads no kernel module.
    pub(super) fn look(modes: Footprints) -> Self {
        let all = ::cleanup::survey(modes);
        let alone = modes.iter().map(|mode| {
            let held = ::cleanup::survey(&[*mode]).removed;
            (*mode, held)
        });
        let own = alone.filter(|(mode, held)| is_of(mode, held));
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

    /// For people.
    pub(super) fn render(&self) -> String {
        let mut text = format!("{}\n\n", Failure::NoDaemon);
        // Writing to a String cannot fail.
        if self.holds.is_empty() {
            text.push_str("The kernel holds nothing of a kube-proxy.\n");
        } else {
            let modes = match &*self.modes {
                [] => "by its chains, of mode iptables or userspace".to_owned(),
                modes => format!("by its objects, of mode {}", modes.join(" and ")),
            };
            let _ = writeln!(text, "The kernel holds, {modes}:");
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

/// Whether what is there of a mode is its own: chains of iptables have their names in several modes.
fn is_of(mode: &Footprint, held: &[String]) -> bool {
    let names = mode.link.map(|link| link.name).into_iter();
    let names: Vec<_> = names.chain(mode.nft_tables.iter().copied()).collect();
    held.iter().any(|line| {
        let is_served = mode.virtual_servers.is_some() && line.contains("virtual server");
        is_served || names.iter().any(|name| line.contains(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_the_kernel_does_not_steer_the_terminal() {
        let lines = || vec!["\x1b[2Jone\ntwo".to_owned()];
        let held = Held {
            holds: lines(),
            unreadable: lines(),
            absent: lines(),
            ..Held::full()
        };
        let text = held.render();
        assert_eq!(
            text.matches("\u{fffd}[2Jone\u{fffd}two\n").count(),
            3,
            "{text}"
        );
        assert!(!text.contains('\x1b'));
    }
}
