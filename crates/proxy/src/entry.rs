//! A change to one kernel entry, in the syntax of the kernel's tools.

use crate::names::ServicePortName;

/// A change to one kernel entry, as text: the entry's attributes before and after the change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryChange {
    /// Name of the entry, such as `10.96.0.1:443/TCP` or `KUBE-CLUSTER-IP 10.96.0.1,tcp:443`.
    pub entry: String,
    /// Attributes of the entry before the change, or `None` if the change creates the entry. Empty
    /// text for an entry without attributes.
    pub before: Option<String>,
    /// Attributes of the entry after the change, or `None` if the change removes the entry.
    pub after: Option<String>,
    /// Service port that wants the entry, if known.
    pub owner: Option<ServicePortName>,
}
