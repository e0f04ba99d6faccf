//! Encodings of responses, chosen by the request headers `Accept` and `Accept-Encoding`.

use bytes::Bytes;

use crate::protobuf;
use crate::status::Status;

/// Encoding of objects: JSON or protobuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Media {
    Json,
    Protobuf,
}

/// Encodings of a response that a client accepts: media type, and content coding (gzip).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcceptedEncodings {
    pub(crate) media: Media,
    pub(crate) coding: Coding,
}

/// Content coding of a response: uncompressed or gzip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Identity,
    Gzip,
}

impl AcceptedEncodings {
    /// Chooses the encodings for a request by its headers `Accept` and `Accept-Encoding`. An absent
    /// header is an empty string.
    ///
    /// # Errors
    ///
    /// Returns 406 if the client accepts no supported encoding.
    pub(crate) fn negotiate(accept: &str, encodings: &str) -> Result<Self, Status> {
        let media = Media::negotiate(accept).ok_or_else(|| Status::not_acceptable(accept))?;
        // Like the real API server, uses gzip wherever the header names it.
        let coding = if encodings.split(',').any(|name| name.trim() == "gzip") {
            Coding::Gzip
        } else {
            Coding::Identity
        };
        Ok(Self { media, coding })
    }
}

impl Media {
    pub(crate) const ALL: [Self; 2] = [Self::Json, Self::Protobuf];

    /// Returns the `Content-Type` of a response that is not a watch.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// Returns the `Content-Type` of a watch response.
    pub(crate) fn of_watch(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    /// Returns the supported media type that the client prefers by the quality values (`q`) in
    /// `Accept`.
    fn negotiate(accept: &str) -> Option<Self> {
        if accept.is_empty() {
            return Some(Self::Json);
        }
        let mut ranges: Vec<_> = accept.split(',').filter_map(Range::parse).collect();
        ranges.sort_by(|a, b| b.quality.total_cmp(&a.quality));
        ranges
            .iter()
            .find_map(|range| Self::ALL.into_iter().find(|media| range.is_met_by(*media)))
    }

    /// Encodes a `Status` as the body of an error response.
    pub(crate) fn status(self, status: &Status) -> Bytes {
        match self {
            Self::Json => status.to_json().to_string().into(),
            Self::Protobuf => protobuf::status(&status.to_json()).into(),
        }
    }

    /// Appends a watch event of type `what` to `out`. `object` is encoded as in a single-object
    /// response.
    pub(crate) fn event(self, what: &str, object: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Json => {
                for part in [
                    br#"{"type":""#,
                    what.as_bytes(),
                    br#"","object":"#,
                    object,
                    b"}\n",
                ] {
                    out.extend_from_slice(part);
                }
            }
            Self::Protobuf => protobuf::event(what, object, out),
        }
    }

    /// Returns an encoded watch event of type `ERROR` with this status.
    pub(crate) fn error(self, status: &Status) -> Bytes {
        let mut out = Vec::new();
        self.event("ERROR", &self.status(status), &mut out);
        out.into()
    }
}

/// Entry of an `Accept` header, such as `application/json;q=0.9`.
struct Range<'a> {
    name: &'a str,
    parameters: Vec<&'a str>,
    quality: f64,
}

impl<'a> Range<'a> {
    /// Parses an entry of the header. Returns `None` if its quality value (`q`) is 0 or invalid.
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let name = parts.next()?;
        let (mut parameters, mut quality) = (Vec::new(), 1.0);
        for part in parts {
            match part.strip_prefix("q=") {
                Some(value) => quality = value.parse().ok()?,
                None => parameters.push(part),
            }
        }
        (quality > 0.0).then_some(Self {
            name,
            parameters,
            quality,
        })
    }

    fn is_met_by(&self, media: Media) -> bool {
        // For a Table, which kubectl requests in JSON, the server returns the object itself. It
        // rejects requests for other transformations.
        let is_known = |parameter: &&str| match parameter.split_once('=') {
            Some(("as", form)) => form == "Table" && media == Media::Json,
            Some(("stream", what)) => what == "watch",
            _ => true,
        };
        (self.name == media.content_type() || matches!(self.name, "application/*" | "*/*"))
            && self.parameters.iter().all(is_known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_acceptable_media_type_is_chosen() {
        for json in [
            "",
            "*/*",
            "application/*",
            "application/json",
            "application/json, application/vnd.kubernetes.protobuf",
            "application/vnd.kubernetes.protobuf;q=0.5,application/json",
            "application/vnd.kubernetes.protobuf;q=0,application/json",
            "application/vnd.kubernetes.protobuf;as=Table, application/json",
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
            "application/json;stream=watch",
            "application/cbor, application/json",
        ] {
            assert_eq!(Media::negotiate(json), Some(Media::Json), "{json:?}");
        }
        for protobuf in [
            "application/vnd.kubernetes.protobuf",
            "application/vnd.kubernetes.protobuf;stream=watch",
            "application/vnd.kubernetes.protobuf, */*",
            "application/vnd.kubernetes.protobuf,application/json",
            "application/json;q=0.9,application/vnd.kubernetes.protobuf",
        ] {
            assert_eq!(
                Media::negotiate(protobuf),
                Some(Media::Protobuf),
                "{protobuf:?}"
            );
        }
        for none in [
            "text/html",
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            "application/json;stream=lines",
        ] {
            assert_eq!(Media::negotiate(none), None, "{none:?}");
        }
    }

    #[test]
    fn gzip_is_found_among_accepted_encodings() {
        for (encodings, coding) in [
            ("", Coding::Identity),
            ("gzip", Coding::Gzip),
            ("br, gzip", Coding::Gzip),
            ("deflate", Coding::Identity),
        ] {
            let accepted =
                AcceptedEncodings::negotiate("", encodings).map(|accepted| accepted.coding);
            assert_eq!(accepted, Ok(coding), "{encodings}");
        }
    }
}
