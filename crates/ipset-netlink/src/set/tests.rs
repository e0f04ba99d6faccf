use proptest::prelude::*;

use super::*;
use crate::test_data::{reply, sets};

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn listed_sets_decode_to_their_definitions_and_entries() {
    let sets = sets("ipset list");
    let mut lines = Vec::new();
    for set in &sets {
        lines.push(format!("{}: {}", set.header.name, set.header));
        let mut entries = set.entries.clone();
        entries.sort_unstable();
        lines.extend(entries.iter().map(Entry::to_string));
    }
    // `Header` and `Entry` omit comments and counters. The last assertion of this test counts the
    // entries that this crate cannot express.
    let expected = [
        "ip4: hash:ip family inet hashsize 1024 maxelem 65536",
        "10.0.0.1",
        "10.0.0.2",
        "ip6: hash:ip family inet6 hashsize 1024 maxelem 65536",
        "fd00::1",
        "port4: hash:ip,port family inet hashsize 64 maxelem 10",
        "10.0.0.1,tcp:80",
        "10.0.0.1,udp:53",
        "port6: hash:ip,port family inet6 hashsize 1024 maxelem 65536",
        "fd00::1,sctp:9999",
        "portip4: hash:ip,port,ip family inet hashsize 1024 maxelem 65536",
        "10.0.0.1,tcp:80,10.0.0.1",
        "portip6: hash:ip,port,ip family inet6 hashsize 1024 maxelem 65536",
        "fd00::1,tcp:80,fd00::1",
        "portnet4: hash:ip,port,net family inet hashsize 1024 maxelem 65536",
        "10.0.0.1,tcp:80,10.1.2.0/24",
        "10.0.0.1,tcp:80,10.1.2.7",
        "portnet6: hash:ip,port,net family inet6 hashsize 1024 maxelem 65536",
        "fd00::1,udp:53,fd00:1::/64",
        "except: hash:ip,port,net family inet hashsize 1024 maxelem 65536",
        "ports: bitmap:port range 30000-32767",
        "30000",
        "30001",
        "marks4: hash:ip,port family inet hashsize 1024 maxelem 65536 skbinfo",
        "10.0.0.1,tcp:80 skbmark 0x1001",
        "10.0.0.1,udp:53 skbmark 0x7/0xff",
        "marks6: hash:ip,port family inet6 hashsize 1024 maxelem 65536 skbinfo",
        "fd00::1,sctp:9999 skbmark 0x1001",
        "timed: hash:ip family inet hashsize 1024 maxelem 65536 netmask 24 timeout 300 forceadd",
        "10.0.1.0",
        "nets: hash:net",
    ];
    assert_eq!(lines, expected);

    let others = |name: &str| {
        sets.iter()
            .find(|set| set.header.name == name)
            .unwrap()
            .others
    };
    assert_eq!((others("ip4"), others("except"), others("nets")), (0, 1, 1));
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn set_headers_have_the_numbers_of_entries_and_references() {
    let terse = sets("ipset list -terse");
    let header = &terse
        .iter()
        .find(|set| set.header.name == "ip4")
        .unwrap()
        .header;
    assert_eq!(
        (header.entries, header.references, header.revision),
        (Some(2), 0, 6)
    );
    assert!(header.memory > 0);
    assert!(
        terse
            .iter()
            .all(|set| set.entries.is_empty() && set.others == 0)
    );
    let full: Vec<_> = sets("ipset list")
        .into_iter()
        .map(|set| set.header)
        .collect();
    assert_eq!(
        terse.into_iter().map(|set| set.header).collect::<Vec<_>>(),
        full
    );
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn a_set_that_is_listed_in_several_messages_is_joined() {
    let messages = reply("ipset list");
    let (_, portnet4) = messages
        .iter()
        .find(|(_, payload)| payload.windows(8).any(|w| w == b"portnet4"))
        .unwrap();
    let whole = Set::decode_list([portnet4.as_slice()].into_iter()).unwrap();

    // A second message about a set has the set's name and more entries, but neither type nor
    // header.
    let mut batch = netlink_batch::Batch::new();
    batch.push(0, 0, |w| {
        w.bytes(&[2, 0, 0, 0]);
        w.attr_str(attr::SETNAME, "portnet4");
        w.nest(attr::ADT, |w| {
            whole[0].entries.iter().for_each(|entry| entry.encode(w, 0));
        });
    });
    let more = batch.get(0).unwrap().payload;
    let sets = Set::decode_list([portnet4.as_slice(), more].into_iter()).unwrap();
    assert_eq!(sets.len(), 1);
    assert_eq!(
        sets[0].entries,
        [whole[0].entries.clone(), whole[0].entries.clone()].concat()
    );

    // A list cannot begin with a second message about a set.
    let error = Set::decode_list([more].into_iter()).unwrap_err();
    assert!(error.to_string().contains("not introduced"), "{error}");
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn a_set_name_that_is_not_utf_8_is_decoded_with_replacement_characters() {
    let mut messages: Vec<_> = reply("ipset list")
        .into_iter()
        .map(|(_, payload)| payload)
        .collect();
    for payload in &mut messages {
        if let Some(at) = payload.windows(5).position(|w| w == b"port6") {
            payload[at] = 0xff;
        }
    }
    let sets = Set::decode_list(messages.iter().map(Vec::as_slice)).unwrap();
    assert!(sets.iter().any(|set| set.header.name == "\u{fffd}ort6"));
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn only_settings_that_affect_entries_decide_whether_a_set_matches() {
    let sets = sets("ipset list");
    let header = |name: &str| {
        &sets
            .iter()
            .find(|set| set.header.name == name)
            .unwrap()
            .header
    };
    let plain = Definition::new(SetType::HashIp, Family::Inet);
    assert!(header("ip4").matches(&plain));
    assert!(header("ip4").matches(&plain.with_hashsize(4096)));
    assert!(!header("ip4").matches(&plain.with_maxelem(10)));
    assert!(!header("ip6").matches(&plain));
    assert!(!header("port4").matches(&plain));
    assert!(!header("timed").matches(&plain));
    assert!(!header("nets").matches(&plain));
    // A set without support for marks does not match a definition with marks. A set with support
    // for marks matches a definition without marks.
    let ports = Definition::new(SetType::HashIpPort, Family::Inet);
    assert!(header("marks4").matches(&ports.with_marks()));
    assert!(header("marks4").matches(&ports));
    assert!(!header("port4").matches(&ports.with_maxelem(10).with_marks()));
    // The set has counters and comments, which do not affect the match.
    assert!(
        header("port4")
            .matches(&Definition::new(SetType::HashIpPort, Family::Inet).with_maxelem(10))
    );
    // A bitmap has no family, so the family in the definition has no effect.
    let ports = Definition::new(SetType::BitmapPort, Family::Inet6).with_ports(32767, 30000);
    assert!(header("ports").matches(&ports));
    assert!(!header("ports").matches(&Definition::new(SetType::BitmapPort, Family::Inet)));
}

#[test]
fn a_definition_with_marks_needs_a_kernel_that_supports_marks() {
    let plain = Definition::new(SetType::HashIpPort, Family::Inet);
    let revision = |of: Definition, min, max| {
        let found = of.revision_between(min, max);
        found.map_err(|error| error.to_string())
    };
    assert_eq!(revision(plain, 0, 4), Ok(4));
    assert_eq!(revision(plain.with_marks(), 0, 5), Ok(5));
    assert_eq!(revision(plain.with_marks(), 0, 9), Ok(7));
    let refusal = "the kernel's hash:ip,port has no marks (skbinfo): it has revision 4, and 5 is needed (Linux 3.18)";
    assert_eq!(revision(plain.with_marks(), 0, 4), Err(refusal.to_owned()));
    assert!(revision(plain, 8, 9).is_err());
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn replies_about_protocol_revisions_and_types_are_decoded() {
    let read = |request: &str| {
        let (_, payload) = reply(request).remove(0);
        let attributes = CommandAttributes::decode(&payload).unwrap();
        (
            attributes.protocol,
            attributes.protocol_min,
            attributes.revision,
            attributes.set_type(),
        )
    };
    assert_eq!(read("version"), (Some(7), Some(6), None, None));
    let port4 = (SetType::HashIpPort, Some(Family::Inet));
    assert_eq!(
        read("revisions of hash:ip,port"),
        (Some(7), Some(0), Some(7), Some(port4))
    );
    let ports = (SetType::BitmapPort, None);
    assert_eq!(
        read("revisions of bitmap:port"),
        (Some(7), Some(0), Some(3), Some(ports))
    );
    assert_eq!(
        read("type of port6"),
        (
            Some(7),
            None,
            Some(7),
            Some((SetType::HashIpPort, Some(Family::Inet6)))
        )
    );
    assert_eq!(read("type of ports"), (Some(7), None, Some(3), Some(ports)));
    assert_eq!(read("type of nets"), (Some(7), None, Some(7), None));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_the_set_decoder(messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..4)) {
        let _ = Set::decode_list(messages.iter().map(Vec::as_slice));
    }

    #[test]
    fn damaged_lists_never_panic_the_decoder(
        damage in proptest::collection::vec((0..12_usize, 0..300_usize, any::<u8>()), 1..6),
        cut in 0..400_usize,
    ) {
        let mut messages: Vec<_> = reply("ipset list").into_iter().map(|(_, payload)| payload).collect();
        for (message, at, byte) in damage {
            if let Some(there) = messages.get_mut(message).and_then(|message| message.get_mut(at)) {
                *there = byte;
            }
        }
        messages[0].truncate(cut);
        let _ = Set::decode_list(messages.iter().map(Vec::as_slice));
    }
}
