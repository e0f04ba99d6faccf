//! Tracked flows: their fields, and how netlink messages encode them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use inet::{IpFamily, Protocol};
use netlink_batch::{Attributes, Malformed, Writer};

use crate::wire::{HEADER, attr, ip, proto, tuple};

/// Source and destination of a flow's packets in one direction, as the packets arrive at this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address and port of the packets.
    pub source: SocketAddr,
    /// Destination address and port of the packets.
    pub destination: SocketAddr,
    /// Conntrack zone that applies to this direction only, or 0 if there is none
    /// (`CTA_TUPLE_ZONE`). iptables sets it by `CT --zone-orig` and `--zone-reply`.
    pub zone: u16,
}

/// A tracked flow.
///
/// Without NAT, `reply` is `original` with source and destination exchanged. With NAT, the source
/// of `reply` is the host that sends the replies, and the destination of `reply` is the client
/// address that the replying host sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Transport protocol of the flow.
    pub protocol: Protocol,
    /// Source and destination of the packets from the client, which opened the flow.
    pub original: Tuple,
    /// Source and destination of the packets that reply to the client.
    pub reply: Tuple,
    /// Conntrack zone that applies to both directions, by default 0 (`CTA_ZONE`).
    pub zone: u16,
    /// Hash of the flow's addresses and of its address in kernel memory (`CTA_ID`). An earlier flow
    /// with the same addresses has a different hash, unless the kernel stored both flows at the
    /// same memory address.
    pub id: u32,
    /// Status bits (`CTA_STATUS`): `IPS_*` of `linux/netfilter/nf_conntrack_common.h`.
    pub status: u32,
    /// Firewall mark (`CTA_MARK`), or 0 if the kernel does not support marks on flows.
    pub mark: u32,
}

impl Flow {
    /// Parses the payload of a message about a flow: `nfgenmsg` and attributes. Returns `None` if
    /// [`Protocol`] has no variant for the flow's protocol. Ignores attributes that have no field
    /// in [`Flow`].
    ///
    /// # Errors
    ///
    /// Fails if a required attribute is missing, or if an attribute has the wrong size.
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

    /// Returns the IP family of the client's packets.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.original.destination.ip())
    }

    /// Writes the attributes with which a delete request identifies exactly this flow.
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
        // A request can name only one zone: the zone of both directions, or else the zone of the
        // original direction.
        if self.zone != 0 {
            w.attr_be16(attr::ZONE, self.zone);
        }
        w.attr_be32(attr::ID, self.id);
    }
}

/// Writes the attributes that identify a flow by the source and destination of its replies.
pub(crate) fn write_reply(
    w: &mut Writer<'_>,
    protocol: Protocol,
    source: SocketAddr,
    destination: SocketAddr,
) {
    w.bytes(&header(IpFamily::of(source.ip())));
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

/// Returns the header `struct nfgenmsg` of a request, with version 0.
pub(crate) fn header(family: IpFamily) -> [u8; HEADER] {
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    let family = match family {
        IpFamily::V4 => AF_INET,
        IpFamily::V6 => AF_INET6,
    };
    [family, 0, 0, 0]
}

fn write_ip(w: &mut Writer<'_>, ip: IpAddr, v4: u16, v6: u16) {
    match ip {
        IpAddr::V4(ip) => w.attr(v4, &ip.octets()),
        IpAddr::V6(ip) => w.attr(v6, &ip.octets()),
    }
}

/// Parses the protocol, source and destination of one direction. Returns `None` for a protocol
/// without ports.
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
