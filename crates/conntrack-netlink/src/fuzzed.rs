//! Entry points for the fuzzer: each parser of external bytes as a function of bytes. Other code
//! must not use them.

/// Parses bytes as a flow.
pub fn flow(bytes: &[u8]) {
    let _ = crate::Flow::decode(bytes);
}
