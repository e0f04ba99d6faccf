use netlink_batch::Batch;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::test_data::{replies, requests};

fn tuple(source: &str, destination: &str) -> Tuple {
    Tuple {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        zone: 0,
    }
}

/// Returns the type and the value of each attribute in a message, without flag bits and padding.
fn attributes(payload: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let attributes = Attributes::after(HEADER, payload).unwrap();
    attributes
        .map(|attribute| attribute.map(|a| (a.kind, a.payload.to_vec())).unwrap())
        .collect()
}

fn key(flow: &Flow) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.push(0, 0, |w| flow.write_key(w));
    batch.get(0).unwrap().payload.to_vec()
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn decoded_flows_equal_the_flows_that_conntrack_created() {
    let (client, service) = ("10.244.1.99:40000", "10.96.0.10:53");
    let udp = Flow {
        protocol: Protocol::Udp,
        original: tuple(client, service),
        reply: tuple("10.244.2.10:5353", client),
        zone: 0,
        id: 0x10f3_52da,
        status: 8, // IPS_CONFIRMED
        mark: 0,
    };
    let mut one_way_zone = tuple("10.244.1.99:40002", service);
    one_way_zone.zone = 9;
    let wanted = [
        Some(udp),
        Some(Flow {
            original: tuple("10.244.1.99:40001", service),
            reply: tuple("10.244.2.10:5353", "192.168.0.10:61001"),
            zone: 7,
            id: 0x3eac_8c18,
            mark: 0x4000,
            ..udp
        }),
        Some(Flow {
            original: one_way_zone,
            reply: tuple(service, "10.244.1.99:40002"),
            id: 0x5573_58b4,
            ..udp
        }),
        Some(Flow {
            original: tuple("[fd44:1::99]:40000", "[fd96::10]:53"),
            reply: tuple("[fd44:2::10]:5353", "[fd44:1::99]:40000"),
            id: 0x0b29_7996,
            ..udp
        }),
        Some(Flow {
            protocol: Protocol::Tcp,
            original: tuple("10.244.1.99:40003", "10.96.0.1:443"),
            reply: tuple("10.0.0.5:6443", "10.244.1.99:40003"),
            id: 0x5092_23fc,
            status: 12, // and IPS_ASSURED
            ..udp
        }),
        Some(Flow {
            protocol: Protocol::Sctp,
            original: tuple("10.244.1.99:40004", "10.96.0.7:9999"),
            reply: tuple("10.96.0.7:9999", "10.244.1.99:40004"),
            id: 0xb350_de6d,
            ..udp
        }),
        // The crate skips the ICMP flow, because ICMP has no ports.
        None,
    ];
    let read: Vec<_> = replies()
        .iter()
        .map(|payload| Flow::decode(payload).unwrap())
        .collect();
    assert_eq!(read, wanted);
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn a_delete_request_equals_that_of_the_conntrack_tool() {
    for (reply, request) in replies().iter().zip(requests()) {
        let Some(flow) = Flow::decode(reply).unwrap() else {
            continue;
        };
        let key = key(&flow);
        assert_eq!(key[..HEADER], request[..HEADER]);
        let mut wanted: Vec<_> = attributes(&request)
            .into_iter()
            .filter(|(kind, _)| [attr::TUPLE_ORIG, attr::ZONE].contains(kind))
            .collect();
        // This crate's delete request also has the flow's id, which the request of the `conntrack`
        // tool lacks.
        wanted.push((attr::ID, flow.id.to_be_bytes().to_vec()));
        assert_eq!(attributes(&key), wanted);
    }
}

#[test]
#[cfg_attr(target_endian = "big", ignore = "recorded on a little-endian machine")]
fn a_flow_without_a_required_attribute_is_malformed() {
    let whole = &replies()[0];
    let parts = attributes(whole);
    for absent in [attr::TUPLE_ORIG, attr::TUPLE_REPLY, attr::ID] {
        let mut batch = Batch::new();
        batch.push(0, 0, |w| {
            w.bytes(&whole[..HEADER]);
            let kept = parts.iter().filter(|(kind, _)| *kind != absent);
            kept.for_each(|(kind, payload)| w.attr(*kind, payload));
        });
        let error = Flow::decode(batch.get(0).unwrap().payload).unwrap_err();
        assert!(
            matches!(error, Malformed::Missing { kind, .. } if kind == absent),
            "{error}"
        );
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_the_flow_decoder(bytes in vec(any::<u8>(), 0..300)) {
        let _ = Flow::decode(&bytes);
    }

    #[test]
    fn damaged_flow_messages_never_panic_the_decoder(
        which in 0..7_usize,
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = replies()[which].clone();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(end.index(bytes.len() + 1));
        let _ = Flow::decode(&bytes);
    }
}
