//! One setting of the kernel, and what is known of it whatever its value.

use std::fs;
use std::path::Path;

/// One setting.
#[derive(Debug)]
pub struct Row {
    /// The file, from the root folder.
    pub path: &'static str,
    /// Which values will do.
    pub enough: Enough,
    /// What a read-only file system makes of it.
    pub on_read_only: OnReadOnly,
    /// The flag that leaves it alone, if there is one.
    pub off: Option<&'static str>,
    /// What cannot be done without it.
    pub need: Need,
    /// What becomes of it when it is no longer wanted.
    pub end: End,
}

/// Which values of a setting will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enough {
    /// The value that is wanted.
    Exactly,
    /// More will do.
    AtLeast,
}

/// The outcome where a setting lies on a read-only file system, as container engines mount /sys at
/// times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnReadOnly {
    /// The setting could not be written.
    Fails,
    /// A warning, and no failure.
    Warns,
}

/// What cannot be done without a setting, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// To carry Services as they must be, or to do it without harm to other hosts. The start ends,
    /// and what another mode has programmed goes on serving; unless this mode has served here
    /// before, when going on makes nothing worse.
    Mode,
    /// To do a part of it, which is left out.
    Part {
        /// What that comes to.
        then: &'static str,
    },
    /// To do something well that works without.
    Comfort,
}

impl Need {
    /// What comes of it that settings which are needed so could not be written.
    pub fn then(self) -> &'static str {
        match self {
            Self::Mode => "this mode has served here before, and goes on as it did",
            Self::Part { then } => then,
            Self::Comfort => "everything is served",
        }
    }
}

/// Whether a setting is set back when it is no longer wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It stays: connections that are there may rely on it.
    Stays,
    /// It is set back.
    IsSetBack {
        /// What it is where it is wanted.
        wanted: &'static str,
        /// By whom.
        by: &'static str,
        /// What a kernel has that nobody has told anything.
        default: u64,
    },
}

/// A setting with the value that it is to have.
#[derive(Debug)]
pub struct Wanted {
    /// The setting.
    pub row: &'static Row,
    /// `None` leaves it alone.
    pub value: Option<u64>,
}

/// Rows with what their values depend on: `C`.
pub type Rows<C> = [(Row, fn(&C) -> Option<u64>)];

/// The settings of a table, with the values that they are to have in `context`; with none if it is
/// `None`.
pub fn wanted<C>(rows: &'static Rows<C>, context: Option<&C>) -> Vec<Wanted> {
    let wanted = rows.iter().map(|(row, value)| Wanted {
        row,
        value: context.and_then(value),
    });
    wanted.collect()
}

impl Row {
    /// One that something works better with.
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

    /// One that a mode cannot do without.
    pub const fn needed(path: &'static str) -> Self {
        Self {
            need: Need::Mode,
            ..Self::comfort(path)
        }
    }

    /// One that a flag sets, or leaves alone.
    pub const fn flagged(path: &'static str, off: &'static str) -> Self {
        Self {
            off: Some(off),
            ..Self::comfort(path)
        }
    }

    /// As sysctl(8) names it, or its file.
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

    /// That the setting is as a kube-proxy sets it, and how it is undone; `None` if it is not, or
    /// is one that stays anyway.
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
