//! Decodes a `Status`, which contains the reason for a rejected request.

use serde::Deserialize;

/// Status of a rejected request (`meta/v1` Status).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    /// HTTP status code.
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
    /// Reports whether the requested resource version is in the future. Status 504 alone does not
    /// show this. Since Kubernetes 1.19, a cause contains the reason. Earlier servers wrote the
    /// reason in the message.
    pub(crate) fn is_ahead(&self) -> bool {
        let causes = self.details.iter().flat_map(|details| &details.causes);
        self.code == 504
            && (causes
                .flatten()
                .any(|cause| cause.reason.as_deref() == Some("ResourceVersionTooLarge"))
                || self.message.contains("Too large resource version"))
    }
}
