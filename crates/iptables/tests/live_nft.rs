//! Tests the nft backend of iptables, in tables that also contain rules of nft.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::process::Command;

use inet::IpFamily;
use iptables::{Backend, CountedRule, Iptables, Kind, RuleLine, Table};
use namespace::in_namespace;

fn nft(script: &str) -> String {
    let output = Command::new("nft").args(["-a", script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn iptables() -> Iptables {
    Iptables::choose(Some(Backend::Nft)).unwrap()
}

/// Rules of a kube-proxy: jumps in built-in chains, and its own chains.
const RULES: &str = "*nat\n\
    :KUBE-SERVICES - [0:0]\n\
    :KUBE-POSTROUTING - [0:0]\n\
    -I POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n\
    -A POSTROUTING -m conntrack --ctstate NEW -m comment --comment \"it's \\\"x\\\"\" -j KUBE-SERVICES\n\
    -A POSTROUTING -m addrtype --dst-type LOCAL -j KUBE-SERVICES\n\
    -A PREROUTING -d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SERVICES\n\
    -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"a/b:c\" -m tcp --dport 443 -j RETURN\n\
    -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
    -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n\
    COMMIT\n";
/// A rule that iptables cannot express.
const NATIVE: &str =
    "add rule ip nat POSTROUTING ip saddr 10.9.0.0/16 oifname != \"eth0\" masquerade";

fn rules(iptables: &Iptables, table: Option<Table>) -> Vec<String> {
    let mut rules = Vec::new();
    let mut line = |line: &str| {
        rules.extend(RuleLine::parse(line).map(|rule| rule.text.to_owned()));
    };
    iptables.save_lines(IpFamily::V4, table, &mut line).unwrap();
    rules.sort();
    rules
}

#[test]
#[ignore = "needs root, nf_tables, nft and iptables-nft"]
fn a_table_with_native_nft_rules_is_read() {
    in_namespace(|| {
        let iptables = iptables();
        iptables.restore(IpFamily::V4, RULES).unwrap();
        let before = rules(&iptables, None);
        assert_eq!(before.len(), 7);
        nft(NATIVE);
        let mut wanted = before.clone();
        wanted.push("-A POSTROUTING [nft] -j [nft]".to_owned());
        wanted.sort();
        assert_eq!(rules(&iptables, Some(Table::Nat)), wanted);
        assert_eq!(rules(&iptables, None), wanted);
        let saved = iptables.save(IpFamily::V4).unwrap();
        for line in [
            "*nat",
            ":POSTROUTING ACCEPT [0:0]",
            ":KUBE-SERVICES - [0:0]",
            "COMMIT",
        ] {
            assert!(saved.lines().any(|each| each == line), "{line}: {saved}");
        }
        // After nft's rule is deleted, iptables lists the same rules as before that rule was added.
        let listed = nft("list chain ip nat POSTROUTING");
        let native = listed.lines().find(|line| line.contains("10.9.0.0"));
        let handle = native.unwrap().rsplit(' ').next().unwrap();
        nft(&format!("delete rule ip nat POSTROUTING handle {handle}"));
        assert_eq!(rules(&iptables, None), before);
    });
}

#[test]
#[ignore = "needs root, nf_tables, nft and iptables-nft"]
fn counters_are_read_despite_native_nft_rules() {
    in_namespace(|| {
        let iptables = iptables();
        iptables.restore(IpFamily::V4, RULES).unwrap();
        nft(NATIVE);
        let mut counted = 0;
        let mut line = |line: &str| {
            if let Some(CountedRule { rule, packets }) = CountedRule::parse(line) {
                assert_eq!(packets, 0);
                assert!(!rule.text.contains(" -c "), "{}", rule.text);
                counted += 1;
            }
        };
        iptables
            .save_counted(IpFamily::V4, Some(Table::Nat), &mut line)
            .unwrap();
        assert_eq!(counted, 8);
    });
}

#[test]
#[ignore = "needs root, nf_tables, nft and iptables-nft"]
fn a_native_nft_rule_in_a_kube_proxy_chain_is_marked() {
    in_namespace(|| {
        let iptables = iptables();
        iptables.restore(IpFamily::V4, RULES).unwrap();
        nft("add rule ip nat KUBE-SERVICES ct state vmap { established : accept }");
        let rules = rules(&iptables, None);
        let native = "-A KUBE-SERVICES [nft] -j [nft]";
        assert!(rules.iter().any(|rule| rule == native), "{rules:?}");
        assert_eq!(rules.len(), 8);
    });
}

#[test]
#[ignore = "needs root, nf_tables, nft and iptables-nft"]
fn rules_that_iptables_cannot_print_do_not_hide_their_table() {
    in_namespace(|| {
        let iptables = iptables();
        iptables.restore(IpFamily::V4, RULES).unwrap();
        let before = rules(&iptables, None).len();
        // iptables fails to list this rule, and its error does not name the rule's chain.
        let unknown = "meta priority set 1:2";
        nft("add table ip mangle");
        nft("add chain ip mangle OUTPUT { type route hook output priority mangle; }");
        nft(&format!("add rule ip mangle OUTPUT {unknown}"));
        nft(&format!("add rule ip nat POSTROUTING {unknown}"));
        let found = rules(&iptables, None);
        assert_eq!(found.len(), before + 2, "{found:?}");
        for chain in ["OUTPUT", "POSTROUTING"] {
            let native = format!("-A {chain} [nft] -j [nft]");
            assert!(found.contains(&native), "{found:?}");
        }
        // iptables cannot delete a rule behind the nft rule that the next line adds. The error
        // names the next step for the operator.
        nft("add rule ip nat PREROUTING meta cpu 9 accept");
        let behind =
            "*nat\n-A PREROUTING -j KUBE-SERVICES\n-D PREROUTING -j KUBE-SERVICES\nCOMMIT\n";
        let error = iptables.restore(IpFamily::V4, behind).unwrap_err();
        assert_eq!(error.kind(), Kind::Unreadable);
        assert!(error.to_string().contains("nft list ruleset"), "{error}");
        nft("flush chain ip nat PREROUTING");
        let before = before - 1;
        // Creates more chains with nft rules than the number of processes that may list one table.
        for number in 0..12 {
            nft(&format!("add chain ip nat own{number}"));
            nft(&format!("add rule ip nat own{number} {unknown}"));
            nft(&format!("add chain ip nat KUBE-SVC-{number}"));
            nft(&format!(
                "add rule ip nat KUBE-SVC-{number} ct state vmap {{ invalid : drop }}"
            ));
        }
        let found = rules(&iptables, None);
        assert_eq!(found.len(), before + 2 + 24, "{found:?}");
        let kept = "-A KUBE-POSTROUTING -j MASQUERADE --random-fully";
        assert!(found.iter().any(|rule| rule == kept), "{found:?}");
    });
}

#[test]
#[ignore = "needs root, nf_tables, nft and iptables-nft"]
fn rules_of_an_unprintable_base_chain_are_read() {
    in_namespace(|| {
        let iptables = iptables();
        iptables.restore(IpFamily::V4, RULES).unwrap();
        nft("add chain ip nat mine { type nat hook prerouting priority -99; }");
        nft("add rule ip nat mine ip daddr 10.1.2.3 jump KUBE-SERVICES");
        let rules = rules(&iptables, None);
        let jump = "-A mine [nft] -j KUBE-SERVICES";
        assert!(rules.iter().any(|rule| rule == jump), "{rules:?}");
        assert_eq!(rules.len(), 8);
    });
}

#[test]
#[ignore = "needs root, nf_tables, nft and iptables-nft"]
fn the_error_names_a_base_chain_with_an_unusual_priority() {
    in_namespace(|| {
        nft("add table ip filter");
        nft("add chain ip filter FORWARD { type filter hook forward priority 10; }");
        let iptables = iptables();
        assert_eq!(iptables.taken_chains(IpFamily::V4).unwrap().len(), 1);
        let text = "*filter\n:KUBE-X - [0:0]\n-A FORWARD -j KUBE-X\nCOMMIT\n";
        let error = iptables.restore(IpFamily::V4, text).unwrap_err();
        assert_eq!(error.kind(), Kind::ChainTaken);
        let said = error.to_string();
        for part in [
            "chain FORWARD of table ip filter",
            "priority 10",
            "nft list chain",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert!(!said.contains("modprobe"), "{said}");
    });
}

/// Checks the removal of rules that follow an unreadable rule. One of the rules has a comment with
/// quotation marks. The first attempt writes a table before it fails.
#[test]
#[ignore = "needs root, nf_tables, nft and iptables-nft"]
fn rules_after_an_unreadable_rule_are_removed() {
    in_namespace(|| {
        let iptables = iptables();
        let filter = "*filter\n:KUBE-X - [0:0]\n-A INPUT -j KUBE-X\nCOMMIT\n";
        iptables.restore(IpFamily::V4, filter).unwrap();
        iptables.restore(IpFamily::V4, RULES).unwrap();
        nft("insert rule ip nat POSTROUTING meta mark set ct mark");
        let goes = |rule: &&String| {
            rule.starts_with("-A POSTROUTING") && !rule.contains("[nft]")
                || rule.starts_with("-A INPUT")
        };
        let all = rules(&iptables, None);
        let doomed: Vec<&String> = all.iter().filter(goes).collect();
        assert_eq!(doomed.len(), 4, "{all:?}");
        let delete = |table: &str| {
            let of_table = doomed
                .iter()
                .filter(|rule| rule.starts_with("-A INPUT") == (table == "filter"));
            let lines = of_table.map(|rule| rule.replacen("-A", "-D", 1) + "\n");
            format!("*{table}\n{}COMMIT\n", lines.collect::<String>())
        };
        // The first attempt writes the first table before the program refuses the second table.
        let text = delete("filter") + &delete("nat");
        iptables.restore(IpFamily::V4, &text).unwrap();
        let left = rules(&iptables, None);
        let expected: Vec<&String> = all.iter().filter(|rule| !goes(rule)).collect();
        assert_eq!(left.iter().collect::<Vec<_>>(), expected);
        assert!(nft("list chain ip nat POSTROUTING").contains("meta mark set ct mark"));
    });
}

#[test]
#[ignore = "needs root, nf_tables, nft and iptables-nft"]
fn the_error_names_a_kube_proxy_chain_that_nft_made_a_base_chain() {
    in_namespace(|| {
        nft("add table ip nat");
        nft("add chain ip nat KUBE-SERVICES { type nat hook prerouting priority -90; }");
        let iptables = iptables();
        let taken = iptables.taken_chains(IpFamily::V4).unwrap();
        let names: Vec<_> = taken
            .iter()
            .map(|of| (&*of.chain, of.is_built_in))
            .collect();
        assert_eq!(names, [("KUBE-SERVICES", false)]);
        let error = iptables.restore(IpFamily::V4, RULES).unwrap_err();
        // nft blocks only this chain. iptables can still write all other rules.
        assert!(!error.kind().is_general(), "{error}");
        let said = error.to_string();
        for part in [
            "chain KUBE-SERVICES of table ip nat",
            "hook prerouting, priority -90",
            "nft rename chain ip nat KUBE-SERVICES",
        ] {
            assert!(said.contains(part), "{said}");
        }
        let others = "*nat\n:KUBE-X - [0:0]\n-A POSTROUTING -j KUBE-X\nCOMMIT\n";
        iptables.restore(IpFamily::V4, others).unwrap();
    });
}

#[test]
#[ignore = "needs root, nf_tables, nft and iptables-nft"]
fn the_error_names_a_dormant_table() {
    in_namespace(|| {
        let iptables = iptables();
        iptables.restore(IpFamily::V4, RULES).unwrap();
        let dormant = || iptables.dormant_tables(IpFamily::V4).unwrap();
        assert!(dormant().is_empty());
        nft("add table ip nat { flags dormant; }");
        nft("add table ip others { flags dormant; }");
        let told: Vec<String> = dormant().iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        let command = told[0].split('`').find(|part| part.starts_with("nft "));
        assert!(told[0].starts_with("table ip nat is dormant"), "{told:?}");
        // iptables reads and writes rules as usual. The error contains the nft command that makes
        // the table active again.
        assert_eq!(rules(&iptables, None).len(), 7);
        nft(command.unwrap().trim_start_matches("nft "));
        assert!(dormant().is_empty());
    });
}

#[test]
#[ignore = "needs root, nf_tables, nft and iptables-nft"]
fn built_in_chains_that_iptables_created_are_not_reported_as_chains_of_nft() {
    in_namespace(|| {
        let iptables = iptables();
        let mut declared = 0;
        for table in ["filter", "nat", "mangle", "raw", "security"] {
            let chains: &[&str] = match table {
                "raw" => &["PREROUTING", "OUTPUT"],
                "nat" => &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"],
                "mangle" => &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
                _ => &["INPUT", "FORWARD", "OUTPUT"],
            };
            declared += chains.len();
            let rules: Vec<String> = chains
                .iter()
                .map(|chain| format!("-A {chain} -j ACCEPT\n"))
                .collect();
            let text = format!("*{table}\n{}COMMIT\n", rules.concat());
            iptables.restore(IpFamily::V4, &text).unwrap();
        }
        nft("add table ip other");
        nft("add chain ip other FORWARD { type filter hook forward priority 7; }");
        assert!(iptables.taken_chains(IpFamily::V4).unwrap().is_empty());
        for table in ["filter", "nat", "mangle", "raw", "security"] {
            nft(&format!(
                "add rule ip {table} OUTPUT ct state vmap {{ new : accept }}"
            ));
        }
        // Only declarations of built-in chains have a policy, so both numbers are equal.
        let saved = iptables.save(IpFamily::V4).unwrap();
        assert_eq!(saved.matches(" ACCEPT [0:0]").count(), declared, "{saved}");
    });
}
