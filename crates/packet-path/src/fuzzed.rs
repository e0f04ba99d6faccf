//! Entry points for the fuzzer. Each function passes bytes to a parser of other programs' output.
//! Only the fuzzer uses these functions.

/// Parses rules as `iptables-save` prints them.
pub fn rules(bytes: &[u8]) {
    let saved = String::from_utf8_lossy(bytes);
    let tables = crate::Xtables::of(&saved);
    crate::xtables::read_all(&tables);
}
