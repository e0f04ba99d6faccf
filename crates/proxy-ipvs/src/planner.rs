//! What is to be written next, by each kernel thread: functions from tables to a plan.
//!
//! Three threads write beside each other, and what one of them needs of another it waits for entry
//! by entry:
//!
//! ```text
//!   services    sets ─▶ members ─▶ virtual servers ─▶ destinations            ╮ in turns: what is made,
//!               destinations ─▶ virtual servers (once their addresses are off) │ what serves no more,
//!               members (once their virtual servers are gone)                  ╯ what said that it was ours
//!   addresses   link ─▶ addresses (once their virtual servers are there) ─▶ those that go
//!   rules       the shim (once its sets are there) ─▶ what other modes have left
//! ```
//!
//! A change of an existing virtual server waits for nothing. A new one waits for the rules that it
//! needs: what comes from outside would be answered from a wrong address without them, and source
//! ranges would not hold. For those of cluster IPs, which mostly do without, the rules only have a
//! short start at the very beginning ([`Cover`]).
//!
//! Where the iptables mode serves, its rules come before IPVS: the shim, which replaces them, is
//! written when all is made that serves then.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use proxy::{Owner, Protocol, Rank, ServiceAddress, Share, Shares, Target};
use reconcile::Table;

use crate::claims::Claims;
use crate::cover::Cover;
use crate::kinds::{Part, State};
use crate::leftovers::Place;
use crate::masquerading::{self, Changing, EXEMPT};
use crate::plan::{Op, Plan};
use crate::server::{RealServer, VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set, SetKind};
use crate::tables::{SET_SIZE, Tables, sorted};

/// How many writes a plan has: it ends at the virtual server with which it has as many, and has no
/// more of any one; another plan follows. At 10,000 Services with 50 endpoints each, the first sync
/// would otherwise hold 100 MB of writes, messages and answers at once; and where the kernel is
/// slow, as while it searches its trash of destinations, whatever changes meanwhile would wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget(usize);

impl Budget {
    const MOST: Self = Self(32_768);
    const LEAST: Self = Self(64);
    /// The first of removals: they take the kernel longer, and nobody waits for them.
    const OF_REMOVALS: Self = Self(1_024);
    /// About as long as a plan may take, and how much longer for each virtual server that is pending:
    /// the next plan looks at all of them.
    const TIME: Duration = Duration::from_millis(25);
    const LOOK: Duration = Duration::from_micros(5);

    /// Whether so many writes say something of how fast the kernel is.
    pub(crate) fn tells(ops: usize) -> bool {
        ops >= Self::LEAST.0
    }

    /// As many as fit into the time, as long as the last `ops` have taken.
    pub(crate) fn after(ops: usize, took: Duration, pending: usize) -> Self {
        let time = Self::TIME.as_nanos() + Self::LOOK.as_nanos() * pending as u128;
        let fit = time * ops as u128 / took.as_nanos().max(1);
        let fit = usize::try_from(fit).unwrap_or(usize::MAX);
        Self(fit.clamp(Self::LEAST.0, Self::MOST.0))
    }

    pub(crate) fn is_used_up(self, ops: usize) -> bool {
        ops >= self.0
    }

    /// How many more.
    fn left(self, ops: usize) -> usize {
        self.0.saturating_sub(ops)
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::MOST
    }
}

/// With more writes than this in one plan, a Service or a namespace comes after the others: they do
/// not wait for it.
const SHARE: usize = 2_048;

/// So many addresses are bound or unbound in one go: each may cost the kernel half a millisecond
/// where there are very many, and an urgent one comes after those that have begun.
const ADDRESSES_AT_ONCE: usize = 2_048;

/// What a plan depends on beside the tables.
pub(crate) struct Situation<'a> {
    pub(crate) claims: &'a Claims,
    pub(crate) cover: &'a Cover,
    /// Nothing is written to parts of which it is not known what is there.
    pub(crate) state: &'a State,
    /// Whether the rules are not as they are to be.
    pub(crate) are_rules_pending: bool,
    /// Whether it is known which of the virtual servers that were there are ours.
    pub(crate) has_taken_over: bool,
    /// Whether no address is gone that is believed to be there, as far as the kernel has told.
    pub(crate) has_all_addresses: bool,
    pub(crate) now: Instant,
}

