//! Virtual servers (the kernel's services): a virtual address, or a firewall mark, whose
//! connections IPVS balances over destinations.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use bitflags::bitflags;
use inet::IpFamily;
use netlink_batch::{Attribute, Malformed, Writer};

use crate::address;
use crate::name::Name;
use crate::statistics::Statistics;
use crate::uapi::{self, service, top};

/// IP protocol of a virtual server, by its IANA number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// TCP (`IPPROTO_TCP`).
    pub const TCP: Self = Self(6);
    /// UDP (`IPPROTO_UDP`).
    pub const UDP: Self = Self(17);
    /// SCTP (`IPPROTO_SCTP`).
    pub const SCTP: Self = Self(132);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TCP => f.pad("TCP"),
            Self::UDP => f.pad("UDP"),
            Self::SCTP => f.pad("SCTP"),
            Self(number) => write!(f, "protocol {number}"),
        }
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Key that identifies a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceKey {
    /// Virtual server for packets to a virtual address and port.
    Address {
        /// Protocol of the packets: TCP, UDP or SCTP.
        protocol: Protocol,
        /// Virtual address that clients connect to.
        address: IpAddr,
        /// Virtual port. 0 means all ports, and only persistent virtual servers may use it.
        port: u16,
    },
    /// Virtual server for packets that a firewall rule has marked.
    Fwmark {
        /// Family of the packets, IPv4 or IPv6.
        family: IpFamily,
        /// Firewall mark of the packets. The mark must not be 0.
        mark: u32,
    },
}

impl ServiceKey {
    /// Returns the key of a virtual server with an address and port.
    pub fn new(protocol: Protocol, address: IpAddr, port: u16) -> Self {
        Self::Address {
            protocol,
            address,
            port,
        }
    }

    /// Returns the address family of the virtual server.
    pub fn family(&self) -> IpFamily {
        match *self {
            Self::Address { address, .. } => IpFamily::of(address),
            Self::Fwmark { family, .. } => family,
        }
    }

    /// Writes the attributes that identify a virtual server.
    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        writer.attr_u16(service::AF, address::number(self.family()));
        match *self {
            Self::Address {
                protocol,
                address,
                port,
            } => {
                writer.attr_u16(service::PROTOCOL, protocol.0.into());
                address::write(writer, service::ADDR, address);
                writer.attr_be16(service::PORT, port);
            }
            Self::Fwmark { mark, .. } => writer.attr_u32(service::FWMARK, mark),
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Address {
                protocol,
                address,
                port,
            } => {
                write!(f, "{protocol} {}", SocketAddr::new(address, port))
            }
            Self::Fwmark {
                family: IpFamily::V4,
                mark,
            } => write!(f, "FWM {mark}"),
            Self::Fwmark {
                family: IpFamily::V6,
                mark,
            } => write!(f, "FWM {mark} IPv6"),
        }
    }
}

bitflags! {
    /// Flags of a virtual server (`IP_VS_SVC_F_*`). Values of this type keep unnamed bits.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Flags: u32 {
        /// Flag of persistence: new connections of a client go to the same destination as the
        /// client's first connection.
        const PERSISTENT = 0x1;
        /// Flag that the kernel sets on every virtual server. The flag has no effect in a request.
        const HASHED = 0x2;
        /// Flag that makes the kernel schedule every packet separately (UDP).
        const ONE_PACKET = 0x4;
        /// First flag for the scheduler. With this flag, `sh` and `mh` choose another destination
        /// if the chosen destination has weight 0 or has reached its upper threshold.
        const SCHED_1 = 0x8;
        /// Second flag for the scheduler. With this flag, `sh` and `mh` also hash the source port.
        const SCHED_2 = 0x10;
        /// Third flag for the scheduler (`IP_VS_SVC_F_SCHED3`).
        const SCHED_3 = 0x20;

        const _ = !0;
    }
}

/// Configuration of a virtual server to add or change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Service {
    /// Key of the virtual server. A change cannot alter the key.
    pub key: ServiceKey,
    /// Scheduler of the virtual server.
    pub scheduler: Name,
    /// Flags of the virtual server. A change of the virtual server replaces all of its flags.
    pub flags: Flags,
    /// Time in seconds for which a client that has no connections keeps its destination. Applies
    /// only with [`Flags::PERSISTENT`].
    pub timeout: u32,
    /// Mask that decides which addresses count as one client for persistence. The kernel accepts
    /// only these values:
    ///
    /// * IPv4: a netmask as a number (255.255.255.0 is 0xffffff00);
    /// * IPv6: a prefix length from 1 to 128.
    pub netmask: u32,
    /// Persistence engine (`sip`) that identifies clients, if any.
    pub persistence_engine: Option<Name>,
}

impl Service {
    /// Returns a virtual server without persistence. Every address counts as a separate client.
    pub fn new(key: ServiceKey, scheduler: Name) -> Self {
        Self {
            key,
            scheduler,
            flags: Flags::empty(),
            timeout: 0,
            netmask: Self::single_client(key.family()),
            persistence_engine: None,
        }
    }

