//! The checked options that the flags define, grouped by the code that reads them.
//!
//! ```text
//!             ┌─▶ Process           options of the process and its loop
//!             ├─▶ logging           options of the log
//!             ├─▶ source            source of Services
//!   Flags ────┼─▶ servers           options of the health and metrics servers
//!             ├─▶ modes             shared options of all modes, and options of each mode
//!             ├─▶ sysctl            kernel settings
//!             └─▶ ParsedOptions     the given settings, and messages for the operator
//! ```
//!
//! When the configuration file changes, the daemon compares each group with its old value. Only the
//! code that reads a changed group gets new options.

pub(crate) mod object_source;
pub mod process;
pub mod servers;

use std::env;

use flags::Flags;
use flags::gates::{EXTERNAL_IPS, Gates};
use flags::unusable_flag::UnusableFlag;
use modes::settings::ProxyMode;
use modes::sysctl;
use proxy::{AddressRules, ExternalIps};
use tracing::{info, warn};

use crate::config::{Configuration, command_line};
use crate::logging;
use process::Process;

/// All options of the daemon, grouped by the code that reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Options of the daemon's process and its main loop.
    pub process: Process,
    /// Options of the log, such as its format and verbosity.
    pub log: logging::settings::Settings,
    /// Source of Services: an API server or a directory of manifests.
    pub source: source::Settings,
    /// Options of the health and metrics servers.
    pub serve: servers::Settings,
    /// Shared options of all modes, and options of each mode.
    pub modes: modes::settings::Settings,
    /// Kernel settings that flags request.
    pub kernel: sysctl::settings::Settings,
    /// Notes and warnings about the flags, and the configuration that they define.
    pub said: ParsedOptions,
}

/// Settings that the user gave, and messages about these settings.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedOptions {
    /// The settings as a configuration file, including settings without effect.
    pub configuration: Configuration,
    /// Origin of the mode: `--proxy-mode`, a file, or `the default`.
    pub mode_from: String,
    /// Messages about feature gates that have no effect, or that a future release removes.
    pub notes: Vec<String>,
    /// Warnings about the settings, one message each.
    pub warnings: Vec<String>,
    /// Warning that the user has set no mode, or `None` if a mode is set. `warnings` also contains
    /// this warning.
    pub no_mode: Option<String>,
}

#[cfg(test)]
impl ParsedOptions {
    /// Returns all warnings except the warning about a missing mode.
    pub(crate) fn warnings_beside_mode(&self) -> Vec<String> {
        let warnings = self.warnings.iter();
        let others = warnings.filter(|warning| Some(*warning) != self.no_mode.as_ref());
        others.cloned().collect()
    }
}

impl ParsedOptions {
    /// Logs the notes and warnings. From verbosity 1 on, also logs the flags as typed.
    pub fn tell(&self, log: &logging::settings::Settings) {
        if log.verbosity >= 1 {
            for line in command_line::as_typed(env::args_os()) {
                info!(target: logging::UNSTRUCTURED, "FLAG: {line}");
            }
        }
        for note in &self.notes {
            info!("{note}");
        }
        for warning in &self.warnings {
            warn!("{warning}");
        }
    }
}

impl Options {
    /// Checks `flags`, and converts them to options.
    ///
    /// # Errors
    ///
    /// Fails if a value is invalid.
    pub fn new(flags: &Flags) -> Result<Self, UnusableFlag> {
        let chosen = ProxyMode::read(flags)?;
        let gates = Gates::new(flags.feature_gates.iter().cloned());
        chosen.check_gate(&gates)?;
        let log = logging::settings::Settings::read(flags, &gates)?;
        let periods = chosen.periods(flags)?;
        check_unused(flags)?;
        let no_mode = modes::warning_of_default(flags);
        Ok(Self {
            log,
            source: object_source::read(flags, &gates, chosen.definition().service_cidrs(flags))?,
            serve: servers::Settings::read(flags)?,
            modes: modes::settings::Settings::read(flags, chosen, &periods)?,
            kernel: sysctl::settings::Settings::read(flags)?,
            said: ParsedOptions {
                configuration: Configuration::of(flags),
                mode_from: modes::origin_of_mode(flags),
                notes: gates.notes(),
                warnings: [
                    Vec::from_iter(no_mode.clone()),
                    warnings(flags, chosen),
                    gates.warnings(),
                ]
                .concat(),
                no_mode,
            },
            process: Process::read(flags, gates, periods.min_sync.1)?,
        })
    }

    /// Returns the setting for external IPs of Services, as the gate `AllowServiceExternalIPs`
    /// decides.
    pub(crate) fn external_ips(&self) -> ExternalIps {
        if self.process.gates.is_on(EXTERNAL_IPS) {
            ExternalIps::Served
        } else {
            ExternalIps::Ignored
        }
    }
}

impl Options {
    /// Returns the rules that external and load-balancer addresses must satisfy.
    pub(crate) fn address_rules(&self) -> AddressRules {
        AddressRules {
            allowed: self.process.allowed_external.clone(),
        }
    }
}

/// Checks the values of flags that have no effect, because upstream also rejects invalid values.
fn check_unused(flags: &Flags) -> Result<(), UnusableFlag> {
    if flags.config_sync_period.is_zero() {
        return Err(UnusableFlag::new(
            "config-sync-period",
            "0s",
            "must be longer than 0, for example 15m",
        ));
    }
    if flags.kube_api_burst < 0 {
        return Err(UnusableFlag::new(
            "kube-api-burst",
            &flags.kube_api_burst.to_string(),
            "give 0 or more",
        ));
    }
    let version = &*flags.show_hidden_metrics_for_version;
    if !(version.is_empty() || is_previous_minor(version)) {
        return Err(UnusableFlag::new(
            "show-hidden-metrics-for-version",
            version,
            "give the previous minor version of Kubernetes, such as 1.36",
        ));
    }
    Ok(())
}

/// Reports whether a Kubernetes version from 1.34 to 1.38 accepts `version` as its previous minor
/// version. Accepts the values of all these versions, so that an upgrade needs no new value.
fn is_previous_minor(version: &str) -> bool {
    (33..=37).any(|minor| version == format!("1.{minor}"))
}

/// Returns a warning for each flag that is set but has no effect.
fn warnings(flags: &Flags, chosen: ProxyMode) -> Vec<String> {
    let defaults = Flags::defaults();
    let mut warnings = Vec::new();
    for (flag, value, default) in [
        ("boot-id-file", &flags.boot_id_file, defaults.boot_id_file),
        (
            "machine-id-file",
            &flags.machine_id_file,
            defaults.machine_id_file,
        ),
    ] {
        if *value != default {
            warnings.push(format!(
                "--{flag} has no effect: it is left over from another program"
            ));
        }
    }
    if flags.config.is_empty() && !flags.prepared_config.is_empty() {
        warnings.push(
            "--prepared-config has no effect: there is no --config that could change".to_owned(),
        );
    }
    warnings.extend(modes::flags_without_effect(chosen, flags));
    warnings
}
