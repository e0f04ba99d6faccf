//! Tests that a read returns every written object unchanged, and that bytes of other programs never
//! cause a panic.

use std::sync::Arc;
use std::time::Duration;

use netlink_batch::NLM_F_ECHO;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use smallvec::SmallVec;

use super::{AnySet, chain_of, elements, generation, rule_of, set_of, table};
use crate::encode::{PreparedTransaction, concatenation};
use crate::expression::{
    Comparison, CtKey, Direction, DynsetOperation, Expression, FibResult, LookupFor, Membership,
    MetaKey, NatKind, NumGenKind, PayloadBase, Rule, SetRef, TupleKey,
};
use crate::object::{
    AnonymousSet, BaseChain, Chain, ChainKind, Element, ElementData, Hook, Policy, Set, SetKind,
    Table, Timeout, TypeOf,
};
use crate::transaction::{Change, Transaction};
use crate::value::{Bytes, DataType, Family, Name, Register, Verdict};
use crate::wire::{command, message};

const TABLE: &str = "table";
const HANDLE: u64 = 7 << 40;

fn transaction(changes: Vec<Change>) -> Transaction {
    Transaction {
        family: Family::Ip6,
        table: TABLE.into(),
        changes,
    }
}

/// Decodes the messages of a transaction back into its changes. The kernel would return the objects
/// in messages of the same format.
fn read(prepared: &PreparedTransaction) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut anonymous: Vec<(Name, AnonymousSet)> = Vec::new();
    for index in 0..prepared.messages() {
        let of = prepared.batch.get(index).unwrap();
        let payload = of.payload;
        let kind = |command| of.kind == message(command);
        if kind(command::NEW_TABLE) {
            changes.push(Change::AddTable(table(payload).unwrap().unwrap()));
        } else if kind(command::NEW_CHAIN) {
            changes.push(Change::AddChain(chain_of(TABLE, payload).unwrap().unwrap()));
        } else if kind(command::NEW_SET) {
            match set_of(TABLE, payload).unwrap().unwrap() {
                AnySet::Named(found) => {
                    assert_eq!(found.other_flags, 0);
                    changes.push(Change::AddSet(found.set));
                }
                AnySet::Anonymous(name, found) => anonymous.push((name, found.set)),
            }
        } else if kind(command::NEW_ELEMENTS) {
            if let Some((_, set)) = anonymous.last_mut() {
                elements(payload, &mut set.elements).unwrap();
            } else {
                let mut all = Vec::new();
                elements(payload, &mut all).unwrap();
                changes.push(Change::AddElements("set".into(), all));
            }
        } else if kind(command::NEW_RULE) {
            let mut found = rule_of(TABLE, payload).unwrap().unwrap();
            for expression in &mut found.expressions {
                if let Expression::Lookup { set, .. } | Expression::Dynset { set, .. } = expression
                    && let SetRef::Named(name) = set
                    && let Some((_, found)) = anonymous.iter().find(|(of, _)| of == name)
                {
                    *set = SetRef::Anonymous(Arc::new(found.clone()));
                }
            }
            anonymous.clear();
            let rule = Rule {
                expressions: found.expressions,
                comment: found.comment,
            };
            changes.push(Change::ReplaceRule(found.chain, found.handle, rule));
        }
    }
    changes
}

fn register() -> impl Strategy<Value = Register> {
    (0_usize..16).prop_map(|place| Register::at(place * 4).unwrap())
}

fn bytes(len: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), len).prop_map(SmallVec::from_vec)
}

fn name() -> impl Strategy<Value = Name> {
    "[a-zA-Z][a-zA-Z0-9/._-]{0,254}".prop_map(Name::from)
}

fn comment() -> impl Strategy<Value = Option<Arc<str>>> {
    let cut = |text: String| Arc::from(&text[..text.floor_char_boundary(128)]);
    option::of("[^\0]{0,60}".prop_map(cut))
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Accept),
        Just(Verdict::Drop),
        Just(Verdict::Continue),
        Just(Verdict::Return),
        name().prop_map(Verdict::Jump),
        name().prop_map(Verdict::Goto),
    ]
}

