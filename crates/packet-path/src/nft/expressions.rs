//! Evaluates the expressions of one nf_tables rule for one packet.

use std::sync::Arc;

use nftables_netlink::{
    Bytes, CtKey, DataType, DynsetOperation, Element, ElementData, Error, Expression, LookupFor,
    Membership, MetaKey, Register, Rule, SetRef, text,
};

use super::fields::Fields;
use super::reader::{ObjectId, Reader};
use super::registers::{self, Registers};
use super::run::{Effect, Evaluation, ExpressionResult, RuleResult, Run};
use super::sets;
use crate::branch::End;
use crate::packet::Tracking;

/// Maximum number of alternatives of a random choice that each get their own path. Beyond it, the
/// chosen number is unknown.
const CHOICES: u32 = 20_000;

impl Run {
    /// Evaluates expressions until the rule ends or the path splits.
    pub(super) fn go<R: Reader>(
        mut self,
        evaluation: &mut Evaluation<'_, R>,
        chain: &ObjectId,
        rule: &Rule,
    ) -> Result<RuleResult, Error> {
        while let Some(expression) = rule.expressions.get(self.at) {
            self.at += 1;
            match self.one(evaluation, chain, expression)? {
                ExpressionResult::On => {}
                ExpressionResult::Missed => return Ok(RuleResult::Ended(Box::new(self), None)),
                ExpressionResult::Ended(verdict) => {
                    return Ok(RuleResult::Ended(Box::new(self), verdict));
                }
                ExpressionResult::Open(what) => {
                    if let Some(parted) = self.part(super::describe::open(chain, rule, what)) {
                        return Ok(parted);
                    }
                }
                ExpressionResult::Lost => {
                    let why = super::describe::lost(chain, rule, expression);
                    self.branch.end = Some(End::Unknown(why));
                    return Ok(RuleResult::Ended(Box::new(self), None));
                }
                ExpressionResult::NotUnderstood => {
                    // An unsupported expression may have written any register, so all become
                    // unknown.
                    self.registers = Registers::new();
                    let doubt = super::describe::not_understood(chain, rule, expression);
                    if let Some(parted) = self.part(doubt) {
                        return Ok(parted);
                    }
                }
                ExpressionResult::Choose(count, first, to) => {
                    return Ok(self.choose(count, first, to));
                }
            }
        }
        Ok(RuleResult::Ended(Box::new(self), None))
    }

    /// Splits the path in two: one assumes that an unknown test matches, the other that it does
    /// not. If the rule already has a doubt, returns `None`, and the path continues as with a
    /// match.
    fn part(&mut self, doubt: Arc<str>) -> Option<RuleResult> {
        if self.doubt.is_some() {
            return None;
        }
        let mut yes = self.clone();
        yes.doubt = Some((true, Arc::clone(&doubt)));
        let mut no = self.clone();
        no.doubt = Some((false, doubt));
        // Without a match, the effects so far remain, but the rule ends here, because no expression
        // has this index.
        no.at = usize::MAX;
        Some(RuleResult::Fork(vec![yes, no]))
    }

    fn choose(self, count: u32, first: u32, to: Register) -> RuleResult {
        let runs = (0..count).map(|number| {
            let mut run = self.clone();
            run.branch.chance /= f64::from(count);
            run.choices = Some(self.choices.unwrap_or(1).saturating_mul(count));
            let number = first.wrapping_add(number);
            run.registers.put(to, &number.to_ne_bytes());
            run
        });
        RuleResult::Fork(runs.collect())
    }

