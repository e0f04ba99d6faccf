//! Plans the removal of destinations and virtual servers, and afterwards of the set members that
//! proved ownership of these virtual servers.

use std::cell::OnceCell;
use std::net::IpAddr;

use hashbrown::HashSet;
use proxy::{Protocol, ServiceAddress, Shares};

use super::budget::Budget;
use super::make::makes;
use super::situation::{Situation, awaits_guards, gone, is_left, left, share};
use crate::clients::ChangingClients;
use crate::masquerading::{self, GUARDS};
use crate::part::Part;
use crate::plan::{Op, Plan};
use crate::sets::{Member, Set};
use crate::tables::{Tables, sorted};

/// Plans the removal of destinations and virtual servers, in the reverse order of their additions.
/// If destinations return, the kernel finds them near the head of its trash list (see `order` in
/// `netlink/servers/write.rs`).
pub(super) fn remove(tables: &Tables, budget: Budget, of: &Situation<'_>) -> Plan {
    let mut ops = Vec::new();
    let mut removed_servers = Vec::new();
    // Skips a virtual server whose last write got no reply: it is unknown which of its
    // destinations get packets.
    let due = tables.servers.due(of.now);
    let due = due.filter(|key| !tables.uncertain.contains(*key));
    let due = due.filter(|key| tables.servers.actual(key).is_some());
    let mut shares = Shares::new(budget.share());
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
            // Keeps the virtual server while its address is local. Otherwise, packets to the
            // address would reach the node's own processes.
            None if address.is_some_and(|address| is_to_be_taken_off(tables, &address)) => {}
            // Keeps the virtual server: the kernel has reported its address as a new node address,
            // which the proxy has not read yet. A NodePort may need this virtual server.
            None if address.is_some_and(|address| of.state.is_arriving(&address)) => {}
            // Keeps the fwmark virtual server while rules may mark packets for it. Otherwise, these
            // packets would use the virtual server at their destination address.
            None if key.address().is_none() && !of.knows_marks() => {}
            None if masquerading::is_marked(tables, &of.claims.marks, &key) => {}
            None => removed_servers.push(Op::RemoveServer(key)),
            // Removes destinations only after another plan has added the missing ones.
            Some(_) if makes(tables, &key) => {}
            Some(wanted) => {
                let before = ops.len();
                for target in gone(actual, wanted, of) {
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

/// Returns true if an address is local and still must be removed from the link, as an address or as
/// a route.
fn is_to_be_taken_off(tables: &Tables, address: &IpAddr) -> bool {
    let (bound, otherwise) = (&tables.addresses, &tables.bound_otherwise);
    bound.wanted(address).is_none()
        && ((bound.actual(address).is_some() && !bound.is_failing(address))
            || (otherwise.actual(address).is_some() && !otherwise.is_failing(address)))
}

/// Plans the removal of set members that proved ownership of removed virtual servers. If none is
/// left, removes the sets that only the other value of `--ipvs-semantics` uses.
pub(super) fn forget(tables: &Tables, budget: Budget, of: &Situation<'_>) -> Plan {
    // Keeps all members until unwanted virtual servers and addresses are removed: rules must still
    // filter and masquerade packets to them.
    let is_unwanted_address = |address: &IpAddr| tables.addresses.wanted(address).is_none();
    if tables.servers.due(of.now).any(|key| is_left(tables, key))
        || tables.addresses.due(of.now).any(is_unwanted_address)
    {
        return Plan::default();
    }
    // Protocols and ports of unwanted virtual servers that still exist.
    let ports: HashSet<(Protocol, u16)> = left(tables).map(|at| (at.protocol, at.port)).collect();
    // Addresses of unwanted virtual servers whose address and port the kernel refused as a set
    // member. KUBE-IPVS-IPS keeps these addresses, as the only proof of ownership. Other unwanted
    // addresses leave that set now, because rules reject packets to its members, and the node may
    // have the address.
    let unnamed = left(tables).filter(|at| !is_named(tables, *at));
    let unnamed: HashSet<IpAddr> = unnamed.map(|at| at.address).collect();
    // True if a member still proves ownership of an unwanted virtual server.
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
        let marks = &of.claims.marks;
        let still_served =
            || still_served.get_or_init(|| masquerading::still_served(tables, marks));
        target.is_some_and(|target| still_served().contains(&target))
    };
    let losing = OnceCell::new();
    let protects_removed = |set, member: &Member| {
        let losing = losing.get_or_init(|| {
            let losing = masquerading::losing_endpoints(tables);
            losing
                .chain(masquerading::marked_otherwise(tables))
                .collect()
        });
        masquerading::protects_removed_endpoints(losing, set, member)
    };
    let clients = ChangingClients::of(tables);
    let mut ops = Vec::new();
    for (set, table) in tables.all_members() {
        if set == Set::LocalMark {
            // `end_marks` plans the removal of marks.
            continue;
        }
        let removed = sorted(table.due(of.now)).into_iter().filter(|member| {
            table.wanted(member).is_none()
                && !is_evidence(set, member)
                && !may_loop_back(member)
                && !protects_removed(set, member)
                && !awaits_successor(tables, set, member, of)
                && !clients.must_stay(set, member)
        });
        let left = budget.left(ops.len());
        ops.extend(
            removed
                .take(left)
                .map(|member| Op::RemoveMember(set, member)),
        );
    }
    if ops.is_empty() {
        ops.extend(unused_sets(tables, of).into_iter().map(Op::RemoveSet));
    }
    Plan { ops }
}

/// Returns the empty sets that only the other value of `--ipvs-semantics` uses. Returns none while
/// rules may still match these sets.
fn unused_sets(tables: &Tables, of: &Situation<'_>) -> Vec<Set> {
    let is_unused = |set: &&Set| {
        let (sets, members) = (&tables.sets, tables.members(**set));
        sets.wanted(set).is_none() && members.wanted_len() == 0 && members.pending_len() == 0
    };
    if of.are_rules_pending || !of.knows(Part::Sets) {
        return Vec::new();
    }
    sorted(tables.sets.due(of.now).filter(is_unused))
}

/// Returns true if a member must stay until another set, which rules match, has the same address
/// and port. Without the member, rules would reject or drop packets of clients in the meantime.
fn awaits_successor(tables: &Tables, set: Set, member: &Member, of: &Situation<'_>) -> bool {
    // A member of the firewall set need not stay: it admits no client, and without source ranges
    // its rule would drop packets of every client.
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
    if GUARDS.contains(&set) {
        // Does not wait for rules that the kernel refused, because a withdrawn source range must
        // not admit clients any longer.
        return awaits_guards(tables, of) && wants(Set::LoadBalancerFirewall);
    }
    let mut uncovered = of.cover.uncovered.iter();
    uncovered.any(|of| *of != set && wants(*of))
}

/// Returns true if a set has the address and port of a virtual server as a member, which proves
/// that the proxy owns the virtual server.
fn is_named(tables: &Tables, at: ServiceAddress) -> bool {
    let member = Member::from(at);
    let mut sets = Set::all().filter(|set| set.marks_ownership());
    sets.any(|set| tables.members(set).actual(&member).is_some())
}
