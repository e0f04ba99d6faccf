//! The interface between IPVS mode and the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use proxy::{Protocol, ServiceAddress, Target, Unreadable};

use crate::leftovers::{LeftoverPlace, Leftovers};
use crate::plan::{Outcome, Plan};
use crate::ranges::{Networks, RangeSource};
use crate::rules::Rules;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};

/// Access to the kernel for one IP family. The two implementations are netlink, and a strict fake
/// for tests. Each lane (worker thread) has its own instance.
pub trait Kernel: Send + 'static {
    /// Returns the current time, with which callers measure how long writes take. A fake kernel may
    /// have its own clock.
    fn clock(&self) -> Instant {
        Instant::now()
    }

    /// Returns all virtual servers, each with its destinations.
    ///
    /// # Errors
    ///
    /// Returns the reason and advice for the operator.
    fn read_servers(&mut self) -> Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable>;

    /// Returns our sets, with their members and capacities.
    ///
    /// # Errors
    ///
    /// Returns the reason and advice for the operator.
    fn read_sets(&mut self) -> Result<FoundSets, Unreadable>;

    /// Returns the link `kube-ipvs0` with its addresses, and the addresses of all other interfaces.
    ///
    /// # Errors
    ///
    /// Returns the reason and advice for the operator.
    fn read_addresses(&mut self) -> Result<FoundAddresses, Unreadable>;

    /// Returns the rules of the shim, and leftovers of other modes. Starts a process only if rules
    /// in the kernel have changed since the last read. The first read starts one process for each
    /// iptables backend that has rules.
    ///
    /// # Errors
    ///
    /// Returns the reason and advice for the operator.
    fn read_rules(&mut self) -> Result<FoundRules, Unreadable>;

    /// Returns the number of virtual servers if the kernel counts them. Otherwise returns whether
    /// the virtual server `one` exists. Needs one or two system calls, however many virtual servers
    /// exist.
    ///
    /// # Errors
    ///
    /// Returns the reason and advice for the operator.
    fn glance(&mut self, one: &VirtualServerKey) -> Result<Glance, Unreadable>;

    /// Makes the kernel load a scheduler's module. Blocks until the module is loaded.
    ///
    /// # Errors
    ///
    /// Returns the reason and advice for the operator if the kernel lacks the scheduler.
    fn load_scheduler(&mut self, name: &str) -> Result<(), String>;

    /// Performs the writes of a plan in order, and continues after a failed write. Returns one
    /// outcome for each write.
    fn apply(&mut self, plan: &Plan) -> Vec<Outcome>;

    /// Returns the number of connections, active and inactive, of each destination of these virtual
    /// servers. Skips virtual servers that do not exist.
    ///
    /// # Errors
    ///
    /// Returns the reason and advice for the operator.
    fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable>;
}

/// Content of our sets in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundSets {
    /// Members of each of our sets.
    pub members: BTreeMap<Set, BTreeSet<Member>>,
    /// Capacity of each of our sets, in members.
    pub sizes: BTreeMap<Set, u32>,
    /// Members that an earlier run left in the sets of the former shim. Only the first read returns
    /// these members. Until the proxy removes them, they prove ownership of virtual servers.
    pub former: BTreeMap<Set, BTreeSet<Member>>,
}

/// Addresses of the node, except loopback addresses and IPv6 link-local addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundAddresses {
    /// True if `kube-ipvs0` exists, and its state (up or down, own addresses) allows the proxy to
    /// bind service addresses.
    pub has_link: bool,
    /// Service addresses on the link, as addresses or routes depending on `--ipvs-vip-mode`.
    pub bound: BTreeSet<IpAddr>,
    /// Service addresses on the link that an earlier run with another `--ipvs-vip-mode` bound.
    pub bound_otherwise: BTreeSet<IpAddr>,
    /// Networks that a single local route makes local. The value tells whether that route has the
    /// current source address.
    pub ranges: BTreeMap<IpNet, RangeSource>,
    /// Addresses of all interfaces except `kube-ipvs0`.
    pub interface_addresses: BTreeSet<IpAddr>,
    /// Networks that no range may make local. Empty unless `--ipvs-vip-mode=range`.
    pub networks: Networks,
}

