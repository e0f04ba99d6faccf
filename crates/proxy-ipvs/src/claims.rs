//! The kernel entries that Services claim, disputes between Services, and leftover destinations.
//!
//! A leftover destination exists in the kernel, but is no endpoint of the Service any more. It
//! stays until the proxy may delete entries. From then on, it drains if it is a TCP destination.
//!
//! ```text
//!   compile ──Fragment──▶ Claims ──▶ Tables: wanted
//!                           ▲           │
//!                           └─leftovers─┘  destinations that only the kernel has
//! ```
//!
//! If several Services claim a virtual server, one claim wins. Only the winning claim includes the
//! leftover destinations, which [`Drains`] lists. Losing claims stay as compiled.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use proxy::{IpFamily, NamespacedName, Owner, Protocol, ServiceAddress, Target, released};
use reconcile::Table;
use smallvec::SmallVec;

use crate::compile::{Fragment, OutsideServer};
use crate::drain::Drains;
use crate::marks::{FormerMarks, Marks};
use crate::server::{Destinations, VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};
use crate::slow_start::{Growths, Place};
use crate::tables::Tables;

/// Kernel entries of one IP family that Services claim.
pub(crate) struct Claims {
    /// Service ports that have claims, by Service. Removing a Service port releases its claims.
    owners: HashMap<NamespacedName, SmallVec<[Arc<Owner>; 1]>>,
    /// Services to recompile, because they lost an address and port to another Service, or won them
    /// back. Their set members change.
    disputed: BTreeSet<NamespacedName>,
    /// Load-balancer addresses to which the shim's rules reject this node's own connections. See
    /// [`Fragment::forbidden_to_node`].
    forbidden_to_node: Table<ServiceAddress, (), Arc<Owner>>,
    /// Version of [`Self::forbidden_to_node`], which increases with each change of the list.
    forbidden_version: u64,
    /// Prefix lengths that occur in the Services' `loadBalancerSourceRanges`.
    prefixes: Table<u8, (), Arc<Owner>>,
    pub(crate) drains: Drains,
    /// Destinations in slow start, whose weights still grow.
    pub(crate) growths: Growths,
    /// Firewall marks of the virtual servers for clients outside the cluster.
    pub(crate) marks: Marks,
    pub(crate) former_marks: FormerMarks,
    /// True once the proxy may delete kernel entries: it knows all Kubernetes objects, and which
    /// entries are its own.
    pub(crate) may_delete: bool,
}

impl Claims {
    /// Creates the state before any Service claims an entry.
    pub(crate) fn new(drains: Drains, marks: Marks, now: Instant) -> Self {
        Self {
            owners: HashMap::new(),
            disputed: BTreeSet::new(),
            forbidden_to_node: Table::new(),
            forbidden_version: 0,
            prefixes: Table::new(),
            drains,
            growths: Growths::new(now),
            marks,
            former_marks: FormerMarks::new(),
            may_delete: false,
        }
    }

    /// Reserves memory for the claims of `services` new Services.
    pub(crate) fn reserve(&mut self, services: usize) {
        self.owners.reserve(services);
    }

    /// Returns true if this Service claims at least one entry.
    pub(crate) fn knows(&self, service: &NamespacedName) -> bool {
        self.owners.contains_key(service)
    }

    /// Returns all Services that claim entries.
    pub(crate) fn services(&self) -> impl Iterator<Item = &NamespacedName> {
        self.owners.keys()
    }

    /// Returns the virtual servers that these Services claim.
    pub(crate) fn servers_of(
        &self,
        services: &[NamespacedName],
        tables: &Tables,
    ) -> Vec<VirtualServerKey> {
        let owners = services.iter().filter_map(|name| self.owners.get(name));
        let keys = owners
            .flatten()
            .flat_map(|owner| tables.servers.keys_of(owner));
        keys.copied().collect()
    }

    /// Returns true if the kernel has every entry that a Service claims.
    pub(crate) fn is_settled(&self, service: &NamespacedName, tables: &Tables) -> bool {
        let mut owners = self.owners.get(service).into_iter().flatten();
        owners.all(|owner| tables.is_settled_for(owner))
    }

