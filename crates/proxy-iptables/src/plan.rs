//! A plan: the next writes as data, and the iptables commands that write them.
//!
//! ```text
//!   Plan ─ pieces ─▶ Piece: its subject and its ops ──▶ execute ─▶ WriteOutcomes
//! ```
//!
//! A restore changes only the chains that it declares or names:
//!
//! * It creates or empties the chains of a Service port, and fills them.
//! * In a shared chain, it deletes and inserts single rules.
//!
//! So the cost of a changed Service does not depend on the number of Services.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use iptables::Table;
use proxy::{Owner, Protocol, ServicePortName};

use crate::base::{Base, Edit};
use crate::chain::{Chain, Shared};
use crate::config::Config;
use crate::port::{Content, OWN, RuleContext, ServedPort, Slot};
use crate::saved::Leftovers;

/// The rules and chains that this mode writes or removes next.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub(crate) config: Arc<Config>,
    pub(crate) is_terse: bool,
    pub(crate) manner: RestoreStrategy,
    /// The base that the kernel has after the plan is written, or `None` if the plan does not
    /// change the base.
    pub(crate) wanted: Option<Arc<Base>>,
    /// Chains that contain only base rules, to be written as a whole, each with its table and its
    /// rules.
    pub(crate) base: Vec<(Table, &'static str, Vec<String>)>,
    /// Rules of this mode that are added to built-in chains and other programs' chains.
    pub(crate) guests: Vec<(Table, Edit)>,
    /// Shared chains that the plan replaces as a whole.
    pub(crate) whole: Vec<WholeChain>,
    /// Changes to the rules of Service ports, one entry per Service port.
    pub(crate) parts: Vec<PortWrites>,
    /// Chains of Service ports that are no longer wanted.
    pub(crate) stale: Vec<Chain>,
    /// Leftovers of other modes to remove.
    pub(crate) leftovers: Leftovers,
}

/// A step of a plan, as text for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanStep {
    /// Description of the step, as one line.
    pub line: String,
    /// The written chain, if the step replaces a whole chain.
    pub chain: Option<WrittenChain>,
}

/// A chain that a plan replaces completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenChain {
    /// Table of the chain.
    pub table: Table,
    /// Name of the chain.
    pub name: String,
    /// Rules of the chain, as lines that begin with `-A CHAIN`.
    pub rules: Vec<String>,
    /// Service port that owns the chain, if any.
    pub owner: Option<ServicePortName>,
}

/// A shared chain that a plan replaces, with all its rules.
#[derive(Debug, Clone)]
pub(crate) struct WholeChain {
    pub(crate) chain: Shared,
    pub(crate) slots: Vec<Arc<str>>,
    pub(crate) tail: Vec<String>,
}

/// Changes to the rules of one Service port.
#[derive(Debug, Clone, Default)]
pub(crate) struct PortWrites {
    /// Service port that owns the rules, or `None` for rules in shared chains that no Service port
    /// wants.
    pub(crate) owner: Option<Arc<Owner>>,
    pub(crate) port: Option<Arc<ServedPort>>,
    /// Chains of the Service port to write, with their content.
    pub(crate) chains: BTreeMap<Chain, Content>,
    /// Number of rules that the plan deletes and adds by writing `chains`.
    pub(crate) rules: usize,
    pub(crate) slots: Vec<Change>,
}

/// A change to the rules of one slot in a shared chain.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) slot: Slot,
    pub(crate) before: Option<Arc<str>>,
    pub(crate) after: Option<Arc<str>>,
}

/// Outcome of one part of a plan, such as the base, a Service port or a stale chain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum WriteOutcome {
    #[default]
    Done,
    Refused(Arc<str>),
    /// Not tried, for one of three reasons: the plan had used all of its restores, the kernel had
    /// refused the base, or every write would currently fail.
    Untried,
}

/// Outcomes of all parts of a plan.
#[derive(Debug, Clone, Default)]
pub struct WriteOutcomes {
    pub(crate) base: WriteOutcome,
    /// Outcome of each entry of the plan's `parts`, in order.
    pub(crate) parts: Vec<WriteOutcome>,
    /// Outcome of removing each chain in the plan's `stale`, in order.
    pub(crate) stale: Vec<WriteOutcome>,
    pub(crate) leftovers: WriteOutcome,
    /// Number of restores that iptables accepted.
    pub(crate) taken: usize,
    /// Number of restores that iptables refused.
    pub(crate) refused: usize,
    /// True if a refused restore may have written some tables.
    pub(crate) is_doubtful: bool,
    /// Error that currently makes every write fail, such as a held lock. All other outcomes then
    /// have no meaning.
    pub(crate) general: Option<Arc<str>>,
}

/// Strategy by which the executor writes a plan: with one restore or with many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RestoreStrategy {
    /// One restore writes the whole plan.
    #[default]
    Together,
    /// Many restores write the plan, so that refused commands do not prevent other writes.
    Apart,
}

