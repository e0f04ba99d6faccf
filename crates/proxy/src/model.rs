//! The model: the latest state of all objects that a source has sent, and the changes since the
//! last call of [`Model::take_changes`].

mod list;
mod queries;
mod shared;

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::admission::{AddressRules, Admission};
use crate::changes::{Changes, MissingObjects, Trigger};
use crate::event::{Event, Kind};
use crate::limits;
use crate::names::NamespacedName;
use crate::object::{EndpointSlice, Node, Placement, Service, ServiceCidr};
use crate::owner::Rank;
use crate::service_cidrs::ServiceCidrs;
use list::ListProgress;
use shared::{NodeNames, Shared, is_just_elsewhere, seen};

/// All Services, all EndpointSlices, and the Node object of this node. An update costs O(event).
/// Reading the changes costs O(changed Services).
#[derive(Debug, Default)]
pub struct Model {
    /// Services by name. The values are boxed, because a hash table needs up to twice the memory of
    /// its entries. While the table grows, it needs up to three times their memory.
    services: HashMap<NamespacedName, Box<Service>>,
    /// EndpointSlices by Service, sorted by name. A list needs less memory than a tree: most
    /// Services have one EndpointSlice, and even one tree node would be ten times as large.
    slices: HashMap<NamespacedName, Vec<EndpointSlice>>,
    /// Service of each EndpointSlice. A deletion event names only the EndpointSlice, and the label
    /// of a changed EndpointSlice may name another Service than before.
    service_of: HashMap<NamespacedName, NamespacedName>,
    /// Number that changes whenever a Service is added or deleted.
    names_version: u64,
    /// Name of this node. The model drops the names of all other nodes, and keeps only their zones.
    own_node: Option<Box<str>>,
    node: Option<Node>,
    /// True if this node's Node object exists. False if it was deleted or a list lacked it. `None`
    /// while its existence is unknown.
    has_node: Option<bool>,
    is_node_named: bool,
    node_names: NodeNames,
    service_cidrs: ServiceCidrs,
    service_list: ListProgress,
    slice_list: ListProgress,
    node_list: ListProgress,
    service_cidr_list: ListProgress,
    external_ips: ExternalIps,
    admission: Admission,
    /// Services that have options (annotations of this proxy).
    with_options: HashSet<NamespacedName>,
    /// Number that changes whenever an option of any Service may have changed.
    options_version: u64,
    /// True while a list of Services arrives. The model checks addresses of Services again only at
    /// the end of the list.
    is_listing_services: bool,
    changes: Changes,
    placements: Shared<Placement>,
    port_names: Shared<str>,
}

/// Treatment of `spec.externalIPs` (KEP-5707).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExternalIps {
    /// The proxy serves Services at their external IPs.
    #[default]
    Served,
    /// The proxy ignores external IPs. The model removes them from Services.
    Ignored,
}

impl Model {
    /// Creates an empty model without a node.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty model for the node with this name. For each endpoint, the model records
    /// whether the endpoint is on this node or has a hint for this node. The model drops the names
    /// of other nodes.
    pub fn of_node(name: &str) -> Self {
        Self {
            own_node: Some(name.into()),
            ..Self::default()
        }
    }

    /// Sets whether external IPs are served. Modes never see external IPs that are ignored.
    #[must_use]
    pub fn with_external_ips(mut self, external_ips: ExternalIps) -> Self {
        self.external_ips = external_ips;
        self
    }

    /// Sets the rules for external and load-balancer addresses. Modes never see addresses that the
    /// model rejects by these rules.
    #[must_use]
    pub fn with_address_rules(mut self, rules: AddressRules) -> Self {
        self.admission = Admission::new(rules);
        self
    }