    /// Returns the load-balancer addresses to which this node must not open connections, with the
    /// version of this list.
    pub(crate) fn forbidden_to_node(&self) -> (BTreeSet<ServiceAddress>, u64) {
        let all = self.forbidden_to_node.iter_wanted().map(|(at, ())| *at);
        (all.collect(), self.forbidden_version)
    }

    pub(crate) fn forbidden_version(&self) -> u64 {
        self.forbidden_version
    }

    /// Returns the prefix lengths that occur in any Service's source ranges.
    pub(crate) fn prefixes(&self) -> BTreeSet<u8> {
        self.prefixes
            .iter_wanted()
            .map(|(prefix, ())| *prefix)
            .collect()
    }

    pub(crate) fn is_forbidden_to_node(&self, at: &ServiceAddress) -> bool {
        self.forbidden_to_node.wanted(at).is_some()
    }

    /// Replaces all claims of a Service by the entries in `fragments`.
    pub(crate) fn put(
        &mut self,
        service: &NamespacedName,
        fragments: Vec<Fragment>,
        tables: &mut Tables,
    ) {
        let owners: SmallVec<[Arc<Owner>; 1]> = fragments
            .iter()
            .map(|fragment| fragment.owner.clone())
            .collect();
        let before = if owners.is_empty() {
            self.owners.remove(service)
        } else {
            self.owners.insert(service.clone(), owners.clone())
        };
        let before = before.map_or_else(Vec::new, SmallVec::into_vec);
        for gone in released(before, &owners, |owner| owner) {
            self.marks.release(&gone, tables);
            self.claim(Fragment::of_nothing(gone), tables);
        }
        for fragment in fragments {
            self.claim(fragment, tables);
        }
    }

    /// Takes the next Service to recompile from the queue: it lost an address and port to another
    /// Service, or won them back.
    pub(crate) fn next_disputed(&mut self) -> Option<NamespacedName> {
        self.disputed.pop_first()
    }

    fn claim(&mut self, mut fragment: Fragment, tables: &mut Tables) {
        let outside = self.mark(&mut fragment, tables);
        let Fragment {
            owner,
            servers,
            members,
            addresses,
            forbidden_to_node,
            outside: _,
            ramp,
        } = fragment;
        let has_new_ramp = self.growths.set_ramp(&owner, ramp);
        // Keeps only the first virtual server with each key.
        let mut keys = HashSet::new();
        let mut merge = None;
        let servers: Vec<_> = servers
            .into_iter()
            .map(|(at, server)| (VirtualServerKey::from(at), server))
            .chain(outside)
            .filter(|(key, _)| keys.insert(*key))
            .map(|(key, server)| {
                let server = self.claim_of(&owner, key, server, tables, &mut merge, has_new_ramp);
                (key, server)
            })
            .collect();
        let refused = Exclusions::of(&keys, servers.iter(), tables);
        let servers: Vec<_> = servers
            .into_iter()
            .filter(|(key, _)| !refused.is_dropped(key))
            .collect();
        let keys: HashSet<_> = servers.iter().map(|(key, _)| *key).collect();
        let released: Vec<_> = tables
            .servers
            .keys_of(&owner)
            .iter()
            .filter(|key| !keys.contains(*key) && tables.servers.owner(key) == Some(&owner))
            .copied()
            .collect();
        tables.servers.claim(&owner, servers);
        for key in released {
            self.take_over(key, tables);
        }
        // Only the Service that wins an address and port gets set members for them. A losing
        // Service's members, such as source ranges, would change which clients may connect.
        let mut lost: HashSet<VirtualServerKey> = keys
            .into_iter()
            .filter(|key| tables.servers.owner(key) != Some(&owner))
            .collect();
        lost.extend(refused.keys.iter().copied());
        let prefixes: BTreeSet<u8> = members
            .iter()
            .filter_map(|(_, member)| member.prefix_len())
            .collect();
        if !prefixes.is_empty() || !self.prefixes.keys_of(&owner).is_empty() {
            let prefixes = prefixes.into_iter().map(|prefix| (prefix, ()));
            self.prefixes.claim(&owner, prefixes);
        }
        for set in Set::every() {
            let own = members
                .iter()
                .filter(|(of, member)| {
                    let about = set.service_address(member);
                    *of == set
                        && about.is_none_or(|at| !lost.contains(&VirtualServerKey::from(at)))
                        && !refused.has_member(set, member)
                })
                .map(|(_, member)| *member);
            claim_keys(tables.members_mut(set), &owner, own.collect());
        }
        let addresses = addresses.into_iter();
        let addresses = addresses.filter(|address| !refused.addresses.contains(address));
        claim_keys(&mut tables.addresses, &owner, addresses.collect());
        let mut forbidden: Vec<_> = forbidden_to_node
            .into_iter()
            .filter(|at| !lost.contains(&VirtualServerKey::from(*at)))
            .collect();
        forbidden.sort_unstable();
        forbidden.dedup();
        let mut before = self.forbidden_to_node.keys_of(&owner).to_vec();
        before.sort_unstable();
        // The rules contain every address that this node must not connect to, so a change needs new
        // rules.
        if forbidden != before {
            self.forbidden_version += 1;
            let forbidden = forbidden.into_iter().map(|at| (at, ()));
            self.forbidden_to_node.claim(&owner, forbidden);
        }
    }

