use std::net::{IpAddr, Ipv4Addr};

use nftables_netlink::{
    BaseChain, Bytes, Chain, ChainKind, Comparison, Concatenation, CtKey, DataType,
    DynsetOperation, Element, Expression, FibResult, LookupFor, Membership, MetaKey, NatKind,
    NumGenKind, PayloadBase, Policy, Register, Rule, Set, SetKind, SetRef, Verdict,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::branch::Doubt;
use crate::kernel::{AddressType, ReadFailure, Route, RouteQuestion, Server, SetKey};
use crate::packet::{Interface, Packet};

const TABLE: &str = "t";

/// Fake kernel in which no query succeeds.
struct EmptyKernel;

fn unread() -> ReadFailure {
    ReadFailure {
        part: "anything".to_owned(),
        reason: "it is a test".to_owned(),
    }
}

impl Kernel for EmptyKernel {
    fn route(&self, _: &RouteQuestion) -> Result<Route, ReadFailure> {
        Err(unread())
    }

    fn address_type(&self, _: IpAddr, _: Option<&Interface>) -> Result<AddressType, ReadFailure> {
        Err(unread())
    }

    fn address_of(&self, _: &Interface, _: IpAddr) -> Result<Option<IpAddr>, ReadFailure> {
        Err(unread())
    }

    fn set_type(&self, _: &str) -> Result<Option<String>, ReadFailure> {
        Err(unread())
    }

    fn member(&self, _: &str, _: &SetKey) -> Result<Option<String>, ReadFailure> {
        Err(unread())
    }

    fn mark(&self, _: &str, _: &SetKey) -> Result<Option<ipset_netlink::Mark>, ReadFailure> {
        Err(unread())
    }

    fn server(&self, _: &ipvs_netlink::ServiceKey) -> Result<Option<Server>, ReadFailure> {
        Err(unread())
    }

    fn is_bridge(&self, _: &Interface) -> Result<bool, ReadFailure> {
        Err(unread())
    }

    fn setting(&self, _: &str) -> Result<Option<String>, ReadFailure> {
        Err(unread())
    }
}

fn base(name: &str) -> Chain {
    Chain {
        name: name.into(),
        base: Some(BaseChain {
            kind: ChainKind::Filter,
            hook: Hook::Input,
            priority: 0,
            policy: Policy::Accept,
        }),
        comment: None,
    }
}

fn chain(name: &str) -> Chain {
    Chain {
        base: None,
        ..base(name)
    }
}

fn rule(expressions: Vec<Expression>) -> Rule {
    Rule {
        expressions,
        comment: None,
    }
}

fn packet() -> Packet {
    let address = |last| IpAddr::from([10, 96, 0, last]);
    Packet::new(6, address(1), address(7), 80)
}

fn walk(held: &mut InMemoryTables) -> Vec<Branch> {
    let nft = Nft::read(held, IpFamily::V4).unwrap();
    let mut branches = vec![Branch::new(packet())];
    for base in nft.base_chains(Hook::Input) {
        let walked = branches.into_iter();
        branches = walked
            .flat_map(|of| nft.walk(&base, of, &EmptyKernel))
            .collect();
    }
    branches
}

fn at(bytes: usize) -> Register {
    Register::at(bytes).unwrap()
}

fn lookup(set: &str, what: LookupFor) -> Expression {
    Expression::Lookup {
        key: Register::FIRST,
        set: SetRef::Named(set.into()),
        what,
    }
}

fn destination() -> [Expression; 3] {
    let load = |base, offset, len, to| Expression::Payload {
        base,
        offset,
        len,
        to,
    };
    [
        load(PayloadBase::Network, 16, 4, Register::FIRST),
        Expression::Meta {
            key: MetaKey::L4Proto,
            to: at(4),
        },
        load(PayloadBase::Transport, 2, 2, at(8)),
    ]
}

fn services(kind: SetKind) -> Set {
    Set::new(
        "services".into(),
        vec![
            DataType::Ipv4Addr,
            DataType::InetProto,
            DataType::InetService,
        ],
        kind,
    )
}

#[test]
fn a_service_is_found_among_many_by_lookup() {
    let mut held = InMemoryTables::default();
    held.add_table(Family::Ip, TABLE);
    let mut elements = Vec::new();
    for number in 0..50_000_u32 {
        let address = Ipv4Addr::from(0x0a60_0000 + number);
        let key = Concatenation::new().address(address.into());
        let to = format!("service-{number}");
        let drops = rule(vec![Expression::Verdict(Verdict::Drop)]);
        held.add_chain(Family::Ip, TABLE, &chain(&to), vec![drops]);
        let key = key.protocol(6).port(80).into_key();
        elements.push(Element::of_verdicts(key, Verdict::Goto(to.into())));
    }
    held.add_set(Family::Ip, TABLE, &services(SetKind::Verdicts), elements);
    let mut expressions = destination().to_vec();
    expressions.push(lookup("services", LookupFor::Verdict));
    held.add_chain(Family::Ip, TABLE, &base("input"), vec![rule(expressions)]);
    let branches = walk(&mut held);
    assert_eq!(branches[0].end, Some(End::Dropped));
    let steps = &branches[0].steps;
    assert_eq!(
        steps[0].entry,
        "ip daddr . meta l4proto . th dport vmap @services"
    );
    assert_eq!(
        steps[0].members,
        ["services 10.96.0.7 . tcp . 80 : goto service-7"]
    );
    assert_eq!(steps[1].place, "table ip t, chain service-7");
    // Of 50,000 Services, the walk needs four queries: the rules of two chains, one set, and one
    // element.
    assert_eq!(held.asked, 4);
}

/// Returns the test `meta skuid 5`, whose result is unknown, because the packet has no socket yet.
fn unknown() -> Vec<Expression> {
    vec![
        Expression::Meta {
            key: MetaKey::SkUid,
            to: Register::FIRST,
        },
        Expression::Compare {
            register: Register::FIRST,
            how: Comparison::Equal,
            with: Bytes::from_slice(&5_u32.to_ne_bytes()),
        },
    ]
}

fn held(rules: Vec<Rule>) -> InMemoryTables {
    let mut held = InMemoryTables::default();
    held.add_table(Family::Ip, TABLE);
    held.add_chain(Family::Ip, TABLE, &base("input"), rules);
    held
}

#[test]
fn both_outcomes_of_an_unknown_match_are_followed_only_if_they_differ() {
    let with = |then: Vec<Expression>| rule(unknown().into_iter().chain(then).collect());
    let counts = vec![Expression::Counter {
        bytes: 0,
        packets: 0,
    }];
    let branches = walk(&mut held(vec![with(counts)]));
    assert_eq!((branches.len(), branches[0].doubts.len()), (1, 0));
    assert!((branches[0].chance - 1.0).abs() < 1e-9);

    let drops = vec![Expression::Verdict(Verdict::Drop)];
    let branches = walk(&mut held(vec![with(drops)]));
    let sides: Vec<_> = branches
        .iter()
        .map(|of| (of.end.is_some(), of.doubts[0].matches, of.chance))
        .collect();
    assert!(sides.contains(&(true, true, 1.0)) && sides.contains(&(false, false, 1.0)));
    let [Doubt { what, .. }] = branches[0].doubts.as_slice() else {
        panic!("{branches:?}");
    };
    assert_eq!(
        &**what,
        "table ip t, chain input: `meta skuid 5 drop`: it asks something that is not known of this packet"
    );
}

#[test]
fn the_number_of_followed_paths_is_limited() {
    // Each of 40 rules may set the mark or not, which gives 2^40 paths.
    let mark = |bit: u32| {
        let mut expressions = unknown();
        expressions.push(Expression::Immediate {
            to: Register::FIRST,
            data: Bytes::from_slice(&bit.to_ne_bytes()),
        });
        expressions.push(Expression::SetMeta {
            key: MetaKey::Mark,
            from: Register::FIRST,
        });
        rule(expressions)
    };
    let branches = walk(&mut held((0..40).map(|number| mark(number + 1)).collect()));
    let is_unknown = |of: &Branch| matches!(of.end, Some(End::Unknown(_)));
    assert!(branches.iter().any(is_unknown));
    assert!(branches.len() < 2 * evaluate::BUDGET, "{}", branches.len());

    // Both rules jump back to their own chain. The kernel would refuse such a loop.
    let jump = || rule(vec![Expression::Verdict(Verdict::Jump("input".into()))]);
    let branches = walk(&mut held(vec![jump(), jump()]));
    assert!(branches.iter().all(is_unknown));
}

#[test]
fn each_of_many_endpoints_has_an_equal_share() {
    let elements = (0..2_000_u32).map(|number| {
        let value = Concatenation::new().address(Ipv4Addr::from(0x0af4_0000 + number).into());
        let key = Bytes::from_slice(&number.to_ne_bytes());
        Element::of_map(key, value.port(8080).into_key())
    });
    let map = nftables_netlink::AnonymousSet {
        key: vec![DataType::Integer],
        kind: SetKind::Map(vec![DataType::Ipv4Addr, DataType::InetService]),
        intervals: false,
        elements: elements.collect(),
    };
    let branches = walk(&mut held(vec![rule(vec![
        Expression::NumGen {
            how: NumGenKind::Random,
            modulus: 2_000,
            offset: 0,
            to: Register::FIRST,
        },
        Expression::Lookup {
            key: Register::FIRST,
            set: SetRef::Anonymous(map.into()),
            what: LookupFor::Value(Register::FIRST),
        },
        Expression::Nat {
            kind: NatKind::Destination,
            family: Family::Ip,
            address: Some(Register::FIRST),
            port: Some(at(4)),
            flags: 0,
        },
    ])]));
    assert_eq!(branches.len(), 2_000);
    let last = branches.last().unwrap();
    assert_eq!(last.packet.to().to_string(), "10.244.7.207:8080");
    assert!((last.chance - 1.0 / 2_000.0).abs() < 1e-9);
    let step = &last.steps[0];
    assert_eq!(
        step.entry,
        "dnat ip to numgen random mod 2000 map { 1999 : 10.244.7.207 . 8080, ... }"
    );
    assert_eq!(
        step.says,
        "its destination becomes 10.244.7.207:8080, one of 2000 by chance"
    );
}

#[test]
fn an_iptables_table_is_recognised_by_its_base_chains() {
    let mut held = InMemoryTables::default();
    held.add_table(Family::Ip, "nat");
    held.add_chain(Family::Ip, "nat", &base("PREROUTING"), Vec::new());
    held.add_table(Family::Ip, "filter");
    held.add_chain(Family::Ip, "filter", &base("INPUT"), Vec::new());
    held.add_chain(Family::Ip, "filter", &base("mine"), Vec::new());
    let nft = Nft::read(&mut held, IpFamily::V4).unwrap();
    assert_eq!(nft.left_to_iptables(), [(Family::Ip, "nat".into())]);
    assert_eq!(nft.base_chains(Hook::Input).len(), 2);
    assert_eq!(nft.base_chains(Hook::Output).len(), 0);
}

// ---- arbitrary rules ----

fn register() -> impl Strategy<Value = Register> {
    (0_usize..16).prop_map(|place| Register::at(place * 4).unwrap())
}

fn bytes(len: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), len).prop_map(Bytes::from_vec)
}

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![Just("input"), Just("other"), Just("services"), Just("none")].prop_map(Name::from)
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

