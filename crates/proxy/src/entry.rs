//! A change of one kernel entry, in the words of the kernel's tools.

use crate::names::ServicePortName;

/// A change of one entry, for people, with the state before and after.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryChange {
    /// The entry: `10.96.0.1:443/TCP`, `KUBE-CLUSTER-IP 10.96.0.1,tcp:443`.
    pub entry: String,
    /// Details of the entry now, which may be empty; `None` if the entry does not exist.
    pub before: Option<String>,
    /// Details of the entry afterwards; `None` if the entry is removed.
    pub after: Option<String>,
    /// The Service port that wants the entry, if known.
    pub owner: Option<ServicePortName>,
}
