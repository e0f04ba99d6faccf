//! Writes as data, the text that carries them out, and what becomes of them.
//!
//! A plan is one `iptables-restore`. Only what is named in its text is touched: a chain that is declared is emptied, or made,
//! and then filled; in a shared chain single rules are removed and put in, so that a change of one Service costs the same
//! among few and among many.
//!
//! When such a text is refused, nobody knows why it is, nor which of its tables were written. So the kernel is read, and the plan
//! made anew is carried out [`Apart`](Manner::Apart): a table at a time, and in halves of halves, until what is refused stands alone.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use proxy::Owner;

use crate::base::{Base, CANARY};
use crate::chain::{Chain, Shared, Table};
use crate::config::Config;
use crate::kernel::{Kernel, Refusal};
use crate::port::{Content, OWN, ServedPort, Slot, Style};
use crate::saved::Leftovers;

/// How many processes a sync may start to find out what is refused.
const MAX_RESTORES: usize = 32;

/// What is to be written.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub(crate) config: Arc<Config>,
    pub(crate) is_terse: bool,
    pub(crate) manner: Manner,
    /// Once it is carried out, this base is there; `None` if it writes nothing of the base but what is there already.
    pub(crate) wanted: Option<Arc<Base>>,
    /// Chains of the base that are not shared.
    pub(crate) base: Vec<(Table, &'static str, Vec<String>)>,
    /// Commands for chains of others.
    pub(crate) guests: Vec<(Table, String)>,
    /// Shared chains that are written whole.
    pub(crate) whole: Vec<Whole>,
    /// What single Service ports want.
    pub(crate) parts: Vec<Part>,
    /// Chains of Service ports that nobody wants.
    pub(crate) stale: Vec<Chain>,
    /// Of IPVS mode.
    pub(crate) leftovers: Leftovers,
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

/// Which of a plan is written.
struct Selection<'a> {
    tables: &'a [Table],
    base: bool,
    parts: Vec<&'a Part>,
    stale: Vec<Chain>,
    leftovers: bool,
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

    /// How many rules it writes in a table, those in chains of others left out.
    pub(crate) fn rules(&self, table: Table) -> usize {
        let count = |text: &Arc<str>| text.lines().count();
        let base = self.base.iter().filter(|chain| chain.0 == table);
        let base: usize = base.map(|(_, _, lines)| lines.len()).sum();
        let whole = self.whole.iter().filter(|of| of.chain.table() == table);
        let whole: usize = whole
            .map(|of| of.slots.iter().map(count).sum::<usize>() + of.tail.len())
            .sum();
        let changes = self.parts.iter().flat_map(|part| &part.slots);
        let changes = changes.filter(|change| {
            let chain = change.slot.chain;
            chain.table() == table && !self.is_whole(chain)
        });
        let slots: usize = changes.filter_map(|of| of.after.as_ref()).map(count).sum();
        let own = self.parts.iter().filter(|_| table == OWN);
        let own: usize = own.map(|part| part.rules).sum();
        base + whole + slots + own
    }

    fn style(&self) -> Style<'_> {
        Style {
            config: &self.config,
            is_terse: self.is_terse,
        }
    }

    fn write_own(&self, part: &Part, write: &mut dyn FnMut(&str)) {
        if let Some(port) = part.port.as_ref().filter(|_| !part.chains.is_empty()) {
            let is_wanted = |chain| part.chains.contains_key(&chain);
            port.write(self.style(), &is_wanted, write);
        }
    }

    /// The text that carries out all of it.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        // Writing to a Vec cannot fail.
        let _ = self.write(&self.everything(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    fn everything(&self) -> Selection<'_> {
        Selection {
            tables: &Table::ALL,
            base: true,
            parts: self.parts.iter().collect(),
            stale: self.stale.clone(),
            leftovers: true,
        }
    }

    fn write(&self, what: &Selection<'_>, sink: &mut dyn Write) -> io::Result<()> {
        what.tables
            .iter()
            .filter(|table| self.touches(what, **table))
            .try_for_each(|table| self.write_table(what, *table, sink))
    }

    fn touches(&self, what: &Selection<'_>, table: Table) -> bool {
        let leftovers = &self.leftovers;
        (what.base
            && (self.base.iter().any(|chain| chain.0 == table)
                || self.guests.iter().any(|guest| guest.0 == table)
                || self.whole.iter().any(|of| of.chain.table() == table)))
            || what.parts.iter().any(|part| self.part_touches(part, table))
            || (table == OWN && !what.stale.is_empty())
            || (what.leftovers
                && (leftovers.chains.iter().any(|chain| chain.0 == table)
                    || leftovers.jumps.iter().any(|jump| jump.0 == table)))
    }

    fn part_touches(&self, part: &Part, table: Table) -> bool {
        let is_there = |change: &Change| {
            change.slot.chain.table() == table && !self.is_whole(change.slot.chain)
        };
        (table == OWN && !part.chains.is_empty()) || part.slots.iter().any(is_there)
    }

    fn write_table(
        &self,
        what: &Selection<'_>,
        table: Table,
        sink: &mut dyn Write,
    ) -> io::Result<()> {
        let base = self.base.iter().filter(|of| what.base && of.0 == table);
        let mut wholes = self.whole.iter();
        let whole: Vec<&Whole> = wholes
            .by_ref()
            .filter(|of| what.base && of.chain.table() == table)
            .collect();
        let guests = self.guests.iter().filter(|of| what.base && of.0 == table);
        let own = what.parts.iter().filter(|_| table == OWN);
        let stale: &[Chain] = if table == OWN { &what.stale } else { &[] };
        let leftovers = &self.leftovers;
        let left = leftovers.chains.iter();
        let left = left.filter(|of| what.leftovers && of.0 == table);
        let jumps = leftovers.jumps.iter();
        let jumps = jumps.filter(|of| what.leftovers && of.0 == table);

        writeln!(sink, "*{}", table.name())?;
        for (_, name, _) in base.clone() {
            writeln!(sink, ":{name} - [0:0]")?;
        }
        for of in &whole {
            writeln!(sink, ":{} - [0:0]", of.chain.name())?;
        }
        for chain in own.clone().flat_map(|part| part.chains.keys()).chain(stale) {
            writeln!(sink, ":{chain} - [0:0]")?;
        }
        for (_, name) in left.clone() {
            writeln!(sink, ":{name} - [0:0]")?;
        }
        for (_, command) in guests {
            writeln!(sink, "{command}")?;
        }
        for line in base.flat_map(|(_, _, lines)| lines) {
            writeln!(sink, "{line}")?;
        }
        for of in &whole {
            for text in &of.slots {
                sink.write_all(text.as_bytes())?;
            }
            for line in &of.tail {
                writeln!(sink, "{line}")?;
            }
        }
        // At the head, so the last one first.
        for change in what.parts.iter().flat_map(|part| part.slots.iter().rev()) {
            let chain = change.slot.chain;
            if chain.table() == table && !self.is_whole(chain) {
                change.write(sink)?;
            }
        }
        for part in own {
            let mut result = Ok(());
            self.write_own(part, &mut |line| {
                if result.is_ok() {
                    result = sink.write_all(line.as_bytes());
                }
            });
            result?;
        }
        for (_, jump) in jumps {
            writeln!(sink, "{}", jump.replacen("-A", "-D", 1))?;
        }
        for chain in stale {
            writeln!(sink, "-X {chain}")?;
        }
        for (_, name) in left {
            writeln!(sink, "-X {name}")?;
        }
        writeln!(sink, "COMMIT")
    }

    /// Carries it out.
    pub(crate) fn apply(&self, kernel: &mut dyn Kernel, manner: Manner) -> Verdicts {
        let mut applying = Applying {
            plan: self,
            kernel,
            left: MAX_RESTORES,
            verdicts: Verdicts {
                parts: vec![Verdict::Done; self.parts.len()],
                stale: vec![Verdict::Done; self.stale.len()],
                ..Verdicts::default()
            },
        };
        match manner {
            Manner::Together => applying.together(),
            Manner::Apart => applying.apart(),
        }
        applying.verdicts
    }
}

