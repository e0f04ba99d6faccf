//! What became of a configuration file that says something else: which fields, and whether they need a new start.

use std::collections::BTreeMap;

use serde_json::Value;

use super::settings::{Change, ROWS};
use super::{Configuration, settings};

impl Configuration {
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

/// How a change of the field at `path` comes into effect. What has no flag has no effect, and so needs no new start.
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
