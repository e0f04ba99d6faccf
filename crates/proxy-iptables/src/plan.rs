//! Writes as data: what they are for, and the commands that they come to.
//!
//! ```text
//!   Plan ─ pieces ─▶ Piece: whose it is, and its ops ─▶ execute ─▶ Verdicts
//! ```
//!
//! Only what is named is touched: a chain that is written is emptied, or made, and then filled; in
//! a shared chain single rules are removed and put in, so that a change of one Service costs the
//! same among few and among many.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use iptables::Table;
use proxy::{Owner, Protocol, ServicePortName};

use crate::base::{Base, Edit};
use crate::chain::{Chain, Shared};
use crate::config::Config;
use crate::port::{Content, OWN, ServedPort, Slot, Style};
use crate::saved::Leftovers;

/// What is to be written.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub(crate) config: Arc<Config>,
    pub(crate) is_terse: bool,
    pub(crate) manner: Manner,
    /// Once it is carried out, this base is there; `None` if it writes nothing of the base but what
    /// is there already.
    pub(crate) wanted: Option<Arc<Base>>,
    /// Chains of the base that are not shared.
    pub(crate) base: Vec<(Table, &'static str, Vec<String>)>,
    /// What is added to chains of others.
    pub(crate) guests: Vec<(Table, Edit)>,
    /// Shared chains that are written whole.
    pub(crate) whole: Vec<Whole>,
    /// What single Service ports want.
    pub(crate) parts: Vec<Part>,
    /// Chains of Service ports that nobody wants.
    pub(crate) stale: Vec<Chain>,
    /// Of other modes.
    pub(crate) leftovers: Leftovers,
}

/// One thing that a plan does, for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// In words.
    pub line: String,
    /// The chain, if one is written whole.
    pub chain: Option<WrittenChain>,
}

/// A chain that is written whole, whatever is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenChain {
    /// Its table.
    pub table: Table,
    /// Its name.
    pub name: String,
    /// What is to be in it: lines from `-A CHAIN` on.
    pub rules: Vec<String>,
    /// The Service port that it is of, if it is of one.
    pub owner: Option<ServicePortName>,
}

/// A shared chain with all its rules.
#[derive(Debug, Clone)]
pub(crate) struct Whole {
    pub(crate) chain: Shared,
    pub(crate) slots: Vec<Arc<str>>,
    pub(crate) tail: Vec<String>,
}

/// What one Service port wants.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    /// `None` for slots that nobody wants.
    pub(crate) owner: Option<Arc<Owner>>,
    pub(crate) port: Option<Arc<ServedPort>>,
    /// Those of its own chains that are written, and what is to be in them.
    pub(crate) chains: BTreeMap<Chain, Content>,
    /// How many rules these have.
    pub(crate) rules: usize,
    pub(crate) slots: Vec<Change>,
}

/// A change in a shared chain.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) slot: Slot,
    pub(crate) before: Option<Arc<str>>,
    pub(crate) after: Option<Arc<str>>,
}

/// What became of a part of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Verdict {
    #[default]
    Done,
    Refused(Arc<str>),
    /// There was no time for it, or what it builds on was refused.
    Untried,
}

/// What became of a plan.
#[derive(Debug, Clone, Default)]
pub struct Verdicts {
    pub(crate) base: Verdict,
    /// One for each part.
    pub(crate) parts: Vec<Verdict>,
    /// One for each stale chain.
    pub(crate) stale: Vec<Verdict>,
    pub(crate) leftovers: Verdict,
    /// How many restores were taken.
    pub(crate) taken: usize,
    /// How many restores were refused.
    pub(crate) refused: usize,
    /// Whether a refused restore may have written some of its tables.
    pub(crate) is_doubtful: bool,
    /// Why nothing would be taken now, whatever it is; the other verdicts say nothing then.
    pub(crate) general: Option<Arc<str>>,
}

/// How a plan is carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Manner {
    /// In one restore.
    #[default]
    Together,
    /// In many, so that what is refused harms nothing else.
    Apart,
}

/// What stands and falls together.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) subject: Subject,
    /// What is refused for the same reason stands together by it.
    pub(crate) traits: Option<(bool, Protocol, bool)>,
    pub(crate) ops: Vec<(Table, Op<'a>)>,
}

/// What a piece is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// What all Services need, in one table.
    Base,
    /// The part with this index.
    Part(usize),
    /// The stale chain with this index.
    Stale(usize),
    Leftovers,
}

