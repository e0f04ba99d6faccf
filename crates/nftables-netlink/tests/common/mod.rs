//! Helpers for tests on the running kernel.

#![allow(dead_code, reason = "not each test uses all of it")]
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use nftables_netlink::{Change, Family, Nftables, TableDump, Transaction};

/// Runs a test on its own thread, in a new network namespace. `story` is the test.
pub(crate) fn in_namespace<T: Send>(story: impl FnOnce(Nftables) -> T + Send) -> T {
    namespace::in_namespace(|| story(Nftables::open().unwrap()))
}

/// Runs `nft`, and returns its output.
pub(crate) fn nft(arguments: &[&str]) -> String {
    run("nft", arguments)
}

/// Loads a ruleset with `nft`.
pub(crate) fn load(rules: &str) {
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = nft.stdin.take().unwrap();
    input.write_all(rules.as_bytes()).unwrap();
    drop(input);
    assert!(nft.wait().unwrap().success());
}

/// Runs a program, and returns its output. Panics if the program fails.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a transaction that recreates a table from its dump, with the changes in `nft`'s order.
pub(crate) fn making(whole: TableDump) -> Transaction {
    let table = whole.table.unwrap();
    let mut transaction = Transaction {
        family: table.family,
        table: table.name.clone(),
        changes: vec![Change::AddTable(table)],
    };
    let changes = &mut transaction.changes;
    changes.extend(whole.chains.into_iter().map(Change::AddChain));
    for (set, elements) in whole.sets {
        assert_eq!(set.other_flags, 0, "{set:?}");
        let name = set.set.name.clone();
        changes.push(Change::AddSet(set.set));
        changes.push(Change::AddElements(name, elements));
    }
    let rules = whole.rules.into_iter();
    changes.extend(rules.map(|rule| Change::AddRule(rule.chain, rule.rule)));
    transaction
}

/// Returns dumps of all tables in the namespace.
pub(crate) fn read_all(nftables: &mut Nftables) -> Vec<TableDump> {
    let tables = nftables.tables(None).unwrap();
    tables
        .iter()
        .map(|table| nftables.read(table.family, &table.name).unwrap())
        .collect()
}

/// Replaces a dump's generation and handles by fixed values, so that the dumps of a table and of
/// its copy are equal.
pub(crate) fn timeless(mut whole: TableDump) -> TableDump {
    whole.generation = nftables_netlink::Generation(1);
    whole.chain_handles.clear();
    for (set, elements) in &mut whole.sets {
        set.handle = 0;
        elements.sort_by(|a, b| (&a.key, a.ends_interval).cmp(&(&b.key, b.ends_interval)));
    }
    for rule in &mut whole.rules {
        rule.handle = 0;
    }
    whole
}

/// Returns the lines of an `nft` listing, with the elements of each set sorted.
pub(crate) fn in_order(listing: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut elements: Option<String> = None;
    for line in listing.lines() {
        if let Some(rest) = line.trim().strip_prefix("elements = {") {
            elements = Some(rest.to_owned());
        } else if let Some(so_far) = &mut elements {
            so_far.push_str(line.trim());
        } else {
            lines.push(line.to_owned());
        }
        if elements.as_ref().is_some_and(|all| all.ends_with('}')) {
            let all = elements.take().unwrap();
            let mut all: Vec<_> = all
                .trim_end_matches('}')
                .split(',')
                .map(|one| one.trim().to_owned())
                .collect();
            all.sort();
            lines.extend(all);
        }
    }
    lines
}

/// Families whose tables the tests read.
pub(crate) const FAMILIES: [Family; 3] = [Family::Inet, Family::Ip, Family::Ip6];
