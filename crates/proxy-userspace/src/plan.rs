//! The writes of userspace mode, as data.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use footprint::Leftovers;
use hashbrown::{HashMap, HashSet};
use proxy::{LocalDetector, Protocol, ServicePortName};

use crate::port::{Listener, Portal};
use relay::PortBackends;

/// Writes of one lane (worker thread) in one step.
#[derive(Debug, Clone)]
pub enum Plan {
    /// Changes of listening ports.
    Sockets(Sockets),
    /// Changes of the redirecting rules.
    Redirects(Redirects),
}

/// Changes of listening ports in one step.
#[derive(Debug, Clone, Default)]
pub struct Sockets {
    /// Each listener with its endpoints. `None` closes the listener.
    pub changes: Vec<(Listener, Option<Arc<PortBackends>>)>,
    /// Ports to which rules of an earlier process still lead. This process must not open them for
    /// another Service.
    pub avoided: HashSet<(Protocol, u16)>,
    /// Ports in `avoided` that may be opened again, for the Service that had them.
    pub again: HashMap<Listener, u16>,
}

/// Changes of redirecting rules in one write.
#[derive(Debug, Clone, Default)]
pub struct Redirects {
    /// Detector of traffic from pods of this node.
    pub detector: LocalDetector,
    /// Rules that do not depend on Services, or `None` if they stay unchanged.
    pub base: Option<Base>,
    /// Redirects that the write replaces.
    pub extent: Extent,
    /// Redirects to write, change or remove.
    pub changes: Vec<Change>,
    /// Leftovers of other modes to remove after all other writes.
    pub leftovers: Leftovers,
}

/// The redirects that a plan replaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Extent {
    /// Only the changed redirects.
    #[default]
    Changes,
    /// All redirects. The write removes each redirect that the plan does not name.
    Whole,
}

/// A change of one redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Destination whose packets are redirected.
    pub portal: Portal,
    /// Current target in the kernel, or `None` without a redirect.
    pub before: Option<RedirectTarget>,
    /// Target after the write, or `None` to remove the redirect.
    pub after: Option<RedirectTarget>,
    /// Service port that owns the redirect after the write.
    pub owner: Option<ServicePortName>,
}

/// Target of a redirect: ports of this process, by the origin of packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectTarget {
    /// Service port as `namespace/name:port`.
    pub name: Arc<str>,
    /// Address of the node to which rules send packets from other hosts. `None`: rules redirect
    /// only packets from the node itself.
    pub via: Option<IpAddr>,
    /// Port for packets from other hosts. This number and the next two are 0 until the ports are
    /// open.
    pub outside: u16,
    /// Port for packets from this node's pods.
    pub pods: u16,
    /// Port for packets from the node itself.
    pub node: u16,
}

impl RedirectTarget {
    /// Returns the ports, each once.
    pub fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        let ports = [self.outside, self.pods, self.node];
        let [outside, pods, node] = ports;
        let others = [
            (pods != outside).then_some(pods),
            (node != outside && node != pods).then_some(node),
        ];
        [outside].into_iter().chain(others.into_iter().flatten())
    }

    /// Reports whether all ports are open.
    pub fn is_open(&self) -> bool {
        self.ports().all(|port| port != 0)
    }
}

/// Rules that do not depend on Services. They lead packets to the redirects of Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// Addresses that serve NodePorts.
    pub node_ports: NodePortsAt,
    /// Mark of the relay's own packets, which no rule may redirect. Without a mark, the relay could
    /// not reach an endpoint if its address and port are those of a Service.
    pub own_mark: Option<u32>,
}

/// The addresses that serve NodePorts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortsAt {
    /// All addresses of the node.
    Everywhere,
    /// All addresses of the node except localhost.
    NotAtLocalhost,
    /// Only these addresses of the node.
    These(Vec<IpAddr>),
}

/// Refusal of a write by the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// Reason, with advice for the operator.
    pub reason: String,
    /// Consequence of the refusal for other writes.
    pub blame: RefusalMeaning,
}

/// Consequence of a refusal for other writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalMeaning {
    /// One of the written objects is invalid. Other writes may succeed.
    One,
    /// Every other write would fail now, too.
    None,
}

/// Reason why a listening port could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// A retry of this port will never succeed.
    #[error("{0}")]
    Never(&'static str),
    /// A later retry may succeed.
    #[error("{0}")]
    Now(String),
}

/// Outcome of a plan.
#[derive(Debug, Clone)]
pub enum Outcomes {
    /// Port number of each listener, in the order of the plan, or `None` if the listener is closed.
    Sockets(Vec<Result<Option<u16>, SocketError>>),
    /// Refused parts of a write of rules.
    Redirects(RedirectOutcomes),
}

/// Refused parts of a write of rules.
#[derive(Debug, Clone, Default)]
pub struct RedirectOutcomes {
    /// Refusal of the base. All changes fail with it.
    pub base: Option<Refusal>,
    /// Refusals of changes, by their index in the plan.
    pub changes: Vec<(usize, Refusal)>,
    /// Refusal to remove the leftovers of other modes.
    pub leftovers: Option<Refusal>,
}

impl RedirectOutcomes {
    /// Reports whether any part was refused.
    pub fn is_refused(&self) -> bool {
        self.base.is_some() || !self.changes.is_empty() || self.leftovers.is_some()
    }
}

impl Redirects {
    /// Reports whether the plan is empty.
    pub fn is_empty(&self) -> bool {
        self.base.is_none()
            && self.extent == Extent::Changes
            && self.changes.is_empty()
            && self.leftovers.is_empty()
    }
}

impl Plan {
    /// Returns the steps of the plan for the operator, one line each.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Sockets(sockets) => {
                let changes = sockets.changes.iter();
                let line =
                    |(listener, serving): &(Listener, Option<Arc<PortBackends>>)| match serving {
                        Some(serving) => {
                            let count = serving.endpoints.len();
                            format!("listen for {listener}: {count} endpoints")
                        }
                        None => format!("close the listening port of {listener}"),
                    };
                changes.map(line).collect()
            }
            Self::Redirects(redirects) => {
                let base = redirects.base.as_ref();
                let base = base.map(|_| "write the ways to the redirects".to_owned());
                let changes = redirects.changes.iter().map(|change| match &change.after {
                    Some(aim) => format!("redirect {} for {}", change.portal, aim.name),
                    None => format!("redirect {} no longer", change.portal),
                });
                let chains = redirects.leftovers.chains();
                let chains =
                    chains.map(|(table, name)| format!("remove chain {name} of table {table}"));
                base.into_iter().chain(changes).chain(chains).collect()
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines()
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}