fn types() -> impl Strategy<Value = Vec<DataType>> {
    let one = prop_oneof![
        Just(DataType::Ipv4Addr),
        Just(DataType::Ipv6Addr),
        Just(DataType::InetProto),
        Just(DataType::InetService),
        Just(DataType::Mark),
        Just(DataType::IfName),
        Just(DataType::Integer),
    ];
    vec(one, 1..=5)
}

fn kind() -> impl Strategy<Value = SetKind> {
    prop_oneof![
        Just(SetKind::Set),
        types().prop_map(SetKind::Map),
        Just(SetKind::Verdicts),
    ]
}

fn element() -> impl Strategy<Value = Element> {
    let data = prop_oneof![
        bytes(1..=64).prop_map(ElementData::Value),
        verdict().prop_map(ElementData::Verdict),
    ];
    let timeout = option::of(any::<u32>().prop_map(|time| Duration::from_millis(time.into())));
    (
        bytes(1..=64),
        any::<bool>(),
        option::of(data),
        comment(),
        timeout,
    )
        .prop_map(|(key, ends_interval, data, comment, timeout)| Element {
            // The generated last key of a range may have any length. In the kernel, all keys of a
            // set have the same length.
            key_end: ends_interval.then(|| key.clone()),
            key,
            ends_interval,
            data,
            comment,
            timeout,
        })
}

fn anonymous() -> impl Strategy<Value = AnonymousSet> {
    (types(), kind(), any::<bool>(), vec(element(), 0..4)).prop_map(
        |(key, kind, intervals, elements)| AnonymousSet {
            key,
            kind,
            intervals,
            elements,
        },
    )
}

fn set_ref() -> impl Strategy<Value = SetRef> {
    prop_oneof![
        name().prop_map(SetRef::Named),
        anonymous().prop_map(|set| SetRef::Anonymous(Arc::new(set))),
    ]
}

fn membership() -> impl Strategy<Value = Membership> {
    prop_oneof![Just(Membership::In), Just(Membership::NotIn)]
}

fn meta_key() -> impl Strategy<Value = MetaKey> {
    prop::sample::select(MetaKey::ALL)
}

fn translation() -> impl Strategy<Value = Expression> {
    let kind = prop_oneof![Just(NatKind::Source), Just(NatKind::Destination)];
    let family = prop_oneof![Just(Family::Ip), Just(Family::Ip6)];
    let registers = (option::of(register()), option::of(register()));
    prop_oneof![
        (kind, family, registers, 0_u32..32).prop_map(|(kind, family, (address, port), flags)| {
            Expression::Nat {
                kind,
                family,
                address,
                port,
                // Clears the lowest two flags, because the decoder also clears them. These two
                // flags only state whether the expression has an address and a port.
                flags: flags & !3,
            }
        }),
        any::<u32>().prop_map(|flags| Expression::Masquerade { flags }),
        (option::of(register()), 0_u32..32).prop_map(|(port, flags)| Expression::Redirect {
            port,
            flags: flags & !2,
        }),
        (any::<u32>(), any::<u8>()).prop_map(|(kind, code)| Expression::Reject { kind, code }),
        any::<(u64, u64)>().prop_map(|(bytes, packets)| Expression::Counter { bytes, packets }),
    ]
}

