//! The shim's sets and rules in this proxy's nftables table, over netlink. Each change is one
//! transaction.
//!
//! - The kernel applies or refuses a transaction as a whole. After a refusal, this module retries
//!   the changes set by set.
//! - Unlike ipset, nftables refuses to remove a missing element. So a retry first adds each element
//!   that it removes; adding an existing element has no effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netlink_batch::Refusal;
use nftables_netlink::{
    Activity, Change, CommitError, Element, Error, Family, Generation, KernelSet, Name, Nftables,
    OwnSockets, Rule, Transaction,
};
use proxy::IpFamily;

use super::error::SetInTheWay;
use super::reason::{refused, said, surprise};
use crate::kernel::FoundSets;
use crate::native::{
    self, Content, FORBIDDEN, HeldChain, SetElement, TABLE, add_table, definition, definition_of,
    forbidden_of, is_of, member, place, sets_of,
};
use crate::plan::{Op, Outcome};
use crate::sets::{Member, Set};
use crate::shim::native::everything;

/// Maximum number of set members in one transaction. Each encoded member takes about 100 bytes.
const MEMBERS_AT_ONCE: usize = 8_192;

/// Access to this proxy's nftables table of one IP family.
#[derive(Debug)]
pub(super) struct Native {
    nftables: Nftables,
    own: Arc<OwnSockets>,
    family: IpFamily,
    /// Content of the table at the last read, with the ruleset's generation number at that time.
    /// `None` before the first read.
    read: Option<(Generation, Content)>,
    sent: u32,
}

/// Consecutive writes to one set in one direction: elements to add, or elements to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    set: Name,
    direction: Direction,
    elements: Vec<Element>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Comes,
    Goes,
}

impl Native {
    pub(super) fn open(family: IpFamily, own: Arc<OwnSockets>) -> Result<Self, Error> {
        Ok(Self {
            nftables: own.open()?,
            own,
            family,
            read: None,
            sent: 0,
        })
    }

    /// Returns the number of transactions that this handle has sent.
    pub(super) fn sent(&self) -> u32 {
        self.sent
    }

    /// Returns the shim's sets with their members. Skips a set that has our name but another type.
    pub(super) fn dump(&mut self) -> Result<FoundSets, Error> {
        self.nftables = self.own.open()?;
        let family = Family::from(self.family);
        let mut found = FoundSets::default();
        for there in self.nftables.sets(family, TABLE)? {
            let name = &there.set.name;
            let Some(set) = is_of(name, self.family) else {
                continue;
            };
            let wanted = definition_of(name, self.family);
            if wanted.is_none_or(|wanted| !is_alike(&wanted, &there)) {
                continue;
            }
            let elements = match self.nftables.elements(family, TABLE, name) {
                Err(error) if is_missing(&error) => continue,
                elements => elements?,
            };
            let members = elements
                .iter()
                .filter_map(|element| Some(member(name, element, self.family)?.1));
            found.members.entry(set).or_default().extend(members);
            // The kernel grows the set as needed, so its capacity has no limit.
            found.sizes.insert(set, u32::MAX);
        }
        if !found.sizes.is_empty() {
            // The set of source ranges counts as existing before any of its nftables sets (one per
            // prefix length) exists: the write that adds the first members creates them.
            let ranges = Set::LoadBalancerSourceCidr;
            found.members.entry(ranges).or_default();
            found.sizes.insert(ranges, u32::MAX);
        }
        Ok(found)
    }

    /// Creates these sets in one transaction. After a refusal, creates each set separately.
    pub(super) fn create(&mut self, run: &[Op]) -> Vec<Outcome> {
        // Removes sets of a wrong type first, because Linux 5.10 silently accepts a second
        // definition of an existing set, even with another type.
        let mut stay = self.remove_strangers();
        if stay.is_empty() {
            match self.create_together(run) {
                Err(Failure::Refused(_) | Failure::TooLarge(_)) => {}
                Err(failure) => return vec![failure.outcome("the sets cannot be made"); run.len()],
                Ok(()) => return vec![Outcome::Done; run.len()],
            }
        }
        let each = run.chunks(1).map(|one| {
            let stays = self.made_by(one).find_map(|set| stay.remove(&set.name));
            let created = stays.map_or_else(|| self.create_together(one), Err);
            created.map_or_else(
                |failure| failure.outcome("the set cannot be made"),
                |()| Outcome::Done,
            )
        });
        each.collect()
    }

