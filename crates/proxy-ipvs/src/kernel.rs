//! The interface between IPVS mode and the kernel: reads, writes and queries.

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

/// Access to the kernel for one IP family, over netlink or to a strict fake for tests. Each lane
/// (worker thread) has its own instance.
pub trait Kernel: Send + 'static {
    /// Returns the current time, for measuring how long writes take. A fake kernel may have its own
    /// clock.
    fn clock(&self) -> Instant {
        Instant::now()
    }

    /// Returns all virtual servers, each with its destinations.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be read: the error has the reason, and advice for the operator.
    fn read_servers(&mut self) -> Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable>;

    /// Returns the sets of this proxy that exist, with their members and capacities.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be read: the error has the reason, and advice for the operator.
    fn read_sets(&mut self) -> Result<FoundSets, Unreadable>;

    /// Returns the link `kube-ipvs0` with its addresses, and the addresses of all other interfaces.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be read: the error has the reason, and advice for the operator.
    fn read_addresses(&mut self) -> Result<FoundAddresses, Unreadable>;

    /// Returns the rules of the shim, and other modes' leftovers. Starts a process only if rules in
    /// the kernel have changed since the last read. The first read starts one process per iptables
    /// backend that has rules.
    ///
    /// # Errors
    ///
    /// Fails if the rules cannot be read: the error has the reason, and advice for the operator.
    fn read_rules(&mut self) -> Result<FoundRules, Unreadable>;

    /// Returns the number of virtual servers or, if the kernel does not count them, whether the
    /// virtual server `one` exists. Needs one or two system calls, however many virtual servers
    /// there are.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be read: the error has the reason, and advice for the operator.
    fn glance(&mut self, one: &VirtualServerKey) -> Result<Glance, Unreadable>;

    /// Makes the kernel load an IPVS scheduler's module. Blocks until it is loaded.
    ///
    /// # Errors
    ///
    /// Fails if the kernel lacks the scheduler: the error has the reason, and advice for the
    /// operator.
    fn load_scheduler(&mut self, name: &str) -> Result<(), String>;

    /// Executes the writes of a plan in order, and continues after a failed write. Returns one
    /// outcome per write.
    fn apply(&mut self, plan: &Plan) -> Vec<Outcome>;

    /// Returns the number of active and inactive connections of each destination of these virtual
    /// servers. Skips virtual servers that do not exist.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be read: the error has the reason, and advice for the operator.
    fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable>;
}

/// The sets of this proxy in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundSets {
    /// Members of each set that exists.
    pub members: BTreeMap<Set, BTreeSet<Member>>,
    /// Capacity of each set that exists, in members.
    pub sizes: BTreeMap<Set, u32>,
    /// Members that an earlier run left in the sets of another shim; only the first read returns
    /// them. Until the proxy removes them, they prove ownership of virtual servers.
    pub former: BTreeMap<Set, BTreeSet<Member>>,
}

/// The link `kube-ipvs0`, service addresses on it, and the node's other addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundAddresses {
    /// True if `kube-ipvs0` exists and is ready for service addresses: its state (up or down) and
    /// its own addresses fit `--ipvs-vip-mode`.
    pub has_link: bool,
    /// Service addresses on the link. `--ipvs-vip-mode` decides whether they are addresses or
    /// routes.
    pub bound: BTreeSet<IpAddr>,
    /// Service addresses on the link from an earlier run with another `--ipvs-vip-mode`.
    pub bound_otherwise: BTreeSet<IpAddr>,
    /// Ranges: networks that a single local route makes local. The value tells whether the route
    /// has the current source address.
    pub ranges: BTreeMap<IpNet, RangeSource>,
    /// Addresses of all interfaces except `kube-ipvs0`, without loopback addresses and IPv6
    /// link-local addresses.
    pub interface_addresses: BTreeSet<IpAddr>,
    /// Networks that no range of service addresses may make local. Empty unless
    /// `--ipvs-vip-mode=range`.
    pub networks: Networks,
}

/// The shim's rules in the kernel, and leftovers of other modes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundRules {
    /// Rules of the shim (the rules beside IPVS).
    pub rules: Rules,
    /// Leftovers of other modes, by their place in the kernel. A place without leftovers has no
    /// entry.
    pub leftovers: BTreeMap<LeftoverPlace, Arc<Leftovers>>,
}

/// Result of a glance, the cheap check that the virtual servers still exist.
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
    /// True if `kube-ipvs0` exists and is ready for service addresses: its state (up or down) and
    /// its own addresses fit `--ipvs-vip-mode`.
    pub has_link: bool,
    /// Service addresses on the link, without IPv6 link-local addresses. `--ipvs-vip-mode` decides
    /// whether they are addresses or routes.
    pub bound: BTreeSet<IpAddr>,
    /// Service addresses on the link from an earlier run with another `--ipvs-vip-mode`.
    pub bound_otherwise: BTreeSet<IpAddr>,
    /// Ranges: networks that a single local route makes local. The value tells whether the route
    /// has the current source address.
    pub ranges: BTreeMap<IpNet, RangeSource>,
    /// Networks that no range of service addresses may make local.
    pub networks: Networks,
    /// Addresses of all interfaces except `kube-ipvs0`, without loopback addresses and IPv6
    /// link-local addresses.
    pub interface_addresses: BTreeSet<IpAddr>,
    /// Sets of this proxy that exist, each with its members.
    pub sets: BTreeMap<Set, BTreeSet<Member>>,
    /// Capacity of each set that exists, in members.
    pub set_sizes: BTreeMap<Set, u32>,
    /// All virtual servers, each with its destinations.
    pub servers: BTreeMap<VirtualServerKey, VirtualServer>,
    /// Rules of the shim, or `None` if the dump did not read them.
    pub rules: Option<Rules>,
    /// Leftovers of other modes, by their place in the kernel. A place without leftovers has no
    /// entry. `None` if the dump did not read them.
    pub leftovers: Option<BTreeMap<LeftoverPlace, Arc<Leftovers>>>,
}

impl Snapshot {
    /// Returns true if a kube-proxy in IPVS mode created the virtual server, according to other
    /// entries in this snapshot or to the virtual server's flags.
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

/// Sets whose members have the address, protocol and port of a virtual server.
const NAMING: [Set; 5] = [
    Set::ClusterIp,
    Set::ExternalIp,
    Set::ExternalIpLocal,
    Set::LoadBalancer,
    Set::NodePortSctp,
];

/// Kernel entries that show who created a virtual server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evidence<'a> {
    pub(crate) bound: &'a BTreeSet<IpAddr>,
    pub(crate) bound_otherwise: &'a BTreeSet<IpAddr>,
    pub(crate) interface_addresses: &'a BTreeSet<IpAddr>,
    pub(crate) sets: &'a BTreeMap<Set, BTreeSet<Member>>,
}

impl Evidence<'_> {
    /// Returns true if a kube-proxy in IPVS mode created the virtual server. One of these facts
    /// proves it:
    ///
    /// - A set contains the virtual server's address, protocol and port.
    /// - The virtual server's address is on `kube-ipvs0` or in the set KUBE-IPVS-IPS, and no set
    ///   contains the address with any port.
    /// - The virtual server's address belongs to the node, and its port is in a set of NodePorts.
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

    /// Returns true if a set contains this address with any port. If so, a kube-proxy's virtual
    /// servers at the address are all in the sets, and other virtual servers there are foreign.
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

/// Noun phrase for error messages of [`Kernel::connections`].
pub(crate) const CONNECTIONS: &str = "the connections of virtual servers";
