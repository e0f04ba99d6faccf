//! The first packet of a flow or the reply, as rules and routes see it.

use std::net::{IpAddr, SocketAddr};

use inet::IpFamily;
use ipvs_netlink::ServiceKey;

/// A network interface of the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Interface {
    /// Interface index in the kernel, or `None` if unknown.
    pub index: Option<u32>,
    /// Name of the interface.
    pub name: String,
}

impl Interface {
    /// Name of the loopback interface.
    pub const LOOPBACK: &'static str = "lo";

    /// Returns the loopback interface.
    pub fn loopback() -> Self {
        Self {
            index: Some(1),
            name: Self::LOOPBACK.to_owned(),
        }
    }

    /// Reports whether this is the loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.name == Self::LOOPBACK
    }
}

/// State of a packet in connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tracking {
    /// Connection tracking has not seen the packet yet, as in chains with a priority below -200.
    NotYet,
    /// The packet is the first of a connection.
    New,
    /// The packet is the reply in a tracked connection.
    Established,
    /// A rule (`notrack`) or IPVS has excluded the packet from connection tracking.
    Untracked,
}

/// Translation of a packet's source address and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourceNat {
    /// Translation to this address and this port. `None` keeps the address or lets the kernel
    /// choose the port.
    To(Option<IpAddr>, Option<u16>),
    /// Translation to an address of the output interface, or `None` if the address is unknown.
    Masquerade(Option<IpAddr>),
}

/// The two ends of a reply: the endpoint and the client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reply {
    /// Endpoint that replies.
    pub endpoint: SocketAddr,
    /// Client's address as the endpoint sees it.
    pub client: IpAddr,
}

/// The first packet of a flow, or the reply to it, at one point of its path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts as the kernel's flags have them, none of which excludes another"
)]
pub struct Packet {
    /// IANA protocol number of the packet.
    pub protocol: u8,
    /// Source address after the translations so far. If a translated address is unknown, the
    /// address before the translation.
    pub source: IpAddr,
    /// Source port, or `None` for any ephemeral port, which is usual.
    pub source_port: Option<u16>,
    /// Destination address after the translations so far.
    pub destination: IpAddr,
    /// Destination port. Without meaning in a reply, which has no [`Packet::destination_port`].
    pub port: u16,
    /// Address and port to which the client sent its packet, also in the reply.
    pub original: SocketAddr,
    /// Client's address before any translation, also in the reply.
    pub original_source: IpAddr,
    /// Packet mark (`meta mark`).
    pub mark: u32,
    /// Packet priority (`meta priority`). `None` for the node's own packets until a rule sets it,
    /// because it depends on the sender's socket.
    pub priority: Option<u32>,
    /// Connection mark (`ct mark`).
    pub connection_mark: u32,
    /// Input interface, or `None` for the node's own packets.
    pub iif: Option<Interface>,
    /// Output interface, or `None` while it is unknown.
    pub oif: Option<Interface>,
    /// State of the packet in connection tracking.
    pub tracking: Tracking,
    /// True if the destination translation is decided, so that no further nat chain sees the
    /// packet.
    pub destination_settled: bool,
    /// True if a rule has changed the destination. IPVS does not set this field.
    pub destination_changed: bool,
    /// True if a rule has redirected the packet to this node (`REDIRECT`).
    pub is_redirected: bool,
    /// True if the source translation is decided, so that no further nat chain sees the packet.
    pub source_settled: bool,
    /// Source translation, or `None` if there is none.
    pub source_nat: Option<SourceNat>,
    /// IPVS virtual server that has sent the packet to a destination, if any.
    pub server: Option<ServiceKey>,
    /// Destination that IPVS has chosen, if any.
    pub real_server: Option<SocketAddr>,
    /// Endpoint and client of a reply, or `None` for the first packet of a flow.
    pub reply: Option<Reply>,
}

impl Packet {
    /// Creates a packet as it is before its first hook.
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
            priority: None,
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

    /// Creates the reply of `endpoint` to a packet. The reply keeps the packet's translations and
    /// virtual server, but not its mark.
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

    /// Assumed port of a client whose port is unknown: an ordinary ephemeral port.
    pub const CLIENT_PORT: u16 = 54_321;

    /// Returns the destination port, or `None` for a reply, because the client's port is unknown.
    pub fn destination_port(&self) -> Option<u16> {
        self.reply.is_none().then_some(self.port)
    }

    /// Reports whether the packet belongs to a tracked connection.
    pub fn is_tracked(&self) -> bool {
        matches!(self.tracking, Tracking::New | Tracking::Established)
    }

    /// Returns the IP family of the packet.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.destination)
    }

    /// Returns the packet's destination address and port.
    pub fn to(&self) -> SocketAddr {
        SocketAddr::new(self.destination, self.port)
    }

    /// Changes the destination like DNAT. `None` keeps the address or the port.
    pub fn translate(&mut self, address: Option<IpAddr>, port: Option<u16>) {
        self.destination = address.unwrap_or(self.destination);
        self.port = port.unwrap_or(self.port);
        self.destination_settled = true;
        self.destination_changed = true;
    }

    /// Changes the source like SNAT or masquerading.
    pub fn translate_source(&mut self, to: SourceNat) {
        if let SourceNat::To(Some(address), _) | SourceNat::Masquerade(Some(address)) = &to {
            self.source = *address;
        }
        self.source_settled = true;
        self.source_nat = Some(to);
    }
}
