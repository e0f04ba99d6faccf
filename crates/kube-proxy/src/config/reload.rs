//! What became of a configuration file that says something else: which fields, and whether they need a new start.

use serde_json::Value;

use super::settings::{Change, ROWS};
use super::{Configuration, settings};

impl Configuration {
    /// The paths of the fields that `new` says differently, sorted.
    pub fn differences(&self, new: &Self) -> Vec<String> {
        let mut paths = Vec::new();
        collect("", &self.tree(), &new.tree(), &mut paths);
        paths
    }
}

/// How a change of the field at `path` comes into effect. What has no flag has no effect, and so needs no new start.
pub fn change_of(path: &str) -> Change {
    ROWS.iter()
        .find(|row| row.path == path)
        .map_or(Change::Live, |row| row.change)
}

/// The path of each field, sorted; what a feature gate is called is none.
pub fn fields() -> Vec<String> {
    let mut paths = Vec::new();
    collect("", &settings::every_field(), &Value::Null, &mut paths);
    paths
}

fn collect(path: &str, old: &Value, new: &Value, paths: &mut Vec<String>) {
    match old.as_object() {
        // Its members are names that others chose.
        Some(fields) if !fields.is_empty() && path != "featureGates" => {
            for (name, old) in fields {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                collect(&path, old, new.get(name).unwrap_or(&Value::Null), paths);
            }
        }
        _ if old != new => paths.push(path.to_owned()),
        _ => {}
    }
}
