//! Why the server refuses something: the part of a `Status` that is read.

use serde::Deserialize;

/// `meta/v1` Status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    /// As HTTP has them.
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
    /// Whether it is about a resource version that is still to come, and not another 504: by its
    /// cause, or, before Kubernetes 1.19, by its message.
    pub(crate) fn is_ahead(&self) -> bool {
        let causes = self.details.iter().flat_map(|details| &details.causes);
        self.code == 504
            && (causes
                .flatten()
                .any(|cause| cause.reason.as_deref() == Some("ResourceVersionTooLarge"))
                || self.message.contains("Too large resource version"))
    }
}
