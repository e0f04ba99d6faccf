//! Names of packet fields and metadata, and texts of their values, as `nft` prints them.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::expression::{Comparison, CtKey, Direction, FIB_SOURCE, FibResult, MetaKey, TupleKey};
use crate::value::{DataType, Family};

/// Format in which `nft` prints a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Address4,
    Address6,
    Protocol,
    /// Message type of ICMP or ICMPv6.
    IcmpType(&'static [(u8, &'static str)]),
    Port,
    /// Mark, as 8 hexadecimal digits.
    Mark,
    /// Number in host byte order.
    Number,
    /// Number in network byte order.
    Big,
    InterfaceName,
    CtState,
    CtStatus,
    Direction,
    /// Address type (`RTN_*`).
    AddressType,
    /// Presence of a route: `exists` or `missing`.
    Presence,
    /// Packet type (`PACKET_*`).
    PacketType,
    /// Protocol family (`NFPROTO_*`).
    Family,
    EtherType,
    Bytes,
    /// Constant without a type. The expression that uses the constant determines the type.
    Constant(Vec<u8>),
}

const CT_STATE: &[(u32, &str)] = &[
    (1, "invalid"),
    (2, "established"),
    (4, "related"),
    (8, "new"),
    (64, "untracked"),
];
const CT_STATUS: &[(u32, &str)] = &[
    (1, "expected"),
    (2, "seen-reply"),
    (4, "assured"),
    (8, "confirmed"),
    (0x10, "snat"),
    (0x20, "dnat"),
    (0x200, "dying"),
];
const ADDRESS_TYPES: [&str; 9] = [
    "unspec",
    "unicast",
    "local",
    "broadcast",
    "anycast",
    "multicast",
    "blackhole",
    "unreachable",
    "prohibit",
];
const PACKET_TYPES: [&str; 4] = ["host", "broadcast", "multicast", "other"];
const PROTOCOLS: &[(u8, &str)] = &[
    (1, "icmp"),
    (6, "tcp"),
    (17, "udp"),
    (33, "dccp"),
    (50, "esp"),
    (51, "ah"),
    (58, "ipv6-icmp"),
    (132, "sctp"),
    (136, "udplite"),
];
/// Message types of ICMP (RFC 792), named as by `nft`.
const ICMP_TYPES: &[(u8, &str)] = &[
    (0, "echo-reply"),
    (3, "destination-unreachable"),
    (4, "source-quench"),
    (5, "redirect"),
    (8, "echo-request"),
    (9, "router-advertisement"),
    (10, "router-solicitation"),
    (11, "time-exceeded"),
    (12, "parameter-problem"),
    (13, "timestamp-request"),
    (14, "timestamp-reply"),
    (15, "info-request"),
    (16, "info-reply"),
    (17, "address-mask-request"),
    (18, "address-mask-reply"),
];
/// Message types of ICMPv6 (RFC 4443), named as by `nft`.
const ICMPV6_TYPES: &[(u8, &str)] = &[
    (1, "destination-unreachable"),
    (2, "packet-too-big"),
    (3, "time-exceeded"),
    (4, "parameter-problem"),
    (128, "echo-request"),
    (129, "echo-reply"),
    (130, "mld-listener-query"),
    (131, "mld-listener-report"),
    (132, "mld-listener-done"),
    (133, "nd-router-solicit"),
    (134, "nd-router-advert"),
    (135, "nd-neighbor-solicit"),
    (136, "nd-neighbor-advert"),
    (137, "nd-redirect"),
    (138, "router-renumbering"),
    (141, "ind-neighbor-solicit"),
    (142, "ind-neighbor-advert"),
    (143, "mld2-listener-report"),
];

/// Returns the name and format of the message type field, or `None` if `protocol` is neither ICMP
/// nor ICMPv6.
pub(super) fn icmp_type(protocol: &str) -> Option<(&'static str, Kind)> {
    match protocol {
        "icmp" => Some(("icmp type", Kind::IcmpType(ICMP_TYPES))),
        "ipv6-icmp" => Some(("icmpv6 type", Kind::IcmpType(ICMPV6_TYPES))),
        _ => None,
    }
}

impl Kind {
    /// Returns the format of values with the data type `part`.
    pub(super) fn of(part: DataType) -> Self {
        match part {
            DataType::Ipv4Addr => Self::Address4,
            DataType::Ipv6Addr => Self::Address6,
            DataType::InetProto => Self::Protocol,
            DataType::InetService => Self::Port,
            DataType::Mark => Self::Mark,
            DataType::IfName => Self::InterfaceName,
            DataType::Integer => Self::Number,
            DataType::Other { .. } => Self::Bytes,
        }
    }

    /// Returns the format of the same value after a rule has swapped its bytes.
    pub(super) fn turned(self) -> Self {
        match self {
            Self::Number | Self::Mark => Self::Big,
            other => other,
        }
    }

    /// Returns true if `nft` prints the value as a list of named bits.
    pub(super) fn has_flags(&self) -> bool {
        matches!(self, Self::CtState | Self::CtStatus)
    }