    fn create_together(&mut self, run: &[Op]) -> Result<(), Failure> {
        let sets = self.made_by(run).map(Change::AddSet);
        let changes = [add_table(self.family)].into_iter().chain(sets);
        self.commit(changes.collect())
    }

    /// Removes one of the shim's sets.
    pub(super) fn remove(&mut self, op: &Op) -> Outcome {
        let Op::RemoveSet(set) = op else {
            return Outcome::Unknown;
        };
        let name = set.name(self.family);
        match self.commit(vec![Change::DeleteSet(name.into())]) {
            Ok(()) => Outcome::Done,
            Err(Failure::Refused(refusal)) if refusal.errno == libc::ENOENT => Outcome::Done,
            Err(failure) => failure.outcome("the set cannot be removed"),
        }
    }

    /// Returns the definitions of the nftables sets that these writes create.
    fn made_by(&self, run: &[Op]) -> impl Iterator<Item = nftables_netlink::Set> {
        let family = self.family;
        run.iter().filter_map(move |op| match op {
            Op::CreateSet(set, _) => definition(*set, family),
            _ => None,
        })
    }

    /// Returns the nftables sets that have a name of ours but another type (*strangers*).
    pub(super) fn strangers(&mut self) -> Result<Vec<KernelSet>, Error> {
        let mut there = self.nftables.sets(Family::from(self.family), TABLE)?;
        there.retain(|found| {
            let wanted = definition_of(&found.set.name, self.family);
            wanted.is_some_and(|wanted| !is_alike(&wanted, found))
        });
        Ok(there)
    }

    /// Describes [`strangers`](Self::strangers) for the operator. The next write replaces them.
    pub(super) fn in_the_way(&mut self) -> Result<Vec<SetInTheWay>, Error> {
        let family = Family::from(self.family).name();
        let told = |KernelSet { set, .. }: KernelSet| {
            let types: Vec<String> = set.key.iter().map(ToString::to_string).collect();
            SetInTheWay {
                is_replaced: true,
                message: format!(
                    "set {} of table {family} {TABLE} is not as kube-proxy makes it (its type is `{}`): an administrator or another \
                     program has made it. The table is kube-proxy's alone: a start removes the set, and other programs' rules that look \
                     into it, and makes its own; if somebody needs them, move them to another table before",
                    set.name,
                    types.join(" . ")
                ),
            }
        };
        Ok(self.strangers()?.into_iter().map(told).collect())
    }

    /// Removes [`strangers`](Self::strangers): they cannot hold our members, and prevent the
    /// creation of our sets. Returns those that the kernel refused to remove, each with the reason.
    fn remove_strangers(&mut self) -> BTreeMap<Name, Failure> {
        // If this read fails, so does the next write, which reports the error.
        let there = self.strangers().unwrap_or_default();
        let mut stay = BTreeMap::new();
        for found in there {
            let name = found.set.name;
            if let Err(failure) = self.commit(vec![Change::DeleteSet(name.clone())]) {
                stay.insert(name, failure);
            }
        }
        let is_used = |failure: &Failure| matches!(failure, Failure::Refused(refusal) if refusal.errno == libc::EBUSY);
        if stay.values().any(is_used) {
            let used: Vec<Name> = stay.keys().cloned().collect();
            match self.replace(&used) {
                Ok(()) => stay.clear(),
                Err(failure) => tracing::debug!(?failure, "sets in the way cannot be replaced"),
            }
        }
        stay
    }

    /// Replaces strangers that rules match. Rules can match only sets of their own table, so these
    /// rules are in ours. In the same transaction, this function:
    ///
    /// - writes the rules of our chains again
    /// - removes the rules of other chains in our table, which are drift
    ///
    /// If the kernel refuses this transaction, a second one omits the rules that match a replaced
    /// set.
    fn replace(&mut self, strangers: &[Name]) -> Result<(), Failure> {
        let read = self.read();
        let there = read.map_err(|error| Failure::Unsent(error.to_string()))?;
        let own = everything(self.family);
        let looks_into = |rule: &Rule| sets_of(rule).any(|set| strangers.contains(set));
        let with_rules = |kept: &dyn Fn(&Rule) -> bool| {
            let chains = there.chains.iter();
            let chains = chains.filter(|(name, _)| own.chains.contains_key(*name));
            let rules = chains.flat_map(|(name, chain)| {
                let rules = chain.rules.iter().filter(|rule| kept(rule)).cloned();
                rules.map(|rule| Change::AddRule(name.clone(), rule))
            });
            let emptied = there.chains.keys().cloned().map(Change::FlushChain);
            let deleted = strangers.iter().cloned().map(Change::DeleteSet);
            let defined = strangers.iter();
            let defined = defined.filter_map(|name| definition_of(name, self.family));
            let sets = deleted.chain(defined.map(Change::AddSet));
            emptied.chain(sets).chain(rules).collect()
        };
        let (all, certain) = (with_rules(&|_| true), with_rules(&|rule| !looks_into(rule)));
        match self.commit(all) {
            Err(Failure::Refused(_) | Failure::Whole(_)) => self.commit(certain),
            replaced => replaced,
        }
    }

