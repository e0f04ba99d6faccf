//! What a client asks before it asks for objects: which groups, which resources, which version.

use serde_json::{Value, json};

use crate::resource::{Kind, VERSION};
use crate::status::Status;

/// `/version`. Clients switch features by it, so it is the release whose semantics the fixture follows.
pub(crate) fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": "v1.36.2", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64",
    })
}

pub(crate) fn core_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": [VERSION],
        "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": address }],
    })
}

pub(crate) fn groups() -> Value {
    let mut groups: Vec<&str> = Kind::all()
        .map(|(_, row)| row.group)
        .filter(|group| !group.is_empty())
        .collect();
    groups.dedup();
    let groups: Vec<Value> = groups.into_iter().map(describe).collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

pub(crate) fn group(name: &str, path: &str) -> Result<Value, Status> {
    let mut group = if Kind::all().any(|(_, row)| row.group == name && !name.is_empty()) {
        describe(name)
    } else {
        return Err(Status::no_such_path(path));
    };
    if let Some(group) = group.as_object_mut() {
        group.insert("kind".into(), "APIGroup".into());
        group.insert("apiVersion".into(), "v1".into());
    }
    Ok(group)
}

fn describe(name: &str) -> Value {
    let version = json!({ "groupVersion": format!("{name}/{VERSION}"), "version": VERSION });
    json!({ "name": name, "versions": [version], "preferredVersion": version })
}

pub(crate) fn resources(group: &str, path: &str) -> Result<Value, Status> {
    let rows: Vec<_> = Kind::all()
        .map(|(_, row)| row)
        .filter(|row| row.group == group)
        .collect();
    let api_version = rows
        .first()
        .ok_or_else(|| Status::no_such_path(path))?
        .api_version();
    let mut resources = Vec::new();
    for row in rows {
        resources.push(json!({
            "name": row.plural, "singularName": row.kind.to_lowercase(), "namespaced": row.namespaced,
            "kind": row.kind, "shortNames": row.short,
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        }));
        if row.status {
            resources.push(json!({
                "name": format!("{}/status", row.plural), "singularName": "", "namespaced": row.namespaced,
                "kind": row.kind, "verbs": ["patch", "update"],
            }));
        }
    }
    Ok(
        json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources }),
    )
}
