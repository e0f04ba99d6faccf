//! The modes of this build, and the choice of a mode.
//!
//! A mode is a module of this crate that implements [`Definition`], a variant of [`ProxyMode`], and
//! a field of [`Settings`]. No other code of the daemon distinguishes modes.

pub mod definition;
pub mod detect_local;
pub mod families;
pub mod footprints;
pub mod iptables;
pub mod ipvs;
pub mod metrics;
pub mod nftables;
pub mod node_ports;
pub mod open;
pub mod predecessor;
pub mod preview;
pub mod programs;
pub mod rulesets;
pub mod settings;
pub mod shared;
pub mod sysctl;
pub mod userspace;

use std::path::Path;

use flags::Flags;
use flags::gates::Gates;
use flags::unusable_flag::UnusableFlag;

use crate::sysctl::row::WantedSetting;
use definition::{Definition, Facts, Periods};
use settings::{ProxyMode, Settings};
use shared::Shared;

impl ProxyMode {
    /// All modes. The default mode is the first.
    pub const ALL: [Self; 4] = [Self::Iptables, Self::Ipvs, Self::Nftables, Self::Userspace];

    /// Returns the mode's implementation of [`Definition`].
    pub fn definition(self) -> &'static dyn Definition {
        match self {
            Self::Iptables => &iptables::IptablesMode,
            Self::Ipvs => &ipvs::IpvsMode,
            Self::Nftables => &nftables::NftablesMode,
            Self::Userspace => &userspace::UserspaceMode,
        }
    }

    /// Returns the mode's name in `--proxy-mode`.
    pub fn name(self) -> &'static str {
        self.definition().name()
    }

    /// Returns the mode that `--proxy-mode` or the configuration file names, or the default mode if
    /// none is named.
    ///
    /// # Errors
    ///
    /// Fails if no mode has this name.
    pub fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
        let flag = &*flags.proxy_mode;
        let mut modes = Self::ALL.into_iter();
        let named = modes.find(|mode| mode.name() == flag);
        named
            .or(flag.is_empty().then(Self::default))
            .ok_or_else(|| {
                let modes = Self::ALL.map(Self::name).join(", ");
                let advice = format!("the modes of this build are: {modes}");
                UnusableFlag::new("proxy-mode", flag, advice)
            })
    }

    /// Checks that the feature gate of the mode, if it has one, is not off.
    ///
    /// # Errors
    ///
    /// Fails if the gate is set to false.
    pub fn check_gate(self, gates: &Gates) -> Result<(), UnusableFlag> {
        let gate = self.definition().gate();
        let Some(gate) = gate.filter(|gate| gates.given(gate) == Some(false)) else {
            return Ok(());
        };
        let others: Vec<&str> = self.others().map(Self::name).collect();
        let others = others.join(", ");
        let advice = format!(
            "the feature gate {gate}=false disables this mode: choose one of the modes {others}, \
             or remove {gate}"
        );
        Err(UnusableFlag::new("proxy-mode", self.name(), advice))
    }

    /// Returns all modes of this build, except `self`.
    pub fn others(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |other| *other != self)
    }

    /// Returns the sync periods of the mode, from its flags.
    ///
    /// # Errors
    ///
    /// Fails if the sync period is zero, or shorter than the minimum time between two syncs.
    pub fn periods(self, flags: &Flags) -> Result<Periods, UnusableFlag> {
        let periods = self.definition().periods(flags);
        let Periods { sync, min_sync } = periods;
        if sync.1.is_zero() {
            return Err(UnusableFlag::new(
                sync.0,
                "0s",
                "must be longer than 0, for example 30s",
            ));
        }
        if min_sync.1 > sync.1 {
            return Err(UnusableFlag::new(
                min_sync.0,
                &format!("{:?}", min_sync.1),
                format!(
                    "must not be longer than --{}, which is {:?}",
                    sync.0, sync.1
                ),
            ));
        }
        Ok(periods)
    }
}

