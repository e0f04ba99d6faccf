//! Decodes expressions. If this crate does not support a field or an operation of an expression,
//! the whole expression becomes [`Expression::Unknown`].

use netlink_batch::{Attribute, Malformed};
use smallvec::SmallVec;

use super::{missing, name, value, verdict};
use crate::encode::nat_flags_implied;
use crate::expression::{
    Comparison, CtKey, Direction, DynsetOperation, Expression, FibResult, LookupFor, Membership,
    MetaKey, NatKind, NumGenKind, PayloadBase, SetRef, TupleKey,
};
use crate::value::{Bytes, Family, Name, Register};
use crate::wire::data;
use crate::wire::expression::{
    bitwise, byteorder, cmp, counter, ct, dynset, fib, hash, immediate, limit, log, lookup, masq,
    meta, nat, numgen, objref, payload, range, redir, reject, xt,
};
use crate::wire::rule::{EXPRESSION_DATA, EXPRESSION_NAME};

/// Number of attribute kinds that [`Fields`] can hold. Supported expressions have fewer kinds, and
/// newer kernels may add a few. [`Fields`] ignores higher kinds.
const MOST: usize = 16;

/// Attributes of an expression, by kind.
struct Fields<'a>([Option<Attribute<'a>>; MOST]);

impl<'a> Fields<'a> {
    fn of(attribute: Option<Attribute<'a>>) -> Result<Self, Malformed> {
        let mut fields = [None; MOST];
        if let Some(attribute) = attribute {
            for field in attribute.nested() {
                let field = field?;
                if let Some(place) = fields.get_mut(usize::from(field.kind)) {
                    *place = Some(field);
                }
            }
        }
        Ok(Self(fields))
    }

    fn get(&self, kind: u16) -> Option<&Attribute<'a>> {
        self.0.get(usize::from(kind))?.as_ref()
    }

    fn number(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.be32().ok()
    }

    /// Returns the number in the attribute `kind`, or 0 if the attribute is absent.
    fn number_or_0(&self, kind: u16) -> u32 {
        self.number(kind).unwrap_or_default()
    }

    fn long(&self, kind: u16) -> Option<u64> {
        self.get(kind)?.array().ok().map(u64::from_be_bytes)
    }

    fn register(&self, kind: u16) -> Option<Register> {
        Register::of_wire(self.number(kind)?)
    }

    /// Returns the register of the address or port of a NAT range. Returns `PairContent::Other` if
    /// the upper bound is in a different register, because this crate supports only ranges of a
    /// single value.
    fn single(&self, least: u16, greatest: u16) -> PairContent {
        let register = match self.get(least) {
            None => PairContent::Absent,
            Some(_) => self
                .register(least)
                .map_or(PairContent::Other, PairContent::Register),
        };
        if self.has(greatest)
            && Some(register) != self.register(greatest).map(PairContent::Register)
        {
            return PairContent::Other;
        }
        register
    }

    fn bytes(&self, kind: u16) -> Option<Bytes> {
        value(self.get(kind)?).ok().flatten()
    }

    fn has(&self, kind: u16) -> bool {
        self.get(kind).is_some()
    }
}

