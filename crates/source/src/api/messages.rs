//! Splits a watch into events. In JSON, an event is a line. In protobuf, an event is a frame that
//! begins with its length in four bytes.

use std::io;
use std::pin::Pin;

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};

use super::request::{Format, ResponseStream};

/// Maximum length of an event, in bytes. etcd accepts objects of 1.5 MB.
const LONGEST_EVENT: usize = 64 << 20;
/// Size of a frame's length field, in bytes.
const LENGTH: usize = 4;

/// Reader that splits the response of a watch into events.
pub(super) struct Messages {
    pub(super) format: Format,
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    /// Bytes of the current event.
    buffer: Vec<u8>,
    /// True if the buffer contains an event that was already returned.
    is_told: bool,
}

/// Result of waiting for an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextMessage {
    /// An event, whose bytes [`Messages::event`] returns.
    Event,
    /// The end of the watch. An incomplete event at the end is dropped.
    End,
    /// An event that is longer than [`LONGEST_EVENT`].
    TooLong,
}

impl Messages {
    pub(super) fn new(answer: ResponseStream) -> Self {
        Self {
            format: answer.format,
            body: answer.body,
            buffer: Vec::new(),
            is_told: false,
        }
    }

    /// Reports whether no byte of the next event has arrived yet.
    pub(super) fn is_silent(&self) -> bool {
        self.is_told || self.buffer.is_empty()
    }

    /// Waits for the next event. Cancel safe: keeps the bytes that were read.
    pub(super) async fn next(&mut self) -> io::Result<NextMessage> {
        if self.is_told {
            self.buffer.clear();
            self.is_told = false;
        }
        loop {
            let piece = self.body.fill_buf().await?;
            if piece.is_empty() {
                return Ok(NextMessage::End);
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
                return Ok(NextMessage::TooLong);
            }
            if is_whole || length == Some(LENGTH) {
                self.is_told = true;
                return Ok(NextMessage::Event);
            }
        }
    }

    /// Returns the last event. An empty line or frame is an empty event, which shows only that the
    /// server is alive.
    pub(super) fn event(&self) -> &[u8] {
        match self.format {
            Format::Json => self.buffer.trim_ascii(),
            Format::Protobuf => self.buffer.get(LENGTH..).unwrap_or_default(),
        }
    }
}

/// Returns the length of a frame, including the length field, or `None` until the length field has
/// arrived.
fn wanted(frame: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(*frame.first_chunk::<LENGTH>()?);
    usize::try_from(length).ok()?.checked_add(LENGTH)
}
