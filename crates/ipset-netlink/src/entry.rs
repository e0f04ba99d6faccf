//! Entries of ipsets: conversion to and from `ipset`'s notation, and to and from netlink
//! attributes.
//!
//! Every entry consists of some of the same few parts, such as an address and a port. So
//! [`EntryParts`] encodes and decodes the entries of all set types.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use netlink_batch::{Attribute, Attributes, Malformed, Writer};

use crate::wire::{NET_BYTEORDER, NOMATCH, address, attr, data};
use crate::{Family, SetType};

/// An entry of a set. Each variant belongs to one [`SetType`].
///
/// An entry is displayed in `ipset`'s notation, such as `10.0.0.1,tcp:80,10.0.0.1`. Two kinds of
/// parts are displayed as numbers: ICMP types, and protocols other than TCP, UDP, SCTP, UDP-Lite
/// and ICMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// An entry of `hash:ip`.
    Ip(IpAddr),
    /// An entry of `hash:ip,port`.
    IpPort {
        /// Address of the entry.
        ip: IpAddr,
        /// Protocol to which the port belongs.
        protocol: IpProtocol,
        /// Port. For ICMP, this number is type × 256 + code.
        port: u16,
    },
    /// An entry of `hash:ip,port` with a mark, for a set that has marks
    /// ([`Definition::with_marks`](crate::Definition::with_marks)). If the set already has an entry
    /// with this address and port, adding this entry replaces that entry's mark. Deleting ignores
    /// the mark.
    IpPortMark {
        /// Address of the entry.
        ip: IpAddr,
        /// Protocol to which the port belongs.
        protocol: IpProtocol,
        /// Port of the entry.
        port: u16,
        /// Mark for packets that match. Must not be [`Mark::NONE`], because the kernel omits this
        /// mark from lists.
        mark: Mark,
    },
    /// An entry of `hash:ip,port,ip`.
    IpPortIp {
        /// First address of the entry.
        ip: IpAddr,
        /// Protocol to which the port belongs.
        protocol: IpProtocol,
        /// Port of the entry.
        port: u16,
        /// Second address, which must have the IP family of `ip`.
        ip2: IpAddr,
    },
    /// An entry of `hash:ip,port,net`.
    IpPortNet {
        /// Address of the entry.
        ip: IpAddr,
        /// Protocol to which the port belongs.
        protocol: IpProtocol,
        /// Port of the entry.
        port: u16,
        /// Network in the IP family of `ip`, with a prefix length of 1 or more. The kernel clears
        /// the host bits, so a list may return a different value. [`IpNet::trunc`] clears them in
        /// advance.
        net: IpNet,
    },
    /// An entry of `bitmap:port`.
    Port(u16),
}

/// A mark for packets that match an entry (`skbmark`). The iptables target `SET --map-mark` changes
/// a packet's mark in two steps: it clears the bits of `mask`, and then flips the bits of `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Bits of the packet's mark that the target flips.
    pub value: u32,
    /// Bits of the packet's mark that the target clears first.
    pub mask: u32,
}

impl Mark {
    /// A mark that does not change packets.
    pub const NONE: Mark = Mark { value: 0, mask: 0 };

    /// Creates a mark that replaces the whole mark of a packet.
    pub const fn whole(value: u32) -> Mark {
        let mask = u32::MAX;
        Mark { value, mask }
    }

    /// Decodes a mark from the kernel's 64-bit number: the high half is the value, the low half the
    /// mask.
    fn from_be_bytes(bytes: [u8; 8]) -> Mark {
        let both = u64::from_be_bytes(bytes);
        let low = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default();
        Mark {
            value: low(both >> 32),
            mask: low(both),
        }
    }

    fn to_be_bytes(self) -> [u8; 8] {
        (u64::from(self.value) << 32 | u64::from(self.mask)).to_be_bytes()
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.value)?;
        match self.mask {
            u32::MAX => Ok(()),
            mask => write!(f, "/{mask:#x}"),
        }
    }
}

impl FromStr for Mark {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Mark, ParseError> {
        let wrong = || ParseError::new(text, "a mark, as in 0x1001 or 0x1/0xff");
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).map_err(|_| wrong()),
            None => text.parse().map_err(|_| wrong()),
        };
        Ok(match text.split_once('/') {
            None => Mark::whole(number(text)?),
            Some((value, mask)) => Mark {
                value: number(value)?,
                mask: number(mask)?,
            },
        })
    }
}

/// Option that precedes the mark in the text of an entry.
const SKBMARK: &str = " skbmark ";