/// A group of commands that succeed or fail together.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) subject: PieceScope,
    /// Sort key that is equal for pieces that may fail for the same reason. `None` for a piece
    /// without a Service port.
    pub(crate) traits: Option<(bool, Protocol, bool)>,
    pub(crate) ops: Vec<(Table, Op<'a>)>,
}

/// The part of a plan that a piece (a group of commands) writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceScope {
    /// Rules of one table that all Services need.
    Base,
    /// The Service port with this index in the plan's `parts`.
    Part(usize),
    /// The stale chain with this index in the plan's `stale`.
    Stale(usize),
    Leftovers,
}

/// A command for a table. Rules are lines that begin with `-A CHAIN`.
#[derive(Debug, Clone)]
pub(crate) enum Op<'a> {
    /// Creates or empties a chain, and adds its rules.
    Write(&'static str, Lines<'a>),
    /// Creates or empties the chains of one Service port, and adds their rules.
    WriteOwn(Own<'a>),
    /// Inserts a rule at the head of its chain.
    Insert(&'a str),
    /// Appends a rule to its chain.
    Append(&'a str),
    /// Deletes the first rule of the chain that equals this rule.
    Delete(&'a str),
    /// Removes a chain, together with all its rules.
    Remove(Name<'a>),
}

/// Rules of a chain, in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines<'a> {
    /// Rules of Services, which precede the rules in `tail`. Each text has one or more lines, each
    /// with a line feed.
    pub(crate) slots: &'a [Arc<str>],
    pub(crate) tail: &'a [String],
}

/// Chains of one Service port. The executor renders their rules only during the write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own<'a> {
    part: &'a PortWrites,
    style: RuleContext<'a>,
}

/// The name of a chain to remove.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Name<'a> {
    Own(Chain),
    Other(&'a str),
}

impl Plan {
    /// Reports whether the plan writes nothing.
    pub fn is_empty(&self) -> bool {
        !self.has_base()
            && self.parts.is_empty()
            && self.stale.is_empty()
            && self.leftovers.is_empty()
    }

    pub(crate) fn has_base(&self) -> bool {
        !(self.base.is_empty() && self.guests.is_empty() && self.whole.is_empty())
    }

    fn is_whole(&self, chain: Shared) -> bool {
        self.whole.iter().any(|whole| whole.chain == chain)
    }

    /// Returns the commands of the plan in writing order, in pieces that succeed or fail together.
    /// The commands of a piece are ordered by table.
    pub(crate) fn pieces(&self) -> Vec<Piece<'_>> {
        let base = Table::ALL.into_iter().map(|table| Piece {
            subject: PieceScope::Base,
            traits: None,
            ops: self.base_ops(table).map(|op| (table, op)).collect(),
        });
        let parts = self.parts.iter().enumerate().map(|(at, part)| Piece {
            subject: PieceScope::Part(at),
            traits: part.port.as_ref().map(|port| port.traits()),
            ops: self.part_ops(part),
        });
        let stale = self.stale.iter().enumerate().map(|(at, chain)| Piece {
            subject: PieceScope::Stale(at),
            traits: None,
            ops: vec![(OWN, Op::Remove(Name::Own(*chain)))],
        });
        let jumps = self.leftovers.jumps();
        let jumps = jumps.map(|(table, line)| (table, Op::Delete(line)));
        let chains = self.leftovers.chains();
        let chains = chains.map(|(table, name)| (table, Op::Remove(Name::Other(name))));
        let leftovers = Piece {
            subject: PieceScope::Leftovers,
            traits: None,
            ops: jumps.chain(chains).collect(),
        };
        let all = base.chain(parts).chain(stale).chain([leftovers]);
        all.filter(|piece| !piece.ops.is_empty()).collect()
    }

    fn base_ops(&self, table: Table) -> impl Iterator<Item = Op<'_>> {
        let guests = self.guests.iter().filter(move |guest| guest.0 == table);
        let guests = guests.map(|(_, edit)| match edit {
            Edit::Insert(line) => Op::Insert(line),
            Edit::Append(line) => Op::Append(line),
        });
        let base = self.base.iter().filter(move |chain| chain.0 == table);
        let base = base.map(|(_, name, tail)| Op::Write(name, Lines { slots: &[], tail }));
        let whole = self.whole.iter();
        let whole = whole.filter(move |of| of.chain.table() == table);
        let whole = whole.map(|of| {
            let (slots, tail) = (of.slots.as_slice(), of.tail.as_slice());
            Op::Write(of.chain.name(), Lines { slots, tail })
        });
        base.chain(guests).chain(whole)
    }

    fn part_ops<'a>(&'a self, part: &'a PortWrites) -> Vec<(Table, Op<'a>)> {
        let mut ops = Vec::new();
        // Begins with the last rule, because iptables inserts each rule at the head of its chain.
        for change in part.slots.iter().rev() {
            let (chain, before, after) = (change.slot.chain, &change.before, &change.after);
            // With `Together`, the base piece writes the whole chain with its new rules, so this
            // piece has no commands for the chain. With `Apart`, the base piece writes the chain
            // with its old rules, and this piece changes them.
            if self.manner == RestoreStrategy::Together && self.is_whole(chain) {
                continue;
            }
            let before = before.iter().flat_map(|text| text.lines()).map(Op::Delete);
            let after = after.iter().flat_map(|text| text.lines().rev());
            let changes = before.chain(after.map(Op::Insert));
            ops.extend(changes.map(|op| (chain.table(), op)));
        }
        if !part.chains.is_empty() {
            let style = RuleContext {
                config: &self.config,
                is_terse: self.is_terse,
            };
            ops.push((OWN, Op::WriteOwn(Own { part, style })));
        }
        ops
    }

    /// Returns the number of rules that the plan writes in a table, without rules in built-in
    /// chains and other programs' chains.
    pub(crate) fn rules(&self, table: Table) -> usize {
        let count = |(of, op): &(Table, Op<'_>), subject: PieceScope| match op {
            _ if *of != table => 0,
            Op::Write(_, lines) => lines.len(),
            Op::WriteOwn(own) => own.part.rules,
            Op::Insert(_) | Op::Append(_) => usize::from(subject != PieceScope::Base),
            Op::Delete(_) | Op::Remove(_) => 0,
        };
        let pieces = self.pieces();
        let of = |piece: &Piece<'_>| {
            let ops = piece.ops.iter();
            ops.map(|op| count(op, piece.subject)).sum::<usize>()
        };
        pieces.iter().map(of).sum()
    }

    /// Returns the steps of the plan for the operator, one line each.
    pub fn lines(&self) -> Vec<String> {
        self.steps().into_iter().map(|told| told.line).collect()
    }

    /// Returns the steps of the plan, with the content of the chains that the plan replaces.
    pub fn steps(&self) -> Vec<PlanStep> {
        let pieces = self.pieces();
        let ops = pieces.iter().flat_map(|piece| &piece.ops);
        ops.flat_map(|(table, op)| op.tell(*table)).collect()
    }
}

