//! Order of changes between virtual servers and the sets that decide which packets are masqueraded.
//!
//! Without masquerading, an endpoint on another node sees the client's address and replies to the
//! client directly. The client drops that reply. This order of changes prevents it:
//!
//! 1. Before a virtual server gets endpoints on other nodes, the proxy ends its exemption from
//!    masquerading.
//! 2. The virtual server becomes exempt again only after it has lost these endpoints.
//! 3. With `--ipvs-semantics=exact`, only packets with a mark are exempt: the exemption begins
//!    after the mark is added, and ends before it is removed.
//! 4. If a virtual server moves to another Service, masquerading and the source-range firewall stay
//!    until the former Service's endpoints and mark are removed.
//! 5. The new Service's firewall begins before the virtual server gets the new endpoints, and
//!    before packets get the new mark. See [`clients`](crate::clients) for the order of the
//!    firewall's clients.
//!
//! Masquerading packets a little too long does no harm: endpoints only see the node's address.

use std::sync::Arc;
use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use proxy::{Owner, Protocol, ServiceAddress, Target};

use crate::leftovers::LeftoverPlace;
use crate::marks::{Marks, is_marked_at};
use crate::plan::Op;
use crate::server::{RealServer, VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};
use crate::tables::{Tables, sorted};

/// Sets whose members exempt virtual servers from masquerading, because all their endpoints are on
/// this node.
pub(crate) const EXEMPT: [Set; 4] = [
    Set::LoadBalancerLocal,
    Set::NodePortLocalTcp,
    Set::NodePortLocalUdp,
    Set::NodePortLocalSctp,
];

/// Virtual servers that a plan creates or changes. The value is true if the virtual server already
/// has destinations.
pub(crate) struct ChangingServers {
    keys: HashMap<ServiceAddress, bool>,
    ports: HashMap<(Protocol, u16), bool>,
}

impl ChangingServers {
    /// Indexes the virtual servers that a plan creates or changes.
    pub(crate) fn of<'a>(
        tables: &Tables,
        servers: impl Iterator<Item = &'a VirtualServerKey>,
    ) -> Self {
        let (mut keys, mut ports) = (HashMap::new(), HashMap::new());
        for key in servers {
            let there = tables.servers.actual(key);
            let serves = there.is_some_and(|there| !there.destinations.is_empty());
            if let Some(at) = key.address() {
                keys.insert(at, serves);
                *ports.entry((at.protocol, at.port)).or_default() |= serves;
            }
        }
        Self { keys, ports }
    }

    /// Returns true if this member exempts one of these virtual servers and that server has
    /// destinations, and false if it has none. Returns `None` if the member exempts none of them.
    pub(crate) fn exempted(&self, set: Set, member: &Member) -> Option<bool> {
        match *member {
            Member::Port(port) => {
                let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
                let of_set = |protocol: &Protocol| set == Set::node_port_local(*protocol);
                let protocol = all.into_iter().find(of_set)?;
                self.ports.get(&(protocol, port)).copied()
            }
            Member::AddressPort(address, protocol, port) => {
                let at = ServiceAddress::new(address, port, protocol);
                self.keys.get(&at).copied()
            }
            _ => None,
        }
    }
}

/// Returns the writes that end unwanted exemptions from masquerading, before a plan changes the
/// exempt virtual servers.
pub(crate) fn end_exemptions(
    tables: &Tables,
    now: Instant,
    is_of_changing: impl Fn(Set, &Member) -> bool,
) -> Vec<Op> {
    let mut ops = Vec::new();
    for set in EXEMPT {
        let table = tables.members(set);
        let unwanted = table
            .due(now)
            .filter(|member| table.wanted(member).is_none());
        let ended = sorted(unwanted.filter(|member| is_of_changing(set, member)));
        ops.extend(
            ended
                .into_iter()
                .map(|member| Op::RemoveMember(set, member)),
        );
    }
    ops
}

/// Sets for packets from outside the cluster: their members give packets a mark, or exempt them
/// from masquerading.
const OF_OUTSIDE: [Set; 6] = [
    Set::LoadBalancerLocal,
    Set::NodePortLocalTcp,
    Set::NodePortLocalUdp,
    Set::NodePortLocalSctp,
    Set::ExternalIpLocal,
    Set::LocalMark,
];

