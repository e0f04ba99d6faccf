//! Writes a plan with `iptables-restore`, and reports the outcome of each piece. A piece is a list
//! of commands that succeed or fail together.
//!
//! 1. The first attempt writes the whole plan with one `iptables-restore`
//!    ([`RestoreStrategy::Together`]).
//! 2. If iptables refuses this restore, it does not name the refused piece, and may have written
//!    some tables. So the mode reads the kernel's rules again, and writes a new plan table by table
//!    ([`RestoreStrategy::Apart`]).
//! 3. While iptables refuses a restore, the executor writes its halves separately, until it has
//!    isolated each refused piece.

use std::collections::VecDeque;
use std::io::{self, Write};

use iptables::{Restore, Table};

use crate::base::CANARY;
use crate::kernel::{Kernel, Refusal};
use crate::plan::{Op, Piece, PieceScope, Plan, RestoreStrategy, WriteOutcome, WriteOutcomes};
use crate::port::OWN;

/// Largest number of restores for one plan. Each restore starts a process, and refused commands
/// need several restores to isolate them.
const MAX_RESTORES: usize = 32;

impl Plan {
    /// Writes the plan to the kernel with this strategy. Returns the outcome of each piece
    /// (commands that succeed or fail together).
    pub(crate) fn apply(&self, kernel: &mut dyn Kernel, manner: RestoreStrategy) -> WriteOutcomes {
        let pieces = self.pieces();
        let mut executor = Executor {
            kernel,
            left: MAX_RESTORES,
            outcomes: WriteOutcomes {
                parts: vec![WriteOutcome::Done; self.parts.len()],
                stale: vec![WriteOutcome::Done; self.stale.len()],
                ..WriteOutcomes::default()
            },
        };
        match manner {
            RestoreStrategy::Together => executor.together(&pieces),
            RestoreStrategy::Apart => executor.apart(&pieces),
        }
        executor.outcomes
    }
}

/// Writes the input of `iptables-restore` with the commands of `pieces` for `tables`. Omits tables
/// without commands.
fn write(tables: &[Table], pieces: &[&Piece<'_>], restore: &mut Restore<'_>) -> io::Result<()> {
    for table in tables {
        if pieces.iter().any(|piece| piece.touches(*table)) {
            write_table(*table, pieces, restore)?;
        }
    }
    Ok(())
}

fn write_table(table: Table, pieces: &[&Piece<'_>], restore: &mut Restore<'_>) -> io::Result<()> {
    let ops = || pieces.iter().flat_map(move |piece| piece.of(table));
    restore.begin(table)?;
    // Declares all chains first. This creates chains for later jumps, and empties chains that are
    // removed later.
    for op in ops() {
        match op {
            Op::Write(name, _) => restore.declare(name)?,
            Op::WriteOwn(own) => {
                for chain in own.chains() {
                    restore.declare(chain)?;
                }
            }
            Op::Remove(name) => restore.declare(name)?,
            Op::Insert(_) | Op::Append(_) | Op::Delete(_) => {}
        }
    }
    for op in ops() {
        match op {
            Op::Write(_, lines) => {
                for text in lines.slots {
                    restore.append_lines(text)?;
                }
                for line in lines.tail {
                    restore.append(line)?;
                }
            }
            Op::WriteOwn(own) => {
                let mut written = Ok(());
                own.write(&mut |line| {
                    if written.is_ok() {
                        written = restore.append_lines(line);
                    }
                });
                written?;
            }
            Op::Insert(line) => restore.insert(line)?,
            Op::Append(line) => restore.append(line)?,
            Op::Delete(line) => restore.delete(line)?,
            Op::Remove(_) => {}
        }
    }
    for op in ops() {
        if let Op::Remove(name) = op {
            restore.remove(name)?;
        }
    }
    restore.commit()
}

impl Piece<'_> {
    fn of(&self, table: Table) -> impl Iterator<Item = &Op<'_>> {
        let ops = self.ops.iter().filter(move |(of, _)| *of == table);
        ops.map(|(_, op)| op)
    }

    fn touches(&self, table: Table) -> bool {
        self.ops.iter().any(|(of, _)| *of == table)
    }
}

impl WriteOutcomes {
    /// Sets the outcome of every part of the plan to `outcome`.
    fn fill(&mut self, outcome: &WriteOutcome) {
        self.base = outcome.clone();
        self.leftovers = outcome.clone();
        self.parts.fill(outcome.clone());
        self.stale.fill(outcome.clone());
    }
}

/// Executor of one plan, with the outcomes so far.
struct Executor<'a> {
    kernel: &'a mut dyn Kernel,
    /// Number of restores that the plan may still use.
    left: usize,
    outcomes: WriteOutcomes,
}