impl Lines<'_> {
    fn all(&self) -> Vec<String> {
        let slots = self.slots.iter().flat_map(|text| text.lines());
        let tail = self.tail.iter().map(String::as_str);
        slots.chain(tail).map(str::to_owned).collect()
    }

    fn len(&self) -> usize {
        let slots = self.slots.iter().map(|text| text.lines().count());
        slots.sum::<usize>() + self.tail.len()
    }
}

impl Own<'_> {
    fn tell(&self, table: Table) -> Vec<PlanStep> {
        let mut rules: BTreeMap<String, Vec<String>> = BTreeMap::new();
        self.write(&mut |line| {
            let chain = line.split(' ').nth(1).unwrap_or_default().to_owned();
            rules
                .entry(chain)
                .or_default()
                .push(line.trim_end().to_owned());
        });
        let owner = self.part.owner.as_ref().map(|owner| &owner.name);
        let of = owner.map(ToString::to_string).unwrap_or_default();
        let told = self.chains().map(|chain| {
            let name = chain.to_string();
            PlanStep {
                line: format!("write chain {chain} of table {table}, for {of}"),
                chain: Some(WrittenChain {
                    table,
                    rules: rules.remove(&name).unwrap_or_default(),
                    name,
                    owner: owner.cloned(),
                }),
            }
        });
        told.collect()
    }

    /// Returns the chains of the Service port that the plan writes.
    pub(crate) fn chains(&self) -> impl Iterator<Item = Chain> {
        self.part.chains.keys().copied()
    }

    /// Passes each rule of the chains that [`chains`](Self::chains) returns to `write`, as a line
    /// with a line feed.
    pub(crate) fn write(&self, write: &mut dyn FnMut(&str)) {
        if let Some(port) = &self.part.port {
            let is_wanted = |chain| self.part.chains.contains_key(&chain);
            port.write(self.style, &is_wanted, write);
        }
    }
}

impl Op<'_> {
    /// Describes this command for a table as steps for the operator.
    fn tell(&self, table: Table) -> Vec<PlanStep> {
        let plain = |line| vec![PlanStep { line, chain: None }];
        match self {
            Self::Write(name, lines) => {
                let (count, rules) = (lines.len(), lines.all());
                let s = if count == 1 { "" } else { "s" };
                vec![PlanStep {
                    line: format!("write chain {name} of table {table}: {count} rule{s}"),
                    chain: Some(WrittenChain {
                        table,
                        name: (*name).to_owned(),
                        rules,
                        owner: None,
                    }),
                }]
            }
            Self::WriteOwn(own) => own.tell(table),
            Self::Insert(line) | Self::Append(line) => {
                plain(format!("add in table {table}: {line}"))
            }
            Self::Delete(line) => plain(format!("remove in table {table}: {line}")),
            Self::Remove(name) => plain(format!("remove chain {name} of table {table}")),
        }
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(chain) => chain.fmt(f),
            Self::Other(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines()
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}