/// Returns true if a set member must wait until its fwmark virtual server accepts connections.
/// Until then, packets from outside use the virtual server at their destination address, and are
/// masqueraded. If neither virtual server exists, the member does not wait, because it must precede
/// them.
pub(crate) fn awaits_outside_server(
    tables: &Tables,
    marks: &Marks,
    set: Set,
    member: &Member,
) -> bool {
    if !OF_OUTSIDE.contains(&set) {
        return false;
    }
    let Some((owner, mark)) = marked_owner(tables, marks, set, member) else {
        return false;
    };
    let servers = &tables.servers;
    let at = set.service_address(member);
    // A NodePort set has only ports as members, so this compares port and protocol.
    let is_at = |own: ServiceAddress| match *member {
        Member::Port(port) => own.port == port && set == Set::node_port_local(own.protocol),
        _ => Some(own) == at,
    };
    let mut all = servers.keys_of(owner).iter();
    let outside = by_mark(tables, owner, mark);
    let is_made = outside.is_none_or(|key| accepts_connections(tables, key))
        && !awaits_refused_server(tables, marks, set, member);
    let is_concerned =
        |key: &VirtualServerKey| Some(key) == outside || key.address().is_some_and(is_at);
    !is_made && all.any(|key| is_concerned(key) && servers.actual(key).is_some())
}

/// Returns the Service port that wants a set member, and its packet mark. Returns `None` if it has no
/// mark.
fn marked_owner<'a>(
    tables: &'a Tables,
    marks: &Marks,
    set: Set,
    member: &Member,
) -> Option<(&'a Arc<Owner>, u32)> {
    let owner = tables.members(set).owner(member)?;
    Some((owner, marks.get(owner)?))
}

/// Returns the fwmark virtual server of a Service port for packets with this mark.
fn by_mark<'a>(tables: &'a Tables, owner: &Arc<Owner>, mark: u32) -> Option<&'a VirtualServerKey> {
    let mut all = tables.servers.keys_of(owner).iter();
    all.find(|key| matches!(key, VirtualServerKey::Mark { mark: of, .. } if *of == mark))
}

/// Returns true if the kernel has refused to create this virtual server.
fn is_refused(tables: &Tables, key: &VirtualServerKey) -> bool {
    tables.servers.is_failing(key) && tables.servers.actual(key).is_none()
}

/// Returns true if the kernel has refused to create the fwmark virtual server for this mark. The
/// virtual servers at addresses then serve packets from outside as well.
pub(crate) fn lacks_outside_server(tables: &Tables, owner: &Arc<Owner>, mark: u32) -> bool {
    by_mark(tables, owner, mark).is_some_and(|key| is_refused(tables, key))
}

/// Returns true if a mark or an exemption from masquerading is useless, because the kernel has
/// refused to create the fwmark virtual server.
pub(crate) fn awaits_refused_server(
    tables: &Tables,
    marks: &Marks,
    set: Set,
    member: &Member,
) -> bool {
    (set == Set::LocalMark || EXEMPT.contains(&set))
        && marked_owner(tables, marks, set, member)
            .is_some_and(|(owner, mark)| lacks_outside_server(tables, owner, mark))
}

/// Returns the wanted marks that a plan must remove before it creates an fwmark virtual server that
/// the kernel has refused before. So far, packets with these marks have used the virtual servers at
/// their destination addresses. A new virtual server has no destinations at first, so IPVS would
/// reject the packets. The marks return once it has destinations.
pub(crate) fn early_marks(tables: &Tables, key: &VirtualServerKey) -> Vec<Member> {
    let VirtualServerKey::Mark { mark, .. } = key else {
        return Vec::new();
    };
    let servers = &tables.servers;
    // An incomplete read may have missed the virtual server, so its absence alone proves nothing.
    let Some(owner) = servers.owner(key).filter(|_| is_refused(tables, key)) else {
        return Vec::new();
    };
    let table = tables.members(Set::LocalMark);
    let own = servers.keys_of(owner).iter();
    let serving =
        own.filter(|key| servers.actual(key).is_some_and(serves) && !loses_endpoints(tables, key));
    let at = serving.filter_map(VirtualServerKey::address);
    let all = at.map(|at| Member::AddressPortMark(at.address, at.protocol, at.port, *mark));
    all.filter(|member| table.actual(member).is_some() && !table.is_failing(member))
        .collect()
}

/// Returns true if a virtual server has a destination for new connections (weight above 0).
pub(crate) fn serves(server: &VirtualServer) -> bool {
    server.destinations.iter().any(|real| real.weight > 0)
}

