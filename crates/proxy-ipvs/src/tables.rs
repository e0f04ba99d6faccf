//! The kernel's tables as this mode keeps them: what is wanted, what is there, and so what is pending, of each kind of entry.
//!
//! ```text
//!   claims ──▶ Tables ──planner──▶ Plan ──Kernel──▶ Outcomes ──settle──▶ Tables
//! ```
//!
//! Writes go on while something else comes to be wanted. So what is booked is what was written, by its value, and never what is
//! wanted by then.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashSet;
use proxy::{Failure, NamespacedName, Owner, ServicePortName, Target};
use reconcile::Table;
use smallvec::SmallVec;

use crate::kernel::Part;
use crate::leftovers::{Leftovers, Place};
use crate::plan::{Fault, Op, Outcome, Plan};
use crate::rules::Rules;
use crate::server::{Properties, RealServer, VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};

/// How many members a set can hold, as upstream creates it; more where more are wanted.
pub(crate) const SET_SIZE: u32 = 65_536;

/// All tables of one IP family.
pub(crate) struct Tables {
    /// The link `kube-ipvs0`, which is always wanted.
    pub(crate) link: Table<(), (), ()>,
    /// With how many members each set must be able to hold; all are always wanted.
    pub(crate) sets: Table<Set, u32, ()>,
    /// By the number of the set.
    members: [Table<Member, (), Arc<Owner>>; Set::COUNT],
    pub(crate) rules: Table<(), Arc<Rules>, ()>,
    /// What other modes have left; none of it is wanted.
    pub(crate) leftovers: Table<Place, Arc<Leftovers>, ()>,
    pub(crate) servers: Table<VirtualServerKey, VirtualServer, Arc<Owner>>,
    pub(crate) addresses: Table<IpAddr, (), Arc<Owner>>,
    /// Addresses in the form of the other `--ipvs-vip-mode`; none is wanted.
    pub(crate) bound_otherwise: Table<IpAddr, (), ()>,
}

/// What all tables have, whatever they hold.
pub(crate) trait Rows {
    fn begin(&mut self, now: Instant);
    fn count_removals(&mut self, counts: bool);
    fn pending_len(&self) -> usize;
    fn failing_len(&self) -> usize;
    fn pending_since(&self) -> Option<Instant>;
    fn next_retry(&self, now: Instant) -> Option<Instant>;
}

impl<K, V, O> Rows for Table<K, V, O>
where
    K: Clone + Eq + std::hash::Hash,
    V: Clone + Eq,
    O: Clone + Eq + std::hash::Hash + Ord,
{
    fn begin(&mut self, now: Instant) {
        self.begin(now);
    }

    fn count_removals(&mut self, counts: bool) {
        self.count_removals(counts);
    }

    fn pending_len(&self) -> usize {
        self.pending_len()
    }

    fn failing_len(&self) -> usize {
        self.failing_len()
    }

    fn pending_since(&self) -> Option<Instant> {
        self.pending_since()
    }

    fn next_retry(&self, now: Instant) -> Option<Instant> {
        self.next_retry(now)
    }
}

/// What became of a plan, once it is booked.
#[derive(Debug, Default)]
pub(crate) struct Booked {
    /// Writes that were done.
    pub(crate) written: usize,
    /// Why others were not.
    pub(crate) failures: Vec<Failure>,
    /// How many of these are tables of rules.
    pub(crate) failed_restores: usize,
    /// Parts that are not as was believed, or of which nobody knows.
    pub(crate) doubted: SmallVec<[Part; 2]>,
    /// Virtual servers that may have been made, or not.
    pub(crate) uncertain: Vec<VirtualServerKey>,
    /// The Services that wrote something, or tried to.
    pub(crate) touched: HashSet<NamespacedName>,
}

impl Tables {
    /// The link and the sets are wanted; nothing is known to be there.
    pub(crate) fn new(now: Instant) -> Self {
        let mut tables = Self {
            link: Table::new(),
            sets: Table::new(),
            members: std::array::from_fn(|_| Table::new()),
            rules: Table::new(),
            leftovers: Table::new(),
            servers: Table::new(),
            addresses: Table::new(),
            bound_otherwise: Table::new(),
        };
        tables.begin(now);
        tables.link.claim(&(), [((), ())]);
        let sets = Set::all().map(|set| (set, SET_SIZE));
        tables.sets.claim(&(), sets);
        tables
    }

