//! A kernel setting and its properties, without the wanted value.

use std::fs;
use std::path::Path;

/// A kernel setting in /proc/sys or /sys.
#[derive(Debug)]
pub struct SysctlRow {
    /// Path of the setting's file, relative to the root directory.
    pub path: &'static str,
    /// Rule that decides which values are good enough.
    pub enough: AcceptableValue,
    /// Effect of a failed write if the file system is read-only.
    pub on_read_only: OnReadOnly,
    /// Flag and value that keep the setting unchanged, if a flag exists.
    pub off: Option<&'static str>,
    /// Work that fails or suffers if the setting is wrong.
    pub need: Need,
    /// Treatment of the setting once it is no longer wanted.
    pub end: End,
}

/// Rule that decides which values of a setting are good enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptableValue {
    /// Only the wanted value is good enough.
    Exactly,
    /// The wanted value and every larger one are good enough.
    AtLeast,
}

/// Effect of a failed write if the file system is read-only, as /sys is with some container
/// engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnReadOnly {
    /// The write counts as failed.
    Fails,
    /// The write only causes a warning.
    Warns,
}

/// Work that needs a setting, the most important kind first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Serving correctly, without harm to other hosts. If the setting is wrong the start fails, and
    /// another mode's entries keep serving. If this mode has already served here, the start goes
    /// on, because it makes nothing worse.
    Mode,
    /// A feature, which is disabled without the setting.
    Part {
        /// Consequence of the missing setting, for the operator.
        then: &'static str,
    },
    /// The setting only improves the behaviour. Everything works without it.
    Comfort,
}

impl Need {
    /// Describes the consequence if settings with this need cannot be written.
    pub fn then(self) -> &'static str {
        match self {
            Self::Mode => "this mode has served here before and continues unchanged",
            Self::Part { then } => then,
            Self::Comfort => "everything is served",
        }
    }
}

/// Treatment of a setting once it is no longer wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The setting stays, because open connections may rely on it.
    Stays,
    /// The old value is restored.
    IsSetBack {
        /// Text about the wanted value, for the operator.
        wanted: &'static str,
        /// Flag or field that requires the setting.
        by: &'static str,
        /// Kernel's default value.
        default: u64,
    },
}

/// A setting with the value that a mode needs.
#[derive(Debug)]
pub struct WantedSetting {
    /// Row of the setting.
    pub row: &'static SysctlRow,
    /// Wanted value, or `None` to keep the setting unchanged.
    pub value: Option<u64>,
}

/// Rows, each with a function that computes the wanted value from `C`.
pub type Rows<C> = [(SysctlRow, fn(&C) -> Option<u64>)];

/// Returns the settings of a table with the values wanted in `context`. Without a context, the
/// settings have no values.
pub fn wanted<C>(rows: &'static Rows<C>, context: Option<&C>) -> Vec<WantedSetting> {
    let wanted = rows.iter().map(|(row, value)| WantedSetting {
        row,
        value: context.and_then(value),
    });
    wanted.collect()
}

impl SysctlRow {
    /// Returns a setting that improves the behaviour but is not required.
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

    /// Returns a setting that a mode requires.
    pub const fn needed(path: &'static str) -> Self {
        Self {
            need: Need::Mode,
            ..Self::comfort(path)
        }
    }

    /// Returns a setting that a flag sets or keeps unchanged.
    pub const fn flagged(path: &'static str, off: &'static str) -> Self {
        Self {
            off: Some(off),
            ..Self::comfort(path)
        }
    }

    /// Returns the name of the setting in sysctl(8), or its file.
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

    /// Describes how to undo the setting if it has kube-proxy's value. Returns `None` for any other
    /// value, and for a setting with [`End::Stays`].
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