fn load() -> impl Strategy<Value = Expression> {
    let base = prop_oneof![
        Just(PayloadBase::Link),
        Just(PayloadBase::Network),
        Just(PayloadBase::Transport)
    ];
    let small = prop_oneof![0_u32..80, any::<u32>()];
    let result = prop_oneof![
        Just(FibResult::Oif),
        Just(FibResult::OifName),
        Just(FibResult::AddressType)
    ];
    let ct = prop_oneof![Just(CtKey::State), Just(CtKey::Status), Just(CtKey::Mark)];
    prop_oneof![
        (base, small.clone(), small.clone(), register()).prop_map(|(base, offset, len, to)| {
            Expression::Payload {
                base,
                offset,
                len,
                to,
            }
        }),
        (prop::sample::select(MetaKey::ALL), register())
            .prop_map(|(key, to)| Expression::Meta { key, to }),
        (ct, register()).prop_map(|(key, to)| Expression::Ct { key, to }),
        (result, any::<u32>(), register()).prop_map(|(result, flags, to)| Expression::Fib {
            result,
            flags,
            to
        }),
        (register(), bytes(0..40)).prop_map(|(to, data)| Expression::Immediate { to, data }),
        (register(), register(), bytes(0..20), bytes(0..20)).prop_map(|(from, to, mask, xor)| {
            Expression::Bitwise {
                from,
                to,
                mask,
                xor,
            }
        }),
        (register(), register(), small.clone(), small).prop_map(|(from, to, len, size)| {
            Expression::ByteOrder {
                from,
                to,
                len,
                size,
            }
        }),
        (0_u32..5, any::<u32>(), register()).prop_map(|(modulus, offset, to)| {
            Expression::NumGen {
                how: NumGenKind::Random,
                modulus,
                offset,
                to,
            }
        }),
    ]
}