    /// The tables that one kind of kernel thread writes, each in its part.
    pub(crate) fn of(&self, part: Part) -> impl Iterator<Item = &dyn Rows> {
        let (some, members): (SmallVec<[&dyn Rows; 3]>, _) = match part {
            Part::Servers => ([&self.servers as &dyn Rows].into_iter().collect(), None),
            Part::Sets => (
                [&self.sets as &dyn Rows].into_iter().collect(),
                Some(&self.members),
            ),
            Part::Addresses => (
                [
                    &self.link as &dyn Rows,
                    &self.addresses,
                    &self.bound_otherwise,
                ]
                .into_iter()
                .collect(),
                None,
            ),
            Part::Rules => (
                [&self.rules as &dyn Rows, &self.leftovers]
                    .into_iter()
                    .collect(),
                None,
            ),
        };
        let members = members
            .into_iter()
            .flatten()
            .map(|table| table as &dyn Rows);
        some.into_iter().chain(members)
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &dyn Rows> {
        Part::ALL.into_iter().flat_map(|part| self.of(part))
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut dyn Rows> {
        let Self {
            link,
            sets,
            members,
            rules,
            leftovers,
            servers,
            addresses,
            bound_otherwise,
        } = self;
        let members = members.iter_mut().map(|table| table as &mut dyn Rows);
        [
            link as &mut dyn Rows,
            sets,
            rules,
            leftovers,
            servers,
            addresses,
            bound_otherwise,
        ]
        .into_iter()
        .chain(members)
    }

    /// Whether what nobody wants counts as late: not while it may not be removed.
    pub(crate) fn count_removals(&mut self, counts: bool) {
        let tables = self.all_mut();
        tables.for_each(|table| table.count_removals(counts));
    }

    /// Says what time it is.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.all_mut().for_each(|table| table.begin(now));
    }

    pub(crate) fn members(&self, set: Set) -> &Table<Member, (), Arc<Owner>> {
        #[allow(clippy::indexing_slicing, reason = "Set::COUNT is the number of sets")]
        &self.members[set as usize]
    }

    pub(crate) fn members_mut(&mut self, set: Set) -> &mut Table<Member, (), Arc<Owner>> {
        #[allow(clippy::indexing_slicing, reason = "Set::COUNT is the number of sets")]
        &mut self.members[set as usize]
    }

    /// Each set with its members.
    pub(crate) fn all_members(
        &self,
    ) -> impl Iterator<Item = (Set, &Table<Member, (), Arc<Owner>>)> {
        Set::all().zip(&self.members)
    }

    /// Whether all that an owner claims is there. Of a virtual server it need not be all: what of it is wrong in itself has been
    /// told by name, and the rest serves.
    pub(crate) fn is_settled_for(&self, owner: &Arc<Owner>) -> bool {
        let is_settled = |(_, table): (Set, &Table<Member, (), Arc<Owner>>)| {
            let mut keys = table.keys_of(owner).iter();
            keys.all(|key| !table.is_pending(key))
        };
        let serves = |key: &VirtualServerKey| {
            let servers = &self.servers;
            !servers.is_pending(key) || (servers.is_excused(key) && servers.actual(key).is_some())
        };
        let mut addresses = self.addresses.keys_of(owner).iter();
        self.servers.keys_of(owner).iter().all(serves)
            && addresses.all(|address| !self.addresses.is_pending(address))
            && self.all_members().all(is_settled)
    }

    /// Whether members that nobody wants are still to leave a set in which none is wanted.
    pub(crate) fn empties_sets(&self) -> bool {
        let mut tables = self.members.iter();
        tables.any(|table| table.wanted_len() == 0 && table.pending_len() > 0)
    }

    /// Wants each set as large as its members need, those that leave it after others have come included, and never smaller than
    /// it is.
    pub(crate) fn want_room(&mut self) {
        for (set, table) in Set::all().zip(&self.members) {
            let needed = u32::try_from(table.len().next_power_of_two()).unwrap_or(u32::MAX);
            let there = self.sets.actual(&set).copied().unwrap_or(SET_SIZE);
            let size = needed.max(there);
            if self.sets.wanted(&set) != Some(&size) {
                self.sets.amend(&(), &set, size);
            }
        }
    }

    // ---- booking ----

    /// Books what became of a plan.
    pub(crate) fn settle(&mut self, plan: &Plan, outcomes: Vec<Outcome>, now: Instant) -> Booked {
        let mut booked = Booked::default();
        let mut outcomes = outcomes.into_iter();
        let of_one = |one: &Op, next: &Op| {
            let key = server_of(one);
            key.is_some() && key == server_of(next)
        };
        // What is written to one virtual server stands in a row.
        for run in plan.ops.chunk_by(of_one) {
            match run.first().and_then(server_of) {
                Some(key) => self.settle_server(&key, run, &mut outcomes, now, &mut booked),
                None => {
                    for (op, outcome) in run.iter().zip(&mut outcomes) {
                        let owners = self.services_of(op);
                        booked.touched.extend(owners);
                        self.settle_one(op, outcome, now, &mut booked);
                    }
                }
            }
        }
        booked
    }

    /// Books all that was written to one virtual server.
    fn settle_server(
        &mut self,
        key: &VirtualServerKey,
        run: &[Op],
        outcomes: &mut impl Iterator<Item = Outcome>,
        now: Instant,
        booked: &mut Booked,
    ) {
        let actual = self.servers.actual(key);
        let mut draft = actual.map(|actual| Draft::of(actual, run.len()));
        let mut fault = None;
        let (mut is_unknown, mut is_refused) = (false, false);
        for (op, outcome) in run.iter().zip(outcomes) {
            match outcome {
                Outcome::Done => {
                    booked.written += 1;
                    Draft::apply(&mut draft, op);
                }
                Outcome::Unknown => is_unknown = true,
                // A virtual server that was refused takes its destinations with it: that is no surprise, and it is said once.
                Outcome::Refused { .. } if is_refused => {}
                Outcome::Refused { reason, fault: of } => {
                    is_refused = matches!(op, Op::AddServer(..));
                    if fault.is_none() {
                        booked.fail(op, self.owner_of(op), reason);
                    }
                    fault = Some(fault.map_or(of, |fault| worse(fault, of)));
                }
            }
        }
        self.servers.set_actual(key, draft.map(Draft::into_server));
        let owners = self.servers.owners(key);
        booked
            .touched
            .extend(owners.map(|owner| owner.name.service.clone()));
        if is_unknown {
            booked.doubt(Part::Servers);
            booked.uncertain.push(*key);
            self.servers.doubt(key, now);
        }
        match fault {
            None => {}
            Some(Fault::Entry) => self.servers.excuse(key, now),
            Some(Fault::Node) => self.servers.fail(key, now),
            Some(Fault::Belief) => {
                booked.doubt(Part::Servers);
                self.servers.doubt(key, now);
            }
        }
    }

    fn settle_one(&mut self, op: &Op, outcome: Outcome, now: Instant, booked: &mut Booked) {
        let (is_unknown, fault) = match outcome {
            Outcome::Done => {
                booked.written += 1;
                self.set_done(op);
                return;
            }
            Outcome::Unknown => (true, Fault::Belief),
            Outcome::Refused { reason, fault } => {
                booked.fail(op, self.owner_of(op), reason);
                (false, fault)
            }
        };
        booked.failed_restores += usize::from(matches!(
            op,
            Op::WriteRules { .. } | Op::RemoveLeftovers(..)
        ));
        if fault == Fault::Belief {
            booked.doubt(part_of(op));
        }
        if is_unknown || fault == Fault::Belief {
            self.with_row(op, |row| row.doubt(now));
        } else if fault == Fault::Entry {
            self.with_row(op, |row| row.excuse(now));
        } else {
            self.with_row(op, |row| row.fail(now));
        }
        if matches!(op, Op::WriteRules { .. }) {
            // Nobody knows what a refused restore has left: look before the next try. It may be a set that is missing.
            booked.doubt(Part::Rules);
            booked.doubt(Part::Sets);
        }
    }

    /// What was written is there, or gone.
    fn set_done(&mut self, op: &Op) {
        match op {
            Op::CreateLink => self.link.set_actual(&(), Some(())),
            Op::CreateSet(set, size) => {
                let there = self.sets.actual(set).copied().unwrap_or(0);
                self.sets.set_actual(set, Some(there.max(*size)));
            }
            Op::AddMember(set, member) => self.members_mut(*set).set_actual(member, Some(())),
            Op::RemoveMember(set, member) => self.members_mut(*set).set_actual(member, None),
            Op::WriteRules { wanted, .. } => self.rules.set_actual(&(), Some(Arc::clone(wanted))),
            Op::RemoveLeftovers(place, _) => self.leftovers.set_actual(place, None),
            Op::BindAddress(address) => self.addresses.set_actual(address, Some(())),
            Op::UnbindAddress(address) => self.addresses.set_actual(address, None),
            Op::UnbindOtherwise(address) => self.bound_otherwise.set_actual(address, None),
            // By `settle_server`.
            Op::AddServer(..)
            | Op::SetServer(..)
            | Op::RemoveServer(..)
            | Op::AddDestination(..)
            | Op::SetDestination(..)
            | Op::RemoveDestination(..) => {}
        }
    }

    /// Does something with the row that a write is about.
    fn with_row(&mut self, op: &Op, act: impl FnOnce(&mut dyn Row)) {
        match op {
            Op::CreateLink => act(&mut Of(&mut self.link, &(), Concern::All)),
            Op::CreateSet(set, _) => act(&mut Of(&mut self.sets, set, Concern::All)),
            Op::AddMember(set, member) | Op::RemoveMember(set, member) => {
                act(&mut Of(self.members_mut(*set), member, Concern::One));
            }
            Op::WriteRules { .. } => act(&mut Of(&mut self.rules, &(), Concern::All)),
            Op::RemoveLeftovers(place, _) => {
                act(&mut Of(&mut self.leftovers, place, Concern::Nobody));
            }
            Op::BindAddress(address) | Op::UnbindAddress(address) => {
                act(&mut Of(&mut self.addresses, address, Concern::One));
            }
            Op::UnbindOtherwise(address) => {
                act(&mut Of(&mut self.bound_otherwise, address, Concern::One));
            }
            // By `settle_server`.
            Op::AddServer(..)
            | Op::SetServer(..)
            | Op::RemoveServer(..)
            | Op::AddDestination(..)
            | Op::SetDestination(..)
            | Op::RemoveDestination(..) => {}
        }
    }

    fn owner_of(&self, op: &Op) -> Option<ServicePortName> {
        let owner = match op {
            Op::AddMember(set, member) => self.members(*set).owner(member),
            Op::BindAddress(address) => self.addresses.owner(address),
            _ => self.servers.owner(&server_of(op)?),
        };
        owner.map(|owner| owner.name.clone())
    }

    /// The Services that want what a write is about, other than to a virtual server.
    fn services_of(&self, op: &Op) -> SmallVec<[NamespacedName; 1]> {
        let service = |owner: &Arc<Owner>| owner.name.service.clone();
        match op {
            Op::AddMember(set, member) => self.members(*set).owners(member).map(service).collect(),
            Op::BindAddress(address) => self.addresses.owners(address).map(service).collect(),
            _ => SmallVec::new(),
        }
    }
}

/// Whom it concerns when something cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Concern {
    /// All Services: there is no excuse.
    All,
    /// Those that want it.
    One,
    /// Nobody: it is left behind by others, and only in the way.
    Nobody,
}