impl Situation<'_> {
    fn knows(&self, part: Part) -> bool {
        self.state.knows(part)
    }
}

/// What the thread of virtual servers and sets does in turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// All that is added or changed.
    Make,
    /// What serves no more.
    Break,
    /// What said that it was ours.
    Forget,
}

impl Turn {
    /// In which order they are tried after this one, so that none is put off for ever.
    pub(crate) fn after(last: Option<Self>) -> [Self; 3] {
        match last {
            None | Some(Self::Forget) => [Self::Make, Self::Break, Self::Forget],
            Some(Self::Make) => [Self::Break, Self::Forget, Self::Make],
            Some(Self::Break) => [Self::Forget, Self::Make, Self::Break],
        }
    }
}

/// Where the thread of virtual servers and sets stands in its turns.
#[derive(Debug)]
pub(crate) struct Turns {
    /// By turn: the kernel takes longer to remove a destination than to add one.
    budgets: [Budget; 3],
    /// What it has done last, while there is more.
    last: Option<Turn>,
    /// The virtual server with which its last plan ended because it was long enough: the next one
    /// begins behind it.
    last_server: Option<VirtualServerKey>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            budgets: [Budget::MOST, Budget::OF_REMOVALS, Budget::OF_REMOVALS],
            last: None,
            last_server: None,
        }
    }
}

/// Whether there is room for more in what a thread does in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Some,
    None,
}

impl Turns {
    /// What is written next to virtual servers, destinations and sets. There is room for more if
    /// something is made, and the plan is not as long as one may be.
    pub(crate) fn services(&mut self, tables: &Tables, of: &Situation<'_>) -> Option<(Plan, Room)> {
        for turn in Turn::after(self.last.take()) {
            let budget = *self.budget(turn);
            let plan = match turn {
                Turn::Make => make(tables, budget, self.last_server, of),
                Turn::Break if of.claims.may_delete => remove(tables, budget, of),
                Turn::Forget if of.claims.may_delete => forget(tables, budget, of),
                Turn::Break | Turn::Forget => Plan::default(),
            };
            if plan.ops.is_empty() {
                continue;
            }
            let is_long = budget.is_used_up(plan.ops.len());
            self.last = Some(turn);
            if turn == Turn::Make {
                let last = plan.ops.last().filter(|_| is_long);
                self.last_server = last.and_then(Op::server).copied();
            }
            let room = if turn == Turn::Make && !is_long {
                Room::Some
            } else {
                Room::None
            };
            return Some((plan, room));
        }
        None
    }

    fn budget(&mut self, turn: Turn) -> &mut Budget {
        let [make, remove, forget] = &mut self.budgets;
        match turn {
            Turn::Make => make,
            Turn::Break => remove,
            Turn::Forget => forget,
        }
    }

    /// Follows how long so many writes have taken: those of the last turn.
    pub(crate) fn took(&mut self, ops: usize, took: Duration, tables: &Tables) {
        if let Some(turn) = self.last {
            *self.budget(turn) = Budget::after(ops, took, tables.servers.pending_len());
        }
    }
}

