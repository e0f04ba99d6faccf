//! Tests with the running kernel, each in a separate network namespace. The tests compare the
//! results with `ipset save`.
//!
//! Needs root and `ipset`.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::process::Command;

use ipset_netlink::{
    Action, Change, Definition, Entry, Error, Family, Ipset, Outcome, Reason, SetType,
};

/// Opens a connection in a new network namespace. The calling thread stays in the namespace.
fn new_namespace() -> Ipset {
    namespace::enter().unwrap();
    Ipset::open().unwrap()
}

/// Runs `ipset` in the calling thread's namespace, and returns its output.
fn ipset_tool(arguments: &str) -> String {
    let output = Command::new("ipset")
        .args(arguments.split(' '))
        .output()
        .expect("install ipset to run this test");
    assert!(
        output.status.success(),
        "ipset {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the output of `ipset save` for a set: the options of its `create` command, and its
/// entries. Omits options that are random or that the test does not choose.
fn saved(set: &str) -> (String, BTreeSet<String>) {
    let text = ipset_tool(&format!("save {set}"));
    let (create, entries) = text.split_once('\n').unwrap();
    let create = create.strip_prefix(&format!("create {set} ")).unwrap();
    let create = create.split(" bucketsize").next().unwrap().to_owned();
    let entry = |line: &str| {
        line.strip_prefix(&format!("add {set} "))
            .unwrap()
            .to_owned()
    };
    (create, entries.lines().map(entry).collect())
}

fn texts(entries: &[Entry]) -> BTreeSet<String> {
    entries.iter().map(Entry::to_string).collect()
}

fn parse(set_type: SetType, texts: &[&str]) -> Vec<Entry> {
    texts
        .iter()
        .map(|text| Entry::parse(text, set_type).unwrap())
        .collect()
}

/// Returns the entry `10.a.b.c,tcp:80`, different for each number.
fn numbered(number: u32) -> Entry {
    let [_, a, b, c] = number.to_be_bytes();
    Entry::IpPort {
        ip: [10, a, b, c].into(),
        protocol: ipset_netlink::IpProtocol::TCP,
        port: 80,
    }
}

fn sorted(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.sort_unstable();
    entries
}

const FOUR: Family = Family::Inet;
const SIX: Family = Family::Inet6;

#[test]
fn the_ipset_list_example_prints_the_same_lines_as_ipset_save() {
    let mut ipset = new_namespace();
    for (name, set_type, entries) in [
        (
            "web",
            SetType::HashIpPort,
            vec!["10.0.0.1,tcp:80", "10.0.0.2,udp:53"],
        ),
        (
            "nets",
            SetType::HashIpPortNet,
            vec!["10.0.0.1,tcp:80,10.1.0.0/16"],
        ),
        ("none", SetType::HashIp, vec![]),
    ] {
        ipset
            .create(name, &Definition::new(set_type, FOUR))
            .unwrap();
        ipset.add(name, &parse(set_type, &entries)).unwrap();
    }
    let saved = ipset_tool("save");
    let mut saved: Vec<_> = saved
        .lines()
        .map(|line| line.split(" bucketsize").next().unwrap())
        .collect();
    let mut example = namespace::example("ipset_list", &[]);
    saved.sort_unstable();
    example.sort_unstable();
    assert_eq!(example, saved);
    assert_eq!(example.len(), 6);
}

#[test]
fn each_set_type_works_in_each_ip_family() {
    let mut ipset = new_namespace();
    assert_eq!(ipset.protocol(), 7);
    let cases: &[(SetType, Family, &[&str])] = &[
        (SetType::HashIp, FOUR, &["10.0.0.1", "192.168.255.255"]),
        (SetType::HashIp, SIX, &["fd00::1", "::ffff:10.0.0.1"]),
        (
            SetType::HashIpPort,
            FOUR,
            &["10.0.0.1,tcp:80", "10.0.0.1,udp:53", "10.0.0.1,sctp:65535"],
        ),
        (
            SetType::HashIpPort,
            SIX,
            &["fd00::1,tcp:80", "fd00::1,udp:53", "fd00::1,sctp:65535"],
        ),
        (
            SetType::HashIpPortIp,
            FOUR,
            &["10.0.0.1,tcp:80,10.0.0.1", "10.0.0.1,udp:80,10.0.0.2"],
        ),
        (
            SetType::HashIpPortIp,
            SIX,
            &["fd00::1,tcp:80,fd00::1", "fd00::1,sctp:80,fd00::2"],
        ),
        (
            SetType::HashIpPortNet,
            FOUR,
            &[
                "10.0.0.1,tcp:80,10.1.2.0/24",
                "10.0.0.1,tcp:80,10.1.2.3",
                "10.0.0.1,udp:80,128.0.0.0/1",
            ],
        ),
        (
            SetType::HashIpPortNet,
            SIX,
            &["fd00::1,tcp:80,fd00:1::/64", "fd00::1,tcp:80,fd00::3"],
        ),
        (SetType::BitmapPort, FOUR, &["0", "30000", "65535"]),
        (SetType::BitmapPort, SIX, &["1", "30000"]),
    ];
    for (set_type, family, lines) in cases {
        let name = format!("{set_type}-{family}");
        let definition = Definition::new(*set_type, *family)
            .with_hashsize(2048)
            .with_maxelem(100);
        let entries = parse(*set_type, lines);
        let lines: BTreeSet<String> = lines.iter().map(ToString::to_string).collect();

        assert!(ipset.create(&name, &definition).unwrap());
        assert_eq!(saved(&name), (definition.to_string(), BTreeSet::new()));

        assert_eq!(
            ipset.add(&name, &entries).unwrap(),
            vec![Outcome::Done; entries.len()]
        );
        assert_eq!(saved(&name), (definition.to_string(), lines.clone()));
        let list = ipset.list(&name).unwrap();
        assert_eq!(texts(&list.entries), lines);
        assert_eq!(
            (list.header.name.as_str(), list.header.definition),
            (name.as_str(), Some(definition))
        );
        assert_eq!((list.header.options.len(), list.others), (0, 0));

        // A second call for the same set or entries succeeds and changes nothing.
        assert!(!ipset.create(&name, &definition).unwrap());
        assert_eq!(
            ipset.add(&name, &entries).unwrap(),
            vec![Outcome::Done; entries.len()]
        );
        assert_eq!(saved(&name).1, lines);

        assert_eq!(ipset.delete(&name, &entries[..1]).unwrap(), [Outcome::Done]);
        assert_eq!(ipset.delete(&name, &entries[..1]).unwrap(), [Outcome::Done]);
        assert_eq!(saved(&name).1, texts(&entries[1..]));

        ipset.flush(&name).unwrap();
        assert_eq!(saved(&name).1, BTreeSet::new());
        ipset.destroy(&name).unwrap();
        assert!(matches!(
            ipset.header(&name),
            Err(Error::Refused {
                reason: Reason::NoSuchSet,
                ..
            })
        ));
    }
    assert_eq!(ipset_tool("save"), "");
    assert_eq!(ipset.list_all().unwrap(), []);
}

#[test]
fn twenty_thousand_entries_are_written_in_one_call() {
    let mut ipset = new_namespace();
    ipset
        .create("many", &Definition::new(SetType::HashIpPort, FOUR))
        .unwrap();
    let entries: Vec<Entry> = (0..20_000).map(numbered).collect();
    assert_eq!(
        ipset.add("many", &entries).unwrap(),
        vec![Outcome::Done; entries.len()]
    );
    let list = ipset.list("many").unwrap();
    assert_eq!(list.header.entries, Some(20_000));
    assert_eq!(sorted(list.entries), entries);
    assert_eq!(saved("many").1, texts(&entries));

    assert_eq!(
        ipset.delete("many", &entries[1..]).unwrap(),
        vec![Outcome::Done; entries.len() - 1]
    );
    assert_eq!(saved("many").1, texts(&entries[..1]));
}

#[test]
fn a_refused_entry_is_reported_and_all_other_entries_are_written() {
    let mut ipset = new_namespace();
    ipset
        .create(
            "ports",
            &Definition::new(SetType::BitmapPort, FOUR).with_ports(1000, 5999),
        )
        .unwrap();
    let ports: Vec<Entry> = (998..=6001).map(Entry::Port).collect();
    for (port, outcome) in (998..).zip(ipset.add("ports", &ports).unwrap()) {
        let expected = match port {
            1000..=5999 => Outcome::Done,
            _ => Outcome::Refused(Reason::OutOfRange),
        };
        assert_eq!(outcome, expected, "{port}");
    }
    assert_eq!(saved("ports").1.len(), 5000);

    ipset
        .create("nets", &Definition::new(SetType::HashIpPortNet, SIX))
        .unwrap();
    let nets = parse(
        SetType::HashIpPortNet,
        &[
            "fd00::1,tcp:1,fd00::/64",
            "fd00::1,tcp:2,::/0",
            "fd00::1,tcp:3,::/1",
            "fd00::1,0:3,::/1",
        ],
    );
    assert_eq!(
        ipset.add("nets", &nets).unwrap(),
        [
            Outcome::Done,
            Outcome::Refused(Reason::InvalidPrefix),
            Outcome::Done,
            Outcome::Refused(Reason::InvalidProtocol)
        ]
    );
    assert_eq!(saved("nets").1, texts(&[nets[0], nets[2]]));

    ipset
        .create("ips", &Definition::new(SetType::HashIp, FOUR))
        .unwrap();
    let ips = parse(SetType::HashIp, &["0.0.0.0", "10.0.0.1"]);
    assert_eq!(
        ipset.add("ips", &ips).unwrap(),
        [Outcome::Refused(Reason::NullEntry), Outcome::Done]
    );
}

#[test]
fn a_full_set_is_reported_for_each_refused_entry() {
    let mut ipset = new_namespace();
    let definition = Definition::new(SetType::HashIpPort, FOUR).with_maxelem(2000);
    ipset.create("full", &definition).unwrap();
    let entries: Vec<Entry> = (0..5000).map(numbered).collect();
    let outcomes = ipset.add("full", &entries).unwrap();
    let inside: Vec<Entry> = entries
        .iter()
        .zip(&outcomes)
        .filter(|(_, o)| **o == Outcome::Done)
        .map(|(entry, _)| *entry)
        .collect();
    assert!(
        outcomes
            .iter()
            .all(|o| matches!(o, Outcome::Done | Outcome::Refused(Reason::Full)))
    );
    assert_eq!(inside.len(), 2000);
    assert_eq!(saved("full").1, texts(&inside));
    assert_eq!(Reason::Full.to_string(), "the set is full (maxelem)");

    // A full set accepts entries that it already has.
    assert_eq!(
        ipset.add("full", &inside).unwrap(),
        vec![Outcome::Done; inside.len()]
    );
}

#[test]
fn create_distinguishes_an_equal_set_from_a_different_set() {
    let mut ipset = new_namespace();
    let wanted = Definition::new(SetType::HashIpPort, FOUR);
    assert!(ipset.create("set", &wanted).unwrap());
    ipset.add("set", &[numbered(1)]).unwrap();
    assert!(!ipset.create("set", &wanted.with_hashsize(65536)).unwrap());

    let mut mismatch = |other: Definition| match ipset.create("set", &other) {
        Err(error @ Error::Mismatch { .. }) => error.to_string(),
        result => panic!("{other}: {result:?}"),
    };
    assert_eq!(
        mismatch(Definition::new(SetType::HashIp, FOUR)),
        "set set exists as `hash:ip,port family inet hashsize 1024 maxelem 65536`, wanted is \
         `hash:ip family inet hashsize 1024 maxelem 65536`: remove it (`ipset destroy set`) or choose another name"
    );
    // Without this crate's check, the kernel would accept this definition for the existing set.
    assert!(
        mismatch(Definition::new(SetType::HashIpPort, SIX))
            .contains("wanted is `hash:ip,port family inet6 ")
    );
    assert!(mismatch(wanted.with_maxelem(10)).contains("maxelem 10`"));
    assert!(
        mismatch(Definition::new(SetType::BitmapPort, FOUR))
            .contains("wanted is `bitmap:port range 0-65535`")
    );
    assert_eq!(saved("set").1, texts(&[numbered(1)]));

    ipset_tool("create timed hash:ip,port timeout 300");
    let error = ipset.create("timed", &wanted).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("maxelem 65536 timeout 300`, wanted"),
        "{error}"
    );
    // A set with counters and comments still matches a definition without them.
    ipset_tool("create noted hash:ip,port counters comment");
    assert!(!ipset.create("noted", &wanted).unwrap());
    assert_eq!(ipset.add("noted", &[numbered(1)]).unwrap(), [Outcome::Done]);
    assert_eq!(ipset.list("noted").unwrap().entries, [numbered(1)]);

    let ports = Definition::new(SetType::BitmapPort, FOUR).with_ports(10, 20);
    assert!(ipset.create("ports", &ports).unwrap());
    assert!(
        !ipset
            .create(
                "ports",
                &Definition::new(SetType::BitmapPort, SIX).with_ports(20, 10)
            )
            .unwrap()
    );
    assert!(ipset.create("ports", &ports.with_ports(10, 21)).is_err());
}

#[test]
fn many_sets_are_changed_in_one_call() {
    let mut ipset = new_namespace();
    let names: Vec<String> = (0..40).map(|n| format!("set-{n}")).collect();
    for name in &names {
        ipset
            .create(name, &Definition::new(SetType::HashIpPort, FOUR))
            .unwrap();
        ipset.add(name, &[numbered(0)]).unwrap();
    }
    let entries: Vec<Entry> = (1..300).map(numbered).collect();
    let old = [numbered(0)];
    let mut changes = Vec::new();
    for set in &names {
        changes.push(Change {
            set,
            action: Action::Delete,
            entries: &old,
        });
        changes.push(Change {
            set,
            action: Action::Add,
            entries: &entries,
        });
    }
    // None of the following invalid changes may affect the outcomes of the valid changes above.
    let misfits = [
        numbered(1000),
        Entry::Port(80),
        Entry::Ip([10, 0, 0, 1].into()),
        numbered(1001),
    ];
    changes.push(Change {
        set: "absent",
        action: Action::Add,
        entries: &old,
    });
    changes.push(Change {
        set: "",
        action: Action::Add,
        entries: &old,
    });
    changes.push(Change {
        set: "set-0",
        action: Action::Add,
        entries: &misfits,
    });
    changes.push(Change {
        set: "set-0",
        action: Action::Add,
        entries: &[],
    });

    let mut outcomes = ipset.update(&changes).unwrap();
    let special = outcomes.split_off(80);
    assert!(
        outcomes
            .iter()
            .flatten()
            .all(|outcome| *outcome == Outcome::Done)
    );
    let refused = Outcome::Refused;
    assert_eq!(
        special,
        [
            vec![refused(Reason::NoSuchSet)],
            vec![refused(Reason::InvalidName)],
            vec![
                Outcome::Done,
                refused(Reason::TypeMismatch),
                refused(Reason::TypeMismatch),
                Outcome::Done
            ],
            vec![],
        ]
    );
    for name in &names[1..] {
        assert_eq!(saved(name).1, texts(&entries));
    }
    assert_eq!(
        saved("set-0").1,
        texts(&[entries.as_slice(), &[misfits[0], misfits[3]]].concat())
    );
    let sets = ipset.list_all().unwrap();
    assert_eq!(
        sets.iter()
            .map(|set| set.header.name.clone())
            .collect::<BTreeSet<_>>(),
        names.into_iter().collect()
    );
    assert_eq!(
        ipset.headers().unwrap(),
        sets.into_iter().map(|set| set.header).collect::<Vec<_>>()
    );
}

#[test]
fn an_entry_with_a_type_or_family_unlike_its_set_is_refused() {
    let mut ipset = new_namespace();
    for set_type in SetType::ALL {
        ipset
            .create(set_type.name(), &Definition::new(set_type, FOUR))
            .unwrap();
    }
    let all = [
        "10.0.0.1",
        "10.0.0.1,tcp:1",
        "10.0.0.1,tcp:1,10.0.0.1",
        "10.0.0.1,tcp:1,10.0.0.0/8",
        "1",
    ];
    let all: Vec<Entry> = all
        .iter()
        .zip(SetType::ALL)
        .map(|(text, of)| Entry::parse(text, of).unwrap())
        .collect();
    let six = parse(SetType::HashIp, &["fd00::1"]);
    for set_type in SetType::ALL {
        let outcomes = ipset
            .add(set_type.name(), &[all.clone(), six.clone()].concat())
            .unwrap();
        for (entry, outcome) in all.iter().chain(&six).zip(outcomes) {
            let fits = entry.set_type() == set_type && *entry != six[0];
            let expected = if fits {
                Outcome::Done
            } else {
                Outcome::Refused(Reason::TypeMismatch)
            };
            assert_eq!(outcome, expected, "{entry} in {set_type}");
        }
        assert_eq!(saved(set_type.name()).1.len(), 1);
    }
    ipset_tool("create hash:net hash:net");
    assert_eq!(
        ipset.add("hash:net", &all[..1]).unwrap(),
        [Outcome::Refused(Reason::TypeMismatch)]
    );
}

#[test]
fn sets_are_renamed_and_swapped_and_a_used_set_is_not_removed() {
    let mut ipset = new_namespace();
    let definition = Definition::new(SetType::HashIpPort, FOUR);
    ipset.create("one", &definition).unwrap();
    ipset.create("two", &definition.with_maxelem(7)).unwrap();
    ipset
        .create("ports", &Definition::new(SetType::BitmapPort, FOUR))
        .unwrap();
    ipset.add("one", &[numbered(1)]).unwrap();
    ipset.add("two", &[numbered(2)]).unwrap();

    ipset.swap("one", "two").unwrap();
    assert_eq!(
        (saved("one").1, saved("two").1),
        (texts(&[numbered(2)]), texts(&[numbered(1)]))
    );
    ipset.rename("one", "three").unwrap();
    assert_eq!(ipset.list("three").unwrap().entries, [numbered(2)]);

    let refusal = |result: Result<(), Error>| result.unwrap_err().to_string();
    assert_eq!(
        refusal(ipset.swap("two", "ports")),
        "cannot swap set two: type or address family does not fit the set"
    );
    assert_eq!(
        refusal(ipset.swap("two", "absent")),
        "cannot swap set two: there is no set of that name"
    );
    assert_eq!(
        refusal(ipset.rename("two", "three")),
        "cannot rename set two: a set of that name exists"
    );
    assert_eq!(
        refusal(ipset.flush("absent")),
        "cannot flush set absent: there is no set of that name"
    );
    assert_eq!(
        refusal(ipset.destroy("absent")),
        "cannot destroy set absent: there is no set of that name"
    );
    assert!(matches!(ipset.rename("two", ""), Err(Error::Name { .. })));

    ipset_tool("create all list:set");
    ipset_tool("add all two");
    assert_eq!(
        refusal(ipset.destroy("two")),
        "cannot destroy set two: the set is in use by a rule or by another set"
    );
    assert_eq!(
        refusal(ipset.rename("two", "four")),
        "cannot rename set two: the set is in use by a rule or by another set"
    );
    assert_eq!(ipset.header("two").unwrap().references, 1);
    let all = ipset.list("all").unwrap();
    assert_eq!(
        (
            all.header.to_string().as_str(),
            all.entries.len(),
            all.others
        ),
        ("list:set", 0, 1)
    );
    ipset.destroy("all").unwrap();
    ipset.destroy("two").unwrap();
}

#[test]
fn a_new_mark_replaces_an_entrys_mark_and_a_deletion_ignores_the_mark() {
    let mut ipset = new_namespace();
    let plain = Definition::new(SetType::HashIpPort, FOUR);
    let marks = plain.with_marks();
    ipset.check(&marks).unwrap();
    assert!(ipset.create("m", &marks).unwrap());
    assert!(!ipset.create("m", &marks).unwrap());
    let entry = |text| Entry::parse(text, SetType::HashIpPort).unwrap();
    let [one, other, bare] = [
        "10.0.0.1,tcp:80 skbmark 0x1001",
        "10.0.0.1,tcp:80 skbmark 0x7/0xff",
        "10.0.0.1,tcp:80",
    ]
    .map(entry);
    for entry in [one, other, bare, one] {
        assert_eq!(ipset.add("m", &[entry]).unwrap(), [Outcome::Done]);
        assert_eq!(saved("m").0, marks.to_string());
        assert_eq!(saved("m").1, texts(&[entry]));
        assert_eq!(ipset.list("m").unwrap().entries, [entry]);
    }
    assert_eq!(ipset.delete("m", &[other]).unwrap(), [Outcome::Done]);
    assert!(ipset.list("m").unwrap().entries.is_empty());
    // A set without marks refuses entries with marks, and does not match a definition with marks.
    ipset.create("plain", &plain).unwrap();
    let refused = Outcome::Refused(Reason::TypeMismatch);
    assert_eq!(ipset.add("plain", &[one]).unwrap(), [refused]);
    let made = ipset.create("plain", &marks);
    assert!(matches!(made, Err(Error::Mismatch { .. })), "{made:?}");
}

#[test]
fn a_write_to_a_known_set_is_one_message_and_a_recreated_set_is_noticed() {
    let mut ipset = new_namespace();
    let set = Definition::new(SetType::HashIpPort, FOUR);
    ipset.create("s", &set).unwrap();
    let sent = |ipset: &mut Ipset, entries: &[Entry]| {
        let before = ipset.sent();
        let outcomes = ipset.add("s", entries).unwrap();
        (outcomes, ipset.sent() - before)
    };
    let one = [numbered(1)];
    assert_eq!(sent(&mut ipset, &one), (vec![Outcome::Done], 1), "made");
    let mut other = Ipset::open().unwrap();
    assert_eq!(sent(&mut other, &one), (vec![Outcome::Done], 2), "unknown");
    assert_eq!(sent(&mut other, &one), (vec![Outcome::Done], 1), "asked");
    let mut other = Ipset::open().unwrap();
    other.list("s").unwrap();
    assert_eq!(sent(&mut other, &one), (vec![Outcome::Done], 1), "listed");

    // Another program has destroyed the set. The crate must query the set's type again, and report
    // that the set is missing.
    ipset_tool("destroy s");
    let gone = vec![Outcome::Refused(Reason::NoSuchSet)];
    assert_eq!(sent(&mut ipset, &one), (gone.clone(), 2));
    assert_eq!(sent(&mut ipset, &one), (gone, 1), "nothing is believed");

    // Another program creates the set again: at first with the same type, then with another type or
    // family. The crate must notice the change, although it has stored the first type.
    let mismatch = vec![Outcome::Refused(Reason::TypeMismatch)];
    // The kernel may understand only a part of an entry. The crate must not add this part to a set
    // of another type.
    for made in ["hash:ip", "hash:ip,port,ip", "hash:ip,port family inet6"] {
        ipset_tool("create s hash:ip,port");
        assert_eq!(sent(&mut ipset, &one).0, [Outcome::Done]);
        ipset_tool("destroy s");
        ipset_tool(&format!("create s {made}"));
        assert_eq!(sent(&mut ipset, &one).0, mismatch, "{made}");
        assert_eq!(saved("s").1.len(), 0);
        ipset_tool("destroy s");
    }

    // The recreated set finally fits the entry again: one query and one message add the entry.
    ipset_tool("create s hash:ip");
    assert_eq!(sent(&mut ipset, &one).0, mismatch);
    ipset_tool("destroy s");
    ipset_tool("create s hash:ip,port");
    assert_eq!(sent(&mut ipset, &one), (vec![Outcome::Done], 2));
    ipset.rename("s", "t").unwrap();
    assert_eq!(ipset.add("t", &one).unwrap(), [Outcome::Done]);
}
