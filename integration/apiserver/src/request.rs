//! Requests as they arrived, and what was answered: what tests and benchmarks count.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hyper::HeaderMap;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, USER_AGENT,
};
use serde_json::{Value, json};

use crate::faults::Asked;
use crate::resource::Kind;
use crate::route::{Query, Target};

/// A request as it arrived, and its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// The path, still percent-encoded.
    pub path: String,
    /// The query, still percent-encoded; empty if there is none.
    pub query: String,
    /// Purpose of the request.
    pub asked: Asked,
    /// Kind of its objects; none if the server does not have it.
    pub kind: Option<Kind>,
    /// `User-Agent`; empty if there is none.
    pub user_agent: String,
    /// `Accept`; empty if there is none.
    pub accept: String,
    /// `Accept-Encoding`; empty if there is none.
    pub accept_encoding: String,
    /// `Authorization`; empty if there is none.
    pub authorization: Credentials,
    /// Response; `None` before there is one, and if the connection was closed instead.
    pub answer: Option<Answer>,
    /// Bytes sent for it so far on the wire (below TLS): headers, and the body as compressed.
    pub sent_bytes: u64,
}

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status code.
    pub code: u16,
    /// `Content-Type`
    pub content_type: String,
    /// `Content-Encoding`; empty if there is none.
    pub content_encoding: String,
}

/// Credentials of a client. Shown only on request by name, never in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials(String);

impl Credentials {
    /// The header's value.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
}

impl Request {
    pub(crate) fn new<B>(request: &hyper::Request<B>) -> Self {
        let uri = request.uri();
        let text = |name: &HeaderName| header(request.headers(), name).to_owned();
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let (asked, kind) = asked(request.method().as_str(), path, query);
        Self {
            method: request.method().to_string(),
            path: path.to_owned(),
            query: query.to_owned(),
            asked,
            kind,
            user_agent: text(&USER_AGENT),
            accept: text(&ACCEPT),
            accept_encoding: text(&ACCEPT_ENCODING),
            authorization: Credentials(text(&AUTHORIZATION)),
            answer: None,
            sent_bytes: 0,
        }
    }

    fn to_json(&self) -> Value {
        let answer = self.answer.as_ref();
        json!({
            "method": self.method, "path": self.path, "query": self.query,
            "asked": self.asked, "kind": self.kind,
            "userAgent": self.user_agent, "accept": self.accept, "acceptEncoding": self.accept_encoding,
            "code": answer.map(|answer| answer.code),
            "contentType": answer.map(|answer| &answer.content_type),
            "contentEncoding": answer.map(|answer| &answer.content_encoding),
            "sentBytes": self.sent_bytes,
        })
    }
}

/// Returns the purpose of a request, by which faults and counts distinguish requests.
fn asked(method: &str, path: &str, query: &str) -> (Asked, Option<Kind>) {
    let kind = match Target::parse(path) {
        Ok(Target::Collection { kind, .. }) if method == "GET" => kind,
        Ok(Target::Collection { kind, .. } | Target::Object { kind, .. }) => {
            return (Asked::Other, Some(kind));
        }
        Err(_) => return (Asked::Other, None),
    };
    let asked = match Query::parse(query) {
        Ok(query) if query.flag("watch") == Some(true) => match query.flag("sendInitialEvents") {
            Some(true) => Asked::StreamedList,
            _ => Asked::Watch,
        },
        Ok(query) if query.text("continue").is_empty() => Asked::List,
        Ok(_) => Asked::NextPage,
        Err(_) => Asked::Other,
    };
    (asked, Some(kind))
}

/// The value of a header, empty if it is absent or no text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// The requests of a server, in the order in which they arrived.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Vec<Arc<Entry>>>);

/// A request, and what came of it.
#[derive(Debug)]
pub(crate) struct Entry {
    request: Request,
    answer: OnceLock<Answer>,
    sent: AtomicU64,
}

impl Log {
    pub(crate) fn add(&self, request: Request) -> Arc<Entry> {
        let entry = Arc::new(Entry {
            request,
            answer: OnceLock::new(),
            sent: AtomicU64::new(0),
        });
        self.entries().push(Arc::clone(&entry));
        entry
    }

    /// Returns all requests, as of now.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.entries().iter().map(|entry| entry.now()).collect()
    }

    /// Returns the requests from `from` on, their total of sent bytes without those of one
    /// `User-Agent` (if not empty), and the present number of requests.
    pub(crate) fn since(&self, from: usize, without: &str) -> Value {
        let entries = self.entries();
        let counts =
            |entry: &&Arc<Entry>| without.is_empty() || entry.request.user_agent != without;
        let sent = |entry: &Arc<Entry>| entry.sent.load(Ordering::Relaxed);
        let sent: u64 = entries.iter().filter(counts).map(sent).sum();
        let since = entries.iter().skip(from).filter(counts);
        let since: Vec<Value> = since.map(|entry| entry.now().to_json()).collect();
        json!({ "requests": since, "sentBytes": sent, "count": entries.len() })
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// The request with what has come of it by now.
    fn now(&self) -> Request {
        Request {
            answer: self.answer.get().cloned(),
            sent_bytes: self.sent.load(Ordering::Relaxed),
            ..self.request.clone()
        }
    }

    /// Notes that so many bytes were sent for it.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes what is answered.
    pub(crate) fn answered<B>(&self, response: &hyper::Response<B>) {
        let text = |name| header(response.headers(), name).to_owned();
        let answer = Answer {
            code: response.status().as_u16(),
            content_type: text(&CONTENT_TYPE),
            content_encoding: text(&CONTENT_ENCODING),
        };
        // One request has one answer.
        _ = self.answer.set(answer);
    }
}