/// IANA number of an IP protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// Protocol number of TCP.
    pub const TCP: IpProtocol = IpProtocol(6);
    /// Protocol number of UDP.
    pub const UDP: IpProtocol = IpProtocol(17);
    /// Protocol number of SCTP.
    pub const SCTP: IpProtocol = IpProtocol(132);

    const ICMP: IpProtocol = IpProtocol(1);
    const ICMP6: IpProtocol = IpProtocol(58);

    const NAMES: [(IpProtocol, &str); 6] = [
        (IpProtocol::TCP, "tcp"),
        (IpProtocol::UDP, "udp"),
        (IpProtocol::SCTP, "sctp"),
        (IpProtocol(136), "udplite"),
        (IpProtocol::ICMP, "icmp"),
        (IpProtocol::ICMP6, "ipv6-icmp"),
    ];
}

impl fmt::Display for IpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(protocol, _)| protocol == self) {
            Some((_, name)) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

impl FromStr for IpProtocol {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<IpProtocol, ParseError> {
        match Self::NAMES.iter().find(|(_, name)| *name == text) {
            Some((protocol, _)) => Ok(*protocol),
            None => text
                .parse()
                .map(IpProtocol)
                .map_err(|_| ParseError::new(text, "an IP protocol")),
        }
    }
}

/// Error about a text that is no entry of the given set type, or no mark or protocol of an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct ParseError {
    text: String,
    wanted: &'static str,
}

impl ParseError {
    fn new(text: &str, wanted: &'static str) -> ParseError {
        ParseError {
            text: text.to_owned(),
            wanted,
        }
    }
}

impl Entry {
    /// Parses an entry in the notation in which [`Entry`] is displayed. `ipset save` writes the
    /// same notation, except that it writes names for the parts that [`Entry`] displays as numbers.
    ///
    /// The caller must give the type, because the text alone may not show it. For example,
    /// `10.0.0.1,tcp:80,10.0.0.2` is an entry of both `hash:ip,port,ip` and `hash:ip,port,net`.
    ///
    /// # Errors
    ///
    /// Fails if a part is malformed. The error names this part, and the notation that the type
    /// requires.
    pub fn parse(text: &str, set_type: SetType) -> Result<Entry, ParseError> {
        let wrong = || ParseError::new(text, set_type.notation());
        let (text, mark) = match text.split_once(SKBMARK) {
            None => (text, None),
            Some((text, mark)) => (text, Some(mark.parse::<Mark>()?)),
        };
        let fields: Vec<&str> = text.split(',').collect();
        let ip = |field: &str| field.parse::<IpAddr>().map_err(|_| wrong());
        if let Some(mark) = mark {
            return match Entry::parse(text, set_type)? {
                Entry::IpPort { ip, protocol, port } => Ok(Entry::IpPortMark {
                    ip,
                    protocol,
                    port,
                    mark,
                }),
                _ => Err(wrong()),
            };
        }
        let entry = match (set_type, fields.as_slice()) {
            (SetType::BitmapPort, [port]) => Entry::Port(port.parse().map_err(|_| wrong())?),
            (SetType::HashIp, [first]) => Entry::Ip(ip(first)?),
            (SetType::HashIpPort, [first, port]) => {
                let (protocol, port) = protocol_port(port)?;
                Entry::IpPort {
                    ip: ip(first)?,
                    protocol,
                    port,
                }
            }
            (SetType::HashIpPortIp, [first, port, second]) => {
                let (protocol, port) = protocol_port(port)?;
                Entry::IpPortIp {
                    ip: ip(first)?,
                    protocol,
                    port,
                    ip2: ip(second)?,
                }
            }
            (SetType::HashIpPortNet, [first, port, second]) => {
                let (protocol, port) = protocol_port(port)?;
                let net = match second.parse() {
                    Ok(net) => net,
                    Err(_) => IpNet::from(ip(second)?),
                };
                Entry::IpPortNet {
                    ip: ip(first)?,
                    protocol,
                    port,
                    net,
                }
            }
            _ => return Err(wrong()),
        };
        Ok(entry)
    }

    /// Returns the set type to which this entry belongs.
    pub const fn set_type(&self) -> SetType {
        match self {
            Entry::Ip(_) => SetType::HashIp,
            Entry::IpPort { .. } | Entry::IpPortMark { .. } => SetType::HashIpPort,
            Entry::IpPortIp { .. } => SetType::HashIpPortIp,
            Entry::IpPortNet { .. } => SetType::HashIpPortNet,
            Entry::Port(_) => SetType::BitmapPort,
        }
    }

