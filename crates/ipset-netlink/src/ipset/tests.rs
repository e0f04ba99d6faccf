use std::collections::BTreeSet;
use std::convert::Infallible;

use netlink_batch::{Attributes, Batch, Reply};
use proptest::prelude::*;

use super::*;
use crate::test_data::{self, comparable};
use crate::{Family, SetType};

/// Sets in the recorded `ipset restore` script whose type this crate supports.
const PLAIN: [(&str, SetType, Family); 10] = [
    ("ip4", SetType::HashIp, Family::Inet),
    ("ip6", SetType::HashIp, Family::Inet6),
    ("port6", SetType::HashIpPort, Family::Inet6),
    ("portip4", SetType::HashIpPortIp, Family::Inet),
    ("portip6", SetType::HashIpPortIp, Family::Inet6),
    ("portnet4", SetType::HashIpPortNet, Family::Inet),
    ("portnet6", SetType::HashIpPortNet, Family::Inet6),
    ("ports", SetType::BitmapPort, Family::Inet),
    ("marks4", SetType::HashIpPort, Family::Inet),
    ("marks6", SetType::HashIpPort, Family::Inet6),
];

/// Returns the message with which `ipset restore` sent the command `command` for the set `set`.
fn sent_by_ipset(command: u16, set: &str) -> Vec<u8> {
    let named = |payload: &[u8]| {
        let name = Attributes::after(4, payload)
            .unwrap()
            .map(Result::unwrap)
            .find(|a| a.kind == attr::SETNAME);
        name.is_some_and(|name| name.string() == Ok(set))
    };
    let mut messages = test_data::requests();
    messages.retain(|(number, payload)| *number == command && named(payload));
    assert_eq!(messages.len(), 1, "{command} {set}");
    messages.remove(0).1
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn create_requests_equal_those_of_the_ipset_tool() {
    for (name, set_type, family) in PLAIN {
        let mut definition = Definition::new(set_type, family);
        if name == "ports" {
            definition = definition.with_ports(30000, 32767);
        } else if name.starts_with("marks") {
            definition = definition.with_marks();
        }
        let mut batch = Batch::new();
        batch.push(message(command::CREATE), NLM_F_EXCL, |w| {
            preamble(w, PROTOCOL, Some(name));
            definition.encode(w, set_type.revision());
        });
        let ours = batch.get(0).unwrap();
        assert_eq!(ours.kind, 0x602);
        assert_eq!(
            ours.payload,
            comparable(&sent_by_ipset(command::CREATE, name)),
            "{name}"
        );
    }
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn add_requests_equal_those_of_the_ipset_tool() {
    for (name, set_type, _) in PLAIN {
        let script = test_data::script(&format!("add {name} "));
        let entries: Vec<_> = script
            .iter()
            .map(|line| Entry::parse(line, set_type).unwrap())
            .collect();
        let mut outcomes = vec![Outcome::Unknown; entries.len()];
        let change = Change {
            set: name,
            action: Action::Add,
            entries: &entries,
        };
        let mut batch = Batch::new();
        ChangePart {
            change,
            outcomes: &mut outcomes,
        }
        .push(&mut batch, PROTOCOL, usize::MAX);
        let ours = batch.get(0).unwrap();
        assert_eq!(ours.kind, 0x609);
        assert_eq!(
            comparable(ours.payload),
            comparable(&sent_by_ipset(command::ADD, name)),
            "{name}"
        );
    }
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn type_requests_equal_those_of_the_ipset_tool() {
    let mut batch = Batch::new();
    for set_type in SetType::ALL {
        batch.push(message(command::TYPE), 0, |w| {
            preamble(w, PROTOCOL, None);
            Definition::new(set_type, Family::Inet).encode_type(w);
        });
    }
    let theirs: Vec<_> = test_data::requests()
        .into_iter()
        .filter(|(number, _)| *number == command::TYPE)
        .collect();
    for index in 0..batch.len() {
        let ours = batch.get(index).unwrap().payload;
        assert!(
            theirs
                .iter()
                .any(|(_, payload)| comparable(payload) == ours),
            "{:?}",
            SetType::ALL[index]
        );
    }
}

/// A fake kernel with one set of ports. Like the real kernel, it stops at the first port of a
/// message that it refuses, and reports the line number of this port.
struct Kernel {
    refuses: BTreeSet<u16>,
    holds: BTreeSet<u16>,
    messages: usize,
}

impl Kernel {
    fn execute(&mut self, batch: &Batch) -> Vec<Reply> {
        self.messages += batch.len();
        (0..batch.len())
            .map(|index| self.add(batch.get(index).unwrap().payload))
            .collect()
    }

    fn add(&mut self, payload: &[u8]) -> Reply {
        let command: Vec<_> = Attributes::after(4, payload)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let adt = command
            .iter()
            .find(|attribute| attribute.kind == attr::ADT)
            .unwrap();
        assert!(!adt.payload.is_empty(), "a message without entries");
        for data in adt.nested().map(Result::unwrap) {
            let Ok(Some(Entry::Port(port))) = Entry::decode(data.nested(), SetType::BitmapPort)
            else {
                panic!("no port");
            };
            if self.refuses.contains(&port) {
                let line = data
                    .nested()
                    .map(Result::unwrap)
                    .find(|a| a.kind == attr::LINENO)
                    .unwrap()
                    .be32();
                let mut echo = Batch::new();
                echo.push(message(command::ADD), 0, |w| {
                    w.bytes(&[0; 4]);
                    w.attr_be32(attr::LINENO | NET_BYTEORDER, line.unwrap());
                });
                let request = echo.get(0).unwrap().payload.to_vec();
                return Reply::Refused(Refusal {
                    errno: errno::BITMAP_RANGE,
                    message: None,
                    request,
                });
            }
            self.holds.insert(port);
        }
        Reply::Done
    }
}

/// Writes `entries` to the fake kernel.
fn write_to(kernel: &mut Kernel, entries: &[Entry]) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::Unknown; entries.len()];
    // Like `Ipset::expected`, first refuses the entries that do not fit the set.
    for (entry, outcome) in entries.iter().zip(&mut outcomes) {
        if entry.set_type() != SetType::BitmapPort {
            *outcome = Outcome::Refused(Reason::TypeMismatch);
        }
    }
    let change = Change {
        set: "ports",
        action: Action::Add,
        entries,
    };
    let part = ChangePart {
        change,
        outcomes: &mut outcomes,
    };
    write(vec![part], PROTOCOL, |batch| {
        Ok::<_, Infallible>(kernel.execute(batch))
    })
    .unwrap();
    outcomes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_refused_entry_does_not_stop_later_entries(
        entries in proptest::collection::vec(
            prop_oneof![9 => any::<u16>().prop_map(Entry::Port), 1 => Just(Entry::Ip([10, 0, 0, 1].into()))],
            0..4000,
        ),
        share in 0..=100_u16,
    ) {
        let refuses = (0..=u16::MAX).filter(|port| port % 100 < share).collect();
        let mut kernel = Kernel { refuses, holds: BTreeSet::new(), messages: 0 };
        let outcomes = write_to(&mut kernel, &entries);
        let mut wanted = BTreeSet::new();
        for (entry, outcome) in entries.iter().zip(outcomes) {
            prop_assert_eq!(outcome, match entry {
                Entry::Port(port) if kernel.refuses.contains(port) => Outcome::Refused(Reason::OutOfRange),
                Entry::Port(port) => {
                    wanted.insert(*port);
                    Outcome::Done
                }
                _ => Outcome::Refused(Reason::TypeMismatch),
            });
        }
        prop_assert_eq!(kernel.holds, wanted);
    }
}

#[test]
fn many_entries_need_few_messages() {
    let entries: Vec<_> = (0..20_000).map(Entry::Port).collect();
    let mut kernel = Kernel {
        refuses: BTreeSet::new(),
        holds: BTreeSet::new(),
        messages: 0,
    };
    assert_eq!(write_to(&mut kernel, &entries), vec![Outcome::Done; 20_000]);
    assert_eq!(kernel.messages, 13);

    // After a refused entry, the crate sends the rest of that message in groups of 64 entries.
    let mut kernel = Kernel {
        refuses: [10_000].into(),
        holds: BTreeSet::new(),
        messages: 0,
    };
    write_to(&mut kernel, &entries);
    assert!(kernel.messages < 13 + 1700 / 64, "{}", kernel.messages);
}

#[test]
fn a_lost_reply_leaves_the_entries_of_its_message_unknown() {
    let entries: Vec<_> = (0..4000).map(Entry::Port).collect();
    let mut outcomes = vec![Outcome::Unknown; entries.len()];
    let change = Change {
        set: "ports",
        action: Action::Delete,
        entries: &entries,
    };
    let mut sends = 0;
    write(
        vec![ChangePart {
            change,
            outcomes: &mut outcomes,
        }],
        PROTOCOL,
        |batch| {
            sends += 1;
            assert_eq!(batch.len(), 3);
            Ok::<_, Infallible>(vec![Reply::Done, Reply::Unknown, Reply::Done])
        },
    )
    .unwrap();
    assert_eq!(sends, 1);
    let first = outcomes
        .iter()
        .position(|outcome| *outcome == Outcome::Unknown)
        .unwrap();
    let last = outcomes
        .iter()
        .rposition(|outcome| *outcome == Outcome::Unknown)
        .unwrap();
    assert!(first > 1000 && last < 3999);
    let unknown = outcomes
        .iter()
        .filter(|outcome| **outcome == Outcome::Unknown)
        .count();
    assert_eq!(unknown, last + 1 - first);
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Done | Outcome::Unknown))
    );
}

