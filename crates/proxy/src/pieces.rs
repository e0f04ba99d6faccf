//! Divides changes to Services into batches (the code calls a batch a piece). The mode computes
//! kernel entries for one batch at a time.
//!
//! A tenant can change very many entries of its namespace at the same time: with Services of the
//! largest size, or with thousands of small Services. Changes in other namespaces then wait for at
//! most one batch:
//!
//! ```text
//!   Changes ─▶ others: the changes within each namespace's share ─▶ Mode::update
//!      │                           ▲ in turns ▼
//!      └─────▶ the rest: one batch, once the previous one is written ─▶ Mode::update
//! ```
//!
//! If an address moves from one Service to another, one batch contains both Services. So the
//! address always has an owner.

use std::collections::BTreeMap;
use std::mem;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use crate::changes::{Changes, ServicePlace, places, work};
use crate::model::Model;
use crate::names::NamespacedName;
use crate::view::ServiceView;

/// Largest estimated work ([`work`]) of one namespace in one batch of changes. The daemon does this
/// work within milliseconds.
const SHARE: usize = 8_192;

/// Longest time for which a large batch of changes waits for the writes of the previous large
/// batch. Some writes may never succeed, because the kernel refuses them or because they wait for
/// other entries.
const PATIENCE: Duration = Duration::from_millis(500);

/// Estimates the work of computing a Service's current entries, in the unit of [`SHARE`].
fn work_now(view: &ServiceView<'_>) -> usize {
    let endpoints = view.slices().map(|slice| slice.endpoints.len());
    work(view.service, endpoints.sum())
}

/// Progress of dividing one IP family's changes into batches.
#[derive(Debug, Default)]
pub struct Pieces {
    /// True if the last batch contained only Services within their namespace's share.
    had_others: bool,
    /// For each namespace above its share, the last Service in the namespace's latest batch. The
    /// namespace's next batch begins after this Service.
    last_of: BTreeMap<String, NamespacedName>,
    /// Namespace that got the last large batch. The next large batch is for the next namespace by
    /// name.
    last: String,
    /// Time at which the last large batch was taken, or `None` before the first one.
    taken: Option<Instant>,
    /// True if the mode has tried all writes of the batches taken so far.
    is_at_rest: bool,
}

impl Pieces {
    /// Records whether the mode has tried all writes of the batches taken so far.
    pub fn note_rest(&mut self, is_at_rest: bool) {
        self.is_at_rest = is_at_rest;
    }

    /// Returns the earliest time at which a namespace above its share gets its next batch.
    pub fn next_due(&self, now: Instant) -> Instant {
        match self.taken {
            Some(taken) if !self.is_at_rest => now.max(taken + PATIENCE),
            _ => now,
        }
    }

    /// Removes the next batch from `waiting` and returns it. Returns `None` if no change may be
    /// taken yet.
    pub fn take(&mut self, waiting: &mut Changes, model: &Model, now: Instant) -> Option<Changes> {
        let Some(above) = above_shares(waiting, model) else {
            *self = Self::default();
            return Some(mem::take(waiting));
        };
        let is_due = self.next_due(now) <= now;
        if !(is_due && self.had_others) {
            let others = others(waiting, model, &above);
            if !others.is_empty() {
                self.had_others = true;
                return Some(take_out(waiting, others));
            }
        }
        if !is_due {
            return None;
        }
        self.had_others = false;
        self.taken = Some(now);
        self.is_at_rest = false;
        let piece = self.piece(waiting, model, &above);
        Some(take_out(waiting, piece))
    }

    /// Chooses Services of the next namespace that is above its share. Adds all Services that
    /// exchange addresses with the chosen Services.
    fn piece(
        &mut self,
        waiting: &Changes,
        model: &Model,
        above: &[(NamespacedName, usize)],
    ) -> HashSet<NamespacedName> {
        let behind = above.partition_point(|(name, _)| name.namespace() <= &*self.last);
        let first = above.get(behind).or(above.first());
        let namespace = first.map_or("", |(name, _)| name.namespace());
        let of = |(name, _): &&(NamespacedName, usize)| name.namespace() == namespace;
        let last = self.last_of.get(namespace);
        let is_behind = |(name, _): &&(NamespacedName, usize)| last.is_none_or(|last| name > last);
        let all = above.iter().filter(of);
        let before = all.clone().filter(|one| !is_behind(one));
        let mut total = 0;
        let mut piece = Vec::new();
        for (name, work) in all.filter(is_behind).chain(before) {
            if total > 0 && total + work > SHARE {
                break;
            }
            total += work;
            piece.push(name.clone());
        }
        if let Some(last) = piece.last() {
            self.last_of.insert(namespace.to_owned(), last.clone());
        }
        namespace.clone_into(&mut self.last);
        with_exchanges(waiting, model, piece)
    }
}