impl Change {
    fn write(&self, sink: &mut dyn Write) -> io::Result<()> {
        for line in self.before.iter().flat_map(|text| text.lines()) {
            writeln!(sink, "{}", line.replacen("-A", "-D", 1))?;
        }
        // At the head, so the last one first.
        for line in self.after.iter().flat_map(|text| text.lines().rev()) {
            writeln!(sink, "{}", line.replacen("-A", "-I", 1))?;
        }
        Ok(())
    }
}

/// A plan that is being carried out.
struct Applying<'a> {
    plan: &'a Plan,
    kernel: &'a mut dyn Kernel,
    /// How many restores there may be still.
    left: usize,
    verdicts: Verdicts,
}

impl Applying<'_> {
    fn restore(&mut self, what: &Selection<'_>) -> Result<(), Refusal> {
        self.left = self.left.saturating_sub(1);
        let plan = self.plan;
        let result = self.kernel.restore(&mut |sink| plan.write(what, sink));
        match &result {
            Ok(()) => self.verdicts.taken += 1,
            Err(refusal) => {
                self.verdicts.refused += 1;
                if refusal.is_general {
                    self.verdicts.general = Some(refusal.reason.as_str().into());
                }
            }
        }
        result
    }

    fn together(&mut self) {
        if let Err(refusal) = self.restore(&self.plan.everything()) {
            let refused = Verdict::Refused(refusal.reason.into());
            self.verdicts.base = refused.clone();
            self.verdicts.leftovers = refused.clone();
            self.verdicts.parts.fill(refused.clone());
            self.verdicts.stale.fill(refused);
        }
    }

    fn apart(&mut self) {
        for table in Table::ALL {
            let base = Selection {
                base: true,
                ..nothing(std::slice::from_ref(&table))
            };
            if !self.plan.touches(&base, table) {
                continue;
            }
            if let Err(refusal) = self.restore(&base) {
                self.verdicts.parts.fill(Verdict::Untried);
                self.verdicts.stale.fill(Verdict::Untried);
                self.verdicts.leftovers = Verdict::Untried;
                self.verdicts.base = Verdict::Refused(refusal.reason.into());
                return;
            }
        }
        for table in Table::ALL {
            let parts = self.plan.parts.iter().zip(&self.verdicts.parts).enumerate();
            let touched = parts.filter(|(_, (part, verdict))| {
                **verdict == Verdict::Done && self.plan.part_touches(part, table)
            });
            let mut touched: Vec<usize> = touched.map(|(at, _)| at).collect();
            // What is refused for the same reason stands together then, and is found together.
            touched.sort_by_key(|at| {
                let part = self.plan.parts.get(*at);
                part.and_then(|part| Some(part.port.as_ref()?.traits()))
            });
            self.halve(touched, |applying, group| {
                let parts = group.iter().filter_map(|at| applying.plan.parts.get(*at));
                let parts = Selection {
                    parts: parts.collect(),
                    ..nothing(std::slice::from_ref(&table))
                };
                applying.restore(&parts)
            })
            .into_iter()
            .for_each(|(at, verdict)| set(&mut self.verdicts.parts, at, verdict));
        }
        let stale = (0..self.plan.stale.len()).collect();
        self.halve(stale, |applying, group| {
            let stale = group.iter().filter_map(|at| applying.plan.stale.get(*at));
            let stale = Selection {
                stale: stale.copied().collect(),
                ..nothing(&[OWN])
            };
            applying.restore(&stale)
        })
        .into_iter()
        .for_each(|(at, verdict)| set(&mut self.verdicts.stale, at, verdict));
        let is_refused = |verdict: &Verdict| matches!(verdict, Verdict::Refused(_));
        if self.verdicts.parts.iter().any(is_refused) && self.verdicts.taken == 0 {
            self.try_nothing();
        }
        if !self.plan.leftovers.is_empty() {
            let leftovers = Selection {
                leftovers: true,
                ..nothing(&Table::ALL)
            };
            if let Err(refusal) = self.restore(&leftovers) {
                self.verdicts.leftovers = Verdict::Refused(refusal.reason.into());
            }
        }
    }

    /// Where nothing at all was taken, tries whether anything would be: a chain that is there and empty, emptied.
    fn try_nothing(&mut self) {
        let text = format!("*{}\n:{CANARY} - [0:0]\nCOMMIT\n", OWN.name());
        let mut write = |sink: &mut dyn Write| sink.write_all(text.as_bytes());
        if let Err(refusal) = self.kernel.restore(&mut write) {
            self.verdicts.general = Some(refusal.reason.into());
        }
    }

    /// Tries things together, and what is refused in halves, the largest groups first.
    fn halve(
        &mut self,
        all: Vec<usize>,
        mut attempt: impl FnMut(&mut Self, &[usize]) -> Result<(), Refusal>,
    ) -> Vec<(usize, Verdict)> {
        let mut verdicts = Vec::with_capacity(all.len());
        let mut groups = VecDeque::from([all]);
        while let Some(group) = groups.pop_front() {
            if group.is_empty() {
                continue;
            }
            let verdict = if self.left == 0 || self.verdicts.general.is_some() {
                Verdict::Untried
            } else {
                match attempt(self, &group) {
                    Ok(()) => Verdict::Done,
                    Err(_) if group.len() > 1 => {
                        let (one, other) = group.split_at(group.len() / 2);
                        groups.extend([one.to_vec(), other.to_vec()]);
                        continue;
                    }
                    Err(refusal) => Verdict::Refused(refusal.reason.into()),
                }
            };
            verdicts.extend(group.into_iter().map(|at| (at, verdict.clone())));
        }
        verdicts
    }
}

