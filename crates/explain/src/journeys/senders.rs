//! Chooses the senders of each requested kind, with their addresses and interfaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use proxy::{IpFamily, LocalDetector};
use view::AddressKind;

use super::{Hop, PacketOrigin, Routing, Sender};
use crate::objects::{Objects, ServicePortAddress};
use crate::trace_request::TraceSender;

/// IPv4 addresses that no host should have, because RFC 5737 reserves them for documentation.
const NOBODYS: [Ipv4Addr; 3] = [
    Ipv4Addr::new(203, 0, 113, 7),
    Ipv4Addr::new(198, 51, 100, 7),
    Ipv4Addr::new(192, 0, 2, 7),
];
/// IPv6 addresses that no host should have, because RFC 3849 and RFC 9637 reserve them for
/// documentation.
const NOBODYS_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 7),
    Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 7),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0xffff, 0, 0, 0, 7),
];
/// Number of addresses that the search for a sender tries in one network.
const TRIED: u32 = 16;

/// Facts from which the senders to one destination are chosen.
pub(super) struct SenderChoice<'a, 'r> {
    pub(super) objects: &'a Objects,
    pub(super) routing: &'r dyn Routing,
    pub(super) to: SocketAddr,
    pub(super) of: Option<ServicePortAddress<'a>>,
}

impl SenderChoice<'_, '_> {
    /// Returns the senders of the kind `from`, or a note for the user if there are none.
    pub(super) fn senders(&self, from: TraceSender) -> Result<Vec<Sender>, String> {
        match from {
            TraceSender::Node => Ok(vec![Sender {
                words: "this node".to_owned(),
                who: "this node".to_owned(),
                way: PacketOrigin::Made(None),
                is_here: true,
                has_service_address: false,
                stranger: None,
            }]),
            TraceSender::Pod => {
                let itself = self.local_endpoint().map(|itself| self.pod(itself));
                let other = self.pod_address().map(|other| self.pod(other));
                let all: Result<Vec<Sender>, String> = other.into_iter().chain(itself).collect();
                let all = all?;
                if all.is_empty() {
                    return Err(format!(
                        "no {} address of a pod of this node is known, by spec.podCIDRs of its \
                         Node or by an EndpointSlice: \
                         give --from POD-IP (kubectl get pods -A -o wide)",
                        self.family()
                    ));
                }
                Ok(all)
            }
            TraceSender::External => self.outsiders(),
            TraceSender::Address(address) => self.known(address).map(|one| vec![one]),
        }
    }