fn make(
    tables: &Tables,
    budget: Budget,
    last: Option<VirtualServerKey>,
    of: &Situation<'_>,
) -> Plan {
    let mut ops = Vec::new();
    if of.knows(Part::Sets) {
        for set in sorted(tables.sets.due(of.now)) {
            let size = tables.sets.wanted(&set).copied().unwrap_or(SET_SIZE);
            ops.push(Op::CreateSet(set, size));
        }
    }
    let has_sets = !ops.is_empty();
    let is_there = |set: &Set| {
        let there = tables.sets.actual(set);
        there.is_some() || (has_sets && ops.iter().any(|op| creates(op, *set)))
    };
    let usable: BTreeSet<Set> = Set::all().filter(is_there).collect();
    let is_urgent = |rank: Rank| rank < Rank::Other;
    let due = of.knows(Part::Servers).then(|| tables.servers.due(of.now));
    let due = due.into_iter().flatten();
    // Of those that are not urgent, the plan looks only at as many as it has room for.
    let is_made = |key: &VirtualServerKey| makes(tables, key) && !waits_for_rules(tables, key, of);
    let due = due.filter(|key| !is_urgent(rank(&tables.servers, key)) || is_made(key));
    let servers = sorted(due).into_iter();
    let mut shares = Shares::new(SHARE);
    let servers = servers.map(|key| {
        let place = (
            rank(&tables.servers, &key),
            share(&mut shares, tables, &key),
        );
        (place, key)
    });
    let mut servers: Vec<((Rank, Share), VirtualServerKey)> = servers.collect();
    servers.sort_unstable();
    begin_behind(&mut servers, last);
    let changing = OnceCell::new();
    let exempted = |set: Set, member: &Member| {
        let keys = servers.iter().map(|(_, key)| key);
        let keys = keys.filter(|key| makes(tables, key));
        let changing = || changing.get_or_init(|| Changing::of(tables, keys));
        EXEMPT
            .contains(&set)
            .then(|| changing().exempted(set, member))?
    };
    let mut members = Vec::new();
    // Nor what refuses all others before the rules ask for those that it is to let through, unless
    // these rules are refused: then it is better closed.
    let are_guards_asked = !of.are_rules_pending
        || !are_rules_under_way(tables, of)
        || !GUARDS.iter().any(|set| of.cover.uncovered.contains(set));
    let may_be_filled = |set: Set| set != Set::LoadBalancerFirewall || are_guards_asked;
    let sets = tables.all_members();
    for (set, table) in sets.filter(|(set, _)| usable.contains(set) && may_be_filled(*set)) {
        // An exemption comes once its virtual server has the destinations that it is for.
        let is_early = |member: &Member| exempted(set, member) == Some(true);
        let added = table.due(of.now).filter(|key| table.wanted(key).is_some());
        let added = added.filter(|member| !is_early(member));
        let added = added.map(|member| (rank(table, member), set, *member));
        members.extend(added);
    }
    let mut ended = Vec::new();
    if of.claims.may_delete {
        let is_ended = |set, member: &Member| exempted(set, member).is_some();
        ended = masquerading::end_exemptions(tables, of.now, is_ended);
    }
    // Whatever else there is to do: the API server and DNS come in a plan of their own.
    let has_urgent = servers
        .first()
        .is_some_and(|((rank, _), _)| is_urgent(*rank))
        || members.iter().any(|(rank, ..)| is_urgent(*rank));
    if has_urgent {
        members.retain(|(rank, ..)| is_urgent(*rank));
        servers.retain(|((rank, _), _)| is_urgent(*rank));
    }
    // What lets clients through comes before what refuses all others.
    let refuses = |set: Set| set == Set::LoadBalancerFirewall;
    members.sort_unstable_by_key(|(_, set, member)| (refuses(*set), *set, *member));
    let members = members.into_iter();
    ops.extend(members.map(|(_, set, member)| Op::AddMember(set, member)));
    ops.extend(ended);
    for ((rank, _), key) in servers {
        if !is_urgent(rank) && !is_made(&key) {
            continue;
        }
        make_server(tables, key, budget, of, &mut ops);
        if budget.is_used_up(ops.len()) {
            break;
        }
    }
    Plan { ops }
}

/// Brings what follows the last one before it, so that a virtual server with very many changes
/// comes between the others, not before them. What is more urgent comes first all the same.
fn begin_behind<P: PartialEq>(
    servers: &mut [(P, VirtualServerKey)],
    last: Option<VirtualServerKey>,
) {
    let Some(last) = last else {
        return;
    };
    for alike in servers.chunk_by_mut(|one, next| one.0 == next.0) {
        let behind = alike.partition_point(|(_, key)| *key <= last);
        alike.rotate_left(behind);
    }
}

/// Returns the share of the next virtual server in a plan. What nobody wants is nobody's share.
fn share<'a>(shares: &mut Shares<'a>, tables: &'a Tables, key: &VirtualServerKey) -> Share {
    let (owner, wanted) = (tables.servers.owner(key), tables.servers.wanted(key));
    match (owner, wanted) {
        (Some(owner), Some(server)) => {
            shares.of(&owner.name.service, 1 + server.destinations.len())
        }
        _ => Share::Within,
    }
}

