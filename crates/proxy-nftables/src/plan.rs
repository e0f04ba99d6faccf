//! A plan: the next writes as data. It contains the objects to write, grouped into units. The
//! module `changes` turns a plan into changes to the nftables table.
//!
//! ```text
//!   Plan ─ changes ─▶ (PlanUnit, Change) ─▶ execute ─▶ one transaction ─▶ Outcomes
//! ```
//!
//! Objects that a plan does not contain stay unchanged.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nftables_netlink::Name;
use proxy::{IpFamily, Owner, ServicePortName};
use relay::PortBackends;

use crate::base::{Base, BaseKey, BaseValue};
use crate::clients::{Clients, SetMemory};
use crate::config::Config;
use crate::content::Content;
use crate::port::{Member, Route, ServedPort, Slot};

/// The objects to write or delete next.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) family: IpFamily,
    pub(crate) config: Arc<Config>,
    /// Wanted definitions of the objects in `base_changes`.
    pub(crate) base: Arc<Base>,
    /// Changes to objects that do not depend on Services.
    pub(crate) base_changes: BTreeMap<BaseKey, BaseChange>,
    /// New content of the chain `services`, if the layout changes from `flat` to upstream's. The
    /// existing chain leads to objects of both layouts, so the plan replaces it last.
    pub(crate) services_chain: Option<BaseChange>,
    /// Addresses of the node that start (true) or stop (false) to serve NodePorts.
    pub(crate) node_ports: Vec<(IpAddr, bool)>,
    /// Changes for Service ports, one entry per port, and deletions of shared elements that no port
    /// wants.
    pub(crate) parts: Vec<PortChanges>,
    /// NodePorts on localhost that the plan opens, updates or closes.
    pub(crate) listeners: Vec<LocalhostPort>,
    /// Unwanted objects that the plan deletes.
    pub(crate) stale: Vec<StaleObject>,
    /// Method by which the plan deletes unwanted chains.
    pub(crate) removal: Removal,
    pub(crate) timeouts: Timeouts,
}

/// Change to a NodePort that a relay serves on localhost: to open, update or close it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalhostPort {
    /// Port number of the NodePort.
    pub number: u16,
    /// Service port that the NodePort serves, or `None` to close the port.
    pub name: Option<ServicePortName>,
    /// Endpoints of the NodePort, or `None` to close the port.
    pub serving: Option<Arc<PortBackends>>,
}

/// Change to an object that does not depend on Services.
#[derive(Debug, Clone)]
pub(crate) struct BaseChange {
    /// Wanted definition, or `None` to delete the object.
    pub(crate) wanted: Option<BaseValue>,
    pub(crate) there: ExistingObject,
}

/// Result of comparing a wanted object with the kernel's object of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExistingObject {
    Nothing,
    /// The kernel has an object of the wanted kind. The object's content may differ.
    Same,
    /// The kernel has an object of another kind, such as a chain with another hook or a set with
    /// another key. The plan must replace this object.
    Other,
}

/// Effect of a transaction that changes the timeout of an existing set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Timeouts {
    /// The effect is unknown, because the mode has not changed a timeout yet.
    #[default]
    Unknown,
    /// The kernel changes the timeout (Linux 6.5 and later, and current releases of 6.1).
    Changed,
    /// The kernel keeps the old timeout. The mode must replace the set, which then loses its
    /// clients.
    Kept,
}

/// Method of deleting unwanted chains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Removal {
    /// The transaction with the plan's other changes deletes unwanted chains.
    #[default]
    Together,
    /// A later transaction deletes unwanted chains. If a transaction deletes an element that leads
    /// to a chain, Linux before 6.2 keeps the chain in use until the transaction ends.
    After,
}

/// Changes for one Service port, or the deletion of elements in shared sets and maps that no
/// Service port wants.
#[derive(Debug, Clone, Default)]
pub(crate) struct PortChanges {
    pub(crate) owner: Option<Arc<Owner>>,
    pub(crate) port: Option<Arc<ServedPort>>,
    /// Chains of the Service port that the plan writes.
    pub(crate) chains: BTreeMap<Name, ChainWrite>,
    /// Unwanted chains that the plan flushes first, because they use a set that the plan replaces.
    pub(crate) emptied: Vec<Name>,
    /// Sets of session affinity clients that the plan writes.
    pub(crate) affinity: Vec<(Name, ClientsChange)>,
    pub(crate) slots: Vec<SlotChange>,
    pub(crate) members: Vec<(Member, bool)>,
}

/// New content of a chain that the plan writes, and the chain's state before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChainWrite {
    pub(crate) content: Content,
    pub(crate) there: ChainState,
}

