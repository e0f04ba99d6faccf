//! The metadata of a list.

use proxy::Kind;

use super::super::end::End;
use crate::decode::kind_name;

/// The metadata that has arrived so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Meta {
    /// The list's version (`metadata.resourceVersion`), or `None` if empty.
    pub(in super::super) version: Option<String>,
    /// The token of the next page (`metadata.continue`), or `None` on the last page.
    pub(in super::super) continue_token: Option<String>,
}

/// Checks that a list has the expected `kind`. An empty list of another kind would otherwise delete
/// all objects.
pub(super) fn is_list_of(kind: Kind, said: &str) -> Result<(), End> {
    let wanted = kind_name(kind);
    if said.strip_suffix("List") == Some(wanted) {
        return Ok(());
    }
    Err(End::nonsense(format!(
        "kind {said:?} where a {wanted}List was asked for"
    )))
}
