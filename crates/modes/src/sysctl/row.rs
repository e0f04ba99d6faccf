//! A kernel setting (sysctl) and its properties, without the wanted value.

use std::fs;
use std::path::Path;

/// A kernel setting, as a file in /proc/sys or /sys.
#[derive(Debug)]
pub struct SysctlRow {
    /// Path of the setting's file, relative to the root directory.
    pub path: &'static str,
    /// Current values of the setting that are good enough, so that the daemon leaves them
    /// unchanged.
    pub enough: AcceptableValue,
    /// Effect of a failed write on a read-only file system.
    pub on_read_only: OnReadOnly,
    /// Flag and value with which the daemon leaves the setting unchanged, if such a flag exists.
    pub off: Option<&'static str>,
    /// Purpose of the setting.
    pub need: Need,
    /// Action of the daemon when the mode no longer needs the setting: keep the value, or restore
    /// the old value.
    pub end: End,
}

/// Current values of a setting that the daemon leaves unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptableValue {
    /// Only the wanted value is good enough.
    Exactly,
    /// The wanted value and every larger value are good enough.
    AtLeast,
}

/// Effect of a failed write on a read-only file system. Some container engines mount /sys
/// read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnReadOnly {
    /// The failed write counts as an error.
    Fails,
    /// The failed write only causes a warning.
    Warns,
}

/// Purpose of a setting, from the most important to the least important.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// The mode needs the setting to serve correctly without harm to other hosts. If the daemon
    /// cannot write the setting, the start fails, and the entries of another mode continue to
    /// serve.
    ///
    /// If this mode has served on this node before, the start continues without the setting,
    /// because the mode then serves as before.
    Mode,
    /// A single feature needs the setting. Without the setting, the daemon disables this feature.
    Part {
        /// Consequence of the missing setting, as text for the operator.
        then: &'static str,
    },
    /// The setting improves the behaviour. Without the setting, everything still works.
    Comfort,
}

impl Need {
    /// Describes the consequence if a setting with this need cannot be written.
    pub fn then(self) -> &'static str {
        match self {
            Self::Mode => "this mode has served here before and continues unchanged",
            Self::Part { then } => then,
            Self::Comfort => "everything is served",
        }
    }
}

/// Action of the daemon on a setting that the mode no longer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The setting stays, because open connections may rely on it.
    Stays,
    /// The daemon restores the setting's old value.
    IsSetBack {
        /// Description of the wanted value, for the operator.
        wanted: &'static str,
        /// Flag or configuration field that requires the setting.
        by: &'static str,
        /// The kernel's default value of the setting.
        default: u64,
    },
}

/// A setting with the value that a mode needs.
#[derive(Debug)]
pub struct WantedSetting {
    /// Properties of the setting, without its value.
    pub row: &'static SysctlRow,
    /// Wanted value, or `None` to leave the setting unchanged.
    pub value: Option<u64>,
}

/// Rows of settings, each with a function that computes the wanted value from a context `C`.
pub type Rows<C> = [(SysctlRow, fn(&C) -> Option<u64>)];

/// Returns the settings of a table, with their values in `context`. If `context` is `None`, the
/// settings have no values.
pub fn wanted<C>(rows: &'static Rows<C>, context: Option<&C>) -> Vec<WantedSetting> {
    let wanted = rows.iter().map(|(row, value)| WantedSetting {
        row,
        value: context.and_then(value),
    });
    wanted.collect()
}

impl SysctlRow {
    /// Returns a row for a setting that improves the behaviour but is not necessary.
    pub const fn comfort(path: &'static str) -> Self {
        Self {
            path,
            enough: AcceptableValue::Exactly,
            on_read_only: OnReadOnly::Fails,
            off: None,
            need: Need::Comfort,
            end: End::Stays,
        }
    }

    /// Returns a row for a setting that a mode needs.
    pub const fn needed(path: &'static str) -> Self {
        Self {
            need: Need::Mode,
            ..Self::comfort(path)
        }
    }

    /// Returns a row for a setting that the flag `off` leaves unchanged.
    pub const fn flagged(path: &'static str, off: &'static str) -> Self {
        Self {
            off: Some(off),
            ..Self::comfort(path)
        }
    }

    /// Returns the setting's name for sysctl(8), or its path if it has none.
    pub fn name(&self) -> String {
        match self.path.strip_prefix("proc/sys/") {
            Some(key) => key.replace('/', "."),
            None => format!("/{}", self.path),
        }
    }

    pub(super) fn is_met(&self, found: &str, wanted: u64) -> bool {
        found.parse().is_ok_and(|found: u64| {
            found == wanted || (self.enough == AcceptableValue::AtLeast && found > wanted)
        })
    }

    /// Returns advice to undo the setting if it has kube-proxy's value. Returns `None` if the
    /// setting has another value, or if it is a setting with [`End::Stays`].
    pub fn stays(&self, root: &Path) -> Option<String> {
        let End::IsSetBack {
            wanted,
            by,
            default,
        } = self.end
        else {
            return None;
        };
        let found = fs::read_to_string(root.join(self.path)).ok()?;
        (found.trim() == wanted).then(|| {
            let name = self.name();
            format!(
                "{name} stays {wanted}, as {by} sets it: its origin on this node is unknown, and \
                 other programs may need it; if none does, `sysctl -w {name}={default}` undoes it"
            )
        })
    }
}