fn made() -> impl Strategy<Value = Expression> {
    let how = prop_oneof![Just(NumGenKind::Incremental), Just(NumGenKind::Random)];
    let result = prop_oneof![
        Just(FibResult::Oif),
        Just(FibResult::OifName),
        Just(FibResult::AddressType),
    ];
    let operation = prop_oneof![
        Just(DynsetOperation::Add),
        Just(DynsetOperation::Update),
        Just(DynsetOperation::Delete),
    ];
    let what = prop_oneof![
        membership().prop_map(LookupFor::Membership),
        register().prop_map(LookupFor::Value),
        Just(LookupFor::Verdict),
    ];
    prop_oneof![
        (register(), set_ref(), what).prop_map(|(key, set, what)| Expression::Lookup {
            key,
            set,
            what
        }),
        (how, any::<(u32, u32)>(), register()).prop_map(|(how, (modulus, offset), to)| {
            Expression::NumGen {
                how,
                modulus,
                offset,
                to,
            }
        }),
        (
            register(),
            any::<(u32, u32, u32)>(),
            any::<Option<u32>>(),
            register()
        )
            .prop_map(
                |(from, (len, modulus, offset), seed, to)| Expression::Jhash {
                    from,
                    len,
                    modulus,
                    seed,
                    offset,
                    to,
                }
            ),
        (result, any::<u32>(), register()).prop_map(|(result, flags, to)| Expression::Fib {
            result,
            flags,
            to
        }),
        (set_ref(), operation, register(), option::of(1..u64::MAX)).prop_map(
            |(set, operation, key, timeout)| Expression::Dynset {
                set,
                operation,
                key,
                timeout,
            }
        ),
    ]
}

fn compared() -> impl Strategy<Value = Expression> {
    let base = prop_oneof![
        Just(PayloadBase::Link),
        Just(PayloadBase::Network),
        Just(PayloadBase::Transport),
    ];
    let ct_key = prop_oneof![
        Just(CtKey::State),
        Just(CtKey::Direction),
        Just(CtKey::Status),
        Just(CtKey::Mark),
    ];
    let comparison = prop_oneof![
        Just(Comparison::Equal),
        Just(Comparison::NotEqual),
        Just(Comparison::Less),
        Just(Comparison::LessOrEqual),
        Just(Comparison::Greater),
        Just(Comparison::GreaterOrEqual),
    ];
    prop_oneof![
        (base, any::<(u32, u32)>(), register()).prop_map(|(base, (offset, len), to)| {
            Expression::Payload {
                base,
                offset,
                len,
                to,
            }
        }),
        (meta_key(), register()).prop_map(|(key, to)| Expression::Meta { key, to }),
        (meta_key(), register()).prop_map(|(key, from)| Expression::SetMeta { key, from }),
        (ct_key.clone(), register()).prop_map(|(key, to)| Expression::Ct { key, to }),
        (ct_key, register()).prop_map(|(key, from)| Expression::SetCt { key, from }),
        (register(), comparison, bytes(1..=16)).prop_map(|(register, how, with)| {
            Expression::Compare {
                register,
                how,
                with,
            }
        }),
        (register(), membership(), bytes(4), bytes(4)).prop_map(|(register, how, from, to)| {
            Expression::Range {
                register,
                how,
                from,
                to,
            }
        }),
        (register(), register(), bytes(4), bytes(4)).prop_map(|(from, to, mask, xor)| {
            Expression::Bitwise {
                from,
                to,
                mask,
                xor,
            }
        }),
        (register(), bytes(1..=16)).prop_map(|(to, data)| Expression::Immediate { to, data }),
        verdict().prop_map(Expression::Verdict),
        "[a-z]{4,12}".prop_map(|name| Expression::Unknown(format!("x{name}").into())),
    ]
}