    /// Assigns a firewall mark to the virtual server for clients outside the cluster. If no mark is
    /// free, all clients of an address get the same endpoints, as in upstream.
    fn mark(
        &mut self,
        fragment: &mut Fragment,
        tables: &Tables,
    ) -> Option<(VirtualServerKey, VirtualServer)> {
        let Some(OutsideServer { server, at, .. }) = fragment.outside.take() else {
            self.marks.release(&fragment.owner, tables);
            return None;
        };
        let family = IpFamily::of(at.first()?.address);
        if let Some(mark) = self.marks.of(&fragment.owner, &at, tables) {
            let member = |at: &ServiceAddress| {
                Member::AddressPortMark(at.address, at.protocol, at.port, mark)
            };
            let members = at.iter().map(|at| (Set::LocalMark, member(at)));
            fragment.members.extend(members);
            return Some((VirtualServerKey::Mark { family, mark }, server));
        }
        if self.marks.is_open() {
            fragment
                .members
                .retain(|(set, _)| *set != Set::UnservedOutside);
            if !server.destinations.is_empty() {
                let at: HashSet<ServiceAddress> = at.into_iter().collect();
                for (of, shared) in &mut fragment.servers {
                    if at.contains(of) {
                        shared.destinations = server.destinations.clone();
                    }
                }
            }
        }
        None
    }

    // ---- leftovers ----

    /// Returns the virtual server that a Service port claims. If the Service port wins the key, the
    /// claim includes the leftover destinations.
    fn claim_of(
        &mut self,
        owner: &Arc<Owner>,
        key: VirtualServerKey,
        compiled: VirtualServer,
        tables: &mut Tables,
        last: &mut Option<Merge>,
        has_new_ramp: bool,
    ) -> VirtualServer {
        match tables.servers.owner(&key) {
            Some(first) if first < owner => return compiled,
            Some(first) if first > owner => {
                self.disputed.insert(first.name.service.clone());
                if let Some((second, its)) = self.compiled(&key, tables) {
                    tables.servers.amend(&second, &key, its);
                }
            }
            _ => {}
        }
        let place = Place {
            key,
            owner,
            before: tables.servers.wanted(&key).filter(|_| !has_new_ramp),
        };
        self.with_leftovers(&place, compiled, tables, last)
    }

    /// Adds the leftover destinations of a released virtual server to the next owner's claim.
    fn take_over(&mut self, key: VirtualServerKey, tables: &mut Tables) {
        let owner = tables.servers.owner(&key).cloned();
        if let (Some(owner), Some(compiled)) = (owner, tables.servers.wanted(&key).cloned()) {
            self.disputed.insert(owner.name.service.clone());
            let place = Place {
                key,
                owner: &owner,
                before: None,
            };
            let claim = self.with_leftovers(&place, compiled, tables, &mut None);
            tables.servers.amend(&owner, &key, claim);
        }
    }

    /// Returns the winning claim with full weights and without leftover destinations, and its
    /// owner.
    fn compiled(
        &self,
        key: &VirtualServerKey,
        tables: &Tables,
    ) -> Option<(Arc<Owner>, VirtualServer)> {
        let wanted = tables.servers.wanted(key)?;
        let endpoints = wanted
            .destinations
            .iter()
            .filter(|real| !self.drains.contains(key, real.target))
            .map(|real| self.growths.full(key, real));
        let compiled = VirtualServer {
            destinations: endpoints.collect(),
            properties: wanted.properties.clone(),
        };
        Some((tables.servers.owner(key)?.clone(), compiled))
    }

