//! Faults that a test can inject into a server's responses.
//!
//! A [`Rule`] injects its fault into new requests: the server rejects the request, sends no
//! response, or breaks, stalls or slows the response body. [`Faults::cut`] and [`Faults::freeze`]
//! affect responses that are already in transmission. The cluster still stores changes during a
//! fault.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use hyper::body::Frame;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::resource::Kind;

/// Delay before the server breaks a connection, so that the data before the fault reaches the
/// client.
const FLUSH: Duration = Duration::from_millis(5);

/// A fault that the server injects into a response. Lengths are in bytes of the response body. If
/// the body is shorter than the length, it is sent completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Rejects the request in plain text, like a filter in front of a real API server's handlers.
    Refuse {
        /// HTTP status code of the rejection, from 400 to 599.
        code: u16,
        /// Seconds in the response header `Retry-After`, or `None` to omit the header.
        #[serde(default)]
        retry_after: Option<u64>,
    },
    /// Reports that the requested resource version is compacted: a list gets the status 410, a
    /// watch gets an `ERROR` event.
    Expire,
    /// Reports that the requested resource version is in the future: a list gets the status 504
    /// with the cause `ResourceVersionTooLarge`, a watch gets an `ERROR` event.
    Ahead,
    /// Reports a timeout of the server: a list gets the status 504, a watch gets an `ERROR` event.
    Timeout,
    /// Rejects the request with 422 Invalid, like a server that does not support streamed initial
    /// lists.
    NoWatchList,
    /// Closes the connection without a response.
    Drop,
    /// Sends no response, and keeps the connection open.
    Silence,
    /// Breaks the connection after this many bytes of the body.
    CutAfter(usize),
    /// Ends the body after this many bytes as if it were complete.
    EndAfter(usize),
    /// Sends nothing more after this many bytes of the body, and keeps the connection open.
    StallAfter(usize),
    /// Sends the body in chunks, with a pause before each chunk.
    Slow {
        /// Size of a chunk in bytes, at least 1.
        piece: usize,
        /// Pause before each chunk of the body.
        pause: Duration,
    },
}

/// Purpose of a request. A [`Rule`] can match requests by their purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// A request for a complete list, or for the first page of a list.
    List,
    /// A request for a later page of a list, with a `continue` token.
    NextPage,
    /// A watch that requests a streamed initial list (`sendInitialEvents=true`).
    StreamedList,
    /// A watch that requests no streamed initial list.
    Watch,
    /// Any other request: a write, a read of one object, or an invalid path or query.
    Other,
}

/// A fault, and the requests that it affects: at first all requests. Methods restrict the rule.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    fault: Fault,
    #[serde(rename = "on")]
    asked: Option<Purpose>,
    #[serde(rename = "of")]
    kind: Option<Kind>,
    #[serde(rename = "times")]
    left: Option<usize>,
}

impl Rule {
    /// Restricts the rule to requests with this purpose.
    #[must_use]
    pub fn on(self, asked: Purpose) -> Self {
        Self {
            asked: Some(asked),
            ..self
        }
    }

    /// Restricts the rule to requests for this kind.
    #[must_use]
    pub fn of(self, kind: Kind) -> Self {
        Self {
            kind: Some(kind),
            ..self
        }
    }

    /// Restricts the rule to the next `count` requests that it matches.
    #[must_use]
    pub fn times(self, count: usize) -> Self {
        Self {
            left: Some(count),
            ..self
        }
    }
}

impl From<Fault> for Rule {
    fn from(fault: Fault) -> Self {
        Self {
            fault,
            asked: None,
            kind: None,
            left: None,
        }
    }
}

/// Handle through which tests inject faults into a server. Clones control the same server.
#[derive(Debug, Clone)]
pub struct Faults {
    rules: Arc<Mutex<Vec<Rule>>>,
    bodies: Arc<watch::Sender<Bodies>>,
}

