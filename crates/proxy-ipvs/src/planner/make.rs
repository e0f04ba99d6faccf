//! Plans that add or change virtual servers, destinations and set members.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use hashbrown::{HashMap, HashSet};
use proxy::{Rank, ServiceAddress, Share, Shares};

use super::budget::Budget;
use super::order::Order;
use super::situation::{Situation, are_rules_under_way, awaits_guards, gone, rank, share};
use crate::clients::ChangingClients;
use crate::leftovers::LeftoverPlace;
use crate::masquerading::{self, ChangingServers, EXEMPT, GUARDS};
use crate::part::Part;
use crate::plan::{Op, Plan};
use crate::server::{Properties, RealServer, VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set, SetKind};
use crate::tables::{Tables, sorted};

pub(super) fn make(
    tables: &Tables,
    budget: Budget,
    last: Option<VirtualServerKey>,
    of: &Situation<'_>,
) -> Plan {
    let mut ops = Vec::new();
    if of.knows(Part::Sets) {
        for set in sorted(tables.sets.due(of.now)) {
            let size = tables.sets.wanted(&set).copied();
            ops.extend(size.map(|size| Op::CreateSet(set, size)));
        }
    }
    let has_sets = !ops.is_empty();
    let is_there = |set: &Set| {
        let there = tables.sets.actual(set);
        there.is_some() || (has_sets && ops.iter().any(|op| creates(op, *set)))
    };
    let usable: BTreeSet<Set> = Set::every().filter(is_there).collect();
    let is_urgent = |rank: Rank| rank < Rank::Other;
    let clients = ChangingClients::of(tables);
    let due = of.knows(Part::Servers).then(|| tables.servers.due(of.now));
    let due = due.into_iter().flatten();
    // Checks for each urgent virtual server (API server, DNS) whether it can be written now. Checks
    // others only until the plan is full.
    let is_made = |key: &VirtualServerKey| {
        let waits = waits_for_rules(tables, key, of)
            || waits_for_firewall(tables, key, of)
            || waits_for_masquerading(tables, key, of)
            || (of.claims.may_delete
                && key.address().is_some_and(|at| clients.admits_excluded(at)))
            || waits_for_marks(tables, key, of)
            || waits_for_outside(tables, key, of)
            || masquerading::waits_for_new_owner(tables, key);
        makes(tables, key) && !waits
    };
    let due = due.filter(|key| !is_urgent(rank(&tables.servers, key)) || is_made(key));
    let servers = sorted(due).into_iter();
    let mut shares = Shares::new(budget.share());
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
        let changing = || changing.get_or_init(|| ChangingServers::of(tables, keys));
        EXEMPT
            .contains(&set)
            .then(|| changing().exempted(set, member))?
    };
    let mut members = Vec::new();
    // The firewall set's rules drop packets of all clients that no other rule admits. So the set
    // waits for the rules that admit clients, unless its own rules are missing too, because one
    // write installs both. If the kernel refuses those rules, the set gets its members anyway: a
    // closed port is safer than an open port.
    let awaits_guards = awaits_guards(tables, of);
    let lacks_firewall = of.cover.uncovered.contains(&Set::LoadBalancerFirewall);
    let are_guards_asked = !awaits_guards || (lacks_firewall && !of.cover.is_outdated);
    let may_be_filled = |set: Set| set != Set::LoadBalancerFirewall || are_guards_asked;
    let sets = tables.all_members();
    for (set, table) in sets.filter(|(set, _)| usable.contains(set) && may_be_filled(*set)) {
        // Adds a mark, an exemption from masquerading or a client of the firewall only after the
        // virtual server has the right destinations.
        let is_early = |member: &Member| {
            exempted(set, member) == Some(true)
                || masquerading::awaits_outside_server(tables, &of.claims.marks, set, member)
                || awaits_firewall(tables, set, member, of)
                || clients.must_wait(set, member)
        };
        let added = table.due(of.now).filter(|key| table.wanted(key).is_some());
        let added = added.filter(|member| !is_early(member));
        let added = added.map(|member| (rank(table, member), set, *member));
        members.extend(added);
    }
    let (mut ended, mut unmarked) = (Vec::new(), Vec::new());
    if of.claims.may_delete {
        let is_exact = of.state.config.semantics.is_exact();
        let is_ended = |set, member: &Member| is_exact || exempted(set, member).is_some();
        ended = masquerading::end_exemptions(tables, of.now, is_ended);
        ended.extend(clients.end_former(tables, of.now, awaits_guards));
        if of.knows(Part::Servers) {
            let awaits = |mark: &Member| awaits_firewall(tables, Set::LocalMark, mark, of);
            unmarked = masquerading::end_marks(tables, &of.claims.marks, of.now, awaits);
        }
    }
    // The urgent Services (API server and DNS) get a plan of their own, before all other Services.
    let has_urgent = servers
        .first()
        .is_some_and(|((rank, _), _)| is_urgent(*rank))
        || members.iter().any(|(rank, ..)| is_urgent(*rank));
    if has_urgent {
        members.retain(|(rank, ..)| is_urgent(*rank));
        servers.retain(|((rank, _), _)| is_urgent(*rank));
        // Members that masquerade unmarked packets follow in a later plan. So this plan removes a
        // mark only if it adds another mark at the same address.
        let new = members.iter().filter(|(_, set, _)| *set == Set::LocalMark);
        let new: HashSet<_> = new
            .map(|(_, set, member)| set.service_address(member))
            .collect();
        unmarked.retain(|member| new.contains(&Set::LocalMark.service_address(member)));
    }
    let by_mark = servers.iter().map(|(_, key)| key);
    let by_mark = by_mark.filter(|key| key.address().is_none() && is_made(key));
    let early = by_mark.flat_map(|key| masquerading::early_marks(tables, key));
    unmarked.extend(early);
    members.sort_unstable_by_key(|(_, set, member)| (Step::of(*set), *set, *member));
    let is_quiet = members.is_empty() && !servers.iter().any(|(_, key)| is_made(key));
    // A member has no effect until a rule matches its set. Removes an unwanted member before that
    // rule is written, which would drop packets of the virtual server's new endpoints.
    let is_ended = |set| (is_quiet && set != Set::LoadBalancerFirewall) || of.lacks_rule(set);
    let may_delete = of.claims.may_delete;
    ended.extend(masquerading::end_drops(
        tables, of.now, may_delete, is_ended,
    ));
    let (first, later): (Vec<_>, Vec<_>) = members
        .into_iter()
        .map(|(_, set, member)| (set, member))
        .partition(|(set, _)| Step::of(*set) == Step::Admit);
    let added = |(set, member)| Op::AddMember(set, member);
    ops.extend(first.into_iter().map(added));
    // Without a mark, packets may reach endpoints on other nodes. So masquerading begins before the
    // plan removes a mark, and ends after it adds a mark. An address that gets another mark needs
    // only one write.
    ops.extend(ended);
    ops.extend(add_and_unmark(later, unmarked));
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

