//! Writes as data: what they are for, and the changes of the table that they come to.
//!
//! ```text
//!   Plan ─ changes ─▶ Change, and whose it is ─▶ execute ─▶ one transaction ─▶ Verdicts
//! ```
//!
//! Only what is named is touched. The order is one that the kernel takes: what others name comes
//! before them, and goes after them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nftables_netlink::Name;
use proxy::{IpFamily, Owner, ServicePortName};
use relay::Serving;

use crate::base::{Base, Key, Value};
use crate::clients::{Clients, Room};
use crate::config::Config;
use crate::content::Content;
use crate::port::{Member, Route, ServedPort, Slot};

/// What is to be written.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) family: IpFamily,
    pub(crate) config: Arc<Config>,
    /// From which the changes below are made.
    pub(crate) base: Arc<Base>,
    /// What is to be there whatever the Services are.
    pub(crate) base_changes: BTreeMap<Key, BaseChange>,
    /// Of that, where the table moves from the layout `flat`: the chain that leads to Services. As
    /// it is there it leads to what they have of either layout, and so comes last.
    pub(crate) ways: Option<BaseChange>,
    /// Addresses that serve NodePorts from now on, or no longer.
    pub(crate) node_ports: Vec<(IpAddr, bool)>,
    /// What single Service ports want.
    pub(crate) parts: Vec<Part>,
    /// NodePorts on localhost.
    pub(crate) listeners: Vec<LocalhostPort>,
    /// What nobody wants.
    pub(crate) stale: Vec<Stale>,
    /// Whether what nobody wants can go with the rest.
    pub(crate) removal: Removal,
    pub(crate) timeouts: Timeouts,
}

/// A NodePort on localhost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalhostPort {
    /// Its number.
    pub number: u16,
    /// Whose it is; none where it is closed.
    pub name: Option<ServicePortName>,
    /// Who serves there; with nobody it is closed.
    pub serving: Option<Arc<Serving>>,
}

/// Something that is there whatever the Services are.
#[derive(Debug, Clone)]
pub(crate) struct BaseChange {
    /// `None`: it goes.
    pub(crate) wanted: Option<Value>,
    pub(crate) there: There,
}

/// What there is in the place of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum There {
    Nothing,
    /// The same, with something else in it.
    Same,
    /// Something of another kind: a chain that packets come to elsewhere, a set with other keys.
    Other,
}

/// What becomes of a set that is to have another timeout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Timeouts {
    /// Nobody has tried yet.
    #[default]
    Unknown,
    /// It gets it (Linux 6.5).
    Changed,
    /// It keeps the one that it was made with, so another one takes its place, without clients.
    Kept,
}

/// How chains go that nobody wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Removal {
    /// With the rest.
    #[default]
    Together,
    /// In a transaction after the rest: before Linux 6.2 what a map has just lost counts as a user
    /// of the chain until then.
    After,
}

/// What one Service port wants; what nobody wants any more is by itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Part {
    pub(crate) owner: Option<Arc<Owner>>,
    pub(crate) port: Option<Arc<ServedPort>>,
    /// Those of its own chains that are written.
    pub(crate) chains: BTreeMap<Name, Written>,
    /// Those that it wants no more, whose rules go nevertheless at once: they name a set that
    /// another one takes the place of.
    pub(crate) emptied: Vec<Name>,
    /// Sets of clients.
    pub(crate) affinity: Vec<(Name, ClientsChange)>,
    pub(crate) slots: Vec<SlotChange>,
    pub(crate) members: Vec<(Member, bool)>,
}

/// A chain that is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) content: Content,
    pub(crate) there: Known,
}

/// What is known of a chain that is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Absent,
    /// It has to be emptied.
    There,
    /// The answer to its last write was lost: it is made if need be, and emptied.
    Doubted,
}

/// A set of clients that is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientsChange {
    pub(crate) wanted: Clients,
    /// The set that is there, if any.
    pub(crate) there: Option<Clients>,
}

impl ClientsChange {
    /// Whether a set of clients is there, which is to get another time.
    pub(crate) fn is_change(&self) -> bool {
        let differs = |there: Clients| there.seconds != self.wanted.seconds;
        self.there
            .is_some_and(|there| there.is_of_clients() && differs(there))
    }

    /// Whether another set takes the place of the one that is there.
    pub(crate) fn is_replacement(&self, timeouts: Timeouts) -> bool {
        self.there.is_some_and(|there| !there.is_of_clients())
            || (self.is_change() && timeouts == Timeouts::Kept)
    }

    /// Reports whether the set that is there stays, and is to give back memory.
    pub(crate) fn is_shrunk(&self, timeouts: Timeouts) -> bool {
        self.there.is_some_and(|there| there.room == Room::Reserved)
            && !self.is_replacement(timeouts)
    }
}

/// Where what is sent to an address and port goes from now on.
#[derive(Debug, Clone)]
pub(crate) struct SlotChange {
    pub(crate) slot: Slot,
    pub(crate) before: Option<Route>,
    pub(crate) after: Option<Route>,
}

impl SlotChange {
    /// Whether endpoints come with it.
    pub(crate) fn has_choices(&self) -> bool {
        let mut after = self.after.iter();
        after.any(|route| route.choices.iter().next().is_some())
    }
}

/// Something that nobody wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stale {
    Chain(Name),
    Set(Name),
    /// Of what Services share: the set of addresses that serve NodePorts where all do, what another
    /// layout has, a chooser that nobody needs.
    Base(Key),
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain(name) => write!(f, "chain {name}"),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Base(key) => key.fmt(f),
        }
    }
}

