//! Parts of Services that this node does not serve, or serves with side effects, each with the
//! reason:
//!
//! * addresses that the model rejects;
//! * addresses that belong to this node, its networks or its next hop;
//! * parts that exceed the size limits of one Service;
//! * options (annotations) that this node ignores.

use std::cmp::Ordering;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::ignored_options::IgnoredOption;
use crate::limits::{
    FEW_FRONTENDS, MAX_DESTINATIONS, MAX_DESTINATIONS_OF_FEW, MAX_ENDPOINTS, MAX_FRONTENDS,
};
use crate::{AddressField, Excess, IpFamily, Model, NamespacedName, Refusal, ServiceAddress};

/// A contested part of a Service, with the Service's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contested {
    /// The Service to which the contested part belongs.
    pub service: NamespacedName,
    /// The contested part, with the reason.
    pub what: ContestedPart,
}

/// Part of a Service that this node does not serve, or serves with side effects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContestedPart {
    /// An address, the field of the Service that contains it, and the reason.
    Address(IpAddr, AddressField, ContestReason),
    /// A part of the Service that exceeds the limits.
    TooLarge(OverLimit),
    /// An option of the Service that this node ignores.
    Option(IgnoredOption),
}

/// Part of a Service that exceeds the limits, in one IP family. Only the IP family is compared, so
/// that a Service whose size varies is reported once.
#[derive(Debug, Clone, Copy)]
pub struct OverLimit(pub Excess);

impl PartialEq for OverLimit {
    fn eq(&self, other: &Self) -> bool {
        self.0.family == other.0.family
    }
}

impl Eq for OverLimit {}

impl PartialOrd for OverLimit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OverLimit {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.family.cmp(&other.0.family)
    }
}

/// Reason why this node does not serve an address, or serves it with side effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContestReason {
    /// The model rejects the address, so the proxy does not serve it.
    Refused(Refusal),
    /// The proxy serves the address, although it belongs to this node.
    OfNode,
    /// The proxy serves the address, although it is the next hop of this node's default route.
    NextHop,
    /// The proxy serves the address, although a network of one of the node's interfaces contains
    /// it.
    InNetwork(IpNet),
}

impl ContestedPart {
    /// All results of [`label`](Self::label), in the order in which the metric lists them.
    pub const LABELS: [&str; 10] = [
        "cluster-ip",
        "api-server",
        "not-allowed",
        "source-ranges",
        "load-balancer",
        "node-port",
        "node",
        "next-hop",
        "node-network",
        "limit",
    ];

    /// Returns the reason as the value of a metric's label, or `None` for an ignored option.
    pub fn label(&self) -> Option<&'static str> {
        Some(match self {
            Self::Address(_, _, ContestReason::Refused(Refusal::ClusterIp)) => "cluster-ip",
            Self::Address(_, _, ContestReason::Refused(Refusal::ApiServer(_))) => "api-server",
            Self::Address(_, _, ContestReason::Refused(Refusal::NotAllowed)) => "not-allowed",
            Self::Address(_, _, ContestReason::Refused(Refusal::SourceRanges)) => "source-ranges",
            Self::Address(_, _, ContestReason::Refused(Refusal::LoadBalancer(..))) => {
                "load-balancer"
            }
            Self::Address(_, _, ContestReason::Refused(Refusal::NodePort(..))) => "node-port",
            Self::Address(_, _, ContestReason::OfNode) => "node",
            Self::Address(_, _, ContestReason::NextHop) => "next-hop",
            Self::Address(_, _, ContestReason::InNetwork(_)) => "node-network",
            Self::TooLarge(_) => "limit",
            Self::Option(_) => return None,
        })
    }

    /// Returns the number of external and load-balancer addresses in this part.
    pub fn addresses(&self) -> usize {
        match self {
            Self::Address(..) => 1,
            Self::TooLarge(OverLimit(excess)) => excess.addresses(),
            Self::Option(_) => 0,
        }
    }
}

impl Contested {
    /// Returns the IP family of the part, or `None` if the part affects the whole Service.
    pub fn family(&self) -> Option<IpFamily> {
        match &self.what {
            ContestedPart::Address(address, ..) => Some(IpFamily::of(*address)),
            ContestedPart::TooLarge(OverLimit(excess)) => Some(excess.family),
            ContestedPart::Option(_) => None,
        }
    }

    /// True if the proxy does not serve the part. False if the proxy serves the part despite the
    /// reason.
    pub fn is_refused(&self) -> bool {
        match &self.what {
            ContestedPart::TooLarge(_) | ContestedPart::Option(_) => true,
            ContestedPart::Address(_, _, why) => matches!(why, ContestReason::Refused(_)),
        }
    }

