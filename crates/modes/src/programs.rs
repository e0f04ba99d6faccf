//! The iptables programs of this node, looked for when a mode first asks for them: one that does
//! without never asks, and starts on a node that has none.

use std::cell::OnceCell;

use iptables::{Backend, Iptables, IptablesError};
use tracing::debug;

use super::families::Access;
use super::settings::Settings;

/// The iptables programs of this node.
pub struct Programs {
    /// `--iptables-backend`, if it names one.
    forced: Option<Backend>,
    access: Access,
    chosen: OnceCell<Iptables>,
}

impl Programs {
    /// None has been looked for yet.
    pub fn new(settings: &Settings, access: Access) -> Self {
        Self {
            forced: settings.shared.iptables_backend.forced(),
            access,
            chosen: OnceCell::new(),
        }
    }

    /// Chooses them, by blocking; once is for all. To write, these kernel modules are loaded with
    /// those of iptables, where they are not there; to read, nothing changes.
    ///
    /// # Errors
    ///
    /// There are none, or they cannot be used here.
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

    /// All that are installed, those that were chosen first. None, where they cannot tell what they
    /// are.
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
