//! The first packet of a flow, and the reply to it.

use std::net::{IpAddr, SocketAddr};

use inet::IpFamily;
use ipvs_netlink::ServiceKey;

/// A network interface of the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Interface {
    /// The interface's index, if it is known.
    pub index: Option<u32>,
    /// The interface's name.
    pub name: String,
}

impl Interface {
    /// The name of the loopback interface.
    pub const LOOPBACK: &'static str = "lo";

    /// Returns the loopback interface.
    pub fn loopback() -> Self {
        Self {
            index: Some(1),
            name: Self::LOOPBACK.to_owned(),
        }
    }

    /// Returns true for the loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.name == Self::LOOPBACK
    }
}

/// The state of a packet in connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tracking {
    /// Not processed yet (chains with a priority below -200).
    NotYet,
    /// Begins a connection.
    New,
    /// Belongs to an existing connection: a reply.
    Established,
    /// Excluded from tracking by a rule or by IPVS.
    Untracked,
}

/// The translation of the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourceNat {
    /// Translates to this address, if given, and to a port of this range.
    To(Option<IpAddr>, Option<u16>),
    /// Translates to an address of the output interface, which may be unknown.
    Masquerade(Option<IpAddr>),
}

/// The endpoint and client of a reply.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reply {
    /// The endpoint that replies.
    pub endpoint: SocketAddr,
    /// The client as the endpoint sees it.
    pub client: IpAddr,
}

/// The first packet of a flow, or the reply to it, at one point of its path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts as the kernel's flags have them, none of which excludes another"
)]
pub struct Packet {
    /// The IANA protocol number.
    pub protocol: u8,
    /// The source address.
    pub source: IpAddr,
    /// The source port; usually unknown: any ephemeral port.
    pub source_port: Option<u16>,
    /// The destination address.
    pub destination: IpAddr,
    /// The destination port; unknown for a reply ([`Packet::destination_port`]).
    pub port: u16,
    /// The destination that the client sent to, also for a reply.
    pub original: SocketAddr,
    /// The client's address before any translation, also for a reply.
    pub original_source: IpAddr,
    /// The packet's mark (`meta mark`).
    pub mark: u32,
    /// The connection's mark (`ct mark`).
    pub connection_mark: u32,
    /// The input interface; `None` for the node's own packets.
    pub iif: Option<Interface>,
    /// The output interface, once it is known.
    pub oif: Option<Interface>,
    /// The state in connection tracking.
    pub tracking: Tracking,
    /// True if the destination is decided: no further nat chain is asked about it.
    pub destination_settled: bool,
    /// True if a rule (not IPVS) changed the destination.
    pub destination_changed: bool,
    /// True if the new destination is this node (`REDIRECT`).
    pub is_redirected: bool,
    /// True if the source is decided: no further nat chain is asked about it.
    pub source_settled: bool,
    /// The translation of the source, once it is decided.
    pub source_nat: Option<SourceNat>,
    /// The virtual server for which IPVS sent the packet.
    pub server: Option<ServiceKey>,
    /// The destination that IPVS chose.
    pub real_server: Option<SocketAddr>,
    /// The endpoint and client, if this packet is a reply.
    pub reply: Option<Reply>,
}

impl Packet {
    /// Creates a packet before its first hook.
    pub fn new(protocol: u8, source: IpAddr, destination: IpAddr, port: u16) -> Self {
        Self {
            protocol,
            source,
            source_port: None,
            destination,
            port,
            original: SocketAddr::new(destination, port),
            original_source: source,
            mark: 0,
            connection_mark: 0,
            iif: None,
            oif: None,
            tracking: Tracking::NotYet,
            destination_settled: false,
            destination_changed: false,
            is_redirected: false,
            source_settled: false,
            source_nat: None,
            server: None,
            real_server: None,
            reply: None,
        }
    }

    /// Creates the first reply to a packet that `endpoint` received, as it leaves the endpoint.
    /// State of connection tracking and IPVS is kept; the packet's mark is not.
    pub fn answer_to(asked: &Self, endpoint: SocketAddr) -> Self {
        Self {
            source: endpoint.ip(),
            source_port: Some(endpoint.port()),
            destination: asked.source,
            port: 0,
            mark: 0,
            iif: None,
            oif: None,
            tracking: Tracking::NotYet,
            reply: Some(Reply {
                endpoint,
                client: asked.source,
            }),
            ..asked.clone()
        }
    }

    /// Placeholder for the unknown port of a client: a typical ephemeral port.
    pub const CLIENT_PORT: u16 = 54_321;

    /// Returns the destination port, or `None` for a reply, whose destination is the client's
    /// unknown port.
    pub fn destination_port(&self) -> Option<u16> {
        self.reply.is_none().then_some(self.port)
    }

    /// Returns true if the packet belongs to a tracked connection.
    pub fn is_tracked(&self) -> bool {
        matches!(self.tracking, Tracking::New | Tracking::Established)
    }

    /// Returns the IP family.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.destination)
    }

    /// Returns destination address and port.
    pub fn to(&self) -> SocketAddr {
        SocketAddr::new(self.destination, self.port)
    }

    /// Changes the destination as DNAT does. `None` leaves a part unchanged.
    pub fn translate(&mut self, address: Option<IpAddr>, port: Option<u16>) {
        self.destination = address.unwrap_or(self.destination);
        self.port = port.unwrap_or(self.port);
        self.destination_settled = true;
        self.destination_changed = true;
    }

    /// Changes the source as SNAT and masquerading do.
    pub fn translate_source(&mut self, to: SourceNat) {
        if let SourceNat::To(Some(address), _) | SourceNat::Masquerade(Some(address)) = &to {
            self.source = *address;
        }
        self.source_settled = true;
        self.source_nat = Some(to);
    }
}
