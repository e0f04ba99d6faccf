//! Finds the iptables programs of this node when a mode first needs one. So a mode that needs none
//! also starts on a node without these programs.

use std::cell::OnceCell;

use iptables::{Backend, Iptables, IptablesError};
use tracing::debug;

use super::families::Access;
use super::settings::Settings;

/// The iptables programs of this node, found at the first use.
pub struct Programs {
    /// Backend that `--iptables-backend` names, or `None` for `auto`.
    forced: Option<Backend>,
    access: Access,
    chosen: OnceCell<Iptables>,
}

impl Programs {
    /// Stores the settings for the search for programs, which begins when a mode first needs one.
    pub fn new(settings: &Settings, access: Access) -> Self {
        Self {
            forced: settings.shared.iptables_backend.forced(),
            access,
            chosen: OnceCell::new(),
        }
    }

    /// Chooses the iptables programs at the first call, and returns the same programs at later
    /// calls. Blocks.
    ///
    /// - With write access, may load missing kernel modules: those in `modules`, and those of
    ///   iptables.
    /// - With read access, changes nothing in the kernel.
    ///
    /// # Errors
    ///
    /// Fails if no iptables program is installed, or if no installed program works on this node.
    pub fn choose(&self, modules: &[&str]) -> Result<Iptables, IptablesError> {
        if let Some(chosen) = self.chosen.get() {
            return Ok(chosen.clone());
        }
        let chosen = match self.access {
            Access::Write => Iptables::choose_loading(self.forced, modules)?,
            Access::Read => Iptables::look(self.forced)?,
        };
        debug!(backend = %chosen.backend(), why = %chosen.why(), "iptables");
        Ok(self.chosen.get_or_init(|| chosen).clone())
    }

    /// Returns all installed iptables programs, the chosen ones first. Returns an empty list if no
    /// programs were chosen and the installed ones do not report their versions.
    pub(super) fn installed(&self) -> Vec<Iptables> {
        match self.chosen.get() {
            Some(used) => [used.clone()]
                .into_iter()
                .chain(Iptables::other_than(used))
                .collect(),
            None => Iptables::installed().unwrap_or_default(),
        }
    }
}
