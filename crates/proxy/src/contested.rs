//! Addresses and parts of Services that are not served, or that are the node's own, and options that are
//! not heeded; and why.

use std::cmp::Ordering;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::limits::{
    FEW_FRONTENDS, MAX_DESTINATIONS, MAX_DESTINATIONS_OF_FEW, MAX_ENDPOINTS, MAX_FRONTENDS,
};
use crate::unheeded::Unheeded;
use crate::{AddressField, Excess, IpFamily, Model, NamespacedName, Refusal, ServiceAddress};

/// Part of a Service that is not served as it was meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contested {
    /// The Service.
    pub service: NamespacedName,
    /// The part of it.
    pub what: What,
}

/// The part of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// An address in a field.
    Address(IpAddr, AddressField, Why),
    /// The part above the limits.
    TooLarge(Left),
    /// An option that is not heeded.
    Option(Unheeded),
}

/// The part above the limits. One for each family: how large it is makes no other one of it, so that
/// a Service that scales is told once.
#[derive(Debug, Clone, Copy)]
pub struct Left(pub Excess);

impl PartialEq for Left {
    fn eq(&self, other: &Self) -> bool {
        self.0.family == other.0.family
    }
}

impl Eq for Left {}

impl PartialOrd for Left {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Left {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.family.cmp(&other.0.family)
    }
}

/// The reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// It is not served.
    Refused(Refusal),
    /// It is served, and an address of this node.
    OfNode,
    /// It is served, and the next hop of this node's default route.
    NextHop,
    /// It is served, and in this network of an interface of this node.
    InNetwork(IpNet),
}

impl What {
    /// The reasons that the gauge has, in the order of its values.
    pub const LABELS: [&str; 9] = [
        "cluster-ip",
        "api-server",
        "not-allowed",
        "load-balancer",
        "node-port",
        "node",
        "next-hop",
        "node-network",
        "limit",
    ];

    /// Returns the reason, as the gauge has it; `None` of what is no address.
    pub fn label(&self) -> Option<&'static str> {
        Some(match self {
            Self::Address(_, _, Why::Refused(Refusal::ClusterIp)) => "cluster-ip",
            Self::Address(_, _, Why::Refused(Refusal::ApiServer(_))) => "api-server",
            Self::Address(_, _, Why::Refused(Refusal::NotAllowed)) => "not-allowed",
            Self::Address(_, _, Why::Refused(Refusal::LoadBalancer(..))) => "load-balancer",
            Self::Address(_, _, Why::Refused(Refusal::NodePort(..))) => "node-port",
            Self::Address(_, _, Why::OfNode) => "node",
            Self::Address(_, _, Why::NextHop) => "next-hop",
            Self::Address(_, _, Why::InNetwork(_)) => "node-network",
            Self::TooLarge(_) => "limit",
            Self::Option(_) => return None,
        })
    }

    /// Counts the addresses that it stands for.
    pub fn addresses(&self) -> usize {
        match self {
            Self::Address(..) => 1,
            Self::TooLarge(Left(excess)) => excess.addresses(),
            Self::Option(_) => 0,
        }
    }
}

impl Contested {
    /// Returns the family of its addresses; `None` where it concerns all of the Service.
    pub fn family(&self) -> Option<IpFamily> {
        match &self.what {
            What::Address(address, ..) => Some(IpFamily::of(*address)),
            What::TooLarge(Left(excess)) => Some(excess.family),
            What::Option(_) => None,
        }
    }

    /// Whether it is not served.
    pub fn is_refused(&self) -> bool {
        match &self.what {
            What::TooLarge(_) | What::Option(_) => true,
            What::Address(_, _, why) => matches!(why, Why::Refused(_)),
        }
    }

    /// What is not done, or done: `serve 192.0.2.1 (spec.externalIPs)`.
    pub fn object(&self) -> String {
        match &self.what {
            What::Address(
                ip,
                field,
                Why::Refused(
                    Refusal::LoadBalancer(port, protocol) | Refusal::NodePort(port, protocol),
                ),
            ) => {
                let at = ServiceAddress::new(*ip, *port, *protocol);
                format!("serve {at} ({})", field.name())
            }
            What::Address(address, field, _) => format!("serve {address} ({})", field.name()),
            What::TooLarge(Left(excess)) => format!("serve {excess}"),
            What::Option(unheeded) => unheeded.object(),
        }
    }

