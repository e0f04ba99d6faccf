//! Errors of a node that cannot run IPVS mode.

use iptables::IptablesError;

/// Reason why this node cannot run IPVS mode. The message names the missing feature and the next
/// step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel has no IPVS, and loading the module failed.
    #[error(
        "cannot use IPVS: this kernel offers none and has not loaded it; {tried}. Run `modprobe ip_vs` on the host, or boot a kernel with CONFIG_IP_VS"
    )]
    NoIpvs {
        /// Result of running `modprobe ip_vs`, in words.
        tried: String,
    },
    /// The process cannot use IPVS, for example because it lacks `CAP_NET_ADMIN`.
    #[error("cannot use IPVS: {0}")]
    Ipvs(#[source] ipvs_netlink::Error),
    /// The process cannot use ipset: the kernel lacks ipset, or the process lacks `CAP_NET_ADMIN`.
    #[error("cannot use ipset: {0}")]
    Ipset(#[source] ipset_netlink::Error),
    /// The process cannot use nftables, or nftables lacks a feature that the shim needs.
    #[error("cannot use nftables: {0}")]
    Nftables(String),
    /// The kernel lacks nftables.
    #[error("cannot use nftables: {0}")]
    NoNftables(String),
    /// The process cannot read links and addresses over rtnetlink.
    #[error("cannot use rtnetlink: {0}")]
    Route(#[source] netlink_batch::Error),
    /// The kernel lacks the scheduler, and loading its module failed.
    #[error(
        "cannot use IPVS: the kernel has no scheduler `{name}`, nor could it load one: {reason}. Run `modprobe ip_vs_{name}` on the host, or choose another --ipvs-scheduler (ipvs.scheduler)"
    )]
    Scheduler {
        /// Name of the missing scheduler (`--ipvs-scheduler`).
        name: String,
        /// The kernel's message about the missing scheduler.
        reason: String,
    },
    /// iptables cannot write rules of this family.
    #[error("cannot use iptables: {0}")]
    Iptables(#[from] IptablesError),
    /// The process could not start a thread.
    #[error(
        "cannot start a thread: {0}; see what limits them (`ulimit -u`, pids.max of the cgroup)"
    )]
    Thread(#[from] std::io::Error),
}

/// A set of another program that has the name of one of our sets, but another type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetInTheWay {
    /// True if the proxy's next write replaces the foreign set. If false, the foreign set stays,
    /// and the proxy cannot create its own set with this name.
    pub is_replaced: bool,
    /// Message that names the set, its type, the consequence and the next step.
    pub message: String,
}

impl OpenError {
    /// Returns true if the kernel lacks ipset or nftables. A retry would then also fail.
    pub fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::Ipset(ipset_netlink::Error::NoIpset) | Self::NoNftables(_)
        )
    }
}
