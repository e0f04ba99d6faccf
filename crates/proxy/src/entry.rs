//! A change of one kernel entry, in the words of the kernel's tools.

use crate::names::ServicePortName;

/// A change of one entry, in readable text, with the state before and after.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryChange {
    /// The entry, such as `10.96.0.1:443/TCP` or `KUBE-CLUSTER-IP 10.96.0.1,tcp:443`.
    pub entry: String,
    /// Details of the current entry, possibly empty; `None` if the entry does not exist.
    pub before: Option<String>,
    /// Details of the entry after the change; `None` if the change removes it.
    pub after: Option<String>,
    /// The Service port that wants the entry, if known.
    pub owner: Option<ServicePortName>,
}
