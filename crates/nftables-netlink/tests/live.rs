//! Tests on the running kernel. Each test has its own network namespace. Needs root.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod common;

use std::io::ErrorKind;
use std::sync::Arc;

use common::{in_namespace, making, nft};
use nftables_netlink::{
    Activity, AnonymousSet, Bytes, Chain, Change, CommitError, Comparison, Concatenation, DataType,
    Element, Event, Expression, Family, Feature, LookupFor, MetaKey, Name, NatKind, Nftables,
    NumGenKind, OwnSockets, PreparedTransaction, Register, Rule, Set, SetKind, SetRef,
    Subscription, Table, Transaction, Verdict,
};

fn name(text: &str) -> Name {
    text.into()
}

fn at(bytes: usize) -> Register {
    Register::at(bytes).unwrap()
}

fn endpoints(count: u16) -> Arc<AnonymousSet> {
    Arc::new(AnonymousSet {
        key: vec![DataType::Integer],
        kind: SetKind::Map(vec![DataType::Ipv4Addr, DataType::InetService]),
        intervals: false,
        elements: (0..count)
            .map(|number| {
                Element::of_map(
                    Bytes::from_slice(&u32::from(number).to_ne_bytes()),
                    Concatenation::new()
                        .address(std::net::Ipv4Addr::from(0x0a00_0000 + u32::from(number)).into())
                        .port(80)
                        .into_key(),
                )
            })
            .collect(),
    })
}

fn service() -> Vec<Change> {
    vec![
        Change::AddTable(Table {
            comment: Some("of a test".into()),
            ..Table::new(Family::Ip, name("t"))
        }),
        Change::AddChain(Chain {
            name: name("svc"),
            base: None,
            comment: None,
        }),
        Change::AddSet(Set {
            comment: Some("services".into()),
            ..Set::new(
                name("ips"),
                vec![
                    DataType::Ipv4Addr,
                    DataType::InetProto,
                    DataType::InetService,
                ],
                SetKind::Verdicts,
            )
        }),
        Change::AddElements(
            name("ips"),
            vec![
                Element::of_verdicts(
                    Concatenation::new()
                        .address([10, 96, 0, 1].into())
                        .protocol(6)
                        .port(443)
                        .into_key(),
                    Verdict::Goto(name("svc")),
                )
                .with_comment("a/b"),
            ],
        ),
        Change::AddRule(
            name("svc"),
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
                        modulus: 3,
                        offset: 0,
                        to: Register::FIRST,
                    },
                    Expression::Lookup {
                        key: Register::FIRST,
                        set: SetRef::Anonymous(endpoints(3)),
                        what: LookupFor::Value(Register::FIRST),
                    },
                    Expression::Nat {
                        kind: NatKind::Destination,
                        family: Family::Ip,
                        address: Some(Register::FIRST),
                        port: Some(at(4)),
                        flags: 0,
                    },
                ],
                comment: Some("a rule".into()),
            },
        ),
    ]
}

fn transaction(changes: Vec<Change>) -> Transaction {
    Transaction {
        family: Family::Ip,
        table: name("t"),
        changes,
    }
}

#[test]
fn objects_written_to_the_kernel_are_read_back_unchanged() {
    in_namespace(|mut nftables| {
        let before = nftables.generation().unwrap();
        let after = nftables
            .commit(&transaction(service()), Some(before))
            .unwrap();
        assert_eq!(after, before.next());
        assert_eq!(nftables.generation().unwrap(), after);
        assert!(nft(&["list", "ruleset"]).contains(
            "numgen random mod 3 map { 0 : 10.0.0.0 . 80, 1 : 10.0.0.1 . 80, 2 : 10.0.0.2 . 80 }"
        ));
        let whole = nftables.read(Family::Ip, "t").unwrap();
        assert_eq!(whole.generation, after);
        assert_eq!(making(whole), transaction(service()));
        let of_chain = nftables.rules_of_chain(Family::Ip, "t", "svc").unwrap();
        assert_eq!(of_chain, nftables.rules(Family::Ip, "t").unwrap());
    });
}

