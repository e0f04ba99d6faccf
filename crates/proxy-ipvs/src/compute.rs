//! Compiles changed Services and updates their claims. Also recompiles the Services that lose an
//! address and port to a changed Service, or win them back.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::slice;

use hashbrown::HashSet;
use proxy::{IpFamily, Model, NamespacedName, Rank, ServiceAddress};

use crate::compile::{Fragment, NodePortAddresses, compile};
use crate::kinds::State;
use crate::proxier::Ipvs;
use crate::server::VirtualServerKey;
use crate::sets::{Member, Set};

impl Ipvs {
    /// Updates the list of node addresses that serve NodePorts. Returns true if it changed.
    pub(crate) fn refresh_node_ports(&mut self, state: &mut State) -> bool {
        let bound = self.tables.addresses.iter_actual();
        let bound = bound.map(|(address, ())| *address);
        let known = state.node.serving_node_ports(bound);
        let node_ports = NodePortAddresses {
            are_known: known.is_some(),
            addresses: known.unwrap_or_else(|| self.found_node_ports(state)),
        };
        let has_changed = node_ports != self.node_ports;
        if has_changed {
            let serving = &mut state.serving.addresses;
            serving.clone_from(&node_ports.addresses);
            self.node_ports = node_ports;
        }
        has_changed
    }

    /// Returns the node addresses at which the kernel already serves NodePorts. The proxier uses
    /// them while the node's addresses or its own IP are unknown.
    fn found_node_ports(&self, state: &State) -> Vec<IpAddr> {
        let is_node_port = |at: &ServiceAddress| {
            let members = self.tables.members(Set::node_port(at.protocol));
            let is_there = |member| members.actual(&member).is_some();
            state.node.interface_addresses.contains(&at.address)
                && (is_there(Member::Port(at.port)) || is_there((*at).into()))
        };
        let servers = self.tables.servers.iter_actual();
        let at = servers.filter_map(|(key, _)| key.address());
        let found: BTreeSet<IpAddr> = at.filter(is_node_port).map(|at| at.address).collect();
        found.into_iter().collect()
    }

    /// Compiles these Services, and recompiles other Services that lose an address and port to
    /// them, or win them back. Returns the virtual servers that these other Services had before.
    pub(crate) fn compute(
        &mut self,
        state: &mut State,
        model: &Model,
        names: &[NamespacedName],
    ) -> Vec<VirtualServerKey> {
        for name in names {
            self.update_service(state, model, name);
        }
        let mut had = Vec::new();
        // The loop ends, because a recompiled Service claims the same virtual servers as before,
        // which causes no new dispute.
        while let Some(name) = self.claims.next_disputed() {
            had.extend(self.claims.servers_of(slice::from_ref(&name), &self.tables));
            self.update_service(state, model, &name);
        }
        had
    }

    fn update_service(&mut self, state: &mut State, model: &Model, name: &NamespacedName) {
        let schedulers = &mut self.schedulers;
        let compiled = model.view(name).map(|view| {
            let of_service = schedulers.all_of(view.service, &state.config);
            let semantics = state.config.semantics;
            compile(&view, &state.node, &self.node_ports, &of_service, semantics)
        });
        let mut fragments: Vec<Fragment> = compiled.unwrap_or_default();
        let mut outside = fragments.iter().filter_map(|of| of.outside.as_ref());
        if outside.any(|outside| outside.hashes_source) {
            schedulers.want_by_source();
        }
        for fragment in &mut fragments {
            // One local route makes all addresses of a range local, so most Services need no
            // address on the link. The API server's and DNS Services get one, because they must not
            // wait for the route.
            if fragment.owner.rank == Rank::Other {
                let addresses = &mut fragment.addresses;
                addresses.retain(|address| !self.ranges.contains(address));
            }
        }
        self.claims.put(name, fragments, &mut self.tables);
        state.news.changed(name);
    }

    /// Reserves memory for all new Services together, which is far cheaper than many small
    /// allocations.
    pub(crate) fn reserve(
        &mut self,
        model: &Model,
        family: IpFamily,
        names: &HashSet<NamespacedName>,
    ) {
        let is_ours = |name: &&NamespacedName| {
            let view = model.view(name);
            view.is_some_and(|view| view.service.cluster_ip(family).is_some())
        };
        let is_new = |name: &&NamespacedName| !self.claims.knows(name);
        let services = names.iter().filter(is_new).filter(is_ours).count();
        self.claims.reserve(services);
        self.tables.servers.reserve(services);
        self.tables.addresses.reserve(services);
        for set in [Set::ClusterIp, Set::IpvsIps] {
            self.tables.members_mut(set).reserve(services);
        }
    }
}
