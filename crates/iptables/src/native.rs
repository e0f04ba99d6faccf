//! Reads tables in which nft has created objects that `iptables-save` cannot print.
//!
//! Two kinds of objects are missing from the output of `iptables-nft-save`:
//!
//! * If a table contains a rule that iptables cannot express, the program prints only a comment for
//!   the whole table, and succeeds. So this module reads such a table chain by chain. A process of
//!   `iptables-nft-restore` lists the chains that contain only iptables rules. This module reads
//!   all other chains directly from the kernel.
//! * The program omits base chains with an unusual hook or priority. This module reads such chains
//!   from the kernel, too.
//!
//! Source: iptables 1.8.9, `iptables/nft.c` (`nft_is_table_compatible`, `nft_rule_list_save`),
//! `iptables/xtables-save.c`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use inet::IpFamily;
use netlink_batch::Error;

use crate::error::{IptablesError, failure};
use crate::nft::kernel_rules::{Hook, KernelChain, KernelReader, ListedRule};
use crate::obstacles::{TakenChain, nft_name};
use crate::program::{Limit, Program};
use crate::saved::Line;

/// Prefix of the chains that kube-proxies and kubelets create. These chains normally contain only
/// iptables rules.
pub(crate) const PREFIX: &str = "KUBE-";
/// Number of attempts to read a table that changes during each attempt.
const ATTEMPTS: usize = 5;
/// Maximum number of processes for one table. Each process finds at most one chain with nft rules.
const MAX_PROCESSES: usize = 8;

/// The part of a table that `iptables-save` has not printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnprintedPart {
    /// The whole table: the program printed no line of it.
    Whole,
    /// Base chains that are not built-in chains of iptables.
    BaseChains,
    /// The part of the table that follows the last line of the output.
    Rest,
}

/// Tables and chains that `iptables-nft-save` has printed so far.
#[derive(Debug, Default)]
pub(crate) struct PrintedTables {
    tables: BTreeSet<String>,
    /// The table whose output has begun but not ended, if any.
    open: Option<String>,
    /// Tables with base chains that `iptables-nft-save` did not print.
    partial: BTreeSet<String>,
    /// Chains of the open table whose rules have all been passed to the caller.
    told: BTreeSet<String>,
    /// The chain whose rules are being read, and its rules so far.
    chain: String,
    held: Vec<String>,
}

impl PrintedTables {
    /// Records an output line of `iptables-nft-save`.
    pub(crate) fn add(&mut self, line: &str) {
        if let Some(comment) = line.strip_prefix('#') {
            // iptables prints "# Table `nat' contains incompatible base-chains, use 'nft' tool to
            // list them."
            if comment.contains("incompatible base-chains")
                && let Some((_, rest)) = comment.split_once('`')
                && let Some((table, _)) = rest.split_once('\'')
            {
                self.partial.insert(table.to_owned());
            }
            return;
        }
        match Line::parse(line) {
            Some(Line::Table(name)) => self.open = Some(name.to_owned()),
            Some(Line::Commit) => self.tables.extend(self.open.take()),
            _ => {}
        }
    }

    /// Reads an output line. Passes the lines of a chain to `tell` only once the chain is complete,
    /// because the program may end after any line.
    pub(crate) fn pass(&mut self, line: &str, tell: &mut dyn FnMut(&str)) {
        let chain = Line::chain_of_rule(line);
        if chain != Some(&self.chain) && !self.chain.is_empty() {
            self.held.drain(..).for_each(|line| tell(&line));
            self.told.insert(std::mem::take(&mut self.chain));
        }
        self.add(line);
        let Some(chain) = chain else {
            if self.open.is_none() {
                self.told.clear();
            }
            return tell(line);
        };
        if self.chain.is_empty() {
            chain.clone_into(&mut self.chain);
        }
        self.held.push(line.to_owned());
    }

    /// Returns the table whose output has no end (`COMMIT`), if any.
    pub(crate) fn cut_short(&self) -> Option<&str> {
        self.open.as_deref()
    }