/// One row of some table.
struct Of<'a, K, V, O>(&'a mut Table<K, V, O>, &'a K, Concern);

trait Row {
    fn fail(&mut self, now: Instant);
    fn excuse(&mut self, now: Instant);
    fn doubt(&mut self, now: Instant);
}

impl<K, V, O> Row for Of<'_, K, V, O>
where
    K: Clone + Eq + std::hash::Hash,
    V: Clone + Eq,
    O: Clone + Eq + std::hash::Hash + Ord,
{
    fn fail(&mut self, now: Instant) {
        match self.2 {
            Concern::All | Concern::One => self.0.fail(self.1, now),
            Concern::Nobody => self.0.excuse(self.1, now),
        }
    }

    fn excuse(&mut self, now: Instant) {
        match self.2 {
            Concern::All => self.0.fail(self.1, now),
            Concern::One | Concern::Nobody => self.0.excuse(self.1, now),
        }
    }

    fn doubt(&mut self, now: Instant) {
        self.0.doubt(self.1, now);
    }
}

impl Booked {
    fn fail(&mut self, op: &Op, owner: Option<ServicePortName>, reason: String) {
        self.failures.push(Failure {
            object: op.to_string(),
            owner,
            reason,
        });
    }

    fn doubt(&mut self, part: Part) {
        if !self.doubted.contains(&part) {
            self.doubted.push(part);
        }
    }
}

