//! Encodes expressions, with their attributes in the order in which `nft` writes them.

use netlink_batch::Writer;

use super::set::{value, verdict};
use crate::expression::{Expression, LookupFor, Membership, SetRef};
use crate::value::Register;
use crate::wire::expression::{
    bitwise, byteorder, cmp, counter, ct, dynset, fib, hash, immediate, limit, log, lookup, masq,
    meta, nat, numgen, objref, payload, range, redir, reject,
};
use crate::wire::rule::{EXPRESSION_DATA, EXPRESSION_NAME};

/// Writes the name and the attributes of an expression. `set` is the name of the anonymous set that
/// the expression uses, if any.
pub(crate) fn write(w: &mut Writer<'_>, expression: &Expression, set: Option<&str>) {
    w.attr_str(EXPRESSION_NAME, expression.name());
    if !matches!(expression, Expression::Unknown(_)) {
        w.nest(EXPRESSION_DATA, |w| attributes(w, expression, set));
    }
}

fn register(w: &mut Writer<'_>, attribute: u16, register: Register) {
    w.attr_be32(attribute, register.wire());
}

fn attributes(w: &mut Writer<'_>, expression: &Expression, set: Option<&str>) {
    match expression {
        Expression::Payload {
            base,
            offset,
            len,
            to,
        } => {
            register(w, payload::TO, *to);
            w.attr_be32(payload::BASE, *base as u32);
            w.attr_be32(payload::OFFSET, *offset);
            w.attr_be32(payload::LEN, *len);
        }
        Expression::Meta { key, to } => {
            w.attr_be32(meta::KEY, *key as u32);
            register(w, meta::TO, *to);
        }
        Expression::SetMeta { key, from } => {
            w.attr_be32(meta::KEY, *key as u32);
            register(w, meta::FROM, *from);
        }
        Expression::Ct { key, to } => {
            w.attr_be32(ct::KEY, *key as u32);
            register(w, ct::TO, *to);
        }
        Expression::Compare {
            register: from,
            how,
            with,
        } => {
            register(w, cmp::FROM, *from);
            w.attr_be32(cmp::OP, *how as u32);
            value(w, cmp::DATA, with);
        }
        Expression::Range {
            register: of,
            how,
            from,
            to,
        } => {
            register(w, range::FROM, *of);
            w.attr_be32(range::OP, u32::from(*how == Membership::NotIn));
            value(w, range::LEAST, from);
            value(w, range::GREATEST, to);
        }
        Expression::Bitwise {
            from,
            to,
            mask,
            xor,
        } => {
            register(w, bitwise::FROM, *from);
            register(w, bitwise::TO, *to);
            w.attr_be32(bitwise::LEN, u32::try_from(mask.len()).unwrap_or(u32::MAX));
            value(w, bitwise::MASK, mask);
            value(w, bitwise::XOR, xor);
        }
        Expression::Immediate { to, data } => {
            register(w, immediate::TO, *to);
            value(w, immediate::DATA, data);
        }
        Expression::Verdict(to) => {
            w.attr_be32(immediate::TO, Register::VERDICT);
            verdict(w, immediate::DATA, to);
        }
        Expression::Lookup {
            key,
            set: named,
            what,
        } => {
            register(w, lookup::FROM, *key);
            match what {
                LookupFor::Membership(_) => {}
                LookupFor::Value(to) => register(w, lookup::TO, *to),
                LookupFor::Verdict => w.attr_be32(lookup::TO, Register::VERDICT),
            }
            set_ref(w, lookup::SET, named, set);
            if *what == LookupFor::Membership(Membership::NotIn) {
                w.attr_be32(lookup::FLAGS, lookup::INVERTED);
            }
        }
        Expression::NumGen {
            how,
            modulus,
            offset,
            to,
        } => {
            register(w, numgen::TO, *to);
            w.attr_be32(numgen::MODULUS, *modulus);
            w.attr_be32(numgen::TYPE, *how as u32);
            w.attr_be32(numgen::OFFSET, *offset);
        }
        Expression::Jhash {
            from,
            len,
            modulus,
            seed,
            offset,
            to,
        } => {
            register(w, hash::FROM, *from);
            register(w, hash::TO, *to);
            w.attr_be32(hash::LEN, *len);
            w.attr_be32(hash::MODULUS, *modulus);
            if let Some(seed) = seed {
                w.attr_be32(hash::SEED, *seed);
            }
            w.attr_be32(hash::OFFSET, *offset);
            w.attr_be32(hash::TYPE, hash::JENKINS);
        }
        Expression::Fib { result, flags, to } => {
            w.attr_be32(fib::FLAGS, *flags);
            w.attr_be32(fib::RESULT, *result as u32);
            register(w, fib::TO, *to);
        }
        Expression::Dynset {
            set: named,
            operation,
            key,
            timeout,
        } => {
            register(w, dynset::KEY, *key);
            w.attr_be32(dynset::OP, *operation as u32);
            if let Some(timeout) = timeout {
                w.attr(dynset::TIMEOUT, &timeout.to_be_bytes());
            }
            set_ref(w, dynset::SET, named, set);
        }
        Expression::Reject { kind, code } => {
            w.attr_be32(reject::TYPE, *kind);
            w.attr_u8(reject::CODE, *code);
        }
        Expression::Counter { bytes, packets } => {
            w.attr(counter::BYTES, &bytes.to_be_bytes());
            w.attr(counter::PACKETS, &packets.to_be_bytes());
        }
        Expression::Nat { .. } | Expression::Masquerade { .. } | Expression::Redirect { .. } => {
            translation(w, expression);
        }
        Expression::SetPayload {
            base,
            offset,
            len,
            from,
        } => {
            register(w, payload::FROM, *from);
            w.attr_be32(payload::BASE, *base as u32);
            w.attr_be32(payload::OFFSET, *offset);
            w.attr_be32(payload::LEN, *len);
        }
        Expression::CtTuple { key, direction, to } => {
            w.attr_be32(ct::KEY, *key as u32);
            register(w, ct::TO, *to);
            w.attr_u8(ct::DIRECTION, *direction as u8);
        }
        Expression::SetCt { key, from } => {
            w.attr_be32(ct::KEY, *key as u32);
            register(w, ct::FROM, *from);
        }
        Expression::ByteOrder {
            from,
            to,
            len,
            size,
        } => {
            register(w, byteorder::FROM, *from);
            register(w, byteorder::TO, *to);
            w.attr_be32(byteorder::OP, 0);
            w.attr_be32(byteorder::LEN, *len);
            w.attr_be32(byteorder::SIZE, *size);
        }
        Expression::Limit {
            rate,
            seconds,
            bytes,
            over,
        } => {
            w.attr(limit::RATE, &rate.to_be_bytes());
            w.attr(limit::UNIT, &seconds.to_be_bytes());
            w.attr_be32(limit::TYPE, if *bytes { limit::BYTES } else { 0 });
            w.attr_be32(limit::FLAGS, if *over { limit::OVER } else { 0 });
        }
        Expression::Log { prefix } => {
            if let Some(prefix) = prefix {
                w.attr_str(log::PREFIX, prefix);
            }
        }
        Expression::Object { kind, name } => {
            w.attr_be32(objref::TYPE, *kind);
            w.attr_str(objref::NAME, name);
        }
        Expression::NoTrack | Expression::Unknown(_) => {}
    }
}