    /// Adds leftover destinations to the compiled destinations, and lowers the weights of
    /// destinations that are in slow start.
    ///
    /// `last` caches the previous result, because most virtual servers of a Service port have equal
    /// destinations.
    fn with_leftovers(
        &mut self,
        place: &Place<'_>,
        compiled: VirtualServer,
        tables: &Tables,
        last: &mut Option<Merge>,
    ) -> VirtualServer {
        let key = place.key;
        let Some(actual) = tables.servers.actual(&key) else {
            self.drains.forget(&key);
            self.growths.forget(&key);
            return compiled;
        };
        let merge = match last.take() {
            Some(merge) if merge.is_of(actual, &compiled) => last.insert(merge),
            _ => last.insert(self.merge(&key, actual, &compiled)),
        };
        self.drains.set(key, &merge.leftovers);
        let destinations = merge.merged.clone();
        let merged = VirtualServer {
            destinations,
            ..compiled
        };
        self.growths.apply(place, actual, merged)
    }

    /// Merges the compiled destinations with those in the kernel. Leftover TCP destinations drain
    /// at weight 0. Until the proxy may delete entries, all leftovers keep their weights.
    fn merge(
        &self,
        key: &VirtualServerKey,
        actual: &VirtualServer,
        compiled: &VirtualServer,
    ) -> Merge {
        let (actual, compiled) = (&actual.destinations, &compiled.destinations);
        let protocol = match key {
            VirtualServerKey::Address(at) => Some(at.protocol),
            VirtualServerKey::Mark { mark, .. } => {
                let of_service = self.marks.protocol(*mark);
                of_service.or_else(|| Some(self.former_marks.protocol(key)))
            }
        };
        let is_drained = protocol == Some(Protocol::Tcp);
        let keeps = is_drained || !self.may_delete;
        let mut leftovers = Vec::new();
        let mut merged = Vec::new();
        for (there, wanted) in actual.beside(compiled) {
            match (there, wanted) {
                (_, Some(wanted)) => merged.push(wanted),
                (Some(there), None) if keeps => {
                    leftovers.push(there.target);
                    merged.push(if self.may_delete {
                        there.with_weight(0)
                    } else {
                        there
                    });
                }
                _ => {}
            }
        }
        Merge {
            actual: actual.clone(),
            compiled: compiled.clone(),
            merged: if leftovers.is_empty() {
                compiled.clone()
            } else {
                merged.into()
            },
            leftovers,
        }
    }

    /// Updates a virtual server's wanted destinations from the compiled destinations and those in
    /// the kernel.
    pub(crate) fn settle_leftovers(&mut self, key: VirtualServerKey, tables: &mut Tables) {
        self.merge_again(key, |tables| tables.servers.wanted(&key), tables);
    }

    /// Updates the wanted destinations of a virtual server that the proxy has just found in the
    /// kernel. Its destinations in slow start keep their progress.
    pub(crate) fn adopt_leftovers(&mut self, key: VirtualServerKey, tables: &mut Tables) {
        self.merge_again(key, |_| None, tables);
    }

    fn merge_again(
        &mut self,
        key: VirtualServerKey,
        before: impl Fn(&Tables) -> Option<&VirtualServer>,
        tables: &mut Tables,
    ) {
        if let Some((owner, compiled)) = self.compiled(&key, tables) {
            let place = Place {
                key,
                owner: &owner,
                before: before(tables),
            };
            let claim = self.with_leftovers(&place, compiled, tables, &mut None);
            tables.servers.adjust(&owner, &key, claim);
        } else if tables.servers.wanted(&key).is_none() {
            self.drains.forget(&key);
            self.growths.forget(&key);
        }
    }

    /// Raises the weights of destinations in slow start that have reached their next step.
    pub(crate) fn grow(&mut self, tables: &mut Tables) {
        for key in self.growths.take_due() {
            self.settle_leftovers(key, tables);
        }
    }

