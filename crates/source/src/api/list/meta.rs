//! What a list says of itself.

use proxy::Kind;

use super::super::end::End;
use crate::decode::kind_name;

/// As far as it has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Meta {
    /// `metadata.resourceVersion`, if it is not empty.
    pub(in super::super) version: Option<String>,
    /// `metadata.continue`, if it is not empty: there are further pages.
    pub(in super::super) continue_token: Option<String>,
}

/// Checks the `kind` of a list: an empty list of something else would take everything away.
pub(super) fn is_list_of(kind: Kind, said: &str) -> Result<(), End> {
    let wanted = kind_name(kind);
    if said.strip_suffix("List") == Some(wanted) {
        return Ok(());
    }
    Err(End::nonsense(format!(
        "kind {said:?} where a {wanted}List was asked for"
    )))
}