/// State of a chain before the write, as far as the mode knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainState {
    Absent,
    /// The chain exists, so the write must flush it.
    Present,
    /// The chain may exist, because the reply to its last write was lost. The write creates the
    /// chain if it is missing, and flushes it.
    Unknown,
}

/// A set of session affinity clients that the plan writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientsChange {
    pub(crate) wanted: Clients,
    /// State of the existing set, or `None` if the set is new.
    pub(crate) there: Option<Clients>,
}

impl ClientsChange {
    /// Returns true if the plan changes the timeout of an existing set of clients.
    pub(crate) fn is_change(&self) -> bool {
        let differs = |there: Clients| there.seconds != self.wanted.seconds;
        self.there
            .is_some_and(|there| there.is_of_clients() && differs(there))
    }

    /// Returns true if the plan must delete the existing set and create it again.
    pub(crate) fn is_replacement(&self, timeouts: Timeouts) -> bool {
        self.there.is_some_and(|there| !there.is_of_clients())
            || (self.is_change() && timeouts == Timeouts::Kept)
    }

    /// Returns true if the plan keeps the existing set, but makes the kernel release the set's
    /// reserved memory.
    pub(crate) fn is_shrunk(&self, timeouts: Timeouts) -> bool {
        self.there
            .is_some_and(|there| there.room == SetMemory::Reserved)
            && !self.is_replacement(timeouts)
    }
}

/// A change to the route of an address and port.
#[derive(Debug, Clone)]
pub(crate) struct SlotChange {
    pub(crate) slot: Slot,
    pub(crate) before: Option<Route>,
    pub(crate) after: Option<Route>,
}

impl SlotChange {
    /// Returns true if the new route has endpoints in shared maps.
    pub(crate) fn has_choices(&self) -> bool {
        let mut after = self.after.iter();
        after.any(|route| route.choices.iter().next().is_some())
    }
}

/// An unwanted object that the plan deletes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StaleObject {
    Chain(Name),
    Set(Name),
    /// A shared object that is no longer needed:
    ///
    /// - the set of addresses that serve NodePorts, if all addresses serve them;
    /// - an object of another layout;
    /// - a chooser chain.
    Base(BaseKey),
}

impl fmt::Display for StaleObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain(name) => write!(f, "chain {name}"),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Base(key) => key.fmt(f),
        }
    }
}

/// Outcome of one unit of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum UnitOutcome {
    #[default]
    Done,
    Refused(Arc<str>),
    /// Not tried: the plan had reached its limit of transactions, or the kernel had refused an
    /// object that this unit needs.
    Untried,
    /// The unit was deferred to the next plan.
    Later,
    /// The result of the unit is unknown, because the kernel's reply was lost.
    Unknown,
}

/// Outcome of a plan, unit by unit.
#[derive(Debug, Clone, Default)]
pub struct Outcomes {
    pub(crate) base: UnitOutcome,
    pub(crate) services_chain: UnitOutcome,
    /// Outcome of each entry of the plan's `parts`, in order.
    pub(crate) parts: Vec<UnitOutcome>,
    /// Outcome of deleting each object in the plan's `stale`, in order.
    pub(crate) stale: Vec<UnitOutcome>,
    /// Result of opening, updating or closing each NodePort in the plan's `listeners`, in order.
    pub(crate) listeners: Vec<Result<(), Arc<str>>>,
    /// Number of transactions that the kernel committed.
    pub(crate) taken: usize,
    /// Number of changes in the committed transactions.
    pub(crate) changes: usize,
    /// Number of transactions that the kernel refused.
    pub(crate) refused: usize,
    /// Total duration of all transactions.
    pub(crate) took: Duration,
    /// True if the table in the kernel may differ from the mode's record of it.
    pub(crate) is_doubtful: bool,
    /// Error that makes every further transaction fail, if any.
    pub(crate) general: Option<Arc<str>>,
    /// Method of deleting unwanted chains for the next plans. It changes if this kernel turns out
    /// to need the other method.
    pub(crate) removal: Removal,
    pub(crate) timeouts: Timeouts,
    /// Chains that the plan has written only in part, each with the digest of its present rules.
    pub(crate) partial: BTreeMap<Name, Content>,
}

impl Outcomes {
    /// Returns true if the kernel accepted the base, the chain `services` and all Service ports of
    /// the plan.
    pub(crate) fn has_all_wanted(&self) -> bool {
        let mut wanted = [&self.base, &self.services_chain]
            .into_iter()
            .chain(&self.parts);
        wanted.all(|outcome| *outcome == UnitOutcome::Done)
    }

