//! Tests which iptables entries count as leftovers of other modes, and which rules stay after the
//! removal of leftovers.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;

use footprint::{Finder, Footprints, Leftovers, NFTABLES, ReferencedChain};
use iptables::{BUILT_IN, Jump, Table};
use proptest::prelude::*;
use proxy_ipvs::{Config, Rules, Set, Shim};

const UPSTREAM: &str = include_str!("../../proxy-ipvs/tests/iptables-mode/iptables-save");

static MODES: Footprints = &[
    &proxy_ipvs::FOOTPRINT,
    &proxy_iptables::FOOTPRINT,
    &NFTABLES,
];

fn all(saved: &str) -> Leftovers {
    Leftovers::find(Finder::all(MODES), saved)
}

fn beside_the_shim(saved: &str) -> Leftovers {
    proxy_ipvs::beside_the_shim(MODES, saved)
}

fn is_jump_of_the_shim(line: &str) -> bool {
    let mut jumps = proxy_ipvs::FOOTPRINT.jumps.iter().map(Jump::line);
    jumps.any(|jump| jump == line)
}

/// Returns the rules of `saved` that stay after the `iptables-restore` commands in `text`. Panics
/// if a command has no effect.
fn after(saved: &str, text: &str) -> String {
    let table_of = |wanted: &str| {
        let mut table = "";
        text.lines()
            .filter(|line| {
                if let Some(name) = line.strip_prefix('*') {
                    table = name;
                }
                table == wanted
            })
            .collect::<Vec<_>>()
    };
    let (mut left, mut commands) = (String::new(), Vec::new());
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            commands = table_of(name);
        }
        let says = |command: String| commands.contains(&command.as_str());
        let first = line.split(' ').nth(usize::from(line.starts_with("-A")));
        let chain = first.unwrap_or_default().trim_start_matches(':');
        let is_gone = if line.starts_with(':') {
            says(format!("-X {chain}"))
        } else {
            line.starts_with("-A")
                && (says(format!(":{chain} - [0:0]")) || says(line.replacen("-A", "-D", 1)))
        };
        if !is_gone {
            left.push_str(line);
            left.push('\n');
        }
    }
    left
}

fn left_of(saved: &str) -> String {
    after(saved, &all(saved).restore_text())
}

#[test]
fn removing_iptables_mode_keeps_only_the_chains_of_the_kubelet() {
    let left = left_of(UPSTREAM);
    let kube: Vec<_> = left.lines().filter(|line| line.contains("KUBE")).collect();
    assert!(
        kube.len() == 4 && kube.iter().all(|line| line.contains("KUBE-FIREWALL")),
        "{left}"
    );
    assert_eq!(left.matches("COMMIT").count(), 3);
    let found = all(UPSTREAM);
    assert_eq!((found.counts(), found.held().count()), ((18, 12), 0));
    assert!(all(&left).is_empty());
}

#[test]
fn removing_ipvs_mode_leaves_no_rule() {
    for family in proxy::IpFamily::ALL {
        let shim = Shim {
            family,
            filled: Set::all().collect(),
            forbidden_to_node: BTreeSet::new(),
            ranges: proxy_ipvs::Ranges::default(),
        };
        let rules = shim.rules(&Config::default());
        let saved = rules.restore_text(&Rules::default()).replace("-I ", "-A ");
        assert_eq!(all(&saved).counts(), (11, 9));
        assert_eq!(left_of(&saved), "*nat\nCOMMIT\n*filter\nCOMMIT\n");
    }
}

#[test]
fn ipvs_mode_keeps_only_the_iptables_mode_rules_that_both_modes_want() {
    let shim = Shim {
        family: proxy::IpFamily::V4,
        filled: Set::all().collect(),
        forbidden_to_node: BTreeSet::new(),
        ranges: proxy_ipvs::Ranges::default(),
    };
    let rules = shim.rules(&Config::default());
    let installed = Rules::parse(UPSTREAM);
    let found = beside_the_shim(UPSTREAM);
    assert!(found.serve(installed.rules()) && !found.serve(rules.rules()));
    let left = after(UPSTREAM, &found.restore_text());
    let chains: Vec<_> = left
        .lines()
        .filter(|line| line.starts_with(":KUBE"))
        .collect();
    let kept = [
        ":KUBE-FIREWALL ",
        ":KUBE-FORWARD ",
        ":KUBE-PROXY-FIREWALL ",
        ":KUBE-MARK-MASQ ",
        ":KUBE-POSTROUTING ",
        ":KUBE-SERVICES ",
    ];
    assert!(
        chains.len() == kept.len()
            && chains
                .iter()
                .zip(kept)
                .all(|(chain, kept)| chain.starts_with(kept)),
        "{chains:?}"
    );
    // A jump stays only if IPVS mode wants the same jump, or if it belongs to the kubelet.
    let jumps = left.lines().filter(|line| {
        BUILT_IN
            .iter()
            .any(|chain| line.starts_with(&format!("-A {chain} ")))
    });
    assert!(jumps.clone().count() > 4);
    assert!(
        jumps
            .clone()
            .all(|line| is_jump_of_the_shim(line) || line.contains("KUBE-FIREWALL")),
        "{left}"
    );
    assert!(beside_the_shim(&left).is_empty());
    let of_the_shim = rules.restore_text(&Rules::default()).replace("-I ", "-A ");
    assert!(beside_the_shim(&of_the_shim).is_empty());
}

