//! The kernel's replies to messages.

use crate::attributes::align;
use crate::error::Refusal;
use crate::message::Messages;

/// Outcome of one message of a [`Batch`](crate::Batch).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The message succeeded.
    Done,
    /// The kernel refused the message.
    Refused(Refusal),
    /// The acknowledgement was lost (`ENOBUFS`), so the message may have taken effect. Dump and
    /// compare.
    Unknown,
}

impl Reply {
    /// Returns the error number of a refusal.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(refusal) => Some(refusal.errno),
            Self::Done | Self::Unknown => None,
        }
    }
}

/// The kernel's replies to a batch in one send
/// ([`Connection::transact`](crate::Connection::transact)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replies {
    /// Refused messages by index, in the kernel's order.
    pub refused: Vec<(usize, Refusal)>,
    /// Indices of messages that were acknowledged as successful.
    pub acknowledged: Vec<usize>,
    /// Other messages from the kernel, such as those requested by `NLM_F_ECHO`.
    pub echoed: Dump,
    /// True if replies were lost (`ENOBUFS`), so that the lists are incomplete.
    pub lost: bool,
}

/// Received messages in one buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dump {
    bytes: Vec<u8>,
    len: usize,
}

impl Dump {
    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no messages.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns kind (`nlmsg_type`) and payload (fixed header and attributes) of each message.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        Messages::new(&self.bytes)
            .flatten()
            .map(|message| (message.kind, message.payload))
    }

    pub(crate) fn push(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.bytes.resize(align(self.bytes.len()), 0);
        self.len += 1;
    }
}
