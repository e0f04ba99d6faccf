//! What rules and elements are made of: registers, values, verdicts, types of data.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use inet::IpFamily;
use smallvec::SmallVec;

/// The name of a table, chain, set or map: at most 255 bytes (`NFT_NAME_MAXLEN` less the NUL).
/// Shared, as one chain is named by its rule, by the elements that go to it and by itself.
pub type Name = Arc<str>;

/// `NFPROTO_*` of a table (linux/netfilter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Family {
    /// IPv4 and IPv6 in one table.
    Inet = 1,
    /// IPv4.
    Ip = 2,
    /// ARP.
    Arp = 3,
    /// Devices, before routing.
    Netdev = 5,
    /// Bridges.
    Bridge = 7,
    /// IPv6.
    Ip6 = 10,
}

impl From<IpFamily> for Family {
    /// That of tables for packets of this family alone.
    fn from(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::Ip,
            IpFamily::V6 => Self::Ip6,
        }
    }
}

impl Family {
    /// Its name, as `nft` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Arp => "arp",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
            Self::Ip6 => "ip6",
        }
    }

    /// Of the kernel's number.
    pub(crate) const fn of_wire(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Inet,
            2 => Self::Ip,
            3 => Self::Arp,
            5 => Self::Netdev,
            7 => Self::Bridge,
            10 => Self::Ip6,
            _ => return None,
        })
    }
}

/// A place of 4 bytes in the register file, 0 to 15. A value of more bytes takes those after it,
/// too; each part of a concatenation begins in a place of its own.
///
/// On the wire it is as the kernel tells it: places 0, 4, 8 and 12 are `NFT_REG_1` to `NFT_REG_4`,
/// the others `NFT_REG32_*` (`nft_dump_register`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Register(u8);

impl Register {
    /// The first place.
    pub const FIRST: Self = Self(0);

    /// The place behind so many bytes from the first, each value before it filled up to 4 bytes;
    /// `None` beyond the last.
    pub const fn at(bytes: usize) -> Option<Self> {
        if bytes < 64 {
            #[allow(clippy::cast_possible_truncation, reason = "below 16")]
            Some(Self((bytes.div_ceil(4)) as u8))
        } else {
            None
        }
    }

    /// `NFT_REG_VERDICT`: no place, but where a verdict goes.
    pub(crate) const VERDICT: u32 = 0;

    /// As the kernel numbers it: `NFT_REG_1` to `NFT_REG_4`, `NFT_REG32_00` to `NFT_REG32_15`.
    pub(crate) const fn wire(self) -> u32 {
        if self.0.is_multiple_of(4) {
            self.0 as u32 / 4 + 1
        } else {
            self.0 as u32 + 8
        }
    }

    /// Of the kernel's number; `None` of the verdict's and beyond the last.
    pub(crate) const fn of_wire(number: u32) -> Option<Self> {
        #[allow(clippy::cast_possible_truncation, reason = "below 24")]
        match number {
            1..=4 => Some(Self((number as u8 - 1) * 4)),
            8..24 => Some(Self(number as u8 - 8)),
            _ => None,
        }
    }

    /// From 0 to 15.
    pub const fn place(self) -> u8 {
        self.0
    }
}

/// Bytes as they stand in registers: addresses and ports in network order, marks and numbers of
/// the kernel's own in its order. Room for an address, a protocol and a port without the heap.
pub type Bytes = SmallVec<[u8; 24]>;

/// Where a packet goes (`NFTA_VERDICT_*`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// It passes this hook's chain.
    Accept,
    /// It ends.
    Drop,
    /// On to the next rule.
    Continue,
    /// Back to where the chain was jumped from.
    Return,
    /// Into a chain, and back.
    Jump(Name),
    /// Into a chain, and not back.
    Goto(Name),
}