    /// Returns the prefix length that `mask` represents. Returns `None` if the value is no address,
    /// or if the mask represents no prefix.
    pub(super) fn prefix(&self, mask: &[u8]) -> Option<u32> {
        if !matches!(self, Self::Address4 | Self::Address6) {
            return None;
        }
        let ones: u32 = mask.iter().map(|byte| byte.leading_ones()).sum();
        let all: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
        let mut rest = mask.iter().skip_while(|byte| **byte == 0xff).skip(1);
        (ones == all && rest.all(|byte| *byte == 0)).then_some(ones)
    }

    /// Renders a comparison of a route's presence: `exists` or `missing`. Returns `None` if the
    /// value has another format than `Presence`.
    pub(super) fn presence(&self, how: Comparison, with: &[u8]) -> Option<&'static str> {
        let is_0 = with.iter().all(|byte| *byte == 0);
        (*self == Self::Presence).then_some(if is_0 == (how == Comparison::Equal) {
            "missing"
        } else {
            "exists"
        })
    }

    /// Renders a value in this format.
    pub(super) fn text(&self, bytes: &[u8]) -> String {
        match self {
            Self::Address4 => match address::<4>(bytes) {
                Some((address, end)) => format!("{}{end}", Ipv4Addr::from(address)),
                None => hex(bytes),
            },
            Self::Address6 => match address::<16>(bytes) {
                Some((address, end)) => format!("{}{end}", Ipv6Addr::from(address)),
                None => hex(bytes),
            },
            Self::Protocol => match bytes.first() {
                Some(number) => named(PROTOCOLS, *number),
                None => hex(bytes),
            },
            Self::IcmpType(names) => match bytes.first() {
                Some(number) => named(names, *number),
                None => hex(bytes),
            },
            Self::Port | Self::Big => big(bytes),
            Self::Mark => match number(bytes) {
                Some(mark) => format!("{mark:#010x}"),
                None => hex(bytes),
            },
            Self::Number => match number(bytes) {
                Some(number) => number.to_string(),
                None => hex(bytes),
            },
            Self::InterfaceName => {
                let end = bytes.iter().position(|byte| *byte == 0);
                let name = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
                // Without a final NUL, the rule compares only the beginning of the interface name.
                let star = if end.is_some() { "" } else { "*" };
                format!("\"{}{star}\"", String::from_utf8_lossy(name))
            }
            Self::CtState => flags(CT_STATE, bytes),
            Self::CtStatus => flags(CT_STATUS, bytes),
            Self::Direction => match bytes.first() {
                Some(0) => "original".to_owned(),
                _ => "reply".to_owned(),
            },
            Self::AddressType => indexed(&ADDRESS_TYPES, number(bytes), bytes),
            Self::PacketType => indexed(&PACKET_TYPES, bytes.first().map(|of| (*of).into()), bytes),
            Self::Family => match bytes.first() {
                Some(2) => "ipv4".to_owned(),
                Some(10) => "ipv6".to_owned(),
                _ => hex(bytes),
            },
            Self::EtherType => match bytes {
                [0x08, 0x00] => "ip".to_owned(),
                [0x86, 0xdd] => "ip6".to_owned(),
                _ => hex(bytes),
            },
            Self::Constant(bytes) => hex(bytes),
            Self::Bytes | Self::Presence => hex(bytes),
        }
    }
}

