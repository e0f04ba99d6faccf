//! Which journeys a question is about, and how their senders look to the kernel.
//!
//! ```text
//!   pod       by the interface that its address is routed to, from an address of the node's pod network
//!   itself    a pod that is an endpoint, and may be sent to itself: where a Service has one here
//!   node      made here; the kernel chooses the source by the route
//!   external  by the interface of the default route, from an address that nobody has (RFC 5737, RFC 3849);
//!             where there are source ranges, from within one, and from without
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use proxy::Protocol;

use super::asked::{Asked, From, To};
use super::objects::{Objects, Place, is_asked};
use crate::view::AddressKind;

/// What the routing of this node says of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hop {
    /// The interface that packets to it leave by.
    pub(crate) interface: String,
    /// Whether it is an address of this node.
    pub(crate) is_local: bool,
    /// Whether it is a neighbour: no gateway is between.
    pub(crate) is_neighbour: bool,
    /// Whether it is a neighbour by an interface that leads into this node alone, as those of pods: a
    /// bridge or one end of a cable, and not the one of the default route.
    pub(crate) is_inner: bool,
}

/// The routing of this node.
pub(crate) trait Routing {
    /// Where packets to an address go; `None` if nowhere.
    fn hop(&self, to: IpAddr) -> Option<Hop>;
}

/// Who sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sender {
    /// `pod 10.244.1.5 on this node`.
    pub(crate) words: String,
    /// How it begins a sentence: `a pod on this node`.
    pub(crate) who: String,
    pub(crate) way: Way,
    /// Whether it is on this node: what is sent to it comes by here.
    pub(crate) is_here: bool,
}

/// How its packets come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// They are made here; from this address, or from the one that the route says.
    Made(Option<IpAddr>),
    /// By an interface, from an address.
    Comes(String, IpAddr),
}

/// A journey to be walked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Planned<'a> {
    pub(crate) sender: Sender,
    pub(crate) to: SocketAddr,
    pub(crate) protocol: Protocol,
    /// Whose address it is.
    pub(crate) of: Option<Place<'a>>,
}

/// All journeys of a question.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Journeys<'a> {
    pub(crate) planned: Vec<Planned<'a>>,
    /// What cannot be said, and why.
    pub(crate) notes: Vec<String>,
}

/// Addresses for documentation, which nobody has (RFC 5737).
const NOBODYS: [Ipv4Addr; 3] = [
    Ipv4Addr::new(203, 0, 113, 7),
    Ipv4Addr::new(198, 51, 100, 7),
    Ipv4Addr::new(192, 0, 2, 7),
];
/// The same of IPv6 (RFC 3849, RFC 9637).
const NOBODYS_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 7),
    Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 7),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0xffff, 0, 0, 0, 7),
];
/// An address that nobody has.
pub(crate) const fn nobodys(is_v4: bool) -> IpAddr {
    if is_v4 {
        IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7))
    } else {
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 7))
    }
}

/// How many addresses of a pod network are tried.
const TRIED: u32 = 16;

