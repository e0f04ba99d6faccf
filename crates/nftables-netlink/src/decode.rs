//! Decodes messages into the types that the encoder takes. If this crate has written an object, a
//! read returns the same object, except for numbers that the kernel assigns.

mod expression;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use netlink_batch::{Attribute, Attributes, Malformed};
use smallvec::SmallVec;

use crate::encode::concatenation;
use crate::expression::{Expression, KernelRule, Rule};
use crate::object::{
    Activity, AnonymousSet, BaseChain, Chain, ChainKind, Element, ElementData, Hook, HookedChain,
    KernelSet, NamedCounter, Policy, Set, SetKind, Table, Timeout, TypeOf,
};
use crate::transaction::Generation;
use crate::user_data::{find, find_comment};
use crate::value::{Bytes, DataType, Family, Name, Verdict};
use crate::wire::{
    FIXED_HEADER, chain, data, element, elements, expression::counter, generation, object, rule,
    set, table, user_data,
};

/// Returns the attributes of a message, which follow its fixed header.
pub(crate) fn attributes(payload: &[u8]) -> Result<Attributes<'_>, Malformed> {
    Attributes::after(FIXED_HEADER, payload)
}

/// Returns the family in the fixed header (`nfgen_family`), or `None` if the family is unknown.
pub(crate) fn family(payload: &[u8]) -> Option<Family> {
    payload.first().copied().and_then(Family::of_wire)
}

pub(crate) fn name(attribute: &Attribute<'_>) -> Result<Name, Malformed> {
    attribute.string().map(Arc::from)
}

fn missing<T>(found: Option<T>, kind: u16, name: &'static str) -> Result<T, Malformed> {
    found.ok_or(Malformed::Missing { kind, name })
}

fn be64(attribute: &Attribute<'_>) -> Result<u64, Malformed> {
    attribute.array().map(u64::from_be_bytes)
}

/// Returns the first attribute of the kind `kind`.
pub(crate) fn first(
    attributes: Attributes<'_>,
    kind: u16,
) -> Result<Option<Attribute<'_>>, Malformed> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(Some(attribute));
        }
    }
    Ok(None)
}

pub(crate) fn generation(payload: &[u8]) -> Result<Generation, Malformed> {
    let id = first(attributes(payload)?, generation::ID)?;
    let id = missing(id, generation::ID, "NFTA_GEN_ID")?;
    id.be32().map(Generation)
}

pub(crate) fn table(payload: &[u8]) -> Result<Option<Table>, Malformed> {
    let Some(family) = family(payload) else {
        return Ok(None);
    };
    let (mut found, mut activity, mut comment) = (None, Activity::Active, None);
    for attribute in attributes(payload)? {
        let attribute = attribute?;
        match attribute.kind {
            table::NAME => found = Some(name(&attribute)?),
            table::FLAGS if attribute.be32()? & table::DORMANT != 0 => {
                activity = Activity::Dormant;
            }
            table::USER_DATA => {
                comment = find_comment(user_data::TABLE_COMMENT, attribute.payload);
            }
            _ => {}
        }
    }
    Ok(Some(Table {
        activity,
        comment,
        ..Table::new(family, missing(found, table::NAME, "NFTA_TABLE_NAME")?)
    }))
}

