//! Basic values of rules and elements: registers, bytes, verdicts, data types.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use inet::IpFamily;
use smallvec::SmallVec;

/// Name of a table, chain, set or map, at most 255 bytes (`NFT_NAME_MAXLEN` without the NUL). A
/// chain, its rules and all elements that refer to the chain share one copy of its name.
pub type Name = Arc<str>;

/// Family of a table (`NFPROTO_*`, linux/netfilter.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Family {
    /// Table for IPv4 packets and IPv6 packets.
    Inet = 1,
    /// Table for IPv4 packets only.
    Ip = 2,
    /// Table for ARP packets.
    Arp = 3,
    /// Table for packets of network devices, before routing.
    Netdev = 5,
    /// Table for frames on bridges.
    Bridge = 7,
    /// Table for IPv6 packets only.
    Ip6 = 10,
}

impl From<IpFamily> for Family {
    /// Returns the table family for packets of only one IP family: `ip` or `ip6`.
    fn from(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::Ip,
            IpFamily::V6 => Self::Ip6,
        }
    }
}

impl Family {
    /// Returns `nft`'s name for the family.
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

    /// Returns the family with the kernel's number, or `None` if the number is unknown.
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

/// A register: one of 16 slots of 4 bytes. A longer value also occupies the next slots. Each part
/// of a concatenation begins in a new slot.
///
/// Netlink messages number the slots as `nft_dump_register` does: slots 0, 4, 8 and 12 are
/// `NFT_REG_1` to `NFT_REG_4`. All other slots are `NFT_REG32_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Register(u8);

impl Register {
    /// The first slot (`NFT_REG_1`).
    pub const FIRST: Self = Self(0);

    /// Returns the first slot after `bytes` bytes of values and padding, or `None` if no slot is
    /// left.
    pub const fn at(bytes: usize) -> Option<Self> {
        if bytes < 64 {
            #[allow(clippy::cast_possible_truncation, reason = "below 16")]
            Some(Self((bytes.div_ceil(4)) as u8))
        } else {
            None
        }
    }

    /// Number of the verdict register in messages (`NFT_REG_VERDICT`). It is not one of the slots.
    pub(crate) const VERDICT: u32 = 0;

    /// Returns the slot's number in messages: `NFT_REG_1` to `NFT_REG_4`, or `NFT_REG32_00` to
    /// `NFT_REG32_15`.
    pub(crate) const fn wire(self) -> u32 {
        if self.0.is_multiple_of(4) {
            self.0 as u32 / 4 + 1
        } else {
            self.0 as u32 + 8
        }
    }

    /// Returns the slot with the number `number` in messages. Returns `None` for the verdict
    /// register and for invalid numbers.
    pub(crate) const fn of_wire(number: u32) -> Option<Self> {
        #[allow(clippy::cast_possible_truncation, reason = "below 24")]
        match number {
            1..=4 => Some(Self((number as u8 - 1) * 4)),
            8..24 => Some(Self(number as u8 - 8)),
            _ => None,
        }
    }

    /// Returns the slot's number, 0 to 15.
    pub const fn place(self) -> u8 {
        self.0
    }
}

/// Bytes in registers: addresses and ports in network order, marks and generated numbers in host
/// order. The inline size is enough for a key of address, protocol and port.
pub type Bytes = SmallVec<[u8; 24]>;

/// Decision about a packet (`NFTA_VERDICT_*`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Accepts the packet in this base chain. Later base chains still see the packet.
    Accept,
    /// Drops the packet.
    Drop,
    /// Continues with the next rule of the chain.
    Continue,
    /// Ends this chain, and continues in the chain that called it.
    Return,
    /// Continues in the named chain, and returns to this chain after the named chain's last rule.
    Jump(Name),
    /// Continues in the named chain without returning to this chain.
    Goto(Name),
}

/// Data type, with the name and number that `nft` uses (`enum datatypes` in its sources). The
/// number of a concatenated type has six bits for each part. `nft` needs the types to list
/// elements. The kernel ignores the types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataType {
    /// IPv4 address (`ipv4_addr`), 4 bytes.
    Ipv4Addr,
    /// IPv6 address (`ipv6_addr`), 16 bytes.
    Ipv6Addr,
    /// Protocol (`inet_proto`), 1 byte.
    InetProto,
    /// Port (`inet_service`), 2 bytes, network order.
    InetService,
    /// Mark (`mark`), 4 bytes, host order.
    Mark,
    /// Interface name (`ifname`), 16 bytes.
    IfName,
    /// Number (`integer`). In this crate, always 4 bytes.
    Integer,
    /// A type that this crate does not support. The kernel has one type number for a whole key or
    /// value, so this variant stands for all of its parts.
    Other {
        /// Number of the type (`NFTA_SET_KEY_TYPE` or `NFTA_SET_DATA_TYPE`).
        number: u32,
        /// Length of a value in bytes.
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
    /// Returns the length of a value in bytes, without padding.
    pub const fn len(self) -> usize {
        match self {
            Self::InetProto => 1,
            Self::InetService => 2,
            Self::Ipv4Addr | Self::Mark | Self::Integer => 4,
            Self::Ipv6Addr | Self::IfName => 16,
            Self::Other { len, .. } => len as usize,
        }
    }

    /// Returns the number of the type (`TYPE_*` of `enum datatypes`).
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

    /// Splits the type number of a key or value into the types of its parts. Returns a single
    /// [`DataType::Other`] if a part has an unsupported type, or if the lengths do not add up to
    /// `len`.
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

    /// Returns the length of a key in bytes. In a concatenation, each part is padded to 4 bytes.
    pub fn key_len(parts: &[Self]) -> usize {
        match parts {
            [only] => only.len(),
            parts => parts
                .iter()
                .map(|part| part.len().next_multiple_of(4))
                .sum(),
        }
    }

    pub(crate) fn total(parts: &[Self]) -> u32 {
        u32::try_from(Self::key_len(parts)).unwrap_or(u32::MAX)
    }

    /// Returns false, because every type has a length.
    pub const fn is_empty(self) -> bool {
        false
    }
}

/// Builder of a key: concatenates values in the kernel's layout. If a key has several values, each
/// of them is padded with zeros to a multiple of 4 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Concatenation {
    bytes: Bytes,
}

impl Concatenation {
    /// Creates a concatenation without values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an IPv4 or IPv6 address.
    #[must_use]
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.part(&address.octets()),
            IpAddr::V6(address) => self.part(&address.octets()),
        }
    }

    /// Appends an IANA protocol number.
    #[must_use]
    pub fn protocol(self, number: u8) -> Self {
        self.part(&[number])
    }

    /// Appends a port in network order.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        self.part(&port.to_be_bytes())
    }

    /// Appends a part with the bytes `part`, which may have any length.
    #[must_use]
    pub fn part(mut self, part: &[u8]) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend_from_slice(part);
        self
    }

    /// Returns the key. Pads the last part of a key that has several parts.
    pub fn into_key(mut self) -> Bytes {
        if self.bytes.len() > 4 {
            self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        }
        self.bytes
    }
}
