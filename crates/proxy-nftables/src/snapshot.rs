//! Builds a snapshot of the nftables table, object by object. It recognizes this mode's objects by
//! their names, and ignores all other objects.
//!
//! The snapshot has chains as digests of their rules, and elements as verdicts by address and port.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use nftables_netlink::{Element, ElementData, Name, Rule, Set, SetKind, Timeout, Verdict};
use proxy::{IpFamily, Protocol};

use crate::base::{BaseKey, BaseValue, Definition, find_chain, find_set, is_unallocated};
use crate::choice::{EndpointIndex, Map};
use crate::clients::{Clients, OTHER_KIND, SetMemory};
use crate::content::Content;
use crate::kernel::Object;
use crate::name::{
    CLUSTER_IPS, FIREWALL_IPS, HAIRPIN, LOCALHOST_NODE_PORTS, NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINT_SERVICES, NODE_PORT_IPS, REJECT, SERVICE_IPS, SERVICE_NODE_PORTS,
    affinity_of_chain, find_counter, is_affinity, is_of_service,
};
use crate::port::{EmptyPortPolicy, Member, Route, Slot};
use crate::unknown_objects::UnknownObjects;
use kube_rules::nft::address_type;

/// Objects of this mode that the kernel has, for one IP family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Objects that do not depend on Services.
    pub(crate) base: HashMap<BaseKey, BaseValue>,
    /// Rule that drops packets to unallocated ClusterIPs, if any.
    pub(crate) unallocated: Option<Rule>,
    /// Addresses of the node that serve NodePorts.
    pub(crate) node_ports: HashSet<IpAddr>,
    pub(crate) slots: HashMap<Slot, Route>,
    pub(crate) members: HashSet<Member>,
    /// Chains of Service ports, with the digests of their rules.
    pub(crate) chains: HashMap<Name, Content>,
    /// State of each set of session affinity clients, by the set's name.
    pub(crate) affinity: HashMap<Name, Clients>,
}

/// Content of one part of the kernel's state.
pub enum PartContent {
    /// The nftables table, and the time that its read took.
    Table(Box<Snapshot>, Duration),
    /// Addresses of this node's interfaces.
    Addresses(BTreeSet<IpAddr>),
}

/// Builder that collects the table's objects into a snapshot.
#[derive(Debug)]
pub(crate) struct SnapshotBuilder {
    family: IpFamily,
    snapshot: Snapshot,
    /// Handles of the sets of session affinity clients, and handles of the chains that add clients
    /// to these sets. Both maps have the name of the set as their key.
    handles: [HashMap<Name, u64>; 2],
    unknown: UnknownObjects,
}

impl SnapshotBuilder {
    /// Creates a builder to which no object has been added.
    pub(crate) fn new(family: IpFamily) -> Self {
        Self {
            family,
            snapshot: Snapshot::default(),
            handles: <_>::default(),
            unknown: UnknownObjects::default(),
        }
    }

    /// Returns the snapshot of all added objects.
    pub(crate) fn finish(mut self) -> Snapshot {
        let [sets, chains] = &self.handles;
        for (name, clients) in &mut self.snapshot.affinity {
            if let (Some(set), Some(chain)) = (sets.get(name), chains.get(name)) {
                clients.room = SetMemory::of(*set, *chain);
            }
        }
        // Adds upstream's objects for NodePorts on localhost as chains and sets of Services. No
        // Service wants them, so the mode deletes them.
        let (chains, sets) = self.unknown.of_localhost();
        let chains = chains.into_iter().map(|chain| (chain, Content::default()));
        self.snapshot.chains.extend(chains);
        let other = Clients::new(OTHER_KIND);
        let sets = sets.into_iter().map(|set| (set, other));
        self.snapshot.affinity.extend(sets);
        self.snapshot
    }

    /// Adds an object that was read from the kernel.
    pub(crate) fn take(&mut self, object: Object) {
        match object {
            Object::Begin => *self = Self::new(self.family),
            Object::Table(table) => {
                let value = BaseValue::Table(table.activity);
                self.snapshot.base.insert(BaseKey::Table, value);
            }
            Object::Set(set, handle) => self.set(&set, handle),
            Object::Chain(chain, handle) => {
                let content = Content::default();
                if let Some(key) = find_chain(&chain.name) {
                    let value = BaseValue::Chain(chain.base, content);
                    self.snapshot.base.insert(key, value);
                } else if is_of_service(&chain.name) && chain.base.is_none() {
                    if let Some(set) = affinity_of_chain(&chain.name) {
                        let [_, chains] = &mut self.handles;
                        chains.insert(set, handle);
                    }
                    self.snapshot.chains.insert(chain.name, content);
                }
            }
            Object::Rule(chain, rule) => self.rule(&chain, rule),
            Object::Counter(name) => {
                if let Some(name) = find_counter(&name) {
                    let key = BaseKey::Counter(name);
                    self.snapshot.base.insert(key, BaseValue::Counter);
                }
            }
            Object::Elements(set, elements) => {
                let Some(set) = find_set(&set) else {
                    self.unknown.elements(&set, &elements);
                    return;
                };
                for element in &elements {
                    // Ignores an element that this mode cannot have written (`None`).
                    let _ = self.element(set, element);
                }
            }
        }
    }

