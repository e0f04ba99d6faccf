//! What the rules of the shim are made of, as `nft` would encode it.
//!
//! Each function gives the expressions of one clause. A clause begins in the first register: what
//! one leaves there, none after it reads.

use std::net::IpAddr;

use ipnet::IpNet;
use iptables::SourcePort;
use nftables_netlink::{
    Bytes, Comparison, CtKey, Expression, FIB_DESTINATION, Family, FibResult, LookupFor,
    Membership, MetaKey, Name, NatKind, PayloadBase, Register, SetRef, Verdict,
};
use proxy::{IpFamily, Protocol};

/// `NF_CT_STATE_BIT(IP_CT_NEW)`.
const CT_NEW: u32 = 8;
/// `RTN_LOCAL`.
const LOCAL: u32 = 2;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
const FULLY_RANDOM: u32 = 1 << 4;
/// Bytes of an interface's name (`IFNAMSIZ`).
const IF_NAME: usize = 16;

/// A field of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Source,
    Destination,
    Protocol,
    Port,
}

/// Destination, protocol, port.
pub(super) const TO: &[Field] = &[Field::Destination, Field::Protocol, Field::Port];
/// Source, protocol, port of the destination.
pub(super) const BY_SOURCE: &[Field] = &[Field::Source, Field::Protocol, Field::Port];
/// Destination, protocol, port, and who sent it.
pub(super) const TO_FROM: &[Field] = &[
    Field::Destination,
    Field::Protocol,
    Field::Port,
    Field::Source,
];
/// Source, destination, protocol, port.
pub(super) const FROM_TO: &[Field] = &[
    Field::Source,
    Field::Destination,
    Field::Protocol,
    Field::Port,
];

pub(super) type Clause = Vec<Expression>;

/// Bytes of an address.
pub(super) const fn address_len(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 4,
        IpFamily::V6 => 16,
    }
}

/// Where an address stands in the network header.
const fn address_at(family: IpFamily, field: Field) -> u32 {
    match (family, field) {
        (IpFamily::V4, Field::Source) => 12,
        (IpFamily::V4, _) => 16,
        (IpFamily::V6, Field::Source) => 8,
        (IpFamily::V6, _) => 24,
    }
}

fn load(family: IpFamily, field: Field, to: Register) -> (Expression, usize) {
    let payload = |base, offset, len| Expression::Payload {
        base,
        offset,
        len,
        to,
    };
    match field {
        Field::Source | Field::Destination => {
            let len = address_len(family);
            let at = address_at(family, field);
            (payload(PayloadBase::Network, at, len), len as usize)
        }
        Field::Protocol => {
            let key = MetaKey::L4Proto;
            (Expression::Meta { key, to }, 4)
        }
        Field::Port => (payload(PayloadBase::Transport, 2, 2), 4),
    }
}

/// The fields, one after the other from the first register on; and where each begins.
fn loaded(family: IpFamily, fields: &[Field]) -> (Clause, Vec<Register>) {
    let (mut clause, mut registers, mut at) = (Vec::new(), Vec::new(), 0);
    for field in fields {
        let to = Register::at(at).unwrap_or(Register::FIRST);
        let (expression, len) = load(family, *field, to);
        clause.push(expression);
        registers.push(to);
        at += len;
    }
    (clause, registers)
}

fn lookup(set: Name, membership: Membership) -> Expression {
    Expression::Lookup {
        key: Register::FIRST,
        set: SetRef::Named(set),
        what: LookupFor::Membership(membership),
    }
}

/// `ip daddr . meta l4proto . th dport @SET`
pub(super) fn in_set(
    family: IpFamily,
    fields: &[Field],
    set: Name,
    membership: Membership,
) -> Clause {
    let (mut clause, _) = loaded(family, fields);
    clause.push(lookup(set, membership));
    clause
}

/// The same with only the first bits of the source: `… . ip saddr & 255.255.0.0 @SET`
pub(super) fn in_set_by_prefix(family: IpFamily, prefix: u8, set: Name) -> Clause {
    let (mut clause, registers) = loaded(family, TO_FROM);
    if let Some(source) = registers
        .last()
        .filter(|_| u32::from(prefix) < address_len(family) * 8)
    {
        let mask = mask(family, prefix);
        clause.push(Expression::Bitwise {
            from: *source,
            to: *source,
            xor: zeros(mask.len()),
            mask,
        });
    }
    clause.push(lookup(set, Membership::In));
    clause
}

/// `tcp dport @SET`
pub(super) fn port_in_set(protocol: Protocol, set: Name, membership: Membership) -> Clause {
    let port = Expression::Payload {
        base: PayloadBase::Transport,
        offset: 2,
        len: 2,
        to: Register::FIRST,
    };
    let mut clause = of_protocol(protocol);
    clause.extend([port, lookup(set, membership)]);
    clause
}

/// The same, where the protocol is known already.
pub(super) fn further_port_in_set(set: Name, membership: Membership) -> Clause {
    let port = Expression::Payload {
        base: PayloadBase::Transport,
        offset: 2,
        len: 2,
        to: Register::FIRST,
    };
    vec![port, lookup(set, membership)]
}

