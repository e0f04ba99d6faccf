//! Tracked flows as values, and their bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_batch::{Attributes, Malformed, Writer};

use crate::wire::{HEADER, attr, ip, proto, tuple};

/// An address family; the numbers are `AF_INET` and `AF_INET6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Family {
    /// IPv4.
    Inet = 2,
    /// IPv6.
    Inet6 = 10,
}

/// A transport protocol with ports; the numbers are IANA's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// DCCP.
    Dccp = 33,
    /// SCTP.
    Sctp = 132,
    /// UDP-Lite.
    UdpLite = 136,
}

impl Protocol {
    /// The IANA protocol number.
    pub const fn number(self) -> u8 {
        self as u8
    }

    fn from_number(number: u8) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Dccp, Self::Sctp, Self::UdpLite]
            .into_iter()
            .find(|protocol| protocol.number() == number)
    }
}

/// What packets of one direction look like when they arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Where they come from.
    pub source: SocketAddr,
    /// Where they go.
    pub destination: SocketAddr,
    /// `CTA_TUPLE_ZONE`: a zone that holds for this direction only (iptables' `CT --zone-orig`,
    /// `--zone-reply`), else 0.
    pub zone: u16,
}

/// One tracked flow.
///
/// Without NAT the reply tuple is the original one turned around. With it, the reply's source is
/// who really answers, and the reply's destination the address that the answerer sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The protocol of both tuples.
    pub protocol: Protocol,
    /// Packets from whom opened the flow.
    pub original: Tuple,
    /// Packets of the answer.
    pub reply: Tuple,
    /// `CTA_ZONE`: the zone of both directions, 0 by default.
    pub zone: u16,
    /// `CTA_ID`: tells the flow from an earlier one with the same tuples, unless the kernel put
    /// both at one place in memory: it is a hash of place and tuples.
    pub id: u32,
    /// `CTA_STATUS`: the `IPS_*` bits of `linux/netfilter/nf_conntrack_common.h`.
    pub status: u32,
    /// `CTA_MARK`; 0 too in kernels without marks.
    pub mark: u32,
}

impl Flow {
    /// Reads the payload of a flow's message: `nfgenmsg` and attributes. `None` for a protocol that
    /// is not a [`Protocol`]. Attributes not named in [`Flow`] are passed over.
    ///
    /// # Errors
    ///
    /// An attribute is missing, or of another size than the kernel's.
    pub fn decode(payload: &[u8]) -> Result<Option<Self>, Malformed> {
        let (mut original, mut reply, mut id) = (None, None, None);
        let (mut zone, mut status, mut mark) = (0, 0, 0);
        for attribute in Attributes::after(HEADER, payload)? {
            let attribute = attribute?;
            match attribute.kind {
                attr::TUPLE_ORIG => original = Some(read_tuple(attribute.nested())?),
                attr::TUPLE_REPLY => reply = Some(read_tuple(attribute.nested())?),
                attr::STATUS => status = attribute.be32()?,
                attr::MARK => mark = attribute.be32()?,
                attr::ID => id = Some(attribute.be32()?),
                attr::ZONE => zone = attribute.be16()?,
                _ => {}
            }
        }
        let (Some((protocol, original)), Some((_, reply))) = (
            original.ok_or(missing(attr::TUPLE_ORIG, "CTA_TUPLE_ORIG"))?,
            reply.ok_or(missing(attr::TUPLE_REPLY, "CTA_TUPLE_REPLY"))?,
        ) else {
            return Ok(None);
        };
        Ok(Some(Self {
            protocol,
            original,
            reply,
            zone,
            id: id.ok_or(missing(attr::ID, "CTA_ID"))?,
            status,
            mark,
        }))
    }

    /// The family of its original tuple.
    pub fn family(&self) -> Family {
        family_of(self.original.destination)
    }