#[test]
fn the_nft_list_example_prints_the_same_lines_as_nft() {
    in_namespace(|_| {
        common::load(
            "table ip web {
                set closed { type ipv4_addr . inet_service; elements = { 192.0.2.1 . 80 }; }
                map services { type ipv4_addr : verdict; elements = { 192.0.2.2 : goto service }; }
                chain service { counter drop; }
                chain input {
                    type filter hook input priority 10; policy accept;
                    ip daddr . tcp dport @closed reject
                    ip daddr vmap @services
                    meta mark set 0x00000001 comment \"marked\"
                }
            }",
        );
        let listing = nft(&["-y", "list", "ruleset"]);
        // `nft` prints empty lines between the objects of a table.
        let listing = listing.lines().filter(|line| !line.is_empty());
        assert_eq!(
            namespace::example("nft_list", &[]),
            listing.map(str::trim_end).collect::<Vec<_>>()
        );
    });
}

#[test]
fn a_refused_change_is_reported_and_the_transaction_has_no_effect() {
    in_namespace(|mut nftables| {
        let mut changes = service();
        changes.insert(2, Change::DeleteChain(name("none")));
        changes.push(Change::DeleteSet(name("nothing")));
        let generation = nftables.generation().unwrap();
        match nftables.commit(&transaction(changes), None) {
            Err(CommitError::Refused { refused, more }) => {
                assert!(!more);
                let changes: Vec<_> = refused
                    .iter()
                    .map(|refused| (refused.change, refused.refusal.errno))
                    .collect();
                assert_eq!(changes, [(2, libc::ENOENT), (6, libc::ENOENT)]);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(nftables.generation().unwrap(), generation);
        assert_eq!(nftables.tables(None).unwrap(), []);
    });
}

#[test]
fn a_transaction_that_cannot_be_sent_changes_nothing() {
    const IS_INSIDE: &str = "IN_A_USER_NAMESPACE";
    if std::env::var_os(IS_INSIDE).is_none() {
        // The test runs in a user namespace, as in a rootless container, so a buffer cannot exceed
        // net.core.wmem_max. The test starts another process, because only a process with a single
        // thread can enter a user namespace.
        let inside = |program: &std::path::Path, arguments: &[&str]| {
            let mut command = std::process::Command::new("unshare");
            command.args(["--user", "--map-root-user", "--net"]);
            command.arg(program).args(arguments).env(IS_INSIDE, "1");
            command.status().is_ok_and(|status| status.success())
        };
        if !inside("true".as_ref(), &[]) {
            eprintln!("there are no user namespaces here");
            return;
        }
        let own = std::env::current_exe().unwrap();
        let this = "a_transaction_that_cannot_be_sent_changes_nothing";
        assert!(inside(&own, &["--exact", this, "--nocapture"]));
        return;
    }
    let mut nftables = Nftables::open().unwrap();
    let before = nftables.generation().unwrap();
    // A comment of 128 bytes is the longest that `nft` can read back.
    let comment = Some("x".repeat(128).into());
    let rule = Rule {
        expressions: Vec::new(),
        comment,
    };
    // The kernel doubles a requested buffer size. A rule takes more bytes than its 128-byte
    // comment, so these rules exceed the buffer.
    let most = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap_or_default();
    let most: usize = most.trim().parse().unwrap_or(4 << 20);
    let room_of_rules = 2 * most / 128 + 1_000;
    let mut changes = service();
    changes.resize(room_of_rules, Change::AddRule(name("svc"), rule));
    match nftables.commit(&transaction(changes.clone()), None) {
        Err(CommitError::TooLarge(_)) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(nftables.generation().unwrap(), before);
    changes.truncate(100);
    nftables.commit(&transaction(changes), None).unwrap();
}

#[test]
fn a_commit_activates_a_dormant_table() {
    in_namespace(|mut nftables| {
        nftables.commit(&transaction(service()), None).unwrap();
        nft(&["add table ip t { flags dormant; }"]);
        let is = |nftables: &mut Nftables| {
            let whole = nftables.read(Family::Ip, "t").unwrap();
            whole.table.unwrap().activity
        };
        assert_eq!(is(&mut nftables), Activity::Dormant);
        let on = transaction(service()[..1].to_vec());
        nftables.commit(&on, None).unwrap();
        assert_eq!(is(&mut nftables), Activity::Active);
    });
}

#[test]
fn a_commit_fails_if_the_generation_has_changed() {
    in_namespace(|mut nftables| {
        let generation = nftables.generation().unwrap();
        let found = nftables.commit(&transaction(service()), None).unwrap();
        match nftables.commit(&transaction(vec![Change::DeleteTable]), Some(generation)) {
            Err(CommitError::WrongGeneration {
                expected,
                found: there,
            }) => assert_eq!((expected, there), (generation, found)),
            other => panic!("{other:?}"),
        }
        nftables
            .commit(&transaction(vec![Change::DeleteTable]), Some(found))
            .unwrap();
        assert_eq!(nftables.read(Family::Ip, "t").unwrap().table, None);
    });
}

/// Returns all events that the subscription has received so far.
fn told(subscription: &Subscription) -> Vec<Event> {
    let mut told = Vec::new();
    loop {
        match subscription.receive() {
            Ok(events) => told.extend(events),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // Removes repeated events, because the kernel may report one transaction in several
                // datagrams.
                told.dedup();
                return told;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_notification_names_the_table_and_the_process() {
    in_namespace(|mut nftables| {
        let mut subscription = Subscription::open(1 << 20).unwrap();
        let touched = |table: &str| Event::Touched {
            family: Family::Ip,
            table: table.into(),
        };
        let generation = nftables.commit(&transaction(service()), None).unwrap();
        let events = told(&subscription);
        assert_eq!(events[0], touched("t"));
        match &events[1..] {
            [
                Event::Committed {
                    generation: of,
                    process: Some(_),
                    process_name: Some(name),
                },
            ] => {
                assert_eq!(*of, generation);
                // The kernel reports the process number in the initial PID namespace, and this
                // process may be in another PID namespace. So the test compares names.
                let own = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
                assert_eq!(**name, *own.trim_end());
            }
            other => panic!("{other:?}"),
        }

        // The subscription ignores changes by the program itself, but reports those by other
        // programs.
        let port = nftables.port().unwrap();
        subscription.leave_out(&[port]).unwrap();
        let flush = transaction(vec![Change::FlushChain(name("svc"))]);
        nftables.commit(&flush, None).unwrap();
        assert_eq!(told(&subscription), []);
        nft(&["add", "table", "ip", "other"]);
        let events = told(&subscription);
        assert_eq!(events[0], touched("other"));
        assert!(
            matches!(&events[1], Event::Committed { process_name: Some(name), .. } if **name == *"nft"),
            "{events:?}"
        );

        // While the subscription is paused, it reports no event. But a change by another program
        // still raises the generation.
        let before = nftables.generation().unwrap();
        subscription.pause().unwrap();
        nft(&["delete", "table", "ip", "other"]);
        subscription.resume().unwrap();
        assert_eq!(told(&subscription), []);
        assert_eq!(nftables.generation().unwrap(), before.next());
        nft(&["add", "table", "ip", "third"]);
        assert_eq!(told(&subscription)[0], touched("third"));
    });
}

#[test]
fn subscriptions_ignore_changes_by_own_sockets() {
    in_namespace(|mut other| {
        let own = Arc::new(OwnSockets::default());
        let mut first = own.open().unwrap();
        let subscriptions = [(); 2].map(|()| Arc::new(Subscription::open(1 << 20).unwrap()));
        for subscription in &subscriptions {
            own.leave_out_of(Arc::clone(subscription)).unwrap();
        }
        let mut second = own.open().unwrap();
        let added = &transaction(service()[4..].to_vec());
        first.commit(&transaction(service()), None).unwrap();
        second.commit(added, None).unwrap();
        for subscription in &subscriptions {
            assert_eq!(told(subscription), []);
        }
        other.commit(added, None).unwrap();
        for subscription in &subscriptions {
            assert_ne!(told(subscription), []);
        }
        // Checks that the closed socket has left the list. The kernel may assign its port number to
        // another program, which `stranger` represents.
        drop(second);
        let mut stranger = Nftables::open().unwrap();
        let mut third = own.open().unwrap();
        for own in [&mut first, &mut third] {
            own.commit(added, None).unwrap();
        }
        assert_eq!(told(&subscriptions[1]), []);
        stranger.commit(added, None).unwrap();
        assert_ne!(told(&subscriptions[1]), []);
    });
}

#[test]
fn a_subscription_reports_that_it_lost_notifications() {
    in_namespace(|mut nftables| {
        let subscription = Subscription::open(4096).unwrap();
        for number in 0..200 {
            let chain = Chain {
                name: format!("c{number}").into(),
                base: None,
                comment: None,
            };
            let mut changes = service();
            changes.truncate(1);
            changes.push(Change::AddChain(chain));
            nftables.commit(&transaction(changes), None).unwrap();
        }
        assert!(told(&subscription).contains(&Event::Lost));
    });
}

#[test]
fn this_kernel_has_all_probed_nftables_features() {
    in_namespace(|mut nftables| {
        let generation = nftables.generation().unwrap();
        for family in [Family::Ip, Family::Ip6] {
            assert_eq!(nftables.probe(family).unwrap(), []);
        }
        // The family netdev has no NAT.
        let missing = nftables.probe(Family::Netdev).unwrap();
        let missing: Vec<_> = missing.into_iter().map(|missing| missing.feature).collect();
        assert!(missing.contains(&Feature::NatChains), "{missing:?}");
        assert!(!missing.contains(&Feature::Masquerade), "{missing:?}");
        assert_eq!(nftables.generation().unwrap(), generation);
        assert_eq!(nftables.tables(None).unwrap(), []);
    });
}

#[test]
fn concurrent_writers_detect_each_others_commits() {
    const WRITERS: u32 = 4;
    const EACH: u32 = 25;
    in_namespace(|mut nftables| {
        let begin = nftables.generation().unwrap();
        let write = |mut nftables: Nftables| {
            let mut wrong = 0_u32;
            let mut done = 0;
            while done < EACH {
                let expected = nftables.generation().unwrap();
                match nftables.commit(&transaction(service()), Some(expected)) {
                    Ok(generation) => {
                        assert_eq!(generation, expected.next());
                        done += 1;
                    }
                    Err(CommitError::WrongGeneration { .. }) => wrong += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            wrong
        };
        // Starts writers on new threads. These threads are in the same network namespace as this
        // thread.
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| std::thread::spawn(move || write(Nftables::open().unwrap())))
            .collect();
        // Each read during these writes returns a consistent table.
        for _ in 0..20 {
            if let Ok(whole) = nftables.read(Family::Ip, "t") {
                let commits = whole.generation.0 - begin.0;
                assert_eq!(whole.rules.len(), commits as usize);
            }
        }
        for writer in writers {
            writer.join().unwrap();
        }
        let end = nftables.generation().unwrap();
        assert_eq!(end.0, begin.0 + WRITERS * EACH);
    });
}

#[test]
fn a_change_to_an_unread_table_does_not_restart_a_read() {
    in_namespace(|mut nftables| {
        let chain = |number: u16| Chain {
            name: name(&format!("c{number}")),
            base: None,
            comment: None,
        };
        let mut changes = service();
        let rule = changes.pop().unwrap();
        let Change::AddRule(_, rule) = rule else {
            panic!("the rule is the last");
        };
        for number in 0..1_000 {
            changes.push(Change::AddChain(chain(number)));
            let to = name(&format!("c{number}"));
            changes.push(Change::AddRule(to, rule.clone()));
        }
        nftables.commit(&transaction(changes), None).unwrap();
        let quiet = nftables.read(Family::Ip, "t").unwrap();

        // Another program in the same namespace writes almost continuously.
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let other = std::thread::spawn(move || {
            let mut nftables = Nftables::open().unwrap();
            let mut commits = 0_u32;
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                let change = Transaction {
                    table: name("other"),
                    ..transaction(service()[..4].to_vec())
                };
                nftables.commit(&change, None).unwrap();
                commits += 1;
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            commits
        });
        for _ in 0..5 {
            let whole = nftables.read(Family::Ip, "t").unwrap();
            assert!(whole.chains == quiet.chains && whole.rules == quiet.rules);
            assert!(whole.sets == quiet.sets);
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(other.join().unwrap() > 5);
    });
}

#[test]
fn a_table_dump_omits_the_elements_of_dynamic_sets() {
    in_namespace(|mut nftables| {
        nft(&["add", "table", "ip", "t"]);
        let set = "add set ip t clients { type ipv4_addr; flags dynamic,timeout; timeout 1h; }";
        nft(&[set]);
        nft(&["add", "element", "ip", "t", "clients", "{ 10.0.0.1 }"]);
        let whole = nftables.read(Family::Ip, "t").unwrap();
        let [(set, elements)] = &whole.sets[..] else {
            panic!("{whole:?}");
        };
        assert!(set.set.dynamic);
        assert_eq!(*elements, []);
        let asked = nftables.elements(Family::Ip, "t", "clients").unwrap();
        assert_eq!(asked.len(), 1, "who asks for them gets them");
    });
}

#[test]
fn an_unprivileged_nftables_open_names_the_missing_capability() {
    in_namespace(|_| {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective
            .remove(rustix::thread::CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let error = Nftables::open().unwrap_err();
        assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    });
}

#[test]
fn a_dry_run_of_a_transaction_has_no_effect() {
    in_namespace(|mut nftables| {
        let generation = nftables.generation().unwrap();
        let subscription = Subscription::open(1 << 20).unwrap();
        nftables.check(&transaction(Vec::new())).unwrap();
        for _ in 0..2 {
            nftables.check(&transaction(service())).unwrap();
        }
        // As in a real transaction, the kernel checks each change after it has applied the earlier
        // changes.
        let mut changes = service();
        let refused = changes.len();
        changes.push(Change::DeleteSet(name("nobody's")));
        let Err(CommitError::Refused { refused: told, .. }) = nftables.check(&transaction(changes))
        else {
            panic!("a set that is not there was deleted");
        };
        assert_eq!(told.len(), 1);
        assert_eq!(
            (told[0].change, told[0].refusal.errno),
            (refused, libc::ENOENT)
        );
        assert_eq!(nftables.generation().unwrap(), generation);
        assert_eq!(nftables.tables(None).unwrap(), []);
        let told = subscription.receive().map_err(|error| error.kind());
        assert_eq!(told, Err(ErrorKind::WouldBlock));
    });
}

#[test]
fn a_transaction_without_changes_is_not_sent() {
    in_namespace(|mut nftables| {
        let generation = nftables.generation().unwrap();
        for changes in [
            Vec::new(),
            vec![Change::AddElements(name("any"), Vec::new())],
        ] {
            let made = nftables.commit(&transaction(changes), Some(generation));
            assert_eq!(made.unwrap(), generation);
        }
        let wrong = nftables.commit(&transaction(Vec::new()), Some(generation.next()));
        assert!(matches!(wrong, Err(CommitError::WrongGeneration { .. })));
    });
}

#[test]
fn a_prepared_transaction_can_be_committed_repeatedly() {
    in_namespace(|mut nftables| {
        let mut changes = service();
        // Deletes the table and creates it again in one transaction, which the kernel allows.
        changes.insert(1, Change::DeleteTable);
        changes.insert(2, changes[0].clone());
        let mut prepared = PreparedTransaction::new(&transaction(changes), None);
        for _ in 0..5 {
            nftables.commit_prepared(&mut prepared).unwrap();
        }
        assert_eq!(nftables.rules(Family::Ip, "t").unwrap().len(), 1);
    });
}

#[test]
fn elements_of_an_anonymous_map_are_read_in_key_order() {
    // One send requests at most 1,024 elements by key. So the case with 2,000 elements needs a
    // dump.
    for count in [1, 300, 2_000] {
        in_namespace(move |mut nftables| {
            let mut changes = service();
            let Some(Change::AddRule(_, rule)) = changes.last_mut() else {
                panic!("the rule is the last");
            };
            for expression in &mut rule.expressions {
                match expression {
                    Expression::NumGen { modulus, .. } => *modulus = u32::from(count),
                    Expression::Lookup { set, .. } => {
                        *set = SetRef::Anonymous(endpoints(count));
                    }
                    _ => {}
                }
            }
            nftables
                .commit(&transaction(changes.clone()), None)
                .unwrap();
            let whole = nftables.read(Family::Ip, "t").unwrap();
            assert_eq!(making(whole), transaction(changes));
        });
    }
}
