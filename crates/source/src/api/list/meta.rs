//! Metadata of a list, and the check of its kind.

use proxy::Kind;

use super::super::end::End;
use crate::decode::kind_name;

/// Metadata of a list response, as far as it has arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Meta {
    /// Resource version of the list (`metadata.resourceVersion`). `None`: empty or not received
    /// yet.
    pub(in super::super) version: Option<String>,
    /// Token of the next page (`metadata.continue`). `None`: this is the last page, or the metadata
    /// have not arrived yet.
    pub(in super::super) continue_token: Option<String>,
}

/// Checks that a list's `kind` is the expected one, such as `ServiceList`. Without this check, an
/// empty list of another kind would delete all objects.
pub(super) fn is_list_of(kind: Kind, said: &str) -> Result<(), End> {
    let wanted = kind_name(kind);
    if said.strip_suffix("List") == Some(wanted) {
        return Ok(());
    }
    Err(End::nonsense(format!(
        "kind {said:?} where a {wanted}List was asked for"
    )))
}
