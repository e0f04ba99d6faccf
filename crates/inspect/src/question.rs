//! Requests to the daemon's loop, and its replies: copies of limited size.
//!
//! The limits keep each turn of the loop short, and replies small.
//! `run::answers::tests::no_api_request_blocks_the_loop` measures the cost of a turn.

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

/// Maximum number of names that the loop returns in one turn.
pub const NAMES_A_TURN: usize = 2_500;
/// Maximum number of Services in one turn. Services with many endpoints lower the number.
pub const SERVICES_A_TURN: usize = 100;
/// Maximum number of endpoints in one turn. The endpoints of one Service are never split.
pub const ENDPOINTS_A_TURN: usize = 25_000;
/// Maximum number of failures, and of conflicts, in a family.
pub const TROUBLES: usize = 1_000;
/// Maximum number of drains with a start time in a family.
pub const DRAINS: usize = 1_000;

/// Request to the daemon's loop, with the channel for its reply. Each request takes at most about 2
/// ms, except for a Service with more than [`ENDPOINTS_A_TURN`] endpoints.
pub enum Question {
    /// Requests the state of the daemon.
    Facts(Sender<Facts>),
    /// Request for the owners of addresses. One turn checks a limited number of Services, beginning
    /// at an index.
    Owners(Arc<RequestedPorts>, usize, Sender<Owners>),
    /// Request for the names of Services, unsorted and beginning at an index. One turn returns a
    /// limited number.
    Names(usize, Sender<Names>),
    /// Requests copies of these Services. One turn returns a limited number, at least one.
    Services(Vec<NamespacedName>, Sender<Vec<Option<ServiceCopy>>>),
    /// Requests facts about the node and its problems.
    Ground(Sender<NodeContext>),
    /// Request for the Services with an address and port. One turn checks a limited number of
    /// Services, beginning at an index.
    Claimants(usize, IpAddr, u16, Sender<ClaimingServices>),
    /// Requests the name of the mode, and facts about this node and this address.
    OwnNode(Option<IpAddr>, Sender<(&'static str, OwnNode)>),
}

/// Services that have an address, among those that one turn checked.
#[derive(Debug, Default)]
pub struct ClaimingServices {
    /// Names of the Services that have the address.
    pub names: Vec<NamespacedName>,
    /// Version of the list of Services, which changes with their order.
    pub version: u64,
    /// Index at which the next turn continues. `None`: all Services were checked.
    pub next: Option<usize>,
}

/// Names of Services that one turn returns.
#[derive(Debug)]
pub struct Names {
    /// Names of Services, unsorted.
    pub some: Vec<NamespacedName>,
    /// Version of the list of Services, which changes with their order.
    pub version: u64,
    /// True if no further names follow.
    pub is_last: bool,
}

/// A copy of a Service and its EndpointSlices.
#[derive(Debug)]
pub struct ServiceCopy {
    /// Copy of the Service.
    pub service: Service,
    /// Copies of its EndpointSlices.
    pub slices: Vec<EndpointSlice>,
}

impl ServiceCopy {
    /// Copies a Service and its slices.
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

    /// Returns the number of listed endpoints. An endpoint counts once for each port.
    pub(crate) fn listed_count(&self) -> usize {
        self.endpoint_count()
            .saturating_mul(self.service.ports.len())
    }

    pub(crate) fn view(&self) -> ServiceView<'_> {
        ServiceView::new(&self.service, &self.slices)
    }
}

/// The node and its problems, for responses about Services.
#[derive(Debug, Default)]
pub struct NodeContext {
    /// Served families, with their problems.
    pub families: Vec<GroundOfFamily>,
    /// External and load-balancer addresses that are not served.
    pub refused: Vec<Contested>,
}

/// The node and its problems in one IP family.
#[derive(Debug)]
pub struct GroundOfFamily {
    /// Name and zone of the node.
    pub node: NodeFacts,
    /// Addresses that serve NodePorts. `None`: unknown.
    pub node_ports: Option<NodePorts>,
    /// Entries that the kernel rejects.
    pub failures: Vec<Failure>,
    /// Addresses that two Services claim.
    pub conflicts: Vec<Conflict>,
    /// Addresses and ports at which another program has a virtual server.
    pub held_by_others: HashSet<ServiceAddress>,
    /// Draining endpoints. At most [`DRAINS`].
    pub drains: Drains,
    /// Time of this reply.
    pub now: Instant,
}
