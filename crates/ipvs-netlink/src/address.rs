//! Addresses and address families in the kernel's binary format.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use inet::IpFamily;
use netlink_batch::{Attribute, Malformed, Writer};

/// Returns the kernel's number of an IP family: `AF_INET` or `AF_INET6`.
pub(crate) fn number(family: IpFamily) -> u16 {
    match family {
        IpFamily::V4 => 2,
        IpFamily::V6 => 10,
    }
}

/// Parses an address family from an attribute.
pub(crate) fn family(attribute: &Attribute<'_>, name: &'static str) -> Result<IpFamily, Malformed> {
    match attribute.u16()? {
        2 => Ok(IpFamily::V4),
        10 => Ok(IpFamily::V6),
        value => Err(Malformed::Value {
            kind: attribute.kind,
            name,
            value: value.into(),
        }),
    }
}

/// Writes an address as `union nf_inet_addr`: 16 bytes, of which IPv4 uses the first four.
pub(crate) fn write(writer: &mut Writer<'_>, kind: u16, address: IpAddr) {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(v4) => bytes
            .iter_mut()
            .zip(v4.octets())
            .for_each(|(to, from)| *to = from),
        IpAddr::V6(v6) => bytes = v6.octets(),
    }
    writer.attr(kind, &bytes);
}

/// Parses an address of the family `family` from an attribute.
pub(crate) fn read(attribute: &Attribute<'_>, family: IpFamily) -> Result<IpAddr, Malformed> {
    let first = |expected| Malformed::Size {
        kind: attribute.kind,
        expected,
        actual: attribute.payload.len(),
    };
    Ok(match family {
        IpFamily::V4 => IpAddr::V4(Ipv4Addr::from(
            *attribute.payload.first_chunk().ok_or_else(|| first(4))?,
        )),
        IpFamily::V6 => IpAddr::V6(Ipv6Addr::from(
            *attribute.payload.first_chunk().ok_or_else(|| first(16))?,
        )),
    })
}
