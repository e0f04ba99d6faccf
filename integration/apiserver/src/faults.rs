//! Faults that a test can inject into a server.
//!
//! A [`Rule`] affects later requests. The server rejects such requests, does not respond, or cuts,
//! stalls or slows the bodies of its responses. [`Faults::cut`] and [`Faults::freeze`] affect open
//! responses. During a fault, the cluster still records changes.

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

/// Time for earlier data to leave the socket before the server cuts the connection.
const FLUSH: Duration = Duration::from_millis(5);

/// Fault that the server injects into a response. Lengths count bytes of the response body. A body
/// that is shorter than the length stays complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Rejection with this status code in plain text, as from the filters of a real API server.
    Refuse {
        /// HTTP status code of the rejection, from 400 to 599.
        code: u16,
        /// Value of the response header `Retry-After` in seconds, or `None` to omit the header.
        #[serde(default)]
        retry_after: Option<u64>,
    },
    /// Error for a compacted resource version: a list gets the status 410, a watch an `ERROR`
    /// event.
    Expire,
    /// Error for a resource version in the future: a list gets the status 504 with the cause
    /// `ResourceVersionTooLarge`, a watch an `ERROR` event.
    Ahead,
    /// Timeout of the server, at any requested resource version: a list gets the status 504, a
    /// watch an `ERROR` event.
    Timeout,
    /// Rejection of streamed initial lists with 422 Invalid, as by a server that does not support
    /// them.
    NoWatchList,
    /// The server closes the connection and sends no response.
    Drop,
    /// The server sends no response and keeps the connection open.
    Silence,
    /// The connection breaks after this many bytes of the body.
    CutAfter(usize),
    /// The body ends normally after this many bytes.
    EndAfter(usize),
    /// The body stalls after this many bytes, on an open connection.
    StallAfter(usize),
    /// The server sends the body in chunks, with a pause before each.
    Slow {
        /// Number of bytes per chunk, at least 1.
        piece: usize,
        /// Pause before each chunk of the body.
        pause: Duration,
    },
}

/// Purpose of a request, by which a [`Rule`] selects requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// A request for a whole list, or for its first page.
    List,
    /// A request for a further page of a list.
    NextPage,
    /// A watch that begins with a list.
    StreamedList,
    /// A watch from a resource version.
    Watch,
    /// A write, or a request for a single object or an invalid path.
    Other,
}

/// A fault, and the requests that it affects. A new rule affects all requests. The methods of this
/// type restrict the rule to some requests.
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
    /// Limits the rule to requests with this purpose.
    #[must_use]
    pub fn on(self, asked: Purpose) -> Self {
        Self {
            asked: Some(asked),
            ..self
        }
    }

    /// Limits the rule to objects of this kind.
    #[must_use]
    pub fn of(self, kind: Kind) -> Self {
        Self {
            kind: Some(kind),
            ..self
        }
    }

    /// Limits the rule to the next `count` requests that match.
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

/// Faults of a server. A clone is a handle to the same faults.
#[derive(Debug, Clone)]
pub struct Faults {
    rules: Arc<Mutex<Vec<Rule>>>,
    bodies: Arc<watch::Sender<Bodies>>,
}

/// Numbers of [`Faults::cut`] and [`Faults::freeze`] calls so far. An open response breaks or
/// stalls when its number increases.
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

    /// Adds a rule for new requests. If several rules match a request, the oldest of them applies.
    pub fn add(&self, rule: impl Into<Rule>) {
        self.lock().push(rule.into());
    }

    /// Removes all rules for new requests. Responses that are already silent or slow do not change.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Breaks the connections of open lists and watches.
    pub fn cut(&self) {
        self.bodies.send_modify(|bodies| bodies.cuts += 1);
    }

    /// Stalls the open lists and watches. They neither continue nor end.
    pub fn freeze(&self) {
        self.bodies.send_modify(|bodies| bodies.freezes += 1);
    }

    /// Returns the fault of the oldest rule that matches a request, and counts the use of the rule.
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

    /// Wraps a response body, so that `fault`, and later calls of [`Self::cut`] and
    /// [`Self::freeze`], affect the body.
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
    /// Data of the body that remains to be sent.
    unsent: Bytes,
    fault: Option<Fault>,
    /// Number of bytes to send before the fault. `None` if the fault has no length.
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
        // If the sender of the signal no longer exists, no cut can occur.
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