    /// Adds and removes set members. Splits very many writes into several transactions to save
    /// memory. No packet needs all these members at the same time.
    pub(super) fn apply(&mut self, run: &[Op]) -> Vec<Outcome> {
        let parts = run.chunks(MEMBERS_AT_ONCE);
        parts.flat_map(|part| self.apply_together(part)).collect()
    }

    /// Adds and removes set members in one transaction. After a refusal, writes each set
    /// separately.
    fn apply_together(&mut self, run: &[Op]) -> Vec<Outcome> {
        let changes = self.changes(self.runs(run));
        match self.commit(changes) {
            Ok(()) => vec![Outcome::Done; run.len()],
            Err(Failure::Unknown) => vec![Outcome::Unknown; run.len()],
            Err(Failure::Refused(refusal)) => {
                if may_be_a_strangers(&refusal) {
                    self.remove_strangers();
                }
                let is_replacement = |op: &Op| matches!(op, Op::ReplaceMember(..));
                let mut outcomes = Vec::new();
                for part in run.chunk_by(|one, next| !is_replacement(one) && !is_replacement(next))
                {
                    let runs = self.runs(part);
                    if part.iter().any(is_replacement) {
                        // Removes the former member before it adds the new one.
                        let mut outcome = Outcome::Done;
                        for run in runs {
                            outcome = self.try_alone(run);
                            if outcome != Outcome::Done {
                                break;
                            }
                        }
                        outcomes.push(outcome);
                        continue;
                    }
                    for run in runs {
                        let count = run.elements.len();
                        outcomes.extend(vec![self.try_alone(run); count]);
                    }
                }
                outcomes
            }
            // The transaction does not fit into the socket's buffer, so each half is sent
            // separately.
            Err(Failure::TooLarge(_)) if run.len() > 1 => {
                let (first, second) = run.split_at(run.len() / 2);
                let mut outcomes = self.apply_together(first);
                outcomes.extend(self.apply_together(second));
                outcomes
            }
            Err(failure) => vec![failure.outcome("members cannot be written"); run.len()],
        }
    }

    /// Returns the elements that a write adds or removes, with the direction of each.
    fn elements(&self, op: &Op) -> impl Iterator<Item = (Direction, SetElement)> {
        let (removed, added) = match op {
            Op::AddMember(set, member) => (None, Some((*set, member))),
            Op::RemoveMember(set, member) => (Some((*set, member)), None),
            Op::ReplaceMember(set, former, member) => (Some((*set, former)), Some((*set, member))),
            _ => (None, None),
        };
        let family = self.family;
        let element = move |(set, member)| place(set, member, family);
        let removed = removed
            .map(element)
            .map(|element| (Direction::Goes, element));
        let added = added
            .map(element)
            .map(|element| (Direction::Comes, element));
        removed.into_iter().chain(added)
    }

    /// Groups consecutive writes by nftables set and by direction (add or remove).
    fn runs(&self, ops: &[Op]) -> Vec<Run> {
        // Source ranges have one nftables set per prefix length, and each of these sets needs its
        // own run.
        let mut runs: Vec<Run> = Vec::new();
        let writes = ops.iter().flat_map(|op| self.elements(op));
        for (direction, SetElement { set, element }) in writes {
            match runs.last_mut() {
                Some(run) if run.set == set && run.direction == direction => {
                    run.elements.push(element);
                }
                _ => runs.push(Run {
                    set,
                    direction,
                    elements: vec![element],
                }),
            }
        }
        runs
    }

    fn changes(&self, runs: Vec<Run>) -> Vec<Change> {
        let mut changes = Vec::new();
        for run in runs {
            changes.extend(self.part(&run.set));
            changes.push(match run.direction {
                Direction::Comes => Change::AddElements(run.set, run.elements),
                Direction::Goes => Change::DeleteElements(run.set, run.elements),
            });
        }
        changes
    }

