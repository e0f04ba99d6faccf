//! Writes the kernel settings that a mode and connection tracking need, as upstream does.
//!
//! **Failure.** If a setting cannot be written, its [`Need`] decides the consequence: the start
//! fails, the daemon disables one feature, or the daemon only logs the failure. `--init-only` fails
//! for every need. Upstream exits in most cases.
//!
//! **Restoring.** Some settings decide which packets a node accepts. This process restores such a
//! setting once no option needs it, under two conditions: this process wrote the setting, and the
//! value has not changed since then. All other settings stay, for two reasons:
//!
//! - The kernel does not record who wrote a setting. So a setting that an earlier process seems to
//!   have written stays, and the log reports it.
//! - Other programs may rely on the remaining settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tracing::{error, info, warn};

use modes::definition::Facts;
use modes::sysctl::apply::{Difference, Origins, apply, differences};
use modes::sysctl::conntrack;
use modes::sysctl::error::{SysctlError, SysctlErrors};
use modes::sysctl::machine::Machine;
use modes::sysctl::row::{Need, WantedSetting};

use crate::config::options::Options;

/// Root directory of `/proc/sys`, which contains the settings' files.
const ROOT: &str = "/";

/// Values that settings had before this process wrote them, so that it can restore them.
static ORIGINS: Mutex<Origins> = Mutex::new(Origins::new());

/// Occasion on which this process writes kernel settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Preparation of the node (`--init-only`). A daemon that starts later may lack the permission
    /// to write these settings.
    Prepare,
    /// Start of the daemon, before it serves.
    Start,
    /// Change of options while the daemon serves, without a restart.
    GoOn,
}

/// Writes all needed settings, and restores the settings that are no longer needed. Logs the
/// outcome. Disables options whose setting cannot be written. In IPVS mode, the module `ip_vs`
/// must already be loaded: it also loads `nf_conntrack`, which has some of the settings.
///
/// # Errors
///
/// Fails if a setting that `step` requires could not be written.
pub(crate) fn settle(options: &mut Options, step: Step) -> Result<(), SysctlErrors> {
    let root = Path::new(ROOT);
    let applied = {
        let mut origins = ORIGINS.lock().unwrap_or_else(PoisonError::into_inner);
        apply(root, &wanted(options, Machine::this()), &mut origins)
    };
    if !applied.written.is_empty() {
        info!(
            sysctls = applied.written.join(" "),
            "kernel settings written"
        );
    }
    for line in &applied.set_back {
        info!("{line}");
    }
    for line in &applied.left {
        warn!("{line}");
    }
    let mode = options.modes.chosen.definition();
    if step != Step::GoOn {
        for line in mode.unasked_sysctls(&options.kernel, root) {
            info!("{line}");
        }
    }
    let failures = applied.failures;
    for failure in &failures {
        mode.go_without(failure.row, &mut options.modes);
    }
    let needs = failures.iter().map(|failure| failure.row.need);
    let need = needs.min();
    if need.is_some_and(|need| step.ends(need, mode.has_served(root))) {
        return Err(SysctlErrors(failures));
    }
    let mut by_need = BTreeMap::<Need, Vec<SysctlError>>::new();
    for failure in failures {
        by_need.entry(failure.row.need).or_default().push(failure);
    }
    for (need, failures) in by_need {
        error!("{}. Until then {}", SysctlErrors(failures), need.then());
    }
    Ok(())
}

impl Step {
    /// Reports whether the step fails because of unwritten settings. `worst` is the most important
    /// need among these settings. `has_served` is true if this mode has already served on this
    /// node.
    fn ends(self, worst: Need, has_served: bool) -> bool {
        match self {
            Self::Prepare => true,
            Self::Start => worst == Need::Mode && !has_served,
            Self::GoOn => false,
        }
    }
}

/// Lists the settings that still have kube-proxy's value instead of the kernel's default, one line
/// each.
pub(crate) fn leftovers() -> Vec<String> {
    let rows = modes::sysctls(None).into_iter();
    rows.filter_map(|WantedSetting { row, .. }| row.stays(Path::new(ROOT)))
        .collect()
}

/// Returns the settings that [`settle`] would write.
pub(crate) fn pending(options: &Options) -> Vec<Difference> {
    let wanted = wanted(options, Machine::this());
    differences(Path::new(ROOT), &wanted).collect()
}

/// Returns all settings that the modes and connection tracking need, in the order of writing.
fn wanted(options: &Options, machine: Machine) -> Vec<WantedSetting> {
    let facts = Facts {
        settings: &options.modes,
        asked: &options.kernel,
        machine: &machine,
    };
    let mut wanted = modes::sysctls(Some(&facts));
    wanted.extend(conntrack::settings(options.kernel.conntrack, machine));
    wanted
}

#[cfg(test)]
mod tests;