    /// Returns true if a set of the given type and family can hold the entry. A bitmap of ports has
    /// no family.
    pub(crate) fn fits(&self, set_type: SetType, family: Option<Family>) -> bool {
        let EntryParts { ip, ip2, .. } = self.parts();
        let of_family = |ip: IpAddr| family == Some(Family::of(ip));
        self.set_type() == set_type && ip.is_none_or(of_family) && ip2.is_none_or(of_family)
    }

    fn parts(&self) -> EntryParts {
        match *self {
            Entry::Ip(ip) => EntryParts {
                ip: Some(ip),
                ..EntryParts::default()
            },
            Entry::IpPort { ip, protocol, port } => EntryParts {
                ip: Some(ip),
                protocol: Some(protocol.0),
                port: Some(port),
                ..EntryParts::default()
            },
            Entry::IpPortMark {
                ip,
                protocol,
                port,
                mark,
            } => EntryParts {
                ip: Some(ip),
                protocol: Some(protocol.0),
                port: Some(port),
                mark: Some(mark),
                ..EntryParts::default()
            },
            Entry::IpPortIp {
                ip,
                protocol,
                port,
                ip2,
            } => EntryParts {
                ip: Some(ip),
                protocol: Some(protocol.0),
                port: Some(port),
                ip2: Some(ip2),
                ..EntryParts::default()
            },
            Entry::IpPortNet {
                ip,
                protocol,
                port,
                net,
            } => EntryParts {
                ip: Some(ip),
                protocol: Some(protocol.0),
                port: Some(port),
                ip2: Some(net.addr()),
                // Like `ipset`, omits the prefix length of a network that has only one address.
                prefix2: (net.prefix_len() < net.max_prefix_len()).then(|| net.prefix_len()),
                ..EntryParts::default()
            },
            Entry::Port(port) => EntryParts {
                port: Some(port),
                ..EntryParts::default()
            },
        }
    }

    /// Writes the entry as one `DATA` attribute with the line number `line`. If the kernel refuses
    /// the entry, its reply names this number.
    pub(crate) fn encode(&self, w: &mut Writer<'_>, line: u32) {
        let parts = self.parts();
        w.nest(attr::DATA, |w| {
            parts.encode(w);
            w.attr_be32(attr::LINENO | NET_BYTEORDER, line);
        });
    }

    /// Parses the attributes inside one `DATA` attribute. Returns `None` if [`Entry`] cannot
    /// express the entry.
    pub(crate) fn decode(
        attributes: Attributes<'_>,
        set_type: SetType,
    ) -> Result<Option<Entry>, Malformed> {
        let mut parts = EntryParts::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                data::IP => parts.ip = decode_ip(&attribute)?,
                data::PORT => parts.port = Some(attribute.be16()?),
                data::PROTO => parts.protocol = Some(attribute.u8()?),
                data::IP2 => parts.ip2 = decode_ip(&attribute)?,
                data::CIDR2 => parts.prefix2 = Some(attribute.u8()?),
                data::SKBMARK => parts.mark = Some(Mark::from_be_bytes(attribute.array()?)),
                data::CADT_FLAGS if attribute.be32()? & NOMATCH != 0 => return Ok(None),
                _ => {}
            }
        }
        Ok(parts.entry(set_type))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Ip(ip) => ip.fmt(f),
            Entry::IpPort { ip, protocol, port } => write!(f, "{ip},{}", Port(*protocol, *port)),
            Entry::IpPortMark {
                ip,
                protocol,
                port,
                mark,
            } => write!(f, "{ip},{}{SKBMARK}{mark}", Port(*protocol, *port)),
            Entry::IpPortIp {
                ip,
                protocol,
                port,
                ip2,
            } => write!(f, "{ip},{},{ip2}", Port(*protocol, *port)),
            Entry::IpPortNet {
                ip,
                protocol,
                port,
                net,
            } => {
                write!(f, "{ip},{},", Port(*protocol, *port))?;
                if net.prefix_len() == net.max_prefix_len() {
                    net.addr().fmt(f)
                } else {
                    net.fmt(f)
                }
            }
            Entry::Port(port) => port.fmt(f),
        }
    }
}

/// A key to look up in a set of any type. It must have exactly the parts that the set's type names,
/// such as address and port for `hash:ip,port`. Kernels since 5.2 refuse a key with other parts as
/// malformed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    /// First address, if the set's type has an address. In a set of networks, the address matches
    /// each network that contains it.
    pub ip: Option<IpAddr>,
    /// Protocol to which the port belongs, if the set's type has a protocol.
    pub protocol: Option<IpProtocol>,
    /// Port of the key, if the set's type has a port.
    pub port: Option<u16>,
    /// Second address, if the set's type has two addresses.
    pub ip2: Option<IpAddr>,
}

