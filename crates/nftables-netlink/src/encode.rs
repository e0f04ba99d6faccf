//! Encodes changes as netlink messages. The messages equal those of `nft` 1.0.6 byte for byte, so
//! every version of `nft` can list the result.

mod expression;
mod set;

use netlink_batch::{
    Batch, NLM_F_APPEND, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE, Writer,
};

use crate::expression::{Expression, Rule, SetRef};
use crate::object::{Activity, AnonymousSet, Chain, Element};
use crate::transaction::{Change, Generation, Transaction};
use crate::user_data;
use crate::value::{Bytes, Family};
use crate::wire::{
    BATCH_BEGIN, BATCH_END, BATCH_GENERATION, LIST_ELEMENT, SUBSYSTEM, chain, command, element,
    elements, expression::counter, message, object, rule, set as set_attribute, table,
    user_data as kind,
};

pub(crate) use expression::nat_flags_implied;
use set::Sets;
pub(crate) use set::concatenation;

/// Number of bytes of elements after which the encoder begins a new message. An attribute's length
/// is a `u16`, and the largest element (key, verdict with a chain name, comment) needs about 700
/// bytes.
const ELEMENT_BYTES: usize = 63 * 1024;

/// Largest size in bytes of a transaction's first change for which this crate requests an echo. The
/// kernel echoes one message for each element, so a large echo could exceed the socket buffer.
const TOLD_BYTES: usize = 4 * 1024;

/// A transaction encoded as messages, ready for one send.
///
/// A caller may send the transaction again. Both sends create anonymous sets with the same names.
/// So before the second send, the caller must delete the rules that use these sets.
#[derive(Debug, Clone)]
pub struct PreparedTransaction {
    pub(crate) batch: Batch,
    /// Index of each change's first message in the batch. Index 0 is the message that begins the
    /// batch.
    firsts: Vec<usize>,
    /// Index of the last message of the last change, or 0 without changes.
    last: usize,
    pub(crate) expected: Option<Generation>,
}

impl PreparedTransaction {
    /// Encodes a transaction. If `expected` is set, the kernel commits the transaction only if the
    /// ruleset still has this generation.
    pub fn new(transaction: &Transaction, expected: Option<Generation>) -> Self {
        let mut prepared = Self::without_end(transaction, expected);
        if !prepared.is_empty() {
            // NLM_F_ECHO on the first change makes the kernel report the new generation. The kernel
            // then also echoes this change. A large change has no such flag, because its echo could
            // exceed the socket buffer.
            let first = prepared.batch.get(1);
            if first.is_some_and(|first| first.payload.len() <= TOLD_BYTES) {
                prepared.batch.add_flags(1, NLM_F_ECHO);
            }
        }
        prepared.batch.push(BATCH_END, 0, batch_header);
        prepared
    }

    /// Encodes a transaction without the message that ends the batch. Without this message, the
    /// kernel checks each change and then rolls back all of them (`nfnetlink_rcv_batch`).
    pub(crate) fn without_end(transaction: &Transaction, expected: Option<Generation>) -> Self {
        let mut batch = Batch::new();
        batch.push(BATCH_BEGIN, 0, |w| {
            batch_header(w);
            if let Some(Generation(generation)) = expected {
                w.attr_be32(BATCH_GENERATION, generation);
            }
        });
        let mut encoder = Encoder {
            batch,
            family: transaction.family,
            table: &transaction.table,
            sets: Sets::new(),
        };
        let mut firsts = Vec::with_capacity(transaction.changes.len());
        for change in &transaction.changes {
            firsts.push(encoder.batch.len());
            encoder.change(change);
        }
        let mut batch = encoder.batch;
        let last = batch.len().saturating_sub(1);
        // Requests an acknowledgement of the last change, because only newer kernels acknowledge
        // the message that ends a batch.
        if last > 0 {
            batch.acknowledge(last);
        }
        Self {
            batch,
            firsts,
            last,
            expected,
        }
    }

    /// Returns the size of all messages in bytes.
    pub fn byte_len(&self) -> usize {
        self.batch.byte_len()
    }

    /// Returns the number of messages, including those that begin and end the batch.
    pub fn messages(&self) -> usize {
        self.batch.len()
    }

    /// Returns true if the transaction has no changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.last == 0
    }

    /// Returns the index of the last change's last message. If the kernel acknowledges this
    /// message, all messages have arrived.
    pub(crate) fn last(&self) -> usize {
        self.last
    }

    /// Returns the index of the change to which a message belongs, or `None` for the messages that
    /// begin and end the batch.
    pub(crate) fn change_of(&self, index: usize) -> Option<usize> {
        if index > self.last() {
            return None;
        }
        self.firsts
            .partition_point(|first| *first <= index)
            .checked_sub(1)
    }
}

fn batch_header(w: &mut Writer<'_>) {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    w.bytes(&[0, 0, high, low]);
}

/// Writes the fixed header of a message: `struct nfgenmsg`.
pub(crate) fn header(w: &mut Writer<'_>, family: u8) {
    w.bytes(&[family, 0, 0, 0]);
}