/// Returns the writes that add set members and remove unwanted marks. An address that gets another
/// mark needs one write, which replaces the mark.
fn add_and_unmark(added: Vec<(Set, Member)>, unmarked: Vec<Member>) -> Vec<Op> {
    let set = Set::LocalMark;
    let unmarked = unmarked.into_iter();
    let mut former: HashMap<_, _> = unmarked
        .map(|mark| (set.service_address(&mark), mark))
        .collect();
    let add = |(of, member)| {
        let is_mark = of == set;
        let former = is_mark.then(|| former.remove(&set.service_address(&member)));
        match former.flatten() {
            Some(former) => Op::ReplaceMember(set, former, member),
            None => Op::AddMember(of, member),
        }
    };
    let added: Vec<Op> = added.into_iter().map(add).collect();
    let removed = sorted(former.values()).into_iter();
    let removed = removed.map(|mark| Op::RemoveMember(set, mark));
    removed.chain(added).collect()
}

/// Steps in which a plan adds set members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Members with any other purpose, such as members that make rules admit or masquerade packets.
    Admit,
    /// Members that make rules drop packets of all clients that no other rule admits. They precede
    /// marks, because a mark may lead to a virtual server with endpoints.
    Drop,
    /// Members that give packets from outside the cluster a mark.
    Mark,
    /// Members that exempt a virtual server's packets from masquerading.
    Exempt,
}