    /// Applies one event of a source.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::ListStarted(Kind::Service) => {
                self.is_listing_services = true;
                self.service_list.start(self.services.keys());
            }
            Event::ListStarted(Kind::EndpointSlice) => {
                self.slice_list.start(self.service_of.keys());
            }
            Event::ListStarted(Kind::Node) => {
                self.is_node_named = false;
                self.node_list.start(std::iter::empty());
            }
            Event::ListStarted(Kind::ServiceCidr) => {
                self.service_cidr_list.start(self.service_cidrs.names());
            }
            Event::ListComplete { kind, is_whole } => self.complete(kind, is_whole),
            Event::Unreadable(Kind::Service, name) => {
                let is_known = self.services.contains_key(&name);
                self.service_list.confirm_unreadable(name, is_known);
            }
            Event::Unreadable(Kind::EndpointSlice, name) => {
                let is_known = self.service_of.contains_key(&name);
                self.slice_list.confirm_unreadable(name, is_known);
            }
            Event::ServiceApplied(service) => self.apply_service(service),
            Event::ServiceDeleted(name) => self.delete_service(&name),
            Event::SliceApplied(slice) => self.apply_slice(slice),
            Event::SliceDeleted(name) => self.delete_slice(&name),
            Event::NodeApplied(node)
                if self
                    .own_node
                    .as_ref()
                    .is_some_and(|own| **own != *node.name) =>
            {
                self.node_names
                    .other
                    .get_or_insert_with(|| (&*node.name).into());
            }
            Event::NodeApplied(node) => {
                self.has_node = Some(true);
                self.is_node_named = true;
                if self.node.as_ref() != Some(&node) {
                    self.node = Some(node);
                    self.changes.node = true;
                }
            }
            // Keeps the last state of the Node object: someone may delete it while the node still
            // serves.
            Event::NodeDeleted(_) => {
                self.has_node = Some(false);
                self.is_node_named = false;
            }
            Event::Unreadable(Kind::Node, _) => {
                self.has_node = Some(true);
                self.is_node_named = true;
            }
            Event::Unreadable(Kind::ServiceCidr, name) => {
                let is_known = self.service_cidrs.contains(&name);
                self.service_cidr_list.confirm_unreadable(name, is_known);
            }
            Event::ServiceCidrApplied(ServiceCidr { name, nets }) => {
                let name = NamespacedName::new("", &name);
                self.service_cidr_list.confirm(&name);
                let changed = self.service_cidrs.apply(name, nets);
                self.note_service_cidrs(changed);
            }
            Event::ServiceCidrDeleted(name) => {
                self.delete_service_cidr(&NamespacedName::new("", &name));
            }
            Event::ApiServerAt(addresses) => {
                self.admission.reach_api_server_at(addresses);
                self.judge_doubted();
            }
        }
    }

    /// Handles the end of a list. Deletes known objects that the list lacked, if the list is whole.
    fn complete(&mut self, kind: Kind, is_whole: bool) {
        let (known, gone) = match kind {
            Kind::Service => (self.services.len(), self.service_list.complete(is_whole)),
            Kind::EndpointSlice => (self.service_of.len(), self.slice_list.complete(is_whole)),
            Kind::Node => {
                self.node_list.complete(is_whole);
                let is_gone = is_whole && self.has_node == Some(true) && !self.is_node_named;
                if is_whole {
                    self.has_node = Some(self.is_node_named);
                }
                let node = self.node.as_ref().filter(|_| is_gone);
                let gone = node.map(|node| NamespacedName::new("", &node.name));
                (1, gone.into_iter().collect())
            }
            Kind::ServiceCidr => {
                let known = self.service_cidrs.len();
                let gone = self.service_cidr_list.complete(is_whole);
                (known, gone)
            }
        };
        let vanished = MissingObjects::of(kind, known, &gone);
        self.changes.vanished.extend(vanished);
        for name in gone {
            match kind {
                Kind::Service => self.delete_service(&name),
                Kind::EndpointSlice => self.delete_slice(&name),
                // Keeps the last state of the Node object.
                Kind::Node => {}
                Kind::ServiceCidr => self.delete_service_cidr(&name),
            }
        }
        if kind == Kind::Service {
            self.is_listing_services = false;
            self.judge_again();
        }
        if is_whole && kind == Kind::ServiceCidr {
            let changed = self.service_cidrs.know();
            self.note_service_cidrs(changed);
        }
    }

    fn delete_service_cidr(&mut self, name: &NamespacedName) {
        self.service_cidr_list.confirm(name);
        let changed = self.service_cidrs.delete(name);
        self.note_service_cidrs(changed);
    }

    fn note_service_cidrs(&mut self, changed: bool) {
        self.changes.service_cidrs |= changed;
    }

    fn apply_service(&mut self, mut service: Service) {
        self.service_list.confirm(&service.name);
        if self.external_ips == ExternalIps::Ignored {
            service.external_ips = Vec::new();
        }
        let known = self.services.get(&service.name);
        if let Some(known) = known {
            if self.admission.is_as_given(known, &service) {
                return;
            }
            let given = self.admission.as_given(known).clone();
            self.admission.leave(&given);
            self.changes.note_service(known);
        }
        let had = known.map(|known| &known.options);
        if had.map_or(service.options.is_some(), |had| *had != service.options) {
            self.note_options(&service.name, service.options.is_some());
        }
        service.name = self.shared_name(service.name);
        self.admission.enter(&service);
        let slices = slices_of(&self.slices, &service.name);
        self.admission.admit(&mut service, slices);
        self.changes.service_changes += 1;
        for port in &mut service.ports {
            port.name = self.port_names.one(&port.name);
        }
        self.changes.note_service(&service);
        if let Some(known) = self.services.get(&service.name) {
            self.changes.note_left(known, Some(&service));
        }
        let before = self
            .services
            .insert(service.name.clone(), Box::new(service));
        self.names_version += u64::from(before.is_none());
        self.judge_again();
    }

    /// Records that the options of a Service have changed. `has_options` is true if the Service now
    /// has options.
    fn note_options(&mut self, name: &NamespacedName, has_options: bool) {
        let had_options = if has_options {
            !self.with_options.insert(name.clone())
        } else {
            self.with_options.remove(name)
        };
        self.options_version += u64::from(had_options || has_options);
    }

    /// Rechecks Services whose addresses may now be allowed or rejected. Does nothing while a list
    /// arrives.
    fn judge_again(&mut self) {
        if !self.is_listing_services {
            self.judge_doubted();
        }
    }

    /// Rechecks Services whose addresses may now be allowed or rejected, even while a list arrives.
    /// The check cannot wait for the end of the list: a Service at the API server's address may
    /// prevent the list from ending.
    fn judge_doubted(&mut self) {
        // Repeats the check, because a Service that loses an address may free it for another
        // Service.
        loop {
            let doubted = self.admission.take_doubted();
            if doubted.is_empty() {
                return;
            }
            for name in doubted {
                self.admit_again(&name);
                if let Some(service) = self.services.get(&name) {
                    self.changes.note_service(service);
                }
            }
        }
    }

    fn admit_again(&mut self, name: &NamespacedName) {
        if let Some(service) = self.services.get_mut(name) {
            let mut given = self.admission.as_given(service).clone();
            self.admission
                .admit(&mut given, slices_of(&self.slices, name));
            self.changes.note_left(service, Some(&given));
            **service = given;
        }
    }

    /// Applies the limits to a Service again, after its EndpointSlices have changed.
    fn weigh_again(&mut self, name: &NamespacedName) {
        let slices = slices_of(&self.slices, name);
        let is_within = |service: &Service| limits::is_within(service, slices);
        let has_excess = self.admission.has_excess(name);
        if has_excess || !self.services.get(name).is_none_or(|of| is_within(of)) {
            self.admit_again(name);
            self.judge_again();
        }
    }

    fn delete_service(&mut self, name: &NamespacedName) {
        self.service_list.confirm(name);
        if let Some(service) = self.services.remove(name) {
            let given = self.admission.as_given(&service).clone();
            self.admission.leave(&given);
            self.note_options(name, false);
            self.names_version += 1;
            self.changes.service_changes += 1;
            self.changes.note_service(&service);
            self.changes.note_left(&service, None);
            self.judge_again();
        }
    }

    /// Updates the API server's addresses if the changed Service is `default/kubernetes`.
    fn follow_api_servers(&mut self, service: &NamespacedName) {
        if Rank::of(service) == Rank::ApiServer {
            let slices = slices_of(&self.slices, service);
            self.admission.learn_api_servers(slices);
            self.judge_doubted();
        }
    }

    fn apply_slice(&mut self, mut slice: EndpointSlice) {
        self.slice_list.confirm(&slice.name);
        let own_node = self.own_node.as_deref();
        let node_names = &mut self.node_names;
        // Collects the zones of the endpoints' nodes. The endpoints of an EndpointSlice may be on
        // many nodes, but these nodes are in few zones.
        let mut zones = SmallVec::<[Arc<Placement>; 8]>::new();
        slice.endpoints = slice.endpoints.with_placements(|placement| {
            let is_just_elsewhere = is_just_elsewhere(placement, own_node);
            node_names.note(placement, own_node);
            let mut known = zones.iter().filter(|_| is_just_elsewhere);
            if let Some(known) = known.find(|known: &&Arc<Placement>| known.zone == placement.zone)
            {
                return Arc::clone(known);
            }
            let kept = self.placements.one(&seen(placement, own_node));
            if is_just_elsewhere && zones.len() < zones.inline_size() {
                zones.push(Arc::clone(&kept));
            }
            kept
        });
        let known = self.service_of.get(&slice.name).and_then(|service| {
            let slices = self.slices.get(service)?;
            slices.get(position(slices, &slice.name).ok()?)
        });
        if known == Some(&slice) {
            return;
        }
        if self
            .service_of
            .get(&slice.name)
            .is_some_and(|service| *service != slice.service)
        {
            self.delete_slice(&slice.name.clone());
        }
        slice.service = self.shared_name(slice.service);
        for port in &mut slice.ports {
            port.name = self.port_names.one(&port.name);
        }
        self.service_of
            .insert(slice.name.clone(), slice.service.clone());
        self.changes.slice_changes += 1;
        let trigger = slice.change_trigger.map(|at| Trigger {
            service: slice.service.clone(),
            family: slice.family,
            at,
        });
        self.changes.triggers.extend(trigger);
        let service = slice.service.clone();
        self.changes.services.insert(service.clone());
        self.changes.families.extend([slice.family]);
        let slices = self.slices.entry(service.clone()).or_default();
        match position(slices, &slice.name) {
            Ok(at) => {
                if let Some(known) = slices.get_mut(at) {
                    *known = slice;
                }
            }
            Err(at) => {
                if slices.is_empty() {
                    slices.reserve_exact(1);
                }
                slices.insert(at, slice);
            }
        }
        self.weigh_again(&service);
        self.follow_api_servers(&service);
    }

    fn delete_slice(&mut self, name: &NamespacedName) {
        self.slice_list.confirm(name);
        let Some(service) = self.service_of.remove(name) else {
            return;
        };
        if let Some(slices) = self.slices.get_mut(&service) {
            if let Ok(at) = position(slices, name) {
                let gone = slices.remove(at);
                self.changes.families.extend([gone.family]);
            }
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.changes.slice_changes += 1;
        self.weigh_again(&service);
        self.follow_api_servers(&service);
        self.changes.services.insert(service);
    }

    /// Returns `name`, with the memory of an equal name if the model already stores one.
    fn shared_name(&self, name: NamespacedName) -> NamespacedName {
        let service = self.services.get_key_value(&name).map(|(known, _)| known);
        let known = service.or_else(|| Some(self.slices.get_key_value(&name)?.0));
        known.cloned().unwrap_or(name)
    }
}

fn slices_of<'a>(
    slices: &'a HashMap<NamespacedName, Vec<EndpointSlice>>,
    service: &NamespacedName,
) -> &'a [EndpointSlice] {
    slices.get(service).map_or(&[], Vec::as_slice)
}

/// Returns the index of an EndpointSlice among the EndpointSlices of its Service, or the index at
/// which to insert it.
fn position(slices: &[EndpointSlice], name: &NamespacedName) -> Result<usize, usize> {
    slices.binary_search_by(|slice| slice.name.cmp(name))
}

#[cfg(test)]
mod tests;
