//! Errors of whole calls. A failure to delete one flow is an [`Outcome`](crate::Outcome).

use netlink_batch::Malformed;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no ctnetlink and did not load it.
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