impl Step {
    fn of(set: Set) -> Self {
        match set {
            Set::LocalMark => Self::Mark,
            Set::LoadBalancerFirewall => Self::Drop,
            _ if EXEMPT.contains(&set) => Self::Exempt,
            _ => Self::Admit,
        }
    }
}

/// Rotates the virtual servers of each rank so that the one after `last`, which ended the last
/// plan, comes first. So a virtual server with very many changes does not delay all others.
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

fn creates(op: &Op, set: Set) -> bool {
    matches!(op, Op::CreateSet(of, _) if *of == set)
}

/// Returns true if the proxy must create a virtual server, change it, or add destinations to it.
pub(super) fn makes(tables: &Tables, key: &VirtualServerKey) -> bool {
    let Some(wanted) = tables.servers.wanted(key) else {
        return false;
    };
    let Some(actual) = tables.servers.actual(key) else {
        return tables.foreign.may_be_tried(key);
    };
    let mut pairs = wanted.destinations.beside(&actual.destinations);
    let may_lower = tables.may_lower(key);
    (actual.properties != wanted.properties && may_set(key, actual, wanted))
        || pairs.any(|pair| match pair {
            (Some(real), Some(there)) => there != real && (may_lower || !is_lowered(there, real)),
            (wanted, _) => wanted.is_some(),
        })
}

/// Returns true if a virtual server's properties may be set now. An fwmark virtual server becomes
/// persistent only after it has lost former endpoints with other ports, because persistence by mark
/// does not translate ports (see [`Properties::by_source`]).
fn may_set(key: &VirtualServerKey, actual: &VirtualServer, wanted: &VirtualServer) -> bool {
    let gets_persistence = wanted.properties.flags & Properties::PERSISTENT != 0;
    let ports: HashSet<u16> = match key {
        VirtualServerKey::Mark { .. } if gets_persistence => {
            let serving = wanted.destinations.iter().filter(|real| real.weight > 0);
            serving.map(|real| real.target.port).collect()
        }
        _ => return true,
    };
    let mut there = actual.destinations.iter().filter(|real| real.weight > 0);
    there.all(|real| ports.contains(&real.target.port))
}

fn is_lowered(there: RealServer, wanted: RealServer) -> bool {
    there.weight > wanted.weight
}

/// Appends the writes for one virtual server to `ops`. It adds destinations before it lowers
/// weights, so that at least one destination serves at all times.
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
        // Destinations follow in a later plan. If another program has a virtual server with this
        // key, the kernel refuses this write, and that virtual server gets none of our
        // destinations.
        ops.push(Op::AddServer(key, wanted.properties.clone()));
        return;
    }
    match actual {
        None => ops.push(Op::AddServer(key, wanted.properties.clone())),
        Some(actual) if actual.properties != wanted.properties && may_set(&key, actual, wanted) => {
            ops.push(Op::SetServer(key, wanted.properties.clone()));
        }
        Some(_) => {}
    }
    let (mut added, mut lowered) = (Vec::new(), Vec::new());
    for real in wanted.destinations.iter() {
        match actual.and_then(|actual| actual.destination(real.target)) {
            None => added.push(real),
            Some(there) if there == real => {}
            Some(there) if is_lowered(there, real) => {
                lowered.push(Op::SetDestination(key, real));
            }
            Some(_) => ops.push(Op::SetDestination(key, real)),
        }
    }
    Order::of(&wanted.properties, &of.state.node.name).sort(&mut added, |real| real.target);
    ops.extend(added.into_iter().map(|real| Op::AddDestination(key, real)));
    if budget.is_used_up(ops.len() - before) {
        ops.truncate(before + budget.limit());
        return;
    }
    if tables.may_lower(&key) {
        ops.extend(lowered);
    }
    if let Some(actual) = actual.filter(|actual| goes_on_without(tables, &key, actual, wanted, of))
    {
        let left = budget.left(ops.len() - before);
        let gone = gone(actual, wanted, of).into_iter().take(left);
        ops.extend(gone.map(|target| Op::RemoveDestination(key, target)));
    }
}