fn further() -> impl Strategy<Value = Expression> {
    let base = prop_oneof![Just(PayloadBase::Network), Just(PayloadBase::Transport)];
    let tuple_key = prop::sample::select(TupleKey::ALL);
    let direction = prop_oneof![Just(Direction::Original), Just(Direction::Reply)];
    prop_oneof![
        (base, any::<(u32, u32)>(), register()).prop_map(|(base, (offset, len), from)| {
            Expression::SetPayload {
                base,
                offset,
                len,
                from,
            }
        }),
        (tuple_key, direction, register()).prop_map(|(key, direction, to)| Expression::CtTuple {
            key,
            direction,
            to
        }),
        (register(), register(), any::<(u32, u32)>()).prop_map(|(from, to, (len, size))| {
            Expression::ByteOrder {
                from,
                to,
                len,
                size,
            }
        }),
        any::<(u64, u64, bool, bool)>().prop_map(|(rate, seconds, bytes, over)| {
            Expression::Limit {
                rate,
                seconds,
                bytes,
                over,
            }
        }),
        option::of(name()).prop_map(|prefix| Expression::Log { prefix }),
        Just(Expression::NoTrack),
        (any::<u32>(), name()).prop_map(|(kind, name)| Expression::Object { kind, name }),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let expression = prop_oneof![compared(), made(), translation(), further()];
    (vec(expression, 0..6), comment()).prop_map(|(expressions, comment)| Rule {
        expressions,
        comment,
    })
}

fn base() -> impl Strategy<Value = BaseChain> {
    let kind = prop_oneof![
        Just(ChainKind::Filter),
        Just(ChainKind::Nat),
        Just(ChainKind::Route),
    ];
    let hook = prop_oneof![
        Just(Hook::Prerouting),
        Just(Hook::Input),
        Just(Hook::Forward),
        Just(Hook::Output),
        Just(Hook::Postrouting),
    ];
    let policy = prop_oneof![Just(Policy::Accept), Just(Policy::Drop)];
    (kind, hook, any::<i32>(), policy).prop_map(|(kind, hook, priority, policy)| BaseChain {
        kind,
        hook,
        priority,
        policy,
    })
}

fn set() -> impl Strategy<Value = Set> {
    let timeout = prop_oneof![
        Just(Timeout::OfElements),
        (1..u32::MAX).prop_map(|time| Timeout::Default(Duration::from_millis(time.into()))),
    ];
    (
        (name(), types(), kind()),
        any::<(bool, bool)>(),
        (option::of(timeout), any::<Option<u32>>(), comment()),
    )
        .prop_map(
            |((name, key, kind), (intervals, dynamic), (timeout, size, comment))| Set {
                intervals,
                dynamic,
                timeout,
                size,
                comment,
                ..Set::new(name, key, kind)
            },
        )
}

/// Generates changes that add objects to a table.
fn change() -> impl Strategy<Value = Change> {
    let table = |comment| {
        Change::AddTable(Table {
            comment,
            ..Table::new(Family::Ip6, TABLE.into())
        })
    };
    prop_oneof![
        comment().prop_map(table),
        (name(), option::of(base()), comment()).prop_map(|(name, base, comment)| {
            Change::AddChain(Chain {
                name,
                base,
                comment,
            })
        }),
        set().prop_map(Change::AddSet),
        vec(element(), 1..5).prop_map(|all| Change::AddElements("set".into(), all)),
        (name(), rule()).prop_map(|(chain, rule)| Change::ReplaceRule(chain, HANDLE, rule)),
    ]
}

proptest! {
    #[test]
    fn encoded_objects_decode_to_the_same_objects(changes in vec(change(), 0..8)) {
        let prepared = PreparedTransaction::new(&transaction(changes.clone()), None);
        prop_assert_eq!(read(&prepared), changes);
    }

    #[test]
    fn each_message_of_a_transaction_belongs_to_one_change(changes in vec(change(), 1..8)) {
        let prepared = PreparedTransaction::new(&transaction(changes.clone()), None);
        let mut of: Vec<_> = (0..prepared.messages()).map(|at| prepared.change_of(at)).collect();
        prop_assert_eq!(of.first(), Some(&None));
        prop_assert_eq!(of.last(), Some(&None));
        of.dedup();
        prop_assert_eq!(of.len(), changes.len() + 2);
    }

    #[test]
    fn damaged_objects_never_panic_the_decoder(
        change in change(),
        faults in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let prepared = PreparedTransaction::new(&transaction(vec![change]), None);
        for index in 0..prepared.messages() {
            let mut payload = prepared.batch.get(index).unwrap().payload.to_vec();
            for (at, to) in &faults {
                let at = at.index(payload.len());
                payload[at] = *to;
            }
            payload.truncate(1 + cut.index(payload.len()));
            let _ = table(&payload);
            let _ = chain_of(TABLE, &payload);
            let _ = set_of(TABLE, &payload);
            let _ = rule_of(TABLE, &payload);
            let _ = elements(&payload, &mut Vec::new());
            let _ = generation(&payload);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic_the_object_decoder(payload in vec(any::<u8>(), 0..256)) {
        let _ = table(&payload);
        let _ = chain_of(TABLE, &payload);
        let _ = set_of(TABLE, &payload);
        let _ = rule_of(TABLE, &payload);
        let _ = elements(&payload, &mut Vec::new());
        let _ = generation(&payload);
    }
}

#[test]
fn many_elements_are_split_over_several_messages() {
    let all: Vec<_> = (0..10_000_u32)
        .map(|number| {
            Element::of_verdicts(
                SmallVec::from_slice(&number.to_be_bytes()),
                Verdict::Goto("chain".into()),
            )
        })
        .collect();
    let changes = vec![Change::AddElements("set".into(), all.clone())];
    let prepared = PreparedTransaction::new(&transaction(changes), None);
    assert!(prepared.messages() > 5, "{}", prepared.messages());
    let mut found = Vec::new();
    for change in read(&prepared) {
        match change {
            Change::AddElements(_, elements) => found.extend(elements),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(found, all);
    // An empty list of elements creates no message: in a deletion, the kernel would flush the set.
    let none = vec![Change::AddElements("set".into(), Vec::new())];
    assert_eq!(
        PreparedTransaction::new(&transaction(none), None).messages(),
        2
    );
}

#[test]
fn a_long_comment_is_cut_to_128_bytes() {
    let long = "é".repeat(200);
    let rule = Rule {
        expressions: Vec::new(),
        comment: Some(long.as_str().into()),
    };
    let changes = vec![Change::ReplaceRule("chain".into(), HANDLE, rule)];
    let [Change::ReplaceRule(_, _, found)] =
        &read(&PreparedTransaction::new(&transaction(changes), None))[..]
    else {
        panic!("one rule");
    };
    let found = found.comment.as_deref().unwrap();
    assert_eq!(found, "é".repeat(64), "128 bytes, as `nft` takes");
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn key_types_are_stored_in_nfts_user_data_format() {
    let key = |address| vec![DataType::Integer, address, DataType::InetService];
    for address in [DataType::Ipv4Addr, DataType::Ipv6Addr] {
        for type_of in TypeOf::ALL {
            let set = Set {
                type_of: Some(type_of),
                comment: Some("Endpoints".into()),
                ..Set::new(
                    "endpoints".into(),
                    key(address),
                    SetKind::Map(vec![address, DataType::InetService]),
                )
            };
            let changes = vec![Change::AddSet(set)];
            let prepared = PreparedTransaction::new(&transaction(changes.clone()), None);
            assert_eq!(read(&prepared), changes);
        }
    }
    // User data of `typeof numgen random mod 2 . ip daddr . sctp dport`, as `nft` 1.0.6 writes it.
    let by_nft = [
        "00040d000000",
        "0148",
        "001a",
        "000417000000",
        "0112",
        "000401000000",
        "010402000000",
        "020400000000",
        "0114",
        "000407000000",
        "010c",
        "00040c000000",
        "01040c000000",
        "0214",
        "000407000000",
        "010c",
        "00040a000000",
        "010402000000",
    ]
    .concat();
    let written = concatenation(&key(DataType::Ipv4Addr), Some(TypeOf::Sctp));
    let hex = |byte: &u8| format!("{byte:02x}");
    let written: String = written.bytes().iter().map(hex).collect();
    assert_eq!(written, by_nft);
}

#[test]
fn a_transaction_requests_an_echo_only_for_a_small_first_change() {
    let is_told = |count: u32| {
        let elements =
            (0..count).map(|number| Element::of_set(number.to_be_bytes().as_slice().into()));
        let change = Change::AddElements("set".into(), elements.collect());
        let prepared = PreparedTransaction::new(&transaction(vec![change]), None);
        prepared.batch.get(1).unwrap().flags & NLM_F_ECHO != 0
    };
    assert!(is_told(1));
    assert!(!is_told(1_000));
}
