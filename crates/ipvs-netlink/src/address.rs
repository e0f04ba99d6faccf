//! Addresses as the kernel holds them, and their families.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_batch::{Attribute, Malformed, Writer};

/// `AF_INET` or `AF_INET6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressFamily {
    /// IPv4.
    Inet,
    /// IPv6.
    Inet6,
}

impl AddressFamily {
    pub(crate) fn number(self) -> u16 {
        match self {
            Self::Inet => 2,
            Self::Inet6 => 10,
        }
    }

    pub(crate) fn decode(attribute: &Attribute<'_>, name: &'static str) -> Result<Self, Malformed> {
        match attribute.u16()? {
            2 => Ok(Self::Inet),
            10 => Ok(Self::Inet6),
            value => Err(Malformed::Value {
                kind: attribute.kind,
                name,
                value: value.into(),
            }),
        }
    }
}

impl From<IpAddr> for AddressFamily {
    fn from(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Self::Inet
        } else {
            Self::Inet6
        }
    }
}

/// `union nf_inet_addr`: 16 bytes, of which IPv4 has the first four.
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

/// Reads one of this family.
pub(crate) fn read(attribute: &Attribute<'_>, family: AddressFamily) -> Result<IpAddr, Malformed> {
    let first = |expected| Malformed::Size {
        kind: attribute.kind,
        expected,
        actual: attribute.payload.len(),
    };
    Ok(match family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::from(
            *attribute.payload.first_chunk().ok_or_else(|| first(4))?,
        )),
        AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::from(
            *attribute.payload.first_chunk().ok_or_else(|| first(16))?,
        )),
    })
}
