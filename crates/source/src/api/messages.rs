//! The events of a watch, told apart: lines of JSON, or frames of protobuf, each behind its length
//! in four bytes.

use std::io;
use std::pin::Pin;

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};

use super::request::{Answer, Format};

/// Longer events are not Kubernetes': etcd takes objects of 1.5 MB.
const LONGEST_EVENT: usize = 64 << 20;
/// Bytes of a frame's length.
const LENGTH: usize = 4;

/// Reads event by event.
pub(super) struct Messages {
    pub(super) format: Format,
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    /// What has come of an event.
    buffer: Vec<u8>,
    /// The buffer holds a whole event, which was handed out.
    is_told: bool,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// An event; its bytes are those of [`Messages::event`].
    Event,
    /// The end. An event that broke off is none.
    End,
    /// An event that is too long.
    TooLong,
}

impl Messages {
    pub(super) fn new(answer: Answer) -> Self {
        Self {
            format: answer.format,
            body: answer.body,
            buffer: Vec::new(),
            is_told: false,
        }
    }

    /// Whether nothing of an event has come yet.
    pub(super) fn is_silent(&self) -> bool {
        self.is_told || self.buffer.is_empty()
    }

    /// Waits for the next event. May be dropped at any time: what was read by then is kept.
    pub(super) async fn next(&mut self) -> io::Result<Next> {
        if self.is_told {
            self.buffer.clear();
            self.is_told = false;
        }
        loop {
            let piece = self.body.fill_buf().await?;
            if piece.is_empty() {
                return Ok(Next::End);
            }
            let (count, is_whole) = match self.format {
                Format::Json => match piece.iter().position(|byte| *byte == b'\n') {
                    Some(end) => (end + 1, true),
                    None => (piece.len(), false),
                },
                Format::Protobuf => {
                    let wanted = wanted(&self.buffer).unwrap_or(LENGTH);
                    let count = piece.len().min(wanted.saturating_sub(self.buffer.len()));
                    let is_whole = wanted > LENGTH && self.buffer.len() + count == wanted;
                    (count, is_whole)
                }
            };
            self.buffer
                .extend_from_slice(piece.get(..count).unwrap_or(piece));
            self.body.consume_unpin(count);
            let length = wanted(&self.buffer).filter(|_| self.format == Format::Protobuf);
            if length.unwrap_or(self.buffer.len()) > LONGEST_EVENT {
                return Ok(Next::TooLong);
            }
            if is_whole || length == Some(LENGTH) {
                self.is_told = true;
                return Ok(Next::Event);
            }
        }
    }

    /// The event that came last. Empty for a line or frame of nothing, which says that the server
    /// is still there.
    pub(super) fn event(&self) -> &[u8] {
        match self.format {
            Format::Json => self.buffer.trim_ascii(),
            Format::Protobuf => self.buffer.get(LENGTH..).unwrap_or_default(),
        }
    }
}

/// How long a frame is with its length, which it begins with.
fn wanted(frame: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(*frame.first_chunk::<LENGTH>()?);
    usize::try_from(length).ok()?.checked_add(LENGTH)
}
