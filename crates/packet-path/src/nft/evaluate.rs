//! Evaluates the rules of a base chain for a packet, like the kernel's `nft_do_chain`. Follows
//! every path that a random choice may take.

use std::sync::Arc;

use nftables_netlink::{Error, KernelRule, Name, Policy, Verdict};

use super::describe;
use super::reader::{ObjectId, Reader};
use super::run::{Evaluation, RuleResult, Run};
use crate::branch::{Branch, Doubt, End, Step};

/// Maximum depth of nested jumps in the kernel (`NFT_JUMP_STACK_SIZE`).
const DEPTH: usize = 16;
/// Maximum number of rules and choices that are evaluated in one base chain. A Service needs a few
/// for each endpoint. Beyond this number, for example after many rules with unknown outcome, the
/// rest of the path is unknown.
pub(super) const BUDGET: usize = 100_000;
/// Maximum number of branches among which equal ones are joined. More branches would take too long,
/// because each one is compared with all others.
const JOINED: usize = 256;

/// Point at which a path continues after a rule or a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    /// The path continues with the next rule or, after a chain, in the calling chain.
    On,
    /// The path returns to the chain that has called the current chain.
    Return,
    /// The path leaves the base chain. If the packet's path ends here, `Branch::end` is set.
    Out,
}

impl<R: Reader> Evaluation<'_, R> {
    /// Evaluates a base chain, and applies its policy to packets that no rule has accepted.
    pub(super) fn base_chain(
        &mut self,
        chain: &ObjectId,
        policy: Policy,
        branch: Branch,
    ) -> Result<Vec<Branch>, Error> {
        let mut branches = Vec::new();
        for (mut branch, exit) in self.chain(chain, branch, 0)? {
            if exit != Exit::Out && policy == Policy::Drop {
                let says = "no rule has accepted it: it is dropped without an error to the sender";
                branch.step(Step::new(describe::place(chain), "policy drop", says));
                branch.end = Some(End::Dropped);
            }
            branches.push(branch);
        }
        Ok(branches)
    }

    fn chain(
        &mut self,
        chain: &ObjectId,
        branch: Branch,
        depth: usize,
    ) -> Result<Vec<(Branch, Exit)>, Error> {
        let rules = self.asked.rules(chain)?;
        let (mut open, mut back, mut out) = (vec![branch], Vec::new(), Vec::new());
        for rule in rules.iter() {
            let mut next = Vec::new();
            for mut branch in open {
                self.budget = self.budget.saturating_sub(1);
                if self.budget == 0 {
                    branch.end = Some(End::Unknown(describe::too_many(chain, &rule.rule)));
                    out.push((branch, Exit::Out));
                    continue;
                }
                for (branch, exit) in self.rule(chain, rule, branch, depth)? {
                    match exit {
                        Exit::On => next.push(branch),
                        Exit::Return => back.push(branch),
                        Exit::Out => out.push((branch, exit)),
                    }
                }
            }
            open = joined(next);
            if open.is_empty() {
                break;
            }
        }
        back.extend(open);
        out.extend(joined(back).into_iter().map(|branch| (branch, Exit::On)));
        Ok(out)
    }

    fn rule(
        &mut self,
        chain: &ObjectId,
        found: &KernelRule,
        branch: Branch,
        depth: usize,
    ) -> Result<Vec<(Branch, Exit)>, Error> {
        let before = branch.steps.len();
        let stopped = self.carry_out(chain, found, branch)?;
        let mut ways = Vec::with_capacity(stopped.len());
        for (branch, leads) in settled(chain, found, stopped) {
            match leads {
                Continuation::Exit(exit) => ways.push((branch, exit)),
                Continuation::Into(to, after) => {
                    let inside = self.inside(&chain.beside(&to), branch, depth)?;
                    ways.extend(inside.into_iter().map(|(mut branch, exit)| match exit {
                        Exit::Out => (branch, exit),
                        Exit::On | Exit::Return => {
                            // Removes the step of a jump into a chain without effect.
                            if after == Exit::On && branch.steps.len() == before + 1 {
                                branch.steps.truncate(before);
                                branch.passed += 1;
                            }
                            (branch, after)
                        }
                    }));
                }
            }
        }
        Ok(ways)
    }

    /// Evaluates one rule, and returns its paths in the order of the rule's alternatives.
    fn carry_out(
        &mut self,
        chain: &ObjectId,
        found: &KernelRule,
        branch: Branch,
    ) -> Result<Vec<(Run, Option<Verdict>)>, Error> {
        let (mut open, mut stopped) = (vec![Run::new(branch)], Vec::new());
        while let Some(run) = open.pop() {
            match run.go(self, chain, &found.rule)? {
                RuleResult::Fork(runs) if runs.len() < self.budget => {
                    self.budget -= runs.len();
                    open.extend(runs);
                }
                RuleResult::Fork(runs) => {
                    let chance = runs.iter().map(|run| run.branch.chance).sum();
                    if let Some(mut run) = runs.into_iter().next() {
                        run.branch.chance = chance;
                        run.branch.end = Some(End::Unknown(describe::too_many(chain, &found.rule)));
                        stopped.push((run, None));
                    }
                }
                RuleResult::Ended(run, verdict) => stopped.push((*run, verdict)),
            }
        }
        // The stack `open` has returned the paths in reverse order.
        stopped.reverse();
        Ok(stopped)
    }

    fn inside(
        &mut self,
        to: &ObjectId,
        mut branch: Branch,
        depth: usize,
    ) -> Result<Vec<(Branch, Exit)>, Error> {
        if depth + 1 < DEPTH {
            return self.chain(to, branch, depth + 1);
        }
        branch.end = Some(End::Unknown(describe::too_deep(to)));
        Ok(vec![(branch, Exit::Out)])
    }
}

