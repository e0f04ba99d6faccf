//! What the fuzzer feeds: each parser of bytes that come from outside, as a function of bytes.
//! Nothing else may use it.

use crate::decode;

/// An object of each kind, and what a datagram tells. Tables are those of the daemon, and the one of
/// the corpus that has each expression.
pub fn message(bytes: &[u8]) {
    let _ = decode::generation(bytes);
    let _ = decode::table(bytes);
    let _ = decode::hooked(bytes);
    let own = ["kube-proxy", "kube-proxy-ipvs", "kube-proxy-userspace"];
    for table in own.into_iter().chain(["each"]) {
        let _ = decode::chain_of(table, bytes);
        let _ = decode::set_of(table, bytes);
        let _ = decode::rule_of(table, bytes);
    }
    let _ = decode::elements_set(bytes);
    let _ = decode::elements(bytes, &mut Vec::new());
    let _ = decode::one_element(bytes);
    let _ = crate::subscription::events(bytes);
}
