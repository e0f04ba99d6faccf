//! Compares the strict fake kernel with the real kernel: the same transactions must fail with the
//! same errors on both, and leave the same table.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;

use chance::Chance;
use namespace::in_namespace;
use nftables_netlink::{
    Bytes, Chain, Change, DataType, Element, ElementData, Expression, Name, Rule, Set, SetKind,
    Table, Transaction, Verdict,
};
use proxy::IpFamily;
use proxy_nftables::fake::FakeKernel;
use proxy_nftables::{Kernel, NetlinkKernel, Object, Refusal, TABLE};

/// Number of random transactions on each table, one after another.
const TRANSACTIONS: usize = 60;
const TABLES: u64 = 12;

fn name(kind: &str, number: usize) -> Name {
    format!("{kind}{number}").into()
}

fn table(family: IpFamily) -> Change {
    Change::AddTable(Table::new(family.into(), TABLE.into()))
}

fn set(number: usize) -> Set {
    Set::new(
        name("set", number),
        vec![DataType::InetService],
        if number == 0 {
            SetKind::Set
        } else {
            SetKind::Verdicts
        },
    )
}

fn element(set: usize, chance: &mut Chance, is_added: bool) -> Element {
    let port = u16::try_from(chance.index(4)).unwrap();
    let leads = set > 0 && is_added;
    let to = name("chain", chance.index(4));
    Element {
        key: port.to_be_bytes().iter().copied().collect::<Bytes>(),
        key_end: None,
        ends_interval: false,
        data: leads.then_some(ElementData::Verdict(Verdict::Goto(to))),
        comment: None,
        timeout: None,
    }
}

fn change(family: IpFamily, chance: &mut Chance) -> Change {
    let (chain, of) = (chance.index(4), chance.index(3));
    match chance.index(20) {
        0..4 => Change::AddChain(Chain {
            name: name("chain", chain),
            base: None,
            comment: None,
        }),
        4 => Change::FlushChain(name("chain", chain)),
        5..7 => Change::DeleteChain(name("chain", chain)),
        7..10 => Change::AddSet(set(of)),
        10 => Change::DeleteSet(name("set", of)),
        11 => Change::FlushSet(name("set", of)),
        12..15 => {
            let elements = vec![element(of, chance, true)];
            Change::AddElements(name("set", of), elements)
        }
        15..17 => {
            let elements = vec![element(of, chance, false)];
            Change::DeleteElements(name("set", of), elements)
        }
        17 => table(family),
        // Jumps only to chains with higher numbers, so that no loop exists.
        _ => {
            let to = chain + 1 + chance.index(3);
            let jump = Expression::Verdict(Verdict::Jump(name("chain", to)));
            let rule = Rule {
                expressions: vec![jump],
                comment: None,
            };
            Change::AddRule(name("chain", chain), rule)
        }
    }
}

/// Returns the index and error number of the first refused change as the error.
fn verdict(done: Result<(), Refusal>) -> Result<(), (usize, i32)> {
    done.map_err(|refusal| match refusal {
        Refusal::Refused { changes, .. } => {
            let first = changes.iter().min_by_key(|blame| blame.change);
            first.map_or((usize::MAX, 0), |blame| (blame.change, blame.errno))
        }
        other => panic!("{other:?}"),
    })
}

type KernelContent = (BTreeMap<Name, Vec<Rule>>, BTreeMap<Name, Vec<Element>>);

fn held(kernel: &mut impl Kernel) -> KernelContent {
    let mut held = KernelContent::default();
    let mut tell = |object| match object {
        Object::Begin => held = KernelContent::default(),
        Object::Table(_) | Object::Counter(_) => {}
        Object::Set(set, _) => {
            held.1.entry(set.name).or_default();
        }
        Object::Chain(chain, _) => {
            held.0.entry(chain.name).or_default();
        }
        Object::Elements(set, elements) => held.1.entry(set).or_default().extend(elements),
        Object::Rule(chain, rule) => held.0.entry(chain).or_default().push(rule),
    };
    kernel.table(&mut tell).unwrap();
    for elements in held.1.values_mut() {
        elements.sort_by(|one, other| one.key.cmp(&other.key));
    }
    held
}

fn transaction(family: IpFamily, changes: Vec<Change>) -> Transaction {
    Transaction {
        family: family.into(),
        table: TABLE.into(),
        changes,
    }
}

/// Returns true for a kernel before Linux 6.2. If a transaction deletes the last element that leads
/// to a chain, such a kernel keeps the chain in use until the transaction ends.
fn is_old(family: IpFamily, kernel: &mut NetlinkKernel) -> bool {
    let mut only = Element {
        data: Some(ElementData::Verdict(Verdict::Goto(name("chain", 0)))),
        ..element(0, &mut Chance::new(0), false)
    };
    let chain = Chain {
        name: name("chain", 0),
        base: None,
        comment: None,
    };
    let changes = vec![
        table(family),
        Change::AddChain(chain),
        Change::AddSet(set(1)),
        Change::AddElements(name("set", 1), vec![only.clone()]),
    ];
    kernel.commit(&transaction(family, changes)).unwrap();
    only.data = None;
    let changes = vec![
        Change::DeleteElements(name("set", 1), vec![only]),
        Change::DeleteChain(name("chain", 0)),
    ];
    let is_old = kernel.commit(&transaction(family, changes)).is_err();
    kernel
        .commit(&transaction(family, vec![Change::DeleteTable]))
        .unwrap();
    is_old
}

#[test]
#[ignore = "needs nf_tables, and the right to make network namespaces"]
fn the_fake_and_the_kernel_have_the_same_final_state_and_refusals() {
    for family in [IpFamily::V4, IpFamily::V6] {
        in_namespace(|| compare(family));
    }
}

fn compare(family: IpFamily) {
    let mut kernel = NetlinkKernel::new(family);
    let is_old = is_old(family, &mut kernel);
    let mut refused = 0;
    for seed in 0..TABLES {
        let mut chance = Chance::new(seed);
        let mut fake = FakeKernel::new(family, &[]);
        fake.state().is_old = is_old;
        for at in 0..TRANSACTIONS {
            let mut changes = vec![table(family)];
            changes.extend((0..=chance.index(5)).map(|_| change(family, &mut chance)));
            let planned = transaction(family, changes);
            let (told, real) = (fake.commit(&planned), kernel.commit(&planned));
            let context = || format!("seed {seed}, {at}: {:#?}", planned.changes);
            let (told, mut real) = (verdict(told), verdict(real));
            // Linux 5.4 refuses an element with EBUSY if the map has another value for its key.
            if let Err((at, errno @ libc::EBUSY)) = &mut real
                && let Some(Change::AddElements(..)) = planned.changes.get(*at)
            {
                *errno = libc::EEXIST;
            }
            refused += usize::from(real.is_err());
            assert_eq!(told, real, "the fake, the kernel: {}", context());
            assert_eq!(held(&mut fake), held(&mut kernel), "{}", context());
        }
        kernel
            .commit(&transaction(family, vec![Change::DeleteTable]))
            .unwrap();
    }
    // The test proves little unless some transactions succeed and some fail.
    assert!((40..680).contains(&refused), "{refused}");
}