fn creates(op: &Op, set: Set) -> bool {
    matches!(op, Op::CreateSet(of, _) if *of == set)
}

/// Whether something is to be added to a virtual server, or changed.
fn makes(tables: &Tables, key: &VirtualServerKey) -> bool {
    let Some(wanted) = tables.servers.wanted(key) else {
        return false;
    };
    let Some(actual) = tables.servers.actual(key) else {
        return tables.foreign.may_be_tried(key);
    };
    let mut wanted_ones = wanted.destinations.iter();
    let may_lower = tables.may_lower(key);
    actual.properties != wanted.properties
        || wanted_ones.any(|real| match actual.destination(real.target) {
            Some(there) => there != real && (may_lower || !is_lowered(there, real)),
            None => true,
        })
}

fn is_lowered(there: RealServer, wanted: RealServer) -> bool {
    there.weight > wanted.weight
}

/// What comes is made before weights go down, so that there is a destination at all times.
fn make_server(
    tables: &Tables,
    key: VirtualServerKey,
    budget: Budget,
    of: &Situation<'_>,
    ops: &mut Vec<Op>,
) {
    let before = ops.len();
    let Some(wanted) = tables.servers.wanted(&key) else {
        return;
    };
    let actual = tables.servers.actual(&key);
    if actual.is_none() && tables.foreign.stands_at(&key) {
        // The kernel refuses it as long as the other one is there, which gets no destination.
        ops.push(Op::AddServer(key, wanted.properties.clone()));
        return;
    }
    match actual {
        None => ops.push(Op::AddServer(key, wanted.properties.clone())),
        Some(actual) if actual.properties != wanted.properties => {
            ops.push(Op::SetServer(key, wanted.properties.clone()));
        }
        Some(_) => {}
    }
    let mut lowered = Vec::new();
    for real in wanted.destinations.iter() {
        match actual.and_then(|actual| actual.destination(real.target)) {
            None => ops.push(Op::AddDestination(key, real)),
            Some(there) if there == real => {}
            Some(there) if is_lowered(there, real) => {
                lowered.push(Op::SetDestination(key, real));
            }
            Some(_) => ops.push(Op::SetDestination(key, real)),
        }
        if budget.is_used_up(ops.len() - before) {
            return;
        }
    }
    if tables.may_lower(&key) {
        ops.extend(lowered);
    }
    if let Some(actual) = actual.filter(|actual| goes_on_without(tables, &key, actual, wanted, of))
    {
        let left = budget.left(ops.len() - before);
        let gone = gone(actual, wanted).into_iter().take(left);
        ops.extend(gone.map(|target| Op::RemoveDestination(key, target)));
    }
}

/// Whether those that go do not wait for all that come any longer: some of these were tried, and
/// refused, and others are there.
fn goes_on_without(
    tables: &Tables,
    key: &VirtualServerKey,
    actual: &VirtualServer,
    wanted: &VirtualServer,
    of: &Situation<'_>,
) -> bool {
    let serves = |real: RealServer| {
        let there = actual.destination(real.target);
        real.weight > 0 && there.is_some_and(|there| there.weight > 0)
    };
    tables.servers.is_failing(key)
        && !tables.uncertain.contains(key)
        && of.state.may_delete()
        && wanted.destinations.iter().any(serves)
}

/// The destinations that go, the last ones first.
fn gone(actual: &VirtualServer, wanted: &VirtualServer) -> Vec<Target> {
    let targets = actual.destinations.iter().map(|real| real.target);
    let mut gone: Vec<Target> = targets
        .filter(|target| wanted.destination(*target).is_none())
        .collect();
    gone.sort_unstable_by(|one, other| other.cmp(one));
    gone
}