    /// Describes the action that the Service requests, such as `serve 192.0.2.1
    /// (spec.externalIPs)`.
    pub fn object(&self) -> String {
        match &self.what {
            ContestedPart::Address(
                ip,
                field,
                ContestReason::Refused(
                    Refusal::LoadBalancer(port, protocol) | Refusal::NodePort(port, protocol),
                ),
            ) => {
                let at = ServiceAddress::new(*ip, *port, *protocol);
                format!("serve {at} ({})", field.name())
            }
            ContestedPart::Address(address, field, _) => {
                format!("serve {address} ({})", field.name())
            }
            ContestedPart::TooLarge(OverLimit(excess)) => format!("serve {excess}"),
            ContestedPart::Option(unheeded) => unheeded.object(),
        }
    }

    /// Returns the reason as text, with advice for the Service's author. Takes the names of other
    /// Services from `model`, if given.
    pub fn reason(&self, model: Option<&Model>) -> String {
        let (address, field, why) = match &self.what {
            ContestedPart::Option(unheeded) => return unheeded.reason.clone(),
            ContestedPart::Address(address, field, why) => (*address, field.name(), *why),
            ContestedPart::TooLarge(OverLimit(excess)) => {
                return format!(
                    "one Service may have {MAX_FRONTENDS} addresses x ports, {MAX_ENDPOINTS} \
                     endpoints of a port, and \
                     {MAX_DESTINATIONS} addresses x ports x endpoints ({MAX_DESTINATIONS_OF_FEW} \
                     with up to {FEW_FRONTENDS} \
                     addresses x ports) in {}, of which the cluster IP comes first, then \
                     load-balancer addresses, then \
                     external IPs, in the Service's order; split it into several Services",
                    excess.family
                );
            }
        };
        match why {
            ContestReason::Refused(Refusal::ClusterIp) => {
                let owner = model.and_then(|model| model.service_at(address));
                let owner = named(owner);
                format!("it is the cluster IP of {owner}; remove it from {field}")
            }
            ContestReason::Refused(Refusal::ApiServer(port)) => format!(
                "the API server is at {}, which this node would lose; remove it from {field}, or if \
                 it is meant, \
                 add {} to --allowed-external-cidrs, beside the networks of all other external \
                 addresses",
                SocketAddr::new(address, port),
                IpNet::from(address)
            ),
            ContestReason::Refused(Refusal::NotAllowed) => format!(
                "it is in no network of --allowed-external-cidrs; remove it from {field}, or add a \
                 network there"
            ),
            ContestReason::Refused(Refusal::SourceRanges) => format!(
                "spec.loadBalancerSourceRanges has an invalid range and no {} network, so no \
                 client may reach it; correct the range",
                IpFamily::of(address)
            ),
            ContestReason::Refused(Refusal::LoadBalancer(port, protocol)) => {
                let at = ServiceAddress::new(address, port, protocol);
                let owner = model.and_then(|model| model.load_balancer_at(at));
                let owner = named(owner);
                format!(
                    "it is assigned to {owner} as a load balancer's address ({}), which comes \
                     before external IPs; remove it from {field}, or choose another port",
                    AddressField::Ingress.name()
                )
            }
            ContestReason::Refused(Refusal::NodePort(port, protocol)) => {
                let owner = named(model.and_then(|model| model.node_port_of(port, protocol)));
                format!(
                    "it is an address of this node, and {port}/{protocol} there is the node port \
                     of {owner}, which comes before \
                     external IPs; remove it from {field}, or choose another port"
                )
            }
            ContestReason::NextHop => format!(
                "it is the next hop of this node's default route: in IPVS mode this node takes \
                 the address for its own, and \
                 reaches nothing through it; remove it from {field}"
            ),
            ContestReason::InNetwork(net) => format!(
                "it is in {net}, a network of this node's interfaces: in IPVS mode this node \
                 takes the address for its own, and \
                 reaches nothing else of the host that has it, another node perhaps; if that is \
                 not meant, remove it from {field}"
            ),
            ContestReason::OfNode => format!(
                "it is an address of this node: what is sent to the Service's ports there goes to \
                 the Service, and \
                 to nothing that listens on the node; if that is not meant, remove it from {field}"
            ),
        }
    }

    /// True if the reason is specific to this node, such as its addresses or its kernel.
    pub fn is_of_this_node(&self) -> bool {
        match &self.what {
            ContestedPart::TooLarge(_) => false,
            ContestedPart::Option(unheeded) => unheeded.is_of_this_node,
            ContestedPart::Address(_, _, ContestReason::Refused(why)) => {
                matches!(why, Refusal::NodePort(..))
            }
            ContestedPart::Address(..) => true,
        }
    }

    /// Formats the part and its reason as one line of text. Takes the names of other Services from
    /// `model`.
    pub fn line(&self, model: &Model) -> String {
        let Self { service, .. } = self;
        let reason = self.reason(Some(model));
        match self.what {
            ContestedPart::Address(address, field, _) if !self.is_refused() => {
                let field = field.name();
                format!("{address} ({field}) is served for Service {service}: {reason}")
            }
            _ => format!("cannot {} for Service {service}: {reason}", self.object()),
        }
    }
}

/// Returns `Service NAME` for a message, or `another Service` if the owner of an address is
/// unknown.
fn named(owner: Option<&NamespacedName>) -> String {
    owner.map_or_else(
        || "another Service".to_owned(),
        |name| format!("Service {name}"),
    )
}