/// Returns true if removals can go ahead although the kernel refused an addition, because another
/// wanted destination serves.
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

/// Returns true if a virtual server's endpoints must stay unchanged until rules mark packets from
/// outside. Otherwise, unmarked packets from outside would reach new endpoints that are only for
/// clients in the cluster. A new virtual server waits only while its mark waits for the fwmark
/// virtual server.
pub(super) fn waits_for_outside(
    tables: &Tables,
    key: &VirtualServerKey,
    of: &Situation<'_>,
) -> bool {
    let owner = tables.servers.owner(key);
    let owner = owner.and_then(|owner| Some((owner, of.claims.marks.get(owner)?)));
    let (Some(at), Some((owner, mark))) = (key.address(), owner) else {
        return false;
    };
    let member = Member::AddressPortMark(at.address, at.protocol, at.port, mark);
    let table = tables.members(Set::LocalMark);
    let is_marked = table.actual(&member).is_some() || table.is_failing(&member);
    let must_be_marked = table.wanted(&member).is_some()
        && !tables.rules.is_failing(&())
        && !masquerading::lacks_outside_server(tables, owner, mark);
    let waits = || {
        if tables.servers.actual(key).is_some() {
            return !is_marked || of.cover.lacks_marks;
        }
        let marks = &of.claims.marks;
        !is_marked && masquerading::awaits_outside_server(tables, marks, Set::LocalMark, &member)
    };
    must_be_marked && waits()
}

/// Returns true if an address has source ranges (`loadBalancerSourceRanges`) whose rules are still
/// being written. Until then, rules admit all clients of the address's former Service.
///
/// An address that the firewall already protects waits for no rules, even if a new source range
/// needs one. Otherwise, Services with ever new source ranges would delay all others.
fn lacks_firewall(tables: &Tables, at: ServiceAddress, of: &Situation<'_>) -> bool {
    let firewall = Set::LoadBalancerFirewall;
    let (table, member) = (tables.members(firewall), Member::from(at));
    let lacks_rule = || {
        let lacks_guard = || GUARDS.iter().any(|set| of.lacks_rule(*set));
        of.lacks_rule(firewall) || (table.actual(&member).is_none() && lacks_guard())
    };
    of.are_rules_pending
        && are_rules_under_way(tables, of)
        && table.wanted(&member).is_some()
        && lacks_rule()
}

/// Returns true if a serving virtual server must not get endpoints yet, because its address is new
/// in a set whose masquerading rule is missing: the address has moved to another Service, or became
/// an address of another kind. Without the rule, endpoints would see the clients' addresses. Applies
/// only to exact semantics: with upstream's, rules may wait for the virtual servers.
pub(super) fn waits_for_masquerading(
    tables: &Tables,
    key: &VirtualServerKey,
    of: &Situation<'_>,
) -> bool {
    let lacks_rule = |at: ServiceAddress| {
        let mut sets = [Set::LoadBalancer, Set::ExternalIp].into_iter();
        let by_address = Member::from(at);
        sets.any(|set| tables.members(set).wanted(&by_address).is_some() && of.lacks_rule(set))
    };
    of.state.config.semantics.is_exact()
        && of.are_rules_pending
        && are_rules_under_way(tables, of)
        && tables.servers.actual(key).is_some()
        && key.address().is_some_and(lacks_rule)
}