    fn family(&self) -> &'static str {
        if self.to.is_ipv4() { "IPv4" } else { "IPv6" }
    }

    fn is_family(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.to.is_ipv4()
    }

    /// Returns the address of the first endpoint on this node that gets traffic to the destination.
    fn local_endpoint(&self) -> Option<IpAddr> {
        let endpoints = self.of.iter().flat_map(ServicePortAddress::endpoints);
        let mut own = endpoints
            .filter(|(_, endpoint)| endpoint.local && (endpoint.cluster || endpoint.local_policy));
        own.next().map(|(at, _)| at.ip())
    }

    fn is_endpoint(&self, address: IpAddr) -> bool {
        let mut endpoints = self.of.iter().flat_map(ServicePortAddress::endpoints);
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

    /// Returns an address of a pod on this node that is no endpoint of the destination's Service.
    /// Tries the end of each pod network first, because the bridge's address is usually at the
    /// start. Then tries known pods.
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
            // The closure `is_one` skips pods in the host network, because their address is the
            // node's own.
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
            stranger: self.stranger(&hop.interface, address),
            way: PacketOrigin::Comes(hop.interface, address),
            is_here: true,
            has_service_address: false,
        })
    }

    fn hop(&self, address: IpAddr) -> Result<Hop, String> {
        self.routing.hop(address).ok_or_else(|| {
            format!(
                "this node has no route to {address}, so no packet comes from there: see `ip \
                 route get {address}`"
            )
        })
    }

    /// Returns the sender with the given address: this node, a pod or another host.
    fn known(&self, address: IpAddr) -> Result<Sender, String> {
        let hop = self.hop(address)?;
        if hop.is_local && (hop.is_service || self.is_of_service(address)) {
            return self.balancer(address);
        }
        if hop.is_local {
            return Ok(Sender {
                words: format!("this node, from {address}"),
                who: format!("this node, from {address},"),
                way: PacketOrigin::Made(Some(address)),
                is_here: true,
                has_service_address: false,
                stranger: None,
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
            has_service_address: false,
            stranger: if hop.is_inner {
                self.stranger(&hop.interface, address)
            } else {
                None
            },
            way: PacketOrigin::Comes(hop.interface, address),
        })
    }

    /// Returns the reason why the mode's rules do not recognise the host `address` behind
    /// `interface` as a pod. Returns `None` if they do, or if the mode has no rules that recognise
    /// pods.
    fn stranger(&self, interface: &str, address: IpAddr) -> Option<String> {
        let mode = self.objects.mode.as_deref();
        if !matches!(mode, Some("iptables" | "nftables")) {
            return None;
        }
        let family = IpFamily::of(address);
        let mut detectors = self.objects.node.detectors.iter();
        let (_, detector) = detectors.find(|(of, _)| *of == family)?;
        match detector {
            LocalDetector::None => Some(
                "nothing tells pods of this node apart: give --cluster-cidr, or another \
                 --detect-local-mode"
                    .to_owned(),
            ),
            LocalDetector::SourceNet(net) if !net.contains(&address) => Some(format!(
                "it is not in {net}: let --cluster-cidr (with --detect-local-mode=NodeCIDR: \
                 spec.podCIDRs of the Node) \
                 have the network of pods"
            )),
            LocalDetector::Bridge(bridge) if bridge != interface => Some(format!(
                "its interface is {interface}, not {bridge}: set --pod-bridge-interface to the \
                 pods' bridge"
            )),
            LocalDetector::InterfacePrefix(prefix) if !interface.starts_with(prefix) => {
                Some(format!(
                    "its interface {interface} does not begin with {prefix}: set \
                 --pod-interface-name-prefix to the prefix of pods' interfaces, or set \
                 --detect-local-mode=ClusterCIDR with --cluster-cidr"
                ))
            }
            _ => None,
        }
    }

    /// Returns a host outside the cluster that sends from a service address, such as a load
    /// balancer with its probes. This node has the same address, but uses it as a source only for
    /// packets to itself.
    fn balancer(&self, address: IpAddr) -> Result<Sender, String> {
        let who = format!("{address}, which this node has as a Service's address too,");
        let outside = self.outsider(Some(self.nobody()), &who, "")?;
        let PacketOrigin::Comes(interface, _) = outside.way else {
            return Ok(outside);
        };
        Ok(Sender {
            words: format!("outside {address}, by {interface}"),
            way: PacketOrigin::Comes(interface, address),
            has_service_address: true,
            stranger: None,
            who,
            is_here: false,
        })
    }

    /// Returns an address of the destination's IP family that no host should have.
    fn nobody(&self) -> IpAddr {
        super::nobodys(self.to.is_ipv4())
    }

    /// Reports whether `address` is a load-balancer address of a known Service, and not an address
    /// of the Node object.
    fn is_of_service(&self, address: IpAddr) -> bool {
        let is_own = self.objects.node.addresses.contains(&address);
        let mut places = self.objects.places();
        !is_own && places.any(|place| place.at.ip() == address && is_balanced(&place))
    }

    /// Returns hosts outside the cluster as senders: one or, if the Service has source ranges, one
    /// inside and one outside of these. Skips a sender for which no address exists.
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

    /// Returns the source ranges that apply to the destination. Only a load-balancer address has
    /// such ranges.
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

    /// Reports whether no known Service has this address.
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
            way: PacketOrigin::Comes(interface, address),
            is_here: false,
            has_service_address: false,
            stranger: None,
        };
        if let Some(hop) = self.routing.hop(address) {
            let words = format!("outside {address}{about}");
            return Ok(sender(words, hop.interface, address));
        }
        let (beside, hop) = self.beside().ok_or_else(|| {
            format!(
                "this node has no {} default route, and no address of its own that a host outside \
                 could be beside \
                 is known: give --from CLIENT-IP",
                self.family()
            )
        })?;
        // With source ranges, the sender keeps its address, because the ranges admit or reject it.
        // Only the interface is the neighbouring host's.
        if !about.is_empty() {
            let words = format!("outside {address}{about}");
            return Ok(sender(words, hop.interface, address));
        }
        let words = format!("outside {beside}, beside this node, which has no default route");
        Ok(sender(words, hop.interface, beside))
    }

    /// Returns the next address to one of the node's own addresses, or to the destination, with its
    /// next hop. No Service has it, and its network is directly connected and without pods.
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

    /// Reports whether the route to a known pod of this node uses the interface.
    fn is_by_pods(&self, interface: &str) -> bool {
        let pods = self.objects.node.pods.iter();
        let mut hops = pods.filter_map(|pod| self.routing.hop(*pod));
        hops.any(|hop| !hop.is_local && hop.interface == interface)
    }
}

fn is_balanced(place: &ServicePortAddress<'_>) -> bool {
    place.address.kind == AddressKind::LoadBalancerIp
}

/// Returns the address that is `back` addresses before the last one of a network. Returns `None` if
/// it is outside the network, or is the network address.
pub(super) fn from_end(net: &IpNet, back: u32) -> Option<IpAddr> {
    let address: IpAddr = match net.broadcast() {
        IpAddr::V4(last) => Ipv4Addr::from(u32::from(last).checked_sub(back)?).into(),
        IpAddr::V6(last) => Ipv6Addr::from(u128::from(last).checked_sub(back.into())?).into(),
    };
    (net.contains(&address) && address != net.network()).then_some(address)
}

/// Returns an address that differs from `address` only in one of the two lowest bits.
pub(super) fn neighbour_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let beside = Ipv4Addr::from(u32::from(address) ^ 1);
            // Avoids addresses that end in 0 or 255, which are often network or broadcast
            // addresses.
            match beside.octets() {
                [.., 0 | 255] => Ipv4Addr::from(u32::from(address) ^ 2).into(),
                _ => beside.into(),
            }
        }
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) ^ 1).into(),
    }
}
