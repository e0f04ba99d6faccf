//! What the fuzzer feeds: each parser of bytes that come from outside, as a function of bytes.
//! Nothing else may use it.

use proxy::Kind;

use crate::{address, api, decode, manifests};

/// The kind that the first byte stands for, and the other bytes.
fn kind(bytes: &[u8]) -> Option<(Kind, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let kind = Kind::ALL.get(usize::from(*first) % Kind::ALL.len())?;
    Some((*kind, rest))
}

/// An event of a watch in JSON, behind a byte for the kind.
pub fn json_event(bytes: &[u8]) {
    if let Some((kind, bytes)) = kind(bytes) {
        let _ = decode::json::event(kind, bytes);
        let _ = decode::json::status(bytes);
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = decode::json::object(kind, text);
        }
    }
}

/// An event of a watch in protobuf, behind a byte for the kind.
pub fn protobuf_event(bytes: &[u8]) {
    if let Some((kind, bytes)) = kind(bytes) {
        let _ = decode::protobuf::event(kind, bytes);
        let _ = decode::protobuf::item(kind, bytes);
        let _ = decode::protobuf::status(bytes);
    }
}

/// A list and a watch, in both forms and in pieces, behind a byte for the kind.
pub fn answer(bytes: &[u8]) {
    if let Some((kind, bytes)) = kind(bytes) {
        api::read_as_anything(kind, bytes);
    }
}

/// A file of manifests.
pub fn manifests(bytes: &[u8]) {
    manifests::read_as_file(bytes);
}

/// Addresses and networks, one a line.
pub fn addresses(bytes: &[u8]) {
    for text in String::from_utf8_lossy(bytes).lines() {
        let _ = (address::ip(text), address::net(text));
    }
}

/// A kubeconfig.
pub fn kubeconfig(bytes: &[u8]) {
    api::read_as_kubeconfig(bytes);
}