/// Returns true if entries that depend on a virtual server need not wait for it. One of these
/// conditions suffices:
///
/// - The virtual server exists, and sends new connections only to wanted endpoints: to at least one
///   of them if the Service wants any. (Draining destinations have weight 0. After a change of the
///   Service, former endpoints stay for a while.)
/// - Its last write failed: no entry waits for a failing virtual server.
fn accepts_connections(tables: &Tables, key: &VirtualServerKey) -> bool {
    let servers = &tables.servers;
    let wants_any = servers.wanted(key).is_some_and(serves);
    let actual = servers.actual(key);
    let is_made = actual.is_some_and(|actual| !wants_any || serves(actual));
    servers.is_failing(key) || (is_made && !loses_endpoints(tables, key))
}

/// Returns true if packets to a virtual server's address must keep a mark that no Service wants any
/// more. Without the mark, they would reach unwanted endpoints, or none.
fn needs_mark(tables: &Tables, key: &VirtualServerKey) -> bool {
    let servers = &tables.servers;
    let has_none = !servers.actual(key).is_some_and(serves);
    let gains_endpoints =
        has_none && servers.wanted(key).is_some_and(serves) && !servers.is_failing(key);
    gains_endpoints || loses_endpoints(tables, key)
}

/// Returns the unwanted marks that a plan may remove or replace now. An old mark stays until the
/// plan can add the address's new mark. Without a new mark, it stays until the virtual server at
/// the address serves wanted endpoints, and no unwanted ones. `awaits_firewall` returns true for a
/// new mark that waits for the rules of source ranges.
pub(crate) fn end_marks(
    tables: &Tables,
    marks: &Marks,
    now: Instant,
    awaits_firewall: impl Fn(&Member) -> bool,
) -> Vec<Member> {
    let table = tables.members(Set::LocalMark);
    let mut due = table.due(now).peekable();
    if due.peek().is_none() {
        return Vec::new();
    }
    let (wanted, unwanted): (Vec<&Member>, Vec<&Member>) =
        due.partition(|member| table.wanted(member).is_some());
    let awaits = |member: &Member| {
        awaits_outside_server(tables, marks, Set::LocalMark, member) || awaits_firewall(member)
    };
    let at = |member: &Member| Set::LocalMark.service_address(member);
    let next = wanted.into_iter();
    let next = next.filter_map(|member| Some((at(member)?, awaits(member))));
    let next: HashMap<ServiceAddress, bool> = next.collect();
    let is_free = |member: &&Member| {
        at(member).is_none_or(|at| match next.get(&at) {
            Some(awaits) => !awaits,
            None => !needs_mark(tables, &at.into()),
        })
    };
    sorted(unwanted.into_iter().filter(is_free))
}

/// Returns true if an fwmark virtual server must keep its last endpoints for now: packets to an
/// address that has moved to another Service still get its mark. Without endpoints, IPVS would
/// reject them.
pub(crate) fn waits_for_new_owner(tables: &Tables, key: &VirtualServerKey) -> bool {
    let VirtualServerKey::Mark { mark, .. } = key else {
        return false;
    };
    let servers = &tables.servers;
    let wants_none = servers.wanted(key).is_some_and(|wanted| !serves(wanted));
    if !wants_none || !servers.actual(key).is_some_and(serves) {
        return false;
    }
    let marks = tables.members(Set::LocalMark);
    let mut pending = marks.pending();
    pending.any(|member| {
        let has_mark = matches!(member, Member::AddressPortMark(.., of) if of == mark);
        let is_leaving = has_mark && marks.wanted(member).is_none() && !marks.is_failing(member);
        let at = Set::LocalMark.service_address(member);
        is_leaving && at.is_some_and(|at| servers.wanted(&at.into()).is_some())
    })
}

/// Returns true while a virtual server sends new connections to unwanted endpoints, unless its last
/// write failed. Meanwhile, packets from outside keep their mark, and the address does not become
/// local.
pub(crate) fn loses_endpoints(tables: &Tables, key: &VirtualServerKey) -> bool {
    let servers = &tables.servers;
    let (Some(actual), Some(wanted)) = (servers.actual(key), servers.wanted(key)) else {
        return false;
    };
    let mut pairs = actual.destinations.beside(&wanted.destinations);
    let serves = |real: Option<RealServer>| real.is_some_and(|real| real.weight > 0);
    !servers.is_failing(key) && pairs.any(|(there, wanted)| serves(there) && !serves(wanted))
}

