//! Compares a changed configuration file with the configuration in use. Finds the changed fields,
//! and the fields that need a restart.
//!
//! ```text
//!   changed file ─┬─ fields that can be applied ─▶ in effect
//!                 └─ fields that need a restart ─▶ reported, keep their values
//! ```
//!
//! A change of the file never ends the process:
//!
//! - The change reaches all nodes within a minute or two. If each process exited then, all nodes
//!   would change their data plane, or fail to start, at the same time.
//! - A process that exits restarts in the same pod, without its init containers.
//!
//! With a rolling update instead, the operator chooses the time and sees a failure on the first
//! node. The init containers run, too.
//!
//! Upstream intends to exit after a change. In a cluster it does not exit, because it loses its
//! watch when a mounted ConfigMap changes (kubernetes/kubernetes#132949,
//! kubernetes/kubernetes#139204). So upstream's pods also need a manual restart.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::settings::{Change, ROWS};
use super::{Configuration, MODE_SECTIONS, settings};

/// Changed field whose new value waits for a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// Path of the changed field, such as `ipvs.scheduler`.
    pub path: String,
    wanted: Value,
    used: Value,
}

/// Formats the change, such as `mode: iptables (in use: ipvs)`.
impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |value: &Value| match value {
            Value::String(text) if !text.is_empty() => text.clone(),
            other => other.to_string(),
        };
        let (wanted, used) = (said(&self.wanted), said(&self.used));
        write!(f, "{}: {wanted} (in use: {used})", self.path)
    }
}

impl Configuration {
    /// Returns the fields that `new` changes and that need a restart, sorted by path.
    pub fn waits(&self, new: &Self) -> Vec<Waiting> {
        let fields = self.differences(new);
        let has_other_mode = fields.iter().any(|path| path == "mode");
        let (used, wanted) = (self.tree(), new.tree());
        let value =
            |tree: &Value, path: &str| settings::at(tree, path).cloned().unwrap_or_default();
        let waits = |path: &String| {
            // If the mode changes, the fields in the modes' sections also wait for the restart,
            // because the file sets them for the new mode.
            let is_of_a_mode = MODE_SECTIONS.iter().any(|of| settings::is_within(path, of));
            change_of(path) == Change::Restart || (has_other_mode && is_of_a_mode)
        };
        let waiting = fields.into_iter().filter(waits);
        waiting
            .map(|path| Waiting {
                wanted: value(&wanted, &path),
                used: value(&used, &path),
                path,
            })
            .collect()
    }

    /// Returns this configuration, but with the values in use for the fields in `waiting`.
    pub(crate) fn keeping(self, waiting: &[Waiting]) -> Self {
        let mut tree = self.tree();
        for Waiting { path, used, .. } in waiting {
            let pointer = format!("/{}", path.replace('.', "/"));
            if let Some(field) = tree.pointer_mut(&pointer) {
                *field = used.clone();
            }
        }
        // Cannot fail: the tree comes from a valid configuration.
        serde_json::from_value(tree).unwrap_or(self)
    }

    /// Returns the paths of the fields that `new` changes, sorted.
    pub fn differences(&self, new: &Self) -> Vec<String> {
        let (old, new) = (leaves(&self.tree()), leaves(&new.tree()));
        let mut paths: Vec<String> = old.keys().chain(new.keys()).cloned().collect();
        paths.sort();
        paths.dedup();
        paths.retain(|path| old.get(path) != new.get(path));
        paths
    }
}

/// Returns the time at which a change of the field at `path` takes effect. A field without a flag
/// has no effect, so a change of such a field needs no restart.
pub fn change_of(path: &str) -> Change {
    ROWS.iter()
        .find(|row| row.path == path)
        .map_or(Change::Live, |row| row.change)
}

/// Returns the path of each field of a configuration file, sorted.
pub fn fields() -> Vec<String> {
    leaves(&settings::every_field()).into_keys().collect()
}

/// Returns all fields that are not sections, by path. Treats `featureGates` as a single field,
/// because the names of gates are not names of fields.
fn leaves(tree: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut sections = vec![(String::new(), tree)];
    while let Some((path, value)) = sections.pop() {
        match value.as_object() {
            Some(fields) if !fields.is_empty() && path != "featureGates" => {
                let dot = if path.is_empty() { "" } else { "." };
                let fields = fields.iter();
                sections.extend(fields.map(|(name, value)| (format!("{path}{dot}{name}"), value)));
            }
            _ => {
                found.insert(path, value.clone());
            }
        }
    }
    found
}