#[test]
fn a_refusal_without_a_line_number_covers_the_whole_message() {
    let entries = [Entry::Port(1), Entry::Port(2)];
    let mut outcomes = [Outcome::Unknown; 2];
    let change = Change {
        set: "ports",
        action: Action::Add,
        entries: &entries,
    };
    let refusal = Refusal {
        errno: errno::ENOENT,
        message: None,
        request: Vec::new(),
    };
    write(
        vec![ChangePart {
            change,
            outcomes: &mut outcomes,
        }],
        PROTOCOL,
        |_| Ok::<_, Infallible>(vec![Reply::Refused(refusal.clone())]),
    )
    .unwrap();
    assert_eq!(outcomes, [Outcome::Refused(Reason::NoSuchSet); 2]);
}

#[test]
fn entries_of_the_largest_size_fit_in_messages() {
    let entries =
        vec![Entry::parse("fd00::1,tcp:1,fd00::/64", SetType::HashIpPortNet).unwrap(); 2000];
    let mut outcomes = vec![Outcome::Unknown; entries.len()];
    let change = Change {
        set: &"s".repeat(MAX_NAME),
        action: Action::Add,
        entries: &entries,
    };
    let mut batch = Batch::new();
    let count = ChangePart {
        change,
        outcomes: &mut outcomes,
    }
    .push(&mut batch, PROTOCOL, usize::MAX);
    assert!((380..400).contains(&count), "{count}");
    assert!(batch.get(0).is_some() && batch.byte_len() < 33 * 1024);
}

#[test]
fn invalid_set_names_are_rejected() {
    for (name, fault) in [
        ("", r#""" cannot name a set: it is empty"#),
        ("a\0b", r#""a\0b" cannot name a set: it holds a NUL"#),
        (&"n".repeat(32), "it is longer than 31 bytes"),
    ] {
        let error = valid_name(name).unwrap_err().to_string();
        assert!(error.ends_with(fault), "{error}");
    }
    assert!(valid_name(&"n".repeat(31)).is_ok());
}

#[test]
fn error_numbers_are_decoded_by_command_and_set_type() {
    let reason = Reason::from_errno;
    assert_eq!(reason(4352, command::ADD, false), Reason::Full);
    assert_eq!(reason(4352, command::ADD, true), Reason::OutOfRange);
    assert_eq!(reason(4101, command::RENAME, true), Reason::NameTaken);
    assert_eq!(reason(4101, command::SWAP, true), Reason::NoSuchSet);
    assert_eq!(
        reason(4242, command::ADD, false).to_string(),
        "ipset error 4242"
    );
    assert!(
        reason(28, command::ADD, false)
            .to_string()
            .starts_with("No space left")
    );
}