/// Sets whose members make rules masquerade packets to virtual servers.
const MASQUERADED: [Set; 3] = [Set::ClusterIp, Set::ExternalIp, Set::LoadBalancer];

/// Sets of the clients that the source-range firewall of a load balancer admits.
pub(crate) const GUARDS: [Set; 2] = [Set::LoadBalancerSourceCidr, Set::LoadBalancerSourceIp];

/// Returns true if a set member must stay while packets to its address may reach unwanted
/// endpoints: the member makes rules masquerade or drop these packets, or belongs to the
/// source-range firewall. `losing` is the results of [`losing_endpoints`] and [`marked_otherwise`].
pub(crate) fn protects_removed_endpoints(
    losing: &HashSet<ServiceAddress>,
    set: Set,
    member: &Member,
) -> bool {
    let mut protecting = [&MASQUERADED[..], &GUARDS, &DROPS].into_iter();
    let at = set.service_address(member);
    protecting.any(|sets| sets.contains(&set)) && at.is_some_and(|at| losing.contains(&at))
}

/// Returns the addresses of virtual servers that still send new connections to unwanted endpoints.
pub(crate) fn losing_endpoints(tables: &Tables) -> impl Iterator<Item = ServiceAddress> {
    let pending = tables.servers.pending();
    let losing = pending.filter(|key| loses_endpoints(tables, key));
    losing.filter_map(VirtualServerKey::address)
}

/// Returns the addresses at which an unwanted mark still leads packets to another virtual server.
/// Ignores marks that the kernel refuses to remove.
pub(crate) fn marked_otherwise(tables: &Tables) -> impl Iterator<Item = ServiceAddress> {
    let marks = tables.members(Set::LocalMark);
    let leaving = marks.pending().filter(|mark| {
        marks.wanted(mark).is_none() && marks.actual(mark).is_some() && !marks.is_failing(mark)
    });
    leaving.filter_map(|mark| Set::LocalMark.service_address(mark))
}

/// Returns true if an unwanted mark must stay, with the rules that set marks. Every unwanted mark
/// stays while the virtual servers are unknown. Ignores addresses whose virtual server waits for
/// the new rules itself (`awaits_rules`).
pub(crate) fn needs_marks(
    tables: &Tables,
    knows_servers: bool,
    awaits_rules: impl Fn(&Member) -> bool,
) -> bool {
    let table = tables.members(Set::LocalMark);
    let mut there = table.iter_actual().map(|(member, ())| member);
    there.any(|member| {
        let at = Set::LocalMark.service_address(member);
        let needs = || at.is_some_and(|at| needs_mark(tables, &at.into())) && !awaits_rules(member);
        table.wanted(member).is_none() && (!knows_servers || needs())
    })
}

/// Sets whose members make rules drop packets: the service addresses without an endpoint, for all
/// clients or for clients outside, and the load balancers with source ranges.
const DROPS: [Set; 3] = [
    Set::Unserved,
    Set::UnservedOutside,
    Set::LoadBalancerFirewall,
];

/// Returns true if an unwanted member of a set in [`DROPS`] only does harm, because its rule drops
/// packets of admitted clients. A member is still useful while it keeps packets from unwanted
/// endpoints: its virtual server has such endpoints, or an unwanted mark leads packets to another
/// virtual server (`marked`, from [`marked_otherwise`]). In the firewall set, a member also
/// protects an unwanted virtual server.
///
/// Until the proxy may delete entries (`may_delete`), unwanted endpoints stay, and so does every
/// member of the firewall set. A member of another set in [`DROPS`] is then obsolete if a Service
/// wants its virtual server with an endpoint.
fn is_obsolete_drop(
    tables: &Tables,
    marked: &HashSet<ServiceAddress>,
    set: Set,
    member: &Member,
    may_delete: bool,
) -> bool {
    let Some(at) = set.service_address(member) else {
        return false;
    };
    let (key, servers) = (at.into(), &tables.servers);
    let (wanted, actual) = (servers.wanted(&key), servers.actual(&key));
    let is_left = wanted.is_none() && actual.is_some_and(serves) && !servers.is_failing(&key);
    let protects = is_left || loses_endpoints(tables, &key) || marked.contains(&at);
    let only_harms = match set {
        Set::LoadBalancerFirewall => may_delete && wanted.is_some() && !protects,
        _ if may_delete => !protects,
        _ => wanted.is_some_and(serves),
    };
    tables.members(set).wanted(member).is_none() && only_harms
}

