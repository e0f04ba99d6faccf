//! Packet data as bytes, in the form in which nf_tables rules load it into registers.

use std::net::IpAddr;

use inet::IpFamily;
use nftables_netlink::{CtKey, Direction, FIB_SOURCE, FibResult, MetaKey, PayloadBase, TupleKey};
use smallvec::SmallVec;

use super::registers::PartialBytes;
use crate::kernel::{Kernel, Route, RouteQuestion};
use crate::packet::{Interface, Packet, Tracking};

/// Value of `ct state` for an invalid packet, and for any packet before connection tracking
/// (`NF_CT_STATE_INVALID_BIT`).
const INVALID: u32 = 1;
/// Value of `ct state` for the first packet of a connection (`NF_CT_STATE_BIT(IP_CT_NEW)`).
const NEW: u32 = 8;
/// Value of `ct state` for a packet of an established connection
/// (`NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`).
const ESTABLISHED: u32 = 2;
/// Value of `ct state` for an untracked packet (`NF_CT_STATE_UNTRACKED_BIT`).
const UNTRACKED: u32 = 1 << 6;
/// Bits of `ct status` for a connection with a reply (`IPS_SEEN_REPLY` and `IPS_CONFIRMED`).
const ANSWERED: u32 = (1 << 1) | (1 << 3);
/// Bit of `ct status` for a connection with source NAT (`IPS_SRC_NAT`).
const SOURCE_NAT: u32 = 1 << 4;
/// Bit of `ct status` for a connection with destination NAT (`IPS_DST_NAT`).
const DESTINATION_NAT: u32 = 1 << 5;
/// Bit of `ct status` for a decided source translation (`IPS_SRC_NAT_DONE`).
const SOURCE_NAT_DONE: u32 = 1 << 7;
/// Bit of `ct status` for a decided destination translation (`IPS_DST_NAT_DONE`).
const DESTINATION_NAT_DONE: u32 = 1 << 8;
/// Hardware type of the loopback interface (`ARPHRD_LOOPBACK`).
const LOOPBACK: u16 = 772;
/// Length of an interface name in a register, in bytes (`IFNAMSIZ`).
const INTERFACE_NAME: usize = 16;
/// TCP flag of a connection's first packet.
const SYN: u8 = 2;
/// TCP flags of the reply to a connection's first packet.
const SYN_ACK: u8 = 0x12;

/// The packet whose data rules load.
pub(super) struct Fields<'a>(pub(super) &'a Packet);

