//! Entry points for the fuzzer: each parser of foreign bytes, as a function of bytes. No other code
//! may use these functions.

/// Parses rules as `iptables-save` prints them.
pub fn rules(bytes: &[u8]) {
    let saved = String::from_utf8_lossy(bytes);
    let tables = crate::Xtables::of(&saved);
    crate::xtables::read_all(&tables);
}
