//! What the fuzzer feeds: each parser of bytes that come from outside, as a function of bytes.
//! Nothing else may use it.

/// Rules as `iptables-save` prints them.
pub fn rules(bytes: &[u8]) {
    let saved = String::from_utf8_lossy(bytes);
    let tables = crate::Xtables::of(&saved);
    crate::xtables::read_all(&tables);
}
