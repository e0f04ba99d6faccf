//! The kernel settings that a mode and connection tracking need to serve Services, as upstream sets
//! them.
//!
//! What cannot be written costs as little as it can: see [`Need`]. Upstream's start ends for any of
//! them.
//!
//! Those that decide which packets a node answers are set back when this process is told that they
//! are no longer wanted, where it wrote them and nobody has changed them since. The kernel does not
//! keep who has written a setting, so of those that an earlier process has set it is only said that
//! they stay, where there is evidence of it. All others stay: others may rely on them by then.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tracing::{error, info, warn};

use modes::definition::Facts;
use modes::sysctl::apply::{Difference, Origins, apply, differences};
use modes::sysctl::conntrack;
use modes::sysctl::error::{SysctlError, SysctlErrors};
use modes::sysctl::machine::Machine;
use modes::sysctl::row::{Need, Wanted};

use crate::config::options::Options;

/// Where the kernel's files are.
const ROOT: &str = "/";

/// What this process has found of the settings that it may set back.
static ORIGINS: Mutex<Origins> = Mutex::new(Origins::new());

/// What a process is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// To end (`--init-only`): another one serves, and may not be allowed to write what this one
    /// could not.
    Prepare,
    /// To begin to serve.
    Start,
    /// To go on serving with other options.
    GoOn,
}

/// Brings every setting to its value, and back those that are no longer wanted; says what became of
/// them. `ip_vs` must be loaded, which loads `nf_conntrack`. What cannot be done without those that
/// cannot be written is taken out of `options`.
///
/// # Errors
///
/// The step cannot be made.
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
    /// Whether settings that could not be written, of which the worst is needed so, are an error of
    /// this step as a whole; `has_served`: this mode has served here before.
    fn ends(self, worst: Need, has_served: bool) -> bool {
        match self {
            Self::Prepare => true,
            Self::Start => worst == Need::Mode && !has_served,
            Self::GoOn => false,
        }
    }
}

/// The settings that are as a kube-proxy sets them and as a kernel has not, a line each.
pub(crate) fn leftovers() -> Vec<String> {
    let rows = modes::sysctls(None).into_iter();
    rows.filter_map(|Wanted { row, .. }| row.stays(Path::new(ROOT)))
        .collect()
}

/// What [`settle`] would write.
pub(crate) fn pending(options: &Options) -> Vec<Difference> {
    let wanted = wanted(options, Machine::this());
    differences(Path::new(ROOT), &wanted).collect()
}

/// Every setting, in the order in which they are written.
fn wanted(options: &Options, machine: Machine) -> Vec<Wanted> {
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
