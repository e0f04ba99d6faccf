//! Moves a packet through the chains of an iptables table.

use std::net::IpAddr;

use iptables::RuleLine;

use super::matching::{self, MatchResult, RuleMatch, source_words};
use super::options;
use super::rule::{ConnectionMark, Nat, Rule, Target};
use super::targets::WORDLESS;
use super::{Chain, Rules, Table, counters, name_of};
use crate::branch::{Branch, End, MOST_BRANCHES, Step};
use crate::kernel::Kernel;
use crate::packet::{Packet, SourceNat, Tracking};
use crate::ruleset::Hook;

/// Maximum depth of nested chains. The kernel refuses loops of chains, but a dump of rules may
/// contain one.
const DEEPEST: usize = 256;

/// Moves a packet through a table's built-in chain at a hook. Returns the packet's possible paths.
pub(super) fn through(
    table: &Table,
    hook: Hook,
    branch: Branch,
    kernel: &dyn Kernel,
) -> Vec<Branch> {
    let name = name_of(hook);
    let Some(chain) = table.chains.get(name) else {
        return vec![branch];
    };
    let mut walk = TableWalk {
        table,
        hook,
        kernel,
        built_in: chain,
        under_way: Vec::new(),
        done: Vec::new(),
    };
    walk.under_way.push(Position {
        branch,
        frames: vec![Frame {
            chain: name,
            rest: table.rules(chain),
            steps: None,
        }],
    });
    while let Some(at) = walk.under_way.pop() {
        walk.advance(at);
    }
    walk.done
}

struct TableWalk<'a> {
    table: &'a Table,
    hook: Hook,
    kernel: &'a dyn Kernel,
    built_in: &'a Chain,
    under_way: Vec<Position<'a>>,
    done: Vec<Branch>,
}

/// Position of one branch (possible path) in the rules of a table.
#[derive(Clone)]
struct Position<'a> {
    branch: Branch,
    /// Chains that the branch has entered, the innermost last.
    frames: Vec<Frame<'a>>,
}

/// A chain that a branch has entered, with the rules that are left.
#[derive(Clone)]
struct Frame<'a> {
    chain: &'a str,
    rest: Rules<'a>,
    /// Number of the branch's steps when it entered the chain, with the jump. `None` for a built-in
    /// chain.
    steps: Option<usize>,
}

/// Point at which a branch continues after a rule.
enum Next<'r> {
    /// The branch continues with the next rule of the chain.
    On,
    /// The branch returns to the calling chain.
    Return,
    /// The branch leaves the table, or its path ends.
    Leave,
    /// The branch enters a chain. `comes_back` is false for `--goto`.
    Into { chain: &'r str, comes_back: bool },
}

impl<'a> TableWalk<'a> {
    /// Advances a branch rule by rule until it leaves the table or splits.
    fn advance(&mut self, mut at: Position<'a>) {
        loop {
            let Some(frame) = at.frames.last_mut() else {
                let ended = self.policy(at.branch);
                self.done.push(ended);
                return;
            };
            let Some(line) = frame.rest.next() else {
                at.leave();
                continue;
            };
            let place = format!("{} {}", self.table.name, frame.chain);
            let (counted, text) = counters(line);
            let Some(rule) = RuleLine::parse(text).map(parse) else {
                continue;
            };
            let fit = matching::fit(&rule, &at.branch.packet, self.kernel);
            if fit.how == MatchResult::No && !fit.is_new_client {
                at.branch.passed += 1;
                continue;
            }
            let mut step = Step::new(place, text, "");
            step.counters = counted;
            match self.carry_out(at, &rule, fit, step) {
                Some(goes_on) => at = goes_on,
                None => return,
            }
        }
    }