/// `meta l4proto tcp`, which `nft` leaves out before `tcp dport`.
fn of_protocol(protocol: Protocol) -> Clause {
    vec![
        Expression::Meta {
            key: MetaKey::L4Proto,
            to: Register::FIRST,
        },
        compare(Comparison::Equal, &[protocol.number()]),
    ]
}

/// `ip saddr NET`, or `ip saddr != NET`. Whole bytes of a prefix are compared without a mask.
pub(super) fn source(family: IpFamily, how: Comparison, net: &IpNet) -> Clause {
    let (address, prefix) = (octets(net.network()), net.prefix_len());
    let is_whole = prefix % 8 == 0;
    let len = if is_whole {
        u32::from(prefix) / 8
    } else {
        address_len(family)
    };
    let mut clause = vec![Expression::Payload {
        base: PayloadBase::Network,
        offset: address_at(family, Field::Source),
        len,
        to: Register::FIRST,
    }];
    if !is_whole {
        let mask = mask(family, prefix);
        clause.push(Expression::Bitwise {
            from: Register::FIRST,
            to: Register::FIRST,
            xor: zeros(mask.len()),
            mask,
        });
    }
    let compared = address.get(..len as usize).unwrap_or(&address);
    clause.push(compare(how, compared));
    clause
}

/// `iifname != "NAME"`
pub(super) fn not_interface(name: &str) -> Clause {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(IF_NAME, 0);
    interface(&bytes)
}

/// `iifname != "PREFIX*"`
pub(super) fn not_interface_prefix(prefix: &str) -> Clause {
    interface(prefix.as_bytes())
}

fn interface(bytes: &[u8]) -> Clause {
    vec![
        Expression::Meta {
            key: MetaKey::IifName,
            to: Register::FIRST,
        },
        compare(Comparison::NotEqual, bytes),
    ]
}

/// `ct state new`
pub(super) fn new_flow() -> Clause {
    vec![
        Expression::Ct {
            key: CtKey::State,
            to: Register::FIRST,
        },
        masked(CT_NEW, 0),
        compare(Comparison::NotEqual, &0_u32.to_ne_bytes()),
    ]
}

/// `fib daddr type local`
pub(super) fn to_local() -> Clause {
    vec![
        Expression::Fib {
            result: FibResult::AddressType,
            flags: FIB_DESTINATION,
            to: Register::FIRST,
        },
        compare(Comparison::Equal, &LOCAL.to_ne_bytes()),
    ]
}

/// `meta mark & MARK == MARK`
pub(super) fn marked(mark: u32) -> Clause {
    vec![
        load_mark(),
        masked(mark, 0),
        compare(Comparison::Equal, &mark.to_ne_bytes()),
    ]
}

/// `meta mark set meta mark | MARK`
pub(super) fn set_mark(mark: u32) -> Clause {
    vec![load_mark(), masked(!mark, mark), store_mark()]
}

/// `meta mark set meta mark ^ MARK`
pub(super) fn flip_mark(mark: u32) -> Clause {
    vec![load_mark(), masked(u32::MAX, mark), store_mark()]
}

/// `masquerade`, or `masquerade fully-random`
pub(super) fn masquerade(port: SourcePort) -> Clause {
    let flags = match port {
        SourcePort::Kept => 0,
        SourcePort::Random => FULLY_RANDOM,
    };
    vec![Expression::Masquerade { flags }]
}

/// `dnat to ip daddr`: the destination stays, and no later rule of anybody changes it.
pub(super) fn keep_destination(family: IpFamily) -> Clause {
    let (mut clause, _) = loaded(family, &[Field::Destination]);
    clause.push(Expression::Nat {
        kind: NatKind::Destination,
        family: family.into(),
        address: Some(Register::FIRST),
        port: None,
        flags: 0,
    });
    clause
}

/// `reject`: ICMP port unreachable.
pub(super) fn reject(family: IpFamily) -> Clause {
    let code = match Family::from(family) {
        Family::Ip6 => 4,
        _ => 3,
    };
    vec![Expression::Reject { kind: 0, code }]
}

pub(super) fn verdict(verdict: Verdict) -> Clause {
    vec![Expression::Verdict(verdict)]
}

fn load_mark() -> Expression {
    Expression::Meta {
        key: MetaKey::Mark,
        to: Register::FIRST,
    }
}

fn store_mark() -> Expression {
    Expression::SetMeta {
        key: MetaKey::Mark,
        from: Register::FIRST,
    }
}

fn masked(mask: u32, xor: u32) -> Expression {
    Expression::Bitwise {
        from: Register::FIRST,
        to: Register::FIRST,
        mask: Bytes::from_slice(&mask.to_ne_bytes()),
        xor: Bytes::from_slice(&xor.to_ne_bytes()),
    }
}

fn compare(how: Comparison, with: &[u8]) -> Expression {
    Expression::Compare {
        register: Register::FIRST,
        how,
        with: Bytes::from_slice(with),
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn zeros(len: usize) -> Bytes {
    std::iter::repeat_n(0, len).collect()
}

/// The mask of a prefix.
fn mask(family: IpFamily, prefix: u8) -> Bytes {
    let bits = address_len(family) * 8;
    (0..address_len(family))
        .map(|at| {
            let left = u32::from(prefix).min(bits).saturating_sub(at * 8).min(8);
            u8::MAX.checked_shl(8 - left).unwrap_or(0)
        })
        .collect()
}
