//! Plans: ordered lists of writes, and the outcome of each write.
//!
//! A [`Plan`] is data: it can be printed, counted and tested. Only a
//! [`Kernel`](crate::kernel::Kernel) executes it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use engine::Part as _;
use ipnet::IpNet;
use proxy::{EntryKind, IpFamily, Target};

use crate::leftovers::{LeftoverPlace, Leftovers};
use crate::native::TABLE;
use crate::part::{Lane, Part};
use crate::rules::Rules;
use crate::server::{Properties, RealServer, VirtualServerKey};
use crate::sets::{Member, Set};

/// One write to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Creates the dummy link `kube-ipvs0`. It stays down, unless service addresses are IPv6
    /// routes.
    CreateLink,
    /// Creates a set with room for this number of members, or replaces a smaller set by a larger
    /// one with the same members.
    CreateSet(Set, u32),
    /// Removes an empty set that no rule matches.
    RemoveSet(Set),
    /// Adds a member to a set.
    AddMember(Set, Member),
    /// Removes a member from a set.
    RemoveMember(Set, Member),
    /// Replaces the first member by the second in one step. Both have the same address and port,
    /// but different marks.
    ReplaceMember(Set, Member, Member),
    /// Turns the shim (the rules beside IPVS) from `installed` into `wanted`, with one
    /// `iptables-restore` or one nftables transaction.
    WriteRules {
        /// Rules after the write.
        wanted: Arc<Rules>,
        /// Rules before the write.
        installed: Arc<Rules>,
    },
    /// Adds a virtual server without destinations.
    AddServer(VirtualServerKey, Properties),
    /// Changes scheduler, flags or timeout of a virtual server, which keeps its connections and
    /// destinations.
    SetServer(VirtualServerKey, Properties),
    /// Removes a virtual server with its destinations.
    RemoveServer(VirtualServerKey),
    /// Adds a destination to a virtual server.
    AddDestination(VirtualServerKey, RealServer),
    /// Changes weight or connection thresholds of a destination, which keeps its connections.
    SetDestination(VirtualServerKey, RealServer),
    /// Removes a destination from a virtual server.
    RemoveDestination(VirtualServerKey, Target),
    /// Makes a service address local on `kube-ipvs0`, as an address or a host route
    /// (`--ipvs-vip-mode`).
    BindAddress(IpAddr),
    /// Removes a service address from `kube-ipvs0`, if it is bound in the form of the current
    /// `--ipvs-vip-mode`.
    UnbindAddress(IpAddr),
    /// Removes a service address from `kube-ipvs0`, if it is bound in the form of another
    /// `--ipvs-vip-mode`, by an earlier run.
    UnbindOtherwise(IpAddr),
    /// Makes a network local with a single route on `kube-ipvs0`.
    BindRange(IpNet),
    /// Removes a network's local route from `kube-ipvs0`.
    UnbindRange(IpNet),
    /// Removes leftovers of another mode, of another shim, or of another iptables backend, with at
    /// most one `iptables-restore`.
    RemoveLeftovers(LeftoverPlace, Arc<Leftovers>),
}

impl Op {
    /// Returns the part of the kernel's state that contains the written entry.
    pub fn part(&self) -> Part {
        match self {
            Self::CreateSet(..)
            | Self::RemoveSet(_)
            | Self::AddMember(..)
            | Self::RemoveMember(..)
            | Self::ReplaceMember(..) => Part::Sets,
            Self::CreateLink
            | Self::BindAddress(_)
            | Self::UnbindAddress(_)
            | Self::UnbindOtherwise(_)
            | Self::BindRange(_)
            | Self::UnbindRange(_) => Part::Addresses,
            Self::WriteRules { .. } | Self::RemoveLeftovers(..) => Part::Rules,
            Self::AddServer(..)
            | Self::SetServer(..)
            | Self::RemoveServer(..)
            | Self::AddDestination(..)
            | Self::SetDestination(..)
            | Self::RemoveDestination(..) => Part::Servers,
        }
    }

    /// Returns the kind of the written entry, for counters.
    pub fn subject(&self) -> EntryKind {
        match self {
            Self::CreateLink => EntryKind::Link,
            Self::CreateSet(..) | Self::RemoveSet(_) => EntryKind::Sets,
            Self::AddMember(..) | Self::RemoveMember(..) | Self::ReplaceMember(..) => {
                EntryKind::SetMembers
            }
            Self::WriteRules { .. } => EntryKind::Rules,
            Self::AddServer(..) | Self::SetServer(..) | Self::RemoveServer(..) => {
                EntryKind::VirtualServers
            }
            Self::AddDestination(..) | Self::SetDestination(..) | Self::RemoveDestination(..) => {
                EntryKind::Destinations
            }
            Self::BindAddress(_)
            | Self::UnbindAddress(_)
            | Self::UnbindOtherwise(_)
            | Self::BindRange(_)
            | Self::UnbindRange(_) => EntryKind::Addresses,
            Self::RemoveLeftovers(..) => EntryKind::Leftovers,
        }
    }

    /// Returns the virtual server that the write changes, directly or through one of its
    /// destinations.
    pub fn server(&self) -> Option<&VirtualServerKey> {
        match self {
            Self::AddServer(key, _)
            | Self::SetServer(key, _)
            | Self::RemoveServer(key)
            | Self::AddDestination(key, _)
            | Self::SetDestination(key, _)
            | Self::RemoveDestination(key, _) => Some(key),
            _ => None,
        }
    }
}

