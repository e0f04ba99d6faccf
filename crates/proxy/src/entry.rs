//! Change of one kernel entry, described with the words of the kernel's tools.

use crate::names::ServicePortName;

/// A change of one entry, in readable text, with the state before and after.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryChange {
    /// The entry, such as `10.96.0.1:443/TCP` or `KUBE-CLUSTER-IP 10.96.0.1,tcp:443`.
    pub entry: String,
    /// Attributes of the entry before the change, maybe empty. `None` if the change creates the
    /// entry.
    pub before: Option<String>,
    /// Attributes of the entry after the change. `None` if the change removes the entry.
    pub after: Option<String>,
    /// The Service port that wants the entry, if known.
    pub owner: Option<ServicePortName>,
}