/// Returns the Services above the share of their namespace, sorted by name, each with its work.
/// Within a namespace, the Services with the least work use the share first. Returns `None` if no
/// Service is above a share, or if all Services must be computed.
fn above_shares(waiting: &Changes, model: &Model) -> Option<Vec<(NamespacedName, usize)>> {
    if waiting.node || waiting.service_cidrs {
        return None;
    }
    let work_of = |name: &NamespacedName| {
        let left = waiting.left.get(name).map_or(0, |left| left.work);
        left.max(model.view(name).map_or(0, |view| work_now(&view)))
    };
    let mut all: Vec<(&NamespacedName, usize)> = Vec::with_capacity(waiting.services.len());
    all.extend(waiting.services.iter().map(|name| (name, work_of(name))));
    if all.iter().map(|(_, work)| work).sum::<usize>() <= SHARE {
        return None;
    }
    all.sort_unstable_by_key(|(name, work)| (*work, *name));
    let mut of_namespace: HashMap<&str, usize> = HashMap::new();
    all.retain(|(name, work)| {
        let total = of_namespace.entry(name.namespace()).or_default();
        *total += work;
        *total > SHARE
    });
    all.sort_unstable();
    let all = all.into_iter().map(|(name, work)| (name.clone(), work));
    let all: Vec<_> = all.collect();
    (!all.is_empty()).then_some(all)
}

/// Chooses all Services that are within the share of their namespace. Skips Services that exchange
/// addresses with a Service above its share.
fn others(
    waiting: &Changes,
    model: &Model,
    above: &[(NamespacedName, usize)],
) -> HashSet<NamespacedName> {
    let above = above.iter().map(|(name, _)| name.clone());
    let kept = with_exchanges(waiting, model, above.collect());
    waiting.services.difference(&kept).cloned().collect()
}

/// Returns the Services in `queue`, and all Services that exchange addresses or node ports with
/// them, directly or through other Services. O(addresses of all waiting Services).
fn with_exchanges(
    waiting: &Changes,
    model: &Model,
    mut queue: Vec<NamespacedName>,
) -> HashSet<NamespacedName> {
    let mut services: HashSet<NamespacedName> = queue.iter().cloned().collect();
    if waiting.left.is_empty() {
        return services;
    }
    let places_of = |name: &NamespacedName| {
        let view = model.view(name);
        let has = view.map(|view| places(view.service).collect::<Vec<_>>());
        has.unwrap_or_default()
    };
    let (mut having, mut leaving) = (
        HashMap::<ServicePlace, Vec<_>>::new(),
        HashMap::<ServicePlace, Vec<_>>::new(),
    );
    for (name, left) in &waiting.left {
        for place in &left.places {
            leaving.entry(*place).or_default().push(name);
        }
    }
    for name in &waiting.services {
        for place in places_of(name) {
            if leaving.contains_key(&place) {
                having.entry(place).or_default().push(name);
            }
        }
    }
    while let Some(name) = queue.pop() {
        let left = waiting.left.get(&name).map(|left| &left.places);
        let heirs = left
            .into_iter()
            .flatten()
            .filter_map(|place| having.remove(place));
        let has = places_of(&name);
        let former = has.iter().filter_map(|place| leaving.remove(place));
        let joining = heirs.flatten().chain(former.flatten());
        for other in joining.filter(|other| waiting.services.contains(*other)) {
            if services.insert(other.clone()) {
                queue.push(other.clone());
            }
        }
    }
    services
}

