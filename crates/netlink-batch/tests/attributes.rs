//! Tests that `Attributes` reads the output of `Writer`, and does not panic on other bytes.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use netlink_batch::{Attribute, Attributes, Batch, Malformed, Writer, messages};
use proptest::collection::vec;
use proptest::prelude::*;

/// Returns the payload that `payload` writes into a message.
fn written(payload: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.push(1, 0, payload);
    batch.get(0).unwrap().payload.to_vec()
}

#[derive(Debug, Clone)]
enum Tree {
    Leaf(u16, Vec<u8>),
    Nest(u16, Vec<Tree>),
}

fn tree() -> impl Strategy<Value = Tree> {
    let kind = 0..0x4000_u16;
    let leaf =
        (kind.clone(), vec(any::<u8>(), 0..40)).prop_map(|(kind, raw)| Tree::Leaf(kind, raw));
    leaf.prop_recursive(4, 32, 6, move |inner| {
        (kind.clone(), vec(inner, 0..6)).prop_map(|(kind, trees)| Tree::Nest(kind, trees))
    })
}

fn write(writer: &mut Writer<'_>, trees: &[Tree]) {
    for tree in trees {
        match tree {
            Tree::Leaf(kind, raw) => writer.attr(*kind, raw),
            Tree::Nest(kind, inner) => writer.nest(*kind, |writer| write(writer, inner)),
        }
    }
}

fn check(attributes: Attributes<'_>, trees: &[Tree]) {
    let read: Vec<Attribute<'_>> = attributes.map(Result::unwrap).collect();
    assert_eq!(read.len(), trees.len());
    for (attribute, tree) in read.iter().zip(trees) {
        match tree {
            Tree::Leaf(kind, raw) => {
                assert_eq!((attribute.kind, attribute.payload), (*kind, raw.as_slice()));
            }
            Tree::Nest(kind, inner) => {
                assert_eq!(attribute.kind, *kind);
                check(attribute.nested(), inner);
            }
        }
    }
}

fn exercise(attributes: Attributes<'_>, depth: usize) {
    for attribute in attributes.flatten() {
        let _ = (
            attribute.u8(),
            attribute.u16(),
            attribute.u32(),
            attribute.u64(),
        );
        let _ = (attribute.be16(), attribute.be32(), attribute.string());
        if depth > 0 {
            exercise(attribute.nested(), depth - 1);
        }
    }
}

proptest! {
    #[test]
    fn written_attributes_decode_to_the_same_values(header in vec(any::<u8>(), 0..20), trees in vec(tree(), 0..6)) {
        let payload = written(|writer| {
            writer.bytes(&header);
            write(writer, &trees);
        });
        prop_assert_eq!(payload.len() % 4, 0);
        check(Attributes::after(header.len(), &payload).unwrap(), &trees);
    }

    #[test]
    fn arbitrary_bytes_never_panic_the_attribute_decoder(payload: Vec<u8>) {
        exercise(Attributes::new(&payload), 3);
        let errors = Attributes::new(&payload).filter(Result::is_err).count();
        prop_assert!(errors <= 1);
        let after_error = Attributes::new(&payload).skip_while(Result::is_ok).skip(1).count();
        prop_assert_eq!(after_error, 0);
    }

    #[test]
    fn numbers_and_text_decode_to_the_same_values(a: u8, b: u16, c: u32, d: u64, text in "[^\0]{0,20}") {
        let payload = written(|writer| {
            writer.attr_u8(1, a);
            writer.attr_u16(2, b);
            writer.attr_u32(3, c);
            writer.attr_u64(4, d);
            writer.attr_be16(5, b);
            writer.attr_be32(6, c);
            writer.attr_str(7, &text);
            writer.attr(8, text.as_bytes());
        });
        let read: Vec<_> = Attributes::new(&payload).map(Result::unwrap).collect();
        prop_assert_eq!(read[0].u8(), Ok(a));
        prop_assert_eq!(read[1].u16(), Ok(b));
        prop_assert_eq!(read[2].u32(), Ok(c));
        prop_assert_eq!(read[3].u64(), Ok(d));
        prop_assert_eq!(read[4].be16(), Ok(b));
        prop_assert_eq!(read[5].be32(), Ok(c));
        prop_assert_eq!(read[4].payload, b.to_be_bytes());
        prop_assert_eq!(read[6].string(), Ok(text.as_str()));
        prop_assert_eq!(read[6].payload.len(), text.len() + 1);
        prop_assert_eq!(read[7].string(), Ok(text.as_str()));
        prop_assert_eq!(
            read[3].u32(),
            Err(Malformed::Size { kind: 4, expected: 4, actual: 8 })
        );
    }
}