    /// Returns the parts of the `existing` tables that the program did not print.
    pub(crate) fn gaps(&self, existing: &[&'static str]) -> Vec<(&'static str, UnprintedPart)> {
        let gap = |table: &'static str| {
            if self.open.as_deref() == Some(table) {
                Some((table, UnprintedPart::Rest))
            } else if !self.tables.contains(table) {
                Some((table, UnprintedPart::Whole))
            } else if self.partial.contains(table) {
                Some((table, UnprintedPart::BaseChains))
            } else {
                None
            }
        };
        existing.iter().filter_map(|table| gap(table)).collect()
    }
}

/// A function that finds the program `iptables-restore`, which can list single chains (`-S CHAIN`).
type Restore<'a> = &'a (dyn Fn() -> Result<Program, IptablesError> + Sync);

/// Reads the lines of a table that `iptables-save` did not print, and passes them to `line`.
///
/// # Errors
///
/// Fails if the table cannot be read, or keeps changing.
pub(crate) fn read(
    restore: Restore<'_>,
    family: IpFamily,
    printed: &PrintedTables,
    (table, gap): (&'static str, UnprintedPart),
    is_counted: bool,
    limit: Limit,
    line: &mut dyn FnMut(&str),
) -> Result<(), IptablesError> {
    let listing = Listing {
        restore,
        family,
        table,
        is_counted,
        limit,
    };
    let asked = |error: Error| listing.unreadable(error.to_string());
    let Some(mut reader) = KernelReader::open(family).map_err(asked)? else {
        return Ok(());
    };
    for _ in 0..ATTEMPTS {
        let (_, before) = reader.tables().map_err(asked)?;
        let mut chains = reader.chains(table).map_err(asked)?;
        match gap {
            UnprintedPart::Whole => {}
            UnprintedPart::BaseChains => {
                chains.retain(|chain| chain.hook.is_some() && !is_built_in(table, chain));
            }
            UnprintedPart::Rest => chains.retain(|chain| !printed.told.contains(&chain.name)),
        }
        let rules = listing.rules(&chains, &mut reader)?;
        let (_, after) = reader.tables().map_err(asked)?;
        if before != after {
            continue;
        }
        line(&format!("*{table}"));
        for chain in &chains {
            line(&declaration(table, chain));
        }
        for rule in &rules {
            line(rule);
        }
        line("COMMIT");
        return Ok(());
    }
    Err(listing.unreadable("it changes while it is read".to_owned()))
}

/// A table that is read chain by chain.
struct Listing<'a> {
    restore: Restore<'a>,
    family: IpFamily,
    table: &'static str,
    is_counted: bool,
    limit: Limit,
}