/// Returns the writes that remove obsolete members from those sets of [`DROPS`] for which
/// `is_ended` is true.
pub(crate) fn end_drops(
    tables: &Tables,
    now: Instant,
    may_delete: bool,
    is_ended: impl Fn(Set) -> bool,
) -> Vec<Op> {
    let marked: HashSet<_> = marked_otherwise(tables).collect();
    let sets = DROPS.into_iter().filter(|set| is_ended(*set));
    let ended = sets.flat_map(|set| {
        let due = tables.members(set).due(now);
        let ended = due.filter(|member| is_obsolete_drop(tables, &marked, set, member, may_delete));
        let ended = sorted(ended).into_iter();
        ended.map(move |member| Op::RemoveMember(set, member))
    });
    ended.collect()
}

/// Returns true if obsolete set members would make new rules drop packets. `new` is true for each
/// set that only the new rules match. Ignores members that the kernel refuses to remove.
pub(crate) fn would_drop(tables: &Tables, may_delete: bool, new: impl Fn(Set) -> bool) -> bool {
    let marked: HashSet<_> = marked_otherwise(tables).collect();
    let mut sets = DROPS.into_iter().filter(|set| new(*set));
    sets.any(|set| {
        let table = tables.members(set);
        let mut pending = table.pending();
        pending.any(|member| {
            !table.is_failing(member) && is_obsolete_drop(tables, &marked, set, member, may_delete)
        })
    })
}

/// Returns true if new rules would give packets a mark that the next plan replaces, and whose
/// virtual server may have no endpoints any more. Ignores marks that the kernel refuses to add or
/// remove, and marks that wait for these rules themselves (`awaits_firewall`).
pub(crate) fn awaits_next_mark(tables: &Tables, awaits_firewall: impl Fn(&Member) -> bool) -> bool {
    let table = tables.members(Set::LocalMark);
    let pending = table.pending().filter(|member| !table.is_failing(member));
    let (next, former): (Vec<&Member>, Vec<&Member>) =
        pending.partition(|member| table.wanted(member).is_some());
    let at = |member: &Member| Set::LocalMark.service_address(member);
    let next = next.into_iter().filter(|mark| !awaits_firewall(mark));
    let next: HashSet<_> = next.filter_map(at).collect();
    former
        .into_iter()
        .filter_map(at)
        .any(|at| next.contains(&at))
}

/// Returns true if packets may still get the mark of this virtual server.
pub(crate) fn is_marked(tables: &Tables, marks: &Marks, key: &VirtualServerKey) -> bool {
    let VirtualServerKey::Mark { mark, .. } = key else {
        return false;
    };
    // An earlier run's shim marks packets until the proxy removes its nftables table or iptables
    // rules.
    let mut leftovers = tables.leftovers.iter_actual();
    let marks_packets = |place| matches!(place, LeftoverPlace::OwnTable | LeftoverPlace::Other(_));
    if leftovers.any(|(place, _)| marks_packets(*place)) {
        return true;
    }
    if marks.has_addresses() {
        let mut addresses = marks.addresses(*mark);
        return addresses.any(|at| is_marked_at(tables, at, *mark));
    }
    let mut there = tables.members(Set::LocalMark).iter_actual();
    there.any(|(member, ())| matches!(member, Member::AddressPortMark(.., of) if of == mark))
}

/// Returns removed endpoints that packets may still reach, because their removal is pending or the
/// kernel's reply to it was lost.
pub(crate) fn still_served(tables: &Tables, marks: &Marks) -> HashSet<(Protocol, Target)> {
    let unsettled = tables.servers.pending().chain(&tables.uncertain);
    let wanted = unsettled.filter(|key| tables.servers.wanted(key).is_some());
    let protocol = |key: &VirtualServerKey| match key {
        VirtualServerKey::Address(at) => Some(at.protocol),
        VirtualServerKey::Mark { mark, .. } => marks.protocol(*mark),
    };
    let wanted = wanted.filter_map(|key| Some((key, protocol(key)?)));
    let endpoints = wanted.flat_map(|(key, protocol)| {
        let actual = tables.servers.actual(key).into_iter();
        let all = actual.flat_map(|actual| actual.destinations.iter());
        let may_be_served = |real: &RealServer| real.weight > 0 || !tables.may_lower(key);
        let served = all.filter(may_be_served);
        served.map(move |real| (protocol, real.target))
    });
    endpoints.collect()
}
