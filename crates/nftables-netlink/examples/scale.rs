//! Measures the time to write, send and read tables with many virtual addresses. Needs root.
//! Creates and deletes a table in its network namespace, so run it with `unshare -n`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it measures")]

use std::sync::Arc;
use std::time::Instant;

use nftables_netlink::{
    AnonymousSet, BaseChain, Bytes, Chain, ChainKind, Change, Comparison, Concatenation, DataType,
    Element, Event, Expression, Family, Hook, LookupFor, MetaKey, Name, NatKind, Nftables,
    NumGenKind, PayloadBase, Policy, PreparedTransaction, Register, Rule, Set, SetKind, SetRef,
    Subscription, Table, Transaction, Verdict,
};

const ENDPOINTS: u32 = 2;

fn main() {
    let services: u32 = std::env::args()
        .nth(1)
        .map_or(10_000, |text| text.parse().unwrap());
    let mut nftables = Nftables::open().unwrap();
    let transaction = transaction(services);
    let changes = transaction.changes.len();

    // The first transactions add chains to which no rule leads. The last transaction adds the rules
    // that lead to these chains.
    for part in [100, 1000] {
        let begun = Instant::now();
        for transaction in parts(services, part) {
            nftables.commit(&transaction, None).unwrap();
        }
        println!(
            "in parts of {part} addresses: made in {:?}",
            begun.elapsed()
        );
        let transaction = Transaction {
            changes: vec![Change::DeleteTable],
            ..transaction.clone()
        };
        nftables.commit(&transaction, None).unwrap();
    }

    let begun = Instant::now();
    let mut prepared = PreparedTransaction::new(&transaction, None);
    let encoded = begun.elapsed();
    println!(
        "{services} virtual addresses x {ENDPOINTS} servers: {changes} changes, {} messages, {} bytes; written in {encoded:?}",
        prepared.messages(),
        prepared.byte_len(),
    );
    for listener in [
        "nobody listens",
        "heard",
        "left out",
        "left",
        "nobody listens",
    ] {
        let mut subscription =
            (listener != "nobody listens").then(|| Subscription::open(64 << 20).unwrap());
        match (listener, &mut subscription) {
            ("left out", Some(subscription)) => {
                subscription.leave_out(&[nftables.port().unwrap()]).unwrap();
            }
            ("left", Some(subscription)) => subscription.pause().unwrap(),
            _ => {}
        }
        let begun = Instant::now();
        nftables.commit_prepared(&mut prepared).unwrap();
        let made = begun.elapsed();
        let begun = Instant::now();
        let (mut datagrams, mut lost) = (0, false);
        while let Some(Ok(events)) = subscription.as_ref().map(Subscription::receive) {
            datagrams += 1;
            lost |= events.contains(&Event::Lost);
        }
        let read = begun.elapsed();
        println!(
            "{listener}: made in {made:?}; {datagrams} datagrams read in {read:?}, lost: {lost}"
        );
        drop(subscription);
        let transaction = Transaction {
            changes: vec![Change::DeleteTable],
            ..transaction.clone()
        };
        nftables.commit(&transaction, None).unwrap();
    }
    nftables.commit_prepared(&mut prepared).unwrap();

    let begun = Instant::now();
    let whole = nftables.read(Family::Ip, "scale").unwrap();
    println!("read in {:?}: {} rules", begun.elapsed(), whole.rules.len());
    for (what, read) in [
        (
            "chains",
            (|nftables| nftables.chains(Family::Ip, "scale").unwrap().len())
                as fn(&mut Nftables) -> usize,
        ),
        ("sets", |nftables| {
            nftables.sets(Family::Ip, "scale").unwrap().len()
        }),
        ("elements", |nftables| {
            nftables
                .elements(Family::Ip, "scale", "service-ips")
                .unwrap()
                .len()
        }),
        ("rules of a chain", |nftables| {
            nftables
                .rules_of_chain(Family::Ip, "scale", "service-7")
                .unwrap()
                .len()
        }),
        ("rules", |nftables| {
            nftables.rules(Family::Ip, "scale").unwrap().len()
        }),
    ] {
        let begun = Instant::now();
        let count = read(&mut nftables);
        println!("  {what}: {:?}: {count}", begun.elapsed());
    }

    let one = Transaction {
        changes: vec![
            Change::FlushChain("service-7".into()),
            Change::AddRule("service-7".into(), rule(7, 3)),
        ],
        ..transaction.clone()
    };
    let begun = Instant::now();
    nftables.commit(&one, None).unwrap();
    println!("one rule replaced in {:?}", begun.elapsed());
    let begun = Instant::now();
    nftables
        .commit(
            &Transaction {
                changes: vec![Change::DeleteTable],
                ..transaction
            },
            None,
        )
        .unwrap();
    println!("deleted in {:?}", begun.elapsed());
}