/// Returns true if a serving virtual server must not get endpoints yet: its address has moved to a
/// Service with source ranges, whose rules are missing.
pub(super) fn waits_for_firewall(
    tables: &Tables,
    key: &VirtualServerKey,
    of: &Situation<'_>,
) -> bool {
    tables.servers.actual(key).is_some()
        && key
            .address()
            .is_some_and(|at| lacks_firewall(tables, at, of))
}

/// Returns true if a set member must wait for the source-range rules of its address:
///
/// - a mark, because it would lead excluded clients to another virtual server
/// - an exemption from masquerading, because only marked packets may be exempt
pub(super) fn awaits_firewall(
    tables: &Tables,
    set: Set,
    member: &Member,
    of: &Situation<'_>,
) -> bool {
    let is_exempt_by_mark = || {
        let owner = tables.members(set).owner(member);
        EXEMPT.contains(&set) && owner.is_some_and(|owner| of.claims.marks.get(owner).is_some())
    };
    (set == Set::LocalMark || is_exempt_by_mark())
        && set
            .service_address(member)
            .is_some_and(|at| lacks_firewall(tables, at, of))
}

/// Returns true if a virtual server must wait until the proxy knows which firewall marks are free.
fn waits_for_marks(tables: &Tables, key: &VirtualServerKey, of: &Situation<'_>) -> bool {
    !of.claims.marks.is_open() && tables.servers.actual(key).is_none()
}

/// Returns true until the nftables table of a former shim is removed. Its nat chains run before
/// the shim's, and may exempt packets from masquerading. It may also mark packets.
fn removes_former_table(tables: &Tables, of: &Situation<'_>) -> bool {
    let place = LeftoverPlace::OwnTable;
    of.claims.may_delete
        && are_rules_under_way(tables, of)
        && tables.leftovers.actual(&place).is_some()
        && !tables.leftovers.is_failing(&place)
}

/// Returns true if a virtual server without destinations must wait for rules. So must one that
/// replaces another program's virtual server: its address was in no set before, so its rules are
/// missing.
pub(super) fn waits_for_rules(tables: &Tables, key: &VirtualServerKey, of: &Situation<'_>) -> bool {
    let serves = |there: &VirtualServer| !there.destinations.is_empty();
    if tables.servers.actual(key).is_some_and(serves) {
        return false;
    }
    let Some(at) = key.address() else {
        // The former table's marks may lead to an existing one, past rules that reject the packets.
        return tables.servers.actual(key).is_some() && removes_former_table(tables, of);
    };
    let by_address = Member::from(at);
    let wants = |set: Set, member: Member| tables.members(set).wanted(&member).is_some();
    let masquerades = || [Set::ExternalIp, Set::LoadBalancer].map(|set| wants(set, by_address));
    if removes_former_table(tables, of) && masquerades().contains(&true) {
        return true;
    }
    if !of.are_rules_pending {
        return false;
    }
    if wants(Set::ClusterIp, by_address) && of.cover.gives_head_start(of.now) {
        return true;
    }
    let is_uncovered = |set: &Set| of.cover.uncovered.contains(set);
    let owner = tables.servers.owner(key);
    if let Some(mark) = owner.and_then(|owner| of.claims.marks.get(owner)) {
        let by_mark = Member::AddressPortMark(at.address, at.protocol, at.port, mark);
        if wants(Set::LocalMark, by_mark) && is_uncovered(&Set::LocalMark) {
            return true;
        }
    }
    let by_address_sets = [
        Set::Unserved,
        Set::UnservedOutside,
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

#[cfg(test)]
mod tests {
    use proxy::Protocol;

    use super::*;

    #[test]
    fn within_a_rank_a_plan_resumes_after_the_last_virtual_server_of_the_previous_plan() {
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
