//! Entry points for the fuzzer. Each function passes arbitrary bytes to the decoder. No other code
//! may use these functions.

use crate::decode::{self, AnySet};
use crate::{Chain, Element, KernelRule, Name, Set};

/// Names of the tables that this project creates, and of the table in the fuzzing corpus that has
/// every kind of expression.
const TABLES: [&str; 4] = [
    "kube-proxy",
    "kube-proxy-ipvs",
    "kube-proxy-userspace",
    "each",
];

/// Parses bytes as each kind of object, and as a datagram of a subscription.
pub fn message(bytes: &[u8]) {
    let _ = decode::generation(bytes);
    let _ = decode::table(bytes);
    let _ = decode::hooked(bytes);
    for table in TABLES {
        let _ = decode::chain_of(table, bytes);
        let _ = decode::set_of(table, bytes);
        let _ = decode::rule_of(table, bytes);
    }
    let _ = decode::elements_set(bytes);
    let _ = decode::elements(bytes, &mut Vec::new());
    let _ = decode::one_element(bytes);
    let _ = crate::subscription::events(bytes);
}

/// Objects that a fuzz target decoded from one message: at most one of each kind.
#[derive(Debug, Default)]
pub struct Pieces {
    /// A chain, if the message decodes as one.
    pub chain: Option<Chain>,
    /// A set, if the message decodes as one.
    pub set: Option<Set>,
    /// A rule without its anonymous sets, if the message decodes as one.
    pub rule: Option<KernelRule>,
    /// Elements and the name of their set, if the message decodes as elements.
    pub elements: Option<(Name, Vec<Element>)>,
}

/// Decodes a message as each kind of object, for each table in `TABLES`. Used by the fuzz targets
/// of other crates.
pub fn pieces(bytes: &[u8]) -> Pieces {
    let mut elements = Vec::new();
    let is_read = decode::elements(bytes, &mut elements).is_ok();
    let set = TABLES.into_iter().find_map(|table| {
        let found = decode::set_of(table, bytes).ok().flatten()?;
        match found {
            AnySet::Named(found) => Some(found.set),
            AnySet::Anonymous(..) => None,
        }
    });
    let chain = |table| decode::chain_of(table, bytes).ok().flatten();
    let rule = |table| decode::rule_of(table, bytes).ok().flatten();
    let rule = TABLES.into_iter().find_map(rule);
    let rule = rule.map(decode::RuleMessage::found);
    Pieces {
        chain: TABLES.into_iter().find_map(chain),
        set,
        rule,
        elements: decode::elements_set(bytes)
            .ok()
            .filter(|_| is_read)
            .map(|set| (set, elements)),
    }
}