    /// Why, and what to do.
    pub fn reason(&self, model: Option<&Model>) -> String {
        let (address, field, why) = match &self.what {
            What::Option(unheeded) => return unheeded.reason.clone(),
            What::Address(address, field, why) => (*address, field.name(), *why),
            What::TooLarge(Left(excess)) => {
                return format!(
                    "one Service may have {MAX_FRONTENDS} addresses x ports, {MAX_ENDPOINTS} endpoints of a port, and \
                     {MAX_DESTINATIONS} addresses x ports x endpoints ({MAX_DESTINATIONS_OF_FEW} with up to {FEW_FRONTENDS} \
                     addresses x ports) in {}, of which the cluster IP comes first, then load-balancer addresses, then \
                     external IPs, in the Service's order; split it into several Services",
                    excess.family
                );
            }
        };
        match why {
            Why::Refused(Refusal::ClusterIp) => {
                let owner = model.and_then(|model| model.service_at(address));
                let owner = named(owner);
                format!("it is the cluster IP of {owner}; take it out of {field}")
            }
            Why::Refused(Refusal::ApiServer(port)) => format!(
                "the API server is at {}, which this node would lose; take it out of {field}, or if it is meant, \
                 add {} to --allowed-external-cidrs, beside the networks of all other external addresses",
                SocketAddr::new(address, port),
                IpNet::from(address)
            ),
            Why::Refused(Refusal::NotAllowed) => format!(
                "it is in no network of --allowed-external-cidrs; take it out of {field}, or add a network there"
            ),
            Why::Refused(Refusal::LoadBalancer(port, protocol)) => {
                let at = ServiceAddress::new(address, port, protocol);
                let owner = model.and_then(|model| model.load_balancer_at(at));
                let owner = named(owner);
                format!(
                    "it is assigned to {owner} as a load balancer's address ({}), which comes before external IPs; \
                     take it out of {field}, or choose another port",
                    AddressField::Ingress.name()
                )
            }
            Why::Refused(Refusal::NodePort(port, protocol)) => {
                let owner = named(model.and_then(|model| model.node_port_of(port, protocol)));
                format!(
                    "it is an address of this node, and {port}/{protocol} there is the node port of {owner}, which comes before \
                     external IPs; take it out of {field}, or choose another port"
                )
            }
            Why::NextHop => format!(
                "it is the next hop of this node's default route: in IPVS mode this node takes the address for its own, and \
                 reaches nothing through it; take it out of {field}"
            ),
            Why::InNetwork(net) => format!(
                "it is in {net}, a network of this node's interfaces: in IPVS mode this node takes the address for its own, and \
                 reaches nothing else of the host that has it, another node perhaps; if that is not meant, take it out of {field}"
            ),
            Why::OfNode => format!(
                "it is an address of this node: what is sent to the Service's ports there goes to the Service, and \
                 to nothing that listens on the node; if that is not meant, take it out of {field}"
            ),
        }
    }

    /// Reports whether it depends on this node: its addresses, or its kernel.
    pub fn is_of_this_node(&self) -> bool {
        match &self.what {
            What::TooLarge(_) => false,
            What::Option(unheeded) => unheeded.is_of_this_node,
            What::Address(_, _, Why::Refused(why)) => matches!(why, Refusal::NodePort(..)),
            What::Address(..) => true,
        }
    }

    /// Says it in one line, with names from this model.
    pub fn line(&self, model: &Model) -> String {
        let Self { service, .. } = self;
        let reason = self.reason(Some(model));
        match self.what {
            What::Address(address, field, _) if !self.is_refused() => {
                let field = field.name();
                format!("{address} ({field}) is served for Service {service}: {reason}")
            }
            _ => format!("cannot {} for Service {service}: {reason}", self.object()),
        }
    }
}

/// The Service that has an address, for a message.
fn named(owner: Option<&NamespacedName>) -> String {
    owner.map_or_else(
        || "another Service".to_owned(),
        |name| format!("Service {name}"),
    )
}
