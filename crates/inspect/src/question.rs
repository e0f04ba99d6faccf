//! Questions to the loop, and its answers: copies of bounded size.
//!
//! The limits are for the loop and for its clients.
//! `run::said::tests::no_question_holds_up_the_loop` measures the cost of a piece.

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
use super::owners::{Owners, Wanted};

/// Number of names in one turn.
pub const NAMES_A_TURN: usize = 2_500;
/// Number of Services in one turn, unless they have too many endpoints.
pub const SERVICES_A_TURN: usize = 100;
/// Number of endpoints in one turn. The endpoints of one Service come together.
pub const ENDPOINTS_A_TURN: usize = 25_000;
/// Maximum number of failures and conflicts of a family.
pub const TROUBLES: usize = 1_000;
/// Maximum number of drains of a family with a start time.
pub const DRAINS: usize = 1_000;

/// A question to the loop, with the sender of its answer. Each takes at most about 2 ms, except a
/// Service with more than [`ENDPOINTS_A_TURN`] endpoints.
pub enum Question {
    /// The state of the daemon.
    Facts(Sender<Facts>),
    /// The owners of addresses, in the piece of Services that starts at the index.
    Owners(Arc<Wanted>, usize, Sender<Owners>),
    /// The names of the piece of Services that starts at the index, unordered.
    Names(usize, Sender<Names>),
    /// As many of these Services as fit in one turn; at least one.
    Services(Vec<NamespacedName>, Sender<Vec<Option<Copied>>>),
    /// The node and its problems.
    Ground(Sender<Ground>),
    /// The Services with an address and port, in the piece that starts at the index.
    Claimants(usize, IpAddr, u16, Sender<Claimed>),
    /// The name of the mode, and facts about this node and this address.
    OwnNode(Option<IpAddr>, Sender<(&'static str, OwnNode)>),
}

/// The owners of an address in a piece of the Services.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The names of these Services.
    pub names: Vec<NamespacedName>,
    /// Version of the order of Services; a new number means a new order.
    pub version: u64,
    /// Index of the next piece, if any.
    pub next: Option<usize>,
}

/// A piece of the names.
#[derive(Debug)]
pub struct Names {
    /// The names.
    pub some: Vec<NamespacedName>,
    /// Version of the order of Services; a new number means a new order.
    pub version: u64,
    /// True if no further names follow.
    pub is_last: bool,
}

/// A copy of a Service and its EndpointSlices.
#[derive(Debug)]
pub struct Copied {
    /// The Service.
    pub service: Service,
    /// The EndpointSlices.
    pub slices: Vec<EndpointSlice>,
}

impl Copied {
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

    /// Returns the number of listed endpoints: each endpoint at each port.
    pub(crate) fn listed_count(&self) -> usize {
        self.endpoint_count()
            .saturating_mul(self.service.ports.len())
    }

    pub(crate) fn view(&self) -> ServiceView<'_> {
        ServiceView::new(&self.service, &self.slices)
    }
}

/// The node and its problems, for answers about Services.
#[derive(Debug, Default)]
pub struct Ground {
    /// The families that are served.
    pub families: Vec<GroundOfFamily>,
    /// External and load-balancer addresses that are not served.
    pub refused: Vec<Contested>,
}

/// The node and its problems in one IP family.
#[derive(Debug)]
pub struct GroundOfFamily {
    /// Name and zone of the node.
    pub node: NodeFacts,
    /// The addresses of NodePorts; `None` while unknown.
    pub node_ports: Option<NodePorts>,
    /// Entries that the kernel refuses.
    pub failures: Vec<Failure>,
    /// Addresses that two Services claim.
    pub conflicts: Vec<Conflict>,
    /// The addresses and ports that another program holds.
    pub held_by_others: HashSet<ServiceAddress>,
    /// Draining endpoints; at most [`DRAINS`].
    pub drains: Drains,
    /// The time of this answer.
    pub now: Instant,
}