/// Decodes one expression of a rule (`NFTA_LIST_ELEM`).
pub(crate) fn parse(attribute: &Attribute<'_>) -> Result<Expression, Malformed> {
    let (mut called, mut inner) = (None, None);
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind {
            EXPRESSION_NAME => called = Some(attribute),
            EXPRESSION_DATA => inner = Some(attribute),
            _ => {}
        }
    }
    let called = missing(called, EXPRESSION_NAME, "NFTA_EXPR_NAME")?;
    let fields = Fields::of(inner)?;
    let known = match called.string()? {
        "payload" => payload_of(&fields),
        "meta" => meta_of(&fields),
        "ct" => ct_of(&fields),
        "cmp" => compare(&fields),
        "range" => range_of(&fields),
        "bitwise" => bitwise_of(&fields),
        "immediate" => immediate_of(&fields)?,
        "lookup" => lookup_of(&fields)?,
        "numgen" => numgen_of(&fields),
        "hash" => hash_of(&fields),
        "nat" => nat_of(&fields),
        "masq" => masquerade(&fields),
        "redir" => redirect(&fields),
        "fib" => fib_of(&fields),
        "dynset" => dynset_of(&fields)?,
        "reject" => Some(Expression::Reject {
            kind: fields.number_or_0(reject::TYPE),
            code: fields
                .get(reject::CODE)
                .and_then(|code| code.u8().ok())
                .unwrap_or_default(),
        }),
        "counter" => Some(Expression::Counter {
            bytes: fields.long(counter::BYTES).unwrap_or_default(),
            packets: fields.long(counter::PACKETS).unwrap_or_default(),
        }),
        "byteorder" => byte_order(&fields),
        "limit" => limit_of(&fields),
        "log" => Some(Expression::Log {
            prefix: fields.get(log::PREFIX).map(name).transpose()?,
        }),
        "notrack" => Some(Expression::NoTrack),
        "objref" => object_of(&fields)?,
        _ => None,
    };
    Ok(match known {
        Some(known) => known,
        None => Expression::Unknown(unknown(&called, &fields)?),
    })
}

/// Returns the name of an unsupported expression. For an iptables expression, the name includes the
/// name of its extension.
fn unknown(called: &Attribute<'_>, fields: &Fields<'_>) -> Result<Name, Malformed> {
    let extension = match called.string()? {
        "match" | "target" => fields.get(xt::NAME).map(Attribute::string).transpose()?,
        _ => None,
    };
    match extension {
        Some(extension) => Ok(format!("{} {extension}", called.string()?).into()),
        None => name(called),
    }
}

fn byte_order(fields: &Fields<'_>) -> Option<Expression> {
    // Ignores the operation (host to network order, or network to host order). Both operations swap
    // bytes in the same way, and do nothing if host order equals network order.
    fields.number(byteorder::OP)?;
    Some(Expression::ByteOrder {
        from: fields.register(byteorder::FROM)?,
        to: fields.register(byteorder::TO)?,
        len: fields.number(byteorder::LEN)?,
        size: fields.number(byteorder::SIZE)?,
    })
}

fn limit_of(fields: &Fields<'_>) -> Option<Expression> {
    Some(Expression::Limit {
        rate: fields.long(limit::RATE)?,
        seconds: fields.long(limit::UNIT)?,
        bytes: fields.number_or_0(limit::TYPE) == limit::BYTES,
        over: fields.number_or_0(limit::FLAGS) & limit::OVER != 0,
    })
}

fn object_of(fields: &Fields<'_>) -> Result<Option<Expression>, Malformed> {
    let called = fields.get(objref::NAME).map(name).transpose()?;
    Ok(fields
        .number(objref::TYPE)
        .zip(called)
        .map(|(kind, name)| Expression::Object { kind, name }))
}

fn payload_of(fields: &Fields<'_>) -> Option<Expression> {
    let base = PayloadBase::by_number(fields.number(payload::BASE)?)?;
    let offset = fields.number(payload::OFFSET)?;
    let len = fields.number(payload::LEN)?;
    Some(if fields.has(payload::FROM) {
        Expression::SetPayload {
            base,
            offset,
            len,
            from: fields.register(payload::FROM)?,
        }
    } else {
        Expression::Payload {
            base,
            offset,
            len,
            to: fields.register(payload::TO)?,
        }
    })
}

fn meta_of(fields: &Fields<'_>) -> Option<Expression> {
    let key = MetaKey::by_number(fields.number(meta::KEY)?)?;
    Some(if fields.has(meta::FROM) {
        Expression::SetMeta {
            key,
            from: fields.register(meta::FROM)?,
        }
    } else {
        Expression::Meta {
            key,
            to: fields.register(meta::TO)?,
        }
    })
}