    fn set(&mut self, set: &Set, handle: u64) {
        if let Some(name) = find_set(&set.name) {
            let value = BaseValue::Set(Definition::of(set));
            self.snapshot.base.insert(BaseKey::Set(name), value);
        } else if set.kind == SetKind::Set && is_affinity(&set.name) {
            let name = Arc::clone(&set.name);
            let clients = Clients::new(seconds(self.family, set));
            let [sets, _] = &mut self.handles;
            sets.insert(Arc::clone(&name), handle);
            self.snapshot.affinity.insert(name, clients);
        }
    }

    fn rule(&mut self, chain: &Name, rule: Rule) {
        if let Some(content) = self.snapshot.chains.get_mut(chain) {
            content.add(&rule);
        } else if let Some(key) = find_chain(chain)
            && let Some(BaseValue::Chain(_, content)) = self.snapshot.base.get_mut(&key)
        {
            content.add(&rule);
            if is_unallocated(chain, &rule) {
                self.snapshot.unallocated = Some(rule);
            }
        } else {
            self.unknown.rule(chain, &rule);
        }
    }

    fn element(&mut self, set: &str, element: &Element) -> Option<()> {
        let mut key = Parts(&element.key);
        match set {
            CLUSTER_IPS => {
                let address = key.address(self.family)?;
                self.snapshot.members.insert(Member::ClusterIp(address));
            }
            NODE_PORT_IPS => {
                self.snapshot.node_ports.insert(key.address(self.family)?);
            }
            LOCALHOST_NODE_PORTS => {
                let member = Member::LocalhostNodePort(key.protocol()?, key.port()?);
                self.snapshot.members.insert(member);
            }
            HAIRPIN => {
                let from = key.address(self.family)?;
                let to = key.address(self.family)?;
                let member = Member::Hairpin(from, key.protocol()?, key.port()?);
                if from == to {
                    self.snapshot.members.insert(member);
                }
            }
            SERVICE_IPS | FIREWALL_IPS | NO_ENDPOINT_SERVICES => {
                let address = Some(key.address(self.family)?);
                self.verdict(set, address, key, element)?;
            }
            SERVICE_NODE_PORTS | NO_ENDPOINT_NODE_PORTS => {
                self.verdict(set, None, key, element)?;
            }
            _ => self.endpoint(Map::find(set)?, key, element)?,
        }
        Some(())
    }

    fn endpoint(&mut self, map: Map, mut key: Parts<'_>, element: &Element) -> Option<()> {
        let place = EndpointIndex {
            map: map.count,
            number: u32::from_ne_bytes(key.take(4)?.try_into().ok()?),
        };
        let slot = Slot {
            address: Some(key.address(self.family)?),
            protocol: map.protocol,
            port: key.port()?,
        };
        let Some(ElementData::Value(value)) = &element.data else {
            return None;
        };
        let mut value = Parts(value);
        let endpoint = SocketAddr::new(value.address(self.family)?, value.port()?);
        let route = self.snapshot.slots.entry(slot).or_default();
        route.choices.insert(place, endpoint);
        Some(())
    }

    fn verdict(
        &mut self,
        set: &str,
        address: Option<IpAddr>,
        mut key: Parts<'_>,
        element: &Element,
    ) -> Option<()> {
        let slot = Slot {
            address,
            protocol: key.protocol()?,
            port: key.port()?,
        };
        let Some(ElementData::Verdict(verdict)) = &element.data else {
            return None;
        };
        let route = self.snapshot.slots.entry(slot).or_default();
        // Uses the empty name if the verdict leads to no chain.
        let to = || match verdict {
            Verdict::Goto(chain) => Arc::clone(chain),
            _ => Name::from(""),
        };
        match set {
            SERVICE_IPS | SERVICE_NODE_PORTS => route.to = Some(verdict.clone()),
            FIREWALL_IPS => route.firewall = Some(to()),
            _ => {
                route.unserved = Some(match verdict {
                    Verdict::Drop => EmptyPortPolicy::Drop,
                    Verdict::Goto(chain) if **chain == *REJECT => EmptyPortPolicy::Reject,
                    _ => EmptyPortPolicy::Other,
                });
            }
        }
        Some(())
    }
}

/// Returns the timeout of a set of clients in seconds, or [`OTHER_KIND`] if the set cannot contain
/// clients.
pub(crate) fn seconds(family: IpFamily, set: &Set) -> u32 {
    let is_of_clients = set.key == [address_type(family)]
        && set.kind == SetKind::Set
        && set.dynamic
        && !set.intervals;
    match set.timeout {
        Some(Timeout::Default(time)) if is_of_clients => {
            u32::try_from(time.as_secs()).unwrap_or(OTHER_KIND)
        }
        _ => OTHER_KIND,
    }
}

/// A reader of the concatenated parts of an element's key or value. Each part is padded to a
/// multiple of 4 bytes.
struct Parts<'a>(&'a [u8]);

impl Parts<'_> {
    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let part = self.0.get(..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(part)
    }

    fn address(&mut self, family: IpFamily) -> Option<IpAddr> {
        Some(match family {
            IpFamily::V4 => {
                let bytes: [u8; 4] = self.take(4)?.try_into().ok()?;
                Ipv4Addr::from(bytes).into()
            }
            IpFamily::V6 => {
                let bytes: [u8; 16] = self.take(16)?.try_into().ok()?;
                Ipv6Addr::from(bytes).into()
            }
        })
    }

    fn protocol(&mut self) -> Option<Protocol> {
        Protocol::from_number(*self.take(1)?.first()?)
    }

    fn port(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }
}
