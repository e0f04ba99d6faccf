//! The kernel as this mode sees it: data in, data out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use proxy::{Protocol, ServiceAddress, Target, Unreadable};

use crate::leftovers::{Leftovers, Place};
use crate::plan::{Outcome, Plan};
use crate::rules::Rules;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};

/// What can be read and written, for one IP family. Two implementations: netlink, and a strict fake
/// that refuses what the kernel refuses. Each of a proxier's lanes has one of its own.
pub trait Kernel: Send + 'static {
    /// What time it is, for what is measured: how long writing takes. A kernel of tests may have a
    /// time of its own.
    fn clock(&self) -> Instant {
        Instant::now()
    }

    /// All virtual servers, each with its destinations.
    ///
    /// # Errors
    ///
    /// It cannot be read: why, and what to do.
    fn read_servers(&mut self) -> Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable>;

    /// Our sets.
    ///
    /// # Errors
    ///
    /// It cannot be read: why, and what to do.
    fn read_sets(&mut self) -> Result<FoundSets, Unreadable>;

    /// The link and its addresses, and those of all other interfaces.
    ///
    /// # Errors
    ///
    /// It cannot be read: why, and what to do.
    fn read_addresses(&mut self) -> Result<FoundAddresses, Unreadable>;

    /// The shim, and what other modes have left. Costs a process if any rule in the kernel has
    /// changed since it was last read; the first time, one for each installed backend of iptables
    /// that holds any.
    ///
    /// # Errors
    ///
    /// It cannot be read: why, and what to do.
    fn read_rules(&mut self) -> Result<FoundRules, Unreadable>;

    /// How many virtual servers there are, where the kernel says so at once; elsewhere whether this
    /// one is there. Costs a system call or two, however many there are.
    ///
    /// # Errors
    ///
    /// It cannot be read: why, and what to do.
    fn glance(&mut self, one: &VirtualServerKey) -> Result<Glance, Unreadable>;

    /// Has the kernel load a scheduler, if it has not yet. May take as long as to load a module.
    ///
    /// # Errors
    ///
    /// The kernel has none of this name: why, and what to do.
    fn load_scheduler(&mut self, name: &str) -> Result<(), String>;

    /// Does each write of the plan, in order. One that fails does not stop those after it. One
    /// outcome for each write.
    fn apply(&mut self, plan: &Plan) -> Vec<Outcome>;

    /// Active plus inactive connections of each destination of these virtual servers. One that is
    /// gone is left out.
    ///
    /// # Errors
    ///
    /// It cannot be read: why, and what to do.
    fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable>;
}

/// Our sets that exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundSets {
    /// Their members.
    pub members: BTreeMap<Set, BTreeSet<Member>>,
    /// How many members each can hold.
    pub sizes: BTreeMap<Set, u32>,
    /// What a shim of the other kind has left in its sets, at the first look: they go, and what they
    /// say of virtual servers counts until then.
    pub former: BTreeMap<Set, BTreeSet<Member>>,
}

/// The node's addresses, without loopback and IPv6 link-local ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundAddresses {
    /// Whether `kube-ipvs0` exists and is as it has to be for what it is to hold.
    pub has_link: bool,
    /// Service addresses on it in the form of `--ipvs-vip-mode`.
    pub bound: BTreeSet<IpAddr>,
    /// Those on it in the other form.
    pub bound_otherwise: BTreeSet<IpAddr>,
    /// On every other interface.
    pub interface_addresses: BTreeSet<IpAddr>,
}

/// The shim and what stands beside it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundRules {
    /// The shim.
    pub rules: Rules,
    /// What other modes have left; where there is nothing, the place is not named.
    pub leftovers: BTreeMap<Place, Arc<Leftovers>>,
}

/// What a look that costs next to nothing tells of the virtual servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glance {
    /// How many there are in the family, whoever's.
    Count(u32),
    /// Whether the one is there.
    IsThere(bool),
}