    fn one<R: Reader>(
        &mut self,
        evaluation: &mut Evaluation<'_, R>,
        chain: &ObjectId,
        expression: &Expression,
    ) -> Result<ExpressionResult, Error> {
        Ok(match expression {
            Expression::Lookup { key, set, what } => {
                return self.lookup(evaluation, chain, (*key, set), *what);
            }
            Expression::Compare {
                register,
                how,
                with,
            } => {
                let found = self.registers.read(*register, with.len());
                match registers::compare(&found, *how, with) {
                    Some(holds) => holds.into(),
                    None => ExpressionResult::Open(NOT_KNOWN),
                }
            }
            Expression::Range {
                register,
                how,
                from,
                to,
            } => match self.registers.bytes(*register, from.len()) {
                Some(found) => {
                    let is_in = *from <= found && found <= *to;
                    (is_in == (*how == Membership::In)).into()
                }
                None => ExpressionResult::Open(NOT_KNOWN),
            },
            Expression::Verdict(verdict) => ExpressionResult::Ended(Some(verdict.clone())),
            Expression::Reject { kind, code } => {
                let message = super::describe::refusal(self.branch.packet.family(), *kind, *code);
                self.branch.end = Some(End::Refused(message));
                ExpressionResult::Ended(None)
            }
            Expression::NumGen {
                modulus,
                offset,
                to,
                ..
            }
            | Expression::Jhash {
                modulus,
                offset,
                to,
                ..
            } => {
                if *modulus == 0 || *modulus > CHOICES {
                    self.registers.forget(*to, 4);
                    ExpressionResult::On
                } else {
                    ExpressionResult::Choose(*modulus, *offset, *to)
                }
            }
            // Assumes that the first packet of a flow exceeds no limit.
            Expression::Limit { over, .. } => (!over).into(),
            Expression::Dynset { set, operation, .. } => {
                self.note(set, *operation);
                ExpressionResult::On
            }
            Expression::Object { kind, .. } => match *kind {
                // 1 is NFT_OBJECT_COUNTER, and 4 is NFT_OBJECT_LIMIT. Assumes that the packet does
                // not exceed the limit.
                1 | 4 => ExpressionResult::On,
                _ => ExpressionResult::NotUnderstood,
            },
            Expression::NoTrack => {
                if self.branch.packet.tracking == Tracking::NotYet {
                    self.branch.packet.tracking = Tracking::Untracked;
                    self.did.push(Effect::Untracked);
                }
                ExpressionResult::On
            }
            Expression::Counter { .. } | Expression::Log { .. } => ExpressionResult::On,
            Expression::Unknown(name) if is_of_no_matter(name) => ExpressionResult::On,
            Expression::Unknown(name) if is_deed(name) => ExpressionResult::Lost,
            Expression::Unknown(_) => ExpressionResult::NotUnderstood,
            Expression::Nat { .. }
            | Expression::Masquerade { .. }
            | Expression::Redirect { .. } => self.translate(evaluation, expression),
            Expression::SetPayload {
                base, offset, len, ..
            } => {
                if Fields(&self.branch.packet).leads(*base, *offset, *len) {
                    ExpressionResult::Lost
                } else {
                    ExpressionResult::On
                }
            }
            Expression::SetMeta { key, from } => self.set_meta(*key, *from),
            Expression::SetCt { key, from } => self.set_ct(*key, *from),
            load => self.load(evaluation, load),
        })
    }

    /// Loads a value of the packet, of the kernel or of another register into a register.
    fn load<R: Reader>(
        &mut self,
        evaluation: &Evaluation<'_, R>,
        expression: &Expression,
    ) -> ExpressionResult {
        let packet = Fields(&self.branch.packet);
        let (to, bytes) = match expression {
            Expression::Payload {
                base,
                offset,
                len,
                to,
            } => (*to, packet.payload(*base, *offset, *len)),
            Expression::Meta { key, to } => (*to, packet.meta(*key)),
            Expression::Ct { key, to } => (*to, packet.ct(*key)),
            Expression::CtTuple { key, direction, to } => match packet.tuple(*key, *direction) {
                Some(bytes) => (*to, bytes),
                None => return ExpressionResult::Missed,
            },
            Expression::Fib { result, flags, to } => {
                (*to, packet.fib(evaluation.kernel, *result, *flags))
            }
            Expression::Immediate { to, data } => (*to, data.iter().copied().map(Some).collect()),
            Expression::Bitwise {
                from,
                to,
                mask,
                xor,
            } => {
                let found = self.registers.read(*from, mask.len());
                (*to, registers::masked(&found, mask, xor))
            }
            Expression::ByteOrder {
                from,
                to,
                len,
                size,
            } => {
                let found = self.registers.read(*from, *len as usize);
                (*to, registers::turned(&found, *size as usize))
            }
            _ => return ExpressionResult::NotUnderstood,
        };
        self.registers.write(to, &bytes);
        ExpressionResult::On
    }

    fn set_meta(&mut self, key: MetaKey, from: Register) -> ExpressionResult {
        match (key, self.registers.number(from)) {
            (MetaKey::Mark, Some(mark)) => {
                let before = self.branch.packet.mark;
                if mark != before {
                    self.branch.packet.mark = mark;
                    self.did.push(Effect::Mark(before, mark));
                }
                ExpressionResult::On
            }
            (MetaKey::Mark, None) => ExpressionResult::Lost,
            (MetaKey::Priority, priority) => {
                self.branch.packet.priority = priority;
                ExpressionResult::On
            }
            // Other metadata does not affect the packet's path.
            _ => ExpressionResult::On,
        }
    }

