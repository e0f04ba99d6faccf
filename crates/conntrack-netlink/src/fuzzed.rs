//! Entry points for the fuzzer: for each parser of external bytes, a function that takes bytes. No
//! other code may use these functions.

/// Parses bytes as a flow.
pub fn flow(bytes: &[u8]) {
    let _ = crate::Flow::decode(bytes);
}