fn ct_of(fields: &Fields<'_>) -> Option<Expression> {
    let number = fields.number(ct::KEY)?;
    if let Some(direction) = fields.get(ct::DIRECTION) {
        return Some(Expression::CtTuple {
            key: TupleKey::by_number(number)?,
            direction: match direction.u8().ok()? {
                0 => Direction::Original,
                1 => Direction::Reply,
                _ => return None,
            },
            to: fields.register(ct::TO)?,
        });
    }
    let key = CtKey::by_number(number)?;
    Some(if fields.has(ct::FROM) {
        Expression::SetCt {
            key,
            from: fields.register(ct::FROM)?,
        }
    } else {
        Expression::Ct {
            key,
            to: fields.register(ct::TO)?,
        }
    })
}

fn compare(fields: &Fields<'_>) -> Option<Expression> {
    Some(Expression::Compare {
        register: fields.register(cmp::FROM)?,
        how: Comparison::by_number(fields.number(cmp::OP)?)?,
        with: fields.bytes(cmp::DATA)?,
    })
}

fn membership(inverted: bool) -> Membership {
    if inverted {
        Membership::NotIn
    } else {
        Membership::In
    }
}

fn range_of(fields: &Fields<'_>) -> Option<Expression> {
    Some(Expression::Range {
        register: fields.register(range::FROM)?,
        how: membership(match fields.number(range::OP)? {
            0 => false,
            1 => true,
            _ => return None,
        }),
        from: fields.bytes(range::LEAST)?,
        to: fields.bytes(range::GREATEST)?,
    })
}

fn bitwise_of(fields: &Fields<'_>) -> Option<Expression> {
    // Only the operation `NFT_BITWISE_BOOL` has a mask.
    if fields.number_or_0(bitwise::OP) != 0 {
        return None;
    }
    Some(Expression::Bitwise {
        from: fields.register(bitwise::FROM)?,
        to: fields.register(bitwise::TO)?,
        mask: fields.bytes(bitwise::MASK)?,
        xor: fields.bytes(bitwise::XOR)?,
    })
}

fn immediate_of(fields: &Fields<'_>) -> Result<Option<Expression>, Malformed> {
    let Some(content) = fields.get(immediate::DATA) else {
        return Ok(None);
    };
    for inner in content.nested() {
        let inner = inner?;
        match inner.kind {
            data::VERDICT => return Ok(verdict(&inner)?.map(Expression::Verdict)),
            data::VALUE => {
                return Ok(fields
                    .register(immediate::TO)
                    .map(|to| Expression::Immediate {
                        to,
                        data: SmallVec::from_slice(inner.payload),
                    }));
            }
            _ => {}
        }
    }
    Ok(None)
}

fn set_name(fields: &Fields<'_>, kind: u16) -> Result<Option<Name>, Malformed> {
    fields.get(kind).map(name).transpose()
}

fn lookup_of(fields: &Fields<'_>) -> Result<Option<Expression>, Malformed> {
    let Some(set) = set_name(fields, lookup::SET)? else {
        return Ok(None);
    };
    let flags = fields.number_or_0(lookup::FLAGS);
    let what = match fields.number(lookup::TO) {
        None if flags & !lookup::INVERTED == 0 => Some(LookupFor::Membership(membership(
            flags & lookup::INVERTED != 0,
        ))),
        _ if flags != 0 => None,
        None => None,
        Some(Register::VERDICT) => Some(LookupFor::Verdict),
        Some(number) => Register::of_wire(number).map(LookupFor::Value),
    };
    Ok(fields
        .register(lookup::FROM)
        .zip(what)
        .map(|(key, what)| Expression::Lookup {
            key,
            set: SetRef::Named(set),
            what,
        }))
}

