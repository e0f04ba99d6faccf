//! Tests that rules have the same text as in the output of `nft list ruleset`.

use std::collections::BTreeSet;
use std::fs;

use nftables_netlink::{Family, Nftables, text};

use crate::golden;
use crate::node;

/// Returns the rules in the output of `nft list ruleset`.
fn rules(listing: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in listing.lines() {
        let text = line.trim();
        if text.starts_with("chain ") {
            inside = true;
        } else if text == "}" {
            inside = false;
        } else if inside && !text.starts_with("type ") && !text.starts_with("comment ") {
            found.insert(text.to_owned());
        }
    }
    found
}

fn ours(nftables: &mut Nftables) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for table in nftables.tables(None).unwrap() {
        let rules = nftables.rules(table.family, &table.name).unwrap();
        found.extend(
            rules
                .iter()
                .map(|of| text::rule(table.family, &of.rule, &[])),
        );
    }
    found
}

fn compare(name: &str, ruleset: &str) {
    node::with_rules(ruleset, |nftables| {
        let theirs = rules(&node::nft(&["-y", "list", "ruleset"], ""));
        // Skips long lines, because this crate omits elements of long maps.
        let theirs: BTreeSet<_> = theirs.iter().filter(|of| of.len() < 400).collect();
        let ours = ours(nftables);
        let missing: Vec<_> = theirs
            .into_iter()
            .filter(|of| !ours.contains(*of))
            .collect();
        assert!(missing.is_empty(), "{name}: {missing:#?}\n of {ours:#?}");
    });
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn rules_are_formatted_as_by_nft() {
    for (name, file) in golden::files() {
        compare(&name, &fs::read_to_string(file).unwrap());
    }
    let shim = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../proxy-ipvs/tests/nftables/ruleset"
    );
    compare("shim", &fs::read_to_string(shim).unwrap());
    let flat = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nft/flat.nft");
    compare("flat", &fs::read_to_string(flat).unwrap());
    let userspace = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nft/userspace.nft");
    compare("userspace", &fs::read_to_string(userspace).unwrap());
}

#[test]
fn table_families_are_formatted_as_by_nft() {
    assert_eq!(Family::Inet.name(), "inet");
}
