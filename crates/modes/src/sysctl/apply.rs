//! Writes kernel settings (sysctls), and restores their old values.
//!
//! Writes a setting only if its value differs. So the daemon runs without write access to /proc/sys
//! on a node whose settings already have the wanted values.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use tracing::warn;

use super::error::SysctlError;
use super::row::{End, OnReadOnly, SysctlRow, WantedSetting};
use super::setting::Setting;

/// Origins of the values of settings that the daemon may have to restore, by the setting's path.
pub type Origins = BTreeMap<&'static str, Origin>;

/// Origin of the current value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// This process found the value and did not write it.
    Found,
    /// This process wrote the value.
    Written {
        /// Value that the setting had before the write.
        before: String,
    },
}

/// Outcome of writing the kernel settings.
#[derive(Debug, Default)]
pub struct ApplyOutcome {
    /// Names of the settings that were written.
    pub written: Vec<String>,
    /// Log lines about settings whose old values were restored.
    pub set_back: Vec<String>,
    /// Log lines about settings that are no longer needed but keep their values.
    pub left: Vec<String>,
    /// Settings that could not be written.
    pub failures: Vec<SysctlError>,
}

/// A setting whose value in the kernel differs from the wanted value.
pub struct Difference {
    row: &'static SysctlRow,
    value: u64,
    found: String,
}

impl Difference {
    /// Returns the properties of the setting.
    pub fn row(&self) -> &'static SysctlRow {
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

/// Returns the settings whose values below the directory `root` differ from the wanted values.
pub fn differences<'a>(
    root: &'a Path,
    wanted: &'a [WantedSetting],
) -> impl Iterator<Item = Difference> + 'a {
    wanted
        .iter()
        .filter_map(move |WantedSetting { row, value }| {
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

/// Writes the wanted values below the directory `root`, in the order of `wanted`. Restores the old
/// values of settings that are no longer needed.
pub fn apply(root: &Path, wanted: &[WantedSetting], origins: &mut Origins) -> ApplyOutcome {
    let mut applied = ApplyOutcome::default();
    for WantedSetting { row, value } in wanted {
        match value {
            None => applied.set_back(root, row, origins),
            // The daemon never restores a setting with `End::Stays`, so it records no origin for
            // it. The loop below writes its wanted value.
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
                // The write has failed, so there is no old value to restore.
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

impl ApplyOutcome {
    /// Restores the old value of a setting that is no longer needed. If this process only found the
    /// value and did not write it, the value stays and is reported.
    fn set_back(&mut self, root: &Path, row: &SysctlRow, origins: &mut Origins) {
        let Some(origin) = origins.remove(row.path) else {
            return;
        };
        // Keeps the current value if another program has written it since.
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
