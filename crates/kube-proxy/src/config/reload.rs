//! What became of a configuration file that says something else: which fields, and which of them
//! wait for a new start.
//!
//! ```text
//!   file, changed ─┬─ what can be applied ─▶ in effect
//!                  └─ what takes a new start ─▶ waits: said, and kept as it was
//! ```
//!
//! No change of the file ends the process. It reaches all nodes of a cluster within a minute or
//! two, in no order; a process that exited for it would be started again in the same pod, where no
//! init container runs, and with whatever the file asks of the node: another data plane, or a start
//! that fails, everywhere at once. Somebody who restarts the pods, by a rolling update, says when,
//! sees the first node fail, and runs the init containers. Upstream means to exit, but in a cluster
//! does not: its watch is lost when a mounted ConfigMap changes (k/k#132949, k/k#139204), so that
//! pods are restarted by hand there, too.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::settings::{Change, ROWS};
use super::{Configuration, MODE_SECTIONS, settings};

/// A field that a changed file says anew, and that is not in effect before a new start.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// Its path.
    pub path: String,
    wanted: Value,
    used: Value,
}

/// `mode: iptables (in use: ipvs)`.
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
    /// What `new` says differently and what is not in effect before a new start, sorted by path.
    pub fn waits(&self, new: &Self) -> Vec<Waiting> {
        let fields = self.differences(new);
        let has_other_mode = fields.iter().any(|path| path == "mode");
        let (used, wanted) = (self.tree(), new.tree());
        let value =
            |tree: &Value, path: &str| settings::at(tree, path).cloned().unwrap_or_default();
        let waits = |path: &String| {
            // They are written for the mode that the file names.
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

    /// With the fields that wait as they are in use.
    pub(crate) fn keeping(self, waiting: &[Waiting]) -> Self {
        let mut tree = self.tree();
        for Waiting { path, used, .. } in waiting {
            let pointer = format!("/{}", path.replace('.', "/"));
            if let Some(field) = tree.pointer_mut(&pointer) {
                *field = used.clone();
            }
        }
        // It is made of such trees.
        serde_json::from_value(tree).unwrap_or(self)
    }

    /// The paths of the fields that `new` says differently, sorted.
    pub fn differences(&self, new: &Self) -> Vec<String> {
        let (old, new) = (leaves(&self.tree()), leaves(&new.tree()));
        let mut paths: Vec<String> = old.keys().chain(new.keys()).cloned().collect();
        paths.sort();
        paths.dedup();
        paths.retain(|path| old.get(path) != new.get(path));
        paths
    }
}

/// How a change of the field at `path` comes into effect. What has no flag has no effect, and so
/// needs no new start.
pub fn change_of(path: &str) -> Change {
    ROWS.iter()
        .find(|row| row.path == path)
        .map_or(Change::Live, |row| row.change)
}

/// The path of each field, sorted.
pub fn fields() -> Vec<String> {
    leaves(&settings::every_field()).into_keys().collect()
}

/// The fields that are no sections, by their paths. What a feature gate is called is none.
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
