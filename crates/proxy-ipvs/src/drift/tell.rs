//! Reports the entries that another program changed, as drift.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use proxy::{Drift, NamespacedName, Owner, Target};

use crate::kinds::State;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};
use crate::tables::Tables;

/// Reports a virtual server that another program changed or removed.
pub(crate) fn tell_server(
    state: &mut State,
    tables: &Tables,
    key: &VirtualServerKey,
    believed: Option<&VirtualServer>,
    there: Option<&VirtualServer>,
) {
    let note = |drift: &mut Drift| note_server(drift, key, believed, there);
    state.news.note_drift(state.now, note);
    state.news.disturb(services(tables.servers.owners(key)));
}

/// Reports a set member that another program added or removed.
pub(crate) fn tell_member(state: &mut State, tables: &Tables, set: Set, member: &Member) {
    let family = state.node.family;
    let name = || format!("{member} of {}", set.name(family));
    state.news.drifted(state.now, "set member", name);
    state
        .news
        .disturb(services(tables.members(set).owners(member)));
}

/// Reports an address that another program bound or unbound.
pub(crate) fn tell_address(state: &mut State, tables: &Tables, address: IpAddr) {
    state
        .news
        .drifted(state.now, "address", || address.to_string());
    state
        .news
        .disturb(services(tables.addresses.owners(&address)));
}

/// Adds to `drift` the differences between a virtual server in the kernel and in the tables.
fn note_server(
    drift: &mut Drift,
    key: &VirtualServerKey,
    believed: Option<&VirtualServer>,
    there: Option<&VirtualServer>,
) {
    let (Some(believed), Some(there)) = (believed, there) else {
        return drift.add("virtual server", || key.to_string());
    };
    if believed.properties != there.properties {
        drift.add("virtual server", || key.to_string());
    }
    let mut name = |target: Target| {
        drift.add("destination", || {
            let target = SocketAddr::new(target.ip, target.port);
            format!("{target} of {key}")
        });
    };
    for real in believed.destinations.iter() {
        if there.destination(real.target) != Some(real) {
            name(real.target);
        }
    }
    for real in there.destinations.iter() {
        if believed.destination(real.target).is_none() {
            name(real.target);
        }
    }
}

/// Returns the Services that want a virtual server or a set member.
fn services<'a>(
    owners: impl Iterator<Item = &'a Arc<Owner>>,
) -> impl Iterator<Item = NamespacedName> {
    owners.map(|owner| owner.name.service.clone())
}
