//! The kernel's answers to messages.

use crate::attributes::align;
use crate::error::Refusal;
use crate::message::Messages;

/// Fate of one message of a [`Batch`](crate::Batch).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The kernel did it.
    Done,
    /// The kernel did not do it, and says why.
    Refused(Refusal),
    /// The acknowledgement was lost (`ENOBUFS`): the kernel may or may not have done it. Dump and
    /// compare.
    Unknown,
}

impl Reply {
    /// The error number of a refusal.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(refusal) => Some(refusal.errno),
            Self::Done | Self::Unknown => None,
        }
    }
}

/// The kernel's answers to a batch that went in one send ([`Connection::transact`](crate::Connection::transact)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// The refused messages, by index, in the kernel's order.
    pub refused: Vec<(usize, Refusal)>,
    /// The messages that were acknowledged as done, by index.
    pub acknowledged: Vec<usize>,
    /// What the kernel sent besides, as with `NLM_F_ECHO`.
    pub echoed: Dump,
    /// Answers were lost (`ENOBUFS`): there are more than these.
    pub lost: bool,
}

/// Received messages in one buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dump {
    bytes: Vec<u8>,
    len: usize,
}

impl Dump {
    /// Number of messages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Kind (`nlmsg_type`) and payload (fixed header and attributes) of each message.
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