/// A type of data as `nft` names and numbers it (`enum datatypes` in its sources): the number
/// stands in a set's key type, six bits for each part of a concatenation, so that `nft` can list
/// its elements. The kernel does not look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataType {
    /// `ipv4_addr`, 4 bytes.
    Ipv4Addr,
    /// `ipv6_addr`, 16 bytes.
    Ipv6Addr,
    /// `inet_proto`, 1 byte.
    InetProto,
    /// `inet_service`, 2 bytes, network order.
    InetService,
    /// `mark`, 4 bytes, host order.
    Mark,
    /// `ifname`, 16 bytes.
    IfName,
    /// `integer`, 4 bytes here.
    Integer,
    /// One that this crate does not know, as read: all of a key's or a value's types at once.
    Other {
        /// `NFTA_SET_KEY_TYPE` or `NFTA_SET_DATA_TYPE`.
        number: u32,
        /// Bytes.
        len: u8,
    },
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4Addr => "ipv4_addr",
            Self::Ipv6Addr => "ipv6_addr",
            Self::InetProto => "inet_proto",
            Self::InetService => "inet_service",
            Self::Mark => "mark",
            Self::IfName => "ifname",
            Self::Integer => "integer",
            Self::Other { number, len } => {
                return write!(f, "number {number}, {len} bytes");
            }
        })
    }
}

impl DataType {
    /// Bytes of a value, not filled up.
    pub const fn len(self) -> usize {
        match self {
            Self::InetProto => 1,
            Self::InetService => 2,
            Self::Ipv4Addr | Self::Mark | Self::Integer => 4,
            Self::Ipv6Addr | Self::IfName => 16,
            Self::Other { len, .. } => len as usize,
        }
    }

    /// `TYPE_*` of `enum datatypes`.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Integer => 4,
            Self::Ipv4Addr => 7,
            Self::Ipv6Addr => 8,
            Self::InetProto => 12,
            Self::InetService => 13,
            Self::Mark => 19,
            Self::IfName => 41,
            Self::Other { number, .. } => number,
        }
    }

    /// The parts of a key of this type and length; [`DataType::Other`] if they are not all known.
    pub(crate) fn parts(number: u32, len: u32) -> Vec<Self> {
        const KNOWN: [DataType; 7] = [
            DataType::Integer,
            DataType::Ipv4Addr,
            DataType::Ipv6Addr,
            DataType::InetProto,
            DataType::InetService,
            DataType::Mark,
            DataType::IfName,
        ];
        let mut parts = Vec::new();
        let mut rest = number;
        while rest != 0 {
            match KNOWN.iter().find(|known| known.number() == rest & 0x3f) {
                Some(known) => parts.push(*known),
                None => break,
            }
            rest >>= 6;
        }
        parts.reverse();
        if rest != 0 || parts.is_empty() || Self::total(&parts) != len {
            let len = u8::try_from(len).unwrap_or(u8::MAX);
            return vec![Self::Other { number, len }];
        }
        parts
    }

    /// Bytes of a key; each part of several is filled up to 4 bytes.
    pub(crate) fn total(parts: &[Self]) -> u32 {
        let len = match parts {
            [only] => only.len(),
            parts => parts
                .iter()
                .map(|part| part.len().next_multiple_of(4))
                .sum(),
        };
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    /// Never.
    pub const fn is_empty(self) -> bool {
        false
    }
}

/// A concatenation of values in the layout of a key: each part filled up with zeros to a multiple
/// of 4 bytes where there is more than one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Concatenation {
    bytes: Bytes,
}

impl Concatenation {
    /// One without parts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts an address behind what is there.
    #[must_use]
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.part(&address.octets()),
            IpAddr::V6(address) => self.part(&address.octets()),
        }
    }

    /// Puts a protocol number (IANA) behind what is there.
    #[must_use]
    pub fn protocol(self, number: u8) -> Self {
        self.part(&[number])
    }

    /// Puts a port behind what is there.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        self.part(&port.to_be_bytes())
    }

    /// Puts these bytes behind what is there.
    #[must_use]
    pub fn part(mut self, part: &[u8]) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend_from_slice(part);
        self
    }

    /// The key. Of several parts, the last is filled up as well.
    pub fn into_key(mut self) -> Bytes {
        if self.bytes.len() > 4 {
            self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        }
        self.bytes
    }
}
