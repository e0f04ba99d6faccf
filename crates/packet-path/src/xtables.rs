//! iptables rules of either backend, in the format of `iptables-save`.
//!
//! The rules stay text, grouped by chain. The walk parses only rules on the packet's path. With
//! 50,000 Services, these are a few dozen, and the chain with one rule for each Service.

mod matching;
mod options;
mod rule;
mod targets;
mod walk;

use std::collections::HashMap;
use std::ops::Range;
use std::slice;
use std::str::Lines;

use iptables::{Line, RuleLine};

use crate::branch::{Branch, Counters};
use crate::kernel::Kernel;
use crate::ruleset::{Base, ChainKind, Hook, Ruleset};

/// Protocol number of TCP.
const TCP: u8 = 6;
/// TCP flag of a connection's first packet.
const SYN: u8 = 0x02;
/// TCP flag that a reply to SYN has in addition to SYN.
const ACK: u8 = 0x10;

/// Parses each rule, for the fuzzer.
pub(crate) fn read_all(tables: &Xtables) {
    for table in &tables.tables {
        for line in table.text.lines() {
            if let Some(rule) = RuleLine::parse(line) {
                drop(walk::parse(rule));
            }
        }
    }
}

/// The iptables tables of one IP family and one backend.
#[derive(Debug, Default)]
pub struct Xtables {
    tables: Vec<Table>,
}

/// An iptables table, with its chains and its rules as text.
#[derive(Debug)]
struct Table {
    name: String,
    /// Rules of the table, one per line, in the order of `iptables-save`.
    text: String,
    chains: HashMap<Box<str>, Chain>,
}

/// A chain of a table.
#[derive(Debug, Default)]
struct Chain {
    /// Byte ranges of the chain's rules in the table's text. Usually a single range.
    rules: Vec<Range<usize>>,
    /// True for a built-in chain with the policy DROP.
    drops: bool,
    /// Counters of a built-in chain's policy, or `None` if unknown.
    counters: Option<Counters>,
}

/// The built-in chains: table, hook, priority and chain type (linux/netfilter_ipv4.h).
const PLACES: [(&str, Hook, i32, ChainKind); 17] = [
    ("raw", Hook::Prerouting, -300, ChainKind::Filter),
    ("raw", Hook::Output, -300, ChainKind::Filter),
    ("mangle", Hook::Prerouting, -150, ChainKind::Filter),
    ("mangle", Hook::Input, -150, ChainKind::Filter),
    ("mangle", Hook::Forward, -150, ChainKind::Filter),
    ("mangle", Hook::Output, -150, ChainKind::Route),
    ("mangle", Hook::Postrouting, -150, ChainKind::Filter),
    ("nat", Hook::Prerouting, -100, ChainKind::Nat),
    ("nat", Hook::Output, -100, ChainKind::Nat),
    ("nat", Hook::Input, 100, ChainKind::Nat),
    ("nat", Hook::Postrouting, 100, ChainKind::Nat),
    ("filter", Hook::Input, 0, ChainKind::Filter),
    ("filter", Hook::Forward, 0, ChainKind::Filter),
    ("filter", Hook::Output, 0, ChainKind::Filter),
    ("security", Hook::Input, 50, ChainKind::Filter),
    ("security", Hook::Forward, 50, ChainKind::Filter),
    ("security", Hook::Output, 50, ChainKind::Filter),
];

impl Xtables {
    /// Parses one line of `iptables-save` without its line feed. A rule may have counters (`-c`).
    pub fn read(&mut self, line: &str) {
        let (_, rule) = counters(line);
        match Line::parse(rule) {
            Some(Line::Table(name)) => self.tables.push(Table {
                name: name.to_owned(),
                text: String::new(),
                chains: HashMap::new(),
            }),
            Some(Line::Chain(name)) => {
                if let Some(table) = self.tables.last_mut() {
                    let mut words = line.split(' ').skip(1);
                    let chain = table.chains.entry(name.into()).or_default();
                    chain.drops = words.next() == Some("DROP");
                    chain.counters = words.next().and_then(bracketed);
                }
            }
            Some(Line::Rule(rule)) => {
                if let Some(table) = self.tables.last_mut() {
                    table.push(line, rule);
                }
            }
            Some(Line::Commit) | None => {}
        }
    }

