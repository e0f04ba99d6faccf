//! What the fuzzer feeds: each parser of bytes that come from outside, as a function of bytes.
//! Nothing else may use it.

/// A flow.
pub fn flow(bytes: &[u8]) {
    let _ = crate::Flow::decode(bytes);
}
