//! Entry points for the fuzzer. Each function passes arbitrary bytes to one parser.

/// Parses bytes as a message about a flow.
pub fn flow(bytes: &[u8]) {
    let _ = crate::Flow::decode(bytes);
}