/// What is to blame where several things may be: what has to be read again before all, then what is not the entry's own fault.
fn worse(one: Fault, other: Fault) -> Fault {
    let rank = |fault: Fault| match fault {
        Fault::Entry => 0,
        Fault::Node => 1,
        Fault::Belief => 2,
    };
    if rank(one) >= rank(other) { one } else { other }
}

/// The part of the kernel's state that a write changes.
pub(crate) fn part_of(op: &Op) -> Part {
    match op {
        Op::CreateSet(..) | Op::AddMember(..) | Op::RemoveMember(..) => Part::Sets,
        Op::CreateLink | Op::BindAddress(_) | Op::UnbindAddress(_) | Op::UnbindOtherwise(_) => {
            Part::Addresses
        }
        Op::WriteRules { .. } | Op::RemoveLeftovers(..) => Part::Rules,
        Op::AddServer(..)
        | Op::SetServer(..)
        | Op::RemoveServer(..)
        | Op::AddDestination(..)
        | Op::SetDestination(..)
        | Op::RemoveDestination(..) => Part::Servers,
    }
}

/// The virtual server that a write is to.
pub(crate) fn server_of(op: &Op) -> Option<VirtualServerKey> {
    match op {
        Op::AddServer(key, _)
        | Op::SetServer(key, _)
        | Op::RemoveServer(key)
        | Op::AddDestination(key, _)
        | Op::SetDestination(key, _)
        | Op::RemoveDestination(key, _) => Some(*key),
        _ => None,
    }
}