#[test]
fn encoded_attributes_have_the_kernels_byte_layout() {
    let mut batch = Batch::new();
    assert!(batch.is_empty());
    let index = batch.push(0x1234, 0x0400, |writer| {
        assert_eq!(writer.len(), 16);
        writer.bytes(&[2, 32, 0, 0]);
        writer.nest(1, |writer| writer.attr_be16(2, 80));
        assert_eq!(writer.len(), 32);
        writer.attr_u8(3, 7);
    });
    assert_eq!((index, batch.len(), batch.byte_len()), (0, 1, 40));
    let message = batch.get(0).unwrap();
    assert_eq!((message.kind, message.flags), (0x1234, 0x0401));
    let mut expected = vec![2, 32, 0, 0];
    for (length, kind) in [(12_u16, 0x8001_u16), (6, 2)] {
        expected.extend(length.to_ne_bytes());
        expected.extend(kind.to_ne_bytes());
    }
    expected.extend([0, 80, 0, 0]);
    expected.extend(5_u16.to_ne_bytes());
    expected.extend(3_u16.to_ne_bytes());
    expected.extend([7, 0, 0, 0]);
    assert_eq!(message.payload, expected);

    assert_eq!(batch.push(1, 0, |_| ()), 1);
    assert_eq!(batch.get(1).unwrap().payload, []);
    assert_eq!(batch.get(2), None);
    batch.clear();
    assert_eq!((batch.len(), batch.byte_len()), (0, 0));
}

#[test]
fn a_payload_that_is_written_in_place_is_padded() {
    let payload = written(|writer| {
        writer.zeroed(6).copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        writer.attr_u8(3, 7);
        assert_eq!(writer.zeroed(0), []);
    });
    let attribute = [5_u16.to_ne_bytes(), 3_u16.to_ne_bytes()].concat();
    let expected = [&[1, 2, 3, 4, 5, 6, 0, 0][..], &attribute, &[7, 0, 0, 0]];
    assert_eq!(payload, expected.concat());
}

#[test]
fn a_datagram_is_split_into_its_messages() {
    let header = |length: u32, kind: u16| {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&length.to_ne_bytes());
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header
    };
    let datagram = [
        &header(18, 20)[..],
        &[1, 2, 0, 0],
        &header(16, 21),
        &header(17, 22),
    ]
    .concat();
    let mut found = messages(&datagram);
    let first = found.next().unwrap().unwrap();
    assert_eq!((first.kind, first.payload), (20, &[1, 2][..]));
    assert_eq!(found.next().unwrap().unwrap().kind, 21);
    let lying = Malformed::Message {
        length: 17,
        available: 16,
    };
    assert_eq!(found.next(), Some(Err(lying)));
    assert_eq!(found.next(), None);
}

#[test]
fn malformed_attribute_lengths_are_errors() {
    for (payload, length) in [([3, 0, 1, 0], 3), ([0, 0, 1, 0], 0), ([5, 0, 1, 0], 5)] {
        assert_eq!(
            Attributes::new(&payload).collect::<Vec<_>>(),
            [Err(Malformed::Attribute {
                length,
                available: 4
            })]
        );
    }
    assert_eq!(
        Attributes::new(&[4, 0]).collect::<Vec<_>>(),
        [Err(Malformed::Attribute {
            length: 0,
            available: 2
        })]
    );
    assert!(Attributes::after(8, &[0; 4]).is_err());
    assert_eq!(Attributes::after(3, &[0; 3]).unwrap().count(), 0);
}

#[test]
fn an_attribute_of_the_maximum_length_is_accepted() {
    assert_eq!(
        written(|writer| writer.attr(1, &vec![9; 65_531])).len(),
        65_536
    );
    let mut batch = Batch::new();
    batch.push(1, 0, |writer| writer.attr(1, &vec![9; 65_532]));
    assert_eq!((batch.get(0), batch.byte_len()), (None, 0));
}
