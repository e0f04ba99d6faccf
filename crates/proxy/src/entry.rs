//! A change of one entry of the kernel's, in the words of its tools.

use crate::names::ServicePortName;

/// A change of one entry, for people: what it is of, and how that is before and after it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryChange {
    /// What it is of: `10.96.0.1:443/TCP`, `KUBE-CLUSTER-IP 10.96.0.1,tcp:443`.
    pub entry: String,
    /// What there is, beside the entry itself; empty if that is all. `None`: it is not there.
    pub before: Option<String>,
    /// What there is to be. `None`: it goes.
    pub after: Option<String>,
    /// Who wants it, where that is known.
    pub owner: Option<ServicePortName>,
}
