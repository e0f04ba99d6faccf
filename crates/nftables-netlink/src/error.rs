//! Errors of this crate, each with the next step for the operator.

use std::io;

use netlink_batch::{Malformed, Refusal};

use crate::transaction::Generation;

/// Error of a call to [`Nftables`](crate::Nftables).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel lacks nf\_tables.
    #[error("the kernel has no nf_tables: run `modprobe nf_tables` (CONFIG_NF_TABLES)")]
    NoNftables,
    /// The ruleset changed during each attempt to read it.
    #[error(
        "the kernel's ruleset changed during each of {attempts} attempts to read it; another program writes all the time: try again later"
    )]
    Changing {
        /// Number of attempts to read the ruleset.
        attempts: u32,
    },
    /// The kernel resized a set during each attempt to read the set. In such a read, some elements
    /// appear twice, and others are missing.
    #[error(
        "set {set} of table {table} was resized by the kernel during each of {attempts} attempts to read it, as after very many elements came or went; nothing is wrong with it: try again later"
    )]
    Resizing {
        /// Name of the table that contains the set.
        table: String,
        /// Name of the set that could not be read.
        set: String,
        /// Number of attempts to read the set.
        attempts: u32,
    },
    /// The socket failed, a privilege is missing, or the kernel refused the request.
    #[error(transparent)]
    Netlink(netlink_batch::Error),
}

impl From<netlink_batch::Error> for Error {
    fn from(error: netlink_batch::Error) -> Self {
        match error {
            // EPROTONOSUPPORT: the kernel lacks nfnetlink, the transport of nf_tables.
            netlink_batch::Error::Open { ref source, .. }
                if source.raw_os_error() == Some(libc::EPROTONOSUPPORT) =>
            {
                Self::NoNftables
            }
            netlink_batch::Error::Interrupted { attempts } => Self::Changing { attempts },
            error => Self::Netlink(error),
        }
    }
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::Netlink(malformed.into())
    }
}

/// A change that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedChange {
    /// Index of the refused change in its transaction.
    pub change: usize,
    /// Error number, with the kernel's message if it sent one.
    pub refusal: Refusal,
}

/// Error of a commit. No change has taken effect, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The ruleset has another generation than expected. The caller should read the ruleset again.
    #[error(
        "the ruleset is of generation {}, not {} as expected: another program changed it; read it again",
        found.0, expected.0
    )]
    WrongGeneration {
        /// Generation that the caller expected.
        expected: Generation,
        /// Actual generation of the ruleset.
        found: Generation,
    },
    /// The kernel refused some changes, so no change in the transaction took effect.
    #[error("{}", words(refused))]
    Refused {
        /// Refused changes, at least one, in the order of the transaction.
        refused: Vec<RefusedChange>,
        /// True if the kernel may have refused more changes than it could report.
        more: bool,
    },
    /// The kernel accepted each change, but refused the transaction as a whole.
    #[error("the kernel did not make the transaction: {0}")]
    Whole(Refusal),
    /// The transaction was not sent: it exceeds the socket's send buffer (`EMSGSIZE`) or the
    /// available memory (`ENOBUFS`).
    #[error(
        "the transaction was not sent ({0}): it is larger than the send buffer of a socket may be here, or memory is short; raise net.core.wmem_max on this node, or run with CAP_NET_ADMIN in its first user namespace, where the buffer grows as needed"
    )]
    TooLarge(io::Error),
    /// The outcome is unknown, because the kernel's reply was lost. The caller should read the
    /// ruleset again.
    #[error("whether the kernel made the transaction is unknown, its answer was lost: read again")]
    Unknown,
    /// The send or the receive failed. After a failed receive, the transaction may have taken
    /// effect, so the caller should read the ruleset again.
    #[error(transparent)]
    Error(#[from] Error),
}

impl From<netlink_batch::Error> for CommitError {
    fn from(error: netlink_batch::Error) -> Self {
        Self::Error(error.into())
    }
}

fn words(refused: &[RefusedChange]) -> String {
    let Some(first) = refused.first() else {
        return String::new();
    };
    let more = match refused.len() {
        1 => String::new(),
        all => format!(" (and {} more refused changes)", all - 1),
    };
    format!(
        "the kernel refused change {}, and so all of them: {}{more}",
        first.change, first.refusal
    )
}

/// Returns the error for a process that lacks the privilege to use nf\_tables.
pub(crate) fn permission() -> Error {
    Error::Netlink(netlink_batch::Error::Permission {
        protocol: netlink_batch::Protocol::Netfilter,
    })
}

/// Returns true if `errno` is the kernel's error for missing nf\_tables support.
pub(crate) const fn is_absence(errno: i32) -> bool {
    errno == libc::EOPNOTSUPP
}

/// Converts the kernel's `ENOENT` into `None`. Returns any other error unchanged.
pub(crate) fn unless_absent<T>(answer: Result<T, impl Into<Error>>) -> Result<Option<T>, Error> {
    match answer.map_err(Into::into) {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Netlink(netlink_batch::Error::Refused(Refusal {
            errno: libc::ENOENT,
            ..
        }))) => Ok(None),
        Err(error) => Err(error),
    }
}