    /// Ends the drains of the targets for which `is_over` returns true: these destinations are no
    /// longer wanted.
    pub(crate) fn end_drains(
        &mut self,
        key: &VirtualServerKey,
        is_over: impl Fn(Target) -> bool,
        tables: &mut Tables,
    ) {
        let (Some(wanted), Some(owner)) = (
            tables.servers.wanted(key).cloned(),
            tables.servers.owner(key).cloned(),
        ) else {
            self.drains.forget(key);
            return;
        };
        let (over, left): (Vec<_>, Vec<_>) = self
            .drains
            .targets(key)
            .partition(|target| is_over(*target));
        if over.is_empty() {
            return;
        }
        self.drains.set(*key, &left);
        let destinations = wanted
            .destinations
            .iter()
            .filter(|real| over.binary_search(&real.target).is_err())
            .collect();
        let claim = VirtualServer {
            destinations,
            ..wanted
        };
        tables.servers.adjust(&owner, key, claim);
    }
}

/// Replaces the keys that an owner claims in a table without values. Usually the keys are
/// unchanged, and this function does nothing.
fn claim_keys<K: Clone + Eq + Hash>(
    table: &mut Table<K, (), Arc<Owner>>,
    owner: &Arc<Owner>,
    keys: Vec<K>,
) {
    if table.keys_of(owner) != keys {
        table.claim(owner, keys.into_iter().map(|key| (key, ())));
    }
}

/// Destinations of one virtual server: those in the kernel, merged with the compiled ones.
struct Merge {
    actual: Destinations,
    compiled: Destinations,
    merged: Destinations,
    /// Targets of leftover destinations, sorted.
    leftovers: Vec<Target>,
}

impl Merge {
    /// Returns true if this merge has these inputs, so that the caller can reuse its result.
    fn is_of(&self, actual: &VirtualServer, compiled: &VirtualServer) -> bool {
        self.actual == actual.destinations && self.compiled == compiled.destinations
    }
}

/// Entries that a Service port must do without, because another program has a virtual server with
/// one of the port's keys.
#[derive(Default)]
struct Exclusions {
    /// Keys of the Service port at which another program has a virtual server. If one of them is at
    /// the NodePort, all keys of the NodePort are included.
    keys: HashSet<VirtualServerKey>,
    /// Keys of the NodePort at which the proxy creates no virtual server, because another program
    /// has one at another address of the NodePort.
    dropped: HashSet<VirtualServerKey>,
    /// Addresses of the virtual servers in `keys`.
    addresses: HashSet<IpAddr>,
    /// True if another program has a virtual server at the NodePort. If a set contained this
    /// NodePort, the proxy would take that virtual server for its own.
    has_node_port: bool,
}

impl Exclusions {
    fn of<'a>(
        keys: &HashSet<VirtualServerKey>,
        servers: impl Iterator<Item = &'a (VirtualServerKey, VirtualServer)> + Clone,
        tables: &Tables,
    ) -> Self {
        if tables.foreign.is_empty() {
            return Self::default();
        }
        let is_foreign =
            |key: &&VirtualServerKey| tables.foreign.is_known_at(key) && !tables.is_ours(key);
        let mut refused = Self {
            keys: keys.iter().filter(is_foreign).copied().collect(),
            ..Self::default()
        };
        // Excludes fwmark virtual servers, which have the ownership flag too, but also serve
        // load-balancer addresses.
        let is_of_node_port = |(key, server): &&(VirtualServerKey, VirtualServer)| {
            key.address().is_some() && server.properties.is_owned()
        };
        let of_node_port = servers.filter(is_of_node_port);
        let of_node_port: Vec<_> = of_node_port.map(|(key, _)| *key).collect();
        if of_node_port.iter().any(|key| refused.keys.contains(key)) {
            refused.has_node_port = true;
            for key in of_node_port {
                if refused.keys.insert(key) {
                    refused.dropped.insert(key);
                }
            }
        }
        let at = refused.keys.iter().filter_map(VirtualServerKey::address);
        refused.addresses = at.map(|at| at.address).collect();
        refused
    }

    fn is_dropped(&self, key: &VirtualServerKey) -> bool {
        self.dropped.contains(key)
    }

    /// Returns true if this set member would make another program's virtual server look like ours.
    fn has_member(&self, set: Set, member: &Member) -> bool {
        match member {
            Member::Port(_) => self.has_node_port,
            Member::Address(address) => set == Set::IpvsIps && self.addresses.contains(address),
            _ => false,
        }
    }
}
