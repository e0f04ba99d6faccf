//! Destinations: the servers over which IPVS balances the connections of a virtual server.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use inet::IpFamily;
use netlink_batch::{Malformed, Writer};

use crate::address;
use crate::statistics::Statistics;
use crate::uapi::{self, dest, top};

/// Identity of a destination within its virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationKey {
    /// Address of the destination.
    pub address: IpAddr,
    /// Port of the destination. Only masquerading translates the port. With any other forwarding
    /// method, this port equals the virtual server's port.
    pub port: u16,
}

impl From<SocketAddr> for DestinationKey {
    fn from(address: SocketAddr) -> Self {
        Self {
            address: address.ip(),
            port: address.port(),
        }
    }
}

impl fmt::Display for DestinationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

impl DestinationKey {
    /// Writes the attributes that identify a destination.
    pub(crate) fn encode(self, writer: &mut Writer<'_>) {
        writer.attr_u16(
            dest::ADDR_FAMILY,
            address::number(IpFamily::of(self.address)),
        );
        address::write(writer, dest::ADDR, self.address);
        writer.attr_be16(dest::PORT, self.port);
    }
}

/// Forwarding method of a destination (`IP_VS_CONN_F_FWD_MASK`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forward {
    /// Masquerading (NAT): IPVS translates the destination address, and reverts the translation in
    /// replies.
    #[default]
    Masq,
    /// Local delivery: the destination is a process on this host.
    Local,
    /// Forwarding in a tunnel, see [`Tunnel`].
    Tunnel,
    /// Direct routing to the destination's link-layer address.
    Route,
    /// Bypass of IPVS, for a cache cluster.
    Bypass,
    /// Forwarding method with an unassigned number: 5 to 7.
    Other(u8),
}

impl Forward {
    fn number(self) -> u32 {
        match self {
            Self::Masq => 0,
            Self::Local => 1,
            Self::Tunnel => 2,
            Self::Route => 3,
            Self::Bypass => 4,
            Self::Other(number) => u32::from(number & 7),
        }
    }
}

impl From<u32> for Forward {
    /// Parses `IPVS_DEST_ATTR_FWD_METHOD`. Ignores the higher bits, which are connection flags.
    fn from(number: u32) -> Self {
        match number & 7 {
            0 => Self::Masq,
            1 => Self::Local,
            2 => Self::Tunnel,
            3 => Self::Route,
            4 => Self::Bypass,
            5 => Self::Other(5),
            6 => Self::Other(6),
            _ => Self::Other(7),
        }
    }
}

/// Encapsulation for [`Forward::Tunnel`] (Linux 5.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// Type of the tunnel (`IP_VS_CONN_F_TUNNEL_TYPE_*`): 0 IPIP, 1 GUE, 2 GRE.
    pub kind: u8,
    /// UDP port of a GUE tunnel.
    pub port: u16,
    /// Checksum flags (`IP_VS_TUNNEL_ENCAP_FLAG_*`): 1 checksum, 2 remote checksum.
    pub flags: u16,
}

/// Configuration of a destination to add or change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Identity of the destination.
    pub key: DestinationKey,
    /// Forwarding method of the destination.
    pub forward: Forward,
    /// Weight: the destination's share of new connections, from 0 to 2,147,483,647. With 0, the
    /// destination gets no new connections, and existing connections continue.
    pub weight: u32,
    /// Number of connections at which the destination stops receiving new connections, or 0 for no
    /// limit.
    pub upper_threshold: u32,
    /// Number of connections below which the destination receives new connections again, or 0 for
    /// three quarters of `upper_threshold`.
    pub lower_threshold: u32,
    /// Encapsulation of packets to the destination, for [`Forward::Tunnel`].
    pub tunnel: Tunnel,
}

