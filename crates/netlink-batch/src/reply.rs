//! Replies of the kernel to the messages of a batch, and messages of a dump.

use crate::attributes::align;
use crate::error::Refusal;
use crate::message::Messages;

/// Outcome of one message in a [`Batch`](crate::Batch).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The kernel has carried out the message.
    Done,
    /// The kernel refused the message.
    Refused(Refusal),
    /// The acknowledgement was lost (`ENOBUFS`), so the message may have taken effect. A dump shows
    /// whether it has.
    Unknown,
}

impl Reply {
    /// Returns the error number of a refusal, or `None` for any other outcome.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(refusal) => Some(refusal.errno),
            Self::Done | Self::Unknown => None,
        }
    }
}

/// Replies of the kernel to a batch that was sent in one call
/// ([`Connection::transact`](crate::Connection::transact)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replies {
    /// Refused messages by their index in the batch, in the order of the kernel's replies.
    pub refused: Vec<(usize, Refusal)>,
    /// Indices of the messages that the kernel has acknowledged as successful.
    pub acknowledged: Vec<usize>,
    /// Other messages from the kernel, such as the messages that `NLM_F_ECHO` requests.
    pub echoed: Dump,
    /// True if the kernel dropped replies (`ENOBUFS`), so that the lists are incomplete.
    pub lost: bool,
}

/// Messages that the kernel has sent in reply to a request, in one buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dump {
    bytes: Vec<u8>,
    len: usize,
}

impl Dump {
    /// Returns the number of received messages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no messages.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the kind (`nlmsg_type`) and the payload (fixed header and attributes) of each
    /// message.
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
