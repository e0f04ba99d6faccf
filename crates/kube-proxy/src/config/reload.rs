//! Compares a changed configuration file with the configuration in use. Finds the changed fields,
//! and the ones that need a restart.
//!
//! ```text
//!   changed file ─┬─ fields that can be applied ─▶ in effect
//!                 └─ fields that need a restart ─▶ reported, keep their values
//! ```
//!
//! No change of the file ends the process. A change reaches all nodes of a cluster within a minute
//! or two, in any order. A process that exited because of the change would restart in the same pod,
//! where no init container runs. All nodes would then apply the change at the same time: use
//! another data plane, or fail to start.
//!
//! An operator who restarts the pods by a rolling update chooses the time and notices a failure on
//! the first node. The rolling update also runs the init containers.
//!
//! Upstream intends to exit, but does not do so in a cluster. It loses its watch when a mounted
//! ConfigMap changes (k/k#132949, k/k#139204), so its pods also need a manual restart.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::settings::{Change, ROWS};
use super::{Configuration, MODE_SECTIONS, settings};

/// A changed field that takes effect only after a restart.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// Path of the field.
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
            // These fields belong to the mode that the file names.
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

    /// Returns the configuration in which the waiting fields keep their current values.
    pub(crate) fn keeping(self, waiting: &[Waiting]) -> Self {
        let mut tree = self.tree();
        for Waiting { path, used, .. } in waiting {
            let pointer = format!("/{}", path.replace('.', "/"));
            if let Some(field) = tree.pointer_mut(&pointer) {
                *field = used.clone();
            }
        }
        // The tree was created from a valid configuration.
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

/// Returns the step that puts a change of the field at `path` into effect. A field without a flag
/// has no effect and needs no restart.
pub fn change_of(path: &str) -> Change {
    ROWS.iter()
        .find(|row| row.path == path)
        .map_or(Change::Live, |row| row.change)
}

/// Returns the path of each field, sorted.
pub fn fields() -> Vec<String> {
    leaves(&settings::every_field()).into_keys().collect()
}

/// Returns the fields that are not sections, by their paths. Names of feature gates are not paths.
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
