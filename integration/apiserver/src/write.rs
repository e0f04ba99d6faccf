//! Handles writes: validates objects, sets defaults and stores the objects.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::cluster::StoredCluster;
use crate::defaults;
use crate::object::{Key, Object, Recording};
use crate::resource::Kind;
use crate::status::Status;

impl StoredCluster {
    /// Implements [`crate::Cluster::apply`].
    pub(crate) fn apply(&mut self, mut object: Value) -> Result<Arc<Object>, Status> {
        let kind = kind_of(&object)?;
        let key = identify(kind, &mut object, None, None)?;
        metadata(&mut object)?.remove("resourceVersion");
        if has_status(kind)
            && object.get("status").is_none()
            && let Some(held) = self.get(kind, &key)
        {
            carry(&mut object, &held.value(), "status");
        }
        self.store(kind, &key, object)
    }

    /// Handles POST: creates an object. `namespace` is the namespace in the request's path.
    pub(crate) fn create(
        &mut self,
        kind: Kind,
        namespace: Option<&str>,
        mut object: Value,
    ) -> Result<Arc<Object>, Status> {
        expect_kind(kind, &mut object)?;
        let key = identify(kind, &mut object, namespace, None)?;
        if self.get(kind, &key).is_some() {
            return Err(Status::already_exists(kind, &key.1));
        }
        if metadata(&mut object)?
            .remove("resourceVersion")
            .is_some_and(|version| version != "")
        {
            return Err(Status::bad_request(
                "metadata.resourceVersion: must not be set on what is created",
            ));
        }
        if kind == Kind::Service
            && let Some(object) = object.as_object_mut()
        {
            object.remove("status");
        }
        self.store(kind, &key, object)
    }

