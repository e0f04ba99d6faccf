//! Outcomes of writes that the kernel refused, with messages for the operator.

use netlink_batch::{Error, Refusal};

use crate::plan::{Fault, Outcome};

/// Symbolic names of error numbers, as manual pages use them.
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

/// Returns the outcome of a refusal that the kernel or this node causes, so that other writes may
/// fail as well.
pub(super) fn refused(reason: String) -> Outcome {
    Outcome::Refused {
        reason,
        fault: Fault::Node,
    }
}

/// Returns the outcome of a refusal that the entry causes: it is invalid, or this kernel does not
/// support it.
pub(super) fn wrong(reason: String) -> Outcome {
    Outcome::Refused {
        reason,
        fault: Fault::Entry,
    }
}

/// Returns the outcome of a refusal that shows that the proxy's tables are wrong about the kernel's
/// state.
pub(super) fn surprise(reason: String) -> Outcome {
    Outcome::Refused {
        reason,
        fault: Fault::Belief,
    }
}

/// Returns the outcome of a refusal. Errors about invalid values or unsupported features count as
/// caused by the entry, all other errors as caused by the node.
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

/// Describes the kernel's error with its symbolic name, and advises the operator: with fixed advice
/// for errors about permissions or memory, otherwise with `next`.
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

/// Returns the outcome of a write whose batch was not sent, or got no reply.
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