/// Moves the changes of these Services out of `waiting`, together with the changes that belong to
/// no Service.
fn take_out(waiting: &mut Changes, services: HashSet<NamespacedName>) -> Changes {
    waiting.services.retain(|name| !services.contains(name));
    let left = waiting.left.extract_if(|name, _| services.contains(name));
    let left = left.collect();
    let triggers = mem::take(&mut waiting.triggers).into_iter();
    let (triggers, others) = triggers.partition(|trigger| services.contains(&trigger.service));
    waiting.triggers = others;
    Changes {
        services,
        left,
        triggers,
        families: waiting.families,
        vanished: mem::take(&mut waiting.vanished),
        service_changes: mem::take(&mut waiting.service_changes),
        slice_changes: mem::take(&mut waiting.slice_changes),
        ..Changes::default()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::event::Event;
    use crate::names::{IpFamily, Protocol};
    use crate::object::{Endpoint, EndpointPort, EndpointSlice, Placement, Service, ServicePort};

    fn name(text: &str) -> NamespacedName {
        let (namespace, name) = text.split_once('/').unwrap();
        NamespacedName::new(namespace, name)
    }

    /// Returns a cluster IP that is computed from a Service's name.
    fn cluster_ip(of: &str) -> IpAddr {
        let number = |sum: u32, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte));
        IpAddr::from(of.bytes().fold(7, number).to_be_bytes())
    }

    /// Returns the event that adds a Service with this many ports at these external IPs.
    fn service(of: &str, ports: u16, external_ips: &[&str]) -> Event {
        let port = |number: u16| ServicePort {
            name: number.to_string().into(),
            protocol: Protocol::Tcp,
            port: number,
            node_port: None,
        };
        Event::ServiceApplied(Service {
            ports: (1..=ports).map(port).collect(),
            external_ips: external_ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            ..Service::at(name(of), [cluster_ip(of)])
        })
    }

    /// Returns the events that add a Service whose estimated work exceeds a namespace's share.
    fn large(of: &str, external_ips: &[&str]) -> [Event; 2] {
        let port = |number: u16| EndpointPort {
            name: number.to_string().into(),
            protocol: Protocol::Tcp,
            port: 8080,
        };
        let endpoint = |last| Endpoint {
            address: IpAddr::from([10, 1, 0, last]),
            ready: true,
            serving: true,
            terminating: false,
            placement: std::sync::Arc::new(Placement::default()),
        };
        let endpoints: Vec<Endpoint> = (1..20).map(endpoint).collect();
        let slice = EndpointSlice {
            name: name(of),
            service: name(of),
            family: IpFamily::V4,
            ports: (1..=900).map(port).collect(),
            endpoints: endpoints.into(),
            change_trigger: None,
        };
        [service(of, 900, external_ips), Event::SliceApplied(slice)]
    }

    /// A model with its waiting changes, and the division of these changes into batches.
    struct World {
        model: Model,
        waiting: Changes,
        pieces: Pieces,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            Self {
                model: Model::new(),
                waiting: Changes::default(),
                pieces: Pieces::default(),
                now: Instant::now(),
            }
        }

        fn told(&mut self, events: impl IntoIterator<Item = Event>) {
            events.into_iter().for_each(|event| self.model.apply(event));
            self.waiting.extend(self.model.take_changes());
        }

        /// Takes the next batch, and returns the names of its Services in order.
        fn take(&mut self) -> Option<Vec<String>> {
            let piece = self.pieces.take(&mut self.waiting, &self.model, self.now)?;
            let mut names: Vec<_> = piece.services.iter().map(ToString::to_string).collect();
            names.sort();
            Some(names)
        }

        /// Takes the next batch after all earlier batches are written.
        fn take_at_rest(&mut self) -> Vec<String> {
            self.pieces.note_rest(true);
            self.take().unwrap()
        }
    }

    #[test]
    fn few_changes_in_several_namespaces_are_one_batch() {
        let mut world = World::new();
        let all = ["a/1", "a/2", "b/1"];
        world.told(all.map(|of| service(of, 2, &[])));
        assert_eq!(world.take().unwrap(), all);
        assert!(world.waiting.is_empty());
    }

    #[test]
    fn a_change_waits_for_at_most_one_large_service() {
        let mut world = World::new();
        for of in ["a/1", "a/2", "a/3"] {
            world.told(large(of, &[]));
        }
        world.told([service("b/1", 1, &[])]);
        assert_eq!(world.take().unwrap(), ["b/1"]);
        assert_eq!(world.take_at_rest(), ["a/1"]);
        // The mode has not written the first batch yet. A change in another namespace does not wait
        // for this batch.
        world.pieces.note_rest(false);
        world.told([service("b/2", 1, &[])]);
        assert_eq!(world.take().unwrap(), ["b/2"]);
        assert_eq!(world.take(), None);
        assert_eq!(world.pieces.next_due(world.now), world.now + PATIENCE);
        // A stream of small changes does not delay a large Service, even if the small Services
        // precede it by name.
        world.told(large("a/0", &[]));
        world.told([service("b/3", 1, &[])]);
        assert_eq!(world.take().unwrap(), ["b/3"]);
        world.told([service("b/4", 1, &[])]);
        assert_eq!(world.take_at_rest(), ["a/2"]);
        assert_eq!(world.take_at_rest(), ["b/4"]);
        // The next batch begins even if a write never succeeds.
        world.pieces.note_rest(false);
        world.now += PATIENCE;
        assert_eq!(world.take().unwrap(), ["a/3"]);
        assert_eq!(world.take_at_rest(), ["a/0"]);
        assert!(world.waiting.is_empty());
    }

    #[test]
    fn many_services_of_one_namespace_are_split_into_batches() {
        let mut world = World::new();
        let many = (0..10_000).map(|number| service(&format!("a/{number:04}"), 1, &[]));
        world.told(many);
        world.told([service("b/1", 1, &[])]);
        let mut sizes = vec![world.take().unwrap().len()];
        while !world.waiting.is_empty() {
            sizes.push(world.take_at_rest().len());
        }
        assert_eq!(sizes.iter().sum::<usize>(), 10_001);
        // The first batch contains the share of the namespace `a`, and the change in the namespace
        // `b`.
        assert_eq!(sizes[0], SHARE / 2 + 1);
        assert!(sizes.iter().all(|size| *size <= sizes[0]), "{sizes:?}");
    }

    #[test]
    fn namespaces_above_their_share_of_a_batch_take_turns() {
        let mut world = World::new();
        for of in ["a/1", "a/2", "a/3", "c/1", "d/1"] {
            world.told(large(of, &[]));
        }
        // The Service `d/1` exceeds its namespace's share only by its source ranges.
        let ranged = Service {
            ingress_ips: vec![IpAddr::from([203, 0, 113, 1])],
            source_ranges: vec!["10.0.0.0/8".parse().unwrap(); 1_000],
            ..match service("d/1", 90, &[]) {
                Event::ServiceApplied(service) => service,
                other => panic!("{other:?}"),
            }
        };
        world.told([Event::ServiceApplied(ranged)]);
        world.told([Event::SliceDeleted(name("d/1"))]);
        let all: Vec<_> = (0..5).flat_map(|_| world.take_at_rest()).collect();
        assert_eq!(all, ["a/1", "c/1", "d/1", "a/2", "a/3"]);
        assert!(world.waiting.is_empty());
    }

    #[test]
    fn services_that_exchange_an_address_are_in_one_batch() {
        let (one, other) = (&["192.0.2.1"][..], &["192.0.2.2"][..]);
        let mut world = World::new();
        let third = &["192.0.2.3"];
        world.told([service("b/1", 1, one), service("b/2", 1, third)]);
        world.told([service("b/3", 1, &[]), service("b/4", 1, &[])]);
        world.told(large("a/1", other));
        while world.take().is_none() || !world.waiting.is_empty() {
            world.pieces.note_rest(true);
        }
        // Addresses move in a chain: `one` from `b/1` to `a/1`, `other` from `a/1` to `b/2`, and
        // `third` from `b/2` to `b/3`.
        world.told([service("b/1", 1, &[]), service("b/2", 1, other)]);
        world.told(large("a/1", one));
        world.told([service("b/3", 1, third), service("b/4", 2, &[])]);
        assert_eq!(world.take_at_rest(), ["b/4"]);
        assert_eq!(world.take_at_rest(), ["a/1", "b/1", "b/2", "b/3"]);
        // The deletion of a Service frees all its addresses.
        world.told([Event::ServiceDeleted(name("a/1"))]);
        world.told([service("b/1", 1, one)]);
        assert_eq!(world.take_at_rest(), ["a/1", "b/1"]);
        assert!(world.waiting.is_empty());
    }

    #[test]
    fn a_change_to_the_node_object_is_computed_as_one_batch() {
        let mut world = World::new();
        world.told(large("a/1", &[]));
        world.told([service("b/1", 1, &[])]);
        world.waiting.node = true;
        assert_eq!(world.take().unwrap(), ["a/1", "b/1"]);
    }
}