    /// Handles PUT: replaces an existing object. Returns the stored object.
    pub(crate) fn replace(
        &mut self,
        kind: Kind,
        key: &Key,
        mut object: Value,
    ) -> Result<Arc<Object>, Status> {
        expect_kind(kind, &mut object)?;
        identify(kind, &mut object, Some(&key.0), Some(&key.1))?;
        let held = self
            .get(kind, key)
            .ok_or_else(|| Status::not_found(kind, &key.1))?
            .value();
        for field in ["resourceVersion", "uid"] {
            let pointer = format!("/metadata/{field}");
            let text = |object: &Value| {
                object
                    .pointer(&pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let (given, is) = (text(&object), text(&held));
            if !given.is_empty() && given != is {
                return Err(Status::conflict(kind, &key.1, field, &given, &is));
            }
        }
        if has_status(kind) {
            carry(&mut object, &held, "status");
        }
        self.store(kind, key, object)
    }

    /// Handles DELETE: deletes an object. Returns its last state at the resource version of the
    /// deletion.
    pub(crate) fn delete(&mut self, kind: Kind, key: &Key) -> Result<Arc<Object>, Status> {
        let held = self
            .get(kind, key)
            .ok_or_else(|| Status::not_found(kind, &key.1))?;
        let object = Arc::new(held.at_version(kind, self.version + 1));
        self.record(kind, object.clone(), true);
        Ok(object)
    }

    /// Implements [`crate::Cluster::replay`].
    pub(crate) fn replay(&mut self, slice: &mut Recording) {
        let object = slice.at_version(self.version + 1);
        self.record(Kind::EndpointSlice, Arc::new(object), false);
    }

    /// Sets default values in `object`, and stores it. If this changes nothing, returns the stored
    /// object without a new resource version.
    fn store(&mut self, kind: Kind, key: &Key, mut object: Value) -> Result<Arc<Object>, Status> {
        let held = self.get(kind, key);
        let old = held.as_ref().map(|held| held.value());
        let version = self.version + 1;
        let (uid, created) = (self.uid(), crate::time::now());
        // The fake API server sets `metadata.generation` only of EndpointSlices.
        let counts = kind == Kind::EndpointSlice;

        let fields = metadata(&mut object)?;
        if let Some(old) = old.as_ref().and_then(|old| old.get("metadata")) {
            for field in ["uid", "creationTimestamp", "generation", "resourceVersion"] {
                match old.get(field) {
                    Some(value) => fields.insert(field.into(), value.clone()),
                    None => fields.remove(field),
                };
            }
        } else {
            fields.insert("uid".into(), uid.into());
            fields.insert("creationTimestamp".into(), created.into());
            fields.remove("generation");
            if counts {
                fields.insert("generation".into(), 1.into());
            }
        }
        defaults::fill(kind, &mut object, old.as_ref())
            .map_err(|invalid| Status::invalid(kind, &key.1, &invalid.field, &invalid.why))?;

        if let (Some(held), Some(old)) = (held, &old) {
            if object == *old {
                return Ok(held);
            }
            if counts && generation_of(&object) != generation_of(old) {
                let next = old
                    .pointer("/metadata/generation")
                    .and_then(Value::as_u64)
                    .unwrap_or(0)
                    + 1;
                metadata(&mut object)?.insert("generation".into(), next.into());
            }
        }
        metadata(&mut object)?.insert("resourceVersion".into(), version.to_string().into());
        let stored = Object::new(kind, version, &object)
            .map_err(|mistyped| Status::bad_request(mistyped.to_string()))?;
        let stored = Arc::new(stored);
        self.record(kind, stored.clone(), false);
        Ok(stored)
    }
}

/// Returns the parts of an EndpointSlice that determine its generation: labels, and all fields
/// except `metadata`.
fn generation_of(slice: &Value) -> (Option<&Value>, Vec<(&String, &Value)>) {
    let body = slice
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "metadata");
    (slice.pointer("/metadata/labels"), body.collect())
}

fn kind_of(object: &Value) -> Result<Kind, Status> {
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    Kind::of(api_version, kind).ok_or_else(|| {
        Status::bad_request(format!(
            "apiVersion {api_version:?}, kind {kind:?}: not a kind served here"
        ))
    })
}

/// Checks that the object in a request body has the kind of the path. Sets `apiVersion` and `kind`
/// if they are missing.
fn expect_kind(kind: Kind, object: &mut Value) -> Result<(), Status> {
    let resource = kind.resource();
    let fields = object
        .as_object_mut()
        .ok_or_else(|| Status::bad_request("the body is not an object"))?;
    fields
        .entry("apiVersion")
        .or_insert_with(|| resource.api_version().into());
    fields.entry("kind").or_insert_with(|| resource.kind.into());
    match kind_of(object)? {
        given if given == kind => Ok(()),
        _ => Err(Status::bad_request(format!(
            "kind: the path is of {} {}",
            resource.api_version(),
            resource.kind
        ))),
    }
}

fn metadata(object: &mut Value) -> Result<&mut Map<String, Value>, Status> {
    let object = object
        .as_object_mut()
        .ok_or_else(|| Status::bad_request("the body is not an object"))?;
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    metadata
        .as_object_mut()
        .ok_or_else(|| Status::bad_request("metadata: must be an object"))
}

/// Returns the object's key. Sets the namespace if it is missing. Fails if namespace or name differ
/// from the path.
fn identify(
    kind: Kind,
    object: &mut Value,
    path_namespace: Option<&str>,
    path_name: Option<&str>,
) -> Result<Key, Status> {
    let fields = metadata(object)?;
    for (field, fits) in [
        ("name", Value::is_string as fn(&Value) -> bool),
        ("namespace", Value::is_string),
        ("labels", is_map_of_strings),
        ("annotations", is_map_of_strings),
    ] {
        // YAML parses an unquoted `n` or `on` as a boolean, so a name can have the wrong type.
        if fields
            .get(field)
            .is_some_and(|value| !value.is_null() && !fits(value))
        {
            let message = format!(
                "metadata.{field}: must be made of strings; quote what YAML reads as a boolean or number"
            );
            return Err(Status::bad_request(message));
        }
    }
    let text = |name: &str| {
        fields
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (mut namespace, mut name) = (text("namespace"), text("name"));
    if kind.resource().namespaced {
        if namespace.is_empty() {
            path_namespace
                .unwrap_or("default")
                .clone_into(&mut namespace);
        }
        if path_namespace.is_some_and(|path| path != namespace) {
            return Err(Status::bad_request(
                "metadata.namespace: is not the namespace of the path",
            ));
        }
        fields.insert("namespace".into(), namespace.clone().into());
    } else {
        namespace.clear();
        fields.remove("namespace");
    }
    if let Some(path) = path_name {
        if name.is_empty() {
            path.clone_into(&mut name);
            fields.insert("name".into(), name.clone().into());
        }
        if path != name {
            return Err(Status::bad_request(
                "metadata.name: is not the name in the path",
            ));
        }
    }
    if name.is_empty() {
        return Err(Status::invalid(kind, "", "metadata.name", "is required"));
    }
    for (field, value) in [("metadata.namespace", &namespace), ("metadata.name", &name)] {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        if value.len() > 253 || !value.chars().all(fits) {
            return Err(Status::invalid(
                kind,
                &name,
                field,
                "must be a lowercase RFC 1123 subdomain",
            ));
        }
    }
    Ok((namespace.into(), name.into()))
}

fn is_map_of_strings(value: &Value) -> bool {
    value
        .as_object()
        .is_some_and(|map| map.values().all(Value::is_string))
}

/// Returns true if objects of this kind have a `status` that PUT does not change.
fn has_status(kind: Kind) -> bool {
    matches!(kind, Kind::Service | Kind::Node | Kind::ServiceCidr)
}

fn carry(to: &mut Value, from: &Value, field: &str) {
    if let Some(to) = to.as_object_mut() {
        match from.get(field) {
            Some(value) => _ = to.insert(field.into(), value.clone()),
            None => _ = to.remove(field),
        }
    }
}