/// Reports whether a virtual server that serves nobody yet has to wait for rules. One that was made
/// while another program's could have been there has none of its own yet: no set named it.
fn waits_for_rules(tables: &Tables, key: &VirtualServerKey, of: &Situation<'_>) -> bool {
    let serves = |there: &VirtualServer| !there.destinations.is_empty();
    if !of.are_rules_pending || tables.servers.actual(key).is_some_and(serves) {
        return false;
    }
    let Some(at) = key.address() else {
        return false;
    };
    let by_address = Member::from(at);
    let wants = |set: Set, member: Member| tables.members(set).wanted(&member).is_some();
    if wants(Set::ClusterIp, by_address) && of.cover.gives_head_start(of.now) {
        return true;
    }
    let is_uncovered = |set: &Set| of.cover.uncovered.contains(set);
    let by_address_sets = [
        Set::ExternalIp,
        Set::ExternalIpLocal,
        Set::LoadBalancer,
        Set::LoadBalancerLocal,
        Set::LoadBalancerFirewall,
        Set::NodePortSctp,
        Set::NodePortLocalSctp,
    ];
    let mut named = by_address_sets
        .into_iter()
        .filter(|set| wants(*set, by_address));
    if named.any(|set| is_uncovered(&set)) {
        return true;
    }
    if wants(Set::LoadBalancerFirewall, by_address) && GUARDS.iter().any(is_uncovered) {
        return true;
    }
    if of.claims.is_forbidden_to_node(&at) {
        return true;
    }
    let mut node_port_sets = [
        Set::node_port(at.protocol),
        Set::node_port_local(at.protocol),
    ]
    .into_iter()
    .filter(|set| set.kind() == SetKind::Port && wants(*set, Member::Port(at.port)));
    !wants(Set::ClusterIp, by_address) && node_port_sets.any(|set| is_uncovered(&set))
}

/// Destinations and virtual servers that go, the last ones first: what returns soon is then found
/// first in the kernel's trash (see `order` of the writes).
fn remove(tables: &Tables, budget: Budget, of: &Situation<'_>) -> Plan {
    let mut ops = Vec::new();
    let mut removed_servers = Vec::new();
    // Of one of which an answer was lost it is not known who still gets anything.
    let due = tables.servers.due(of.now);
    let due = due.filter(|key| !tables.uncertain.contains(*key));
    let due = due.filter(|key| tables.servers.actual(key).is_some());
    let mut shares = Shares::new(SHARE);
    let due = sorted(due).into_iter().rev();
    let mut due: Vec<_> = due
        .map(|key| (share(&mut shares, tables, &key), key))
        .collect();
    due.sort_by_key(|(share, _)| *share);
    for (_, key) in due {
        let Some(actual) = tables.servers.actual(&key) else {
            continue;
        };
        let address = key.address().map(|at| at.address);
        match tables.servers.wanted(&key) {
            // Its address first: as long as that is local, another process of the node would get
            // its clients.
            None if address.is_some_and(|address| is_to_be_taken_off(tables, &address)) => {}
            // It may be wanted there again as soon as that is read.
            None if address.is_some_and(|address| of.state.is_arriving(&address)) => {}
            None => removed_servers.push(Op::RemoveServer(key)),
            // What comes is made first.
            Some(_) if makes(tables, &key) => {}
            Some(wanted) => {
                let before = ops.len();
                for target in gone(actual, wanted) {
                    ops.push(Op::RemoveDestination(key, target));
                    if budget.is_used_up(ops.len() - before) {
                        break;
                    }
                }
            }
        }
        if budget.is_used_up(ops.len() + removed_servers.len()) {
            break;
        }
    }
    ops.extend(removed_servers);
    Plan { ops }
}

/// Whether an address is on the link, in whichever form, and is still to be taken off.
fn is_to_be_taken_off(tables: &Tables, address: &IpAddr) -> bool {
    let (bound, otherwise) = (&tables.addresses, &tables.bound_otherwise);
    bound.wanted(address).is_none()
        && ((bound.actual(address).is_some() && !bound.is_failing(address))
            || (otherwise.actual(address).is_some() && !otherwise.is_failing(address)))
}

