//! A fake kernel for tests. It stores rules as iptables does, and refuses each write that iptables
//! would refuse. A refused write leaves its table unchanged.

use proxy::Unreadable;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iptables::{Input, Kind};

use crate::chain::Table;
use crate::kernel::{Kernel, Refusal};

/// Largest length of a chain's name in bytes (`XT_EXTENSION_MAXNAMELEN` without the final NUL).
const MAX_NAME: usize = 28;

/// A handle to a fake kernel. Clones share one kernel.
#[derive(Debug, Clone, Default)]
pub struct FakeKernel(Arc<Mutex<FakeState>>);

/// Content of a fake kernel, and the faults that a test has set.
#[derive(Debug, Clone, Default)]
pub struct FakeState {
    /// Chains with their rules, by table. Each rule is a line that begins with `-A`.
    pub tables: BTreeMap<Table, BTreeMap<String, Vec<String>>>,
    /// Addresses of all interfaces of the node.
    pub addresses: BTreeSet<IpAddr>,
    /// Texts that make a rule invalid: the fake refuses each rule that contains one of them.
    pub refused: Vec<String>,
    /// Reason why every write fails, such as a held lock. `None` if writes may succeed.
    pub held: Option<String>,
    /// Number of tables that a restore still writes before another program takes the lock. `None`
    /// if the lock stays free.
    pub held_after: Option<usize>,
    /// Reason why the rules cannot be read. `None` if the rules can be read.
    pub unreadable: Option<String>,
    /// Number of times that the mode has read the addresses so far.
    pub address_reads: usize,
    /// Inputs of `iptables-restore` since a test last cleared this list, including refused ones.
    pub restores: Vec<String>,
    /// Tables that the mode has read since a test last cleared this list. `None` stands for a read
    /// of all tables.
    pub saves: Vec<Option<Table>>,
}

impl FakeKernel {
    /// Creates a fake kernel with these addresses and no rules.
    pub fn new(addresses: &[&str]) -> Self {
        let kernel = Self::default();
        let addresses = addresses.iter().filter_map(|ip| ip.parse().ok());
        kernel.state().addresses = addresses.collect();
        kernel.flush();
        kernel
    }

    /// Locks the fake kernel, and returns access to its content.
    pub fn state(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes all chains and rules, as the reload of a firewall does.
    pub fn flush(&self) {
        let built_in = |names: &[&str]| {
            let chains = names.iter().map(|name| ((*name).to_owned(), Vec::new()));
            chains.collect::<BTreeMap<_, _>>()
        };
        let all = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
        self.state().tables = BTreeMap::from([
            (Table::Mangle, built_in(&all)),
            (Table::Filter, built_in(&["INPUT", "FORWARD", "OUTPUT"])),
            (
                Table::Nat,
                built_in(&["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
            ),
        ]);
    }

    /// Loads rules from the output of `iptables-save`.
    pub fn load(&self, saved: &str) {
        let mut state = self.state();
        let mut table = None;
        for line in saved.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::ALL.into_iter().find(|table| table.name() == name);
            }
            let Some(chains) = table.and_then(|table| state.tables.get_mut(&table)) else {
                continue;
            };
            if let Some(declared) = line.strip_prefix(':') {
                chains.entry(first(declared)).or_default();
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let rules = chains.entry(first(rule)).or_default();
                rules.push(line.to_owned());
            }
        }
    }

    /// Returns all rules in the format of `iptables-save`.
    pub fn saved(&self) -> String {
        let state = self.state();
        let mut text = String::new();
        for table in Table::ALL {
            state.save(table, &mut |line| {
                let _ = writeln!(text, "{line}");
            });
        }
        text
    }
}

fn first(words: &str) -> String {
    words.split(' ').next().unwrap_or_default().to_owned()
}

impl FakeState {
    fn save(&self, table: Table, line: &mut dyn FnMut(&str)) {
        let Some(chains) = self.tables.get(&table) else {
            return;
        };
        line(&format!("*{}", table.name()));
        for name in chains.keys() {
            let policy = if is_built_in(name) { "ACCEPT" } else { "-" };
            line(&format!(":{name} {policy} [0:0]"));
        }
        for rule in chains.values().flatten() {
            line(rule);
        }
        line("COMMIT");
    }