/// Point at which a path continues after one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Continuation {
    Exit(Exit),
    /// The path enters the named chain, and then continues at the given `Exit`.
    Into(Name, Exit),
}

impl Continuation {
    fn of(verdict: Option<Verdict>) -> Self {
        match verdict {
            None | Some(Verdict::Continue) => Self::Exit(Exit::On),
            Some(Verdict::Accept | Verdict::Drop) => Self::Exit(Exit::Out),
            Some(Verdict::Return) => Self::Exit(Exit::Return),
            Some(Verdict::Jump(chain)) => Self::Into(chain, Exit::On),
            Some(Verdict::Goto(chain)) => Self::Into(chain, Exit::Return),
        }
    }
}

/// One of the paths through a rule.
struct RulePath {
    branch: Branch,
    leads: Continuation,
    /// Assumed outcome of the rule's unknown test: true for a match. `None` if the rule has no
    /// unknown test.
    side: Option<bool>,
    doubt: Option<Arc<str>>,
}

/// Adds a rule's steps to its paths, and joins equal paths. Drops the rule's doubt if a match and
/// no match have the same results.
fn settled(
    chain: &ObjectId,
    found: &KernelRule,
    stopped: Vec<(Run, Option<Verdict>)>,
) -> Vec<(Branch, Continuation)> {
    let mut all: Vec<RulePath> = Vec::with_capacity(stopped.len());
    for (mut run, verdict) in stopped {
        let step = describe::step(chain, found, &run, verdict.as_ref());
        let is_nothing = step.is_none();
        match step {
            Some(step) => run.branch.step(step),
            None => run.branch.passed += 1,
        }
        if verdict == Some(Verdict::Drop) {
            run.branch.end = Some(End::Dropped);
        }
        let leads = if run.branch.end.is_some() {
            Continuation::Exit(Exit::Out)
        } else {
            Continuation::of(verdict)
        };
        let (side, doubt) = run.doubt.unzip();
        // Joins this path with an equal earlier path, if the rule has no effect on either.
        let mut others = all.iter_mut().filter(|_| is_nothing);
        let like = others
            .find(|of| of.side == side && of.leads == leads && is_like(&of.branch, &run.branch));
        match like {
            Some(like) => like.branch.chance += run.branch.chance,
            None => all.push(RulePath {
                branch: run.branch,
                leads,
                side,
                doubt,
            }),
        }
    }
    if makes_no_difference(&all) {
        all.retain(|of| of.side != Some(false));
        return all.into_iter().map(|of| (of.branch, of.leads)).collect();
    }
    let decided = all.into_iter().map(|of| {
        let mut branch = of.branch;
        let doubt = of.side.zip(of.doubt);
        branch
            .doubts
            .extend(doubt.map(|(matches, what)| Doubt { what, matches }));
        (branch, of.leads)
    });
    decided.collect()
}

/// Reports whether a rule with unknown outcome has the same results with and without a match.
fn makes_no_difference(all: &[RulePath]) -> bool {
    let of = |side| {
        all.iter()
            .filter(move |of: &&RulePath| of.side == Some(side))
    };
    of(true).count() == of(false).count()
        && of(true).all(|yes| {
            of(false).any(|no| yes.leads == no.leads && is_like(&yes.branch, &no.branch))
        })
}

/// Reports whether two branches are equal, apart from their probabilities.
fn is_like(one: &Branch, other: &Branch) -> bool {
    one.packet == other.packet
        && one.end == other.end
        && one.steps == other.steps
        && one.doubts == other.doubts
}

/// Joins branches that are equal apart from their probabilities, which it adds up.
fn joined(branches: Vec<Branch>) -> Vec<Branch> {
    if branches.len() > JOINED {
        return branches;
    }
    let mut all: Vec<Branch> = Vec::with_capacity(branches.len().min(8));
    for branch in branches {
        match all.iter_mut().find(|of| is_like(of, &branch)) {
            Some(like) => like.chance += branch.chance,
            None => all.push(branch),
        }
    }
    all
}