/// Set members that go.
fn forget(tables: &Tables, budget: Budget, of: &Situation<'_>) -> Plan {
    // What filters and masquerades stays until nothing is served there, and nothing can arrive.
    let is_unwanted_address = |address: &IpAddr| tables.addresses.wanted(address).is_none();
    if tables.servers.due(of.now).any(|key| is_left(tables, key))
        || tables.addresses.due(of.now).any(is_unwanted_address)
    {
        return Plan::default();
    }
    // Virtual servers that could not be removed yet, by their ports.
    let ports: HashSet<(Protocol, u16)> = left(tables).map(|at| (at.protocol, at.port)).collect();
    // Of those that nothing else names (a member was refused): the set of addresses also rejects,
    // which an address that has become the node's own is not to meet for longer than needed.
    let unnamed = left(tables).filter(|at| !is_named(tables, *at));
    let unnamed: HashSet<IpAddr> = unnamed.map(|at| at.address).collect();
    // Whether a member still says that one of these is ours.
    let is_evidence = |set: Set, member: &Member| match (set, *member) {
        (Set::NodePortTcp, Member::Port(port)) => ports.contains(&(Protocol::Tcp, port)),
        (Set::NodePortUdp, Member::Port(port)) => ports.contains(&(Protocol::Udp, port)),
        (Set::IpvsIps, Member::Address(address)) => unnamed.contains(&address),
        (set, Member::AddressPort(address, protocol, port)) if set.marks_ownership() => {
            let at = ServiceAddress::new(address, port, protocol);
            is_left(tables, &at.into())
        }
        _ => false,
    };
    let still_served = OnceCell::new();
    let may_loop_back = |member: &Member| {
        let target = member.looped_back();
        let still_served = || still_served.get_or_init(|| masquerading::still_served(tables));
        target.is_some_and(|target| still_served().contains(&target))
    };
    let mut ops = Vec::new();
    for (set, table) in tables.all_members() {
        let removed = sorted(table.due(of.now)).into_iter().filter(|member| {
            table.wanted(member).is_none()
                && !is_evidence(set, member)
                && !may_loop_back(member)
                && !is_taken_over(tables, set, member, of)
        });
        let left = budget.left(ops.len());
        ops.extend(
            removed
                .take(left)
                .map(|member| Op::RemoveMember(set, member)),
        );
    }
    Plan { ops }
}

/// Reports whether a virtual server goes on to be served by another set, which does not name it yet,
/// or by another set or range of sources, which no rule asks yet: without both, it would be rejected, or
/// its clients dropped.
fn is_taken_over(tables: &Tables, set: Set, member: &Member, of: &Situation<'_>) -> bool {
    // The firewall serves nobody: without its ranges, it would drop all clients.
    if set == Set::LoadBalancerFirewall {
        return false;
    }
    let Some(at) = set.service_address(member) else {
        return false;
    };
    if tables.servers.wanted(&at.into()).is_none() {
        return false;
    }
    let by_address = Member::from(at);
    let wants = |set: Set| tables.members(set).wanted(&by_address).is_some();
    let comes = |other: Set| {
        let is_there = tables.members(other).actual(&by_address).is_some();
        other != set && wants(other) && !is_there
    };
    if *member == by_address && Set::all().any(comes) {
        return true;
    }
    if !of.are_rules_pending {
        return false;
    }
    let mut uncovered = of.cover.uncovered.iter();
    if GUARDS.contains(&set) {
        // Where rules are refused, a range that was taken back is not admitted for that.
        return are_rules_under_way(tables, of)
            && wants(Set::LoadBalancerFirewall)
            && uncovered.any(|of| GUARDS.contains(of));
    }
    uncovered.any(|of| *of != set && wants(*of))
}

/// Whether nothing but time is between the rules and what they are to be.
fn are_rules_under_way(tables: &Tables, of: &Situation<'_>) -> bool {
    of.knows(Part::Rules) && !tables.rules.is_failing(&())
}

/// What a load balancer's firewall admits.
const GUARDS: [Set; 2] = [Set::LoadBalancerSourceCidr, Set::LoadBalancerSourceIp];

/// Whether a set says by address and port that a virtual server is ours.
fn is_named(tables: &Tables, at: ServiceAddress) -> bool {
    let member = Member::from(at);
    let mut sets = Set::all().filter(|set| set.marks_ownership());
    sets.any(|set| tables.members(set).actual(&member).is_some())
}

/// Whether a virtual server is there that nobody wants, or may be: the answer was lost.
fn is_left(tables: &Tables, key: &VirtualServerKey) -> bool {
    tables.is_ours(key) && tables.servers.wanted(key).is_none()
}

