//! IP families and transport protocols, with their names and numbers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP family: IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Both IP families, IPv4 first.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the IP family of an address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Returns the loopback address of this family, 127.0.0.1 or `::1`.
    pub const fn localhost(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Self::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A transport protocol with ports. The numeric value is its IANA number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// SCTP.
    Sctp = 132,
}

impl Protocol {
    /// All protocols, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// Returns the IANA protocol number.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns TCP, UDP or SCTP by its IANA number, or `None` for another number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.number() == number)
    }

    /// Returns the protocol by its lower-case name, as in iptables rules, or `None` for another
    /// name.
    pub fn from_lower(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.lower() == name)
    }

    /// Returns the name in lower case, as in iptables rules and ipset entries.
    pub const fn lower(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_is_found_by_its_number_and_by_its_name() {
        for protocol in Protocol::ALL {
            assert_eq!(Protocol::from_number(protocol.number()), Some(protocol));
            assert_eq!(Protocol::from_lower(protocol.lower()), Some(protocol));
        }
        assert_eq!(Protocol::from_number(1), None);
    }
}
