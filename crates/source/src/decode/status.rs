//! Decodes a `Status`, the reason of a refusal.

use serde::Deserialize;

/// The status of a refusal (`meta/v1` Status).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    /// The HTTP status code.
    pub(crate) code: u16,
    pub(crate) message: String,
    pub(crate) details: Option<Details>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Details {
    pub(crate) causes: Option<Vec<Cause>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Cause {
    pub(crate) reason: Option<String>,
}

impl Status {
    /// Reports whether the resource version is in the future. Other errors also have status 504.
    /// Kubernetes 1.19 and later put the reason into a cause, older versions into the message.
    pub(crate) fn is_ahead(&self) -> bool {
        let causes = self.details.iter().flat_map(|details| &details.causes);
        self.code == 504
            && (causes
                .flatten()
                .any(|cause| cause.reason.as_deref() == Some("ResourceVersionTooLarge"))
                || self.message.contains("Too large resource version"))
    }
}
