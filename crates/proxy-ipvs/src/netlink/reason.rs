//! Outcomes of refused writes, in words.

use netlink_batch::{Error, Refusal};

use crate::plan::{Fault, Outcome};

/// What refusals are called in manuals and on the web.
const NAMES: [(i32, &str); 19] = [
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::ESRCH, "ESRCH"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::ENODEV, "ENODEV"),
    (libc::EINVAL, "EINVAL"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::ERANGE, "ERANGE"),
    (libc::EMSGSIZE, "EMSGSIZE"),
    (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT"),
    (libc::ESOCKTNOSUPPORT, "ESOCKTNOSUPPORT"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
    (libc::EADDRNOTAVAIL, "EADDRNOTAVAIL"),
    (libc::ENETDOWN, "ENETDOWN"),
    (libc::ENOBUFS, "ENOBUFS"),
];

/// A refusal for which the kernel, or this node, is to blame.
pub(super) fn refused(reason: String) -> Outcome {
    Outcome::Refused {
        reason,
        fault: Fault::Node,
    }
}

/// A refusal of an entry that is wrong in itself, or that this kernel does not know.
pub(super) fn wrong(reason: String) -> Outcome {
    Outcome::Refused {
        reason,
        fault: Fault::Entry,
    }
}

/// A refusal by which the kernel holds something else than was believed.
pub(super) fn surprise(reason: String) -> Outcome {
    Outcome::Refused {
        reason,
        fault: Fault::Belief,
    }
}

/// A refusal without further sense, in words: what the kernel says of rights, memory and what is
/// there is not about the entry.
pub(super) fn refused_or_wrong(refusal: &Refusal, next: &str) -> Outcome {
    let said = said(refusal, next);
    match refusal.errno {
        libc::EINVAL
        | libc::ERANGE
        | libc::EMSGSIZE
        | libc::EADDRNOTAVAIL
        | libc::EPROTONOSUPPORT => wrong(said),
        _ => refused(said),
    }
}

/// What the kernel said, with the error's name, and `next`: what to do about it. Rights and memory
/// are the same for every write, so their next step is known here.
pub(super) fn said(refusal: &Refusal, next: &str) -> String {
    let next = match refusal.errno {
        libc::EPERM => "CAP_NET_ADMIN is needed: run as root, or grant it",
        libc::ENOMEM | libc::ENOBUFS => "the kernel is short of memory; it will be tried again",
        _ => next,
    };
    let name = NAMES.iter().find(|(errno, _)| *errno == refusal.errno);
    match name {
        Some((_, name)) => format!("{name}, {refusal}; {next}"),
        None => format!("{refusal}; {next}"),
    }
}

/// What became of a write whose batch could not be sent, or not be answered.
pub(super) fn unsent(error: &Error) -> Outcome {
    match error {
        Error::Permission { .. } => refused(error.to_string()),
        error => {
            tracing::warn!(%error, "a batch of writes may have been done or not; reading the kernel again");
            Outcome::Unknown
        }
    }
}
