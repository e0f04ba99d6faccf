//! A fake kernel for tests. It stores the same objects as nf\_tables, and refuses every transaction
//! that nf\_tables would refuse. A refused transaction changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nftables_netlink::{
    Activity, Bytes, Chain, Change, CommitError, DataType, Element, ElementData, Expression, Name,
    Rule, Set, SetKind, SetRef, Table, Transaction, Verdict,
};
use proxy::{IpFamily, Unreadable};
use relay::PortBackends;

use crate::clients::OTHER_KIND;
pub use crate::describe::describe;
use crate::kernel::{Blame, Kernel, Object, Refusal};
use crate::plan::LocalhostPort;
use crate::refusal::refusal_of;
use crate::snapshot::seconds;

/// A handle to a fake kernel. Clones of a handle share one kernel.
#[derive(Debug, Clone)]
pub struct FakeKernel {
    family: IpFamily,
    state: Arc<Mutex<FakeState>>,
}

/// Content of the fake kernel, and the faults that a test has set.
#[derive(Debug, Clone, Default)]
pub struct FakeState {
    /// The table of nftables mode, if it exists.
    pub table: Option<Content>,
    /// Handles of the table's sets and chains.
    pub handles: Handles,
    /// Addresses of all interfaces of the simulated node.
    pub addresses: BTreeSet<IpAddr>,
    /// Texts that a change's description may contain. The fake refuses each change that matches one
    /// of them, like a kernel that lacks a feature.
    pub refused: Vec<String>,
    /// Texts that a change's description may contain. A change that matches one of them makes the
    /// table invalid. The fake refuses this change, and all later rules and elements of the
    /// transaction.
    pub invalid: Vec<String>,
    /// Texts that a change's description may contain. The fake refuses each transaction with a
    /// matching change, without naming the change.
    pub refused_as_whole: Vec<String>,
    /// Reason why the fake refuses every transaction, or `None` if it accepts valid ones.
    pub held: Option<String>,
    /// Largest number of changes that the fake accepts in one transaction, or `None` for no limit.
    pub room: Option<usize>,
    /// Number of upcoming transactions that the fake commits, but whose replies are lost.
    pub lost: usize,
    /// Texts that a change's description may contain. The fake refuses each transaction with a
    /// matching change, as if the kernel lacked memory.
    pub no_memory_for: Vec<String>,
    /// Reason why the table cannot be read, or `None` if it can.
    pub unreadable: Option<String>,
    /// Simulated duration of each read of the table, even of a failed read.
    pub reading: Duration,
    /// True if the fake behaves like Linux before 6.2:
    ///
    /// * If a transaction deletes an element from a map, the element's chain stays in use until the
    ///   transaction ends.
    /// * The timeout of an existing set cannot change.
    pub is_old: bool,
    /// NodePorts that the relay serves on localhost.
    pub listening: BTreeMap<u16, Arc<PortBackends>>,
    /// Ports on localhost that another program uses.
    pub taken: BTreeSet<u16>,
    /// Number of times that the mode has read the table so far.
    pub reads: usize,
    /// Number of times that the mode has read the addresses so far.
    pub address_reads: usize,
    /// Transactions committed since a test last took this list, each as a list of its changes'
    /// descriptions.
    pub made: Vec<Vec<String>>,
    /// Number of refused transactions so far.
    pub refusals: usize,
}

/// Content of the fake's table: chains with rules, sets with elements, and counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// State of the table: active or dormant.
    pub activity: Activity,
    /// Chains by name, each with its rules.
    pub chains: BTreeMap<Name, (Chain, Vec<Rule>)>,
    /// Names of the named counters.
    pub counters: BTreeSet<Name>,
    /// Sets by name, each with its elements by key.
    pub sets: BTreeMap<Name, (Set, BTreeMap<Bytes, Element>)>,
}

/// Handles of sets and chains. The kernel numbers them in the order of their creation.
#[derive(Debug, Clone, Default)]
pub struct Handles {
    last: u64,
    sets: BTreeMap<Name, u64>,
    chains: BTreeMap<Name, u64>,
}

impl Handles {
    fn of(numbered: &BTreeMap<Name, u64>, name: &Name) -> u64 {
        numbered.get(name).copied().unwrap_or_default()
    }

    /// Renumbers the handles so that sets precede chains, as in a table of an earlier version of
    /// this program. That version gave sets of clients a size.
    pub fn sets_first(&mut self) {
        let numbered = self.sets.values_mut().chain(self.chains.values_mut());
        for (number, handle) in (1..).zip(numbered) {
            *handle = number;
            self.last = number;
        }
    }

