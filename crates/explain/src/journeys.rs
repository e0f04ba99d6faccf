//! Selects the packets that a request traces, with their senders and interfaces.
//!
//! ```text
//!   pod       arrives on the interface of its route, from an address in the node's pod network
//!   itself    a pod that is an endpoint on this node, and may receive its own packet
//!   node      sent by this node; the kernel selects the source by the route
//!   external  arrives on the interface of the default route, from an unused address
//!             (RFC 5737, RFC 3849); with source ranges, from one inside and one outside of them
//! ```

mod senders;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use view::{AddressKind, Endpoint};

use proxy::Protocol;
use senders::SenderChoice;

use super::objects::{Objects, ServicePortAddress, is_asked};
use super::trace_request::{TraceDestination, TraceRequest, TraceSender};

/// Next hop to an address, according to the node's routes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts of the kernel, none of which excludes another"
)]
pub(crate) struct Hop {
    /// Name of the outgoing interface.
    pub(crate) interface: String,
    /// True if the address is one of this node's own.
    pub(crate) is_local: bool,
    /// True if the address is a service address on `kube-ipvs0`, the link of IPVS mode.
    pub(crate) is_service: bool,
    /// True if the route to the address has no gateway, so the address is directly connected.
    pub(crate) is_neighbour: bool,
    /// True if the address is this node's own, or directly connected on an interface of pods: a
    /// bridge or a veth that is not the interface of the default route.
    pub(crate) is_inner: bool,
}

/// Interface to the node's routes.
pub(crate) trait Routing {
    /// Returns the next hop to an address, or `None` if there is no route.
    fn hop(&self, to: IpAddr) -> Option<Hop>;
}

/// A sender of the traced packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sender {
    /// Description of the sender, such as `pod 10.244.1.5 on this node`.
    pub(crate) words: String,
    /// Description of the sender without its address, such as `a pod on this node`.
    pub(crate) who: String,
    pub(crate) way: PacketOrigin,
    /// True if the sender is on this node, so that replies to it pass this node.
    pub(crate) is_here: bool,
    /// True if the sender's address is also a service address of this node.
    pub(crate) has_service_address: bool,
    /// Reason why the mode's rules do not recognise the sender as a pod, although it is on an
    /// interface of pods. `None` for every other sender.
    pub(crate) stranger: Option<String>,
}

/// Place where a sender's packets enter the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PacketOrigin {
    /// This node itself sends the packets, from this address. With `None`, the route selects the
    /// source address.
    Made(Option<IpAddr>),
    /// The packets arrive on the named interface, from this address.
    Comes(String, IpAddr),
}

/// A packet to trace: the first packet of a flow.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TracedPacket<'a> {
    pub(crate) sender: Sender,
    pub(crate) to: SocketAddr,
    pub(crate) protocol: Protocol,
    /// Service port with the destination's address and port, or `None` if there is none.
    pub(crate) of: Option<ServicePortAddress<'a>>,
    /// Names of the Services that have the destination address, at any port.
    pub(crate) named_by: &'a [String],
    /// Names of Services that have the destination address with `ipMode: Proxy`.
    pub(crate) proxied_by: &'a [String],
}

/// Endpoints of a Service port, by address and port. A Service may have thousands of endpoints, and
/// as many paths.
pub(crate) type EndpointIndex<'a> = HashMap<SocketAddr, &'a Endpoint>;

impl<'a> TracedPacket<'a> {
    /// Returns the endpoints of the Service port. If an address occurs twice, returns its first
    /// endpoint.
    pub(crate) fn endpoints(&self) -> EndpointIndex<'a> {
        let mut index = EndpointIndex::new();
        for (at, endpoint) in self.of.iter().flat_map(ServicePortAddress::endpoints) {
            index.entry(at).or_insert(endpoint);
        }
        index
    }
}

/// All packets that a request traces.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Journeys<'a> {
    pub(crate) planned: Vec<TracedPacket<'a>>,
    /// Addresses and senders that are not traced, each with the reason.
    pub(crate) notes: Vec<String>,
}

/// Returns an address that no host should have, because RFC 5737 and RFC 3849 reserve it for
/// documentation.
pub const fn nobodys(is_v4: bool) -> IpAddr {
    if is_v4 {
        IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7))
    } else {
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 7))
    }
}

/// Returns the packets that the request `asked` traces, with their senders.
pub(crate) fn plan<'a>(
    asked: &TraceRequest,
    objects: &'a Objects,
    routing: &dyn Routing,
) -> Journeys<'a> {
    let mut journeys = Journeys::default();
    let mut notes = Vec::new();
    let targets = targets(asked, objects, &mut notes);
    notes.extend(unreachable(asked, &targets));
    for (to, protocol, of) in targets {
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
            // Hosts outside the cluster do not usually send to a ClusterIP, so this sender is
            // traced only on request.
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
                        proxied_by: &objects.node.proxied_by,
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

/// Returns a note for each requested sender whose IP family no target has, or one note if there is
/// no target at all.
fn unreachable(asked: &TraceRequest, targets: &[TracedAddress<'_>]) -> Vec<String> {
    let text = &asked.text;
    let is_port_asked = matches!(asked.to, TraceDestination::Service(_, Some(_)));
    // The caller reports an unknown port of a Service as an error.
    if targets.is_empty() && is_port_asked {
        return Vec::new();
    }
    if targets.is_empty() {
        return vec![format!("{text} has no address and port on this node")];
    }
    let mut notes = Vec::new();
    for sender in &asked.from {
        if let TraceSender::Address(from) = sender
            && targets
                .iter()
                .all(|(to, ..)| to.is_ipv4() != from.is_ipv4())
        {
            let family = if from.is_ipv4() { "IPv4" } else { "IPv6" };
            notes.push(format!(
                "{from} cannot send to {text}, which has no {family} address"
            ));
        }
    }
    notes
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
                // The mode's rules treat all NodePort addresses of the node alike, so one per IP
                // family is traced.
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

/// Reports whether to trace packets to this NodePort address. It must be the first address of the
/// Node object that serves the NodePort. If none does, all addresses except loopback are traced.
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
