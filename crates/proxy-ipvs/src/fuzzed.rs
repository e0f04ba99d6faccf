//! Entry points for the fuzzer: one function for each parser of bytes that other programs wrote.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use footprint::Footprints;
use nftables_netlink::fuzzed::pieces;
use proxy::IpFamily;

use crate::leftovers::beside_the_shim;
use crate::native::{Content, HeldChain, forbidden_of, is_of, member};
use crate::rules::Rules;
use crate::shim::native::names;

/// Parses `iptables-save` output: the shim's rules, and other modes' leftovers.
pub fn saved(bytes: &[u8], modes: Footprints) {
    let text = String::from_utf8_lossy(bytes);
    let rules = Rules::parse(&text);
    let _ = Rules::default().differences(&rules);
    let _ = Rules::default().restore_text(&rules);
    let _ = beside_the_shim(modes, &text).restore_text();
}

/// Names of our nftables sets and chains, by IP family.
static NAMES: LazyLock<[BTreeSet<String>; 2]> = LazyLock::new(|| IpFamily::ALL.map(names));

/// Parses an object of the shim's nftables table. If it is an element, tries to decode it as a
/// member of each set.
pub fn object(bytes: &[u8]) {
    let read = pieces(bytes);
    for (family, names) in IpFamily::ALL.into_iter().zip(&*NAMES) {
        let mut content = Content::default();
        if let Some((of, elements)) = &read.elements {
            for set in names.iter().map(|name| &**name).chain([&**of]) {
                for element in elements {
                    let _ = member(set, element, family);
                }
            }
            let keys = elements.iter();
            let forbidden = keys.filter_map(|element| forbidden_of(&element.key, family));
            content.forbidden = forbidden.collect::<BTreeSet<_>>();
        }
        if let Some(set) = &read.set {
            let _ = is_of(&set.name, family);
        }
        let (base, rules) = (
            read.chain.as_ref().and_then(|chain| chain.base),
            read.rule.iter().map(|found| found.rule.clone()).collect(),
        );
        let chain = HeldChain { base, rules };
        content.chains.insert("nat-prerouting".into(), chain);
        let _ = content.lines();
        let _ = content.uncovered(&Content::default(), family);
        let _ = Content::default().changes(&content, family);
    }
}