/// Writes the body of a request for the elements with the keys `keys`.
pub(crate) fn list_keys(
    w: &mut Writer<'_>,
    table: &str,
    set: &str,
    keys: impl Iterator<Item = Bytes>,
) {
    w.attr_str(elements::TABLE, table);
    w.attr_str(elements::SET, set);
    w.nest(elements::ELEMENTS, |w| {
        for key in keys {
            w.nest(LIST_ELEMENT, |w| set::element(w, &Element::of_set(key)));
        }
    });
}

/// Writes the body of a request for one element of a set: the element that contains `key`, or, if
/// `key` is `None`, the element with `flags` (such as the catch-all element).
pub(crate) fn list_one(w: &mut Writer<'_>, table: &str, set: &str, key: Option<&[u8]>, flags: u32) {
    w.attr_str(elements::TABLE, table);
    w.attr_str(elements::SET, set);
    w.nest(elements::ELEMENTS, |w| {
        w.nest(LIST_ELEMENT, |w| {
            if flags != 0 {
                w.attr_be32(element::FLAGS, flags);
            }
            if let Some(key) = key {
                set::value(w, element::KEY, key);
            }
        });
    });
}

/// Reference to the set that elements belong to, by name or by number. A number is faster: the
/// kernel searches only the transaction for a number, but all sets of the table for a name.
#[derive(Clone, Copy)]
enum TargetSet<'a> {
    Named(&'a str),
    Made(u32),
}

struct Encoder<'a> {
    batch: Batch,
    family: Family,
    table: &'a str,
    sets: Sets,
}