impl Settings {
    /// Reads the settings of all modes from flags. `periods` are the sync periods of the chosen
    /// mode.
    ///
    /// # Errors
    ///
    /// Fails if a flag has an invalid value, even a flag of another mode.
    pub fn read(flags: &Flags, chosen: ProxyMode, periods: &Periods) -> Result<Self, UnusableFlag> {
        Ok(Self {
            chosen,
            shared: Shared::read(
                flags,
                periods.sync.1,
                chosen.definition().node_port_addresses(),
            )?,
            iptables: iptables::settings::Settings::read(flags),
            ipvs: ipvs::settings::Settings::read(flags)?,
            nftables: nftables::settings::Settings::read(flags)?,
            userspace: userspace::settings::Settings::read(flags)?,
        })
    }
}

/// Copies flags that several modes read into settings of the chosen mode, for which the
/// configuration file has separate fields. The daemon calls this function only without a
/// configuration file.
pub fn take_flags(flags: &mut Flags) {
    // Ignores an unknown mode: [`ProxyMode::read`] reports it.
    if let Ok(chosen) = ProxyMode::read(flags) {
        chosen.definition().take_flags(flags);
    }
}

impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        let is_own_equal = match self.chosen {
            ProxyMode::Iptables => self.iptables == other.iptables,
            ProxyMode::Ipvs => self.ipvs == other.ipvs,
            ProxyMode::Nftables => self.nftables == other.nftables,
            ProxyMode::Userspace => self.userspace == other.userspace,
        };
        self.chosen == other.chosen && self.shared == other.shared && is_own_equal
    }
}

/// Returns the kernel settings of all modes, in writing order. Only those of the mode in `facts`
/// have wanted values.
pub fn sysctls(facts: Option<&Facts<'_>>) -> Vec<WantedSetting> {
    let of = |mode: ProxyMode| {
        let facts = facts.filter(|facts| facts.settings.chosen == mode);
        mode.definition().sysctls(facts)
    };
    ProxyMode::ALL.into_iter().flat_map(of).collect()
}

/// Describes where the mode was set: in a flag, in the configuration file, or nowhere.
pub fn origin_of_mode(flags: &Flags) -> String {
    match (flags.proxy_mode.is_empty(), flags.config.is_empty()) {
        (true, _) => "the default".to_owned(),
        (false, true) => "--proxy-mode".to_owned(),
        (false, false) => format!("mode in {}", Path::new(&flags.config).display()),
    }
}

/// Returns a warning if neither `--proxy-mode` nor the configuration file sets the mode. The
/// warning names the flag or field to set.
///
/// Upstream's default changes in Kubernetes 1.40. This program keeps its default, because a new
/// image must not change the data plane.
pub fn warning_of_default(flags: &Flags) -> Option<String> {
    if !flags.proxy_mode.is_empty() {
        return None;
    }
    let mode = ProxyMode::default().name();
    let (empty, word) = if flags.config.is_empty() {
        ("--proxy-mode is empty".to_owned(), "--proxy-mode=")
    } else {
        let file = Path::new(&flags.config).display();
        (format!("{file}: mode is empty"), "mode: ")
    };
    Some(format!(
        "{empty}: {mode} mode is used, and stays this program's default. Upstream's default \
         becomes nftables in Kubernetes 1.40, so \
         that an empty mode means another one there. Give {word}{mode} to keep this mode, or \
         {word}ipvs for IPVS"
    ))
}

/// Returns a log line for each given flag that only another mode reads. Skips flags that have a
/// field in the configuration file.
pub fn flags_without_effect(chosen: ProxyMode, flags: &Flags) -> Vec<String> {
    let defaults = Flags::defaults();
    let of = |mode: ProxyMode| {
        let definition = mode.definition();
        let given = definition.flags().iter();
        let given = given.filter(|flag| (flag.differs)(flags, &defaults));
        given
            .map(|flag| {
                let (flag, mode) = (flag.name, definition.name());
                format!("--{flag} has no effect: it is of {mode} mode")
            })
            .collect::<Vec<_>>()
    };
    chosen.others().flat_map(of).collect()
}