#[test]
fn a_leftover_chain_that_another_program_uses_is_emptied_only_once() {
    let saved = "*nat\n:CNI-X - [0:0]\n:KUBE-NODEPORTS - [0:0]\n-A CNI-X -j KUBE-NODEPORTS\n\
                 -A CNI-X -j KUBE-MARK-MASQ\n-A KUBE-NODEPORTS -j RETURN\nCOMMIT\n";
    let found = beside_the_shim(saved);
    assert_eq!(
        found.restore_text(),
        "*nat\n:KUBE-NODEPORTS - [0:0]\nCOMMIT\n"
    );
    let emptied = saved.replace("-A KUBE-NODEPORTS -j RETURN\n", "");
    assert!(beside_the_shim(&emptied).is_empty());
}

#[test]
fn chains_and_rules_of_other_programs_are_not_leftovers() {
    let foreign = "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\n:KUBE-SERVICES - [0:0]\n-A OUTPUT -j KUBE-SERVICES\nCOMMIT\n\
                   *raw\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n\
                   *filter\n:KUBE-POD-FW-X - [0:0]\n:KUBE-SVC-X - [0:0]\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-POD-FW-X\n\
                   -A INPUT -m comment --comment \"kubernetes -j KUBE-FORWARD\" -j ACCEPT\nCOMMIT\n";
    let found = all(foreign);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(found.restore_text(), "");
}

#[test]
fn a_chain_to_which_another_program_jumps_is_flushed_and_kept() {
    let saved = "*nat\n:CNI-X - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n-A POSTROUTING -j KUBE-MARK-MASQ\n\
                 -A CNI-X -s 10.0.0.1/32 -g KUBE-MARK-MASQ\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n";
    let found = all(saved);
    assert_eq!(
        found.restore_text(),
        "*nat\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n"
    );
    let held: Vec<_> = found.held().collect();
    assert!(
        matches!(&held[..], [one] if one.contains("-A CNI-X -s 10.0.0.1/32 -g KUBE-MARK-MASQ")),
        "{held:?}"
    );
    assert_eq!(found.counts(), (0, 0));
}

#[test]
fn iptables_mode_keeps_only_the_ipvs_mode_rules_that_both_modes_want() {
    let shim = Shim {
        family: proxy::IpFamily::V4,
        filled: Set::all().collect(),
        forbidden_to_node: BTreeSet::new(),
        ranges: proxy_ipvs::Ranges::default(),
    };
    let rules = shim.rules(&Config::default());
    let saved = rules.restore_text(&Rules::default()).replace("-I ", "-A ");
    let beside = |held, saved: &str| {
        Leftovers::find(
            Finder::beside(&proxy_iptables::FOOTPRINT, MODES, held),
            saved,
        )
    };
    let found = beside(ReferencedChain::Keep, &saved);
    let chains: Vec<_> = found.chains().collect();
    let of_ipvs_mode = [
        (Table::Filter, "KUBE-IPVS-FILTER"),
        (Table::Filter, "KUBE-IPVS-OUT-FILTER"),
        (Table::Filter, "KUBE-NODE-PORT"),
        (Table::Filter, "KUBE-SOURCE-RANGES-FIREWALL"),
        (Table::Nat, "KUBE-LOAD-BALANCER"),
        (Table::Nat, "KUBE-NODE-PORT"),
    ];
    assert_eq!(chains, of_ipvs_mode);
    assert_eq!(found.jumps().count(), 5);
    // iptables mode wants all of upstream's rules, so none of them is a leftover.
    assert!(beside(ReferencedChain::Keep, UPSTREAM).is_empty());

    let holds =
        "*filter\n:KUBE-IPVS-FILTER - [0:0]\n-A INPUT -s 9.9.9.9/32 -j KUBE-IPVS-FILTER\nCOMMIT\n";
    assert!(beside(ReferencedChain::Keep, holds).is_empty());
    let insisted = beside(ReferencedChain::Delete, holds).restore_text();
    assert!(insisted.contains("-X KUBE-IPVS-FILTER\n"), "{insisted}");
}

proptest! {
    #[test]
    fn the_search_for_leftovers_never_panics_on_arbitrary_saved_rules(saved in "(\\*nat\n|:KUBE-SVC-A - \\[0:0\\]\n|-A [A-Z \"\\\\-]*\n|.*\n){0,8}") {
        let found = all(&saved);
        let _ = (found.restore_text(), found.held().count(), found.counts());
    }
}
