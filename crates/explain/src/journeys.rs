//! Selects the packets that a request traces, and determines their addresses and interfaces.
//!
//! ```text
//!   pod       arrives on the interface of its route, from an address in the node's pod network
//!   itself    a pod that is an endpoint and may receive its own packet, if an endpoint is on this node
//!   node      sent by this node; the kernel selects the source by the route
//!   external  arrives on the interface of the default route, from an unused address (RFC 5737, RFC 3849);
//!             with source ranges, from an address inside and from one outside of them
//! ```

mod senders;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use view::AddressKind;

use proxy::Protocol;
use senders::SenderChoice;

use super::objects::{Objects, ServicePortAddress, is_asked};
use super::trace_request::{TraceDestination, TraceRequest, TraceSender};

/// Next hop towards an address, according to the node's routes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts of the kernel, none of which excludes another"
)]
pub(crate) struct Hop {
    /// Outgoing interface.
    pub(crate) interface: String,
    /// True for an address of this node.
    pub(crate) is_local: bool,
    /// True for a service address on the link of IPVS mode.
    pub(crate) is_service: bool,
    /// True if the route has no gateway.
    pub(crate) is_neighbour: bool,
    /// True if the sender is a neighbour on an interface of pods. Such an interface is a bridge or
    /// a veth end, and has no default route.
    pub(crate) is_inner: bool,
}

/// Access to the node's routes.
pub(crate) trait Routing {
    /// Returns the next hop, or `None` without a route.
    fn hop(&self, to: IpAddr) -> Option<Hop>;
}

/// A sender of the traced packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sender {
    /// Sender in words, such as `pod 10.244.1.5 on this node`.
    pub(crate) words: String,
    /// Subject of a sentence about the sender, such as `a pod on this node`.
    pub(crate) who: String,
    pub(crate) way: PacketOrigin,
    /// True if the sender is on this node. Replies to it then pass this node.
    pub(crate) is_here: bool,
    /// True if this node has the sender's address as a service address.
    pub(crate) has_service_address: bool,
    /// Reason why the rules do not treat the sender as a pod, although its interface leads to pods.
    /// `None` if they treat it as a pod, or if the interface leads elsewhere.
    pub(crate) stranger: Option<String>,
}

/// Origin of a sender's packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PacketOrigin {
    /// Packets that this node sends. `None`: the route selects the source address.
    Made(Option<IpAddr>),
    /// Packets that arrive on an interface, from an address.
    Comes(String, IpAddr),
}

/// First packet of a flow, to trace.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TracedPacket<'a> {
    pub(crate) sender: Sender,
    pub(crate) to: SocketAddr,
    pub(crate) protocol: Protocol,
    /// Service port with this address, if any.
    pub(crate) of: Option<ServicePortAddress<'a>>,
    /// Services that have the address at any port.
    pub(crate) named_by: &'a [String],
}

/// All packets to trace for a request.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Journeys<'a> {
    pub(crate) planned: Vec<TracedPacket<'a>>,
    /// Reasons why some senders are missing.
    pub(crate) notes: Vec<String>,
}

/// Returns an address for documentation, which no host has.
pub const fn nobodys(is_v4: bool) -> IpAddr {
    if is_v4 {
        IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7))
    } else {
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 7))
    }
}

/// Plans the packets to trace for a request.
pub(crate) fn plan<'a>(
    asked: &TraceRequest,
    objects: &'a Objects,
    routing: &dyn Routing,
) -> Journeys<'a> {
    let mut journeys = Journeys::default();
    let mut notes = Vec::new();
    for (to, protocol, of) in targets(asked, objects, &mut notes) {
        let cast = SenderChoice {
            objects,
            routing,
            to,
            of,
        };
        let is_default = asked.from.is_empty();
        let default = [TraceSender::Pod, TraceSender::Node, TraceSender::External];
        let from = if is_default { &default } else { &*asked.from };
        for from in from {
            let is_inner = of.is_some_and(|of| of.address.kind == AddressKind::ClusterIp);
            // A host outside the cluster is the sender to a ClusterIP only if the request names
            // that sender.
            if is_default && *from == TraceSender::External && is_inner {
                continue;
            }
            if matches!(from, TraceSender::Address(from) if from.is_ipv4() != to.is_ipv4()) {
                continue;
            }
            match cast.senders(*from) {
                Ok(senders) => {
                    let planned = senders.into_iter().map(|sender| TracedPacket {
                        sender,
                        to,
                        protocol,
                        of,
                        named_by: &objects.node.named_by,
                    });
                    journeys.planned.extend(planned);
                }
                Err(note) => notes.push(note),
            }
        }
    }
    for note in notes {
        if !journeys.notes.contains(&note) {
            journeys.notes.push(note);
        }
    }
    journeys
}

type TracedAddress<'a> = (SocketAddr, Protocol, Option<ServicePortAddress<'a>>);

fn targets<'a>(
    asked: &TraceRequest,
    objects: &'a Objects,
    notes: &mut Vec<String>,
) -> Vec<TracedAddress<'a>> {
    match &asked.to {
        TraceDestination::Address(at, protocol) => {
            let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
            let asked = |one: &Protocol| protocol.is_none_or(|asked| asked == *one);
            let found = all.into_iter().filter(asked).filter_map(|one| {
                let place = objects.place_at(*at, one)?;
                Some((*at, one, Some(place)))
            });
            let mut found: Vec<TracedAddress<'a>> = found.collect();
            if found.is_empty() {
                found.push((*at, protocol.unwrap_or(Protocol::Tcp), None));
            }
            found
        }
        TraceDestination::Service(_, port) => {
            let mut found: Vec<TracedAddress<'a>> = Vec::new();
            let mut passed = Vec::new();
            for place in objects
                .places()
                .filter(|place| is_asked(place, port.as_ref()))
            {
                let is_node_port = place.address.kind == AddressKind::NodePort;
                // Rules treat all node addresses alike, so one of each family suffices.
                if is_node_port && !stands_for_all(objects, place) {
                    if !place.at.ip().is_loopback() {
                        passed.push(place.at.to_string());
                    }
                    continue;
                }
                found.push((place.at, place.protocol, Some(place)));
            }
            if !passed.is_empty() {
                passed.sort();
                passed.dedup();
                notes.push(format!(
                    "the node port is served at {} as well",
                    passed.join(", ")
                ));
            }
            found
        }
    }
}

/// Reports whether this is the first address in the Node object that serves the port. If no address
/// in the Node object serves the port, or if the Node is unknown, returns true for every address
/// except loopback.
fn stands_for_all(objects: &Objects, place: ServicePortAddress<'_>) -> bool {
    let alike = |other: &ServicePortAddress<'_>| {
        other.service.name == place.service.name
            && other.address.kind == AddressKind::NodePort
            && other.protocol == place.protocol
            && other.at.port() == place.at.port()
            && other.at.is_ipv4() == place.at.is_ipv4()
    };
    let all: Vec<IpAddr> = objects.places().filter(alike).map(|p| p.at.ip()).collect();
    let own = objects.node.addresses.iter().find(|own| all.contains(own));
    match own {
        Some(own) => *own == place.at.ip(),
        None => !place.at.ip().is_loopback(),
    }
}

#[cfg(test)]
mod tests;
