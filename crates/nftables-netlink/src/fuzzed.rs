//! What the fuzzer feeds: each parser of bytes that come from outside, as a function of bytes.
//! Nothing else may use it.

use crate::decode::{self, AnySet};
use crate::{Chain, Element, FoundRule, Name, Rule, Set};

/// Those of the daemon, and the one of the corpus that has each expression.
const TABLES: [&str; 4] = [
    "kube-proxy",
    "kube-proxy-ipvs",
    "kube-proxy-userspace",
    "each",
];

/// An object of each kind, and what a datagram tells.
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

/// What a message may be.
#[derive(Debug, Default)]
pub struct Pieces {
    /// A chain.
    pub chain: Option<Chain>,
    /// A set.
    pub set: Option<Set>,
    /// A rule, without the sets that are its own.
    pub rule: Option<FoundRule>,
    /// Elements, and the set that they are said to be of.
    pub elements: Option<(Name, Vec<Element>)>,
}

/// A message read as one of each kind, whichever table it is of, for those who read what is in a
/// table of theirs.
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
    let rule = TABLES.into_iter().find_map(rule).map(|message| FoundRule {
        handle: message.handle,
        chain: message.chain,
        rule: Rule {
            expressions: message.expressions,
            comment: message.comment,
        },
    });
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
