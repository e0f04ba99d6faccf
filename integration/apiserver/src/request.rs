//! Log of the requests that a server receives, and of its responses.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hyper::HeaderMap;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, USER_AGENT,
};
use serde_json::{Value, json};

use crate::faults::Purpose;
use crate::resource::Kind;
use crate::route::{Query, Target};

/// A request in the server's log, with the response.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// HTTP method of the request: `GET`, `POST`, …
    pub method: String,
    /// Path of the request's URL, percent-encoded.
    pub path: String,
    /// Query of the request's URL, percent-encoded. Empty if the URL has none.
    pub query: String,
    /// Purpose of the request, derived from its method, path and query.
    pub asked: Purpose,
    /// Kind of the requested object or list. `None` if the server does not serve the path.
    pub kind: Option<Kind>,
    /// Value of the request header `User-Agent`. Empty if absent.
    pub user_agent: String,
    /// Value of the request header `Accept`. Empty if absent.
    pub accept: String,
    /// Value of the request header `Accept-Encoding`. Empty if absent.
    pub accept_encoding: String,
    /// Value of the request header `Authorization`. Empty if absent.
    pub authorization: Credentials,
    /// Status and headers of the response. `None` until the server responds, or if it closes the
    /// connection without a response.
    pub answer: Option<LoggedResponse>,
    /// Number of bytes of the response sent so far: headers and (compressed) body, without the
    /// overhead of TLS.
    pub sent_bytes: u64,
}

/// Status and headers of a response, as the log keeps them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedResponse {
    /// HTTP status code of the response.
    pub code: u16,
    /// Value of the response header `Content-Type`.
    pub content_type: String,
    /// Value of the response header `Content-Encoding`. Empty if absent.
    pub content_encoding: String,
}

/// Value of the header `Authorization`, which debug output and logs never show. [`Self::reveal`]
/// returns it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials(String);

impl Credentials {
    /// Returns the value of the request header `Authorization`.
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

/// Returns the purpose of a request and the kind of the requested objects. Fault rules match by
/// both.
fn asked(method: &str, path: &str, query: &str) -> (Purpose, Option<Kind>) {
    let kind = match Target::parse(path) {
        Ok(Target::Collection { kind, .. }) if method == "GET" => kind,
        Ok(Target::Collection { kind, .. } | Target::Object { kind, .. }) => {
            return (Purpose::Other, Some(kind));
        }
        Err(_) => return (Purpose::Other, None),
    };
    let asked = match Query::parse(query) {
        Ok(query) if query.flag("watch") == Some(true) => match query.flag("sendInitialEvents") {
            Some(true) => Purpose::StreamedList,
            _ => Purpose::Watch,
        },
        Ok(query) if query.text("continue").is_empty() => Purpose::List,
        Ok(_) => Purpose::NextPage,
        Err(_) => Purpose::Other,
    };
    (asked, Some(kind))
}

/// Returns the value of a header, or an empty string if the header is absent or not visible ASCII.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// All requests that a server has received, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Vec<Arc<Entry>>>);

/// A logged request. Its response and byte count change while the server handles it.
#[derive(Debug)]
pub(crate) struct Entry {
    request: Request,
    answer: OnceLock<LoggedResponse>,
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

    /// Returns all requests, oldest first, with the bytes sent for each so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.entries().iter().map(|entry| entry.now()).collect()
    }

    /// Returns the requests from index `from` on, the sum of their sent bytes, and the total number
    /// of requests. Excludes requests with the `User-Agent` `without`, unless this is empty.
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

    /// Returns a copy of the request with its current response and byte count.
    fn now(&self) -> Request {
        Request {
            answer: self.answer.get().cloned(),
            sent_bytes: self.sent.load(Ordering::Relaxed),
            ..self.request.clone()
        }
    }

    /// Adds `bytes` to the number of bytes sent in response to this request.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Records the status and the headers of the response to this request.
    pub(crate) fn answered<B>(&self, response: &hyper::Response<B>) {
        let text = |name| header(response.headers(), name).to_owned();
        let answer = LoggedResponse {
            code: response.status().as_u16(),
            content_type: text(&CONTENT_TYPE),
            content_encoding: text(&CONTENT_ENCODING),
        };
        // Keeps the first response if a request has several.
        _ = self.answer.set(answer);
    }
}