    /// Applies a rule that may match. Returns the branch that continues in this table, if any.
    fn carry_out(
        &mut self,
        mut at: Position<'a>,
        rule: &Rule,
        fit: RuleMatch,
        mut step: Step,
    ) -> Option<Position<'a>> {
        step.members = fit.members;
        match fit.how {
            MatchResult::No => {
                note_new_client(&mut at.branch, step);
                Some(at)
            }
            MatchResult::Yes => self.apply(at, &rule.target, step),
            MatchResult::Unknown(why) if is_harmless(&rule.target) => {
                step.says = format!("is unknown ({why}); does nothing to the packet either way");
                at.branch.step(step);
                Some(at)
            }
            _ if self.done.len() + self.under_way.len() >= MOST_BRANCHES => {
                let most =
                    format!("more than {MOST_BRANCHES} ways that it may go are not followed");
                step.says.clone_from(&most);
                at.branch.step(step);
                at.branch.end = Some(End::Unknown(most));
                self.done.push(at.branch);
                None
            }
            MatchResult::Chance(chance) => {
                let mut fits = at.clone();
                fits.branch.chance *= chance;
                at.branch.chance *= 1.0 - chance;
                at.branch.passed += 1;
                let fits = self.apply(fits, &rule.target, step);
                self.under_way.extend(fits);
                Some(at)
            }
            MatchResult::Unknown(why) if is_wordless(&rule.target) => {
                // The rule's tests and target are unknown, so a step notes that it is assumed not
                // to match.
                step.says = format!("is unknown: {why}; assumed not to match");
                at.branch.step(step);
                Some(at)
            }
            MatchResult::Unknown(why) => {
                let what = format!("{}: `{}`: {why}", step.place, step.entry);
                let frames = at.frames.clone();
                let (branch, mut no) = at.branch.doubt(&what);
                let mut passed = step.clone();
                passed.says = format!("is unknown: {why}; assumed not to match");
                no.step(passed);
                step.says = format!("is unknown: {why}; assumed to match, so ");
                let fits = self.apply(Position { branch, frames }, &rule.target, step);
                self.under_way.extend(fits);
                Some(Position {
                    branch: no,
                    frames: at.frames,
                })
            }
        }
    }

    fn apply(&mut self, mut at: Position<'a>, target: &Target, step: Step) -> Option<Position<'a>> {
        match self.act(&mut at, target, step) {
            Next::On => Some(at),
            Next::Return => {
                at.leave();
                Some(at)
            }
            Next::Leave => {
                self.done.push(at.branch);
                None
            }
            Next::Into { chain, comes_back } => {
                if !comes_back {
                    at.frames.pop();
                }
                let found = self.table.chains.get_key_value(chain);
                let Some((name, chain)) = found.filter(|_| at.frames.len() < DEEPEST) else {
                    let why = format!("there is no chain {chain}, or it leads in circles");
                    at.branch.end = Some(End::Unknown(why));
                    self.done.push(at.branch);
                    return None;
                };
                let steps = Some(at.branch.steps.len());
                at.frames.push(Frame {
                    chain: name,
                    rest: self.table.rules(chain),
                    steps,
                });
                Some(at)
            }
        }
    }

    /// Applies a target to the packet, and adds a step if the target has an effect.
    fn act<'r>(&self, at: &mut Position<'a>, target: &'r Target, mut step: Step) -> Next<'r> {
        let packet = &mut at.branch.packet;
        let (says, next) = match target {
            Target::None | Target::Harmless(_) => {
                at.branch.passed += 1;
                return Next::On;
            }
            Target::Accept => {
                let table = &self.table.name;
                (
                    format!("accepted: no further rule of {table} is asked"),
                    Next::Leave,
                )
            }
            Target::Drop => {
                at.branch.end = Some(End::Dropped);
                (
                    "dropped without an error to the sender".to_owned(),
                    Next::Leave,
                )
            }
            Target::Reject(with) => {
                at.branch.end = Some(End::Refused(with.clone()));
                (format!("refused: its sender gets {with}"), Next::Leave)
            }
            Target::Return => ("leaves the chain".to_owned(), Next::Return),
            Target::Mark { value, mask } => {
                packet.mark = (packet.mark & !mask) ^ value;
                (format!("its mark becomes {:#x}", packet.mark), Next::On)
            }
            Target::MapMark(set, sides) => {
                match matching::marked_member(set, sides, packet, self.kernel) {
                    Ok(None) => {
                        at.branch.passed += 1;
                        return Next::On;
                    }
                    Ok(Some((member, mark))) => {
                        packet.mark = (packet.mark & !mark.mask) ^ mark.value;
                        step.members.push(format!("{set} {member}"));
                        let says =
                            format!("its mark becomes {:#x}, that of the member", packet.mark);
                        (says, Next::On)
                    }
                    Err(why) => {
                        let says = format!("its mark is unknown: {why}");
                        at.branch.end = Some(End::Unknown(why));
                        (says, Next::Leave)
                    }
                }
            }
            Target::ConnectionMark(what) => (connection_mark(packet, *what), Next::On),
            Target::NoTrack => {
                packet.tracking = Tracking::Untracked;
                (
                    "it is not tracked, so that nothing is translated".to_owned(),
                    Next::On,
                )
            }
            Target::Masquerade => self.masquerade(packet),
            Target::Snat(to) => {
                let nat = SourceNat::To(to.address, to.port);
                let says = source_words(&nat);
                packet.translate_source(nat);
                (says, Next::Leave)
            }
            Target::Dnat(to) => (translate(packet, *to), Next::Leave),
            Target::Redirect(port) => self.redirect(packet, *port),
            Target::Jump(chain) => {
                let says = format!("goes through {chain}");
                (
                    says,
                    Next::Into {
                        chain,
                        comes_back: true,
                    },
                )
            }
            Target::Goto(chain) => {
                let says = format!("goes on in {chain}");
                (
                    says,
                    Next::Into {
                        chain,
                        comes_back: false,
                    },
                )
            }
            Target::Unknown(text) => {
                let why = format!("`{text}` is not understood");
                let says = format!("what becomes of it is unknown: {why}");
                at.branch.end = Some(End::Unknown(why));
                (says, Next::Leave)
            }
        };
        step.says.push_str(&says);
        at.branch.step(step);
        next
    }

    fn masquerade(&self, packet: &mut Packet) -> (String, Next<'static>) {
        let address = packet.oif.as_ref().and_then(|oif| {
            // If the address is unknown, the step does not name it.
            self.kernel
                .address_of(oif, packet.destination)
                .ok()
                .flatten()
        });
        let nat = SourceNat::Masquerade(address);
        let says = source_words(&nat);
        packet.translate_source(nat);
        (says, Next::Leave)
    }

    fn redirect(&self, packet: &mut Packet, port: Option<u16>) -> (String, Next<'static>) {
        let (source, family) = (packet.source, packet.family());
        let address = match (self.hook, &packet.iif) {
            (Hook::Output, _) | (_, None) => Some(family.localhost()),
            (_, Some(iif)) => self.kernel.address_of(iif, source).ok().flatten(),
        };
        packet.translate(address, port);
        packet.is_redirected = true;
        let says = format!("redirected to this node itself, port {}", packet.port);
        (says, Next::Leave)
    }

    /// Applies the policy of the table's built-in chain at the hook.
    fn policy(&self, mut branch: Branch) -> Branch {
        if self.built_in.drops {
            let name = name_of(self.hook);
            let place = format!("{} {name}", self.table.name);
            let mut step = Step::new(
                place,
                format!("policy DROP of {name}"),
                "dropped without an error to the sender",
            );
            step.counters = self.built_in.counters;
            branch.step(step);
            branch.end = Some(End::Dropped);
        }
        branch
    }
}