    /// Parses the whole output of `iptables-save`.
    pub fn of(saved: &str) -> Self {
        let mut tables = Self::default();
        saved.lines().for_each(|line| tables.read(line));
        tables
    }

    /// Removes a dormant table, which the kernel skips for all packets.
    pub fn switch_off(&mut self, name: &str) {
        self.tables.retain(|table| table.name != name);
    }

    /// Reports whether no table has a rule, and no policy is DROP.
    pub fn is_empty(&self) -> bool {
        let is_bare = |table: &Table| {
            table.text.is_empty() && !table.chains.values().any(|chain| chain.drops)
        };
        self.tables.iter().all(is_bare)
    }

    /// Lists the names of the tables.
    pub fn tables(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().map(|table| &*table.name)
    }
}

impl Table {
    fn push(&mut self, line: &str, rule: RuleLine<'_>) {
        let from = self.text.len();
        self.text.push_str(line);
        self.text.push('\n');
        let to = self.text.len();
        let chain = self.chains.entry(rule.chain.into()).or_default();
        match chain.rules.last_mut() {
            Some(last) if last.end == from => last.end = to,
            _ => chain.rules.push(from..to),
        }
    }

    /// Returns the rules of a chain, in order.
    fn rules<'a>(&'a self, chain: &'a Chain) -> Rules<'a> {
        Rules {
            text: &self.text,
            pieces: chain.rules.iter(),
            lines: "".lines(),
        }
    }
}

/// Iterator over the rules of one chain, one line each.
#[derive(Debug, Clone)]
struct Rules<'a> {
    text: &'a str,
    pieces: slice::Iter<'a, Range<usize>>,
    lines: Lines<'a>,
}

impl<'a> Iterator for Rules<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            if let Some(line) = self.lines.next() {
                return Some(line);
            }
            let piece = self.pieces.next()?;
            self.lines = self.text.get(piece.clone()).unwrap_or_default().lines();
        }
    }
}

impl Ruleset for Xtables {
    fn base_chains(&self, hook: Hook) -> Vec<Base> {
        let mut found = Vec::new();
        for (number, table) in self.tables.iter().enumerate() {
            let places = PLACES
                .iter()
                .filter(|(name, at, ..)| *name == table.name && *at == hook);
            found.extend(places.map(|(_, hook, priority, kind)| Base {
                hook: *hook,
                priority: *priority,
                kind: *kind,
                number,
            }));
        }
        found.retain(|base| {
            let table = self.tables.get(base.number);
            table.is_some_and(|table| table.chains.contains_key(name_of(hook)))
        });
        found
    }

    fn walk(&self, base: &Base, branch: Branch, kernel: &dyn Kernel) -> Vec<Branch> {
        match self.tables.get(base.number) {
            Some(table) => walk::through(table, base.hook, branch, kernel),
            None => vec![branch],
        }
    }
}

/// Returns the name of the built-in chains at a hook.
fn name_of(hook: Hook) -> &'static str {
    match hook {
        Hook::Prerouting => "PREROUTING",
        Hook::Input => "INPUT",
        Hook::Forward => "FORWARD",
        Hook::Output => "OUTPUT",
        Hook::Postrouting => "POSTROUTING",
    }
}

/// Splits a line such as `[12:3456] -A ...` into its counters, if any, and its rule.
fn counters(line: &str) -> (Option<Counters>, &str) {
    let Some((counted, rule)) = line.split_once("] ").filter(|_| line.starts_with('[')) else {
        return (None, line);
    };
    let Some(inner) = counted.strip_prefix('[') else {
        return (None, line);
    };
    match pair(inner) {
        Some(counters) => (Some(counters), rule),
        None => (None, line),
    }
}

fn bracketed(text: &str) -> Option<Counters> {
    pair(text.strip_prefix('[')?.strip_suffix(']')?)
}

fn pair(text: &str) -> Option<Counters> {
    let (packets, bytes) = text.split_once(':')?;
    Some(Counters {
        packets: packets.parse().ok()?,
        bytes: bytes.parse().ok()?,
    })
}