    /// Updates the handles after the fake has committed `change`.
    fn follow(&mut self, change: &Change) {
        let (numbered, name) = match change {
            Change::DeleteTable => {
                *self = Self::default();
                return;
            }
            Change::DeleteSet(name) => {
                self.sets.remove(name);
                return;
            }
            Change::DeleteChain(name) => {
                self.chains.remove(name);
                return;
            }
            Change::AddSet(set) => (&mut self.sets, &set.name),
            Change::AddChain(chain) => (&mut self.chains, &chain.name),
            _ => return,
        };
        if !numbered.contains_key(name) {
            self.last += 1;
            numbered.insert(Arc::clone(name), self.last);
        }
    }
}

impl FakeKernel {
    /// Creates a fake kernel without a table.
    pub fn new(family: IpFamily, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().filter_map(|ip| ip.parse().ok());
        Self {
            family,
            state: Arc::new(Mutex::new(FakeState {
                addresses: addresses.collect(),
                ..FakeState::default()
            })),
        }
    }

    /// Locks the fake kernel, and returns access to its content.
    pub fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Result of one change. The error is the error number (errno) that the kernel would return.
type ChangeResult = Result<(), i32>;

impl Content {
    fn change(&mut self, before: &Self, is_old: bool, change: &Change) -> ChangeResult {
        match change {
            Change::AddTable(table) => self.activity = table.activity,
            Change::DeleteTable => *self = Self::default(),
            Change::AddChain(chain) => {
                if let Some((there, _)) = self.chains.get(&chain.name) {
                    if there.base != chain.base {
                        return Err(libc::EEXIST);
                    }
                } else if chain.base.is_some() && self.activity != before.activity {
                    return Err(libc::EINVAL);
                } else {
                    let new = (chain.clone(), Vec::new());
                    self.chains.insert(Arc::clone(&chain.name), new);
                }
            }
            Change::FlushChain(name) => self.chain(name)?.1.clear(),
            Change::DeleteChain(name) => {
                self.chain(name)?;
                let others = self.chains.iter().filter(|(other, _)| *other != name);
                let rules = others.flat_map(|(_, (_, rules))| rules);
                let is_named = rules.flat_map(targets).any(|target| target == name)
                    || self.element_targets().any(|target| target == name);
                let rules = before.chains.values().flat_map(|(_, rules)| rules);
                let was_named = rules.flat_map(map_targets).any(|target| target == name)
                    || before.element_targets().any(|target| target == name);
                if is_named || (is_old && was_named) {
                    return Err(libc::EBUSY);
                }
                self.chains.remove(name);
            }
            Change::AddSet(set) => {
                if let Some((there, _)) = self.sets.get_mut(&set.name) {
                    if (&there.key, &there.kind) != (&set.key, &set.kind) {
                        return Err(libc::EEXIST);
                    }
                    if !is_old {
                        there.timeout = set.timeout;
                    }
                } else {
                    let new = (set.clone(), BTreeMap::new());
                    self.sets.insert(Arc::clone(&set.name), new);
                }
            }
            Change::DeleteSet(name) => {
                self.set(name)?;
                let rules = self.chains.values().flat_map(|(_, rules)| rules);
                if rules.flat_map(sets).any(|set| set == name) {
                    return Err(libc::EBUSY);
                }
                self.sets.remove(name);
            }
            Change::FlushSet(name) => self.set(name)?.1.clear(),
            Change::AddElements(name, elements) => {
                for element in elements {
                    self.add(name, element)?;
                }
            }
            Change::DeleteElements(name, elements) => {
                let (_, there) = self.set(name)?;
                for element in elements {
                    there.remove(&element.key).ok_or(libc::ENOENT)?;
                }
            }
            Change::AddRule(name, rule) => {
                self.chain(name)?;
                self.can_have(rule)?;
                self.chain(name)?.1.push(rule.clone());
            }
            Change::InsertRule(name, before, rule) => {
                self.can_have(rule)?;
                let at = self.place(name, *before)?;
                self.chain(name)?.1.insert(at, rule.clone());
            }
            Change::DeleteRule(name, handle) => {
                let at = self.place(name, *handle)?;
                self.chain(name)?.1.remove(at);
            }
            Change::ReplaceRule(..) => return Err(libc::EOPNOTSUPP),
            Change::AddCounter(name) => {
                self.counters.insert(Arc::clone(name));
            }
            Change::DeleteCounter(name) => {
                let rules = self.chains.values().flat_map(|(_, rules)| rules);
                if rules.flat_map(counters).any(|counter| counter == name) {
                    return Err(libc::EBUSY);
                }
                if !self.counters.remove(name) {
                    return Err(libc::ENOENT);
                }
            }
        }
        Ok(())
    }

