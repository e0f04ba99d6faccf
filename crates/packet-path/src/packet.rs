//! The first packet of a flow, and the answer to it.

use std::net::{IpAddr, SocketAddr};

use inet::IpFamily;
use ipvs_netlink::ServiceKey;

/// An interface of the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Interface {
    /// Its number, where it is known.
    pub index: Option<u32>,
    /// Its name.
    pub name: String,
}

impl Interface {
    /// The one by which the node sends to itself.
    pub const LOOPBACK: &'static str = "lo";

    /// The one by which the node sends to itself.
    pub fn loopback() -> Self {
        Self {
            index: Some(1),
            name: Self::LOOPBACK.to_owned(),
        }
    }

    /// Whether it is the one by which the node sends to itself.
    pub fn is_loopback(&self) -> bool {
        self.name == Self::LOOPBACK
    }
}

/// What connection tracking has made of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tracking {
    /// It has not seen it yet (chains of a priority below -200).
    NotYet,
    /// It begins a connection.
    New,
    /// It belongs to a connection that another has begun: an answer.
    Established,
    /// A rule has said that it is not to be tracked, or IPVS has.
    Untracked,
}

/// What becomes of the source when the packet leaves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourceNat {
    /// It becomes this address, where it is given, and a port of this range.
    To(Option<IpAddr>, Option<u16>),
    /// It becomes an address of the interface by which the packet leaves: this one, where it is
    /// known.
    Masquerade(Option<IpAddr>),
}

/// Whose answer a packet is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reply {
    /// Who answers.
    pub endpoint: SocketAddr,
    /// To whom, as the endpoint sees it.
    pub client: IpAddr,
}

/// The first packet of a flow, or the answer to it, at one moment of its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts as the kernel's flags have them, none of which excludes another"
)]
pub struct Packet {
    /// IANA's number.
    pub protocol: u8,
    /// From where.
    pub source: IpAddr,
    /// From which port; mostly it is not known: any ephemeral one.
    pub source_port: Option<u16>,
    /// To where.
    pub destination: IpAddr,
    /// To which port; of an answer it is not known ([`Packet::destination_port`]).
    pub port: u16,
    /// Where it was sent at first; of an answer, where what it answers was.
    pub original: SocketAddr,
    /// Who sent it at first; of an answer, who sent what it answers.
    pub original_source: IpAddr,
    /// `meta mark`.
    pub mark: u32,
    /// `ct mark`.
    pub connection_mark: u32,
    /// By which interface it came; none where the node itself sends it.
    pub iif: Option<Interface>,
    /// By which it goes, as far as that is decided and known.
    pub oif: Option<Interface>,
    /// What connection tracking has made of it.
    pub tracking: Tracking,
    /// Whether it is settled where it goes: no further chain of type nat is asked for that.
    pub destination_settled: bool,
    /// Whether a rule (not IPVS) has sent it elsewhere than it was sent.
    pub destination_changed: bool,
    /// Whether its new destination is this node, whatever its address is (`REDIRECT`).
    pub is_redirected: bool,
    /// The same of its source.
    pub source_settled: bool,
    /// What becomes of its source, once that is decided.
    pub source_nat: Option<SourceNat>,
    /// The virtual server that IPVS has sent it on for.
    pub server: Option<ServiceKey>,
    /// The destination that IPVS has chosen.
    pub real_server: Option<SocketAddr>,
    /// Whose answer it is; none of a first packet.
    pub reply: Option<Reply>,
}

impl Packet {
    /// A packet that nobody has touched.
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

    /// The first answer to a packet that `endpoint` has got, as it is when it leaves there. What
    /// connection tracking and IPVS know of the connection stays with it; marks of packets do not.
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

    /// What stands for the port of a client, which nobody has chosen: one of those that systems take.
    pub const CLIENT_PORT: u16 = 54_321;

    /// To which port, where that is known: of an answer it is the client's.
    pub fn destination_port(&self) -> Option<u16> {
        self.reply.is_none().then_some(self.port)
    }

    /// Whether connection tracking knows its connection.
    pub fn is_tracked(&self) -> bool {
        matches!(self.tracking, Tracking::New | Tracking::Established)
    }

    /// Its family.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.destination)
    }

    /// Where it goes.
    pub fn to(&self) -> SocketAddr {
        SocketAddr::new(self.destination, self.port)
    }

    /// Sends it elsewhere, as DNAT does; what is not given stays.
    pub fn translate(&mut self, address: Option<IpAddr>, port: Option<u16>) {
        self.destination = address.unwrap_or(self.destination);
        self.port = port.unwrap_or(self.port);
        self.destination_settled = true;
        self.destination_changed = true;
    }

    /// Gives it another source, as SNAT and masquerading do.
    pub fn translate_source(&mut self, to: SourceNat) {
        if let SourceNat::To(Some(address), _) | SourceNat::Masquerade(Some(address)) = &to {
            self.source = *address;
        }
        self.source_settled = true;
        self.source_nat = Some(to);
    }
}