/// Number of calls of [`Faults::cut`] and [`Faults::freeze`]. A response in transmission compares
/// it with the number at its start: after a later call, the response breaks or stalls.
#[derive(Debug, Clone, Copy, Default)]
struct Bodies {
    cuts: u64,
    freezes: u64,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self {
            rules: Arc::default(),
            bodies: Arc::new(watch::Sender::default()),
        }
    }

    /// Adds a rule for new requests. If several rules match a request, the server applies the
    /// oldest.
    pub fn add(&self, rule: impl Into<Rule>) {
        self.lock().push(rule.into());
    }

    /// Removes all rules. Responses that a rule already affects do not recover.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Breaks the connections of all streamed responses in transmission: lists and watches.
    pub fn cut(&self) {
        self.bodies.send_modify(|bodies| bodies.cuts += 1);
    }

    /// Stalls all streamed responses in transmission (lists and watches): they neither continue nor
    /// end.
    pub fn freeze(&self) {
        self.bodies.send_modify(|bodies| bodies.freezes += 1);
    }

    /// Returns the fault of the oldest rule that matches a request, or `None`. Counts the request
    /// for the rule's limit.
    pub(crate) fn meet(&self, asked: Purpose, kind: Option<Kind>) -> Option<Fault> {
        let mut rules = self.lock();
        let rule = rules.iter_mut().find(|rule| {
            rule.left != Some(0)
                && rule.asked.is_none_or(|wanted| wanted == asked)
                && rule.kind.is_none_or(|wanted| Some(wanted) == kind)
        })?;
        rule.left = rule.left.map(|left| left - 1);
        Some(rule.fault)
    }

    /// Returns a response body with faults: `fault` affects it, and so do later calls of
    /// [`Self::cut`] and [`Self::freeze`].
    pub(crate) fn spoil(
        &self,
        body: impl Stream<Item = Bytes> + Send + 'static,
        fault: Option<Fault>,
    ) -> impl Stream<Item = io::Result<Frame<Bytes>>> + Send + 'static {
        let bodies = self.bodies.subscribe();
        let began = *bodies.borrow();
        let (left, piece, pause) = match fault {
            Some(Fault::CutAfter(length) | Fault::EndAfter(length) | Fault::StallAfter(length)) => {
                (Some(length), usize::MAX, Duration::ZERO)
            }
            Some(Fault::Slow { piece, pause }) => (None, piece.max(1), pause),
            _ => (None, usize::MAX, Duration::ZERO),
        };
        let sent = Sent {
            body: body.boxed(),
            unsent: Bytes::new(),
            fault,
            left,
            piece,
            pause,
            bodies,
            began,
        };
        stream::unfold(Some(sent), async |sent| {
            let mut sent = sent?;
            let next = sent.next().await?;
            let sent = next.is_ok().then_some(sent);
            Some((next.map(Frame::data), sent))
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A response body in transmission, and the fault that affects it.
struct Sent {
    body: BoxStream<'static, Bytes>,
    /// Bytes taken from `body` that are not yet sent.
    unsent: Bytes,
    fault: Option<Fault>,
    /// Number of bytes to send before the fault. `None` if the fault is not at a certain byte.
    left: Option<usize>,
    piece: usize,
    pause: Duration,
    bodies: watch::Receiver<Bodies>,
    began: Bodies,
}

impl Sent {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let mut bodies = self.bodies.clone();
        let began = self.began;
        // If all handles of the faults are dropped, no cut can follow, so this waits forever.
        let cut = async {
            if bodies.wait_for(|now| now.cuts != began.cuts).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let next = tokio::select! {
            biased;
            () = cut => return Some(Err(broken())),
            next = self.piece() => next,
        };
        if self.bodies.borrow().freezes == self.began.freezes {
            return next;
        }
        let mut bodies = self.bodies.clone();
        _ = bodies.wait_for(|now| now.cuts != began.cuts).await;
        Some(Err(broken()))
    }

    async fn piece(&mut self) -> Option<io::Result<Bytes>> {
        while self.unsent.is_empty() {
            self.unsent = self.body.next().await?;
        }
        if self.left == Some(0) {
            match self.fault {
                Some(Fault::EndAfter(_)) => return None,
                Some(Fault::StallAfter(_)) => std::future::pending().await,
                _ => {
                    tokio::time::sleep(FLUSH).await;
                    return Some(Err(broken()));
                }
            }
        }
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
        let length = self.unsent.len().min(self.piece);
        let length = length.min(self.left.unwrap_or(usize::MAX));
        self.left = self.left.map(|left| left - length);
        Some(Ok(self.unsent.split_to(length)))
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "cut, as told")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sent(fault: Fault) -> (Vec<u8>, bool) {
        let body = stream::iter([Bytes::from_static(b"one "), Bytes::from_static(b"two")]);
        let faults = Faults::new();
        let frames: Vec<_> = faults.spoil(body, Some(fault)).collect().await;
        let is_whole = frames.iter().all(Result::is_ok);
        let data = frames.into_iter().flatten().flat_map(Frame::into_data);
        (data.flatten().collect(), is_whole)
    }

    #[tokio::test]
    async fn response_bodies_are_cut_at_the_given_byte() {
        assert_eq!(sent(Fault::CutAfter(5)).await, (b"one t".to_vec(), false));
        assert_eq!(sent(Fault::EndAfter(5)).await, (b"one t".to_vec(), true));
        assert_eq!(sent(Fault::EndAfter(4)).await, (b"one ".to_vec(), true));
        assert_eq!(sent(Fault::CutAfter(7)).await, (b"one two".to_vec(), true));
        let slow = Fault::Slow {
            piece: 2,
            pause: Duration::from_millis(1),
        };
        assert_eq!(sent(slow).await, (b"one two".to_vec(), true));
    }

    #[test]
    fn a_fault_rule_affects_only_matching_requests_up_to_its_count() {
        let faults = Faults::new();
        let rule = Rule::from(Fault::Drop).on(Purpose::List).of(Kind::Service);
        faults.add(rule.times(1));
        assert_eq!(faults.meet(Purpose::Watch, Some(Kind::Service)), None);
        assert_eq!(faults.meet(Purpose::List, Some(Kind::Node)), None);
        let met = faults.meet(Purpose::List, Some(Kind::Service));
        assert_eq!(met, Some(Fault::Drop));
        assert_eq!(faults.meet(Purpose::List, Some(Kind::Service)), None);
        faults.add(Fault::Silence);
        assert_eq!(faults.meet(Purpose::Other, None), Some(Fault::Silence));
        faults.clear();
        assert_eq!(faults.meet(Purpose::Other, None), None);
    }
}
