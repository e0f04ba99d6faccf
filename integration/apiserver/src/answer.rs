//! Builds HTTP responses: headers, bodies and gzip compression.

use std::convert::Infallible;
use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{Stream, StreamExt as _, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::Value;

use crate::list::List;
use crate::media::{AcceptedEncodings, Coding, Media};
use crate::object::Object;
use crate::status::Status;

/// Size in bytes above which the server compresses a body (`defaultGzipThresholdBytes` of the real
/// API server).
const WORTH_COMPRESSING: usize = 128 << 10;
/// Lowest gzip level of zlib-rs that compresses as well as Go's level 1, which the real API server
/// uses (`defaultGzipContentEncodingLevel`).
const LEVEL: Compression = Compression::new(2);
/// Approximate size of a chunk of compressed data, in bytes.
const CHUNK: usize = 16 << 10;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Returns a response with an object. Compresses a large object if the client accepts gzip.
pub(crate) fn object(code: u16, object: &Object, accepted: AcceptedEncodings) -> Response<Body> {
    let bytes = object.bytes(accepted.media).clone();
    if bytes.len() > WORTH_COMPRESSING && accepted.coding == Coding::Gzip {
        let all = stream::iter([bytes]);
        return compressed(accepted.media.content_type(), all, CHUNK);
    }
    whole(code, accepted.media.content_type(), bytes)
}

pub(crate) fn list(list: List, accepted: AcceptedEncodings) -> Response<Body> {
    if list.length > WORTH_COMPRESSING && accepted.coding == Coding::Gzip {
        let chunks = stream::iter(list.chunks);
        return compressed(accepted.media.content_type(), chunks, CHUNK);
    }
    streamed(accepted.media.content_type(), stream::iter(list.chunks))
}

/// Returns a watch response with compressed events. Flushes the compressor after each chunk of
/// events, so that a client can decompress the chunk immediately.
pub(crate) fn compressed_events(
    events: impl Stream<Item = Bytes> + Send + 'static,
    media: Media,
) -> Response<Body> {
    compressed(media.of_watch(), events, 0)
}

/// Returns a watch response with uncompressed events.
pub(crate) fn events(
    events: impl Stream<Item = Bytes> + Send + 'static,
    media: Media,
) -> Response<Body> {
    streamed(media.of_watch(), events)
}

pub(crate) fn status(status: &Status, media: Media) -> Response<Body> {
    let mut response = whole(status.code, media.content_type(), media.status(status));
    if let Some(seconds) = status.retry_after() {
        retry_after(&mut response, seconds);
    }
    response
}

/// Returns a watch response with status 200 and a single `ERROR` event, which contains `status`.
pub(crate) fn error_event(status: &Status, media: Media) -> Response<Body> {
    whole(200, media.of_watch(), media.error(status))
}

pub(crate) fn json(code: u16, body: &Value) -> Response<Body> {
    whole(code, Media::Json.content_type(), body.to_string().into())
}

/// Returns an error response in plain text, like those of the filters in front of a real API
/// server's handlers (such as the filter for priority and fairness).
pub(crate) fn refusal(code: u16, retry_after_s: Option<u64>) -> Response<Body> {
    let text = Bytes::from_static(b"refused, as told\n");
    let mut response = whole(code, "text/plain; charset=utf-8", text);
    if let Some(seconds) = retry_after_s {
        retry_after(&mut response, seconds);
    }
    response
}

fn retry_after(response: &mut Response<Body>, seconds: u64) {
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
}

/// Compresses a body and sends it in parts of at least `least` bytes. If `least` is 0, compresses
/// and sends each chunk separately.
fn compressed(
    content: &'static str,
    chunks: impl Stream<Item = Bytes> + Send + 'static,
    least: usize,
) -> Response<Body> {
    let encoder = GzEncoder::new(Vec::with_capacity(CHUNK), LEVEL);
    let state = (Box::pin(chunks), Some(encoder), least);
    let packed = stream::unfold(state, async |(mut chunks, mut encoder, least)| {
        // After the last chunk, the encoder writes gzip's trailer.
        while let Some(open) = &mut encoder
            && let Some(chunk) = chunks.next().await
        {
            open.write_all(&chunk).expect("a Vec takes all");
            if least == 0 {
                open.flush().expect("a Vec takes all");
            }
            if open.get_ref().len() >= least {
                let piece = std::mem::take(open.get_mut());
                return Some((Bytes::from(piece), (chunks, encoder, least)));
            }
        }
        let rest = encoder.take()?.finish().expect("a Vec takes all");
        Some((rest.into(), (chunks, encoder, least)))
    });
    let mut response = streamed(content, packed);
    let headers = response.headers_mut();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
}

fn streamed(
    content: &'static str,
    chunks: impl Stream<Item = Bytes> + Send + 'static,
) -> Response<Body> {
    let frames = chunks.map(|chunk| Ok::<_, Infallible>(Frame::data(chunk)));
    response(200, content, StreamBody::new(frames).boxed_unsync())
}

fn whole(code: u16, content: &'static str, body: Bytes) -> Response<Body> {
    response(code, content, Full::new(body).boxed_unsync())
}

fn response(code: u16, content: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}
