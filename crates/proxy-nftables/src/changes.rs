//! Converts a plan into changes to the nftables table, in an order that the kernel accepts. An
//! object is created before all objects that refer to it, and deleted after them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nftables_netlink::{
    Bytes, Change, Concatenation, Element, Name, Set, SetKind, Timeout, Verdict as To,
};
use proxy::{IpFamily, Owner};

use crate::base::{BaseKey, SERVICES_CHAIN};
use crate::choice::{Choices, EndpointIndex, Map};
use crate::describe::describe;
use crate::edits::Edits;
use crate::name::{
    CLUSTER_IPS, FIREWALL_IPS, HAIRPIN, LOCALHOST_NODE_PORTS, NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINT_SERVICES, NODE_PORT_IPS, REJECT, SERVICE_IPS, SERVICE_NODE_PORTS, is_affinity,
    is_of_service,
};
use crate::plan::{
    BaseChange, ChainState, ExistingObject, Plan, PlanUnit, PortChanges, SlotChange, StaleObject,
};
use crate::port::{EmptyPortPolicy, Member, Route, Slot};
use kube_rules::nft::{address_type, octets};

/// Rule by which added and deleted elements are grouped. Each group becomes one change in the
/// transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// One change contains all elements of a map. The kernel executes one large change faster than
    /// many small changes.
    ByMap,
    /// One change contains the elements that one plan unit has in a map. If the kernel refuses the
    /// change, the unit at fault is known.
    ByUnit,
}

/// Stages in which a transaction makes its changes, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Table,
    FlushChains,
    DeleteReplaced,
    AddChains,
    /// Sets are added after chains, as in upstream. Handles show this order. So a later process can
    /// infer that the sets were created without a size ([`SetMemory`](crate::clients::SetMemory)).
    AddSets,
    AddRules,
    DeleteElements,
    AddElements,
    FlushStale,
    DeleteChains,
    DeleteSets,
}

impl Stage {
    fn of_elements(is_wanted: bool) -> Self {
        if is_wanted {
            Self::AddElements
        } else {
            Self::DeleteElements
        }
    }
}