/// Returns the address in `bytes`, padded with zeros, and a suffix for its text: the prefix length
/// (`/24`) if `bytes` is shorter than an address, otherwise nothing.
fn address<const N: usize>(bytes: &[u8]) -> Option<([u8; N], String)> {
    let mut address = [0; N];
    address.get_mut(..bytes.len())?.copy_from_slice(bytes);
    let end = if bytes.len() < N {
        format!("/{}", bytes.len() * 8)
    } else {
        String::new()
    };
    Some((address, end))
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn big(bytes: &[u8]) -> String {
    if bytes.len() > 16 {
        return hex(bytes);
    }
    let number = bytes
        .iter()
        .fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
    number.to_string()
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    format!("0x{}", digits.collect::<Vec<_>>().concat())
}

fn named(names: &[(u8, &str)], number: u8) -> String {
    let name = names.iter().find(|(of, _)| *of == number);
    name.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

fn indexed(names: &[&str], number: Option<u32>, bytes: &[u8]) -> String {
    let name = number.and_then(|number| names.get(number as usize));
    name.map_or_else(|| hex(bytes), |name| (*name).to_owned())
}

fn flags(names: &[(u32, &str)], bytes: &[u8]) -> String {
    let Some(bits) = number(bytes) else {
        return hex(bytes);
    };
    let set = names.iter().filter(|(bit, _)| bits & bit != 0);
    let words: Vec<&str> = set.map(|(_, name)| *name).collect();
    if words.is_empty() {
        return format!("{bits:#x}");
    }
    words.join(",")
}

pub(super) fn meta(key: MetaKey) -> (&'static str, Kind) {
    match key {
        MetaKey::Len => ("meta length", Kind::Number),
        MetaKey::Protocol => ("meta protocol", Kind::EtherType),
        MetaKey::Priority => ("meta priority", Kind::Number),
        MetaKey::Mark => ("meta mark", Kind::Mark),
        MetaKey::Iif => ("iif", Kind::Number),
        MetaKey::Oif => ("oif", Kind::Number),
        MetaKey::IifName => ("iifname", Kind::InterfaceName),
        MetaKey::OifName => ("oifname", Kind::InterfaceName),
        MetaKey::IifType => ("iiftype", Kind::Bytes),
        MetaKey::OifType => ("oiftype", Kind::Bytes),
        MetaKey::SkUid => ("meta skuid", Kind::Number),
        MetaKey::SkGid => ("meta skgid", Kind::Number),
        MetaKey::NfTrace => ("meta nftrace", Kind::Big),
        MetaKey::NfProto => ("meta nfproto", Kind::Family),
        MetaKey::L4Proto => ("meta l4proto", Kind::Protocol),
        MetaKey::PktType => ("meta pkttype", Kind::PacketType),
        MetaKey::Cpu => ("meta cpu", Kind::Number),
        MetaKey::IifGroup => ("iifgroup", Kind::Number),
        MetaKey::OifGroup => ("oifgroup", Kind::Number),
        MetaKey::Cgroup => ("meta cgroup", Kind::Number),
    }
}

pub(super) fn ct(key: CtKey) -> (&'static str, Kind) {
    match key {
        CtKey::State => ("ct state", Kind::CtState),
        CtKey::Direction => ("ct direction", Kind::Direction),
        CtKey::Status => ("ct status", Kind::CtStatus),
        CtKey::Mark => ("ct mark", Kind::Mark),
    }
}

pub(super) fn tuple(key: TupleKey, direction: Direction) -> (String, Kind) {
    let (key, kind) = match key {
        TupleKey::L3Proto => ("l3proto", Kind::Family),
        TupleKey::L4Proto => ("protocol", Kind::Protocol),
        TupleKey::Source => ("saddr", Kind::Address4),
        TupleKey::Destination => ("daddr", Kind::Address4),
        TupleKey::SourcePort => ("proto-src", Kind::Port),
        TupleKey::DestinationPort => ("proto-dst", Kind::Port),
        TupleKey::SourceIp => ("ip saddr", Kind::Address4),
        TupleKey::DestinationIp => ("ip daddr", Kind::Address4),
        TupleKey::SourceIp6 => ("ip6 saddr", Kind::Address6),
        TupleKey::DestinationIp6 => ("ip6 daddr", Kind::Address6),
    };
    let direction = match direction {
        Direction::Original => "original",
        Direction::Reply => "reply",
    };
    (format!("ct {direction} {key}"), kind)
}

/// Returns the text of a `fib` expression, and the format of its result. `flags` are
/// `NFTA_FIB_F_*`.
pub(super) fn fib(result: FibResult, flags: u32) -> (String, Kind) {
    let side = if flags & FIB_SOURCE != 0 {
        "saddr"
    } else {
        "daddr"
    };
    let parts = [(1 << 2, "mark"), (1 << 3, "iif"), (1 << 4, "oif")];
    let parts = parts.into_iter().filter(|(bit, _)| flags & bit != 0);
    let parts = parts.map(|(_, part)| format!(" . {part}"));
    let parts = parts.collect::<Vec<_>>().concat();
    let is_presence = flags & 1 << 5 != 0;
    let (result, kind) = match result {
        FibResult::AddressType => ("type", Kind::AddressType),
        FibResult::Oif if is_presence => ("oif", Kind::Presence),
        FibResult::Oif => ("oif", Kind::Number),
        FibResult::OifName if is_presence => ("oifname", Kind::Presence),
        FibResult::OifName => ("oifname", Kind::InterfaceName),
    };
    (format!("fib {side}{parts} {result}"), kind)
}

/// Renders a `reject` expression from its type (`NFT_REJECT_*`) and its ICMP code. Omits the
/// default code.
pub(super) fn reject(family: Family, kind: u32, code: u8) -> String {
    match (kind, code, family) {
        (1, ..) => "reject with tcp reset".to_owned(),
        (0, 3, Family::Ip) | (0, 4, Family::Ip6) | (2, 1, _) => "reject".to_owned(),
        (0, code, Family::Ip6) => format!("reject with icmpv6 {code}"),
        (0, code, _) => format!("reject with icmp {code}"),
        (_, code, _) => format!("reject with icmpx {code}"),
    }
}

pub(super) fn per(seconds: u64) -> String {
    match seconds {
        1 => "second".to_owned(),
        60 => "minute".to_owned(),
        3_600 => "hour".to_owned(),
        86_400 => "day".to_owned(),
        604_800 => "week".to_owned(),
        seconds => format!("{seconds} seconds"),
    }
}

/// Returns the name of a kind of objects (`NFT_OBJECT_*`).
pub(super) fn object(kind: u32) -> &'static str {
    match kind {
        1 => "counter",
        2 => "quota",
        3 => "ct helper",
        4 => "limit",
        7 => "ct timeout",
        _ => "object",
    }
}