    /// Returns the outcomes of a plan that succeeded completely.
    pub(crate) fn done(plan: &Plan) -> Self {
        Self {
            listeners: vec![Ok(()); plan.listeners.len()],
            parts: vec![UnitOutcome::Done; plan.parts.len()],
            stale: vec![UnitOutcome::Done; plan.stale.len()],
            removal: plan.removal,
            timeouts: plan.timeouts,
            ..Self::default()
        }
    }
}

/// A part of a plan that succeeds or fails as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum PlanUnit {
    /// The objects that all Services need.
    Base,
    /// The Service port at this index of the plan's `parts`.
    Part(usize),
    /// The chain `services`, while the layout changes.
    ServicesChain,
    /// The unwanted object at this index of the plan's `stale`.
    Stale(usize),
}

impl Plan {
    /// Returns true if the plan only deletes unwanted objects.
    pub(crate) fn is_cleanup(&self) -> bool {
        let nothing_else =
            !self.has_base() && self.services_chain.is_none() && self.parts.is_empty();
        nothing_else && !self.stale.is_empty()
    }

    /// Returns true if the plan changes neither the table nor a NodePort on localhost.
    pub fn is_empty(&self) -> bool {
        self.listeners.is_empty() && !self.writes_table()
    }

    /// Returns true if the plan writes to the table.
    pub(crate) fn writes_table(&self) -> bool {
        self.has_base()
            || self.services_chain.is_some()
            || !self.parts.is_empty()
            || !self.stale.is_empty()
    }

    /// Returns true if the plan replaces a set with a set of another kind. The replaced set loses
    /// its elements.
    pub(crate) fn replaces_set(&self) -> bool {
        let mut changes = self.base_changes.iter();
        changes.any(|(key, of)| matches!(key, BaseKey::Set(_)) && of.there == ExistingObject::Other)
    }

    /// Returns true if the plan creates base chains in a dormant table. An earlier transaction must
    /// then activate the table: the kernel refuses a new base chain in a transaction that changes
    /// the table's flags.
    ///
    /// Source: Linux, `net/netfilter/nf_tables_api.c` (`__NFT_TABLE_F_UPDATE`).
    pub(crate) fn switches_on_first(&self) -> bool {
        let table = self.base_changes.get(&BaseKey::Table);
        let is_there = table.is_some_and(|of| of.there != ExistingObject::Nothing);
        let mut others = self.base_changes.iter();
        is_there
            && others.any(|(key, of)| {
                let chain = self.base.chain(key);
                of.there != ExistingObject::Same
                    && chain.is_some_and(|(chain, _)| chain.base.is_some())
            })
    }

    pub(crate) fn has_base(&self) -> bool {
        !(self.base_changes.is_empty() && self.node_ports.is_empty())
    }

    /// Returns the units of the plan, in writing order.
    pub(crate) fn units(&self) -> impl Iterator<Item = PlanUnit> {
        let base = self.has_base().then_some(PlanUnit::Base);
        let parts = (0..self.parts.len()).map(PlanUnit::Part);
        let services_chain = self
            .services_chain
            .is_some()
            .then_some(PlanUnit::ServicesChain);
        let stale = (0..self.stale.len()).map(PlanUnit::Stale);
        base.into_iter()
            .chain(parts)
            .chain(services_chain)
            .chain(stale)
    }

    /// Returns true if `part` replaces a set of clients that rules of `part` use.
    pub(crate) fn replaces_clients(&self, part: &PortChanges) -> bool {
        let mut sets = part.affinity.iter();
        sets.any(|(_, clients)| clients.is_replacement(self.timeouts))
    }

    /// Returns the sets of clients for which the kernel has released the reserved memory after this
    /// plan.
    pub(crate) fn shrunk(&self, outcomes: &Outcomes) -> impl Iterator<Item = Name> {
        let done = self.parts.iter().zip(&outcomes.parts);
        let done = done.filter(|(_, outcome)| **outcome == UnitOutcome::Done);
        let sets = done.flat_map(|(part, _)| &part.affinity);
        let shrunk = sets.filter(|(_, clients)| clients.is_shrunk(self.timeouts));
        shrunk.map(|(set, _)| Arc::clone(set))
    }

    /// Returns a set for which a successful write requested a new timeout, and this timeout in
    /// seconds.
    pub(crate) fn changed_timeout(&self, outcomes: &[UnitOutcome]) -> Option<(&Name, u32)> {
        let done = self.parts.iter().zip(outcomes);
        let done = done.filter(|(_, outcome)| **outcome == UnitOutcome::Done);
        let affinity = done.flat_map(|(part, _)| &part.affinity);
        let mut changed = affinity.filter(|(_, clients)| clients.is_change());
        changed
            .next()
            .map(|(name, clients)| (name, clients.wanted.seconds))
    }
}