fn address(of: u32) -> std::net::IpAddr {
    std::net::Ipv4Addr::from(0x0a60_0000 + of).into()
}

fn rule(service: u32, endpoints: u32) -> Rule {
    let map = AnonymousSet {
        key: vec![DataType::Integer],
        kind: SetKind::Map(vec![DataType::Ipv4Addr, DataType::InetService]),
        intervals: false,
        elements: (0..endpoints)
            .map(|number| {
                Element::of_map(
                    Bytes::from_slice(&number.to_ne_bytes()),
                    Concatenation::new()
                        .address(address(0x10_0000 + service * 8 + number))
                        .port(8080)
                        .into_key(),
                )
            })
            .collect(),
    };
    Rule {
        expressions: vec![
            Expression::Meta {
                key: MetaKey::L4Proto,
                to: Register::FIRST,
            },
            Expression::Compare {
                register: Register::FIRST,
                how: Comparison::Equal,
                with: Bytes::from_slice(&[6]),
            },
            Expression::NumGen {
                how: NumGenKind::Random,
                modulus: endpoints,
                offset: 0,
                to: Register::FIRST,
            },
            Expression::Lookup {
                key: Register::FIRST,
                set: SetRef::Anonymous(Arc::new(map)),
                what: LookupFor::Value(Register::FIRST),
            },
            Expression::Nat {
                kind: NatKind::Destination,
                family: Family::Ip,
                address: Some(Register::FIRST),
                port: Register::at(4),
                flags: 0,
            },
        ],
        comment: None,
    }
}

/// Splits the table into several transactions. Only the last transaction adds the rules that lead
/// packets to the chains.
fn parts(services: u32, part: usize) -> Vec<Transaction> {
    let whole = transaction(services);
    let in_parts = |change: &Change| match change {
        Change::AddChain(chain) => chain.base.is_none(),
        Change::AddRule(chain, _) => chain.starts_with("service-"),
        _ => false,
    };
    let (first, rest): (Vec<_>, Vec<_>) = whole.changes.iter().cloned().partition(in_parts);
    let (chains, rules) = first.split_at(first.len() / 2);
    let table: Vec<_> = rest.iter().take(1).cloned().collect();
    let mut parts = vec![table];
    for (chains, rules) in chains.chunks(part).zip(rules.chunks(part)) {
        parts.push([chains, rules].concat());
    }
    parts.push(rest);
    let with = |changes| Transaction {
        changes,
        ..whole.clone()
    };
    parts.into_iter().map(with).collect()
}

fn transaction(services: u32) -> Transaction {
    let chain = |service: u32| -> Name { format!("service-{service}").into() };
    let plain = |name: Name, base| {
        Change::AddChain(Chain {
            name,
            base,
            comment: None,
        })
    };
    let mut changes = vec![
        Change::AddTable(Table::new(Family::Ip, "scale".into())),
        plain(
            "nat-prerouting".into(),
            Some(BaseChain {
                kind: ChainKind::Nat,
                hook: Hook::Prerouting,
                priority: -100,
                policy: Policy::Accept,
            }),
        ),
    ];
    changes.extend((0..services).map(|service| plain(chain(service), None)));
    changes.push(Change::AddSet(Set::new(
        "service-ips".into(),
        vec![
            DataType::Ipv4Addr,
            DataType::InetProto,
            DataType::InetService,
        ],
        SetKind::Verdicts,
    )));
    let elements = (0..services).map(|service| {
        let key = Concatenation::new()
            .address(address(service))
            .protocol(6)
            .port(80);
        Element::of_verdicts(key.into_key(), Verdict::Goto(chain(service)))
    });
    changes.push(Change::AddElements(
        "service-ips".into(),
        elements.collect(),
    ));
    changes.extend(
        (0..services).map(|service| Change::AddRule(chain(service), rule(service, ENDPOINTS))),
    );
    changes.push(Change::AddRule(
        "nat-prerouting".into(),
        Rule {
            expressions: vec![
                Expression::Payload {
                    base: PayloadBase::Network,
                    offset: 16,
                    len: 4,
                    to: Register::FIRST,
                },
                Expression::Meta {
                    key: MetaKey::L4Proto,
                    to: Register::at(4).unwrap(),
                },
                Expression::Payload {
                    base: PayloadBase::Transport,
                    offset: 2,
                    len: 2,
                    to: Register::at(8).unwrap(),
                },
                Expression::Lookup {
                    key: Register::FIRST,
                    set: SetRef::Named("service-ips".into()),
                    what: LookupFor::Verdict,
                },
            ],
            comment: None,
        },
    ));
    Transaction {
        family: Family::Ip,
        table: "scale".into(),
        changes,
    }
}
