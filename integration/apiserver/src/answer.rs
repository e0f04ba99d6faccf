//! HTTP responses: headers, bodies and their compression.

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
use crate::media::{Accepted, Coding, Media};
use crate::object::Object;
use crate::status::Status;

/// Minimum size of a compressed body, in bytes (`defaultGzipThresholdBytes` of the real server).
const WORTH_COMPRESSING: usize = 128 << 10;
/// The lowest level of zlib-rs that compresses as well as Go's level 1, which the real server uses
/// (`defaultGzipContentEncodingLevel`).
const LEVEL: Compression = Compression::new(2);
/// Approximate amount of compressed data in a chunk, in bytes.
const CHUNK: usize = 16 << 10;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Returns the response for an object. Compresses large objects in chunks, like lists.
pub(crate) fn object(code: u16, object: &Object, accepted: Accepted) -> Response<Body> {
    let bytes = object.bytes(accepted.media).clone();
    if bytes.len() > WORTH_COMPRESSING && accepted.coding == Coding::Gzip {
        return compressed(accepted.media, std::iter::once(bytes));
    }
    whole(code, accepted.media.content_type(), bytes)
}

pub(crate) fn list(list: List, accepted: Accepted) -> Response<Body> {
    if list.length > WORTH_COMPRESSING && accepted.coding == Coding::Gzip {
        return compressed(accepted.media, list.chunks);
    }
    streamed(accepted.media.content_type(), stream::iter(list.chunks))
}

/// Returns the compressed events of a watch that begins with a list. Each chunk can be decompressed
/// as soon as it arrives.
pub(crate) fn compressed_events(
    events: impl Stream<Item = Bytes> + Send + 'static,
    media: Media,
) -> Response<Body> {
    let encoder = GzEncoder::new(Vec::with_capacity(CHUNK), LEVEL);
    let state = (Box::pin(events), Some(encoder));
    let packed = stream::unfold(state, async |(mut events, mut encoder)| {
        // The encoder is finished after the last event.
        let open = encoder.as_mut()?;
        let piece = if let Some(piece) = events.next().await {
            open.write_all(&piece).expect("a Vec takes all");
            open.flush().expect("a Vec takes all");
            std::mem::take(open.get_mut())
        } else {
            encoder.take()?.finish().expect("a Vec takes all")
        };
        Some((Bytes::from(piece), (events, encoder)))
    });
    let mut response = streamed(media.of_watch(), packed);
    let headers = response.headers_mut();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
}

/// Returns the uncompressed events of a watch.
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

/// Returns the watch event for an error in the history.
pub(crate) fn error_event(status: &Status, media: Media) -> Response<Body> {
    whole(200, media.of_watch(), media.error(status))
}

pub(crate) fn json(code: u16, body: &Value) -> Response<Body> {
    whole(code, Media::Json.content_type(), body.to_string().into())
}

/// Rejects a request as the filters in front of a real server do.
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

fn compressed(
    media: Media,
    chunks: impl Iterator<Item = Bytes> + Send + 'static,
) -> Response<Body> {
    let chunks = Compressed {
        encoder: Some(GzEncoder::new(Vec::with_capacity(CHUNK), LEVEL)),
        chunks,
    };
    let mut response = streamed(media.content_type(), stream::iter(chunks));
    let headers = response.headers_mut();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
}

struct Compressed<I> {
    /// Encoder, or `None` after the last chunk.
    encoder: Option<GzEncoder<Vec<u8>>>,
    chunks: I,
}

impl<I: Iterator<Item = Bytes>> Iterator for Compressed<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        while let Some(encoder) = &mut self.encoder {
            let Some(chunk) = self.chunks.next() else {
                break;
            };
            encoder.write_all(&chunk).expect("a Vec takes all");
            if encoder.get_ref().len() >= CHUNK {
                let full = std::mem::replace(encoder.get_mut(), Vec::with_capacity(CHUNK));
                return Some(full.into());
            }
        }
        let rest = self.encoder.take()?.finish().expect("a Vec takes all");
        Some(rest.into())
    }
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