impl Fields<'_> {
    pub(super) fn payload(&self, base: PayloadBase, offset: u32, len: u32) -> PartialBytes {
        let header = match base {
            PayloadBase::Link => PartialBytes::new(),
            PayloadBase::Network => self.network_header(),
            PayloadBase::Transport => self.transport_header(),
        };
        let (offset, len) = (offset as usize, len.min(64) as usize);
        let byte = |at| header.get(at).copied().flatten();
        (offset..offset.saturating_add(len)).map(byte).collect()
    }

    /// Reports whether a write of `len` bytes at `offset` may change an address or a port.
    pub(super) fn leads(&self, base: PayloadBase, offset: u32, len: u32) -> bool {
        let (first, behind) = match (base, self.0.family()) {
            (PayloadBase::Link, _) => return false,
            (PayloadBase::Network, IpFamily::V4) => (12, 20),
            (PayloadBase::Network, IpFamily::V6) => (8, 40),
            (PayloadBase::Transport, _) => (0, 4),
        };
        offset < behind && offset.saturating_add(len) > first
    }

    fn network_header(&self) -> PartialBytes {
        let mut header = PartialBytes::new();
        match self.0.family() {
            IpFamily::V4 => {
                header.resize(20, None);
                // Sets the known bytes: version and header length (0x45), no fragment (0x40, 0),
                // protocol.
                for (at, byte) in [(0, 0x45), (6, 0x40), (7, 0), (9, self.0.protocol)] {
                    set(&mut header, at, &[byte]);
                }
                set(&mut header, 12, &octets(self.0.source));
                set(&mut header, 16, &octets(self.0.destination));
            }
            IpFamily::V6 => {
                header.resize(40, None);
                set(&mut header, 6, &[self.0.protocol]);
                set(&mut header, 8, &octets(self.0.source));
                set(&mut header, 24, &octets(self.0.destination));
            }
        }
        header
    }

    fn transport_header(&self) -> PartialBytes {
        const TCP: u8 = 6;
        let mut header = PartialBytes::from_elem(None, 20);
        if let Some(port) = self.0.source_port {
            set(&mut header, 0, &port.to_be_bytes());
        }
        let port = self.0.destination_port().unwrap_or(Packet::CLIENT_PORT);
        set(&mut header, 2, &port.to_be_bytes());
        if self.0.protocol == TCP {
            if self.0.reply.is_some() {
                set(&mut header, 13, &[SYN_ACK]);
            } else {
                set(&mut header, 8, &[0; 4]);
                set(&mut header, 13, &[SYN]);
            }
        }
        header
    }

    pub(super) fn meta(&self, key: MetaKey) -> PartialBytes {
        let is_v4 = self.0.family() == IpFamily::V4;
        let index = |of: &Option<Interface>| match of {
            Some(interface) => number(interface.index),
            None => number(Some(0)),
        };
        match key {
            MetaKey::Protocol => known(if is_v4 { &[0x08, 0x00] } else { &[0x86, 0xdd] }),
            MetaKey::Mark => number(Some(self.0.mark)),
            MetaKey::Priority => number(self.0.priority),
            MetaKey::Iif => index(&self.0.iif),
            MetaKey::Oif => index(&self.0.oif),
            MetaKey::IifName => name(self.0.iif.as_ref()),
            MetaKey::OifName => name(self.0.oif.as_ref()),
            MetaKey::IifType => device_type(self.0.iif.as_ref()),
            MetaKey::OifType => device_type(self.0.oif.as_ref()),
            MetaKey::NfProto => known(&[if is_v4 { 2 } else { 10 }]),
            MetaKey::L4Proto => known(&[self.0.protocol]),
            // 0 is `PACKET_HOST` (the packet is for this host), and means "off" for `nftrace`.
            MetaKey::PktType | MetaKey::NfTrace => known(&[0]),
            MetaKey::Len
            | MetaKey::SkUid
            | MetaKey::SkGid
            | MetaKey::Cpu
            | MetaKey::IifGroup
            | MetaKey::OifGroup
            | MetaKey::Cgroup => number(None),
        }
    }

    pub(super) fn ct(&self, key: CtKey) -> PartialBytes {
        let bits = match key {
            CtKey::State => match self.0.tracking {
                Tracking::NotYet => INVALID,
                Tracking::New => NEW,
                Tracking::Established => ESTABLISHED,
                Tracking::Untracked => UNTRACKED,
            },
            CtKey::Direction => {
                let direction = match self.0.reply {
                    None => Direction::Original,
                    Some(_) => Direction::Reply,
                };
                return known(&[direction as u8]);
            }
            CtKey::Status => {
                let bits = [
                    (self.0.tracking == Tracking::Established, ANSWERED),
                    (self.0.source_nat.is_some(), SOURCE_NAT),
                    (self.0.destination_changed, DESTINATION_NAT),
                    (self.0.source_settled, SOURCE_NAT_DONE),
                    (self.0.destination_settled, DESTINATION_NAT_DONE),
                ];
                let set = bits.into_iter().filter(|(is, _)| *is);
                set.fold(0, |all, (_, bit)| all | bit)
            }
            CtKey::Mark => self.0.connection_mark,
        };
        number(Some(bits))
    }

    /// Returns an address, port or protocol of the connection, in one direction. Returns `None` for
    /// an untracked packet, and for an address of the other IP family.
    pub(super) fn tuple(&self, key: TupleKey, direction: Direction) -> Option<PartialBytes> {
        if !self.0.is_tracked() {
            return None;
        }
        let original = self.0.original;
        let (source, destination) = match (direction, &self.0.reply) {
            (Direction::Original, reply) => (
                (
                    self.0.original_source,
                    self.0.source_port.filter(|_| reply.is_none()),
                ),
                (original.ip(), Some(original.port())),
            ),
            (Direction::Reply, Some(reply)) => (
                (reply.endpoint.ip(), Some(reply.endpoint.port())),
                (reply.client, Some(Packet::CLIENT_PORT)),
            ),
            (Direction::Reply, None) => (
                (self.0.destination, Some(self.0.port)),
                (self.0.source, self.0.source_port),
            ),
        };
        let port = |port: Option<u16>| match port {
            Some(port) => known(&port.to_be_bytes()),
            None => PartialBytes::from_elem(None, 2),
        };
        let of = |family, address| (self.0.family() == family).then(|| known(&octets(address)));
        match key {
            TupleKey::L3Proto => Some(self.meta(MetaKey::NfProto)),
            TupleKey::L4Proto => Some(known(&[self.0.protocol])),
            TupleKey::Source => Some(known(&octets(source.0))),
            TupleKey::Destination => Some(known(&octets(destination.0))),
            TupleKey::SourcePort => Some(port(source.1)),
            TupleKey::DestinationPort => Some(port(destination.1)),
            TupleKey::SourceIp => of(IpFamily::V4, source.0),
            TupleKey::DestinationIp => of(IpFamily::V4, destination.0),
            TupleKey::SourceIp6 => of(IpFamily::V6, source.0),
            TupleKey::DestinationIp6 => of(IpFamily::V6, destination.0),
        }
    }

    pub(super) fn fib(&self, kernel: &dyn Kernel, result: FibResult, flags: u32) -> PartialBytes {
        /// Flags that restrict the look-up to routes through the input or output interface
        /// (`NFTA_FIB_F_IIF`, `NFTA_FIB_F_OIF`).
        const BY_IIF: u32 = 1 << 3;
        const BY_OIF: u32 = 1 << 4;
        /// Flag to return only whether a route exists (`NFTA_FIB_F_PRESENT`).
        const PRESENT: u32 = 1 << 5;
        let of = if flags & FIB_SOURCE != 0 {
            self.0.source
        } else {
            self.0.destination
        };
        let only_by = match flags & (BY_IIF | BY_OIF) {
            0 => None,
            BY_IIF => self.0.iif.as_ref(),
            _ => self.0.oif.as_ref(),
        };
        if result == FibResult::AddressType {
            let found = kernel.address_type(of, only_by);
            return number(found.ok().map(|found| u32::from(found as u8)));
        }
        let way = self.way_to(kernel, of);
        let way = way.map(|way| way.filter(|way| only_by.is_none_or(|by| way.name == by.name)));
        match (result, way) {
            (_, Some(way)) if flags & PRESENT != 0 => known(&[u8::from(way.is_some())]),
            (_, None) if flags & PRESENT != 0 => PartialBytes::from_elem(None, 1),
            (FibResult::OifName, Some(way)) => name(way.as_ref()),
            (FibResult::OifName, None) => PartialBytes::from_elem(None, INTERFACE_NAME),
            (_, Some(None)) => number(Some(0)),
            (_, Some(Some(way))) => number(way.index),
            (_, None) => number(None),
        }
    }

    /// Returns the interface through which the node reaches an address. Returns `Some(None)` if
    /// there is no route, and `None` if the route is unknown.
    #[allow(
        clippy::option_option,
        reason = "whether it is known, and whether there is one"
    )]
    fn way_to(&self, kernel: &dyn Kernel, address: IpAddr) -> Option<Option<Interface>> {
        let question = RouteQuestion {
            destination: address,
            source: None,
            iif: None,
            mark: self.0.mark,
        };
        Some(match kernel.route(&question).ok()? {
            Route::Out { interface, .. } => Some(interface),
            Route::Local { .. } => Some(Interface {
                index: Some(1),
                name: Interface::LOOPBACK.to_owned(),
            }),
            Route::None { .. } => None,
        })
    }
}

