//! The kernel as this mode sees it: data in, data out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proxy::Target;

use crate::cleanup::{Leftovers, Place};
use crate::plan::{Outcome, Plan};
use crate::rules::Rules;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};

/// What can be read and written, for one IP family. Two implementations: netlink, and a strict fake that refuses
/// what the kernel refuses.
pub trait Kernel: Send + 'static {
    /// Reads everything of this family. `with_rules` also reads the shim back, and what other modes have left, which costs a
    /// process if any rule in the kernel has changed since it was last read; the first time, one for each installed backend of
    /// iptables that holds any.
    fn dump(&mut self, with_rules: bool) -> Result<Snapshot, KernelError>;

    /// Does each write of the plan, in order. One that fails does not stop those after it. One outcome for each write.
    fn apply(&mut self, plan: &Plan) -> Vec<Outcome>;

    /// Active plus inactive connections of each destination of these virtual servers. One that is gone is left out.
    fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, KernelError>;
}

/// What the kernel holds, of one family; ours and foreign.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Whether `kube-ipvs0` exists, and is up where it has to be.
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
    /// What other modes have left, if it was looked for; where there is nothing, the place is not named.
    pub leftovers: Option<BTreeMap<Place, Arc<Leftovers>>>,
}

impl Snapshot {
    /// Whether a virtual server is one that a kube-proxy in IPVS mode has made: its address is on `kube-ipvs0`, one of the sets
    /// names it, or it serves a NodePort.
    pub fn says_ours(&self, key: &VirtualServerKey) -> bool {
        let holds =
            |set: Set, member: Member| self.sets.get(&set).is_some_and(|set| set.contains(&member));
        let by_address = Member::AddressPort(key.address, key.protocol, key.port);
        let node_port = match Set::node_port(key.protocol) {
            Set::NodePortSctp => by_address,
            _ => Member::Port(key.port),
        };
        self.bound.contains(&key.address)
            || self.bound_otherwise.contains(&key.address)
            || [
                Set::ClusterIp,
                Set::ExternalIp,
                Set::ExternalIpLocal,
                Set::LoadBalancer,
            ]
            .into_iter()
            .any(|set| holds(set, by_address))
            || (self.interface_addresses.contains(&key.address)
                && holds(Set::node_port(key.protocol), node_port))
    }
}

/// The kernel could not be read. Says what was being read, why it failed, and the next step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {what}: {reason}")]
pub struct KernelError {
    /// `the virtual servers`, `the ipsets`, ...
    pub what: &'static str,
    /// Why, and what to do.
    pub reason: String,
}