    /// Returns the change that creates a set of source ranges, which a transaction with its members
    /// must contain. Returns `None` for any other set, because it exists already.
    fn part(&self, name: &Name) -> Option<Change> {
        let is_part = is_of(name, self.family) == Some(Set::LoadBalancerSourceCidr);
        let definition = is_part.then(|| definition_of(name, self.family))?;
        definition.map(Change::AddSet)
    }

    /// Adds or removes the elements of one nftables set in a separate transaction.
    fn try_alone(&mut self, run: Run) -> Outcome {
        let (name, direction) = (run.set.clone(), run.direction);
        let runs = match direction {
            Direction::Comes => vec![run],
            // Adds the elements before it removes them, because nftables refuses to remove a
            // missing element.
            Direction::Goes => {
                let direction = Direction::Comes;
                vec![
                    Run {
                        direction,
                        ..run.clone()
                    },
                    run,
                ]
            }
        };
        let changes = self.changes(runs);
        let is_missing = |failure: &Failure| matches!(failure, Failure::Refused(refusal) if refusal.errno == libc::ENOENT);
        match self.commit(changes) {
            Ok(()) => Outcome::Done,
            Err(failure) if is_missing(&failure) => match direction {
                Direction::Goes => Outcome::Done,
                Direction::Comes => surprise(format!(
                    "set {name} no longer exists; kube-proxy creates it again"
                )),
            },
            Err(failure) => failure.outcome(&name),
        }
    }

    /// Reads chains, rules and forbidden addresses of our table. If the ruleset is unchanged since
    /// the last read, this needs only one query.
    pub(super) fn read(&mut self) -> Result<Content, Error> {
        let generation = self.nftables.generation()?;
        if let Some((of, content)) = &self.read
            && *of == generation
        {
            return Ok(content.clone());
        }
        let family = Family::from(self.family);
        let mut content = Content::default();
        let tables = self.nftables.tables(Some(family))?;
        if let Some(own) = tables.iter().find(|table| &*table.name == TABLE) {
            content.activity = own.activity;
        }
        for chain in self.nftables.chains(family, TABLE)? {
            let held = HeldChain {
                base: chain.base,
                rules: Vec::new(),
            };
            content.chains.insert(chain.name, held);
        }
        for found in self.nftables.rules(family, TABLE)? {
            if let Some(chain) = content.chains.get_mut(&found.chain) {
                chain.rules.push(found.rule);
            }
        }
        match self.nftables.elements(family, TABLE, FORBIDDEN) {
            Err(error) if is_missing(&error) => {}
            elements => {
                let elements = elements?;
                let keys = elements.iter();
                content.forbidden = keys
                    .filter_map(|element| forbidden_of(&element.key, self.family))
                    .collect();
            }
        }
        // Any change to the ruleset changes its generation number, by which the next read notices
        // the change.
        self.read = Some((generation, content.clone()));
        Ok(content)
    }

    /// Changes the chains and rules in the kernel from `installed` to `wanted`.
    pub(super) fn write_content(&mut self, wanted: &Content, installed: &Content) -> Outcome {
        if installed.activity == Activity::Dormant {
            // Activates a dormant table in a separate transaction, because the kernel refuses new
            // base chains together with the activation. If the kernel refuses the activation, the
            // next transaction fails with the same reason.
            drop(self.commit(vec![add_table(self.family)]));
        }
        let mut written = self.commit(wanted.changes(installed, self.family));
        if let Err(Failure::Refused(refusal)) = &written
            && may_be_a_strangers(refusal)
        {
            self.remove_strangers();
            written = self.commit(wanted.changes(installed, self.family));
        }
        match written {
            Ok(()) => Outcome::Done,
            Err(failure) => failure.outcome("the rules cannot be written"),
        }
    }