fn expression() -> impl Strategy<Value = Expression> {
    let how = prop_oneof![
        Just(Comparison::Equal),
        Just(Comparison::NotEqual),
        Just(Comparison::Less)
    ];
    let what = prop_oneof![
        Just(LookupFor::Membership(Membership::NotIn)),
        register().prop_map(LookupFor::Value),
        Just(LookupFor::Verdict),
    ];
    let kind = prop_oneof![Just(NatKind::Source), Just(NatKind::Destination)];
    let family = prop_oneof![Just(Family::Ip), Just(Family::Ip6), Just(Family::Arp)];
    let registers = (
        proptest::option::of(register()),
        proptest::option::of(register()),
    );
    prop_oneof![
        4 => load(),
        2 => (register(), how, bytes(0..40)).prop_map(|(register, how, with)| {
            Expression::Compare { register, how, with }
        }),
        1 => (register(), bytes(0..20), bytes(0..20)).prop_map(|(register, from, to)| {
            Expression::Range { register, how: Membership::In, from, to }
        }),
        2 => (register(), name(), what).prop_map(|(key, set, what)| Expression::Lookup {
            key,
            set: SetRef::Named(set),
            what,
        }),
        1 => verdict().prop_map(Expression::Verdict),
        1 => (kind, family, registers, any::<u32>()).prop_map(
            |(kind, family, (address, port), flags)| Expression::Nat {
                kind, family, address, port, flags,
            }
        ),
        1 => (register(), name()).prop_map(|(key, set)| Expression::Dynset {
            set: SetRef::Named(set),
            operation: DynsetOperation::Update,
            key,
            timeout: None,
        }),
        1 => any::<(u32, u8)>().prop_map(|(kind, code)| Expression::Reject { kind, code }),
        1 => register().prop_map(|from| Expression::SetMeta { key: MetaKey::Mark, from }),
        1 => prop_oneof![Just("match comment"), Just("target LOG"), Just("socket"), Just("last")]
            .prop_map(|name| Expression::Unknown(name.into())),
        1 => Just(Expression::NoTrack),
        1 => proptest::option::of(register())
            .prop_map(|port| Expression::Redirect { port, flags: 0 }),
    ]
}

proptest! {
    #[test]
    fn the_evaluation_of_arbitrary_rules_ends(
        rules in vec(vec(expression(), 0..7), 0..5),
        other in vec(vec(expression(), 0..7), 0..3),
        elements in vec((bytes(0..20), verdict()), 0..5),
    ) {
        let all = |rules: Vec<Vec<Expression>>| rules.into_iter().map(rule).collect();
        let mut held = held(all(rules));
        held.add_chain(Family::Ip, TABLE, &chain("other"), all(other));
        let elements = elements.into_iter();
        let elements = elements.map(|(key, to)| Element::of_verdicts(key, to)).collect();
        held.add_set(Family::Ip, TABLE, &services(SetKind::Verdicts), elements);
        let branches = walk(&mut held);
        prop_assert!(!branches.is_empty());
        // If no outcome is unknown, the probabilities of all paths add up to 1.
        if branches.iter().all(|of| of.doubts.is_empty()) {
            let chance: f64 = branches.iter().map(|of| of.chance).sum();
            prop_assert!((chance - 1.0).abs() < 1e-6, "{}", chance);
        }
    }
}