/// The journeys that a question is about.
pub(crate) fn plan<'a>(asked: &Asked, objects: &'a Objects, routing: &dyn Routing) -> Journeys<'a> {
    let mut journeys = Journeys::default();
    let mut notes = Vec::new();
    for (to, protocol, of) in targets(asked, objects, &mut notes) {
        let cast = Cast {
            objects,
            routing,
            to,
            of,
        };
        let is_default = asked.from.is_empty();
        let default = [From::Pod, From::Node, From::External];
        let from = if is_default { &default } else { &*asked.from };
        for from in from {
            let is_inner = of.is_some_and(|of| of.address.kind == AddressKind::ClusterIp);
            // A ClusterIP means nothing outside of the cluster, unless somebody asks.
            if is_default && *from == From::External && is_inner {
                continue;
            }
            if matches!(from, From::Address(from) if from.is_ipv4() != to.is_ipv4()) {
                continue;
            }
            match cast.senders(*from) {
                Ok(senders) => {
                    let planned = senders.into_iter().map(|sender| Planned {
                        sender,
                        to,
                        protocol,
                        of,
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

type Target<'a> = (SocketAddr, Protocol, Option<Place<'a>>);

fn targets<'a>(asked: &Asked, objects: &'a Objects, notes: &mut Vec<String>) -> Vec<Target<'a>> {
    match &asked.to {
        To::Address(at, protocol) => {
            let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
            let asked = |one: &Protocol| protocol.is_none_or(|asked| asked == *one);
            let found = all.into_iter().filter(asked).filter_map(|one| {
                let place = objects.place_at(*at, one)?;
                Some((*at, one, Some(place)))
            });
            let mut found: Vec<Target<'a>> = found.collect();
            if found.is_empty() {
                found.push((*at, protocol.unwrap_or(Protocol::Tcp), None));
            }
            found
        }
        To::Service(_, port) => {
            let mut found: Vec<Target<'a>> = Vec::new();
            let mut passed = Vec::new();
            for place in objects
                .places()
                .filter(|place| is_asked(place, port.as_ref()))
            {
                let is_node_port = place.address.kind == AddressKind::NodePort;
                // Every address of the node serves it alike: one of each family stands for all.
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

/// Whether it is the first of the node's own addresses that serve the port. Where its Node does not say
/// which these are, none stands for another.
fn stands_for_all(objects: &Objects, place: Place<'_>) -> bool {
    let alike = |other: &Place<'_>| {
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

/// Who may send to an address.
struct Cast<'a, 'r> {
    objects: &'a Objects,
    routing: &'r dyn Routing,
    to: SocketAddr,
    of: Option<Place<'a>>,
}

impl Cast<'_, '_> {
    /// The senders of a kind; a note if there is none.
    fn senders(&self, from: From) -> Result<Vec<Sender>, String> {
        match from {
            From::Node => Ok(vec![Sender {
                words: "this node".to_owned(),
                who: "this node".to_owned(),
                way: Way::Made(None),
                is_here: true,
            }]),
            From::Pod => {
                let itself = self.local_endpoint().map(|itself| self.pod(itself));
                let other = self.pod_address().map(|other| self.pod(other));
                let all: Result<Vec<Sender>, String> = other.into_iter().chain(itself).collect();
                let all = all?;
                if all.is_empty() {
                    return Err(format!(
                        "no {} address of a pod of this node is known, by spec.podCIDRs of its Node or by an EndpointSlice: \
                         give --from POD-IP (kubectl get pods -A -o wide)",
                        self.family()
                    ));
                }
                Ok(all)
            }
            From::External => self.outsiders(),
            From::Address(address) => self.known(address).map(|one| vec![one]),
        }
    }

    fn family(&self) -> &'static str {
        if self.to.is_ipv4() { "IPv4" } else { "IPv6" }
    }

    fn is_family(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.to.is_ipv4()
    }

    /// The first endpoint on this node that is sent to.
    fn local_endpoint(&self) -> Option<IpAddr> {
        let endpoints = self.of.iter().flat_map(Place::endpoints);
        let mut own = endpoints
            .filter(|(_, endpoint)| endpoint.local && (endpoint.cluster || endpoint.local_policy));
        own.next().map(|(at, _)| at.ip())
    }

    fn is_endpoint(&self, address: IpAddr) -> bool {
        let mut endpoints = self.of.iter().flat_map(Place::endpoints);
        endpoints.any(|(at, _)| at.ip() == address)
    }

    fn is_of_pods(&self, address: IpAddr) -> bool {
        let node = &self.objects.node;
        let mut services = self.objects.places();
        node.pods.contains(&address)
            || node.pod_networks.iter().any(|net| net.contains(&address))
            || services.any(|place| {
                let mut endpoints = place.endpoints();
                endpoints.any(|(at, endpoint)| endpoint.local && at.ip() == address)
            })
    }

    /// One that is a neighbour, and no endpoint: from the end of the network, where the bridge has
    /// none.
    fn pod_address(&self) -> Option<IpAddr> {
        let networks = self.objects.node.pod_networks.iter();
        let networks = networks.filter(|net| self.is_family(net.addr()));
        let mut candidates =
            networks.flat_map(|net| (2..2 + TRIED).filter_map(|back| from_end(net, back)));
        let is_one = |address: &IpAddr| {
            let hop = self.routing.hop(*address);
            !self.is_endpoint(*address) && hop.is_some_and(|hop| !hop.is_local && hop.is_neighbour)
        };
        candidates.find(is_one).or_else(|| {
            // Pods of the node's own network have its address.
            let pods = self.objects.node.pods.iter().copied();
            let mut pods = pods.filter(|pod| self.is_family(*pod));
            pods.find(is_one)
        })
    }

    fn pod(&self, address: IpAddr) -> Result<Sender, String> {
        let hop = self.hop(address)?;
        let (words, who) = if self.is_endpoint(address) {
            (
                format!("pod {address} on this node, itself an endpoint"),
                format!("pod {address}, itself an endpoint,"),
            )
        } else {
            (
                format!("pod {address} on this node"),
                "a pod on this node".to_owned(),
            )
        };
        Ok(Sender {
            words,
            who,
            way: Way::Comes(hop.interface, address),
            is_here: true,
        })
    }

    fn hop(&self, address: IpAddr) -> Result<Hop, String> {
        self.routing.hop(address).ok_or_else(|| {
            format!(
                "this node has no route to {address}, so that nothing comes from there: `ip route get {address}` says why"
            )
        })
    }

    /// Who has this address.
    fn known(&self, address: IpAddr) -> Result<Sender, String> {
        let hop = self.hop(address)?;
        if hop.is_local {
            return Ok(Sender {
                words: format!("this node, from {address}"),
                who: format!("this node, from {address},"),
                way: Way::Made(Some(address)),
                is_here: true,
            });
        }
        if self.is_of_pods(address) {
            let mut pod = self.pod(address)?;
            if !self.is_endpoint(address) {
                pod.who = format!("pod {address} on this node");
            }
            return Ok(pod);
        }
        Ok(Sender {
            words: format!("{address}, by {}", hop.interface),
            who: address.to_string(),
            is_here: hop.is_inner,
            way: Way::Comes(hop.interface, address),
        })
    }

    /// From outside: one, or where there are source ranges, one inside of them and one not.
    fn outsiders(&self) -> Result<Vec<Sender>, String> {
        let ranges = self.ranges();
        let nobodys: Vec<IpAddr> = if self.to.is_ipv4() {
            NOBODYS.map(IpAddr::V4).to_vec()
        } else {
            NOBODYS_V6.map(IpAddr::V6).to_vec()
        };
        if ranges.is_empty() {
            let address = nobodys.into_iter().find(|address| self.is_free(*address));
            return Ok(vec![self.outsider(address, "a host outside", "")?]);
        }
        let is_within = |address: &IpAddr| ranges.iter().any(|net| net.contains(address));
        let without = nobodys
            .iter()
            .copied()
            .find(|address| !is_within(address) && self.is_free(*address));
        let mut within = ranges.iter().flat_map(|net| {
            let nobodys = nobodys
                .iter()
                .copied()
                .filter(|address| net.contains(address));
            nobodys
                .chain((2..2 + TRIED).filter_map(|back| from_end(net, back)))
                .chain([net.network(), net.broadcast()])
        });
        let within = within.find(|address| {
            let hop = self.routing.hop(*address);
            !self.is_of_pods(*address)
                && self.is_free(*address)
                && hop.is_none_or(|hop| !hop.is_local)
        });
        let mut senders = Vec::new();
        if within.is_some() {
            let about = ", within loadBalancerSourceRanges";
            senders.push(self.outsider(
                within,
                "a host outside, within the source ranges,",
                about,
            )?);
        }
        if without.is_some() {
            let about = ", in none of loadBalancerSourceRanges";
            senders.push(self.outsider(without, "a host outside, in no source range,", about)?);
        }
        Ok(senders)
    }

    /// The source ranges that hold for this address.
    fn ranges(&self) -> Vec<IpNet> {
        let Some(of) = &self.of else {
            return Vec::new();
        };
        if of.address.kind != AddressKind::LoadBalancerIp {
            return Vec::new();
        }
        let ranges = of.service.source_ranges.iter();
        let ranges = ranges.filter_map(|range| range.parse::<IpNet>().ok());
        ranges.filter(|net| self.is_family(net.addr())).collect()
    }

    /// Whether no Service has it.
    fn is_free(&self, address: IpAddr) -> bool {
        let mut places = self.objects.places();
        !places.any(|place| place.at.ip() == address)
    }

    fn outsider(&self, address: Option<IpAddr>, who: &str, about: &str) -> Result<Sender, String> {
        let missing = || {
            format!(
                "every {} address for documentation is a Service's: give --from CLIENT-IP",
                self.family()
            )
        };
        let address = address.ok_or_else(missing)?;
        let sender = |words: String, interface: String, address: IpAddr| Sender {
            words,
            who: who.to_owned(),
            way: Way::Comes(interface, address),
            is_here: false,
        };
        if let Some(hop) = self.routing.hop(address) {
            let words = format!("outside {address}{about}");
            return Ok(sender(words, hop.interface, address));
        }
        let (beside, hop) = self.beside().ok_or_else(|| {
            format!(
                "this node has no {} default route, and no address of its own that a host outside could be beside \
                 is known: give --from CLIENT-IP",
                self.family()
            )
        })?;
        // Whoever is within ranges is not chosen freely.
        if !about.is_empty() {
            let words = format!("outside {address}{about}");
            return Ok(sender(words, hop.interface, address));
        }
        let words = format!("outside {beside}, beside this node, which has no default route");
        Ok(sender(words, hop.interface, beside))
    }

    /// A host that nobody knows of, in a network of this node's.
    fn beside(&self) -> Option<(IpAddr, Hop)> {
        let own = self.objects.node.addresses.iter().copied();
        let own = own.chain([self.to.ip()]);
        let mut beside = own
            .filter(|own| self.is_family(*own))
            .map(neighbour_of)
            .filter(|beside| self.is_free(*beside));
        beside.find_map(|beside| {
            let hop = self.routing.hop(beside)?;
            let is_beside = hop.is_neighbour && !hop.is_local && !self.is_by_pods(&hop.interface);
            is_beside.then_some((beside, hop))
        })
    }

    /// Whether an interface is that of a pod.
    fn is_by_pods(&self, interface: &str) -> bool {
        let pods = self.objects.node.pods.iter();
        let mut hops = pods.filter_map(|pod| self.routing.hop(*pod));
        hops.any(|hop| !hop.is_local && hop.interface == interface)
    }
}

/// The address so many before the end of a network; `None` if that is not within, or the network
/// itself.
fn from_end(net: &IpNet, back: u32) -> Option<IpAddr> {
    let address: IpAddr = match net.broadcast() {
        IpAddr::V4(last) => Ipv4Addr::from(u32::from(last).checked_sub(back)?).into(),
        IpAddr::V6(last) => Ipv6Addr::from(u128::from(last).checked_sub(back.into())?).into(),
    };
    (net.contains(&address) && address != net.network()).then_some(address)
}

/// An address beside this one.
fn neighbour_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let beside = Ipv4Addr::from(u32::from(address) ^ 1);
            // Mostly the network itself, or all in it.
            match beside.octets() {
                [.., 0 | 255] => Ipv4Addr::from(u32::from(address) ^ 2).into(),
                _ => beside.into(),
            }
        }
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) ^ 1).into(),
    }
}

#[cfg(test)]
mod tests;