fn numgen_of(fields: &Fields<'_>) -> Option<Expression> {
    Some(Expression::NumGen {
        how: NumGenKind::by_number(fields.number(numgen::TYPE)?)?,
        modulus: fields.number(numgen::MODULUS)?,
        offset: fields.number_or_0(numgen::OFFSET),
        to: fields.register(numgen::TO)?,
    })
}

fn hash_of(fields: &Fields<'_>) -> Option<Expression> {
    if fields.number_or_0(hash::TYPE) != hash::JENKINS {
        return None;
    }
    Some(Expression::Jhash {
        from: fields.register(hash::FROM)?,
        len: fields.number(hash::LEN)?,
        modulus: fields.number(hash::MODULUS)?,
        seed: fields.number(hash::SEED),
        offset: fields.number_or_0(hash::OFFSET),
        to: fields.register(hash::TO)?,
    })
}

/// Content of the two attributes that hold the registers of a range's lower and upper bound.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PairContent {
    Absent,
    Register(Register),
    /// Two different registers, or an unsupported register.
    Other,
}

impl PairContent {
    /// Returns true if this crate can represent the pair.
    fn is_known(self) -> bool {
        self != Self::Other
    }

    fn register(self) -> Option<Register> {
        match self {
            Self::Register(register) => Some(register),
            Self::Absent | Self::Other => None,
        }
    }
}

fn nat_of(fields: &Fields<'_>) -> Option<Expression> {
    let address = fields.single(nat::ADDRESS, nat::ADDRESS_MAX);
    let port = fields.single(nat::PORT, nat::PORT_MAX);
    if !address.is_known() || !port.is_known() {
        return None;
    }
    let (address, port) = (address.register(), port.register());
    Some(Expression::Nat {
        kind: NatKind::by_number(fields.number(nat::TYPE)?)?,
        family: Family::of_wire(u8::try_from(fields.number(nat::FAMILY)?).ok()?)?,
        address,
        port,
        flags: fields.number_or_0(nat::FLAGS) & !nat_flags_implied(address, port),
    })
}

fn masquerade(fields: &Fields<'_>) -> Option<Expression> {
    if fields.has(masq::PORT) || fields.has(masq::PORT_MAX) {
        return None;
    }
    Some(Expression::Masquerade {
        flags: fields.number_or_0(masq::FLAGS),
    })
}

fn redirect(fields: &Fields<'_>) -> Option<Expression> {
    let port = fields.single(redir::PORT, redir::PORT_MAX);
    if !port.is_known() {
        return None;
    }
    let port = port.register();
    Some(Expression::Redirect {
        port,
        flags: fields.number_or_0(redir::FLAGS) & !nat_flags_implied(None, port),
    })
}

fn fib_of(fields: &Fields<'_>) -> Option<Expression> {
    Some(Expression::Fib {
        result: FibResult::by_number(fields.number(fib::RESULT)?)?,
        flags: fields.number(fib::FLAGS)?,
        to: fields.register(fib::TO)?,
    })
}

fn dynset_of(fields: &Fields<'_>) -> Result<Option<Expression>, Malformed> {
    let Some(set) = set_name(fields, dynset::SET)? else {
        return Ok(None);
    };
    let operation = fields.number(dynset::OP);
    let Some(operation) = operation.and_then(DynsetOperation::by_number) else {
        return Ok(None);
    };
    let other = fields.number_or_0(dynset::FLAGS) != 0
        || [dynset::DATA, dynset::EXPRESSION, dynset::EXPRESSIONS]
            .iter()
            .any(|kind| fields.has(*kind));
    Ok(fields
        .register(dynset::KEY)
        .filter(|_| !other)
        .map(|key| Expression::Dynset {
            set: SetRef::Named(set),
            operation,
            key,
            // The kernel reports a timeout of 0 if the rule sets no timeout.
            timeout: fields.long(dynset::TIMEOUT).filter(|timeout| *timeout > 0),
        }))
}