    /// Writes what makes a delete message mean this flow and no other.
    pub(crate) fn write_key(&self, w: &mut Writer<'_>) {
        w.bytes(&header(self.family()));
        w.nest(attr::TUPLE_ORIG, |w| {
            let Tuple {
                source,
                destination,
                ..
            } = self.original;
            write_ends(w, self.protocol, source, destination);
            if self.original.zone != 0 {
                w.attr_be16(tuple::ZONE, self.original.zone);
            }
        });
        // The kernel takes one zone, of both directions or of the original one.
        if self.zone != 0 {
            w.attr_be16(attr::ZONE, self.zone);
        }
        w.attr_be32(attr::ID, self.id);
    }
}

fn family_of(address: SocketAddr) -> Family {
    match address {
        SocketAddr::V4(_) => Family::Inet,
        SocketAddr::V6(_) => Family::Inet6,
    }
}

/// Writes what asks for the flow whose answers go from one address to the other.
pub(crate) fn write_reply(
    w: &mut Writer<'_>,
    protocol: Protocol,
    source: SocketAddr,
    destination: SocketAddr,
) {
    w.bytes(&header(family_of(source)));
    w.nest(attr::TUPLE_REPLY, |w| {
        write_ends(w, protocol, source, destination);
    });
}

fn write_ends(w: &mut Writer<'_>, protocol: Protocol, source: SocketAddr, destination: SocketAddr) {
    w.nest(tuple::IP, |w| {
        write_ip(w, source.ip(), ip::V4_SRC, ip::V6_SRC);
        write_ip(w, destination.ip(), ip::V4_DST, ip::V6_DST);
    });
    w.nest(tuple::PROTO, |w| {
        w.attr_u8(proto::NUM, protocol.number());
        w.attr_be16(proto::SRC_PORT, source.port());
        w.attr_be16(proto::DST_PORT, destination.port());
    });
}

/// `struct nfgenmsg`, version 0.
pub(crate) fn header(family: Family) -> [u8; HEADER] {
    [family as u8, 0, 0, 0]
}

fn write_ip(w: &mut Writer<'_>, ip: IpAddr, v4: u16, v6: u16) {
    match ip {
        IpAddr::V4(ip) => w.attr(v4, &ip.octets()),
        IpAddr::V6(ip) => w.attr(v6, &ip.octets()),
    }
}

/// `None` for a protocol without ports.
fn read_tuple(attributes: Attributes<'_>) -> Result<Option<(Protocol, Tuple)>, Malformed> {
    let (mut source, mut destination) = (None::<IpAddr>, None::<IpAddr>);
    let (mut number, mut from, mut to, mut zone) = (None, None, None, 0);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            tuple::IP => {
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    match attribute.kind {
                        ip::V4_SRC => source = Some(Ipv4Addr::from(attribute.array()?).into()),
                        ip::V4_DST => destination = Some(Ipv4Addr::from(attribute.array()?).into()),
                        ip::V6_SRC => source = Some(Ipv6Addr::from(attribute.array()?).into()),
                        ip::V6_DST => destination = Some(Ipv6Addr::from(attribute.array()?).into()),
                        _ => {}
                    }
                }
            }
            tuple::PROTO => {
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    match attribute.kind {
                        proto::NUM => number = Some(attribute.u8()?),
                        proto::SRC_PORT => from = Some(attribute.be16()?),
                        proto::DST_PORT => to = Some(attribute.be16()?),
                        _ => {}
                    }
                }
            }
            tuple::ZONE => zone = attribute.be16()?,
            _ => {}
        }
    }
    let number = number.ok_or(missing(proto::NUM, "CTA_PROTO_NUM"))?;
    let Some(protocol) = Protocol::from_number(number) else {
        return Ok(None);
    };
    let socket = |ip: Option<IpAddr>, port: Option<u16>| {
        let ip = ip.ok_or(missing(tuple::IP, "CTA_TUPLE_IP"))?;
        let port = port.ok_or(missing(tuple::PROTO, "CTA_TUPLE_PROTO"))?;
        Ok::<_, Malformed>(SocketAddr::new(ip, port))
    };
    let tuple = Tuple {
        source: socket(source, from)?,
        destination: socket(destination, to)?,
        zone,
    };
    Ok(Some((protocol, tuple)))
}

const fn missing(kind: u16, name: &'static str) -> Malformed {
    Malformed::Missing { kind, name }
}

#[cfg(test)]
mod tests;