impl Key {
    /// Writes the key as one `DATA` attribute, without a line number. A key needs none, and old
    /// kernels would overwrite it in the message.
    pub(crate) fn encode(&self, w: &mut Writer<'_>) {
        let parts = EntryParts {
            ip: self.ip,
            protocol: self.protocol.map(|protocol| protocol.0),
            port: self.port,
            ip2: self.ip2,
            ..EntryParts::default()
        };
        w.nest(attr::DATA, |w| parts.encode(w));
    }
}

/// Parts of an entry of any set type, each `None` if the type lacks it.
#[derive(Default)]
struct EntryParts {
    ip: Option<IpAddr>,
    protocol: Option<u8>,
    port: Option<u16>,
    ip2: Option<IpAddr>,
    prefix2: Option<u8>,
    mark: Option<Mark>,
}

impl EntryParts {
    fn encode(&self, w: &mut Writer<'_>) {
        if let Some(ip) = self.ip {
            encode_ip(w, data::IP, ip);
        }
        if let Some(port) = self.port {
            w.attr_be16(data::PORT | NET_BYTEORDER, port);
        }
        if let Some(protocol) = self.protocol {
            w.attr_u8(data::PROTO, protocol);
        }
        if let Some(ip2) = self.ip2 {
            encode_ip(w, data::IP2, ip2);
        }
        if let Some(prefix) = self.prefix2 {
            w.attr_u8(data::CIDR2, prefix);
        }
        if let Some(mark) = self.mark {
            w.attr(data::SKBMARK | NET_BYTEORDER, &mark.to_be_bytes());
        }
    }

    /// Returns the entry of type `set_type` with these parts, or `None` if a part is missing.
    fn entry(&self, set_type: SetType) -> Option<Entry> {
        if set_type == SetType::BitmapPort {
            return self.port.map(Entry::Port);
        }
        let ip = self.ip?;
        if set_type == SetType::HashIp {
            return Some(Entry::Ip(ip));
        }
        let (protocol, port) = (IpProtocol(self.protocol?), self.port?);
        if set_type == SetType::HashIpPort {
            return Some(match self.mark {
                None | Some(Mark::NONE) => Entry::IpPort { ip, protocol, port },
                Some(mark) => Entry::IpPortMark {
                    ip,
                    protocol,
                    port,
                    mark,
                },
            });
        }
        let ip2 = self.ip2?;
        if set_type == SetType::HashIpPortIp {
            return Some(Entry::IpPortIp {
                ip,
                protocol,
                port,
                ip2,
            });
        }
        let net = match self.prefix2 {
            Some(prefix) => IpNet::new(ip2, prefix).ok()?,
            None => IpNet::from(ip2),
        };
        Some(Entry::IpPortNet {
            ip,
            protocol,
            port,
            net,
        })
    }
}

/// A protocol with a port, displayed as `tcp:80` or `icmp:3/1`.
struct Port(IpProtocol, u16);

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Port(protocol, port) = *self;
        match protocol {
            IpProtocol::ICMP | IpProtocol::ICMP6 => {
                write!(f, "{protocol}:{}/{}", port >> 8, port & 0xff)
            }
            _ => write!(f, "{protocol}:{port}"),
        }
    }
}

fn protocol_port(text: &str) -> Result<(IpProtocol, u16), ParseError> {
    let wrong = || ParseError::new(text, "protocol:port, as in tcp:80");
    let (protocol, port) = text.split_once(':').ok_or_else(wrong)?;
    let port = match port.split_once('/') {
        None => port.parse().map_err(|_| wrong())?,
        Some((icmp_type, code)) => u16::from_be_bytes([
            icmp_type.parse().map_err(|_| wrong())?,
            code.parse().map_err(|_| wrong())?,
        ]),
    };
    Ok((protocol.parse()?, port))
}

fn encode_ip(w: &mut Writer<'_>, kind: u16, ip: IpAddr) {
    w.nest(kind, |w| match ip {
        IpAddr::V4(ip) => w.attr(address::IPV4 | NET_BYTEORDER, &ip.octets()),
        IpAddr::V6(ip) => w.attr(address::IPV6 | NET_BYTEORDER, &ip.octets()),
    });
}

fn decode_ip(attribute: &Attribute<'_>) -> Result<Option<IpAddr>, Malformed> {
    for inner in attribute.nested() {
        let inner = inner?;
        let ip = match inner.kind {
            address::IPV4 => <[u8; 4]>::try_from(inner.payload).ok().map(IpAddr::from),
            address::IPV6 => <[u8; 16]>::try_from(inner.payload).ok().map(IpAddr::from),
            _ => continue,
        };
        return Ok(ip);
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
