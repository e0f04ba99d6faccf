//! Errors, each with the next step for the reader.

use std::{fmt, io};

use crate::attributes::Malformed;
use crate::protocol::Protocol;

/// Error of a whole operation. Errors of single messages are [`Reply`](crate::Reply)s.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The socket could not be opened.
    #[error("cannot open a {protocol} socket: {source}; is the protocol built into this kernel?")]
    Open {
        /// The socket's protocol.
        protocol: Protocol,
        /// The kernel's error.
        source: io::Error,
    },
    /// The process lacks the right to do this.
    #[error(
        "the kernel refuses this {protocol} request: it needs CAP_NET_ADMIN; run as root or grant the capability"
    )]
    Permission {
        /// The socket's protocol.
        protocol: Protocol,
    },
    /// Sending or receiving failed. Part of a batch may have taken effect: dump and compare.
    #[error("cannot {doing} netlink messages: {source}; open a new connection and dump")]
    Io {
        /// `send` or `receive`.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The dumped table changed during every attempt, so no result is consistent.
    #[error("the kernel's table changed during each of {attempts} dumps; try again later")]
    Interrupted {
        /// The number of attempts.
        attempts: u32,
    },
    /// The kernel refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The kernel's reply is not valid netlink.
    #[error(
        "cannot understand the kernel's answer: {0}; please report this with the kernel's version"
    )]
    Malformed(#[from] Malformed),
    /// The reply to a request, or its end, was lost: the receive buffer was full (`ENOBUFS`).
    #[error("the kernel's answer was lost; ask again")]
    LostReply,
}

/// The kernel's refusal of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The error number, positive. ipset has its own numbers above 4096.
    pub errno: i32,
    /// The kernel's explanation (`NLMSGERR_ATTR_MSG`), if it gave one.
    pub message: Option<String>,
    /// The request's payload as returned by the kernel. Only ipset returns one, with the number of
    /// the failed line in it.
    pub request: Vec<u8>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // MAX_ERRNO: libc has texts for smaller numbers.
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