    /// Executes the commands for one table. If a command is invalid, changes nothing and returns
    /// the error.
    fn commit(&mut self, table: Table, commands: &[(usize, String)]) -> Result<(), String> {
        let mut chains = self.tables.get(&table).cloned().unwrap_or_default();
        for (number, command) in commands {
            run(&mut chains, &self.refused, command)
                .map_err(|why| format!("line {number} failed: {why}: {command}"))?;
        }
        for rule in chains.values().flatten() {
            if let Some(target) = target(rule).filter(|target| target.starts_with("KUBE-"))
                && !chains.contains_key(target)
            {
                return Err(format!("there is no chain {target}: {rule}"));
            }
        }
        self.tables.insert(table, chains);
        Ok(())
    }
}

fn run(
    chains: &mut BTreeMap<String, Vec<String>>,
    refused: &[String],
    command: &str,
) -> Result<(), &'static str> {
    if let Some(declared) = command.strip_prefix(':') {
        let name = first(declared);
        if name.len() > MAX_NAME {
            return Err("the name of the chain is too long");
        }
        chains.insert(name, Vec::new());
        return Ok(());
    }
    let (verb, rest) = command.split_once(' ').ok_or("what is that?")?;
    let name = first(rest);
    let line = format!("-A {rest}");
    match verb {
        "-A" | "-I" => {
            if refused.iter().any(|part| line.contains(part)) {
                return Err("the kernel lacks a module");
            }
            let rules = chains.get_mut(&name).ok_or("there is no such chain")?;
            if verb == "-A" {
                rules.push(line);
            } else {
                rules.insert(0, line);
            }
        }
        "-D" => {
            let rules = chains.get_mut(&name).ok_or("there is no such chain")?;
            let at = rules.iter().position(|rule| *rule == line);
            rules.remove(at.ok_or("there is no such rule")?);
        }
        "-X" => {
            let mut rules = chains.values().flatten();
            if rules.any(|rule| target(rule) == Some(name.as_str())) {
                return Err("a rule leads to it");
            }
            let rules = chains.remove(&name).ok_or("there is no such chain")?;
            if !rules.is_empty() {
                return Err("it is not empty");
            }
        }
        _ => return Err("what is that?"),
    }
    Ok(())
}

fn is_built_in(name: &str) -> bool {
    ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"].contains(&name)
}

fn target(rule: &str) -> Option<&str> {
    let (_, target) = rule.rsplit_once(" -j ")?;
    target.split(' ').next()
}

impl Kernel for FakeKernel {
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        let mut state = self.state();
        state.address_reads += 1;
        Ok(state.addresses.clone())
    }

    fn save(
        &mut self,
        table: Option<Table>,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Unreadable> {
        let mut state = self.state();
        state.saves.push(table);
        if let Some(reason) = state.unreadable.clone() {
            return Err(Unreadable::new("the iptables rules", reason));
        }
        for each in Table::ALL {
            if table.is_none_or(|table| table == each) {
                state.save(each, line);
            }
        }
        Ok(())
    }

    fn restore(&mut self, text: Input<'_>) -> Result<(), Refusal> {
        let mut bytes = Vec::new();
        // Writing to a `Vec` cannot fail.
        let _ = text(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let mut state = self.state();
        state.restores.push(text.clone());
        if let Some(reason) = &state.held {
            return Err(Refusal {
                reason: reason.clone(),
                kind: Kind::LockHeld,
            });
        }
        let (mut table, mut commands) = (None, Vec::new());
        let mut begun = 0;
        for (at, line) in text.lines().enumerate() {
            if let Some(name) = line.strip_prefix('*') {
                if state.held_after.is_some_and(|after| begun >= after) {
                    return Err(Refusal {
                        reason: "somebody else got the lock".to_owned(),
                        kind: Kind::LockHeld,
                    });
                }
                begun += 1;
                table = Table::ALL.into_iter().find(|table| table.name() == name);
                commands.clear();
            } else if line == "COMMIT" {
                let done = match table.take() {
                    Some(table) => state.commit(table, &commands),
                    None => Err("COMMIT without a table".to_owned()),
                };
                done.map_err(|reason| Refusal {
                    reason,
                    kind: Kind::Refused,
                })?;
            } else {
                commands.push((at + 1, line.to_owned()));
            }
        }
        Ok(())
    }
}
