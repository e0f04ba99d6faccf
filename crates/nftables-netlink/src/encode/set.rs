//! Encodes sets and their elements.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};

use netlink_batch::Writer;

use crate::expression::{Expression, LookupFor, PayloadBase};
use crate::object::{AnonymousSet, Element, ElementData, Set, SetKind, Timeout, TypeOf};
use crate::user_data::{self, UserData};
use crate::value::{DataType, Family, Register, Verdict};
use crate::wire::{data, element as attribute, set, user_data as kind};

/// `nft`'s numbers for byte orders: mixed or unknown, host, network.
const MIXED: u32 = 0;
const HOST: u32 = 1;
const NETWORK: u32 = 2;

/// `nft`'s numbers for kinds of expressions (`enum expr_types`: `EXPR_VERDICT`, `EXPR_PAYLOAD`,
/// `EXPR_CONCAT` and `EXPR_NUMGEN`).
const VERDICT: u32 = 1;
const PAYLOAD: u32 = 7;
const CONCATENATION: u32 = 13;
const NUMGEN: u32 = 23;

/// Numbers and names for the sets that one transaction creates. Messages of the transaction refer
/// to a set by its number. An anonymous set also has a name.
pub(crate) struct Sets {
    last: u32,
    /// Random number that makes names unique to this transaction.
    unique: u64,
    /// Buffer for the name that `name_of` returned last.
    name: String,
}

impl Sets {
    pub(crate) fn new() -> Self {
        Self {
            last: 0,
            unique: RandomState::new().hash_one(0),
            name: String::new(),
        }
    }

