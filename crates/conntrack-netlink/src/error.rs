//! Errors of whole conntrack calls. If the deletion of a single flow fails, its
//! [`Outcome`](crate::Outcome) shows the failure.

use netlink_batch::Malformed;

/// Reason why a call of [`Conntrack`](crate::Conntrack) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no ctnetlink, and could not load it.
    #[error(
        "the kernel offers no connection tracking over netlink: run `modprobe nf_conntrack_netlink` (in a container: on the host)"
    )]
    NoConntrack,
    /// The socket failed, the kernel refused the request, `CAP_NET_ADMIN` is missing, or a reply is
    /// malformed.
    #[error(transparent)]
    Netlink(#[from] netlink_batch::Error),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::Netlink(malformed.into())
    }
}