/// Their addresses.
fn left(tables: &Tables) -> impl Iterator<Item = ServiceAddress> {
    let all = tables.servers.pending().chain(&tables.uncertain);
    let left = all.filter(|key| is_left(tables, key));
    left.filter_map(VirtualServerKey::address)
}

/// The link, and the addresses on it.
pub(crate) fn addresses(tables: &Tables, of: &Situation<'_>) -> Plan {
    let mut ops = Vec::new();
    if !of.knows(Part::Addresses) {
        return Plan::default();
    }
    if tables.link.due(of.now).next().is_some() {
        ops.push(Op::CreateLink);
    } else if tables.link.actual(&()).is_none() {
        return Plan::default();
    }
    let mut bound = Vec::new();
    let mut unbound = Vec::new();
    for address in tables.addresses.due(of.now) {
        if tables.addresses.wanted(address).is_some() {
            bound.push((rank(&tables.addresses, address), *address));
        } else if of.claims.may_delete {
            unbound.push(*address);
        }
    }
    let unserved = if bound.is_empty() {
        HashSet::new()
    } else {
        unserved(tables)
    };
    let binds = first_sorted(bound, |(_, address)| !unserved.contains(address));
    ops.extend(binds.map(|(_, address)| Op::BindAddress(address)));
    // In turns would be fairer, but what goes is hardly ever much.
    if ops.is_empty() {
        ops.extend(first_sorted(unbound, |_| true).map(Op::UnbindAddress));
    }
    if ops.is_empty() && of.claims.may_delete && of.has_all_addresses {
        // An address that is wanted has a place at all times.
        let otherwise = sorted(tables.bound_otherwise.due(of.now)).into_iter();
        let otherwise = otherwise.filter(|address| {
            tables.addresses.wanted(address).is_none() || tables.addresses.actual(address).is_some()
        });
        ops.extend(otherwise.take(ADDRESSES_AT_ONCE).map(Op::UnbindOtherwise));
    }
    Plan { ops }
}

/// The first of them, in order, that may be written: no more than are written at once.
fn first_sorted<T: Ord + Copy>(
    mut all: Vec<T>,
    is_possible: impl Fn(&T) -> bool,
) -> impl Iterator<Item = T> {
    // A full sort of 50,000 for each 2,000 of them would cost more than to write them.
    let mut first = Vec::new();
    while first.len() < ADDRESSES_AT_ONCE && !all.is_empty() {
        let count = ADDRESSES_AT_ONCE.min(all.len());
        if count < all.len() {
            all.select_nth_unstable(count);
        }
        let rest = all.split_off(count);
        all.sort_unstable();
        first.extend(all.into_iter().filter(&is_possible));
        all = rest;
    }
    first.truncate(ADDRESSES_AT_ONCE);
    first.into_iter()
}

/// Returns the addresses of virtual servers that are still to be made, but for those that could not
/// be. O(what is pending): a Service may have thousands of addresses and ports.
fn unserved(tables: &Tables) -> HashSet<IpAddr> {
    let servers = &tables.servers;
    let missing = servers.pending().filter(|key| {
        servers.wanted(key).is_some() && servers.actual(key).is_none() && !servers.is_failing(key)
    });
    let at = missing.filter_map(VirtualServerKey::address);
    at.map(|at| at.address).collect()
}

/// The shim, and what other modes have left.
pub(crate) fn rules(tables: &Tables, of: &Situation<'_>) -> Plan {
    let mut ops = Vec::new();
    // They name all sets, and are refused where one is missing.
    let awaits_sets = of.state.look(Part::Sets).is_awaited();
    let must_wait = awaits_sets || of.cover.awaits_emptying(tables, of.now);
    if must_wait || !of.knows(Part::Rules) {
        return Plan::default();
    }
    if are_sets_tried(tables) && (!tables.are_served_by_another_mode() || is_all_made(tables, of)) {
        ops.extend(write_rules(tables, of.now));
    }
    // Only once the shim is there: before that, its chains may still lead into what is to go.
    if ops.is_empty() && of.claims.may_delete && tables.rules.pending_len() == 0 {
        let places = sorted(tables.leftovers.due(of.now)).into_iter();
        let places = places.filter(|place| may_go(tables, *place, of));
        let leftovers = places.filter_map(|place| {
            let found = tables.leftovers.actual(&place)?;
            Some(Op::RemoveLeftovers(place, Arc::clone(found)))
        });
        ops.extend(leftovers);
    }
    Plan { ops }
}

