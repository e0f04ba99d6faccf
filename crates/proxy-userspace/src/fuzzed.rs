//! Entry points for the fuzzer: one function for each parser of bytes from other programs. No other
//! code may use these functions.

use footprint::Footprints;
use nftables_netlink::fuzzed::pieces;
use nftables_netlink::{Generation, KernelSet, TableDump};
use proxy::IpFamily;

use crate::config::Config;
use crate::redirect::iptables::SaveReader;
use crate::redirect::nftables::layout::{maps, table};
use crate::redirect::nftables::read;

/// Parses bytes as the output of `iptables-save`. Looks for redirects, and for leftovers of these
/// modes.
pub fn saved(bytes: &[u8], modes: Footprints) {
    let text = String::from_utf8_lossy(bytes);
    let config = Config {
        modes,
        ..Config::default()
    };
    for family in IpFamily::ALL {
        let mut saved = SaveReader::new(family, &config);
        for line in text.lines() {
            saved.line(line);
        }
        let _ = saved.finish();
    }
}

/// Parses bytes as a chain, rule or element of the nf\_tables table of redirects. Adds an element
/// to every map.
pub fn object(bytes: &[u8]) {
    let read = pieces(bytes);
    let elements = read.elements.map(|(_, elements)| elements);
    let elements = elements.unwrap_or_default();
    for family in IpFamily::ALL {
        let of_map = |set| KernelSet {
            handle: 1,
            set,
            other_flags: 0,
        };
        let sets = maps(family).map(|set| (of_map(set), elements.clone()));
        let whole = TableDump {
            counters: Vec::new(),
            generation: Generation(1),
            table: Some(table(family)),
            chains: read.chain.iter().cloned().collect(),
            chain_handles: <_>::default(),
            sets: sets.collect(),
            rules: read.rule.iter().cloned().collect(),
        };
        let _ = read::parse(family, &Config::default(), &whole);
    }
}
