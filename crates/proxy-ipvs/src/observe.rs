//! Copies dumps of the kernel into the tables, and reports other programs' changes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use proxy::{Model, NamespacedName, Protocol, Scheduler, Service};

use crate::cover::rules_in_flight;
use crate::drift::{tell_address, tell_member, tell_server};
use crate::kernel::{FoundAddresses, FoundRules, FoundSets};
use crate::kinds::State;
use crate::part::Part;
use crate::proxier::Ipvs;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::Set;

impl Ipvs {
    pub(crate) fn observe_servers(
        &mut self,
        state: &mut State,
        found: BTreeMap<VirtualServerKey, VirtualServer>,
    ) {
        let was_known = state.knows(Part::Servers);
        let tables = &mut self.tables;
        self.schedulers.found(found.values());
        self.drifts.count(found.len());
        let (ours, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            found.into_iter().partition(|(key, _)| tables.is_ours(key));
        let mut missed = HashMap::new();
        if was_known {
            for (key, believed) in tables.servers.iter_actual() {
                let there = ours.get(key);
                if !tables.uncertain.contains(key) && there != Some(believed) {
                    tell_server(state, tables, key, Some(believed), there);
                }
                if there.is_none() {
                    missed.insert(*key, believed.clone());
                }
            }
        }
        tables.uncertain.clear();
        for key in tables.servers.observe(ours) {
            self.claims.settle_leftovers(key, tables);
        }
        tables.foreign.found(others);
        self.recognize(state);
        self.tables.missed = missed;
        // Aborts the running drift check, because its comparison began with the old tables.
        self.drifts.abort();
    }

    pub(crate) fn observe_sets(&mut self, state: &mut State, found: FoundSets) {
        let was_known = state.knows(Part::Sets);
        if let Some(takeover) = self.takeover.as_mut().filter(|_| !was_known) {
            takeover.found_sets(&found);
        }
        let FoundSets {
            mut members,
            sizes,
            former: _,
        } = found;
        let sets = &mut self.tables.sets;
        let believed = sets.iter_actual();
        let believed: BTreeMap<Set, u32> = believed.map(|(set, size)| (*set, *size)).collect();
        for set in sets.observe(sizes) {
            // A larger set than requested is no drift: a bitmap has room for every port.
            if was_known && sets.actual(&set) < believed.get(&set) {
                if state.config.shim.is_native() {
                    // Another program may have changed sets and rules together, because they share
                    // one nftables table.
                    state.ask(Part::Rules);
                }
                let name = || set.name(state.node.family);
                state.news.drifted(state.now, "set", name);
            }
        }
        for set in Set::every() {
            let found = members.remove(&set).unwrap_or_default().into_iter();
            let table = self.tables.members_mut(set);
            let changed = table.observe(found.map(|member| (member, ())));
            for member in changed.iter().filter(|_| was_known) {
                tell_member(state, &self.tables, set, member);
            }
        }
        self.drifts.abort();
    }

    pub(crate) fn observe_addresses(
        &mut self,
        state: &mut State,
        model: &Model,
        found: FoundAddresses,
    ) {
        let was_known = state.knows(Part::Addresses);
        if let Some(takeover) = self.takeover.as_mut().filter(|_| !was_known) {
            takeover.found_addresses(&found);
        }
        let tables = &mut self.tables;
        let link = found.has_link.then_some(((), ()));
        let is_link_other = !tables.link.observe(link).is_empty();
        let entries = |of: BTreeSet<IpAddr>| of.into_iter().map(|address| (address, ()));
        let mut changed = tables.addresses.observe(entries(found.bound));
        changed.extend(
            tables
                .bound_otherwise
                .observe(entries(found.bound_otherwise)),
        );
        let other_ranges = tables.ranges.observe(found.ranges);
        tables.networks = found.networks;
        self.range_ground = None;
        if was_known {
            for net in other_ranges {
                state.news.drifted(state.now, "route", || net.to_string());
            }
            if is_link_other {
                let name = || "kube-ipvs0".to_owned();
                state.news.drifted(state.now, "link", name);
            }
            // If this process set the link down, the kernel has removed addresses, which is no
            // drift.
            if !self.link.was_read() {
                for address in changed {
                    tell_address(state, &self.tables, address);
                }
            }
        }
        self.take_interface_addresses(state, model, found.interface_addresses);
    }

    pub(crate) fn observe_rules(&mut self, state: &mut State, found: FoundRules) {
        let was_known = state.knows(Part::Rules);
        let FoundRules { rules, leftovers } = found;
        let table = &mut self.tables.rules;
        let before = table.actual(&()).cloned();
        let there = (!rules.is_empty()).then(|| ((), Arc::new(rules)));
        let is_other = !table.observe(there).is_empty();
        // A refused restore may have changed some rules. So after a failed write, differences are
        // no drift.
        if was_known && is_other && !table.is_failing(&()) {
            let there = table.actual(&()).cloned().unwrap_or_default();
            for line in there.changes_since(&before.unwrap_or_default()) {
                let is_chain = line.contains(": -N ");
                let kind = if is_chain { "chain" } else { "rule" };
                state.news.drifted(state.now, kind, || line);
            }
            // A program that flushes rules may remove sets next.
            state.ask(Part::Sets);
        }
        self.tables.leftovers.observe(leftovers);
        if !was_known {
            self.cover.first_read(state.now);
        }
        self.cover.refresh(&self.tables, rules_in_flight(state));
    }

    /// Updates the addresses of the node's other interfaces, and recompiles:
    ///
    /// - Services with NodePorts, if the addresses that serve NodePorts changed
    /// - Services with an address that an interface gained or lost
    fn take_interface_addresses(
        &mut self,
        state: &mut State,
        model: &Model,
        found: BTreeSet<IpAddr>,
    ) {
        let before = mem::replace(&mut state.node.interface_addresses, found);
        let is_first = !mem::replace(&mut state.node.has_addresses, true);
        let has_other_ports = self.refresh_node_ports(state);
        if self.follow_ranges(state, model) || is_first {
            let claimed: Vec<NamespacedName> = self.claims.services().cloned().collect();
            return self.update_before_told(state, model, &claimed);
        }
        let found = &state.node.interface_addresses;
        let moved: BTreeSet<&IpAddr> = before.symmetric_difference(found).collect();
        if moved.is_empty() && !has_other_ports {
            return;
        }
        let depends = |name: &&NamespacedName| {
            let service = model.view(name).map(|view| view.service);
            service.is_some_and(|service| {
                let external = service.external_ips.iter().chain(&service.ingress_ips);
                let mut addresses = service.cluster_ips.iter().chain(external);
                addresses.any(|address| moved.contains(address))
                    || (has_other_ports
                        && service.ports.iter().any(|port| port.node_port.is_some()))
            })
        };
        let names: Vec<_> = model.service_names().filter(depends).cloned().collect();
        self.update_before_told(state, model, &names);
    }

    /// Recompiles these Services before the engine reports their changes, which the model may
    /// already contain.
    fn update_before_told(&mut self, state: &mut State, model: &Model, names: &[NamespacedName]) {
        let mut had = self.claims.servers_of(names, &self.tables);
        had.extend(self.compute(state, model, names));
        self.hand_on(state, model, names, had);
    }

    /// Recompiles the Services that may now own a released virtual server or address. So one plan
    /// moves a virtual server to its new owner, and does not remove it in between.
    ///
    /// - `had`: virtual servers that Services claimed before the change
    /// - `done`: Services that are already compiled
    pub(crate) fn hand_on(
        &mut self,
        state: &mut State,
        model: &Model,
        done: &[NamespacedName],
        had: Vec<VirtualServerKey>,
    ) {
        let mut left = had;
        let (mut seen, mut known) = (HashSet::new(), HashSet::new());
        loop {
            left.retain(|key| self.tables.servers.wanted(key).is_none() && seen.insert(*key));
            if left.is_empty() {
                return;
            }
            if known.is_empty() {
                known.extend(done.iter().cloned());
            }
            let mut free = Free::default();
            for at in left.iter().filter_map(VirtualServerKey::address) {
                let addresses = free.at.entry((at.protocol, at.port)).or_default();
                addresses.push(at.address);
                if self.tables.addresses.wanted(&at.address).is_none() {
                    free.addresses.insert(at.address);
                }
            }
            let takes = |name: &&NamespacedName| {
                let view = model.view(name).filter(|_| !known.contains(*name));
                view.is_some_and(|view| may_have(view.service, &free))
            };
            let heirs: Vec<_> = model.service_names().filter(takes).cloned().collect();
            left = self.claims.servers_of(&heirs, &self.tables);
            left.extend(self.compute(state, model, &heirs));
            known.extend(heirs);
        }
    }

    /// Adopts the virtual servers of an earlier run or of upstream kube-proxy, before the first
    /// write. Does nothing until the proxy has read all evidence of ownership: virtual servers,
    /// sets and addresses.
    pub(crate) fn judge(&mut self, state: &mut State) {
        let evidence = [Part::Servers, Part::Sets, Part::Addresses];
        if !evidence.into_iter().all(|part| state.knows(part)) {
            return;
        }
        if let Some(takeover) = self.takeover.take() {
            let former_marks = takeover.former_marks();
            let excluded = &state.config.exclude_cidrs;
            let adopted = takeover.judge(excluded, &mut self.tables.foreign);
            self.adopt(adopted);
            self.refresh_node_ports(state);
            self.recognize(state);
            let marked = self.tables.members(Set::LocalMark).iter_actual();
            let marked = marked.map(|(member, ())| *member);
            // Marks from our current sets come last, because for each address the last mark counts.
            let all = former_marks.into_iter().chain(marked);
            let all = all.filter_map(|of| Some((Set::LocalMark.service_address(&of)?, of)));
            let all: HashMap<_, _> = all.collect();
            self.claims.marks.open(all.into_values());
        }
    }

    /// Adopts each foreign virtual server that equals one of ours that the previous dump missed.
    /// Also adopts each that a Service wants, if it has the ownership flag or resembles the wanted
    /// virtual server. (The first dump may have missed it, or other evidence may be lost.) Reports all other wanted virtual servers as foreign.
    pub(crate) fn recognize(&mut self, state: &mut State) {
        let tables = &mut self.tables;
        if tables.foreign.is_empty() {
            return;
        }
        let judged = |(key, there): (&VirtualServerKey, &VirtualServer)| {
            if tables.missed.get(key) == Some(there) {
                return Some((*key, true));
            }
            let wanted = tables.servers.wanted(key)?;
            let is_ours = there.properties.is_owned() || wanted.is_like(there);
            Some((*key, is_ours))
        };
        let judged: Vec<_> = tables.foreign.iter().filter_map(judged).collect();
        for (key, is_ours) in judged {
            if is_ours && let Some(server) = self.tables.foreign.remove(&key) {
                self.adopt(vec![(key, server)]);
            } else if self.tables.foreign.is_known_at(&key) && self.tables.foreign.tell(&key) {
                let owner = self.tables.servers.owner(&key);
                let owner = owner.map(|owner| owner.name.clone());
                state
                    .report
                    .foreign
                    .extend(owner.map(|owner| (key.to_string(), owner)));
            }
        }
    }

    /// Recompiles the Services at whose addresses or marks another program created or removed a
    /// virtual server.
    pub(crate) fn follow_foreign(&mut self, state: &mut State, model: &Model) {
        let changed = self.tables.foreign.take_changed();
        if changed.is_empty() {
            return;
        }
        let mut marked = BTreeSet::new();
        for key in &changed {
            if let VirtualServerKey::Mark { mark, .. } = key {
                self.claims.marks.removed(*mark);
                let owner = self.claims.marks.owner(*mark);
                marked.extend(owner.map(|owner| owner.name.service.clone()));
            }
        }
        let mut free = Free::default();
        for at in changed.iter().filter_map(VirtualServerKey::address) {
            let addresses = free.at.entry((at.protocol, at.port)).or_default();
            addresses.push(at.address);
            free.addresses.insert(at.address);
        }
        let names = |name: &&NamespacedName| {
            let view = model.view(name);
            marked.contains(*name) || view.is_some_and(|view| may_have(view.service, &free))
        };
        let names: Vec<_> = model.service_names().filter(names).cloned().collect();
        self.update_before_told(state, model, &names);
    }

    /// Recompiles the Services that request or need a scheduler about which the kernel has
    /// responded.
    pub(crate) fn follow_schedulers(&mut self, state: &mut State, model: &Model) {
        if !self.schedulers.has_news() {
            return;
        }
        let is_exact = state.config.semantics.is_exact();
        let named = || model.services_with_options();
        let is_named = |of| {
            let mut named = named();
            (is_exact && of == Scheduler::SOURCE_HASH)
                || named.any(|(_, options)| options.scheduler == Some(of))
        };
        if !self.schedulers.take_changed(is_named) {
            return;
        }
        let names = named().filter(|(_, options)| options.scheduler.is_some());
        let mut names: BTreeSet<_> = names.map(|(service, _)| service.name.clone()).collect();
        if is_exact {
            let needs =
                |service: &Service| service.external_local && service.affinity_seconds.is_some();
            let all = self.claims.services();
            let needing = all.filter(|name| {
                let view = model.view(name);
                view.is_some_and(|view| needs(view.service))
            });
            names.extend(needing.cloned());
        }
        let names: Vec<_> = names.into_iter().collect();
        self.update_before_told(state, model, &names);
    }

    /// Recompiles the Services that need a firewall mark, once the free marks are known or a mark
    /// has become free.
    pub(crate) fn follow_marks(&mut self, state: &mut State, model: &Model) {
        let heirs = self.claims.marks.take_heirs();
        let names: Vec<NamespacedName> = if self.claims.marks.take_news() {
            let names = self.claims.services().filter_map(|name| {
                let service = model.view(name)?.service;
                let age = service.created.unwrap_or(i64::MAX);
                service.external_local.then(|| (age, name.clone()))
            });
            // If too few marks are free, the oldest Services get them.
            let names: BTreeSet<_> = names.collect();
            names.into_iter().map(|(_, name)| name).collect()
        } else {
            heirs.into_iter().collect()
        };
        if !names.is_empty() {
            self.update_before_told(state, model, &names);
        }
    }

    fn adopt(&mut self, found: Vec<(VirtualServerKey, VirtualServer)>) {
        for (key, server) in found {
            let servers = &mut self.tables.servers;
            if servers.actual(&key).is_none() {
                servers.set_actual(&key, Some(server));
                if servers.is_pending(&key) {
                    self.claims.adopt_leftovers(key, &mut self.tables);
                }
            }
        }
    }
}

/// Virtual servers and addresses that may get another owner, because Services released them, or
/// because another program created or removed a virtual server there.
#[derive(Default)]
struct Free {
    /// Addresses of these virtual servers, by protocol and port.
    at: HashMap<(Protocol, u16), Vec<IpAddr>>,
    /// Addresses that a Service may now bind or unbind at any port. After a release, this omits
    /// addresses that a Service still wants on the link.
    addresses: HashSet<IpAddr>,
}

/// Returns true if a Service may claim one of the virtual servers or addresses in `free`.
fn may_have(service: &Service, free: &Free) -> bool {
    let external = service.external_ips.iter().chain(&service.ingress_ips);
    let mut addresses = service.cluster_ips.iter().chain(external);
    let mut ports = service.ports.iter();
    ports.any(|port| {
        let at = free.at.get(&(port.protocol, port.port));
        let node_port = port.node_port.map(|number| (port.protocol, number));
        at.is_some_and(|at| addresses.clone().any(|address| at.contains(address)))
            || node_port.is_some_and(|of| free.at.contains_key(&of))
    }) || addresses.any(|address| free.addresses.contains(address))
}