    /// Checks that all chains, sets and counters to which a rule refers exist.
    fn can_have(&self, rule: &Rule) -> ChangeResult {
        let has_all = targets(rule).all(|chain| self.chains.contains_key(chain))
            && sets(rule).all(|set| self.sets.contains_key(set))
            && counters(rule).all(|counter| self.counters.contains(counter));
        if has_all { Ok(()) } else { Err(libc::ENOENT) }
    }

    /// Returns the position of the rule with this handle in its chain.
    fn place(&self, chain: &Name, handle: u64) -> Result<usize, i32> {
        let (_, rules) = self.chains.get(chain).ok_or(libc::ENOENT)?;
        let mut handles = rules.iter().map(handle_of);
        handles.position(|of| of == handle).ok_or(libc::ENOENT)
    }

    fn chain(&mut self, name: &Name) -> Result<&mut (Chain, Vec<Rule>), i32> {
        self.chains.get_mut(name).ok_or(libc::ENOENT)
    }

    fn set(&mut self, name: &Name) -> Result<&mut (Set, BTreeMap<Bytes, Element>), i32> {
        self.sets.get_mut(name).ok_or(libc::ENOENT)
    }

    fn add(&mut self, name: &Name, element: &Element) -> ChangeResult {
        if let Some(chain) = target(element)
            && !self.chains.contains_key(chain)
        {
            return Err(libc::ENOENT);
        }
        let (set, there) = self.set(name)?;
        let is_map = set.kind != SetKind::Set;
        if element.key.len() != DataType::key_len(&set.key) || element.data.is_some() != is_map {
            return Err(libc::EINVAL);
        }
        match there.get(&element.key) {
            Some(there) if there.data != element.data => Err(libc::EEXIST),
            Some(_) => Ok(()),
            None => {
                there.insert(element.key.clone(), element.clone());
                Ok(())
            }
        }
    }

    fn element_targets(&self) -> impl Iterator<Item = &Name> {
        let elements = self
            .sets
            .values()
            .flat_map(|(_, elements)| elements.values());
        elements.filter_map(target)
    }
}

/// Returns the handle of a rule in the fake: a digest of its content. This handle is unique in a
/// chain, because no chain contains the same rule twice.
fn handle_of(rule: &Rule) -> u64 {
    let mut hasher = DefaultHasher::new();
    rule.hash(&mut hasher);
    hasher.finish()
}

/// Returns the chain to which an element refers, if any.
fn target(element: &Element) -> Option<&Name> {
    match &element.data {
        Some(ElementData::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain))) => Some(chain),
        _ => None,
    }
}

/// Returns the chains to which the maps of a rule refer.
fn map_targets(rule: &Rule) -> impl Iterator<Item = &Name> {
    let maps = rule
        .expressions
        .iter()
        .filter_map(|expression| match expression {
            Expression::Lookup {
                set: SetRef::Anonymous(map),
                ..
            } => Some(map),
            _ => None,
        });
    maps.flat_map(|map| map.elements.iter().filter_map(target))
}

/// Returns the chains to which a rule refers.
fn targets(rule: &Rule) -> impl Iterator<Item = &Name> {
    let own = rule
        .expressions
        .iter()
        .filter_map(|expression| match expression {
            Expression::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => Some(chain),
            _ => None,
        });
    own.chain(map_targets(rule))
}

/// Returns the counters that a rule uses.
fn counters(rule: &Rule) -> impl Iterator<Item = &Name> {
    let expressions = rule.expressions.iter();
    expressions.filter_map(|expression| match expression {
        Expression::Object { name, .. } => Some(name),
        _ => None,
    })
}

/// Returns the named sets that a rule uses.
fn sets(rule: &Rule) -> impl Iterator<Item = &Name> {
    let sets = rule.expressions.iter().filter_map(Expression::set);
    sets.filter_map(|set| match set {
        SetRef::Named(name) => Some(name),
        SetRef::Anonymous(_) => None,
    })
}