impl Executor<'_> {
    fn restore(&mut self, tables: &[Table], pieces: &[&Piece<'_>]) -> Result<(), Refusal> {
        self.left = self.left.saturating_sub(1);
        let is_touched = |table: &&Table| pieces.iter().any(|piece| piece.touches(**table));
        let touched = tables.iter().filter(is_touched).count();
        let result = self
            .kernel
            .restore(&mut |sink| write(tables, pieces, &mut Restore::new(sink)));
        match &result {
            Ok(()) => self.outcomes.taken += 1,
            Err(refusal) => {
                self.outcomes.refused += 1;
                self.outcomes.is_doubtful |= !refusal.kind.leaves_all(touched);
                if refusal.kind.is_general() {
                    self.outcomes.general = Some(refusal.reason.as_str().into());
                }
            }
        }
        result
    }

    fn set(&mut self, subject: PieceScope, outcome: WriteOutcome) {
        let place = match subject {
            PieceScope::Base => Some(&mut self.outcomes.base),
            PieceScope::Part(at) => self.outcomes.parts.get_mut(at),
            PieceScope::Stale(at) => self.outcomes.stale.get_mut(at),
            PieceScope::Leftovers => Some(&mut self.outcomes.leftovers),
        };
        if let Some(place) = place {
            *place = outcome;
        }
    }

    fn together(&mut self, pieces: &[Piece<'_>]) {
        let all: Vec<&Piece<'_>> = pieces.iter().collect();
        if let Err(refusal) = self.restore(&Table::ALL, &all) {
            self.outcomes
                .fill(&WriteOutcome::Refused(refusal.reason.into()));
        }
    }

    fn apart(&mut self, pieces: &[Piece<'_>]) {
        let is_base = |piece: &&Piece<'_>| piece.subject == PieceScope::Base;
        for piece in pieces.iter().filter(is_base) {
            if let Err(refusal) = self.restore(&Table::ALL, &[piece]) {
                self.outcomes.fill(&WriteOutcome::Untried);
                self.outcomes.base = WriteOutcome::Refused(refusal.reason.into());
                return;
            }
        }
        for table in Table::ALL {
            let parts = pieces.iter().filter(|piece| {
                let PieceScope::Part(at) = piece.subject else {
                    return false;
                };
                piece.touches(table) && self.outcomes.parts.get(at) == Some(&WriteOutcome::Done)
            });
            let mut parts: Vec<&Piece<'_>> = parts.collect();
            // Sorts pieces that may fail for the same reason next to each other, so that one search
            // isolates all of them.
            parts.sort_by_key(|piece| piece.traits);
            self.halve(table, parts);
        }
        let is_stale = |piece: &&Piece<'_>| matches!(piece.subject, PieceScope::Stale(_));
        self.halve(OWN, pieces.iter().filter(is_stale).collect());
        let is_refused = |outcome: &WriteOutcome| matches!(outcome, WriteOutcome::Refused(_));
        if self.outcomes.parts.iter().any(is_refused) && self.outcomes.taken == 0 {
            self.try_nothing();
        }
        let is_left = |piece: &&Piece<'_>| piece.subject == PieceScope::Leftovers;
        for piece in pieces.iter().filter(is_left) {
            if let Err(refusal) = self.restore(&Table::ALL, &[piece]) {
                self.outcomes.leftovers = WriteOutcome::Refused(refusal.reason.into());
            }
        }
    }

    /// Checks whether the kernel accepts any write at all, after it has refused every write. The
    /// test write flushes the canary chain, which is always empty.
    fn try_nothing(&mut self) {
        let mut write = |sink: &mut dyn Write| {
            let mut restore = Restore::new(sink);
            restore.begin(OWN)?;
            restore.declare(CANARY)?;
            restore.commit()
        };
        if let Err(refusal) = self.kernel.restore(&mut write) {
            self.outcomes.general = Some(refusal.reason.into());
        }
    }

    /// Writes the pieces of a table with one restore. If iptables refuses a group of pieces, tries
    /// each half of the group, and larger groups first.
    fn halve(&mut self, table: Table, all: Vec<&Piece<'_>>) {
        let mut groups = VecDeque::from([all]);
        while let Some(group) = groups.pop_front() {
            if group.is_empty() {
                continue;
            }
            let outcome = if self.left == 0 || self.outcomes.general.is_some() {
                WriteOutcome::Untried
            } else {
                match self.restore(&[table], &group) {
                    Ok(()) => WriteOutcome::Done,
                    Err(_) if group.len() > 1 => {
                        let (one, other) = group.split_at(group.len() / 2);
                        groups.extend([one.to_vec(), other.to_vec()]);
                        continue;
                    }
                    Err(refusal) => WriteOutcome::Refused(refusal.reason.into()),
                }
            };
            for piece in group {
                self.set(piece.subject, outcome.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use iptables::Kind;
    use proxy::Protocol;

    use super::*;
    use crate::base::Edit;
    use crate::chain::Shared;
    use crate::fake::FakeKernel;
    use crate::plan::{Change, PortWrites, WholeChain};
    use crate::port::Slot;

    const SERVICES: Shared = Shared::FilterServices;

    /// Returns the writes of one Service port: one new rule, which matches this port number.
    fn part(chain: Shared, port: u16) -> PortWrites {
        let slot = Slot {
            chain,
            address: None,
            protocol: Protocol::Tcp,
            port,
        };
        let rule = format!("-A {} --dport {port} -j DROP\n", chain.name());
        let change = Change {
            slot,
            before: None,
            after: Some(rule.into()),
        };
        PortWrites {
            slots: vec![change],
            ..PortWrites::default()
        }
    }

    /// Returns a plan with changes in two shared chains. The plan writes the second chain as a
    /// whole.
    fn plan() -> Plan {
        let jump = "-A INPUT -j KUBE-SERVICES".to_owned();
        Plan {
            base: vec![(Table::Filter, SERVICES.name(), Vec::new())],
            guests: vec![(Table::Filter, Edit::Insert(jump))],
            whole: vec![WholeChain {
                chain: Shared::FilterExternal,
                slots: vec!["-A KUBE-EXTERNAL-SERVICES --dport 9 -j DROP\n".into()],
                tail: Vec::new(),
            }],
            parts: [1, 2, 3, 4]
                .map(|port| part(SERVICES, port))
                .into_iter()
                .chain([part(Shared::FilterExternal, 9)])
                .collect(),
            ..Plan::default()
        }
    }

    #[test]
    fn a_plan_counts_the_rules_that_it_writes_and_describes_its_steps() {
        let plan = plan();
        // The plan writes five rules in table filter: one in the chain that it writes as a whole,
        // and four single rules. The fifth port's rule is the rule in the whole chain, and counts
        // once.
        assert_eq!(plan.rules(Table::Filter), 5);
        assert_eq!(plan.rules(Table::Nat), 0);
        let lines = plan.lines();
        assert_eq!(lines.len(), 7, "{lines:?}");
        assert_eq!(
            lines[..3],
            [
                "write chain KUBE-SERVICES of table filter: 0 rules",
                "add in table filter: -A INPUT -j KUBE-SERVICES",
                "write chain KUBE-EXTERNAL-SERVICES of table filter: 1 rule",
            ]
        );
        assert_eq!(
            lines[3],
            "add in table filter: -A KUBE-SERVICES --dport 1 -j DROP"
        );
    }

    #[test]
    fn the_refused_part_of_a_restore_is_isolated() {
        let mut kernel = FakeKernel::new(&[]);
        kernel.state().refused = vec!["--dport 3 ".to_owned()];
        let together = plan().apply(&mut kernel, RestoreStrategy::Together);
        assert_eq!((together.taken, together.refused), (0, 1));
        let is_refused = |outcome: &WriteOutcome| matches!(outcome, WriteOutcome::Refused(_));
        assert!(together.parts.iter().all(is_refused));
        let apart = plan().apply(&mut kernel, RestoreStrategy::Apart);
        let refused: Vec<bool> = apart.parts.iter().map(is_refused).collect();
        assert_eq!(refused, [false, false, true, false, false]);
        assert_eq!((apart.base, apart.general), (WriteOutcome::Done, None));
        // The kernel accepts three restores and refuses three. The restores are: the base, all
        // ports, two halves of the ports, and two halves of the refused half.
        assert_eq!((apart.taken, apart.refused), (3, 3));
    }

    #[test]
    fn no_service_is_written_without_the_base_chains() {
        let mut kernel = FakeKernel::new(&[]);
        kernel.state().refused = vec!["-A INPUT".to_owned()];
        let outcomes = plan().apply(&mut kernel, RestoreStrategy::Apart);
        assert!(matches!(outcomes.base, WriteOutcome::Refused(_)));
        // The executor writes no Service port, not even the last one, whose chain the base writes
        // as a whole.
        assert_eq!(outcomes.parts, vec![WriteOutcome::Untried; 5]);
        assert_eq!(outcomes.refused, 1);
    }

    #[test]
    fn a_general_failure_ends_the_search_for_refused_parts() {
        let mut kernel = FakeKernel::new(&[]);
        kernel.state().held = Some("somebody writes".to_owned());
        let outcomes = Plan {
            parts: plan().parts,
            ..Plan::default()
        }
        .apply(&mut kernel, RestoreStrategy::Apart);
        assert_eq!(outcomes.general.as_deref(), Some("somebody writes"));
        assert_eq!(outcomes.refused, 1);
        assert!(Kind::LockHeld.is_general() && !Kind::Refused.is_general());
    }
}
