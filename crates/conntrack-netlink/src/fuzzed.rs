//! Functions for the fuzzer only. Each passes bytes to a parser of external data.

/// Parses bytes as a flow.
pub fn flow(bytes: &[u8]) {
    let _ = crate::Flow::decode(bytes);
}