    pub(crate) fn next_id(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Returns the number that the next call of [`Sets::next_id`] will return.
    pub(crate) fn peek_id(&self) -> u32 {
        self.last + 1
    }

    /// Returns the name for a new anonymous set. `nft` never shows this name.
    ///
    /// `nft` uses the name `__map%d`, in which the kernel replaces `%d` by a free number. This
    /// costs time twice:
    ///
    /// * To find a free number, the kernel reads the names of all sets.
    /// * For each reference by this name, the kernel searches all sets without success.
    ///
    /// With 10,000 sets, this takes seconds. So this function itself returns a unique name.
    pub(crate) fn name_of(&mut self, id: u32, new: &AnonymousSet) -> &str {
        let kind = if new.kind == SetKind::Set {
            "__set"
        } else {
            "__map"
        };
        self.name.clear();
        // Cannot fail: a `String` accepts every write.
        let _ = write!(self.name, "{kind}{:016x}-{id}", self.unique);
        &self.name
    }
}

/// Writes the attributes of a named set that follow the table's name.
pub(crate) fn named(w: &mut Writer<'_>, new: &Set, id: u32) {
    let mut flags = 0;
    for (is, flag) in [
        (new.intervals, set::INTERVAL),
        (new.dynamic, set::EVAL),
        (new.timeout.is_some(), set::HAS_TIMEOUT),
    ] {
        flags |= if is { flag } else { 0 };
    }
    description(w, &new.name, flags, &new.key, &new.kind, id);
    if let Some(Timeout::Default(timeout)) = new.timeout {
        let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        w.attr(set::TIMEOUT, &milliseconds.to_be_bytes());
    }
    if let Some(size) = new.size {
        w.nest(set::DESCRIPTION, |w| {
            w.attr_be32(set::DESCRIPTION_SIZE, size);
        });
    }
    let mut data = byte_orders(&new.key, &new.kind);
    if new.key.len() > 1 {
        data = data.nested(kind::SET_KEY_TYPE_OF, &concatenation(&new.key, new.type_of));
    }
    if let SetKind::Map(types) = &new.kind
        && types.len() > 1
    {
        data = data.nested(kind::SET_DATA_TYPE_OF, &concatenation(types, new.type_of));
    }
    data = of_data_interval(data, &new.kind);
    data = data.comment(kind::SET_COMMENT, new.comment.as_deref());
    w.attr(set::USER_DATA, data.bytes());
}

/// Writes the attributes of an anonymous set that follow the table's name.
pub(crate) fn anonymous(
    w: &mut Writer<'_>,
    new: &AnonymousSet,
    name: &str,
    id: u32,
    key_type_of: Option<UserData>,
) {
    let mut flags = set::ANONYMOUS | set::CONSTANT;
    if new.intervals {
        flags |= set::INTERVAL;
    }
    description(w, name, flags, &new.key, &new.kind, id);
    w.nest(set::DESCRIPTION, |w| {
        let size = u32::try_from(new.elements.len()).unwrap_or(u32::MAX);
        w.attr_be32(set::DESCRIPTION_SIZE, size);
    });
    let mut data = byte_orders(&new.key, &new.kind);
    if new.intervals {
        data = data.number(kind::SET_MERGE_ELEMENTS, 1);
    }
    if let Some(type_of) = key_type_of {
        data = data.nested(kind::SET_KEY_TYPE_OF, &type_of);
    }
    if new.kind == SetKind::Verdicts {
        data = data.nested(kind::SET_DATA_TYPE_OF, &type_of_expression(VERDICT));
    }
    data = of_data_interval(data, &new.kind);
    w.attr(set::USER_DATA, data.bytes());
}

fn description(
    w: &mut Writer<'_>,
    name: &str,
    mut flags: u32,
    key: &[DataType],
    leads_to: &SetKind,
    id: u32,
) {
    if *leads_to != SetKind::Set {
        flags |= set::MAP;
    }
    w.attr_str(set::NAME, name);
    w.attr_be32(set::FLAGS, flags);
    w.attr_be32(set::KEY_TYPE, type_number(key));
    w.attr_be32(set::KEY_LEN, DataType::total(key));
    match leads_to {
        SetKind::Set => {}
        SetKind::Map(types) => {
            w.attr_be32(set::DATA_TYPE, type_number(types));
            w.attr_be32(set::DATA_LEN, DataType::total(types));
        }
        SetKind::Verdicts => {
            w.attr_be32(set::DATA_TYPE, data::TYPE_VERDICT);
            w.attr_be32(set::DATA_LEN, 0);
        }
    }
    w.attr_be32(set::ID, id);
}

fn byte_orders(key: &[DataType], leads_to: &SetKind) -> UserData {
    let order = |types: &[DataType]| match types {
        [DataType::Mark | DataType::Integer | DataType::IfName] => HOST,
        [DataType::Other { .. }] => MIXED,
        [_] => NETWORK,
        _ => MIXED,
    };
    let orders = UserData::default().number(kind::SET_KEY_BYTE_ORDER, order(key));
    match leads_to {
        SetKind::Set => orders,
        SetKind::Map(types) => orders.number(kind::SET_DATA_BYTE_ORDER, order(types)),
        SetKind::Verdicts => orders.number(kind::SET_DATA_BYTE_ORDER, MIXED),
    }
}

fn of_data_interval(data: UserData, leads_to: &SetKind) -> UserData {
    match leads_to {
        SetKind::Set => data,
        SetKind::Map(_) | SetKind::Verdicts => data.number(kind::SET_DATA_INTERVAL, 0),
    }
}

fn type_of_expression(number: u32) -> UserData {
    let mut data = UserData::default().number(kind::TYPE_OF_EXPRESSION, number);
    data.value(kind::TYPE_OF_DATA, &[]);
    data
}

/// Returns the user data in which `nft` stores the types of a key's or value's parts.
pub(crate) fn concatenation(parts: &[DataType], type_of: Option<TypeOf>) -> UserData {
    let fields = type_of.and_then(|of| {
        let fields = parts.iter().map(|part| field(*part, of));
        fields.collect::<Option<Vec<UserData>>>()
    });
    let Some(fields) = fields else {
        return type_of_expression(CONCATENATION);
    };
    let mut all = UserData::default();
    for (place, field) in (0..).zip(&fields) {
        all = all.nested(place, field);
    }
    UserData::default()
        .number(kind::TYPE_OF_EXPRESSION, CONCATENATION)
        .nested(kind::TYPE_OF_DATA, &all)
}

/// Returns the user data in which `nft` stores the packet field of one part.
fn field(part: DataType, of: TypeOf) -> Option<UserData> {
    // Numbers of the protocol (`PROTO_DESC_*`), and of the packet field within the protocol.
    let (protocol, field) = match (part, of) {
        (DataType::Ipv4Addr, _) => (12, 12),
        (DataType::Ipv6Addr, _) => (13, 9),
        (DataType::InetService, TypeOf::Udp) => (6, 2),
        (DataType::InetService, TypeOf::Tcp) => (8, 2),
        (DataType::InetService, TypeOf::Sctp) => (10, 2),
        (DataType::Integer, _) => {
            // The numbers stand for `NFT_NG_RANDOM`, the modulus and the offset. `nft` ignores this
            // modulus.
            let made = UserData::default().number(0, 1).number(1, 2).number(2, 0);
            let number = UserData::default().number(kind::TYPE_OF_EXPRESSION, NUMGEN);
            return Some(number.nested(kind::TYPE_OF_DATA, &made));
        }
        _ => return None,
    };
    Some(payload_field(protocol, field))
}

fn payload_field(protocol: u32, field: u32) -> UserData {
    let of = UserData::default().number(0, protocol).number(1, field);
    UserData::default()
        .number(kind::TYPE_OF_EXPRESSION, PAYLOAD)
        .nested(kind::TYPE_OF_DATA, &of)
}

/// Returns the user data that `nft` writes for the packet field of an anonymous set's key. Returns
/// `None` if `nft` writes no user data, for example for generated numbers.
pub(crate) fn type_of(
    family: Family,
    used_by: &Expression,
    before: &[Expression],
) -> Option<UserData> {
    let Expression::Lookup { key, .. } = used_by else {
        return None;
    };
    let (base, offset, len) = before
        .iter()
        .rev()
        .find_map(|expression| match expression {
            Expression::Payload {
                base,
                offset,
                len,
                to,
            } if to == key => Some(Some((*base, *offset, *len))),
            other => writes(other, *key).then_some(None),
        })??;
    // `nft`'s numbers of the protocol (`PROTO_DESC_IP` or `PROTO_DESC_IP6`), and of the header
    // field (`enum ip_hdr_fields`, ...).
    let (protocol, field) = match (family, base, offset, len) {
        (Family::Ip, PayloadBase::Network, 12, 4) => (12, 11),
        (Family::Ip, PayloadBase::Network, 16, 4) => (12, 12),
        (Family::Ip6, PayloadBase::Network, 8, 16) => (13, 8),
        (Family::Ip6, PayloadBase::Network, 24, 16) => (13, 9),
        _ => return None,
    };
    Some(payload_field(protocol, field))
}

/// Returns true if `expression` writes `register`. Ignores payload loads, which the caller handles
/// itself.
fn writes(expression: &Expression, register: Register) -> bool {
    match expression {
        Expression::Meta { to, .. }
        | Expression::Ct { to, .. }
        | Expression::Bitwise { to, .. }
        | Expression::Immediate { to, .. }
        | Expression::NumGen { to, .. }
        | Expression::Jhash { to, .. }
        | Expression::Fib { to, .. }
        | Expression::Lookup {
            what: LookupFor::Value(to),
            ..
        } => *to == register,
        _ => false,
    }
}

/// Returns the number of a key's type, with six bits for each part.
fn type_number(types: &[DataType]) -> u32 {
    types
        .iter()
        .fold(0, |number, part| number << 6 | part.number())
}

pub(crate) fn element(w: &mut Writer<'_>, new: &Element) {
    if new.ends_interval {
        w.attr_be32(attribute::FLAGS, attribute::INTERVAL_END);
    }
    value(w, attribute::KEY, &new.key);
    if let Some(last) = &new.key_end {
        value(w, attribute::KEY_END, last);
    }
    match &new.data {
        Some(ElementData::Value(bytes)) => value(w, attribute::DATA, bytes),
        Some(ElementData::Verdict(to)) => verdict(w, attribute::DATA, to),
        None => {}
    }
    if let Some(timeout) = new.timeout {
        let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        w.attr(attribute::TIMEOUT, &milliseconds.to_be_bytes());
    }
    if let Some(text) = user_data::comment(kind::ELEMENT_COMMENT, new.comment.as_ref()) {
        w.attr(attribute::USER_DATA, text.bytes());
    }
}

/// Writes an attribute that contains an `NFTA_DATA_VALUE`.
pub(crate) fn value(w: &mut Writer<'_>, attribute: u16, bytes: &[u8]) {
    w.nest(attribute, |w| w.attr(data::VALUE, bytes));
}

/// Writes an attribute that contains an `NFTA_DATA_VERDICT`.
pub(crate) fn verdict(w: &mut Writer<'_>, attribute: u16, to: &Verdict) {
    let (code, chain) = match to {
        Verdict::Accept => (data::ACCEPT, None),
        Verdict::Drop => (data::DROP, None),
        Verdict::Continue => (data::CONTINUE, None),
        Verdict::Return => (data::RETURN, None),
        Verdict::Jump(chain) => (data::JUMP, Some(chain)),
        Verdict::Goto(chain) => (data::GOTO, Some(chain)),
    };
    w.nest(attribute, |w| {
        w.nest(data::VERDICT, |w| {
            w.attr(data::VERDICT_CODE, &code.to_be_bytes());
            if let Some(chain) = chain {
                w.attr_str(data::VERDICT_CHAIN, chain);
            }
        });
    });
}