/// Key of a group of elements, which becomes one change: the stage, the plan unit (if each unit has
/// its own change), and the set.
type Group = (Stage, Option<PlanUnit>, &'static str);

/// Collector of a transaction's changes, which can be added in any order.
struct Changes {
    staged: Vec<(Stage, PlanUnit, Change)>,
    /// Elements to add or delete, by group.
    elements: BTreeMap<Group, (PlanUnit, Vec<Element>)>,
    grouping: Grouping,
}

impl Changes {
    fn push(&mut self, stage: Stage, unit: PlanUnit, change: Change) {
        self.staged.push((stage, unit, change));
    }

    fn element(&mut self, stage: Stage, unit: PlanUnit, set: &'static str, element: Element) {
        let group = (self.grouping == Grouping::ByUnit).then_some(unit);
        let entry = self.elements.entry((stage, group, set));
        let (_, elements) = entry.or_insert_with(|| (unit, Vec::new()));
        elements.push(element);
    }

    fn finish(mut self) -> Vec<(PlanUnit, Change)> {
        for ((stage, _, set), (unit, elements)) in self.elements {
            let set = Name::from(set);
            let change = if stage == Stage::DeleteElements {
                Change::DeleteElements(set, elements)
            } else {
                Change::AddElements(set, elements)
            };
            self.staged.push((stage, unit, change));
        }
        self.staged.sort_by_key(|(stage, ..)| *stage);
        let staged = self.staged.into_iter();
        staged.map(|(_, unit, change)| (unit, change)).collect()
    }
}

impl Plan {
    /// Returns the changes of the plan units in `units`, in an order that the kernel accepts.
    pub(crate) fn changes(
        &self,
        units: impl IntoIterator<Item = PlanUnit>,
        grouping: Grouping,
        edits: &Edits,
    ) -> Vec<(PlanUnit, Change)> {
        let mut changes = Changes {
            staged: Vec::new(),
            elements: BTreeMap::new(),
            grouping,
        };
        for unit in units {
            match unit {
                PlanUnit::Base => self.base_changes(&mut changes),
                PlanUnit::ServicesChain => {
                    if let Some(services_chain) = &self.services_chain {
                        self.base_change(unit, &SERVICES_CHAIN, services_chain, &mut changes);
                    }
                }
                PlanUnit::Part(at) => {
                    if let Some(part) = self.parts.get(at) {
                        self.part_changes(unit, part, edits, &mut changes);
                    }
                }
                PlanUnit::Stale(at) => {
                    if let Some(stale) = self.stale.get(at) {
                        stale_changes(unit, stale, &mut changes);
                    }
                }
            }
        }
        changes.finish()
    }

    fn base_changes(&self, changes: &mut Changes) {
        let unit = PlanUnit::Base;
        for (key, change) in &self.base_changes {
            self.base_change(unit, key, change, changes);
        }
        for (address, is_wanted) in &self.node_ports {
            let stage = Stage::of_elements(*is_wanted);
            let element = Element::of_set(octets(*address));
            changes.element(stage, unit, NODE_PORT_IPS, element);
        }
    }

    fn base_change(
        &self,
        unit: PlanUnit,
        key: &BaseKey,
        change: &BaseChange,
        changes: &mut Changes,
    ) {
        let BaseChange { wanted, there } = change;
        match key {
            BaseKey::Table => {
                let table = self.base.table();
                changes.push(Stage::Table, unit, Change::AddTable(table));
            }
            BaseKey::Set(name) => {
                if let Some(set) = self.base.set(name).filter(|_| wanted.is_some()) {
                    if *there == ExistingObject::Other {
                        let delete = Change::DeleteSet(Arc::clone(&set.name));
                        changes.push(Stage::DeleteReplaced, unit, delete);
                    }
                    let add = Change::AddSet(set.clone());
                    changes.push(Stage::AddSets, unit, add);
                }
            }
            BaseKey::Counter(name) => {
                let add = Change::AddCounter(Name::from(*name));
                changes.push(Stage::AddSets, unit, add);
            }
            BaseKey::Chain(_) | BaseKey::Chooser(_) => {
                let Some((chain, rules)) = self.base.chain(key) else {
                    // The base does not want this chain, but the chain uses a set that this
                    // transaction replaces. So the transaction flushes the chain. A later
                    // transaction deletes it.
                    let name = match key {
                        BaseKey::Chooser(chooser) => chooser.name().into(),
                        BaseKey::Chain(name) | BaseKey::Set(name) | BaseKey::Counter(name) => {
                            Name::from(*name)
                        }
                        BaseKey::Table => return,
                    };
                    changes.push(Stage::FlushChains, unit, Change::FlushChain(name));
                    return;
                };
                let name = &chain.name;
                if *there == ExistingObject::Same {
                    let flush = Change::FlushChain(Arc::clone(name));
                    changes.push(Stage::FlushChains, unit, flush);
                } else {
                    let add = Change::AddChain(chain.clone());
                    changes.push(Stage::AddChains, unit, add);
                }
                if *there == ExistingObject::Other {
                    // Deletes the old chain first, because the kernel cannot change the hook or
                    // priority of an existing chain.
                    let delete = Change::DeleteChain(Arc::clone(name));
                    changes.push(Stage::DeleteReplaced, unit, delete);
                }
                for rule in rules {
                    let add = Change::AddRule(Arc::clone(name), rule.clone());
                    changes.push(Stage::AddRules, unit, add);
                }
            }
        }
    }

    fn part_changes(
        &self,
        unit: PlanUnit,
        part: &PortChanges,
        edits: &Edits,
        changes: &mut Changes,
    ) {
        for (name, clients) in &part.affinity {
            if clients.is_replacement(self.timeouts) {
                let delete = Change::DeleteSet(Arc::clone(name));
                changes.push(Stage::DeleteReplaced, unit, delete);
            }
            let set = self.affinity_set(name, clients.wanted.seconds);
            changes.push(Stage::AddSets, unit, Change::AddSet(set));
            if clients.is_shrunk(self.timeouts) {
                // Adds and deletes one element, because the kernel shrinks a set's hash table only
                // when an element is removed. The element exists only inside the transaction. No
                // packet can match the element, because no client has its address.
                let nobody = Element::of_set(octets(match self.family {
                    IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
                    IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
                }));
                for change in [
                    Change::AddElements(Arc::clone(name), vec![nobody.clone()]),
                    Change::DeleteElements(Arc::clone(name), vec![nobody]),
                ] {
                    changes.push(Stage::AddSets, unit, change);
                }
            }
        }
        for (name, written) in &part.chains {
            if let Some(edits) = edits.get(name) {
                for edit in &edits.changes {
                    let stage = match edit {
                        Change::AddChain(_) => Stage::AddChains,
                        Change::DeleteRule(..) => Stage::FlushChains,
                        _ => Stage::AddRules,
                    };
                    changes.push(stage, unit, edit.clone());
                }
                continue;
            }
            let new = || {
                Change::AddChain(nftables_netlink::Chain {
                    name: Arc::clone(name),
                    base: None,
                    comment: None,
                })
            };
            let flush = || Change::FlushChain(Arc::clone(name));
            match written.there {
                ChainState::Absent => changes.push(Stage::AddChains, unit, new()),
                ChainState::Present => changes.push(Stage::FlushChains, unit, flush()),
                ChainState::Unknown => {
                    changes.push(Stage::FlushChains, unit, new());
                    changes.push(Stage::FlushChains, unit, flush());
                }
            }
        }
        for name in &part.emptied {
            let flush = Change::FlushChain(Arc::clone(name));
            changes.push(Stage::FlushChains, unit, flush);
        }
        if !part.chains.is_empty()
            && let Some(port) = &part.port
        {
            let is_wanted =
                |name: &Name| part.chains.contains_key(name) && !edits.contains_key(name);
            port.write(&self.config, &is_wanted, &mut |chain, rules| {
                for rule in rules {
                    let add = Change::AddRule(Arc::clone(&chain), rule);
                    changes.push(Stage::AddRules, unit, add);
                }
            });
        }
        for change in &part.slots {
            slot_changes(unit, part.owner.as_deref(), change, changes);
        }
        for (member, is_wanted) in &part.members {
            let stage = Stage::of_elements(*is_wanted);
            let (set, key) = match *member {
                Member::ClusterIp(address) => (CLUSTER_IPS, octets(address)),
                Member::Hairpin(address, protocol, port) => {
                    let key = Concatenation::new().address(address).address(address);
                    let key = key.protocol(protocol.number()).port(port).into_key();
                    (HAIRPIN, key)
                }
                Member::LocalhostNodePort(protocol, port) => {
                    let key = Concatenation::new().protocol(protocol.number()).port(port);
                    (LOCALHOST_NODE_PORTS, key.into_key())
                }
            };
            changes.element(stage, unit, set, Element::of_set(key));
        }
    }

    fn affinity_set(&self, name: &Name, seconds: u32) -> Set {
        let time = Duration::from_secs(seconds.into());
        Set {
            dynamic: true,
            timeout: Some(Timeout::Default(time)),
            // Creates the set without a size, as upstream does. For a set with a size, the kernel
            // would allocate all memory immediately: 2 MiB for 65,535 elements.
            size: None,
            ..Set::new(
                Arc::clone(name),
                vec![address_type(self.family)],
                SetKind::Set,
            )
        }
    }

    /// Describes the plan's changes for the operator, one line for each change.
    pub fn lines(&self) -> Vec<String> {
        let changes = self.changes(self.units(), Grouping::ByUnit, &Edits::new());
        let changes = changes.iter().map(|(_, change)| describe(change));
        let listeners = self.listeners.iter().map(|port| {
            let at = SocketAddr::new(self.family.localhost(), port.number);
            match &port.serving {
                Some(serving) => {
                    let count = serving.endpoints.len();
                    let name = port.name.as_ref().map(ToString::to_string);
                    let name = name.unwrap_or_default();
                    format!("listen at {at} for {name}: {count} endpoints")
                }
                None => format!("close the listening port {at}"),
            }
        });
        changes.chain(listeners).collect()
    }

    /// Returns the number of changes in the plan. All added elements of one map count as one
    /// change, and so do all deleted elements.
    pub fn len(&self) -> usize {
        self.changes(self.units(), Grouping::ByMap, &Edits::new())
            .len()
    }
}

fn stale_changes(unit: PlanUnit, stale: &StaleObject, changes: &mut Changes) {
    let mut chain = |name: Name| {
        // Flushes all unwanted chains before deleting any of them, because they may refer to each
        // other.
        let flush = Change::FlushChain(Arc::clone(&name));
        changes.push(Stage::FlushStale, unit, flush);
        changes.push(Stage::DeleteChains, unit, Change::DeleteChain(name));
    };
    match stale {
        StaleObject::Chain(name) => chain(Arc::clone(name)),
        StaleObject::Base(BaseKey::Chain(name)) => chain(Name::from(*name)),
        StaleObject::Base(BaseKey::Chooser(chooser)) => chain(chooser.name().into()),
        StaleObject::Set(name) => {
            if !is_affinity(name) {
                // Flushes the set, because its elements may refer to chains that this transaction
                // deletes. Upstream's map for NodePorts on localhost has such elements.
                let flush = Change::FlushSet(Arc::clone(name));
                changes.push(Stage::FlushStale, unit, flush);
            }
            let delete = Change::DeleteSet(Arc::clone(name));
            changes.push(Stage::DeleteSets, unit, delete);
        }
        StaleObject::Base(BaseKey::Set(name)) => {
            let delete = Change::DeleteSet(Name::from(*name));
            changes.push(Stage::DeleteSets, unit, delete);
        }
        StaleObject::Base(BaseKey::Counter(name)) => {
            let delete = Change::DeleteCounter(Name::from(*name));
            changes.push(Stage::DeleteSets, unit, delete);
        }
        // Keeps the table, because other programs may have objects in it.
        StaleObject::Base(BaseKey::Table) => {}
    }
}

/// Adds the changes for one address and port: elements in the three verdict maps, and endpoints in
/// the shared maps.
fn slot_changes(unit: PlanUnit, owner: Option<&Owner>, change: &SlotChange, changes: &mut Changes) {
    let SlotChange {
        slot,
        before,
        after,
    } = change;
    let none = Route::default();
    let before = before.as_ref().unwrap_or(&none);
    let after = after.as_ref().unwrap_or(&none);
    let [served, unserved] = match slot.address {
        Some(_) => [SERVICE_IPS, NO_ENDPOINT_SERVICES],
        None => [SERVICE_NODE_PORTS, NO_ENDPOINT_NODE_PORTS],
    };
    let key: Bytes = {
        let start = Concatenation::new();
        let start = slot.address.map_or(start.clone(), |ip| start.address(ip));
        start
            .protocol(slot.protocol.number())
            .port(slot.port)
            .into_key()
    };
    let mut differ = |set, is_there: bool, is_same: bool, wanted: Option<(To, bool)>| {
        if is_same {
            return;
        }
        if is_there {
            let gone = Element::of_set(key.clone());
            changes.element(Stage::DeleteElements, unit, set, gone);
        }
        if let Some((verdict, is_named)) = wanted {
            let mut element = Element::of_verdicts(key.clone(), verdict);
            if let Some(owner) = owner.filter(|_| is_named) {
                element = element.with_comment(owner.name.to_string());
            }
            changes.element(Stage::AddElements, unit, set, element);
        }
    };
    // An element gets a comment with the name of its Service, unless it leads to a chain whose name
    // contains the Service.
    let is_shared = |to: &To| !matches!(to, To::Goto(chain) if is_of_service(chain));
    let to = after.to.clone();
    differ(
        served,
        before.to.is_some(),
        before.to == after.to,
        to.map(|to| (to.clone(), is_shared(&to))),
    );
    let firewall = after.firewall.clone();
    differ(
        FIREWALL_IPS,
        before.firewall.is_some(),
        before.firewall == after.firewall,
        firewall.map(|chain| (To::Goto(chain), false)),
    );
    let verdict = after.unserved.map(|unserved| match unserved {
        EmptyPortPolicy::Reject => (To::Goto(REJECT.into()), true),
        EmptyPortPolicy::Drop | EmptyPortPolicy::Other => (To::Drop, true),
    });
    differ(
        unserved,
        before.unserved.is_some(),
        before.unserved == after.unserved,
        verdict,
    );
    choice_changes(unit, slot, [&before.choices, &after.choices], changes);
}

/// Adds the changes to the shared maps for endpoints that were added, removed or moved to another
/// position.
fn choice_changes(
    unit: PlanUnit,
    slot: &Slot,
    [before, after]: [&Choices; 2],
    changes: &mut Changes,
) {
    let Some(address) = slot.address else {
        return;
    };
    let in_map = |place: EndpointIndex| {
        let map = Map {
            protocol: slot.protocol,
            count: place.map,
        };
        let key = Concatenation::new().part(&place.number.to_ne_bytes());
        let key = key.address(address).port(slot.port).into_key();
        map.name().map(|name| (name, key))
    };
    for (place, endpoint) in before.iter() {
        if after.at(place) != Some(endpoint)
            && let Some((map, key)) = in_map(place)
        {
            let gone = Element::of_set(key);
            changes.element(Stage::DeleteElements, unit, map, gone);
        }
    }
    for (place, endpoint) in after.iter() {
        if before.at(place) != Some(endpoint)
            && let Some((map, key)) = in_map(place)
        {
            let value = Concatenation::new().address(endpoint.ip());
            let value = value.port(endpoint.port()).into_key();
            let new = Element::of_map(key, value);
            changes.element(Stage::AddElements, unit, map, new);
        }
    }
}