impl FakeState {
    /// Returns true if the table has a set, an element or a chain whose description contains
    /// `part`.
    pub fn holds(&self, part: &str) -> bool {
        let Some(table) = &self.table else {
            return false;
        };
        let mut sets = table.sets.values();
        let mut chains = table.chains.values();
        let has = |change: &Change| describe(change).contains(part);
        sets.any(|(set, elements)| {
            let elements = elements.values().cloned().collect();
            has(&Change::AddSet(set.clone()))
                || has(&Change::AddElements(Arc::clone(&set.name), elements))
        }) || chains.any(|(chain, _)| has(&Change::AddChain(chain.clone())))
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        if let Some(reason) = &self.held {
            return Err(Refusal::General(reason.clone()));
        }
        if self
            .room
            .is_some_and(|room| transaction.changes.len() > room)
        {
            self.refusals += 1;
            let reason = "it is too large to be sent".to_owned();
            let changes = Vec::new();
            return Err(Refusal::Refused { reason, changes });
        }
        let before = self.table.clone();
        let mut after = before.clone();
        let start = before.unwrap_or_default();
        let (mut blamed, mut is_refused, mut is_invalid) = (Vec::new(), false, false);
        for (number, change) in transaction.changes.iter().enumerate() {
            let words = describe(change);
            let has = |parts: &[String]| parts.iter().any(|part| words.contains(part));
            is_refused |= has(&self.refused_as_whole);
            if has(&self.no_memory_for) {
                self.refusals += 1;
                let whole = netlink_batch::Refusal {
                    errno: libc::ENOMEM,
                    message: None,
                    request: Vec::new(),
                };
                return Err(refusal_of(transaction, CommitError::Whole(whole)));
            }
            is_invalid |= has(&self.invalid);
            let is_validated = matches!(
                change,
                Change::AddRule(..) | Change::InsertRule(..) | Change::AddElements(..)
            );
            let done = match (&mut after, change) {
                _ if has(&self.refused) || (is_invalid && is_validated) => Err(libc::EOPNOTSUPP),
                (table @ None, Change::AddTable(_)) => {
                    *table = Some(Content::default());
                    Ok(())
                }
                (None, _) => Err(libc::ENOENT),
                (Some(table), change) => table.change(&start, self.is_old, change),
            };
            if let Err(errno) = done {
                let reason = format!("{words}: {}", std::io::Error::from_raw_os_error(errno));
                blamed.push(Blame {
                    change: number,
                    errno,
                    reason,
                });
            }
        }
        if is_refused || !blamed.is_empty() {
            self.refusals += 1;
            let changes = if is_refused { Vec::new() } else { blamed };
            let reason = "the kernel refuses it".to_owned();
            return Err(Refusal::Refused { reason, changes });
        }
        self.table = after;
        for change in &transaction.changes {
            self.handles.follow(change);
        }
        self.made
            .push(transaction.changes.iter().map(describe).collect());
        if self.lost > 0 {
            self.lost -= 1;
            return Err(Refusal::Unknown("the answer was lost".to_owned()));
        }
        Ok(())
    }
}

impl Kernel for FakeKernel {
    fn family(&self) -> IpFamily {
        self.family
    }

    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        let mut state = self.state();
        state.address_reads += 1;
        Ok(state.addresses.clone())
    }

    fn table(&mut self, told: &mut dyn FnMut(Object)) -> Result<(), Unreadable> {
        thread::sleep(self.state().reading);
        let mut state = self.state();
        state.reads += 1;
        if let Some(reason) = state.unreadable.clone() {
            return Err(Unreadable::new("the nftables table kube-proxy", reason));
        }
        told(Object::Begin);
        let Some(table) = &state.table else {
            return Ok(());
        };
        told(Object::Table(Table {
            activity: table.activity,
            ..Table::new(self.family.into(), crate::name::TABLE.into())
        }));
        for (name, (set, elements)) in &table.sets {
            let handle = Handles::of(&state.handles.sets, name);
            told(Object::Set(set.clone(), handle));
            let elements = elements.values().cloned().collect();
            told(Object::Elements(Arc::clone(name), elements));
        }
        for name in &table.counters {
            told(Object::Counter(Arc::clone(name)));
        }
        for (name, (chain, rules)) in &table.chains {
            let handle = Handles::of(&state.handles.chains, name);
            told(Object::Chain(chain.clone(), handle));
            for rule in rules {
                told(Object::Rule(Arc::clone(name), rule.clone()));
            }
        }
        Ok(())
    }

    fn timeout(&mut self, set: &str) -> Result<Option<u32>, Unreadable> {
        let state = self.state();
        let set = state.table.as_ref().and_then(|table| table.sets.get(set));
        let seconds = set.map(|(set, _)| seconds(self.family, set));
        Ok(seconds.filter(|seconds| *seconds != OTHER_KIND))
    }

    fn rules(&mut self, chain: &str) -> Result<Vec<(u64, Rule)>, Unreadable> {
        let state = self.state();
        let table = state.table.as_ref();
        let rules = table.and_then(|table| table.chains.get(chain));
        let rules = rules.into_iter().flat_map(|(_, rules)| rules);
        Ok(rules.map(|rule| (handle_of(rule), rule.clone())).collect())
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        self.state().commit(transaction)
    }

    fn listen(&mut self, port: &LocalhostPort) -> Result<(), String> {
        let mut state = self.state();
        match &port.serving {
            Some(_) if state.taken.contains(&port.number) => {
                return Err("address already in use".to_owned());
            }
            Some(serving) => state.listening.insert(port.number, Arc::clone(serving)),
            None => state.listening.remove(&port.number),
        };
        Ok(())
    }
}
