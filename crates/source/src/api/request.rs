//! What is asked of the server, and in which form it answers.

use std::io;
use std::pin::Pin;

use async_compression::futures::bufread::GzipDecoder;
use form_urlencoded::Serializer;
use futures::TryStreamExt as _;
use futures::io::{AsyncBufRead, BufReader};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use proxy::Kind;

use crate::settings::ContentType;

/// The media type of Kubernetes' protobuf.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON: &str = "application/json";
/// What is asked for where protobuf is wanted: a server without it answers with JSON.
const PROTOBUF_OR_JSON: &str = "application/vnd.kubernetes.protobuf,application/json";
/// Objects to a page, of a server that gives pages: 500 slices of 50 endpoints are 8 MB of JSON.
const PAGE: &str = "500";
/// Bytes that are unpacked at once.
const UNPACKED: usize = 64 << 10;

/// What to list and watch.
pub(super) struct Resource {
    pub(super) kind: Kind,
    pub(super) need: Need,
    /// The path that all objects of the kind are under.
    pub(super) path: &'static str,
    pub(super) labels: Option<&'static str>,
    pub(super) fields: Option<String>,
}

/// Whether there is any serving without a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// There is none.
    Needed,
    /// What needs it is left out where the server does not tell of it.
    Optional {
        /// What a role has to allow.
        right: &'static str,
        /// The Kubernetes version that has it.
        since: &'static str,
    },
}

/// How new a list must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Age {
    /// As new as the server's watch cache is, which may lag behind.
    Any,
    /// As new as this resource version, or newer: a watch cache waits until it is.
    NotOlderThan(String),
    /// The newest that there is.
    Newest,
}

/// How a list comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paging<'a> {
    /// Whole.
    Whole,
    /// A page, which is the first.
    First,
    /// The page behind another, by its `continue` token.
    After(&'a str),
}

impl Resource {
    /// A list. One of any age is always asked for with a limit, which a watch cache does not heed:
    /// a server without one would have to read everything at once. Any other limit would take the
    /// list past the watch cache.
    pub(super) fn list(&self, age: &Age, paging: Paging<'_>) -> String {
        let mut query = self.query();
        match paging {
            Paging::After(token) => {
                query.append_pair("limit", PAGE);
                query.append_pair("continue", token);
                return query.finish();
            }
            Paging::First => {
                query.append_pair("limit", PAGE);
            }
            Paging::Whole => {}
        }
        match age {
            Age::Any => query.append_pair("resourceVersion", "0"),
            Age::NotOlderThan(version) => query
                .append_pair("resourceVersion", version)
                .append_pair("resourceVersionMatch", "NotOlderThan"),
            Age::Newest => &mut query,
        };
        query.finish()
    }

    /// One object as of `version` or later.
    pub(super) fn glance(&self, version: &str) -> String {
        self.query()
            .append_pair("limit", "1")
            .append_pair("resourceVersion", version)
            .append_pair("resourceVersionMatch", "NotOlderThan")
            .finish()
    }

    /// One object, of whatever version.
    pub(super) fn sample(&self) -> String {
        self.query().append_pair("limit", "1").finish()
    }

    /// A watch from `version`.
    pub(super) fn watch(&self, version: &str, seconds: u32) -> String {
        self.watching(seconds)
            .append_pair("resourceVersion", version)
            .finish()
    }

    /// A watch that begins with the newest list.
    pub(super) fn streamed_list(&self, seconds: u32) -> String {
        self.watching(seconds)
            .append_pair("sendInitialEvents", "true")
            .append_pair("resourceVersionMatch", "NotOlderThan")
            .append_pair("resourceVersion", "")
            .finish()
    }

    fn watching(&self, seconds: u32) -> Serializer<'static, String> {
        let mut query = self.query();
        query
            .append_pair("watch", "true")
            .append_pair("timeoutSeconds", &seconds.to_string())
            .append_pair("allowWatchBookmarks", "true");
        query
    }

    fn query(&self) -> Serializer<'static, String> {
        let start = format!("{}?", self.path);
        let mut query = Serializer::for_suffix(start.clone(), start.len());
        if let Some(labels) = self.labels {
            query.append_pair("labelSelector", labels);
        }
        if let Some(fields) = &self.fields {
            query.append_pair("fieldSelector", fields);
        }
        query
    }
}

/// A request for what a list or watch names.
pub(super) fn get(target: &str, content_type: ContentType) -> http::Result<Request<Body>> {
    let accepted = match content_type {
        ContentType::Protobuf => PROTOBUF_OR_JSON,
        ContentType::Json => JSON,
    };
    Request::get(target)
        .header(ACCEPT, accepted)
        .header(ACCEPT_ENCODING, "gzip")
        .body(Body::empty())
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Protobuf,
}

impl Format {
    /// By `Content-Type`; what does not say that it is protobuf is JSON.
    fn of(headers: &HeaderMap) -> Self {
        let said = headers
            .get(CONTENT_TYPE)
            .map_or(&b""[..], |said| said.as_bytes());
        let media_type = said.split(|byte| *byte == b';').next().unwrap_or_default();
        if media_type
            .trim_ascii()
            .eq_ignore_ascii_case(PROTOBUF.as_bytes())
        {
            Self::Protobuf
        } else {
            Self::Json
        }
    }
}

/// What was answered, as it comes.
pub(super) struct Answer {
    pub(super) format: Format,
    pub(super) body: Pin<Box<dyn AsyncBufRead + Send>>,
}

impl Answer {
    pub(super) fn new(answer: Response<Body>) -> Self {
        let format = Format::of(answer.headers());
        let is_packed = answer
            .headers()
            .get(CONTENT_ENCODING)
            .is_some_and(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"gzip"));
        let body = answer.into_body().into_data_stream();
        let body = body.map_err(io::Error::other).into_async_read();
        Self {
            format,
            body: if is_packed {
                Box::pin(unpacked(body))
            } else {
                Box::pin(body)
            },
        }
    }
}

/// What is packed with gzip. All that has come can be read, also before the end.
pub(super) fn unpacked(packed: impl AsyncBufRead + Send) -> impl AsyncBufRead + Send {
    let mut unpacked = GzipDecoder::new(packed);
    unpacked.multiple_members(true);
    BufReader::with_capacity(UNPACKED, unpacked)
}