fn set(header: &mut PartialBytes, at: usize, bytes: &[u8]) {
    for (place, byte) in header.iter_mut().skip(at).zip(bytes) {
        *place = Some(*byte);
    }
}

pub(super) fn octets(address: IpAddr) -> SmallVec<[u8; 16]> {
    match address {
        IpAddr::V4(address) => SmallVec::from_slice(&address.octets()),
        IpAddr::V6(address) => SmallVec::from_slice(&address.octets()),
    }
}

fn known(bytes: &[u8]) -> PartialBytes {
    bytes.iter().copied().map(Some).collect()
}

/// Returns a number as 4 bytes in host byte order. For `None`, the bytes are unknown.
fn number(number: Option<u32>) -> PartialBytes {
    match number {
        Some(number) => known(&number.to_ne_bytes()),
        None => PartialBytes::from_elem(None, 4),
    }
}

/// Returns an interface name, padded with zeros. Without an interface, the name is empty.
fn name(interface: Option<&Interface>) -> PartialBytes {
    let name = interface.map_or("", |interface| &interface.name);
    let mut bytes: PartialBytes = name.bytes().take(INTERFACE_NAME - 1).map(Some).collect();
    bytes.resize(INTERFACE_NAME, Some(0));
    bytes
}

fn device_type(interface: Option<&Interface>) -> PartialBytes {
    match interface {
        Some(interface) if interface.is_loopback() => known(&LOOPBACK.to_ne_bytes()),
        _ => PartialBytes::from_elem(None, 2),
    }
}