    fn commit(&mut self, changes: Vec<Change>) -> Result<(), Failure> {
        let transaction = Transaction {
            family: self.family.into(),
            table: TABLE.into(),
            changes,
        };
        self.sent = self.sent.wrapping_add(1);
        match self.nftables.commit(&transaction, None) {
            Ok(_) => Ok(()),
            Err(CommitError::Refused { refused, .. }) => {
                let first = refused.into_iter().next();
                Err(first.map_or(Failure::Unknown, |first| Failure::Refused(first.refusal)))
            }
            Err(CommitError::Whole(refusal)) => Err(Failure::Whole(refusal)),
            Err(CommitError::Unknown | CommitError::WrongGeneration { .. }) => {
                Err(Failure::Unknown)
            }
            Err(error @ CommitError::TooLarge(_)) => Err(Failure::TooLarge(error.to_string())),
            Err(error) => {
                if let Ok(nftables) = self.own.open() {
                    self.nftables = nftables;
                }
                Err(Failure::Unsent(error.to_string()))
            }
        }
    }
}

/// Reason why a transaction failed, or why its outcome is unknown.
#[derive(Debug)]
enum Failure {
    /// The kernel refused single changes of the transaction.
    Refused(Refusal),
    /// The kernel refused the transaction as a whole, without naming a change.
    Whole(Refusal),
    /// The transaction is larger than the largest buffer of the socket, so it was not sent.
    TooLarge(String),
    /// The kernel's reply was lost. The kernel may have applied the transaction.
    Unknown,
    /// The process could not send the transaction, or could not receive the reply.
    Unsent(String),
}

impl Failure {
    fn outcome(self, what: &str) -> Outcome {
        let next = format!("look at it with `nft list table ip {TABLE}` (or ip6)");
        match self {
            Self::Refused(refusal) | Self::Whole(refusal) => {
                refused(format!("{what}: {}", said(&refusal, &next)))
            }
            Self::TooLarge(why) => refused(format!("{what}: {why}")),
            Self::Unknown => Outcome::Unknown,
            Self::Unsent(why) => {
                tracing::warn!(
                    error = why,
                    "a transaction may have been made or not; reading the kernel again"
                );
                Outcome::Unknown
            }
        }
    }
}

/// Returns true if a kernel set has the wanted definition. Ignores the comment and the names of
/// packet fields in the key (`type_of`), which are only for display.
fn is_alike(wanted: &nftables_netlink::Set, there: &KernelSet) -> bool {
    let kind = |of: &nftables_netlink::Set| nftables_netlink::Set {
        type_of: None,
        comment: None,
        ..of.clone()
    };
    kind(wanted) == kind(&there.set) && there.other_flags == 0
}

/// Returns true if a stranger, a set with our name but another type, may be the reason of the
/// refusal: the kernel then refuses our definition of the set, or its elements.
fn may_be_a_strangers(refusal: &Refusal) -> bool {
    matches!(
        refusal.errno,
        libc::EEXIST | libc::EINVAL | libc::ENFILE | libc::EBUSY
    )
}

fn is_missing(error: &Error) -> bool {
    matches!(
        error,
        Error::Netlink(netlink_batch::Error::Refused(Refusal {
            errno: libc::ENOENT,
            ..
        }))
    )
}

/// Returns the set members that an earlier run left in our nftables table, for a shim that now uses
/// ipsets. Returns none if the table does not exist.
pub(super) fn members(family: IpFamily) -> Result<BTreeMap<Set, BTreeSet<Member>>, Error> {
    match Native::open(family, Arc::default()) {
        Ok(mut native) => Ok(native.dump()?.members),
        Err(Error::NoNftables) => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

/// Returns true if this kernel's nf_tables does not support the IP family, so that it refuses every
/// change to tables of this family.
pub(super) fn lacks_tables(nftables: &mut Nftables, family: IpFamily) -> bool {
    let transaction = Transaction {
        family: family.into(),
        table: native::PROBE.into(),
        changes: vec![add_table(family)],
    };
    let is_lack =
        |refusal: &Refusal| matches!(refusal.errno, libc::EOPNOTSUPP | libc::EAFNOSUPPORT);
    match nftables.check(&transaction) {
        Err(CommitError::Whole(refusal)) => is_lack(&refusal),
        Err(CommitError::Refused { refused, .. }) => refused.iter().any(|of| is_lack(&of.refusal)),
        _ => false,
    }
}

/// Tests whether the kernel supports the shim's nftables table: sends a transaction with every kind
/// of chain and every expression, but never commits it.
pub(super) fn probe(family: IpFamily) -> Result<(), String> {
    let mut nftables = Nftables::open().map_err(|error| error.to_string())?;
    let all = everything(family);
    let transaction = Transaction {
        family: family.into(),
        table: native::PROBE.into(),
        changes: all.changes(&Content::default(), family),
    };
    let checked = nftables.check(&transaction);
    checked.map_err(|error| error.to_string())
}
