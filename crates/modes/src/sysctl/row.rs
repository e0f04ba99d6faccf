//! A kernel setting (sysctl) and its properties, without the wanted value.

use std::fs;
use std::path::Path;

/// A kernel setting: a file in /proc/sys or /sys.
#[derive(Debug)]
pub struct SysctlRow {
    /// Path of the setting's file, without the leading slash.
    pub path: &'static str,
    /// Current values that the daemon accepts and does not overwrite.
    pub enough: AcceptableValue,
    /// Consequence if the setting's file is on a read-only file system.
    pub on_read_only: OnReadOnly,
    /// Flag, with its value, that makes the daemon leave the setting unchanged. `None` if there is
    /// no such flag.
    pub off: Option<&'static str>,
    /// Importance of the setting for the mode.
    pub need: Need,
    /// Action of the daemon when the mode no longer needs the setting: keep the value, or restore
    /// the old one.
    pub end: End,
}

/// Current values of a setting that the daemon accepts and does not overwrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptableValue {
    /// The daemon accepts only the wanted value.
    Exactly,
    /// The daemon accepts the wanted value and every larger value.
    AtLeast,
}

/// Consequence if a setting's file is on a read-only file system. Some container engines mount /sys
/// read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnReadOnly {
    /// The failed write counts as an error.
    Fails,
    /// The failed write only causes a warning.
    Warns,
}

/// Importance of a setting, from the most to the least important.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// The mode needs the setting to serve correctly, or to do no harm to other hosts. If the
    /// daemon cannot write it, the start fails, and the entries of the previous mode continue to
    /// serve.
    ///
    /// If this mode has already served on this node, the daemon starts without the setting, because
    /// the mode then serves as before.
    Mode,
    /// One feature of the mode needs the setting. The daemon disables the feature if it cannot
    /// write the setting.
    Part {
        /// Consequence of the disabled feature, as text for the operator.
        then: &'static str,
    },
    /// The setting improves the mode's behaviour. Without it, the mode still serves everything.
    Comfort,
}

impl Need {
    /// Returns a text with the consequence if the daemon cannot write a setting of this importance.
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
    /// The daemon keeps the value, because open connections may rely on it.
    Stays,
    /// The daemon restores the value that it replaced.
    IsSetBack {
        /// Value that the daemon writes, as text.
        wanted: &'static str,
        /// Flag or configuration field that requires the setting.
        by: &'static str,
        /// The kernel's default value of the setting.
        default: u64,
    },
}

/// A setting with the value that a mode wants.
#[derive(Debug)]
pub struct WantedSetting {
    /// Properties of the setting, without its value.
    pub row: &'static SysctlRow,
    /// Wanted value, or `None` to leave the setting unchanged.
    pub value: Option<u64>,
}

/// A table of settings, each with a function that computes its wanted value from a context `C`.
pub type Rows<C> = [(SysctlRow, fn(&C) -> Option<u64>)];

/// Returns the settings of a table, with their wanted values in `context`. Without a `context`,
/// they have no values.
pub fn wanted<C>(rows: &'static Rows<C>, context: Option<&C>) -> Vec<WantedSetting> {
    let wanted = rows.iter().map(|(row, value)| WantedSetting {
        row,
        value: context.and_then(value),
    });
    wanted.collect()
}

impl SysctlRow {
    /// Returns a row for a setting that only improves the mode's behaviour.
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

    /// Returns a row for a setting that a mode needs to serve correctly.
    pub const fn needed(path: &'static str) -> Self {
        Self {
            need: Need::Mode,
            ..Self::comfort(path)
        }
    }

    /// Returns a row for a setting that the daemon leaves unchanged if the flag in `off` is given.
    pub const fn flagged(path: &'static str, off: &'static str) -> Self {
        Self {
            off: Some(off),
            ..Self::comfort(path)
        }
    }

    /// Returns the name of the setting in sysctl(8), such as `net.ipv4.ip_forward`. Returns the
    /// path for a setting in /sys.
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

    /// Returns advice to reset the setting if its current value is the one that kube-proxy writes.
    /// Returns `None` for another value, and for a setting with [`End::Stays`].
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
