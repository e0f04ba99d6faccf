//! Questions to the daemon's loop, and its replies, which are copies of limited size.
//!
//! The limits keep each turn of the loop short. A test measures the time that a turn takes:
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

/// Maximum number of names that the loop copies in one turn.
pub const NAMES_A_TURN: usize = 2_500;
/// Maximum number of Services that the loop copies in one turn. The loop copies fewer Services if
/// they have many endpoints.
pub const SERVICES_A_TURN: usize = 100;
/// Number of endpoints after which the loop copies no further Service in the same turn. The loop
/// always copies all endpoints of a Service in one turn.
pub const ENDPOINTS_A_TURN: usize = 25_000;
/// Maximum number of failures, and of conflicts, that the loop copies for one IP family.
pub const TROUBLES: usize = 1_000;
/// Maximum number of draining endpoints with a start time that the loop copies for one IP family.
pub const DRAINS: usize = 1_000;

/// Question to the daemon's loop, with the channel for its reply. The loop takes at most about 2 ms
/// for a reply, or longer for a Service with more than [`ENDPOINTS_A_TURN`] endpoints.
pub enum Question {
    /// Question for the state of the daemon.
    Facts(Sender<Facts>),
    /// Question for the owners of addresses. The loop checks a limited number of Services, from
    /// this index on.
    Owners(Arc<RequestedPorts>, usize, Sender<Owners>),
    /// Question for the names of Services, unsorted. The loop returns a limited number, from this
    /// index on.
    Names(usize, Sender<Names>),
    /// Question for copies of the named Services. The loop returns at least one, but possibly not
    /// all.
    Services(Vec<NamespacedName>, Sender<Vec<Option<ServiceCopy>>>),
    /// Question for the node's addresses, and for the problems of each IP family.
    Ground(Sender<NodeContext>),
    /// Question for the Services that have an address and port. The loop checks a limited number of
    /// Services, from this index on.
    Claimants(usize, IpAddr, u16, Sender<ClaimingServices>),
    /// Question for the name of the mode, for facts about this node, and for Services that name
    /// this address.
    OwnNode(Option<IpAddr>, Sender<(&'static str, OwnNode)>),
}

/// Services that have the requested address, among those that the loop checked in one turn.
#[derive(Debug, Default)]
pub struct ClaimingServices {
    /// Names of the Services that have the requested address.
    pub names: Vec<NamespacedName>,
    /// Version of the list of Services. It changes whenever the order of Services changes.
    pub version: u64,
    /// Index from which the next turn must continue, or `None` once all Services are checked.
    pub next: Option<usize>,
}

/// Names of Services that the loop copied in one turn.
#[derive(Debug)]
pub struct Names {
    /// Names of some Services, in no order.
    pub some: Vec<NamespacedName>,
    /// Version of the list of Services. It changes whenever the order of Services changes.
    pub version: u64,
    /// True if these are the last names.
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

    /// Returns the number of lines in a list of the Service's endpoints. An endpoint has one line
    /// for each Service port.
    pub(crate) fn listed_count(&self) -> usize {
        self.endpoint_count()
            .saturating_mul(self.service.ports.len())
    }

    pub(crate) fn view(&self) -> ServiceView<'_> {
        ServiceView::new(&self.service, &self.slices)
    }
}

/// Facts about the node and its problems, for responses about Services.
#[derive(Debug, Default)]
pub struct NodeContext {
    /// Problems of each IP family that the daemon serves.
    pub families: Vec<GroundOfFamily>,
    /// Parts of Services that the daemon rejects: addresses, options, and Services above the size
    /// limit.
    pub refused: Vec<Contested>,
}

/// Facts about the node and its problems in one IP family.
#[derive(Debug)]
pub struct GroundOfFamily {
    /// Name and zone of the node.
    pub node: NodeFacts,
    /// Addresses that serve NodePorts, or `None` if they are unknown.
    pub node_ports: Option<NodePorts>,
    /// Entries that the kernel refuses, with its errors.
    pub failures: Vec<Failure>,
    /// Addresses that more than one Service claims.
    pub conflicts: Vec<Conflict>,
    /// Addresses and ports at which another program has a virtual server.
    pub held_by_others: HashSet<ServiceAddress>,
    /// Draining endpoints, at most [`DRAINS`] of them.
    pub drains: Drains,
    /// Time of the reply.
    pub now: Instant,
}
