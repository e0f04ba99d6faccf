//! Entry points for the fuzzer, which pass bytes to parsers of other programs' output.

/// Parses rules in the format of `iptables-save`.
pub fn rules(bytes: &[u8]) {
    let saved = String::from_utf8_lossy(bytes);
    let tables = crate::Xtables::of(&saved);
    crate::xtables::read_all(&tables);
}
