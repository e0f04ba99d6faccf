use netlink_batch::Batch;
use proptest::prelude::*;

use super::*;

/// Generates any entry that a set in the kernel may have.
fn entries() -> impl Strategy<Value = Entry> {
    let ip = any::<IpAddr>;
    let net = (any::<IpAddr>(), 0..=128_u8).prop_map(|(ip, prefix)| {
        let most = if ip.is_ipv4() { 32 } else { 128 };
        IpNet::new(ip, prefix.min(most)).unwrap().trunc()
    });
    let mark = || {
        let mark = any::<(u32, u32)>().prop_map(|(value, mask)| Mark { value, mask });
        mark.prop_filter("the kernel lists no empty mark", |mark| *mark != Mark::NONE)
    };
    let port = || (any::<u8>().prop_map(IpProtocol), any::<u16>());
    prop_oneof![
        ip().prop_map(Entry::Ip),
        (ip(), port()).prop_map(|(ip, (protocol, port))| Entry::IpPort { ip, protocol, port }),
        (ip(), port(), ip()).prop_map(|(ip, (protocol, port), ip2)| Entry::IpPortIp {
            ip,
            protocol,
            port,
            ip2
        }),
        (ip(), port(), net).prop_map(|(ip, (protocol, port), net)| Entry::IpPortNet {
            ip,
            protocol,
            port,
            net
        }),
        (ip(), port(), mark()).prop_map(|(ip, (protocol, port), mark)| Entry::IpPortMark {
            ip,
            protocol,
            port,
            mark
        }),
        any::<u16>().prop_map(Entry::Port),
    ]
}

fn bytes(entry: &Entry) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.push(0, 0, |w| entry.encode(w, 7));
    batch.get(0).unwrap().payload.to_vec()
}

fn decode(bytes: &[u8], set_type: SetType) -> Result<Option<Entry>, Malformed> {
    let data = Attributes::new(bytes).next().unwrap()?;
    Entry::decode(data.nested(), set_type)
}

proptest! {
    #[test]
    fn encoded_entries_decode_to_the_same_entries(entry in entries()) {
        prop_assert_eq!(decode(&bytes(&entry), entry.set_type()), Ok(Some(entry)));
        prop_assert_eq!(Entry::parse(&entry.to_string(), entry.set_type()), Ok(entry));
    }

    #[test]
    fn arbitrary_bytes_never_panic_the_entry_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..80), of in 0..5_usize) {
        let _ = Entry::decode(Attributes::new(&bytes), SetType::ALL[of]);
    }

    #[test]
    fn damaged_entries_never_panic_the_decoder(entry in entries(), at in 0..60_usize, byte: u8) {
        let mut bytes = bytes(&entry);
        if let Some(there) = bytes.get_mut(at) {
            *there = byte;
        }
        for set_type in SetType::ALL {
            let _ = decode(&bytes, set_type);
        }
    }

    #[test]
    fn arbitrary_text_never_panics_the_entry_parser(text: String, of in 0..5_usize) {
        let _ = Entry::parse(&text, SetType::ALL[of]);
    }
}

#[test]
fn entries_are_written_in_ipset_notation() {
    for (text, set_type) in [
        ("10.0.0.1", SetType::HashIp),
        ("fd00::1,sctp:9999", SetType::HashIpPort),
        ("10.0.0.1,icmp:3/1", SetType::HashIpPort),
        ("10.0.0.1,89:0", SetType::HashIpPort),
        ("10.0.0.1,tcp:80 skbmark 0x1001", SetType::HashIpPort),
        ("10.0.0.1,tcp:80 skbmark 0x1/0xff", SetType::HashIpPort),
        ("10.0.0.1,tcp:80,10.0.0.1", SetType::HashIpPortIp),
        ("10.0.0.1,udp:53,10.1.2.7", SetType::HashIpPortNet),
        ("10.0.0.1,udp:53,10.1.0.0/16", SetType::HashIpPortNet),
        ("30000", SetType::BitmapPort),
    ] {
        assert_eq!(Entry::parse(text, set_type).unwrap().to_string(), text);
    }
    for (text, set_type, error) in [
        ("10.0.0", SetType::HashIp, r#""10.0.0" is not an address"#),
        (
            "10.0.0.1",
            SetType::HashIpPort,
            r#""10.0.0.1" is not address,protocol:port"#,
        ),
        (
            "10.0.0.1,80",
            SetType::HashIpPort,
            r#""80" is not protocol:port, as in tcp:80"#,
        ),
        (
            "10.0.0.1,tcpp:80",
            SetType::HashIpPort,
            r#""tcpp" is not an IP protocol"#,
        ),
        (
            "10.0.0.1,tcp:80 skbmark x",
            SetType::HashIpPort,
            r#""x" is not a mark, as in 0x1001 or 0x1/0xff"#,
        ),
        ("65536", SetType::BitmapPort, r#""65536" is not a port"#),
        (
            "10.0.0.1,tcp:80,10.0.0.0/33",
            SetType::HashIpPortNet,
            r#""10.0.0.1,tcp:80,10.0.0.0/33" is not address,protocol:port,network"#,
        ),
    ] {
        assert_eq!(Entry::parse(text, set_type).unwrap_err().to_string(), error);
    }
}

#[test]
fn an_entry_fits_only_its_own_set_type_and_family() {
    let four = Entry::parse("10.0.0.1,tcp:80,10.0.0.1", SetType::HashIpPortIp).unwrap();
    assert!(four.fits(SetType::HashIpPortIp, Some(Family::Inet)));
    assert!(!four.fits(SetType::HashIpPortIp, Some(Family::Inet6)));
    assert!(!four.fits(SetType::HashIpPort, Some(Family::Inet)));
    let mixed = Entry::parse("10.0.0.1,tcp:80,fd00::1", SetType::HashIpPortIp).unwrap();
    assert!(!mixed.fits(SetType::HashIpPortIp, Some(Family::Inet)));
    assert!(Entry::Port(1).fits(SetType::BitmapPort, None));
}