impl Destination {
    /// Returns a destination with masquerading and without thresholds.
    pub fn new(key: impl Into<DestinationKey>, weight: u32) -> Self {
        Self {
            key: key.into(),
            forward: Forward::Masq,
            weight,
            upper_threshold: 0,
            lower_threshold: 0,
            tunnel: Tunnel::default(),
        }
    }

    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        self.key.encode(writer);
        writer.attr_u32(dest::FWD_METHOD, self.forward.number());
        writer.attr_u32(dest::WEIGHT, self.weight);
        writer.attr_u8(dest::TUN_TYPE, self.tunnel.kind);
        writer.attr_be16(dest::TUN_PORT, self.tunnel.port);
        writer.attr_u16(dest::TUN_FLAGS, self.tunnel.flags);
        writer.attr_u32(dest::U_THRESH, self.upper_threshold);
        writer.attr_u32(dest::L_THRESH, self.lower_threshold);
    }
}

/// A destination in the kernel, with its connections and counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DestinationEntry {
    /// Configuration of the destination.
    pub destination: Destination,
    /// Number of established connections.
    pub active: u32,
    /// Number of connections in other states: opening, closing, or UDP.
    pub inactive: u32,
    /// Number of persistence templates, which bind clients to this destination.
    pub persistent: u32,
    /// Counters of the destination.
    pub statistics: Statistics,
}

impl DestinationEntry {
    /// Parses an `IPVS_CMD_NEW_DEST` message that begins with its `genlmsghdr`. `family` is the
    /// virtual server's family. Kernels before 3.18 do not send the destination's family, so
    /// `family` then also stands for the destination's family.
    ///
    /// # Errors
    ///
    /// Fails if an attribute is missing or has the wrong size.
    pub fn decode(payload: &[u8], mut family: IpFamily) -> Result<Self, Malformed> {
        let (mut address, mut port, mut forward, mut weight) = (None, None, None, None);
        let (mut upper_threshold, mut lower_threshold, mut tunnel) = (0, 0, Tunnel::default());
        let (mut active, mut inactive, mut persistent) = (0, 0, 0);
        let (mut narrow, mut wide) = (None, None);
        for attribute in uapi::nested(payload, top::DEST, "IPVS_CMD_ATTR_DEST")? {
            let attribute = attribute?;
            match attribute.kind {
                dest::ADDR_FAMILY => {
                    family = address::family(&attribute, "IPVS_DEST_ATTR_ADDR_FAMILY")?;
                }
                dest::ADDR => address = Some(attribute),
                dest::PORT => port = Some(attribute.be16()?),
                dest::FWD_METHOD => forward = Some(Forward::from(attribute.u32()?)),
                dest::WEIGHT => weight = Some(attribute.u32()?),
                dest::U_THRESH => upper_threshold = attribute.u32()?,
                dest::L_THRESH => lower_threshold = attribute.u32()?,
                dest::ACTIVE_CONNS => active = attribute.u32()?,
                dest::INACT_CONNS => inactive = attribute.u32()?,
                dest::PERSIST_CONNS => persistent = attribute.u32()?,
                dest::TUN_TYPE => tunnel.kind = attribute.u8()?,
                dest::TUN_PORT => tunnel.port = attribute.be16()?,
                dest::TUN_FLAGS => tunnel.flags = attribute.u16()?,
                dest::STATS => narrow = Some(Statistics::decode(attribute.nested())?),
                dest::STATS64 => wide = Some(Statistics::decode(attribute.nested())?),
                _ => {}
            }
        }
        let missing = |kind, name| Malformed::Missing { kind, name };
        let address = address.ok_or_else(|| missing(dest::ADDR, "IPVS_DEST_ATTR_ADDR"))?;
        Ok(Self {
            destination: Destination {
                key: DestinationKey {
                    address: address::read(&address, family)?,
                    port: port.ok_or_else(|| missing(dest::PORT, "IPVS_DEST_ATTR_PORT"))?,
                },
                forward: forward
                    .ok_or_else(|| missing(dest::FWD_METHOD, "IPVS_DEST_ATTR_FWD_METHOD"))?,
                weight: weight.ok_or_else(|| missing(dest::WEIGHT, "IPVS_DEST_ATTR_WEIGHT"))?,
                upper_threshold,
                lower_threshold,
                tunnel,
            },
            active,
            inactive,
            persistent,
            statistics: wide.or(narrow).unwrap_or_default(),
        })
    }
}
