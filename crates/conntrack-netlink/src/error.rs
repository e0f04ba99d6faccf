//! Errors of whole calls. [`Outcome`](crate::Outcome) describes the failed deletion of one flow.

use netlink_batch::Malformed;

/// Reason for which a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no ctnetlink, and could not load it.
    #[error(
        "the kernel offers no connection tracking over netlink: run `modprobe nf_conntrack_netlink` (in a container: on the host)"
    )]
    NoConntrack,
    /// The socket failed, the kernel refused, `CAP_NET_ADMIN` is missing, or a reply is malformed.
    #[error(transparent)]
    Netlink(#[from] netlink_batch::Error),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::Netlink(malformed.into())
    }
}
