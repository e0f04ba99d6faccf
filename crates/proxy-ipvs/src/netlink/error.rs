//! Errors that mean that this node cannot run IPVS mode.

use iptables::IptablesError;

/// Reason why this node cannot run IPVS mode: the message names the missing feature and the next
/// step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel has no IPVS, and loading the module failed.
    #[error(
        "cannot use IPVS: this kernel offers none and has not loaded it; {tried}. Run `modprobe ip_vs` on the host, or boot a kernel with CONFIG_IP_VS"
    )]
    NoIpvs {
        /// Result of `modprobe ip_vs`, as words for the operator.
        tried: String,
    },
    /// The process may not use IPVS, for example because it lacks `CAP_NET_ADMIN`.
    #[error("cannot use IPVS: {0}")]
    Ipvs(#[source] ipvs_netlink::Error),
    /// The kernel lacks ipset, or the process may not use it (`CAP_NET_ADMIN`).
    #[error("cannot use ipset: {0}")]
    Ipset(#[source] ipset_netlink::Error),
    /// The process may not use nftables, or nftables lacks a feature that the shim needs.
    #[error("cannot use nftables: {0}")]
    Nftables(String),
    /// The kernel lacks nftables.
    #[error("cannot use nftables: {0}")]
    NoNftables(String),
    /// The process cannot read links and addresses over rtnetlink.
    #[error("cannot use rtnetlink: {0}")]
    Route(#[source] netlink_batch::Error),
    /// The kernel lacks the IPVS scheduler, and could not load its module.
    #[error(
        "cannot use IPVS: the kernel has no scheduler `{name}`, nor could it load one: {reason}. Run `modprobe ip_vs_{name}` on the host, or choose another --ipvs-scheduler (ipvs.scheduler)"
    )]
    Scheduler {
        /// Name of the scheduler (`--ipvs-scheduler`).
        name: String,
        /// The kernel's reason why the scheduler is missing.
        reason: String,
    },
    /// iptables cannot write rules of this IP family.
    #[error("cannot use iptables: {0}")]
    Iptables(#[from] IptablesError),
    /// The process could not start a thread.
    #[error(
        "cannot start a thread: {0}; see what limits them (`ulimit -u`, pids.max of the cgroup)"
    )]
    Thread(#[from] std::io::Error),
}

/// Another program's set that has the name of one of our sets, but another type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetInTheWay {
    /// True if the proxy's next write replaces the other program's set. If false, that set stays,
    /// and the proxy cannot create its own.
    pub is_replaced: bool,
    /// Message for the operator: the set, its type, the consequence and the next step.
    pub message: String,
}

impl OpenError {
    /// Returns true if the kernel lacks ipset or nftables, so that a retry is useless.
    pub fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::Ipset(ipset_netlink::Error::NoIpset) | Self::NoNftables(_)
        )
    }
}