/// Decodes a chain of `table`, or returns `None` if the chain belongs to another table.
pub(crate) fn chain_of(table: &str, payload: &[u8]) -> Result<Option<Chain>, Malformed> {
    let (mut found, mut kind, mut hook) = (None, None, None);
    let (mut policy, mut comment) = (Policy::Accept, None);
    for attribute in attributes(payload)? {
        let attribute = attribute?;
        match attribute.kind {
            chain::TABLE if attribute.string()? != table => return Ok(None),
            chain::NAME => found = Some(name(&attribute)?),
            chain::TYPE => {
                kind = match attribute.string()? {
                    "nat" => Some(ChainKind::Nat),
                    "route" => Some(ChainKind::Route),
                    "filter" => Some(ChainKind::Filter),
                    _ => None,
                };
            }
            chain::HOOK => hook = base(family(payload), &attribute)?,
            chain::POLICY if attribute.be32()? == Policy::Drop as u32 => policy = Policy::Drop,
            chain::USER_DATA => {
                comment = find_comment(user_data::CHAIN_COMMENT, attribute.payload);
            }
            _ => {}
        }
    }
    Ok(Some(Chain {
        name: missing(found, chain::NAME, "NFTA_CHAIN_NAME")?,
        base: kind.zip(hook).map(|(kind, (hook, priority))| BaseChain {
            kind,
            hook,
            priority,
            policy,
        }),
        comment,
    }))
}

/// Returns the handle in a message about a chain, or 0 if the message has none.
pub(crate) fn handle_of_chain(payload: &[u8]) -> Result<u64, Malformed> {
    let handle = first(attributes(payload)?, chain::HANDLE)?;
    handle.map_or(Ok(0), |handle| be64(&handle))
}

/// Decodes a base chain of any table. Returns `None` for regular chains and unknown families.
pub(crate) fn hooked(payload: &[u8]) -> Result<Option<HookedChain>, Malformed> {
    let (mut table, mut is_base) = (None, false);
    for attribute in attributes(payload)? {
        let attribute = attribute?;
        match attribute.kind {
            chain::TABLE => table = Some(attribute.string()?),
            chain::HOOK => is_base = true,
            _ => {}
        }
    }
    let Some(family) = family(payload).filter(|_| is_base) else {
        return Ok(None);
    };
    let table = missing(table, chain::TABLE, "NFTA_CHAIN_TABLE")?;
    Ok(chain_of(table, payload)?.map(|chain| HookedChain {
        family,
        table: table.into(),
        chain: chain.name,
        base: chain.base,
    }))
}

/// Decodes the hook and the priority of a base chain. Returns `None` for a hook that [`Hook`]
/// lacks: the families `netdev` and `arp` have their own hook numbers, and `inet` also has
/// `ingress`.
fn base(
    family: Option<Family>,
    attribute: &Attribute<'_>,
) -> Result<Option<(Hook, i32)>, Malformed> {
    if matches!(family, Some(Family::Netdev | Family::Arp)) {
        return Ok(None);
    }
    let (mut hook, mut priority) = (None, 0);
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind {
            chain::HOOK_NUMBER => {
                hook = match attribute.be32()? {
                    0 => Some(Hook::Prerouting),
                    1 => Some(Hook::Input),
                    2 => Some(Hook::Forward),
                    3 => Some(Hook::Output),
                    4 => Some(Hook::Postrouting),
                    _ => None,
                };
            }
            chain::HOOK_PRIORITY => priority = i32::from_be_bytes(attribute.array()?),
            _ => {}
        }
    }
    Ok(hook.map(|hook| (hook, priority)))
}

/// Attributes of a message about a set.
#[derive(Default)]
struct SetMessage {
    name: Option<Name>,
    handle: u64,
    flags: u32,
    key: (u32, u32),
    data: (u32, u32),
    timeout: Option<u64>,
    size: Option<u32>,
    comment: Option<Arc<str>>,
    /// Packet fields of the key's parts, as encoded in the set's user data. Empty if `nft` stored
    /// none.
    key_type_of: Vec<u8>,
}

