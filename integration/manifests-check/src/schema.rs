//! The Kubernetes schemas: the types of `k8s-openapi`.

use k8s_openapi::Resource;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::merge::differences;

/// Reason why the API server would reject an object or drop a part of it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages say")]
pub enum SchemaError {
    #[error("no schema for {api_version} {kind}: add its type to the list")]
    UnknownKind { api_version: String, kind: String },
    #[error("{kind}: {source}")]
    Type {
        kind: &'static str,
        source: serde_json::Error,
    },
    #[error("{kind}: the schema does not know {}", .paths.join(", "))]
    UnknownFields {
        kind: &'static str,
        paths: Vec<String>,
    },
}

type Check = fn(&Value) -> Result<(), SchemaError>;

/// Validates an object against the schema of its kind: every field must be known and have the right
/// type.
pub fn check(object: &Value) -> Result<(), SchemaError> {
    fn row<T: Resource + Serialize + DeserializeOwned>() -> (&'static str, &'static str, Check) {
        (T::API_VERSION, T::KIND, round_trip::<T>)
    }
    let rows = [
        row::<ClusterRoleBinding>(),
        row::<ConfigMap>(),
        row::<DaemonSet>(),
        row::<Pod>(),
        row::<ServiceAccount>(),
    ];
    let word = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (word("apiVersion"), word("kind"));
    let known = rows
        .iter()
        .find(|row| (row.0, row.1) == (api_version, kind));
    let (.., check) = known.ok_or_else(|| SchemaError::UnknownKind {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
    })?;
    check(object)
}

fn round_trip<T: Resource + Serialize + DeserializeOwned>(
    object: &Value,
) -> Result<(), SchemaError> {
    let kind = T::KIND;
    let typed: T = serde_json::from_value(object.clone())
        .map_err(|source| SchemaError::Type { kind, source })?;
    let back = serde_json::to_value(typed).map_err(|source| SchemaError::Type { kind, source })?;
    let paths = differences(object, &back);
    if paths.is_empty() {
        Ok(())
    } else {
        Err(SchemaError::UnknownFields { kind, paths })
    }
}