/// What the kernel holds, of one family; ours and foreign.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Whether `kube-ipvs0` exists and is as it has to be for what it is to hold.
    pub has_link: bool,
    /// Service addresses on it in the form of `--ipvs-vip-mode`, without IPv6 link-local ones.
    pub bound: BTreeSet<IpAddr>,
    /// Those on it in the other form.
    pub bound_otherwise: BTreeSet<IpAddr>,
    /// Addresses on every other interface, without loopback and IPv6 link-local ones.
    pub interface_addresses: BTreeSet<IpAddr>,
    /// Our sets that exist, with their members.
    pub sets: BTreeMap<Set, BTreeSet<Member>>,
    /// How many members each of them can hold.
    pub set_sizes: BTreeMap<Set, u32>,
    /// All virtual servers, each with its destinations.
    pub servers: BTreeMap<VirtualServerKey, VirtualServer>,
    /// The shim, if it was read.
    pub rules: Option<Rules>,
    /// What other modes have left, if it was looked for; where there is nothing, the place is not
    /// named.
    pub leftovers: Option<BTreeMap<Place, Arc<Leftovers>>>,
}

impl Snapshot {
    /// Whether a virtual server is one that a kube-proxy in IPVS mode has made, as far as can be
    /// told by what is here.
    pub fn says_ours(&self, key: &VirtualServerKey) -> bool {
        let evidence = Evidence {
            bound: &self.bound,
            bound_otherwise: &self.bound_otherwise,
            interface_addresses: &self.interface_addresses,
            sets: &self.sets,
        };
        evidence.says_ours(key, self.servers.get(key))
    }
}

/// The sets that name virtual servers by address, protocol and port.
const NAMING: [Set; 5] = [
    Set::ClusterIp,
    Set::ExternalIp,
    Set::ExternalIpLocal,
    Set::LoadBalancer,
    Set::NodePortSctp,
];

/// What says whose a virtual server is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evidence<'a> {
    pub(crate) bound: &'a BTreeSet<IpAddr>,
    pub(crate) bound_otherwise: &'a BTreeSet<IpAddr>,
    pub(crate) interface_addresses: &'a BTreeSet<IpAddr>,
    pub(crate) sets: &'a BTreeMap<Set, BTreeSet<Member>>,
}

impl Evidence<'_> {
    /// Whether a virtual server is one that a kube-proxy in IPVS mode has made: one of the sets names
    /// it, its address is on `kube-ipvs0` or in a set and no set names another one there, its port is
    /// a NodePort and its address the node's, or it bears the note that a kube-proxy made it for a NodePort: that is proof by itself, as
    /// nobody else sets that flag.
    pub(crate) fn says_ours(self, key: &VirtualServerKey, server: Option<&VirtualServer>) -> bool {
        let is_noted = |server: &VirtualServer| server.properties.is_node_port();
        let is_named = |at| self.names(at);
        server.is_some_and(is_noted) || key.address().is_some_and(is_named)
    }

    fn names(self, at: ServiceAddress) -> bool {
        let holds =
            |set: Set, member: Member| self.sets.get(&set).is_some_and(|set| set.contains(&member));
        let has_address = self.bound.contains(&at.address)
            || self.bound_otherwise.contains(&at.address)
            || holds(Set::IpvsIps, Member::Address(at.address));
        NAMING.into_iter().any(|set| holds(set, at.into()))
            || (has_address && !self.names_any_at(at.address))
            || (self.interface_addresses.contains(&at.address)
                && holds(Set::node_port(at.protocol), Member::Port(at.port)))
    }

    /// True if a set names virtual servers at this address: then it names all of a kube-proxy's
    /// there, and others are other programs'.
    fn names_any_at(self, address: IpAddr) -> bool {
        let first = |protocol| Member::AddressPort(address, protocol, 0);
        let last = |protocol| Member::AddressPort(address, protocol, u16::MAX);
        let mut named = NAMING.into_iter().filter_map(|set| self.sets.get(&set));
        named.any(|members| {
            let mut all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter();
            all.any(|of| members.range(first(of)..=last(of)).next().is_some())
        })
    }
}

/// What [`Kernel::connections`] reads, as [`Unreadable`] names it.
pub(crate) const CONNECTIONS: &str = "the connections of virtual servers";
