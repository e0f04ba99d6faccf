//! Entry points for the fuzzer, one for each parser of external bytes. Only the fuzzer calls these
//! functions.

use proxy::Kind;

use crate::{address, api, decode, manifests};

/// Splits bytes into a kind, which the first byte encodes, and the remaining bytes.
fn kind(bytes: &[u8]) -> Option<(Kind, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let kind = Kind::ALL.get(usize::from(*first) % Kind::ALL.len())?;
    Some((*kind, rest))
}

/// Decodes JSON as a watch event, a `Status` and an object. The first byte encodes the kind.
pub fn json_event(bytes: &[u8]) {
    if let Some((kind, bytes)) = kind(bytes) {
        let _ = decode::json::event(kind, bytes);
        let _ = decode::json::status(bytes);
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = decode::json::object(kind, text);
        }
    }
}

/// Decodes protobuf as a watch event, a list item and a `Status`. The first byte encodes the kind.
pub fn protobuf_event(bytes: &[u8]) {
    if let Some((kind, bytes)) = kind(bytes) {
        let _ = decode::protobuf::event(kind, bytes);
        let _ = decode::protobuf::item(kind, bytes);
        let _ = decode::protobuf::status(bytes);
    }
}

/// Decodes bytes as a list and as a watch, in JSON and protobuf, in chunks of two sizes. The first
/// byte encodes the kind.
pub fn answer(bytes: &[u8]) {
    if let Some((kind, bytes)) = kind(bytes) {
        api::read_as_anything(kind, bytes);
    }
}

/// Decodes bytes as the content of a manifest file.
pub fn manifests(bytes: &[u8]) {
    manifests::read_as_file(bytes);
}

/// Parses addresses and networks, one in each line.
pub fn addresses(bytes: &[u8]) {
    for text in String::from_utf8_lossy(bytes).lines() {
        let _ = (address::ip(text), address::net(text));
    }
}

/// Parses bytes as a kubeconfig, and their first line as the URL of a server and of a proxy.
pub fn kubeconfig(bytes: &[u8]) {
    api::read_as_kubeconfig(bytes);
}