impl SetMessage {
    /// Decodes a set of `table`, or returns `None` if the set belongs to another table.
    fn parse(table: &str, payload: &[u8]) -> Result<Option<Self>, Malformed> {
        let mut found = Self::default();
        for attribute in attributes(payload)? {
            let attribute = attribute?;
            match attribute.kind {
                set::TABLE if attribute.string()? != table => return Ok(None),
                set::NAME => found.name = Some(name(&attribute)?),
                set::HANDLE => found.handle = be64(&attribute)?,
                set::FLAGS => found.flags = attribute.be32()?,
                set::KEY_TYPE => found.key.0 = attribute.be32()?,
                set::KEY_LEN => found.key.1 = attribute.be32()?,
                set::DATA_TYPE => found.data.0 = attribute.be32()?,
                set::DATA_LEN => found.data.1 = attribute.be32()?,
                set::TIMEOUT => found.timeout = Some(be64(&attribute)?),
                set::DESCRIPTION => {
                    if let Some(size) = first(attribute.nested(), set::DESCRIPTION_SIZE)? {
                        found.size = Some(size.be32()?);
                    }
                }
                set::USER_DATA => {
                    found.comment = find_comment(user_data::SET_COMMENT, attribute.payload);
                    let noted = find(user_data::SET_KEY_TYPE_OF, attribute.payload);
                    found.key_type_of = noted.unwrap_or_default().to_vec();
                }
                _ => {}
            }
        }
        Ok(Some(found))
    }

    fn key(&self) -> Vec<DataType> {
        DataType::parts(self.key.0, self.key.1)
    }

    fn kind(&self) -> SetKind {
        if self.flags & set::MAP == 0 {
            SetKind::Set
        } else if self.data.0 == data::TYPE_VERDICT {
            SetKind::Verdicts
        } else {
            SetKind::Map(DataType::parts(self.data.0, self.data.1))
        }
    }

    /// Returns the [`TypeOf`] whose encoding equals `key_type_of`, or `None` if no encoding does.
    fn type_of(&self) -> Option<TypeOf> {
        let key = self.key();
        let noted = |of: Option<TypeOf>| concatenation(&key, of);
        let is_noted = |of: &TypeOf| noted(Some(*of)).bytes() == &*self.key_type_of;
        let is_plain = noted(None).bytes() == &*self.key_type_of;
        (!is_plain).then(|| TypeOf::ALL.into_iter().find(is_noted))?
    }

    fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// A set of a table, named or anonymous.
pub(crate) enum AnySet {
    Named(KernelSet),
    /// An anonymous set, and the generated name by which its rule refers to it.
    Anonymous(Name, AnonymousMessage),
}

/// An anonymous set without its elements.
pub(crate) struct AnonymousMessage {
    pub(crate) set: AnonymousSet,
    /// Largest number of elements that the set may contain, or `None` for no limit.
    pub(crate) size: Option<u32>,
}

/// Decodes a set of `table`, or returns `None` if the set belongs to another table.
pub(crate) fn set_of(table: &str, payload: &[u8]) -> Result<Option<AnySet>, Malformed> {
    const SAID: u32 = set::INTERVAL | set::MAP | set::HAS_TIMEOUT | set::EVAL;
    let Some(mut found) = SetMessage::parse(table, payload)? else {
        return Ok(None);
    };
    let name = missing(found.name.take(), set::NAME, "NFTA_SET_NAME")?;
    Ok(Some(if found.is(set::ANONYMOUS) {
        let anonymous = AnonymousSet {
            key: found.key(),
            kind: found.kind(),
            intervals: found.is(set::INTERVAL),
            elements: Vec::new(),
        };
        AnySet::Anonymous(
            name,
            AnonymousMessage {
                set: anonymous,
                size: found.size,
            },
        )
    } else {
        let bare = Set::new(name, found.key(), found.kind());
        let set = Set {
            intervals: found.is(set::INTERVAL),
            dynamic: found.is(set::EVAL),
            timeout: found.is(set::HAS_TIMEOUT).then_some(match found.timeout {
                Some(milliseconds @ 1..) => Timeout::Default(Duration::from_millis(milliseconds)),
                _ => Timeout::OfElements,
            }),
            size: found.size,
            type_of: found.type_of(),
            comment: found.comment,
            ..bare
        };
        AnySet::Named(KernelSet {
            handle: found.handle,
            set,
            other_flags: found.flags & !SAID,
        })
    }))
}

/// Decodes a named counter of `table`. Returns `None` for objects of other tables or other kinds.
pub(crate) fn counter_of(table: &str, payload: &[u8]) -> Result<Option<NamedCounter>, Malformed> {
    let (mut found, mut is_counter) = (None, false);
    let (mut packets, mut bytes) = (0, 0);
    for attribute in attributes(payload)? {
        let attribute = attribute?;
        match attribute.kind {
            object::TABLE if attribute.string()? != table => return Ok(None),
            object::NAME => found = Some(name(&attribute)?),
            object::TYPE => is_counter = attribute.be32()? == object::COUNTER,
            object::DATA => {
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    match attribute.kind {
                        counter::BYTES => bytes = be64(&attribute).unwrap_or_default(),
                        counter::PACKETS => packets = be64(&attribute).unwrap_or_default(),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let name = missing(found, object::NAME, "NFTA_OBJ_NAME")?;
    Ok(is_counter.then_some(NamedCounter {
        name,
        packets,
        bytes,
    }))
}

/// Returns the name of the set to which the elements in a message belong.
pub(crate) fn elements_set(payload: &[u8]) -> Result<Name, Malformed> {
    let set = first(attributes(payload)?, elements::SET)?;
    name(&missing(set, elements::SET, "NFTA_SET_ELEM_LIST_SET")?)
}

/// Appends the elements of a message to `all`.
pub(crate) fn elements(payload: &[u8], all: &mut Vec<Element>) -> Result<(), Malformed> {
    for attribute in attributes(payload)? {
        let attribute = attribute?;
        if attribute.kind == elements::ELEMENTS {
            for one in attribute.nested() {
                all.extend(element(&one?)?);
            }
        }
    }
    Ok(())
}

/// Returns the first element of a message. This element may be the catch-all element.
pub(crate) fn one_element(payload: &[u8]) -> Result<Option<Element>, Malformed> {
    let all = first(attributes(payload)?, elements::ELEMENTS)?;
    let Some(one) = all.and_then(|all| all.nested().next()) else {
        return Ok(None);
    };
    let one = one?;
    match element(&one)? {
        Some(found) => Ok(Some(found)),
        None => catch_all(&one),
    }
}

/// Decodes a catch-all element. Returns `None` for any other element.
fn catch_all(attribute: &Attribute<'_>) -> Result<Option<Element>, Malformed> {
    let (mut is_one, mut found) = (false, Element::of_set(Bytes::new()));
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind {
            element::DATA => found.data = element_data(&attribute)?,
            element::FLAGS => is_one = attribute.be32()? & element::CATCH_ALL != 0,
            element::USER_DATA => {
                found.comment = find_comment(user_data::ELEMENT_COMMENT, attribute.payload);
            }
            _ => {}
        }
    }
    Ok(is_one.then_some(found))
}

/// Decodes an element with a key. Returns `None` for an element without a key
/// (`NFT_SET_ELEM_CATCHALL`).
fn element(attribute: &Attribute<'_>) -> Result<Option<Element>, Malformed> {
    let (mut key, mut ends_interval, mut leads_to) = (None, false, None);
    let (mut comment, mut timeout, mut key_end) = (None, None, None);
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind {
            element::KEY => key = value(&attribute)?,
            element::KEY_END => key_end = value(&attribute)?,
            element::DATA => leads_to = element_data(&attribute)?,
            element::FLAGS => ends_interval = attribute.be32()? & element::INTERVAL_END != 0,
            element::TIMEOUT => timeout = Some(Duration::from_millis(be64(&attribute)?)),
            element::USER_DATA => {
                comment = find_comment(user_data::ELEMENT_COMMENT, attribute.payload);
            }
            _ => {}
        }
    }
    Ok(key.map(|key| Element {
        key,
        key_end,
        ends_interval,
        data: leads_to,
        comment,
        timeout,
    }))
}

fn element_data(attribute: &Attribute<'_>) -> Result<Option<ElementData>, Malformed> {
    for inner in attribute.nested() {
        let inner = inner?;
        match inner.kind {
            data::VALUE => {
                return Ok(Some(ElementData::Value(SmallVec::from_slice(
                    inner.payload,
                ))));
            }
            data::VERDICT => return Ok(verdict(&inner)?.map(ElementData::Verdict)),
            _ => {}
        }
    }
    Ok(None)
}

/// Returns the bytes in an attribute's `NFTA_DATA_VALUE`.
fn value(attribute: &Attribute<'_>) -> Result<Option<Bytes>, Malformed> {
    let inner = first(attribute.nested(), data::VALUE)?;
    Ok(inner.map(|inner| SmallVec::from_slice(inner.payload)))
}

/// Decodes an `NFTA_DATA_VERDICT`. Returns `None` for a verdict that this crate does not support,
/// such as `queue`.
fn verdict(attribute: &Attribute<'_>) -> Result<Option<Verdict>, Malformed> {
    let (mut code, mut to) = (None, None);
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind {
            data::VERDICT_CODE => code = Some(i32::from_be_bytes(attribute.array()?)),
            data::VERDICT_CHAIN => to = Some(name(&attribute)?),
            _ => {}
        }
    }
    Ok(match (code, to) {
        (Some(data::DROP), _) => Some(Verdict::Drop),
        (Some(data::ACCEPT), _) => Some(Verdict::Accept),
        (Some(data::CONTINUE), _) => Some(Verdict::Continue),
        (Some(data::RETURN), _) => Some(Verdict::Return),
        (Some(data::JUMP), Some(chain)) => Some(Verdict::Jump(chain)),
        (Some(data::GOTO), Some(chain)) => Some(Verdict::Goto(chain)),
        _ => None,
    })
}

/// A decoded rule that still refers to its anonymous sets by name.
pub(crate) struct RuleMessage {
    pub(crate) chain: Name,
    pub(crate) handle: u64,
    pub(crate) expressions: Vec<Expression>,
    pub(crate) comment: Option<Arc<str>>,
}

impl RuleMessage {
    /// Returns the rule with its handle. The rule still refers to anonymous sets by name.
    pub(crate) fn found(self) -> KernelRule {
        KernelRule {
            handle: self.handle,
            chain: self.chain,
            rule: Rule {
                expressions: self.expressions,
                comment: self.comment,
            },
        }
    }
}

/// Decodes a rule of `table`, or returns `None` if the rule belongs to another table.
pub(crate) fn rule_of(table: &str, payload: &[u8]) -> Result<Option<RuleMessage>, Malformed> {
    let (mut chain, mut handle) = (None, None);
    let (mut expressions, mut comment) = (Vec::new(), None);
    for attribute in attributes(payload)? {
        let attribute = attribute?;
        match attribute.kind {
            rule::TABLE if attribute.string()? != table => return Ok(None),
            rule::CHAIN => chain = Some(name(&attribute)?),
            rule::HANDLE => handle = Some(be64(&attribute)?),
            rule::EXPRESSIONS => {
                for one in attribute.nested() {
                    expressions.push(expression::parse(&one?)?);
                }
            }
            rule::USER_DATA => {
                comment = find_comment(user_data::RULE_COMMENT, attribute.payload);
            }
            _ => {}
        }
    }
    Ok(Some(RuleMessage {
        chain: missing(chain, rule::CHAIN, "NFTA_RULE_CHAIN")?,
        handle: missing(handle, rule::HANDLE, "NFTA_RULE_HANDLE")?,
        expressions,
        comment,
    }))
}

/// Anonymous sets without their elements, by name.
pub(crate) type AnonymousMessages = HashMap<Name, AnonymousMessage>;

#[cfg(test)]
mod tests;
