//! Strategic merge patches, for the fields that the manifests patch (API conventions of Kubernetes,
//! "Strategic Merge Patch").

use serde_json::Value;

/// Returns the field that identifies the elements of a list (`x-kubernetes-patch-merge-key` of the
/// schema). Returns `None` if a patch replaces the list as a whole.
fn merge_key(list: &str) -> Option<&'static str> {
    match list {
        "containers" | "initContainers" | "volumes" | "env" => Some("name"),
        "volumeMounts" => Some("mountPath"),
        _ => None,
    }
}

/// Applies `patch` to `target`:
///
/// - merges objects field by field;
/// - merges lists by their merge key, or replaces lists without a merge key;
/// - removes a field for `null`, and a list element for `$patch: delete`.
pub fn merge(target: &mut Value, patch: &Value) {
    let (Value::Object(fields), Value::Object(patches)) = (&mut *target, patch) else {
        patch.clone_into(target);
        return;
    };
    for (name, patch) in patches {
        match (fields.get_mut(name), patch) {
            (_, Value::Null) => {
                fields.remove(name);
            }
            (Some(Value::Array(list)), Value::Array(patches)) if merge_key(name).is_some() => {
                for patch in patches {
                    merge_element(list, patch, merge_key(name).unwrap_or_default());
                }
            }
            (Some(field), _) => merge(field, patch),
            (None, _) => {
                fields.insert(name.clone(), patch.clone());
            }
        }
    }
}

fn merge_element(list: &mut Vec<Value>, patch: &Value, key: &str) {
    let found = list
        .iter()
        .position(|element| element.get(key).is_some() && element.get(key) == patch.get(key));
    let is_deletion = patch.get("$patch").is_some_and(|word| word == "delete");
    match found {
        Some(index) if is_deletion => {
            list.remove(index);
        }
        Some(index) => {
            if let Some(element) = list.get_mut(index) {
                merge(element, patch);
            }
        }
        None => list.push(patch.clone()),
    }
}

/// Returns the paths at which two values differ, such as `spec.containers.0.image`.
pub fn differences(left: &Value, right: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    compare(left, right, "", &mut paths);
    paths
}

fn compare(left: &Value, right: &Value, path: &str, paths: &mut Vec<String>) {
    let below = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match (left, right) {
        (Value::Object(lefts), Value::Object(rights)) => {
            for (name, left) in lefts {
                compare(
                    left,
                    rights.get(name).unwrap_or(&Value::Null),
                    &below(name),
                    paths,
                );
            }
            for name in rights.keys().filter(|name| !lefts.contains_key(*name)) {
                paths.push(below(name));
            }
        }
        (Value::Array(lefts), Value::Array(rights)) if lefts.len() == rights.len() => {
            for (index, (left, right)) in lefts.iter().zip(rights).enumerate() {
                compare(left, right, &below(&index.to_string()), paths);
            }
        }
        _ if left == right => {}
        _ => paths.push(path.to_owned()),
    }
}
