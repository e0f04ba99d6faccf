//! Entry points for the fuzzer: each parser of outside input, as a function of bytes. Only the
//! fuzzer may use them.

/// Parses a flow.
pub fn flow(bytes: &[u8]) {
    let _ = crate::Flow::decode(bytes);
}