/// Content of the shim, and leftovers of other modes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundRules {
    /// Rules of the shim (the rules beside IPVS).
    pub rules: Rules,
    /// Leftovers of other modes, by their place in the kernel. Contains only places that have
    /// leftovers.
    pub leftovers: BTreeMap<LeftoverPlace, Arc<Leftovers>>,
}

/// Response to a glance, the cheap check that virtual servers still exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glance {
    /// Number of virtual servers of the IP family, including other programs' virtual servers.
    Count(u32),
    /// True if the queried virtual server exists.
    IsThere(bool),
}

/// The kernel's state for one IP family, including other programs' entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// True if `kube-ipvs0` exists, and its state (up or down, own addresses) allows the proxy to
    /// bind service addresses.
    pub has_link: bool,
    /// Service addresses on the link, as addresses or routes depending on `--ipvs-vip-mode`. Does
    /// not contain IPv6 link-local addresses.
    pub bound: BTreeSet<IpAddr>,
    /// Service addresses on the link that an earlier run with another `--ipvs-vip-mode` bound.
    pub bound_otherwise: BTreeSet<IpAddr>,
    /// Networks that a single local route makes local. The value tells whether that route has the
    /// current source address.
    pub ranges: BTreeMap<IpNet, RangeSource>,
    /// Networks that no range may make local.
    pub networks: Networks,
    /// Addresses of all interfaces except `kube-ipvs0`, without loopback addresses and IPv6
    /// link-local addresses.
    pub interface_addresses: BTreeSet<IpAddr>,
    /// Our sets that exist, with their members.
    pub sets: BTreeMap<Set, BTreeSet<Member>>,
    /// Capacity of each of our sets, in members.
    pub set_sizes: BTreeMap<Set, u32>,
    /// All virtual servers, each with its destinations.
    pub servers: BTreeMap<VirtualServerKey, VirtualServer>,
    /// Rules of the shim, or `None` if the rules were not read.
    pub rules: Option<Rules>,
    /// Leftovers of other modes, by their place in the kernel. Contains only places that have
    /// leftovers. `None` if the leftovers were not read.
    pub leftovers: Option<BTreeMap<LeftoverPlace, Arc<Leftovers>>>,
}

impl Snapshot {
    /// Returns true if this state proves that a kube-proxy in IPVS mode created the virtual server.
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

/// Sets whose members contain the address, protocol and port of a virtual server.
const NAMING: [Set; 5] = [
    Set::ClusterIp,
    Set::ExternalIp,
    Set::ExternalIpLocal,
    Set::LoadBalancer,
    Set::NodePortSctp,
];

/// Evidence in the kernel that shows who created a virtual server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evidence<'a> {
    pub(crate) bound: &'a BTreeSet<IpAddr>,
    pub(crate) bound_otherwise: &'a BTreeSet<IpAddr>,
    pub(crate) interface_addresses: &'a BTreeSet<IpAddr>,
    pub(crate) sets: &'a BTreeMap<Set, BTreeSet<Member>>,
}

impl Evidence<'_> {
    /// Returns true if the evidence shows that a kube-proxy in IPVS mode created the virtual
    /// server. One of these facts suffices:
    ///
    /// - A set contains the virtual server's address and port.
    /// - The virtual server's address is on `kube-ipvs0` or in a set, and no set contains this
    ///   address with a port.
    /// - The virtual server's port is a NodePort, and its address belongs to the node.
    /// - The virtual server has the flag [`Properties::OWNED`], which no other program sets.
    pub(crate) fn says_ours(self, key: &VirtualServerKey, server: Option<&VirtualServer>) -> bool {
        let is_noted = |server: &VirtualServer| server.properties.is_owned();
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

    /// Returns true if a set contains this address together with any port. If so, the sets contain
    /// every virtual server that a kube-proxy created at this address, and all other virtual
    /// servers at the address are foreign.
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

/// Name, in error messages, of the data that [`Kernel::connections`] reads.
pub(crate) const CONNECTIONS: &str = "the connections of virtual servers";