impl Encoder<'_> {
    fn push(&mut self, command: u16, flags: u16, payload: impl FnOnce(&mut Writer<'_>)) {
        let family = self.family as u8;
        self.batch.push(message(command), flags, |w| {
            header(w, family);
            payload(w);
        });
    }

    fn change(&mut self, change: &Change) {
        let table = self.table;
        match change {
            Change::AddTable(new) => self.push(command::NEW_TABLE, NLM_F_CREATE, |w| {
                w.attr_str(table::NAME, table);
                let is_dormant = new.activity == Activity::Dormant;
                w.attr_be32(table::FLAGS, u32::from(is_dormant) * table::DORMANT);
                comment(
                    w,
                    table::USER_DATA,
                    kind::TABLE_COMMENT,
                    new.comment.as_ref(),
                );
            }),
            Change::DeleteTable => self.push(command::DELETE_TABLE, 0, |w| {
                w.attr_str(table::NAME, table);
            }),
            Change::AddChain(new) => self.add_chain(new),
            Change::FlushChain(name) => self.push(command::DELETE_RULE, 0, |w| {
                w.attr_str(rule::TABLE, table);
                w.attr_str(rule::CHAIN, name);
            }),
            Change::DeleteChain(name) => self.push(command::DELETE_CHAIN, 0, |w| {
                w.attr_str(chain::TABLE, table);
                w.attr_str(chain::NAME, name);
            }),
            Change::AddSet(new) => {
                let id = self.sets.next_id();
                self.push(command::NEW_SET, NLM_F_CREATE, |w| {
                    w.attr_str(set_attribute::TABLE, table);
                    set::named(w, new, id);
                });
            }
            Change::DeleteSet(name) => self.push(command::DELETE_SET, 0, |w| {
                w.attr_str(set_attribute::TABLE, table);
                w.attr_str(set_attribute::NAME, name);
            }),
            Change::FlushSet(name) => self.push(command::DELETE_ELEMENTS, 0, |w| {
                w.attr_str(elements::TABLE, table);
                w.attr_str(elements::SET, name);
            }),
            Change::AddElements(name, all) => {
                self.elements(
                    command::NEW_ELEMENTS,
                    NLM_F_CREATE,
                    TargetSet::Named(name),
                    all,
                );
            }
            Change::DeleteElements(name, all) => {
                self.elements(command::DELETE_ELEMENTS, 0, TargetSet::Named(name), all);
            }
            Change::AddCounter(name) => self.push(command::NEW_OBJECT, NLM_F_CREATE, |w| {
                w.attr_str(object::TABLE, table);
                w.attr_str(object::NAME, name);
                w.attr_be32(object::TYPE, object::COUNTER);
                w.nest(object::DATA, |w| {
                    w.attr(counter::BYTES, &0_u64.to_be_bytes());
                    w.attr(counter::PACKETS, &0_u64.to_be_bytes());
                });
            }),
            Change::DeleteCounter(name) => self.push(command::DELETE_OBJECT, 0, |w| {
                w.attr_str(object::TABLE, table);
                w.attr_str(object::NAME, name);
                w.attr_be32(object::TYPE, object::COUNTER);
            }),
            Change::AddRule(chain, new) => {
                self.rule(NLM_F_CREATE | NLM_F_APPEND, chain, None, new);
            }
            Change::InsertRule(chain, before, new) => {
                self.rule(NLM_F_CREATE, chain, Some((rule::POSITION, *before)), new);
            }
            Change::DeleteRule(chain, handle) => self.push(command::DELETE_RULE, 0, |w| {
                w.attr_str(rule::TABLE, table);
                w.attr_str(rule::CHAIN, chain);
                w.attr(rule::HANDLE, &handle.to_be_bytes());
            }),
            Change::ReplaceRule(chain, handle, new) => {
                self.rule(NLM_F_REPLACE, chain, Some((rule::HANDLE, *handle)), new);
            }
        }
    }

    fn add_chain(&mut self, new: &Chain) {
        let table = self.table;
        self.push(command::NEW_CHAIN, NLM_F_CREATE, |w| {
            w.attr_str(chain::TABLE, table);
            w.attr_str(chain::NAME, &new.name);
            if let Some(base) = &new.base {
                w.attr_str(chain::TYPE, base.kind.name());
                w.attr_be32(chain::POLICY, base.policy as u32);
                w.nest(chain::HOOK, |w| {
                    w.attr_be32(chain::HOOK_NUMBER, base.hook as u32);
                    w.attr(chain::HOOK_PRIORITY, &base.priority.to_be_bytes());
                });
            }
            comment(
                w,
                chain::USER_DATA,
                kind::CHAIN_COMMENT,
                new.comment.as_ref(),
            );
        });
    }

    /// Writes elements of one set, in as many messages as necessary.
    fn elements(&mut self, command: u16, flags: u16, name: TargetSet<'_>, mut all: &[Element]) {
        let table = self.table;
        // Writes no message without elements: in a deletion, the kernel would flush the set.
        while !all.is_empty() {
            self.push(command, flags, |w| {
                w.attr_str(elements::TABLE, table);
                match name {
                    TargetSet::Named(name) => w.attr_str(elements::SET, name),
                    TargetSet::Made(id) => w.attr_be32(elements::SET_ID, id),
                }
                w.nest(elements::ELEMENTS, |w| {
                    let end = w.len() + ELEMENT_BYTES;
                    // The attributes of elements have increasing numbers, as `nft` writes them.
                    let mut number = LIST_ELEMENT;
                    while let [element, rest @ ..] = all
                        && w.len() < end
                    {
                        w.nest(number, |w| set::element(w, element));
                        number += 1;
                        all = rest;
                    }
                });
            });
        }
    }

    /// Writes the anonymous sets of a rule, and then the rule. `at` is an attribute with the handle
    /// of an existing rule: `rule::POSITION` to insert before that rule, `rule::HANDLE` to replace
    /// it. `None` appends.
    fn rule(&mut self, flags: u16, chain: &str, at: Option<(u16, u64)>, new: &Rule) {
        let table = self.table;
        let mut id = self.sets.peek_id();
        for (number, expression) in new.expressions.iter().enumerate() {
            if let Some(anonymous) = anonymous_set(expression) {
                let before = new.expressions.get(..number).unwrap_or_default();
                self.anonymous(anonymous, expression, before);
            }
        }
        let (family, sets) = (self.family as u8, &mut self.sets);
        self.batch.push(message(command::NEW_RULE), flags, |w| {
            header(w, family);
            w.attr_str(rule::TABLE, table);
            w.attr_str(rule::CHAIN, chain);
            if let Some((attribute, handle)) = at {
                w.attr(attribute, &handle.to_be_bytes());
            }
            w.nest(rule::EXPRESSIONS, |w| {
                for expression in &new.expressions {
                    let set = anonymous_set(expression).map(|set| {
                        id += 1;
                        sets.name_of(id - 1, set)
                    });
                    w.nest(LIST_ELEMENT, |w| expression::write(w, expression, set));
                }
            });
            comment(w, rule::USER_DATA, kind::RULE_COMMENT, new.comment.as_ref());
        });
    }

    fn anonymous(&mut self, new: &AnonymousSet, used_by: &Expression, before: &[Expression]) {
        let table = self.table;
        let family = self.family;
        let type_of = set::type_of(family, used_by, before);
        let id = self.sets.next_id();
        let name = self.sets.name_of(id, new);
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.batch.push(message(command::NEW_SET), flags, |w| {
            header(w, family as u8);
            w.attr_str(set_attribute::TABLE, table);
            set::anonymous(w, new, name, id, type_of);
        });
        self.elements(
            command::NEW_ELEMENTS,
            NLM_F_CREATE,
            TargetSet::Made(id),
            &new.elements,
        );
    }
}

/// Returns the anonymous set that an expression uses, if any.
pub(crate) fn anonymous_set(expression: &Expression) -> Option<&AnonymousSet> {
    match expression.set()? {
        SetRef::Anonymous(set) => Some(set),
        SetRef::Named(_) => None,
    }
}

fn comment(w: &mut Writer<'_>, attribute: u16, kind: u8, text: Option<&std::sync::Arc<str>>) {
    if let Some(data) = user_data::comment(kind, text) {
        w.attr(attribute, data.bytes());
    }
}
