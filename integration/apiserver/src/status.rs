//! `Status`: the object in an API server's error responses.
//!
//! Clients evaluate `code`, `reason` and, for a resource version in the future, `details.causes`.
//! So these fields have the same values as in a real API server. Messages may differ.

use serde_json::{Value, json};

use crate::resource::{Kind, Resource};

/// An error response of the API server: a `v1` Status.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message} ({reason}, {code})")]
pub struct Status {
    /// HTTP status code of the error response.
    pub code: u16,
    /// Reason that clients evaluate, such as `NotFound`.
    pub reason: &'static str,
    /// Message for people, with the object or the field at fault.
    pub message: String,
    /// Field `details` of the Status, or null.
    pub details: Value,
    /// Field `metadata.continue` of the Status: a token that continues an expired list at the
    /// latest resource version.
    pub continue_token: Option<String>,
}

impl Status {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Value::Null,
            continue_token: None,
        }
    }

    fn about(kind: Kind, name: &str, code: u16, reason: &'static str, why: &str) -> Self {
        let Resource { group, plural, .. } = kind.resource();
        Self {
            details: json!({ "name": name, "group": group, "kind": plural }),
            ..Self::new(code, reason, format!("{plural} {name:?} {why}"))
        }
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn no_such_path(path: &str) -> Self {
        Self::new(404, "NotFound", format!("{path} is not served"))
    }

    pub(crate) fn not_found(kind: Kind, name: &str) -> Self {
        Self::about(kind, name, 404, "NotFound", "not found")
    }

    pub(crate) fn already_exists(kind: Kind, name: &str) -> Self {
        Self::about(kind, name, 409, "AlreadyExists", "already exists")
    }

    pub(crate) fn conflict(kind: Kind, name: &str, field: &str, given: &str, held: &str) -> Self {
        let why = format!("has metadata.{field} {held}, not {given}; read it again");
        Self::about(kind, name, 409, "Conflict", &why)
    }

    pub(crate) fn invalid(kind: Kind, name: &str, field: &str, why: &str) -> Self {
        let Resource { group, kind, .. } = kind.resource();
        let message = format!("{kind} {name:?} is invalid: {field}: {why}");
        Self {
            details: json!({
                "name": name, "group": group, "kind": kind,
                "causes": [{ "reason": "FieldValueInvalid", "message": why, "field": field }],
            }),
            ..Self::new(422, "Invalid", message)
        }
    }

    /// Returns the error 422 for a list or a watch whose options are inconsistent or not supported.
    pub(crate) fn invalid_options(field: &str, why: &str) -> Self {
        let message = format!("ListOptions is invalid: {field}: {why}");
        Self {
            details: json!({
                "group": "meta.k8s.io", "kind": "ListOptions",
                "causes": [{ "reason": "FieldValueForbidden", "message": why, "field": field }],
            }),
            ..Self::new(422, "Invalid", message)
        }
    }

    /// Returns the error 410 for a request that needs dropped history.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// Returns the error 504 for a request for the resource version `asked`, which is newer than
    /// the latest version `current`.
    pub(crate) fn too_large(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        Self {
            details: json!({
                "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }],
                "retryAfterSeconds": 1,
            }),
            ..Self::new(504, "Timeout", message)
        }
    }

    pub(crate) fn method_not_allowed(method: &str, path: &str) -> Self {
        let message = format!("{path} does not take {method}");
        Self::new(405, "MethodNotAllowed", message)
    }

    pub(crate) fn not_acceptable(accept: &str) -> Self {
        let message = format!("JSON and protobuf are served, and Accept is {accept:?}");
        Self::new(406, "NotAcceptable", message)
    }

    /// Returns the error 504 for a request that took too long. Unlike [`Self::too_large`], it has
    /// no cause that names a resource version.
    pub(crate) fn timeout() -> Self {
        let message = "Timeout: request did not complete within the allotted timeout";
        Self::new(504, "Timeout", message)
    }

    /// Returns the error of an API server that does not support streamed initial lists (KEP-3157).
    pub(crate) fn no_watch_list() -> Self {
        Self::invalid_options("sendInitialEvents", "the feature WatchList is off")
    }

    /// Returns the number of seconds after which the client should retry, or `None` if the Status
    /// has none.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.details.get("retryAfterSeconds")?.as_u64()
    }

    /// Returns the response to a DELETE of the object `gone`.
    pub(crate) fn deleted(kind: Kind, name: &str, gone: &Value) -> Value {
        let resource = kind.resource();
        let details = json!({
            "name": name, "group": resource.group, "kind": resource.plural,
            "uid": gone.pointer("/metadata/uid"),
        });
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
    }

    pub(crate) fn too_long(limit: usize) -> Self {
        let message = format!("the body is longer than {limit} bytes");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    pub(crate) fn unsupported_media(given: &str) -> Self {
        let message = format!("Content-Type is {given:?}; JSON and protobuf are taken");
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// Returns the Status as JSON.
    pub fn to_json(&self) -> Value {
        let mut metadata = json!({});
        if let (Some(token), Some(metadata)) = (&self.continue_token, metadata.as_object_mut()) {
            metadata.insert("continue".into(), token.clone().into());
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata,
            "status": "Failure", "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let (false, Some(status)) = (self.details.is_null(), status.as_object_mut()) {
            status.insert("details".into(), self.details.clone());
        }
        status
    }
}