    /// Returns the netmask with which every address counts as a separate client.
    pub fn single_client(family: IpFamily) -> u32 {
        match family {
            IpFamily::V4 => u32::MAX,
            IpFamily::V6 => 128,
        }
    }

    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        self.key.encode(writer);
        writer.attr_str(service::SCHED_NAME, self.scheduler.as_str());
        if let Some(engine) = &self.persistence_engine {
            writer.attr_str(service::PE_NAME, engine.as_str());
        }
        // The value is a struct ip_vs_flags: the flags, and a mask of the valid bits. All bits are
        // valid.
        let [f0, f1, f2, f3] = self.flags.bits().to_ne_bytes();
        writer.attr(service::FLAGS, &[f0, f1, f2, f3, 0xff, 0xff, 0xff, 0xff]);
        writer.attr_u32(service::TIMEOUT, self.timeout);
        match self.key.family() {
            IpFamily::V4 => writer.attr_be32(service::NETMASK, self.netmask),
            IpFamily::V6 => writer.attr_u32(service::NETMASK, self.netmask),
        }
    }
}

/// A virtual server in the kernel, with its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceEntry {
    /// Configuration of the virtual server. The kernel has added [`Flags::HASHED`].
    pub service: Service,
    /// Counters of the virtual server.
    pub statistics: Statistics,
}

impl ServiceEntry {
    /// Parses an `IPVS_CMD_NEW_SERVICE` message that begins with its `genlmsghdr`.
    ///
    /// # Errors
    ///
    /// Fails if an attribute is missing or has the wrong size.
    pub fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let (mut family, mut protocol, mut address, mut port) = (None, None, None, None);
        let (mut mark, mut scheduler, mut engine, mut netmask) = (None, None, None, None);
        let (mut flags, mut timeout) = (Flags::empty(), 0);
        let (mut narrow, mut wide) = (None, None);
        for attribute in uapi::nested(payload, top::SERVICE, "IPVS_CMD_ATTR_SERVICE")? {
            let attribute = attribute?;
            match attribute.kind {
                service::AF => {
                    family = Some(address::family(&attribute, "IPVS_SVC_ATTR_AF")?);
                }
                service::PROTOCOL => protocol = Some(attribute.u16()?),
                service::ADDR => address = Some(attribute),
                service::PORT => port = Some(attribute.be16()?),
                service::FWMARK => mark = Some(attribute.u32()?),
                service::SCHED_NAME => scheduler = Some(name(&attribute)?),
                service::PE_NAME => engine = Some(name(&attribute)?),
                service::FLAGS => {
                    let [f0, f1, f2, f3, ..] = attribute.array::<8>()?;
                    flags = Flags::from_bits_retain(u32::from_ne_bytes([f0, f1, f2, f3]));
                }
                service::TIMEOUT => timeout = attribute.u32()?,
                service::NETMASK => netmask = Some(attribute),
                service::STATS => narrow = Some(Statistics::decode(attribute.nested())?),
                service::STATS64 => wide = Some(Statistics::decode(attribute.nested())?),
                _ => {}
            }
        }
        let missing = |kind, name| Malformed::Missing { kind, name };
        let family = family.ok_or_else(|| missing(service::AF, "IPVS_SVC_ATTR_AF"))?;
        let key = if let Some(mark) = mark {
            ServiceKey::Fwmark { family, mark }
        } else {
            let (kind, name) = (service::PROTOCOL, "IPVS_SVC_ATTR_PROTOCOL");
            let protocol = protocol.ok_or_else(|| missing(kind, name))?;
            let value = protocol.into();
            let protocol =
                u8::try_from(protocol).map_err(|_| Malformed::Value { kind, name, value })?;
            let address = address.ok_or_else(|| missing(service::ADDR, "IPVS_SVC_ATTR_ADDR"))?;
            ServiceKey::Address {
                protocol: Protocol(protocol),
                address: address::read(&address, family)?,
                port: port.ok_or_else(|| missing(service::PORT, "IPVS_SVC_ATTR_PORT"))?,
            }
        };
        Ok(Self {
            service: Service {
                key,
                scheduler: scheduler
                    .ok_or_else(|| missing(service::SCHED_NAME, "IPVS_SVC_ATTR_SCHED_NAME"))?,
                flags,
                timeout,
                netmask: match (netmask, family) {
                    (None, _) => Service::single_client(family),
                    (Some(mask), IpFamily::V4) => mask.be32()?,
                    (Some(length), IpFamily::V6) => length.u32()?,
                },
                persistence_engine: engine,
            },
            statistics: wide.or(narrow).unwrap_or_default(),
        })
    }
}

fn name(attribute: &Attribute<'_>) -> Result<Name, Malformed> {
    attribute.string()?.parse().map_err(|_| Malformed::Text {
        kind: attribute.kind,
    })
}