impl Listing<'_> {
    /// Returns the rules of `chains`, as `iptables-save` prints them. Lists chains of iptables
    /// rules with iptables, and reads chains with nft rules from the kernel.
    fn rules(
        &self,
        chains: &[KernelChain],
        reader: &mut KernelReader,
    ) -> Result<Vec<String>, IptablesError> {
        let held = |reader: &mut KernelReader, name: &str| {
            let rules = reader.rules(self.table, name);
            rules.map_err(|error| self.unreadable(error.to_string()))
        };
        let mut native: BTreeMap<&str, Vec<ListedRule>> = BTreeMap::new();
        let mut listed: Vec<&str> = Vec::new();
        for chain in chains {
            let name = chain.name.as_str();
            if name.starts_with(PREFIX) && chain.hook.is_none() {
                listed.push(name);
                continue;
            }
            let rules = held(reader, name)?;
            let is_own = chain.hook.is_none() || is_built_in(self.table, chain);
            if is_own && rules.iter().all(|rule| rule.looks_compatible) {
                listed.push(name);
            } else {
                native.insert(name, rules);
            }
        }
        let mut lines = Vec::new();
        for attempt in 1..=MAX_PROCESSES {
            lines.clear();
            let Err((last, error)) = self.list(&listed, &mut lines) else {
                let native = native.values().flatten();
                lines.extend(native.map(|rule| self.line(&rule.text, rule.counted)));
                return Ok(lines);
            };
            let blamed = incompatible_chain(&error).or(last.as_deref());
            let at = blamed.and_then(|blamed| listed.iter().position(|name| *name == blamed));
            let Some(at) = at else {
                return Err(self.unreadable(error.to_string()));
            };
            let name = listed.swap_remove(at);
            native.insert(name, held(reader, name)?);
            if attempt + 1 < MAX_PROCESSES {
                continue;
            }
            // More processes would take too long. So one process lists all remaining chains that
            // iptables can certainly express.
            for name in std::mem::take(&mut listed) {
                let rules = held(reader, name)?;
                let is_sure = |rule: &ListedRule| {
                    rule.looks_compatible && (name.starts_with(PREFIX) || !rule.is_native())
                };
                if rules.iter().all(is_sure) {
                    listed.push(name);
                } else {
                    native.insert(name, rules);
                }
            }
        }
        Err(self.unreadable("too many of its chains hold rules of nft".to_owned()))
    }

    /// Lists the rules of `chains` with one iptables process, and appends them to `lines`.
    ///
    /// # Errors
    ///
    /// Returns the cause. If the program was not killed, also returns the chain that it printed
    /// last. The program ends at a rule that it cannot read, and does not always name the rule's
    /// chain.
    fn list(
        &self,
        chains: &[&str],
        lines: &mut Vec<String>,
    ) -> Result<(), (Option<String>, IptablesError)> {
        if chains.is_empty() {
            return Ok(());
        }
        let program = (self.restore)().map_err(|error| (None, error))?;
        let mut last = None;
        let verbose = if self.is_counted { " -v" } else { "" };
        let mut input = |sink: &mut dyn std::io::Write| {
            writeln!(sink, "*{}", self.table)?;
            for chain in chains {
                writeln!(sink, "-S {chain}{verbose}")?;
            }
            writeln!(sink, "COMMIT")
        };
        let mut output = |source: &mut dyn BufRead| {
            // Stops at a read error. The program then fails, and its exit status shows the failure.
            for line in source.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                if line.starts_with("-A ") {
                    let line = match self.is_counted.then(|| counted(&line)).flatten() {
                        Some(counted) => counted,
                        None => line.into_owned(),
                    };
                    lines.push(line);
                } else if let Some(name) = printed_chain(&line) {
                    last = Some(name.to_owned());
                }
            }
        };
        let arguments = ["--noflush"];
        let result = program.stream(&arguments, Some(&mut input), &mut output, self.limit);
        match result {
            Ok(finished) if finished.status.success() => Ok(()),
            result => {
                let ended = result.as_ref().is_ok_and(|by| by.status.code().is_some());
                let error = failure(&program, result, self.limit.whole, |_| None);
                Err((last.filter(|_| ended), error))
            }
        }
    }

    fn line(&self, text: &str, (packets, bytes): (u64, u64)) -> String {
        if self.is_counted {
            format!("[{packets}:{bytes}] {text}")
        } else {
            text.to_owned()
        }
    }

    fn unreadable(&self, why: String) -> IptablesError {
        IptablesError::Native {
            table: self.table,
            family: nft_name(self.family),
            why,
        }
    }
}

/// Returns the built-in chains of a table, each with name, hook, priority and type.
///
/// Source: iptables 1.8.9, `iptables/nft.c` (`xtables_ipv4`).
pub(crate) fn built_in(
    table: &str,
) -> impl Iterator<Item = (&'static str, (u32, i32, &'static str))> {
    let (hooks, priority): (&[u32], _) = match table {
        "filter" => (&[1, 2, 3], 0),
        "nat" => (&[0, 1, 3, 4], -100),
        "mangle" => (&[0, 1, 2, 3, 4], -150),
        "raw" => (&[0, 3], -300),
        "security" => (&[1, 2, 3], 150),
        _ => (&[], 0),
    };
    let is_nat = table == "nat";
    let is_mangle = table == "mangle";
    hooks.iter().map(move |hook| {
        let name = match hook {
            0 => "PREROUTING",
            1 => "INPUT",
            2 => "FORWARD",
            3 => "OUTPUT",
            _ => "POSTROUTING",
        };
        // Chains for source NAT (hooks input and postrouting) have priority 100 instead of -100.
        let priority = match hook {
            1 | 4 if is_nat => 100,
            _ => priority,
        };
        let kind = match hook {
            _ if is_nat => "nat",
            3 if is_mangle => "route",
            _ => "filter",
        };
        (name, (*hook, priority, kind))
    })
}