/// Whether what was left at a place neither serves any more nor tells anything, once the shim is
/// there.
fn may_go(tables: &Tables, place: Place, of: &Situation<'_>) -> bool {
    match place {
        // The shim has replaced it, or nobody is behind it.
        Place::Beside(_) | Place::Ended => true,
        // It has the packets first, and serves whoever this mode does not serve yet.
        Place::Other(_) | Place::Nftables => is_all_made(tables, of),
        // Sets of another shim say which virtual servers are ours, until those have gone.
        Place::OwnTable | Place::Ipsets => {
            of.knows(Part::Servers) && of.has_taken_over && left(tables).next().is_none()
        }
    }
}

fn write_rules(tables: &Tables, now: Instant) -> Option<Op> {
    tables.rules.due(now).next()?;
    let wanted = tables.rules.wanted(&())?.clone();
    let installed = tables.rules.actual(&()).cloned().unwrap_or_default();
    Some(Op::WriteRules { wanted, installed })
}

/// Whether each set is there, or could not be made: rules name them all.
fn are_sets_tried(tables: &Tables) -> bool {
    Set::all().all(|set| tables.sets.actual(&set).is_some() || tables.sets.is_failing(&set))
}

/// Whether all that serves is there, but for what could not be written.
fn is_all_made(tables: &Tables, of: &Situation<'_>) -> bool {
    let is_made = |pending: usize, failing: usize| pending <= failing;
    of.claims.may_delete
        && is_made(tables.servers.pending_len(), tables.servers.failing_len())
        && is_made(
            tables.addresses.pending_len(),
            tables.addresses.failing_len(),
        )
        && tables
            .all_members()
            .all(|(_, table)| is_made(table.pending_len(), table.failing_len()))
}

/// At a cold start the API server's own Service comes first, then DNS.
fn rank<K, V>(table: &Table<K, V, Arc<Owner>>, key: &K) -> Rank
where
    K: Clone + Eq + std::hash::Hash,
    V: Clone + Eq,
{
    table.owner(key).map_or(Rank::Other, |owner| owner.rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_as_long_as_the_kernel_is_fast() {
        let most = Budget::default();
        assert!(!most.is_used_up(32_767) && most.is_used_up(32_768));
        // 3 microseconds each, and one millisecond.
        let fast = Budget::after(1_000, Duration::from_millis(3), 0);
        assert_eq!(fast, Budget(8_333));
        assert_eq!(
            Budget::after(1_000, Duration::from_millis(250), 0),
            Budget(100)
        );
        assert_eq!(Budget::after(1_000, Duration::from_mins(1), 0), Budget(64));
        assert_eq!(Budget::after(1_000, Duration::ZERO, 0), most);
        assert_eq!(
            Budget::after(64, Duration::from_micros(640), 0),
            Budget(2_500)
        );
        // Where very many are pending, to look at them does not take longer than to write.
        assert_eq!(
            Budget::after(1_000, Duration::from_millis(50), 20_000),
            Budget(2_500)
        );
        // One that was held up says little.
        assert!(!Budget::tells(63) && Budget::tells(64));
    }

    #[test]
    fn what_is_behind_the_last_one_comes_next_among_its_rank() {
        let key = |host| -> VirtualServerKey {
            ServiceAddress::new([10, 96, 0, host].into(), 80, Protocol::Tcp).into()
        };
        let others = [1, 2, 3].map(|host| (Rank::Other, key(host)));
        let urgent = (Rank::ApiServer, key(9));
        let with = |last| {
            let mut servers = vec![urgent, others[0], others[1], others[2]];
            begin_behind(&mut servers, last);
            servers
        };
        assert_eq!(with(None), [urgent, others[0], others[1], others[2]]);
        assert_eq!(
            with(Some(key(1))),
            [urgent, others[1], others[2], others[0]]
        );
        assert_eq!(
            with(Some(key(3))),
            [urgent, others[0], others[1], others[2]]
        );
    }
}
