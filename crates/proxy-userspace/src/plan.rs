//! The writes of userspace mode, as data.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use footprint::Leftovers;
use hashbrown::{HashMap, HashSet};
use proxy::{LocalDetector, Protocol, ServicePortName};

use crate::port::{Listener, Portal};
use relay::PortBackends;

/// Writes that one lane (worker thread) makes together.
#[derive(Debug, Clone)]
pub enum Plan {
    /// Changes to listening ports.
    Sockets(Sockets),
    /// Changes to the rules that redirect packets.
    Redirects(Redirects),
}

/// Changes to listening ports that the lane makes together.
#[derive(Debug, Clone, Default)]
pub struct Sockets {
    /// Each listener with its new endpoints, or with `None` to close it.
    pub changes: Vec<(Listener, Option<Arc<PortBackends>>)>,
    /// Ports to which rules of an earlier process still lead. This process must not open such a
    /// port for another Service.
    pub avoided: HashSet<(Protocol, u16)>,
    /// Ports in `avoided` that a listener may open again, because the earlier process used them for
    /// the same Service.
    pub again: HashMap<Listener, u16>,
}

/// Changes to redirects in one write.
#[derive(Debug, Clone, Default)]
pub struct Redirects {
    /// Detector of traffic from pods of this node.
    pub detector: LocalDetector,
    /// New rules that do not depend on Services, or `None` if these rules stay unchanged.
    pub base: Option<Base>,
    /// Redirects that the write replaces: the redirects in `changes`, or all redirects.
    pub extent: Extent,
    /// Redirects to write, change or remove.
    pub changes: Vec<Change>,
    /// Leftovers of other modes that the write removes last.
    pub leftovers: Leftovers,
}

/// Set of redirects that a plan replaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Extent {
    /// The plan replaces only the redirects that it changes.
    #[default]
    Changes,
    /// The plan replaces all redirects. The write removes each redirect that the plan does not
    /// name.
    Whole,
}

/// A change to one redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Destination of the packets that the rules redirect.
    pub portal: Portal,
    /// Current target in the kernel, or `None` if the kernel has no redirect for this destination.
    pub before: Option<RedirectTarget>,
    /// Target after the write, or `None` to remove the redirect.
    pub after: Option<RedirectTarget>,
    /// Service port that owns the redirect after the write, if any.
    pub owner: Option<ServicePortName>,
}

/// Target of a redirect: listening ports of this process, by the origin of the packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectTarget {
    /// Service port, in the format `namespace/name:port`.
    pub name: Arc<str>,
    /// Address of the node to which rules redirect packets from other hosts. If `None`, rules
    /// redirect only packets from the node itself.
    pub via: Option<IpAddr>,
    /// Port for packets from other hosts. Each of the three port numbers is 0 until its port is
    /// open.
    pub outside: u16,
    /// Port for packets from this node's pods.
    pub pods: u16,
    /// Port for packets from the node itself.
    pub node: u16,
}

impl RedirectTarget {
    /// Returns the numbers of the three listening ports, without duplicates.
    pub fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        let ports = [self.outside, self.pods, self.node];
        let [outside, pods, node] = ports;
        let others = [
            (pods != outside).then_some(pods),
            (node != outside && node != pods).then_some(node),
        ];
        [outside].into_iter().chain(others.into_iter().flatten())
    }

    /// True if all three listening ports are open.
    pub fn is_open(&self) -> bool {
        self.ports().all(|port| port != 0)
    }
}

/// Rules that do not depend on Services. These rules lead packets to the redirects of Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// Addresses at which NodePorts are served.
    pub node_ports: NodePortsAt,
    /// Mark of the relay's own packets, which rules must not redirect. Without a mark, the relay
    /// could not reach an endpoint whose address and port are also those of a Service.
    pub own_mark: Option<u32>,
}

/// Addresses of the node at which NodePorts are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortsAt {
    /// NodePorts are served at all addresses of the node.
    Everywhere,
    /// NodePorts are served at all addresses of the node except localhost.
    NotAtLocalhost,
    /// NodePorts are served only at these addresses of the node.
    These(Vec<IpAddr>),
}

/// Error of a write that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// Reason why the kernel refused the write, with advice for the operator.
    pub reason: String,
    /// Scope of the refusal: one written object, or currently every write.
    pub blame: RefusalMeaning,
}

/// Scope of a refusal: one written object, or currently every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalMeaning {
    /// One of the written objects is invalid, so other writes may succeed.
    One,
    /// No written object is invalid. The cause is general, such as a held lock, so every write
    /// would fail now.
    None,
}

/// Reason why a listening port could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// A retry cannot succeed, because the relay does not support the port's protocol.
    #[error("{0}")]
    Never(&'static str),
    /// The port cannot be opened now. A later retry may succeed.
    #[error("{0}")]
    Now(String),
}

/// Outcomes of a plan's writes, for each kind of plan.
#[derive(Debug, Clone)]
pub enum Outcomes {
    /// Port number of each listener in the plan, in order, or `None` if the plan closed the
    /// listener.
    Sockets(Vec<Result<Option<u16>, SocketError>>),
    /// Parts of a plan for redirects that the kernel refused.
    Redirects(RedirectOutcomes),
}

/// Parts of a plan for redirects that the kernel refused.
#[derive(Debug, Clone, Default)]
pub struct RedirectOutcomes {
    /// Refusal of the rules that do not depend on Services, or `None` if the kernel accepted them.
    /// If this write fails, all changes fail.
    pub base: Option<Refusal>,
    /// Refusals of changes, each with the index of its change in the plan.
    pub changes: Vec<(usize, Refusal)>,
    /// Refusal of the removal of other modes' leftovers, if the kernel refused it.
    pub leftovers: Option<Refusal>,
}

impl RedirectOutcomes {
    /// True if the kernel refused any part.
    pub fn is_refused(&self) -> bool {
        self.base.is_some() || !self.changes.is_empty() || self.leftovers.is_some()
    }
}

impl Redirects {
    /// True if the plan neither writes nor removes rules.
    pub fn is_empty(&self) -> bool {
        self.base.is_none()
            && self.extent == Extent::Changes
            && self.changes.is_empty()
            && self.leftovers.is_empty()
    }
}

impl Plan {
    /// Describes the steps of the plan for the operator, one line for each step.
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