/// What became of a part of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Verdict {
    #[default]
    Done,
    Refused(Arc<str>),
    /// There was no time for it, or what it builds on was refused.
    Untried,
    /// It was left for the next plan.
    Later,
    /// Nobody knows.
    Unknown,
}

/// What became of a plan.
#[derive(Debug, Clone, Default)]
pub struct Verdicts {
    pub(crate) base: Verdict,
    pub(crate) ways: Verdict,
    /// One for each part.
    pub(crate) parts: Vec<Verdict>,
    /// One for each stale thing.
    pub(crate) stale: Vec<Verdict>,
    /// One for each NodePort on localhost.
    pub(crate) listeners: Vec<Result<(), Arc<str>>>,
    /// How many transactions were taken.
    pub(crate) taken: usize,
    /// How many changes these had.
    pub(crate) changes: usize,
    /// How many transactions were refused.
    pub(crate) refused: usize,
    /// The time that all of them took.
    pub(crate) took: Duration,
    /// Whether the table is not as believed.
    pub(crate) is_doubtful: bool,
    /// Why nothing would be taken now, whatever it is.
    pub(crate) general: Option<Arc<str>>,
    /// How chains have to go, as has turned out.
    pub(crate) removal: Removal,
    pub(crate) timeouts: Timeouts,
    /// Chains of which only a piece was written, each as it is then.
    pub(crate) partial: BTreeMap<Name, Content>,
}

impl Verdicts {
    /// Whether all that is wanted was written, as far as it was tried.
    pub(crate) fn has_all_wanted(&self) -> bool {
        let mut wanted = [&self.base, &self.ways].into_iter().chain(&self.parts);
        wanted.all(|verdict| *verdict == Verdict::Done)
    }

    /// All done.
    pub(crate) fn done(plan: &Plan) -> Self {
        Self {
            listeners: vec![Ok(()); plan.listeners.len()],
            parts: vec![Verdict::Done; plan.parts.len()],
            stale: vec![Verdict::Done; plan.stale.len()],
            removal: plan.removal,
            timeouts: plan.timeouts,
            ..Self::default()
        }
    }
}

/// What a change is for: what stands and falls together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// What all Services need.
    Base,
    /// The part with this index.
    Part(usize),
    /// The chain that leads to Services, where it goes over to another layout.
    Ways,
    /// The stale thing with this index.
    Stale(usize),
}

impl Plan {
    /// Whether it only takes away what nobody wants.
    pub(crate) fn is_cleanup(&self) -> bool {
        let nothing_else = !self.has_base() && self.ways.is_none() && self.parts.is_empty();
        nothing_else && !self.stale.is_empty()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.listeners.is_empty() && !self.writes_table()
    }

    /// Whether anything of the table is written.
    pub(crate) fn writes_table(&self) -> bool {
        self.has_base() || self.ways.is_some() || !self.parts.is_empty() || !self.stale.is_empty()
    }

    /// Whether a set of another kind goes with all that it holds.
    pub(crate) fn replaces_set(&self) -> bool {
        let mut changes = self.base_changes.iter();
        changes.any(|(key, of)| matches!(key, Key::Set(_)) && of.there == There::Other)
    }

    /// Reports whether a table that is there is to be switched on before base chains are made: the
    /// kernel refuses a new one in a transaction that changes the table's flags.
    ///
    /// Source: Linux, `net/netfilter/nf_tables_api.c` (`__NFT_TABLE_F_UPDATE`).
    pub(crate) fn switches_on_first(&self) -> bool {
        let table = self.base_changes.get(&Key::Table);
        let is_there = table.is_some_and(|of| of.there != There::Nothing);
        let mut others = self.base_changes.iter();
        is_there
            && others.any(|(key, of)| {
                let chain = self.base.chain(key);
                of.there != There::Same && chain.is_some_and(|(chain, _)| chain.base.is_some())
            })
    }

    pub(crate) fn has_base(&self) -> bool {
        !(self.base_changes.is_empty() && self.node_ports.is_empty())
    }

    /// All that stands and falls together.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = Subject> {
        let base = self.has_base().then_some(Subject::Base);
        let parts = (0..self.parts.len()).map(Subject::Part);
        let ways = self.ways.is_some().then_some(Subject::Ways);
        let stale = (0..self.stale.len()).map(Subject::Stale);
        base.into_iter().chain(parts).chain(ways).chain(stale)
    }

    /// Reports whether another set takes the place of one that rules of the part name.
    pub(crate) fn replaces_clients(&self, part: &Part) -> bool {
        let mut sets = part.affinity.iter();
        sets.any(|(_, clients)| clients.is_replacement(self.timeouts))
    }

    /// Returns the sets of clients that have given back memory.
    pub(crate) fn shrunk(&self, verdicts: &Verdicts) -> impl Iterator<Item = Name> {
        let done = self.parts.iter().zip(&verdicts.parts);
        let done = done.filter(|(_, verdict)| **verdict == Verdict::Done);
        let sets = done.flat_map(|(part, _)| &part.affinity);
        let shrunk = sets.filter(|(_, clients)| clients.is_shrunk(self.timeouts));
        shrunk.map(|(set, _)| Arc::clone(set))
    }

    /// A set that has got another timeout, if there is one: of a part of which all is done.
    pub(crate) fn changed_timeout(&self, verdicts: &[Verdict]) -> Option<(&Name, u32)> {
        let done = self.parts.iter().zip(verdicts);
        let done = done.filter(|(_, verdict)| **verdict == Verdict::Done);
        let affinity = done.flat_map(|(part, _)| &part.affinity);
        let mut changed = affinity.filter(|(_, clients)| clients.is_change());
        changed
            .next()
            .map(|(name, clients)| (name, clients.wanted.seconds))
    }
}