    fn set_ct(&mut self, key: CtKey, from: Register) -> ExpressionResult {
        match (key, self.registers.number(from)) {
            (CtKey::Mark, Some(mark)) => {
                self.branch.packet.connection_mark = mark;
                ExpressionResult::On
            }
            _ => ExpressionResult::Lost,
        }
    }

    fn note(&mut self, set: &SetRef, operation: DynsetOperation) {
        let SetRef::Named(name) = set else { return };
        let name = Arc::clone(name);
        self.did.push(match operation {
            DynsetOperation::Add | DynsetOperation::Update => Effect::Noted(name),
            DynsetOperation::Delete => Effect::Forgotten(name),
        });
    }

    fn lookup<R: Reader>(
        &mut self,
        evaluation: &mut Evaluation<'_, R>,
        chain: &ObjectId,
        (key, set): (Register, &SetRef),
        what: LookupFor,
    ) -> Result<ExpressionResult, Error> {
        let Some(key) = self.key(evaluation, chain, key, set)? else {
            // The key is unknown, so the evaluation cannot find the element or its data.
            return Ok(match what {
                LookupFor::Membership(_) => ExpressionResult::Open(NOT_KNOWN),
                LookupFor::Value(to) => {
                    self.registers.forget(to, 64);
                    ExpressionResult::Open(NOT_KNOWN)
                }
                LookupFor::Verdict => ExpressionResult::Lost,
            });
        };
        let found = match set {
            SetRef::Named(name) => self.member(evaluation, &chain.beside(name), &key)?,
            SetRef::Anonymous(set) => {
                let found = sets::find(set, &key).cloned();
                self.found
                    .extend(found.clone().map(|found| (self.at - 1, found)));
                found
            }
        };
        let is_in = found.is_some();
        let data = found.and_then(|element| element.data);
        Ok(match (what, data) {
            (LookupFor::Membership(sense), _) => (is_in == (sense == Membership::In)).into(),
            (LookupFor::Value(to), Some(ElementData::Value(value))) => {
                self.registers.put(to, &value);
                ExpressionResult::On
            }
            (LookupFor::Verdict, Some(ElementData::Verdict(verdict))) => {
                ExpressionResult::Ended(Some(verdict))
            }
            _ if is_in => ExpressionResult::Lost,
            _ => ExpressionResult::Missed,
        })
    }

    /// Returns the element of a named set or map that contains `key`, and records it for the user.
    fn member<R: Reader>(
        &mut self,
        evaluation: &mut Evaluation<'_, R>,
        at: &ObjectId,
        key: &[u8],
    ) -> Result<Option<Element>, Error> {
        let Some(found) = evaluation.asked.element(at, key)? else {
            return Ok(None);
        };
        if let Some(set) = evaluation.asked.set(at)? {
            let set = &set.set;
            let end = if set.intervals && set.key.len() == 1 && !found.key.is_empty() {
                evaluation.asked.interval_end(at, key)?
            } else {
                None
            };
            let end = end.as_ref().map(|end| &*end.key);
            let text = text::element(&set.key, &set.kind, &found, end);
            self.members.push(format!("{} {text}", set.name));
        }
        Ok(Some(found))
    }

    /// Returns the key of a look-up from the registers. Returns `None` if a part of the key is
    /// unknown.
    fn key<R: Reader>(
        &self,
        evaluation: &mut Evaluation<'_, R>,
        chain: &ObjectId,
        from: Register,
        set: &SetRef,
    ) -> Result<Option<Bytes>, Error> {
        let len = match set {
            SetRef::Named(name) => {
                let Some(set) = evaluation.asked.set(&chain.beside(name))? else {
                    return Ok(None);
                };
                DataType::key_len(&set.set.key)
            }
            SetRef::Anonymous(set) => DataType::key_len(&set.key),
        };
        Ok(self.registers.bytes(from, len))
    }
}

/// Reason for an unknown outcome: the rule tests data of the packet that is not known.
const NOT_KNOWN: &str = "it asks something that is not known of this packet";

/// Reports whether an unsupported expression changes the packet or its path, such as `queue`, or
/// `masq` with a range of ports.
fn is_deed(name: &str) -> bool {
    let deeds = [
        "immediate",
        "nat",
        "masq",
        "redir",
        "queue",
        "tproxy",
        "synproxy",
        "fwd",
    ];
    deeds.contains(&name) || name.starts_with("target")
}

/// Reports whether an unsupported expression affects neither the packet's path nor the rule's
/// outcome. For example, a flow table handles only later packets.
fn is_of_no_matter(name: &str) -> bool {
    matches!(name, "flow_offload" | "last" | "dup")
}
