//! Errors of whole IPVS requests. A [`Reply`](netlink_batch::Reply) describes a single refused
//! change.

use netlink_batch::{Malformed, Refusal};

/// Error of a call to [`Ipvs`](crate::Ipvs).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no IPVS, and could not load the module `ip_vs`.
    #[error(
        "this kernel offers no IPVS: the module ip_vs is not loaded and was not loaded on demand; run `modprobe ip_vs` (in a container: on the host)"
    )]
    FamilyMissing,
    /// A send or receive failed, or the kernel refused the request.
    #[error(transparent)]
    Netlink(#[from] netlink_batch::Error),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::Netlink(malformed.into())
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Netlink(refusal.into())
    }
}