impl Position<'_> {
    /// Leaves the innermost chain. If the chain had no effect, removes the step of the jump to it.
    fn leave(&mut self) {
        let Some(frame) = self.frames.pop() else {
            return;
        };
        if frame.steps == Some(self.branch.steps.len()) {
            self.branch.steps.pop();
            self.branch.passed += 1;
        }
    }
}

/// Parses one rule of `iptables-save`.
pub(super) fn parse(line: RuleLine<'_>) -> Rule {
    let mut words = line.words();
    // Skips `-A` and the chain's name.
    words.next();
    words.next();
    options::read(words)
}

/// Reports whether the rule's target is one that iptables cannot express.
fn is_wordless(target: &Target) -> bool {
    matches!(target, Target::Unknown(text) if text.strip_prefix("-j ") == Some(WORDLESS))
}

/// Reports whether the target does not affect the packet.
fn is_harmless(target: &Target) -> bool {
    matches!(target, Target::None | Target::Harmless(_))
}

/// Adds a step with the assumption that the client is new, because `-m recent` sends a returning
/// client to its earlier endpoint. Each endpoint has such a rule, so one step per path suffices.
fn note_new_client(branch: &mut Branch, mut step: Step) {
    const SAYS: &str = "would send a client that came before to the same endpoint as then; this \
                        one is \
                        taken to be new";
    branch.passed += 1;
    if !branch.steps.iter().any(|earlier| earlier.says == SAYS) {
        SAYS.clone_into(&mut step.says);
        branch.step(step);
    }
}

fn connection_mark(packet: &mut Packet, what: ConnectionMark) -> String {
    match what {
        ConnectionMark::Set { value, mask } => {
            packet.connection_mark = (packet.connection_mark & !mask) ^ value;
        }
        ConnectionMark::Save { from, to } => {
            packet.connection_mark = (packet.connection_mark & !to) ^ (packet.mark & from);
        }
        ConnectionMark::Restore { from, to } => {
            packet.mark = (packet.mark & !to) ^ (packet.connection_mark & from);
            let mark = packet.mark;
            return format!("its mark becomes {mark:#x}, that of its connection");
        }
    }
    let mark = packet.connection_mark;
    format!("its connection's mark becomes {mark:#x}")
}

fn translate(packet: &mut Packet, to: Nat) -> String {
    let address: Option<IpAddr> = to.address;
    packet.translate(address, to.port);
    format!("sent to {} instead", packet.to())
}
