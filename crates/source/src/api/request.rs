//! Requests to the API server, and the formats of its responses.

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

/// Media type of Kubernetes' protobuf.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON: &str = "application/json";
/// Value of `Accept` that requests protobuf. A server without protobuf replies with JSON.
const PROTOBUF_OR_JSON: &str = "application/vnd.kubernetes.protobuf,application/json";
/// Number of objects in a page, if the server needs pages. 500 EndpointSlices with 50 endpoints
/// each are 8 MB of JSON.
const PAGE: &str = "500";
/// Size of the buffer for decompressed bytes.
const UNPACKED: usize = 64 << 10;

/// A kind of object to list and watch, with its API path and selectors.
pub(super) struct Resource {
    pub(super) kind: Kind,
    pub(super) need: Need,
    /// API path that lists all objects of the kind, such as `/api/v1/services`.
    pub(super) path: &'static str,
    pub(super) labels: Option<&'static str>,
    pub(super) fields: Option<String>,
}

/// Importance of a kind of object for the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// A kind without which the proxy cannot serve.
    Needed,
    /// An optional kind. Without this kind, only the features that use it are off.
    Optional {
        /// Permission that the proxy's role needs for the kind.
        right: &'static str,
        /// First Kubernetes version with the kind.
        since: &'static str,
    },
}

/// Minimum resource version that a list request demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Age {
    /// Any version that the server's watch cache has, even a stale version.
    Any,
    /// This resource version or a later version. The watch cache delays its response until it has
    /// reached the version.
    NotOlderThan(String),
    /// The newest resource version of the objects.
    Newest,
}

/// Part of a list that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paging<'a> {
    /// The whole list, in one response.
    Whole,
    /// The first page of the list.
    First,
    /// The page that follows an earlier page. The value is the `continue` token of the earlier
    /// page.
    After(&'a str),
}

impl Resource {
    /// Returns the URL of a list.
    ///
    /// Callers page only lists of [`Age::Any`], and lists of a server that has returned pages. For
    /// [`Age::Any`], a watch cache ignores the limit. A server without a watch cache would
    /// otherwise read all objects in one piece. In other lists, a limit would bypass the watch
    /// cache.
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

    /// Returns the URL of a list of at most one object, at resource version `version` or later.
    pub(super) fn glance(&self, version: &str) -> String {
        self.query()
            .append_pair("limit", "1")
            .append_pair("resourceVersion", version)
            .append_pair("resourceVersionMatch", "NotOlderThan")
            .finish()
    }

    /// Returns the URL of a list of at most one object, without a resource version.
    pub(super) fn sample(&self) -> String {
        self.query().append_pair("limit", "1").finish()
    }

    /// Returns the URL of a watch from `version`, which the server ends after `seconds`.
    pub(super) fn watch(&self, version: &str, seconds: u32) -> String {
        self.watching(seconds)
            .append_pair("resourceVersion", version)
            .finish()
    }

    /// Returns the URL of a watch that begins with the newest list (a streamed list).
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

/// Builds a GET request for a URL. Its `Accept` headers allow gzip, and protobuf if configured.
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

/// Format of the objects in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Protobuf,
}

impl Format {
    /// Returns the format that the header `Content-Type` names. Every type except protobuf counts
    /// as JSON.
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

/// A response whose body is read as a stream.
pub(super) struct ResponseStream {
    pub(super) format: Format,
    pub(super) body: Pin<Box<dyn AsyncBufRead + Send>>,
}

impl ResponseStream {
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

/// Decompresses gzip. Yields bytes as soon as they have arrived, before the end of the response.
pub(super) fn unpacked(packed: impl AsyncBufRead + Send) -> impl AsyncBufRead + Send {
    let mut unpacked = GzipDecoder::new(packed);
    unpacked.multiple_members(true);
    BufReader::with_capacity(UNPACKED, unpacked)
}
