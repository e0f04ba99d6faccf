//! Outcomes and messages for writes that the kernel refused.

use netlink_batch::{Error, Refusal};

use crate::plan::{Fault, Outcome};

/// Names of error numbers, as manual pages write them.
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

/// Returns the outcome of a refusal that is caused by the kernel or this node. Other writes may
/// then fail, too.
pub(super) fn refused(reason: String) -> Outcome {
    Outcome::Refused {
        reason,
        fault: Fault::Node,
    }
}

/// Returns the outcome of a refusal that is caused by the entry: the entry is invalid, or this
/// kernel does not support it.
pub(super) fn wrong(reason: String) -> Outcome {
    Outcome::Refused {
        reason,
        fault: Fault::Entry,
    }
}

/// Returns the outcome of a refusal that shows that the proxy's tables differ from the kernel's
/// state.
pub(super) fn surprise(reason: String) -> Outcome {
    Outcome::Refused {
        reason,
        fault: Fault::Belief,
    }
}

/// Returns the outcome of a refusal. Attributes the refusal to the entry if the error is about
/// invalid values or unsupported features, and otherwise to the node.
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

/// Formats the kernel's error with its name and the next step. Errors about permissions or memory
/// have a fixed next step. For all other errors, `next` is the next step.
pub(super) fn said(refusal: &Refusal, next: &str) -> String {
    let next = match refusal.errno {
        libc::EPERM => "CAP_NET_ADMIN is needed: run as root, or grant it",
        libc::ENOMEM | libc::ENOBUFS => "the kernel is short of memory; it will be retried",
        _ => next,
    };
    let name = NAMES.iter().find(|(errno, _)| *errno == refusal.errno);
    match name {
        Some((_, name)) => format!("{name}, {refusal}; {next}"),
        None => format!("{refusal}; {next}"),
    }
}

/// Returns the outcome of a write whose batch could not be sent or got no reply.
pub(super) fn unsent(error: &Error) -> Outcome {
    match error {
        Error::Permission { .. } => refused(error.to_string()),
        error => {
            tracing::warn!(%error, "a batch of writes may have been done or not; reading the \
                                    kernel again");
            Outcome::Unknown
        }
    }
}