fn translation(w: &mut Writer<'_>, expression: &Expression) {
    match expression {
        Expression::Nat {
            kind,
            family,
            address,
            port,
            flags,
        } => {
            w.attr_be32(nat::TYPE, *kind as u32);
            w.attr_be32(nat::FAMILY, (*family as u8).into());
            if let Some(address) = address {
                register(w, nat::ADDRESS, *address);
            }
            if let Some(port) = port {
                register(w, nat::PORT, *port);
            }
            let given = flags & !nat_flags_implied(*address, *port);
            if given != 0 {
                w.attr_be32(nat::FLAGS, given);
            }
        }
        Expression::Masquerade { flags } if *flags != 0 => w.attr_be32(masq::FLAGS, *flags),
        Expression::Redirect { port, flags } => {
            if let Some(port) = port {
                register(w, redir::PORT, *port);
            }
            let given = flags & !nat_flags_implied(None, *port);
            if given != 0 {
                w.attr_be32(redir::FLAGS, given);
            }
        }
        _ => {}
    }
}

/// Returns the NAT flags that the kernel derives from the presence of an address and of a port.
pub(crate) fn nat_flags_implied(address: Option<Register>, port: Option<Register>) -> u32 {
    address.map_or(0, |_| nat::MAP_ADDRESSES) | port.map_or(0, |_| nat::PORT_SPECIFIED)
}

fn set_ref(w: &mut Writer<'_>, attribute: u16, named: &SetRef, anonymous: Option<&str>) {
    match named {
        SetRef::Named(name) => w.attr_str(attribute, name),
        SetRef::Anonymous(_) => w.attr_str(attribute, anonymous.unwrap_or_default()),
    }
}