/// One thing that is done in a table. Rules are lines from `-A CHAIN` on.
#[derive(Debug, Clone)]
pub(crate) enum Op<'a> {
    /// Makes or empties a chain, and fills it.
    Write(&'static str, Lines<'a>),
    /// The same for chains of one Service port.
    WriteOwn(Own<'a>),
    /// Puts a rule at the head of its chain.
    Insert(&'a str),
    /// Puts it at the end.
    Append(&'a str),
    /// Takes it away.
    Delete(&'a str),
    /// Removes a chain, whatever is in it.
    Remove(Name<'a>),
}

/// The rules of a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines<'a> {
    /// First texts of several lines, which end with a line feed each.
    pub(crate) slots: &'a [Arc<str>],
    pub(crate) tail: &'a [String],
}

/// Chains of one Service port. Their rules are rendered when they are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own<'a> {
    part: &'a Part,
    style: Style<'a>,
}

/// The name of a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Name<'a> {
    Own(Chain),
    Other(&'a str),
}

impl Plan {
    /// Whether there is nothing to write.
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

    /// All of it, in the order in which it is done: by piece, and within each by table.
    pub(crate) fn pieces(&self) -> Vec<Piece<'_>> {
        let base = Table::ALL.into_iter().map(|table| Piece {
            subject: Subject::Base,
            traits: None,
            ops: self.base_ops(table).map(|op| (table, op)).collect(),
        });
        let parts = self.parts.iter().enumerate().map(|(at, part)| Piece {
            subject: Subject::Part(at),
            traits: part.port.as_ref().map(|port| port.traits()),
            ops: self.part_ops(part),
        });
        let stale = self.stale.iter().enumerate().map(|(at, chain)| Piece {
            subject: Subject::Stale(at),
            traits: None,
            ops: vec![(OWN, Op::Remove(Name::Own(*chain)))],
        });
        let jumps = self.leftovers.jumps();
        let jumps = jumps.map(|(table, line)| (table, Op::Delete(line)));
        let chains = self.leftovers.chains();
        let chains = chains.map(|(table, name)| (table, Op::Remove(Name::Other(name))));
        let leftovers = Piece {
            subject: Subject::Leftovers,
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

    fn part_ops<'a>(&'a self, part: &'a Part) -> Vec<(Table, Op<'a>)> {
        let mut ops = Vec::new();
        // At the head, so the last one first.
        for change in part.slots.iter().rev() {
            let (chain, before, after) = (change.slot.chain, &change.before, &change.after);
            // Written apart, a chain has what was there before: its own piece tries what changes.
            if self.manner == Manner::Together && self.is_whole(chain) {
                continue;
            }
            let before = before.iter().flat_map(|text| text.lines()).map(Op::Delete);
            let after = after.iter().flat_map(|text| text.lines().rev());
            let changes = before.chain(after.map(Op::Insert));
            ops.extend(changes.map(|op| (chain.table(), op)));
        }
        if !part.chains.is_empty() {
            let style = Style {
                config: &self.config,
                is_terse: self.is_terse,
            };
            ops.push((OWN, Op::WriteOwn(Own { part, style })));
        }
        ops
    }

    /// How many rules it writes in a table, those in chains of others left out.
    pub(crate) fn rules(&self, table: Table) -> usize {
        let count = |(of, op): &(Table, Op<'_>), subject: Subject| match op {
            _ if *of != table => 0,
            Op::Write(_, lines) => lines.len(),
            Op::WriteOwn(own) => own.part.rules,
            Op::Insert(_) | Op::Append(_) => usize::from(subject != Subject::Base),
            Op::Delete(_) | Op::Remove(_) => 0,
        };
        let pieces = self.pieces();
        let of = |piece: &Piece<'_>| {
            let ops = piece.ops.iter();
            ops.map(|op| count(op, piece.subject)).sum::<usize>()
        };
        pieces.iter().map(of).sum()
    }

    /// What it does, a line each, for the operator.
    pub fn lines(&self) -> Vec<String> {
        self.told().into_iter().map(|told| told.line).collect()
    }

    /// The same, with what is to be in chains that are written whole.
    pub fn told(&self) -> Vec<Told> {
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
    fn tell(&self, table: Table) -> Vec<Told> {
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
            Told {
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

    /// The chains.
    pub(crate) fn chains(&self) -> impl Iterator<Item = Chain> {
        self.part.chains.keys().copied()
    }

    /// Tells each rule, as a line that ends with a line feed.
    pub(crate) fn write(&self, write: &mut dyn FnMut(&str)) {
        if let Some(port) = &self.part.port {
            let is_wanted = |chain| self.part.chains.contains_key(&chain);
            port.write(self.style, &is_wanted, write);
        }
    }
}

impl Op<'_> {
    /// What it does in a table.
    fn tell(&self, table: Table) -> Vec<Told> {
        let plain = |line| vec![Told { line, chain: None }];
        match self {
            Self::Write(name, lines) => {
                let (count, rules) = (lines.len(), lines.all());
                let s = if count == 1 { "" } else { "s" };
                vec![Told {
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