impl Op {
    /// Describes the write for an operator. `family` determines the names of sets.
    pub fn words(&self, family: IpFamily) -> String {
        match self {
            Self::CreateSet(set, size) => {
                format!("create set {} for {size} members", set.name(family))
            }
            Self::RemoveSet(set) => format!("remove set {}", set.name(family)),
            Self::AddMember(set, member) => format!("add {member} to set {}", set.name(family)),
            Self::RemoveMember(set, member) => {
                format!("remove {member} from set {}", set.name(family))
            }
            Self::ReplaceMember(set, former, member) => {
                format!("replace {former} by {member} in set {}", set.name(family))
            }
            op => op.to_string(),
        }
    }
}

/// Formats the write with IPv4's set names. For another IP family, use [`Op::words`].
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateLink => f.write_str("create link kube-ipvs0"),
            Self::CreateSet(..)
            | Self::RemoveSet(_)
            | Self::AddMember(..)
            | Self::RemoveMember(..)
            | Self::ReplaceMember(..) => f.write_str(&self.words(IpFamily::V4)),
            Self::WriteRules { wanted, .. } => {
                write!(f, "write {} {} rules", wanted.len(), wanted.carrier())
            }
            Self::AddServer(key, _) => write!(f, "add virtual server {key}"),
            Self::SetServer(key, _) => write!(f, "change virtual server {key}"),
            Self::RemoveServer(key) => write!(f, "remove virtual server {key}"),
            Self::AddDestination(key, real) => {
                write!(f, "add destination {} to {key}", TargetText(real.target))
            }
            Self::SetDestination(key, real) => {
                write!(
                    f,
                    "set destination {} of {key} to {real}",
                    TargetText(real.target),
                )
            }
            Self::RemoveDestination(key, target) => {
                write!(f, "remove destination {} from {key}", TargetText(*target))
            }
            Self::BindAddress(address) => write!(f, "bind {address} to kube-ipvs0"),
            Self::UnbindAddress(address) => write!(f, "unbind {address} from kube-ipvs0"),
            Self::UnbindOtherwise(address) => write!(
                f,
                "unbind {address} from kube-ipvs0 as the other --ipvs-vip-mode has bound it"
            ),
            Self::BindRange(net) => write!(f, "add local route to {net} on kube-ipvs0"),
            Self::UnbindRange(net) => write!(f, "remove local route to {net} on kube-ipvs0"),
            Self::RemoveLeftovers(LeftoverPlace::Nftables, _) => {
                f.write_str("remove the nftables mode's table kube-proxy")
            }
            Self::RemoveLeftovers(LeftoverPlace::Ended, _) => {
                f.write_str("remove the tables of a mode in nftables whose process has ended")
            }
            Self::RemoveLeftovers(LeftoverPlace::OwnTable, _) => {
                write!(f, "remove this mode's own table {TABLE} of nftables")
            }
            Self::RemoveLeftovers(LeftoverPlace::Ipsets, _) => {
                f.write_str("remove this mode's own ipsets")
            }
            Self::RemoveLeftovers(place, leftovers) => {
                let (chains, jumps) = leftovers.counts();
                let of = match place {
                    LeftoverPlace::Other(_) => "a kube-proxy with this backend",
                    _ => "the iptables mode",
                };
                write!(
                    f,
                    "remove {chains} chains and {jumps} jumps of {of} from {place}"
                )
            }
        }
    }
}

struct TargetText(Target);

impl fmt::Display for TargetText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(self.0.ip, self.0.port).fmt(f)
    }
}

/// Writes for one lane (worker thread), in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Writes in the order of execution.
    pub ops: Vec<Op>,
}

impl Plan {
    /// Returns the lane (worker thread) that executes the plan, or `None` for an empty plan.
    pub(crate) fn lane(&self) -> Option<Lane> {
        self.ops.first().map(|op| op.part().lane())
    }

    /// Returns the parts of the kernel's state that the plan changes.
    pub fn parts(&self) -> impl Iterator<Item = Part> {
        let has = |part: &Part| self.ops.iter().any(|op| op.part() == *part);
        Part::ALL.iter().copied().filter(has)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ops.iter().try_for_each(|op| writeln!(f, "{op}"))
    }
}

/// Outcome of one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel has the wanted state. Removing a missing entry has this outcome, too.
    Done,
    /// The kernel refused the write.
    Refused {
        /// Reason for the refusal, and advice for the operator.
        reason: String,
        /// Cause of the refusal: the entry, the node, a scheduler, or wrong tables.
        fault: Fault,
    },
    /// The kernel's reply was lost, so the proxy must read the kernel's state again.
    Unknown,
}

/// Cause of the kernel's refusal of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The entry is invalid, or this kernel does not support it. Other entries are not affected.
    Entry,
    /// The kernel or the node has a problem, which also affects other entries.
    Node,
    /// The kernel lacks the virtual server's scheduler.
    Scheduler,
    /// The proxy's tables are wrong: the kernel unexpectedly has or lacks an entry. The proxy must
    /// read the kernel's state again.
    Belief,
}
