//! Order of changes between virtual servers and the sets that decide about masquerading.
//!
//! An endpoint on another node sees the client's address unless the packet is masqueraded. It then
//! replies to the client directly, and the client drops the reply. So a virtual server loses its
//! exemption before it gets such endpoints, and gets an exemption after it has lost them. Unneeded
//! masquerading for a moment does no harm.

use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use proxy::{Protocol, ServiceAddress, Target};

use crate::plan::Op;
use crate::server::{RealServer, VirtualServerKey};
use crate::sets::{Member, Set};
use crate::tables::{Tables, sorted};

/// Sets that exempt packets from masquerading, because all endpoints are on this node.
pub(crate) const EXEMPT: [Set; 4] = [
    Set::LoadBalancerLocal,
    Set::NodePortLocalTcp,
    Set::NodePortLocalUdp,
    Set::NodePortLocalSctp,
];

/// Virtual servers to create or change, each with a flag: true if it has destinations.
pub(crate) struct ChangingServers {
    keys: HashMap<ServiceAddress, bool>,
    ports: HashMap<(Protocol, u16), bool>,
}

impl ChangingServers {
    /// Indexes virtual servers.
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

    /// Returns true if one of the virtual servers that a member exempts has destinations. Returns
    /// `None` if the member exempts none of them.
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

/// Removes the unwanted exemptions of virtual servers that will change.
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

/// Returns removed endpoints that may still get packets: their removal is pending, or its reply was
/// lost.
pub(crate) fn still_served(tables: &Tables) -> HashSet<(Protocol, Target)> {
    let unsettled = tables.servers.pending().chain(&tables.uncertain);
    let wanted = unsettled.filter(|key| tables.servers.wanted(key).is_some());
    let wanted = wanted.filter_map(|key| Some((key, key.address()?)));
    let endpoints = wanted.flat_map(|(key, at)| {
        let actual = tables.servers.actual(key).into_iter();
        let all = actual.flat_map(|actual| actual.destinations.iter());
        let may_be_served = |real: &RealServer| real.weight > 0 || !tables.may_lower(key);
        let served = all.filter(may_be_served);
        served.map(move |real| (at.protocol, real.target))
    });
    endpoints.collect()
}