pub(crate) fn is_built_in(table: &str, chain: &KernelChain) -> bool {
    chain.hook.as_ref().is_some_and(|hook| {
        let Hook {
            number,
            priority,
            kind,
            drops: _,
        } = hook;
        built_in(table).any(|(name, at)| name == chain.name && at == (*number, *priority, kind))
    })
}

fn declaration(table: &str, chain: &KernelChain) -> String {
    let name = &chain.name;
    match &chain.hook {
        Some(hook) if is_built_in(table, chain) => {
            let policy = if hook.drops { "DROP" } else { "ACCEPT" };
            format!(":{name} {policy} [0:0]")
        }
        _ => format!(":{name} - [0:0]"),
    }
}

/// Returns the chain that iptables cannot list, parsed from an error such as "chain
/// `X' in table `nat' is incompatible".
fn incompatible_chain(error: &IptablesError) -> Option<&str> {
    let IptablesError::Failed { said, .. } = error else {
        return None;
    };
    let (_, rest) = said.split_once("chain `")?;
    let (name, rest) = rest.split_once('\'')?;
    rest.contains("incompatible").then_some(name)
}

/// Returns the chain that the lines `-P CHAIN POLICY` and `-N CHAIN` introduce.
fn printed_chain(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("-N ").or(line.strip_prefix("-P "))?;
    rest.split(' ').next()
}

/// Moves the counters of `-A CHAIN ... -c PACKETS BYTES -j TARGET` to the front, where
/// `iptables-save -c` prints them.
fn counted(line: &str) -> Option<String> {
    // Uses the last ` -c `, because the text of a comment may contain the same characters.
    let (before, rest) = line.rsplit_once(" -c ")?;
    let mut words = rest.splitn(3, ' ');
    let (packets, bytes) = (words.next()?, words.next()?);
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    if !(is_number(packets) && is_number(bytes)) {
        return None;
    }
    let after = words.next().map(|rest| format!(" {rest}"));
    let after = after.unwrap_or_default();
    Some(format!("[{packets}:{bytes}] {before}{after}"))
}

/// Returns the chains that iptables cannot use in the tables mangle, filter and nat. There are two
/// kinds:
///
/// * a built-in chain that nft has created with another hook, type or priority;
/// * a `KUBE-*` chain that nft has created as a base chain.
pub(crate) fn taken_chains(family: IpFamily) -> Result<Vec<TakenChain>, Error> {
    let Some(mut reader) = KernelReader::open(family)? else {
        return Ok(Vec::new());
    };
    let (tables, _) = reader.tables()?;
    let mut taken = Vec::new();
    for table in tables {
        if crate::Table::find(table).is_none() {
            continue;
        }
        for chain in reader.chains(table)? {
            let is_named = built_in(table).any(|(name, _)| name == chain.name);
            let is_led_to = chain.name.starts_with(PREFIX) && chain.hook.is_some();
            if is_led_to || (is_named && !is_built_in(table, &chain)) {
                taken.push(TakenChain {
                    table: format!("{} {table}", nft_name(family)),
                    found: match &chain.hook {
                        Some(hook) => format!(
                            "type {}, hook {}, priority {}",
                            hook.kind,
                            hook_name(hook.number),
                            hook.priority
                        ),
                        None => "no hook".to_owned(),
                    },
                    is_built_in: is_named,
                    chain: chain.name,
                });
            }
        }
    }
    Ok(taken)
}

