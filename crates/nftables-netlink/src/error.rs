//! What can go wrong, in words that name the next step.

use std::io;

use netlink_batch::{Malformed, Refusal};

use crate::transaction::Generation;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no nf\_tables.
    #[error("the kernel has no nf_tables: run `modprobe nf_tables` (CONFIG_NF_TABLES)")]
    NoNftables,
    /// The ruleset changed while it was read, at each of several attempts.
    #[error(
        "the kernel's ruleset changed during each of {attempts} attempts to read it; another program writes all the time: try again later"
    )]
    Changing {
        /// How often it was tried.
        attempts: u32,
    },
    /// The kernel resized a set while it was read, at each of several attempts: elements were told
    /// twice, and so others left out.
    #[error(
        "set {set} of table {table} was resized by the kernel during each of {attempts} attempts to read it, as after very many elements came or went; nothing is wrong with it: try again later"
    )]
    Resizing {
        /// The table of the set.
        table: String,
        /// The set.
        set: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// The socket failed, a privilege is missing, or the kernel refused.
    #[error(transparent)]
    Netlink(netlink_batch::Error),
}

impl From<netlink_batch::Error> for Error {
    fn from(error: netlink_batch::Error) -> Self {
        match error {
            // Not even nfnetlink is there.
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

/// A change that the kernel did not make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedChange {
    /// Which, counted from 0.
    pub change: usize,
    /// Why: a number, and the kernel's own words where it has any.
    pub refusal: Refusal,
}

/// Why a transaction was not made. Nothing of it was, but where it says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The ruleset is of another generation than was expected: read again.
    #[error(
        "the ruleset is of generation {}, not {} as expected: another program changed it; read it again",
        found.0, expected.0
    )]
    WrongGeneration {
        /// What the caller said.
        expected: Generation,
        /// What there is.
        found: Generation,
    },
    /// The kernel refused changes, and so made none.
    #[error("{}", words(refused))]
    Refused {
        /// Those that it refused, in their order; at least one.
        refused: Vec<RefusedChange>,
        /// Whether the kernel may have refused others as well, which it could not tell.
        more: bool,
    },
    /// The kernel took every change and did not make the transaction.
    #[error("the kernel did not make the transaction: {0}")]
    Whole(Refusal),
    /// It could not even be sent: it is larger than the socket's buffer may be (`EMSGSIZE`), or than
    /// the memory that there is (`ENOBUFS`).
    #[error(
        "the transaction was not sent ({0}): it is larger than the send buffer of a socket may be here, or memory is short; raise net.core.wmem_max on this node, or run with CAP_NET_ADMIN in its first user namespace, where the buffer grows as needed"
    )]
    TooLarge(io::Error),
    /// Whether it was made is not known, as the kernel's answer was lost: read again.
    #[error("whether the kernel made the transaction is unknown, its answer was lost: read again")]
    Unknown,
    /// It could not be sent or the answer not be received. Where receiving failed it may have been
    /// made: read again.
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

/// Of an error number alone.
pub(crate) fn permission() -> Error {
    Error::Netlink(netlink_batch::Error::Permission {
        protocol: netlink_batch::Protocol::Netfilter,
    })
}

/// What a kernel without nf\_tables says to a batch.
pub(crate) const fn is_absence(errno: i32) -> bool {
    errno == libc::EOPNOTSUPP
}