/// So many writes to one virtual server are few: each is put in its place in the list of destinations.
const FEW: usize = 32;

/// A virtual server while the outcomes of its writes are booked.
struct Draft {
    properties: Properties,
    destinations: Destinations,
}

/// By their targets.
enum Destinations {
    List(Vec<RealServer>),
    /// For many writes that are not in order.
    Map(BTreeMap<Target, RealServer>),
}

impl Draft {
    fn of(server: &VirtualServer, writes: usize) -> Self {
        let all = server.destinations.iter();
        Self {
            properties: server.properties.clone(),
            destinations: if writes <= FEW {
                Destinations::List(all.collect())
            } else {
                Destinations::Map(all.map(|real| (real.target, real)).collect())
            },
        }
    }

    fn into_server(self) -> VirtualServer {
        VirtualServer {
            properties: self.properties,
            destinations: match self.destinations {
                Destinations::List(list) => list.into(),
                Destinations::Map(map) => map.into_values().collect(),
            },
        }
    }

    fn apply(draft: &mut Option<Self>, op: &Op) {
        match (op, draft.as_mut()) {
            (Op::AddServer(_, properties), _) => {
                *draft = Some(Self {
                    properties: properties.clone(),
                    // They come in order.
                    destinations: Destinations::List(Vec::new()),
                });
            }
            (Op::SetServer(_, properties), Some(server)) => server.properties = properties.clone(),
            (Op::RemoveServer(_), _) => *draft = None,
            (Op::AddDestination(_, real) | Op::SetDestination(_, real), Some(server)) => {
                server.destinations.put(real.target, Some(*real));
            }
            (Op::RemoveDestination(_, target), Some(server)) => {
                server.destinations.put(*target, None);
            }
            _ => {}
        }
    }
}

impl Destinations {
    fn put(&mut self, target: Target, real: Option<RealServer>) {
        let list = match (self, real) {
            (Self::Map(map), Some(real)) => {
                map.insert(target, real);
                return;
            }
            (Self::Map(map), None) => {
                map.remove(&target);
                return;
            }
            (Self::List(list), _) => list,
        };
        let at = list.binary_search_by_key(&target, |real| real.target);
        match (at, real) {
            (Ok(at), Some(real)) => {
                if let Some(there) = list.get_mut(at) {
                    *there = real;
                }
            }
            (Ok(at), None) => {
                list.remove(at);
            }
            (Err(at), Some(real)) => list.insert(at, real),
            (Err(_), None) => {}
        }
    }
}