fn hook_name(number: u32) -> &'static str {
    let names = ["prerouting", "input", "forward", "output", "postrouting"];
    let at = usize::try_from(number).unwrap_or(usize::MAX);
    names.get(at).copied().unwrap_or("ingress")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> PrintedTables {
        let mut printed = PrintedTables::default();
        text.lines().for_each(|line| printed.add(line));
        printed
    }

    #[test]
    fn saved_rules_of_a_chain_are_passed_on_only_when_the_chain_is_complete() {
        let mut printed = PrintedTables::default();
        let mut told = Vec::new();
        let text =
            "*nat\n:A - [0:0]\n:B - [0:0]\n[1:2] -A A -j B\n[0:0] -A A -j C\n[0:0] -A B -j A";
        for line in text.lines() {
            printed.pass(line, &mut |line| told.push(line.to_owned()));
        }
        assert_eq!(told, text.lines().take(5).collect::<Vec<_>>());
        assert_eq!(printed.told.iter().collect::<Vec<_>>(), ["A"]);
        let gaps = printed.gaps(&["filter", "nat"]);
        assert_eq!(
            gaps,
            [
                ("filter", UnprintedPart::Whole),
                ("nat", UnprintedPart::Rest)
            ]
        );
        printed.pass("COMMIT", &mut |line| told.push(line.to_owned()));
        assert_eq!(told.len(), 7);
        assert!(printed.gaps(&["nat"]).is_empty());
    }

    // The texts in the next two tests are output of iptables 1.8.9.

    #[test]
    fn a_table_that_iptables_save_omits_is_reported() {
        let text = "# Table `nat' is incompatible, use 'nft' tool.\n\
             # Warning: iptables-legacy tables present, use iptables-legacy-save to see them\n\
             *filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n";
        let gaps = printed(text).gaps(&["filter", "nat"]);
        assert_eq!(gaps, [("nat", UnprintedPart::Whole)]);
        // The result does not depend on the program's comments.
        assert_eq!(printed("").gaps(&["raw"]), [("raw", UnprintedPart::Whole)]);
        assert!(printed(text).gaps(&["filter"]).is_empty());
    }

    #[test]
    fn base_chains_that_iptables_save_omits_are_reported() {
        let text = "# Table `filter' contains incompatible base-chains, use 'nft' tool to list them.\n\
             *filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n";
        let gaps = printed(text).gaps(&["filter"]);
        assert_eq!(gaps, [("filter", UnprintedPart::BaseChains)]);
    }

    #[test]
    fn saved_rules_without_a_commit_line_count_as_truncated() {
        let whole = "*nat\n:A - [0:0]\nCOMMIT\n";
        assert_eq!(printed(whole).cut_short(), None);
        assert_eq!(printed("*nat\n:A - [0:0]\n").cut_short(), Some("nat"));
    }

    #[test]
    fn counters_of_a_listed_rule_are_moved_to_its_front() {
        let of = |line| counted(line).unwrap();
        assert_eq!(of("-A A -c 12 720 -j B"), "[12:720] -A A -j B");
        assert_eq!(of("-A A -c 1 2"), "[1:2] -A A");
        let comment = r#"-A A -m comment --comment "x -c 5 6 y" -c 7 8 -j B"#;
        let moved = r#"[7:8] -A A -m comment --comment "x -c 5 6 y" -j B"#;
        assert_eq!(of(comment), moved);
        assert_eq!(counted("-A A -j B"), None);
    }

    #[test]
    fn the_incompatible_chain_is_parsed_from_the_error_of_iptables() {
        let error = |said: &str| IptablesError::Failed {
            program: String::new(),
            kind: crate::Kind::Refused,
            line: None,
            said: said.to_owned(),
        };
        let blamed = error(
            "iptables-nft-restore v1.8.9 (nf_tables): chain `POSTROUTING' in table `nat' is incompatible, use 'nft' tool.",
        );
        assert_eq!(incompatible_chain(&blamed), Some("POSTROUTING"));
        assert_eq!(incompatible_chain(&error("no such chain `X'")), None);
    }
}
