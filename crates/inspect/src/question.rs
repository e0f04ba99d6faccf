//! Questions to the daemon's main loop, and its replies, which are copies of limited size.
//!
//! The limits keep each turn of the main loop short. A test measures the duration of a turn:
//! `run::answers::tests::no_inspection_api_request_blocks_the_main_loop`.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ::explain::OwnNode;
use proxy::contested::Contested;
use proxy::{
    Conflict, Drains, EndpointSlice, Failure, NamespacedName, NodeFacts, NodePorts, Service,
    ServiceAddress, ServiceView,
};
use tokio::sync::oneshot::Sender;

use super::facts::Facts;
use super::owners::{Owners, RequestedPorts};

/// Maximum number of Service names that the main loop copies in one turn.
pub const NAMES_A_TURN: usize = 2_500;
/// Maximum number of Services that the main loop copies in one turn. With many endpoints, it copies
/// fewer Services.
pub const SERVICES_A_TURN: usize = 100;
/// Number of copied endpoints after which the main loop copies no further Service in the same turn.
/// It never divides the endpoints of one Service.
pub const ENDPOINTS_A_TURN: usize = 25_000;
/// Maximum number of failures, and of conflicts, that the main loop copies for each IP family.
pub const TROUBLES: usize = 1_000;
/// Maximum number of draining endpoints that the main loop copies with their start times, for each
/// IP family.
pub const DRAINS: usize = 1_000;

/// Question to the daemon's main loop, with the channel for its reply. A reply takes about 2 ms at
/// most, or longer for a Service with more than [`ENDPOINTS_A_TURN`] endpoints.
pub enum Question {
    /// Asks for the state of the daemon.
    Facts(Sender<Facts>),
    /// Asks for the Service ports that own addresses. The loop checks a limited number of Services,
    /// from the given index on.
    Owners(Arc<RequestedPorts>, usize, Sender<Owners>),
    /// Asks for names of Services, unsorted. The loop returns a limited number, from the given
    /// index on.
    Names(usize, Sender<Names>),
    /// Asks for copies of the named Services. The loop returns the first of them, at least one.
    Services(Vec<NamespacedName>, Sender<Vec<Option<ServiceCopy>>>),
    /// Asks for the node's addresses, and for the problems in each IP family.
    Ground(Sender<NodeContext>),
    /// Asks for the Services that have an address and port. The loop checks a limited number of
    /// Services, from the given index on.
    Claimants(usize, IpAddr, u16, Sender<ClaimingServices>),
    /// Asks for the mode's name, for facts about this node, and for Services that name the given
    /// address as an external one.
    OwnNode(Option<IpAddr>, Sender<(&'static str, OwnNode)>),
}

/// Services with the requested address and port, among those that one turn of the main loop has
/// checked.
#[derive(Debug, Default)]
pub struct ClaimingServices {
    /// Names of the Services with the requested address and port.
    pub names: Vec<NamespacedName>,
    /// Version of the list of Services. If two replies have different versions, their indexes do
    /// not refer to the same list.
    pub version: u64,
    /// Index from which the next question must continue, or `None` once all Services are checked.
    pub next: Option<usize>,
}

/// Names of Services that one turn of the main loop has copied.
#[derive(Debug)]
pub struct Names {
    /// Names of some Services, in no order.
    pub some: Vec<NamespacedName>,
    /// Version of the list of Services. If two replies have different versions, their indexes do
    /// not refer to the same list.
    pub version: u64,
    /// True if no Service names follow these.
    pub is_last: bool,
}

/// A copy of a Service with its EndpointSlices.
#[derive(Debug)]
pub struct ServiceCopy {
    /// Copy of the Service object.
    pub service: Service,
    /// Copies of the Service's EndpointSlices.
    pub slices: Vec<EndpointSlice>,
}

impl ServiceCopy {
    /// Copies a Service and its EndpointSlices.
    pub fn of(view: &ServiceView<'_>) -> Self {
        Self {
            service: view.service.clone(),
            slices: view.slices().cloned().collect(),
        }
    }

    /// Returns the number of endpoints in the EndpointSlices.
    pub fn endpoint_count(&self) -> usize {
        self.slices.iter().map(|slice| slice.endpoints.len()).sum()
    }

    /// Returns the number of lines in a list of the Service's endpoints: one for each endpoint and
    /// Service port.
    pub(crate) fn listed_count(&self) -> usize {
        self.endpoint_count()
            .saturating_mul(self.service.ports.len())
    }

    pub(crate) fn view(&self) -> ServiceView<'_> {
        ServiceView::new(&self.service, &self.slices)
    }
}

/// Facts about the node and its problems, needed for responses about Services.
#[derive(Debug, Default)]
pub struct NodeContext {
    /// Problems of each IP family that the daemon serves.
    pub families: Vec<GroundOfFamily>,
    /// Parts of Services that the daemon rejects: addresses, options, and Services above the size
    /// limit.
    pub refused: Vec<Contested>,
}

/// Facts about the node and its problems, in one IP family.
#[derive(Debug)]
pub struct GroundOfFamily {
    /// Facts about the node, such as its name and zone.
    pub node: NodeFacts,
    /// Addresses that serve NodePorts, or `None` if they are unknown.
    pub node_ports: Option<NodePorts>,
    /// Entries that the kernel refuses, with the kernel's errors.
    pub failures: Vec<Failure>,
    /// Addresses that more than one Service claims.
    pub conflicts: Vec<Conflict>,
    /// Addresses and ports at which another program has a virtual server.
    pub held_by_others: HashSet<ServiceAddress>,
    /// Draining endpoints, of which at most [`DRAINS`] have details.
    pub drains: Drains,
    /// Time at which the main loop copied these facts.
    pub now: Instant,
}
