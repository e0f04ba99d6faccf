//! Writes as data.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use footprint::Leftovers;
use hashbrown::{HashMap, HashSet};
use proxy::{LocalDetector, Protocol, ServicePortName};

use crate::port::{Listener, Portal};
use relay::Serving;

/// What is to be done.
#[derive(Debug, Clone)]
pub enum Plan {
    /// With listening ports.
    Sockets(Sockets),
    /// With the rules that redirect to them.
    Redirects(Redirects),
}

/// What becomes of listening ports.
#[derive(Debug, Clone, Default)]
pub struct Sockets {
    /// Each, with who serves there; with nobody to say so it is closed.
    pub changes: Vec<(Listener, Option<Arc<Serving>>)>,
    /// Ports that rules of somebody before us lead to: none of them is opened for another Service.
    pub avoided: HashSet<(Protocol, u16)>,
    /// Those of them that are opened again for the Service that rules lead there.
    pub again: HashMap<Listener, u16>,
}

/// What becomes of rules.
#[derive(Debug, Clone, Default)]
pub struct Redirects {
    /// How this node's pods are told apart.
    pub detector: LocalDetector,
    /// What is there whatever the Services are, if it is written.
    pub base: Option<Base>,
    /// Whether what is there of ours goes before.
    pub extent: Extent,
    /// Single redirects.
    pub changes: Vec<Change>,
    /// Of other modes; they go when all else is written.
    pub leftovers: Leftovers,
}

/// What of our redirects a plan names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Extent {
    /// Those that change.
    #[default]
    Changes,
    /// All that are to be there; whatever else there is goes.
    Whole,
}

/// What becomes of one redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What is redirected.
    pub portal: Portal,
    /// To where it is now.
    pub before: Option<Aim>,
    /// To where it is to be.
    pub after: Option<Aim>,
    /// Whose it is then.
    pub owner: Option<ServicePortName>,
}

/// Where a redirect leads: to ports of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aim {
    /// `namespace/name:port`
    pub name: Arc<str>,
    /// The address of this node for what comes from elsewhere; without one only what this node
    /// itself sends is redirected.
    pub via: Option<IpAddr>,
    /// The port for what comes from elsewhere; as all of these 0 where it is not open yet.
    pub outside: u16,
    /// That for what comes from pods of this node.
    pub pods: u16,
    /// That for what comes from this node itself.
    pub node: u16,
}

impl Aim {
    /// Its ports.
    pub fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        let ports = [self.outside, self.pods, self.node];
        let [outside, pods, node] = ports;
        let others = [
            (pods != outside).then_some(pods),
            (node != outside && node != pods).then_some(node),
        ];
        [outside].into_iter().chain(others.into_iter().flatten())
    }

    /// Whether all of them are open.
    pub fn is_open(&self) -> bool {
        self.ports().all(|port| port != 0)
    }
}

/// What is there whatever the Services are: the ways to the redirects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// Where NodePorts are served.
    pub node_ports: NodePortsAt,
    /// What this node sends with this mark is not redirected: an endpoint may have an address and
    /// port that are redirected, and the relay means the endpoint.
    pub own_mark: Option<u32>,
}

/// Where NodePorts are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortsAt {
    /// At every address of the node.
    Everywhere,
    /// At every one but those of localhost.
    NotAtLocalhost,
    /// At these.
    These(Vec<IpAddr>),
}

/// Something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// Why, and what to do.
    pub reason: String,
    /// What it says of other writes.
    pub blame: Blame,
}

/// What a refusal says of other writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// One of the things that were written is to blame.
    One,
    /// Nothing would be taken now, whatever it is.
    None,
}

/// A listening port could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocketError {
    /// This one never can.
    #[error("{0}")]
    Never(&'static str),
    /// Not now.
    #[error("{0}")]
    Now(String),
}

/// What became of a plan.
#[derive(Debug, Clone)]
pub enum Outcomes {
    /// The port of each listener, in the order of the plan; `None` for those that are closed.
    Sockets(Vec<Result<Option<u16>, SocketError>>),
    /// What became of rules.
    Redirects(Written),
}

/// What became of rules.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// Why the base was refused: then all else was.
    pub base: Option<Refusal>,
    /// Why changes were refused, by their place in the plan.
    pub changes: Vec<(usize, Refusal)>,
    /// Why what other modes have left stays.
    pub leftovers: Option<Refusal>,
}

impl Written {
    /// Whether anything was refused.
    pub fn is_refused(&self) -> bool {
        self.base.is_some() || !self.changes.is_empty() || self.leftovers.is_some()
    }
}

impl Redirects {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.base.is_none()
            && self.extent == Extent::Changes
            && self.changes.is_empty()
            && self.leftovers.is_empty()
    }
}

impl Plan {
    /// What it does, a line each, for the operator.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Sockets(sockets) => {
                let changes = sockets.changes.iter();
                let line = |(listener, serving): &(Listener, Option<Arc<Serving>>)| match serving {
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