fn nothing(tables: &[Table]) -> Selection<'_> {
    Selection {
        tables,
        base: false,
        parts: Vec::new(),
        stale: Vec::new(),
        leftovers: false,
    }
}

fn set(verdicts: &mut [Verdict], at: usize, verdict: Verdict) {
    if let Some(of) = verdicts.get_mut(at) {
        *of = verdict;
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines()
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl Plan {
    /// What it does, a line each, for the operator.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (table, name, rules) in &self.base {
            let rules = rules.len();
            lines.push(format!(
                "write chain {name} of table {}: {rules} rules",
                table.name()
            ));
        }
        for (table, command) in &self.guests {
            let rule = command.replacen("-I", "-A", 1);
            lines.push(format!("add in table {}: {rule}", table.name()));
        }
        for Whole { chain, slots, tail } in &self.whole {
            let rules = slots.iter().map(|text| text.lines().count()).sum::<usize>() + tail.len();
            let (name, table) = (chain.name(), chain.table().name());
            lines.push(format!(
                "write chain {name} of table {table}: {rules} rules"
            ));
        }
        for part in &self.parts {
            for Change {
                slot,
                before,
                after,
            } in &part.slots
            {
                let table = slot.chain.table().name();
                let tell = |verb: &str, text: &Option<Arc<str>>| {
                    let rules = text.iter().flat_map(|text| text.lines());
                    rules
                        .map(|line| format!("{verb} table {table}: {line}"))
                        .collect::<Vec<_>>()
                };
                if self.is_whole(slot.chain) {
                    continue;
                }
                lines.extend(tell("remove in", before));
                lines.extend(tell("add in", after));
            }
            for chain in part.chains.keys() {
                let of = part.owner.as_ref().map(|owner| owner.name.to_string());
                let of = of.unwrap_or_default();
                lines.push(format!("write chain {chain} of table nat, for {of}"));
            }
        }
        for chain in &self.stale {
            lines.push(format!("remove chain {chain} of table nat"));
        }
        for (table, jump) in &self.leftovers.jumps {
            lines.push(format!("remove in table {}: {jump}", table.name()));
        }
        for (table, name) in &self.leftovers.chains {
            lines.push(format!("remove chain {name} of table {}", table.name()));
        }
        lines
    }
}
