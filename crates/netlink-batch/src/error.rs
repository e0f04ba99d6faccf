//! What can go wrong, and what to do about it.

use std::{fmt, io};

use crate::attributes::Malformed;
use crate::protocol::Protocol;

/// Error of a whole operation. Errors of single messages are [`Reply`](crate::Reply)s.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The socket could not be made.
    #[error("cannot open a {protocol} socket: {source}; is the protocol built into this kernel?")]
    Open {
        /// Which one.
        protocol: Protocol,
        /// What the kernel said.
        source: io::Error,
    },
    /// The process lacks the right to do this.
    #[error(
        "the kernel refuses this {protocol} request: it needs CAP_NET_ADMIN; run as root or grant the capability"
    )]
    Permission {
        /// Which protocol.
        protocol: Protocol,
    },
    /// Sending or receiving failed. Part of a batch may have been done: dump and compare.
    #[error("cannot {doing} netlink messages: {source}; open a new connection and dump")]
    Io {
        /// `send` or `receive`.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The dumped table changed during every attempt, so none is a consistent picture.
    #[error("the kernel's table changed during each of {attempts} dumps; try again later")]
    Interrupted {
        /// How often it was tried.
        attempts: u32,
    },
    /// The kernel refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The kernel's answer is not netlink.
    #[error(
        "cannot understand the kernel's answer: {0}; please report this with the kernel's version"
    )]
    Malformed(#[from] Malformed),
    /// The answer to a request, or its end, did not arrive (the receive buffer was full,
    /// `ENOBUFS`).
    #[error("the kernel's answer was lost; ask again")]
    LostReply,
}

/// The kernel's no to one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The error number, positive. ipset has numbers of its own above 4096.
    pub errno: i32,
    /// The kernel's explanation (`NLMSGERR_ATTR_MSG`), if the family gives any.
    pub message: Option<String>,
    /// The request's payload as the kernel returned it: empty where it does not (all families but
    /// ipset, which puts the failing line number into it).
    pub request: Vec<u8>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // MAX_ERRNO: libc has words for what lies below.
        match self.errno {
            errno @ 1..4096 => write!(f, "{}", io::Error::from_raw_os_error(errno))?,
            errno => write!(f, "error {errno}")?,
        }
        self.message
            .as_ref()
            .map_or(Ok(()), |message| write!(f, ": {message}"))
    }
}

impl std::error::Error for Refusal {}
