//! The first packet of a flow, and the reply to it.

use std::net::{IpAddr, SocketAddr};

use inet::IpFamily;
use ipvs_netlink::ServiceKey;

/// A network interface of the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Interface {
    /// Index of the interface, or `None` if unknown.
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

    /// Returns true for the loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.name == Self::LOOPBACK
    }
}

/// State of a packet in connection tracking, such as new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tracking {
    /// Connection tracking has not seen the packet, as in chains below priority -200.
    NotYet,
    /// The packet begins a connection.
    New,
    /// The packet belongs to an existing connection: it is a reply.
    Established,
    /// A rule or IPVS excludes the packet from tracking.
    Untracked,
}

/// Translation of a packet's source address and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourceNat {
    /// Translation to this address, if given, and to this port, if given.
    To(Option<IpAddr>, Option<u16>),
    /// Translation to an address of the output interface. The address may be unknown.
    Masquerade(Option<IpAddr>),
}

/// Endpoint that sends a reply, and client that receives the reply.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reply {
    /// Endpoint that replies.
    pub endpoint: SocketAddr,
    /// Address of the client, as the endpoint sees it.
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
    /// Source address after the translations so far, if the translated address is known.
    pub source: IpAddr,
    /// Source port. Usually `None`, which stands for any ephemeral port.
    pub source_port: Option<u16>,
    /// Destination address, after any translation so far.
    pub destination: IpAddr,
    /// Destination port. Not meaningful for a reply, whose destination port is unknown (see
    /// [`Packet::destination_port`]).
    pub port: u16,
    /// Address and port to which the client sent its packet. A reply keeps this address and port.
    pub original: SocketAddr,
    /// Address of the client before any translation. In a reply, this is still the client.
    pub original_source: IpAddr,
    /// Mark of the packet (`meta mark`).
    pub mark: u32,
    /// Priority of the packet (`meta priority`). `None` for the node's own packets until a rule sets
    /// it, because the priority comes from the sender's socket.
    pub priority: Option<u32>,
    /// Mark of the connection (`ct mark`).
    pub connection_mark: u32,
    /// Input interface, or `None` for the node's own packets.
    pub iif: Option<Interface>,
    /// Output interface, once it is known.
    pub oif: Option<Interface>,
    /// State of the packet in connection tracking.
    pub tracking: Tracking,
    /// True if the destination is decided, so that no further nat chain can translate it.
    pub destination_settled: bool,
    /// True if a rule changed the destination. IPVS does not set this field.
    pub destination_changed: bool,
    /// True if the new destination is this node (`REDIRECT`).
    pub is_redirected: bool,
    /// True if the source is decided, so that no further nat chain can translate it.
    pub source_settled: bool,
    /// Translation of the source, once it is decided.
    pub source_nat: Option<SourceNat>,
    /// Virtual server that sent the packet to a destination, if any.
    pub server: Option<ServiceKey>,
    /// Destination that IPVS chose, if any.
    pub real_server: Option<SocketAddr>,
    /// Endpoint and client, if this packet is a reply.
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

    /// Creates the first reply of `endpoint` to a packet that it received. The reply keeps the
    /// packet's state in connection tracking and IPVS, but not its mark.
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

    /// Returns the destination port, or `None` for a reply. The destination of a reply is the
    /// client's port, which is unknown.
    pub fn destination_port(&self) -> Option<u16> {
        self.reply.is_none().then_some(self.port)
    }

    /// Returns true if the packet belongs to a tracked connection.
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

    /// Changes the destination as DNAT does. `None` keeps the address or the port.
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
