//! Bringing settings to their values, and back.
//!
//! Written only where they differ, so that a container which may not write /proc/sys works on a
//! node that is set up already.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use tracing::warn;

use super::error::SysctlError;
use super::row::{End, OnReadOnly, Row, Wanted};
use super::setting::Setting;

/// What a process has found of the settings that it may set back, by their files.
pub type Origins = BTreeMap<&'static str, Origin>;

/// Where the value of a setting that is wanted comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// It was there.
    Found,
    /// This process has written it.
    Written {
        /// What was there before.
        before: String,
    },
}

/// What became of the settings.
#[derive(Debug, Default)]
pub struct Applied {
    /// The names of those that were written.
    pub written: Vec<String>,
    /// Those that are as they were before, a line each.
    pub set_back: Vec<String>,
    /// Those that are no longer wanted, and stay; a line each.
    pub left: Vec<String>,
    /// Settings that could not be written.
    pub failures: Vec<SysctlError>,
}

/// A setting that has not the value that it is to have.
pub struct Difference {
    row: &'static Row,
    value: u64,
    found: String,
}

impl Difference {
    /// What it is about.
    pub fn row(&self) -> &'static Row {
        self.row
    }
}

impl From<Difference> for Setting {
    fn from(difference: Difference) -> Self {
        let Difference { row, value, found } = difference;
        Self {
            name: row.name(),
            found,
            wanted: value.to_string(),
        }
    }
}

/// The settings below `root` that are not as they are to be.
pub fn differences<'a>(
    root: &'a Path,
    wanted: &'a [Wanted],
) -> impl Iterator<Item = Difference> + 'a {
    wanted.iter().filter_map(move |Wanted { row, value }| {
        let value = (*value)?;
        let found = fs::read_to_string(root.join(row.path)).map(|text| text.trim().to_owned());
        let is_met = found.as_deref().is_ok_and(|found| row.is_met(found, value));
        (!is_met).then(|| Difference {
            row,
            value,
            found: found.unwrap_or_else(|_| "unreadable".to_owned()),
        })
    })
}

/// Brings the settings below `root` to what is wanted, and back what is no longer, in the order of
/// `wanted`.
pub fn apply(root: &Path, wanted: &[Wanted], origins: &mut Origins) -> Applied {
    let mut applied = Applied::default();
    for Wanted { row, value } in wanted {
        match value {
            None => applied.set_back(root, row, origins),
            // Whatever differs is written below.
            Some(_) if row.end == End::Stays => {}
            Some(_) => {
                origins.entry(row.path).or_insert(Origin::Found);
            }
        }
    }
    for Difference { row, value, found } in differences(root, wanted) {
        match fs::write(root.join(row.path), value.to_string()) {
            Ok(()) => {
                applied.written.push(row.name());
                if let Some(origin) = origins.get_mut(row.path) {
                    *origin = Origin::Written { before: found };
                }
            }
            Err(source)
                if row.on_read_only == OnReadOnly::Warns
                    && source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
            {
                warn!(
                    setting = row.name(), %found, wanted = value,
                    "is on a read-only file system and stays too small; set it on the node itself"
                );
            }
            Err(source) => {
                // There is nothing to set back.
                origins.remove(row.path);
                applied.failures.push(SysctlError {
                    row,
                    value,
                    found,
                    source,
                });
            }
        }
    }
    applied
}

impl Applied {
    /// Sets back what is no longer wanted, if this process wrote it and nobody has since.
    fn set_back(&mut self, root: &Path, row: &Row, origins: &mut Origins) {
        let Some(origin) = origins.remove(row.path) else {
            return;
        };
        // Who has changed it does not want what was there before either.
        let Some(stays) = row.stays(root) else {
            return;
        };
        let Origin::Written { before } = origin else {
            self.left.push(stays);
            return;
        };
        match fs::write(root.join(row.path), &before) {
            Ok(()) => self.set_back.push(format!(
                "{} is {before} again, as before this kube-proxy: it is no longer wanted",
                row.name()
            )),
            Err(error) => self.left.push(format!("{stays} (here: {error})")),
        }
    }
}
