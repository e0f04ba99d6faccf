//! The model: what the sources have said so far, and which Services changed since it was last asked.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::event::{Event, Kind};
use crate::names::NamespacedName;
use crate::object::{EndpointSlice, Node, Placement, Service};

/// All Services, slices and the own Node. Costs O(event) to keep and O(changed Services) to read.
#[derive(Debug, Default)]
pub struct Model {
    services: HashMap<NamespacedName, Service>,
    /// By Service, then by slice, so that a Service's slices have a fixed order.
    slices: HashMap<NamespacedName, BTreeMap<NamespacedName, EndpointSlice>>,
    /// Which Service a slice was for: a deletion names the slice only, and its label may have changed.
    service_of: HashMap<NamespacedName, NamespacedName>,
    node: Option<Node>,
    service_list: List,
    slice_list: List,
    node_list: List,
    changes: Changes,
    placements: HashSet<Arc<Placement>>,
}

/// Where the list of one kind stands.
#[derive(Debug, Default)]
struct List {
    /// Once true, always true: what a list told stays known while the next one runs.
    has_completed: bool,
    /// Names that a running list has not confirmed yet; gone when it completes.
    unconfirmed: Option<HashSet<NamespacedName>>,
}

impl List {
    fn start<'a>(&mut self, known: impl Iterator<Item = &'a NamespacedName>) {
        self.unconfirmed = Some(known.cloned().collect());
    }

    fn confirm(&mut self, name: &NamespacedName) {
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.remove(name);
        }
    }

    fn complete(&mut self) -> HashSet<NamespacedName> {
        self.has_completed = true;
        self.unconfirmed.take().unwrap_or_default()
    }
}

/// What changed since [`Model::take_changes`] was last called.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services that changed, or whose endpoints did, or that are gone.
    pub services: HashSet<NamespacedName>,
    /// Whether the own Node changed.
    pub node: bool,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.node
    }
}

/// One Service and its slices, to be compiled.
#[derive(Debug, Clone, Copy)]
pub struct ServiceView<'a> {
    /// The Service.
    pub service: &'a Service,
    slices: Option<&'a BTreeMap<NamespacedName, EndpointSlice>>,
}

impl<'a> ServiceView<'a> {
    /// Its slices, of both families, in the order of their names.
    pub fn slices(&self) -> impl Iterator<Item = &'a EndpointSlice> + use<'a> {
        self.slices.into_iter().flat_map(BTreeMap::values)
    }
}

impl Model {
    /// A model that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in one event.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::ListStarted(Kind::Service) => self.service_list.start(self.services.keys()),
            Event::ListStarted(Kind::EndpointSlice) => {
                self.slice_list.start(self.service_of.keys())
            }
            Event::ListStarted(Kind::Node) => self.node_list.start(std::iter::empty()),
            Event::ListComplete(Kind::Service) => {
                for name in self.service_list.complete() {
                    self.delete_service(&name);
                }
            }
            Event::ListComplete(Kind::EndpointSlice) => {
                for name in self.slice_list.complete() {
                    self.delete_slice(&name);
                }
            }
            Event::ListComplete(Kind::Node) => {
                self.node_list.complete();
            }
            Event::ServiceApplied(service) => self.apply_service(service),
            Event::ServiceDeleted(name) => self.delete_service(&name),
            Event::SliceApplied(slice) => self.apply_slice(slice),
            Event::SliceDeleted(name) => self.delete_slice(&name),
            Event::NodeApplied(node) => {
                if self.node.as_ref() != Some(&node) {
                    self.node = Some(node);
                    self.changes.node = true;
                }
            }
            // The Node object may be deleted while the node still serves: what was known of it stays in use.
            Event::NodeDeleted(_) => {}
        }
    }

    /// Whether Services and slices have both been listed once: before that, nothing may be deleted from the kernel, and
    /// nothing is programmed.
    pub fn is_complete(&self) -> bool {
        self.service_list.has_completed && self.slice_list.has_completed
    }

    /// Whether the own Node has been listed once (it need not exist).
    pub fn is_node_listed(&self) -> bool {
        self.node_list.has_completed
    }

    /// What changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        mem::take(&mut self.changes)
    }

    /// Whether [`take_changes`](Self::take_changes) would return something.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// One Service with its slices; `None` if there is no such Service.
    pub fn view(&self, name: &NamespacedName) -> Option<ServiceView<'_>> {
        let service = self.services.get(name)?;
        Some(ServiceView {
            service,
            slices: self.slices.get(name),
        })
    }

    /// The names of all Services, in no order.
    pub fn service_names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.services.keys()
    }

    /// The own Node, if it was ever seen.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    fn apply_service(&mut self, service: Service) {
        self.service_list.confirm(&service.name);
        if self.services.get(&service.name) == Some(&service) {
            return;
        }
        self.changes.services.insert(service.name.clone());
        self.services.insert(service.name.clone(), service);
    }

    fn delete_service(&mut self, name: &NamespacedName) {
        self.service_list.confirm(name);
        if self.services.remove(name).is_some() {
            self.changes.services.insert(name.clone());
        }
    }

    fn apply_slice(&mut self, mut slice: EndpointSlice) {
        self.slice_list.confirm(&slice.name);
        let known = self
            .service_of
            .get(&slice.name)
            .and_then(|service| self.slices.get(service)?.get(&slice.name));
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
        for endpoint in &mut slice.endpoints {
            endpoint.placement = self
                .placements
                .get_or_insert_with(&endpoint.placement, Arc::clone)
                .clone();
        }
        self.service_of
            .insert(slice.name.clone(), slice.service.clone());
        self.changes.services.insert(slice.service.clone());
        self.slices
            .entry(slice.service.clone())
            .or_default()
            .insert(slice.name.clone(), slice);
        self.forget_placements();
    }

    fn delete_slice(&mut self, name: &NamespacedName) {
        self.slice_list.confirm(name);
        let Some(service) = self.service_of.remove(name) else {
            return;
        };
        if let Some(slices) = self.slices.get_mut(&service) {
            slices.remove(name);
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.changes.services.insert(service);
    }

    /// Drops shared placements that no endpoint uses, each time their number has doubled: amortised O(1).
    fn forget_placements(&mut self) {
        if self.placements.len() == self.placements.capacity() {
            self.placements
                .retain(|placement| Arc::strong_count(placement) > 1);
        }
    }
}
