//! A kernel setting, with all its properties except the wanted value.

use std::fs;
use std::path::Path;

/// A kernel setting.
#[derive(Debug)]
pub struct Row {
    /// Path of the file, from the root folder.
    pub path: &'static str,
    /// Values that are enough.
    pub enough: Enough,
    /// Severity if the file system is read-only.
    pub on_read_only: OnReadOnly,
    /// Flag that leaves the setting alone, if there is one.
    pub off: Option<&'static str>,
    /// Work that needs the setting.
    pub need: Need,
    /// Treatment of the setting once it is no longer wanted.
    pub end: End,
}

/// Values of a setting that are enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enough {
    /// Only the wanted value.
    Exactly,
    /// The wanted value or a larger one.
    AtLeast,
}

/// Severity of a read-only file system, as container engines sometimes mount /sys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnReadOnly {
    /// The setting could not be written.
    Fails,
    /// A warning, and no failure.
    Warns,
}

/// Work that needs a setting, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Serving correctly and without harm to other hosts. Without the setting the start fails, and
    /// the entries of another mode go on serving. If this mode has served here before, the start
    /// goes on, because that makes nothing worse.
    Mode,
    /// A feature, which is turned off without the setting.
    Part {
        /// Consequence for the operator.
        then: &'static str,
    },
    /// Better behavior; everything works without the setting.
    Comfort,
}

impl Need {
    /// Describes the consequence when settings with this need cannot be written.
    pub fn then(self) -> &'static str {
        match self {
            Self::Mode => "this mode has served here before, and goes on as it did",
            Self::Part { then } => then,
            Self::Comfort => "everything is served",
        }
    }
}

/// Treatment of a setting once it is no longer wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It stays, because open connections may rely on it.
    Stays,
    /// It is set back.
    IsSetBack {
        /// Text about the value while it is wanted.
        wanted: &'static str,
        /// Flag or field that wants it.
        by: &'static str,
        /// Default value of the kernel.
        default: u64,
    },
}

/// A setting with its wanted value.
#[derive(Debug)]
pub struct Wanted {
    /// Row of the setting.
    pub row: &'static Row,
    /// Wanted value; `None` leaves the setting alone.
    pub value: Option<u64>,
}

/// Rows with functions that compute the wanted values from `C`.
pub type Rows<C> = [(Row, fn(&C) -> Option<u64>)];

/// Returns the settings of a table with the values wanted in `context`. Without a context, they
/// have none.
pub fn wanted<C>(rows: &'static Rows<C>, context: Option<&C>) -> Vec<Wanted> {
    let wanted = rows.iter().map(|(row, value)| Wanted {
        row,
        value: context.and_then(value),
    });
    wanted.collect()
}

impl Row {
    /// Returns a setting that improves behavior.
    pub const fn comfort(path: &'static str) -> Self {
        Self {
            path,
            enough: Enough::Exactly,
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

    /// Returns a setting that a flag sets, or leaves alone.
    pub const fn flagged(path: &'static str, off: &'static str) -> Self {
        Self {
            off: Some(off),
            ..Self::comfort(path)
        }
    }

    /// Returns the name in sysctl(8), or the file.
    pub fn name(&self) -> String {
        match self.path.strip_prefix("proc/sys/") {
            Some(key) => key.replace('/', "."),
            None => format!("/{}", self.path),
        }
    }

    pub(super) fn is_met(&self, found: &str, wanted: u64) -> bool {
        found.parse().is_ok_and(|found: u64| {
            found == wanted || (self.enough == Enough::AtLeast && found > wanted)
        })
    }

    /// Describes how to undo the setting if it has the value that a kube-proxy sets. Returns `None`
    /// if it has another value, or always stays.
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
                "{name} stays {wanted}, as {by} sets it: who has set it here cannot be told, and \
                 others may need it; if nobody does, `sysctl -w {name}={default}` undoes it"
            )
        })
    }
}
