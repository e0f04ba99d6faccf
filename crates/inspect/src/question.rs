//! What the loop is asked, and what it hands out: copies of bounded pieces.
//!
//! How many of each is said here, for the loop and for those who ask. What a piece costs the loop is
//! measured by `run::said::tests::no_question_holds_up_the_loop`.

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

/// How many names are told in one turn.
pub const NAMES_A_TURN: usize = 2_500;
/// How many Services are told in one turn, unless their endpoints are too many.
pub const SERVICES_A_TURN: usize = 100;
/// How many endpoints are told in one turn; one Service's are told together, however many these are.
pub const ENDPOINTS_A_TURN: usize = 25_000;
/// How many failures and conflicts of a family Services are told with.
pub const TROUBLES: usize = 1_000;
/// How many drains of a family Services are told with; of further ones it is not said since when.
pub const DRAINS: usize = 1_000;

/// A question to the loop, with the end at which its answer is awaited. Each takes it about 2 ms at
/// most, but for a Service that has more endpoints than [`ENDPOINTS_A_TURN`] by itself.
pub enum Question {
    /// How it stands.
    Facts(Sender<Facts>),
    /// Whose these addresses are, among the Services behind the first so many.
    Owners(Arc<Wanted>, usize, Sender<Owners>),
    /// The names of Services behind the first so many, in no order.
    Names(usize, Sender<Names>),
    /// The first of these Services, as many as are told in one turn: at least one, if any is given.
    Services(Vec<NamespacedName>, Sender<Vec<Option<Copied>>>),
    /// What Services are seen on.
    Ground(Sender<Ground>),
    /// Which of the Services behind the first so many have this address and port.
    Claimants(usize, IpAddr, u16, Sender<Claimed>),
    /// The mode's name, and what is known of this node, and of this address.
    OwnNode(Option<IpAddr>, Sender<(&'static str, OwnNode)>),
}

/// Who has an address, of a piece of the Services.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The names of these Services.
    pub names: Vec<NamespacedName>,
    /// Where this is another number than in the answer before, the order is another one.
    pub version: u64,
    /// Behind how many the next piece is, if there is one.
    pub next: Option<usize>,
}

/// Some names.
#[derive(Debug)]
pub struct Names {
    /// The names.
    pub some: Vec<NamespacedName>,
    /// Where this is another number than in the answer before, the order is another one.
    pub version: u64,
    /// True if no further names follow.
    pub is_last: bool,
}

/// A Service and its slices, as the model has them.
#[derive(Debug)]
pub struct Copied {
    /// The Service.
    pub service: Service,
    /// Its slices.
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

    /// How many endpoints its slices have.
    pub fn endpoint_count(&self) -> usize {
        self.slices.iter().map(|slice| slice.endpoints.len()).sum()
    }

    /// How many are listed of it: each endpoint at each port.
    pub(crate) fn listed_count(&self) -> usize {
        self.endpoint_count()
            .saturating_mul(self.service.ports.len())
    }

    pub(crate) fn view(&self) -> ServiceView<'_> {
        ServiceView::new(&self.service, &self.slices)
    }
}

/// What Services are seen on: the node, and what is wrong.
#[derive(Debug, Default)]
pub struct Ground {
    /// The families that are served.
    pub families: Vec<GroundOfFamily>,
    /// External and load-balancer addresses that are not served.
    pub refused: Vec<Contested>,
}

/// The same of one family.
#[derive(Debug)]
pub struct GroundOfFamily {
    /// Its name, and its zone.
    pub node: NodeFacts,
    /// Where NodePorts are served; `None` while that is not known.
    pub node_ports: Option<NodePorts>,
    /// Entries that the kernel refuses.
    pub failures: Vec<Failure>,
    /// Addresses that two Services claim.
    pub conflicts: Vec<Conflict>,
    /// The addresses and ports that another program holds.
    pub held_by_others: HashSet<ServiceAddress>,
    /// At most [`DRAINS`] of them.
    pub drains: Drains,
    /// When this was so.
    pub now: Instant,
}
