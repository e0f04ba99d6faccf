//! Errors of netlink calls, each with the next step for the operator.

use std::{fmt, io};

use crate::attributes::Malformed;
use crate::protocol::Protocol;

/// Error that ends a whole operation. For errors of single messages, see [`Reply`](crate::Reply).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system could not open a netlink socket.
    #[error("cannot open a {protocol} socket: {source}; is the protocol built into this kernel?")]
    Open {
        /// Protocol of the socket.
        protocol: Protocol,
        /// The system's error for the failed call.
        source: io::Error,
    },
    /// The process lacks the privilege that the operation needs.
    #[error(
        "the kernel refuses this {protocol} request: it needs CAP_NET_ADMIN; run as root or grant the capability"
    )]
    Permission {
        /// Protocol of the socket.
        protocol: Protocol,
    },
    /// A send or receive failed. A part of the batch may have taken effect, so the caller should
    /// open a new connection and dump.
    #[error("cannot {doing} netlink messages: {source}; open a new connection and dump")]
    Io {
        /// Failed operation: `send` or `receive`.
        doing: &'static str,
        /// The system's error for the failed call.
        source: io::Error,
    },
    /// The table changed during every attempt of a dump, so no result is consistent.
    #[error("the kernel's table changed during each of {attempts} dumps; try again later")]
    Interrupted {
        /// Number of attempts to dump the table.
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
    /// A reply or its end was lost, because the receive buffer was full (`ENOBUFS`).
    #[error("the kernel's answer was lost; ask again")]
    LostReply,
}

/// The kernel's refusal of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Positive error number. ipset has its own numbers above 4096.
    pub errno: i32,
    /// Explanation from the kernel (`NLMSGERR_ATTR_MSG`), if it gave one.
    pub message: Option<String>,
    /// Payload of the request, as the kernel returned it. Only ipset returns a payload, which
    /// contains the line number of the failed entry.
    pub request: Vec<u8>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // libc has texts only for error numbers from 1 to 4095 (MAX_ERRNO).
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
