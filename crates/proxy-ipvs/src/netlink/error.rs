//! Errors of a machine that cannot carry the IPVS mode.

use iptables::IptablesError;

/// This machine cannot carry the IPVS mode. The message names the missing part and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel has no IPVS, and it could not be loaded.
    #[error(
        "cannot use IPVS: this kernel offers none and has not loaded it; {tried}. Run `modprobe ip_vs` on the host, or boot a kernel with CONFIG_IP_VS"
    )]
    NoIpvs {
        /// Result of `modprobe ip_vs`.
        tried: String,
    },
    /// IPVS cannot be used.
    #[error("cannot use IPVS: {0}")]
    Ipvs(#[source] ipvs_netlink::Error),
    /// ipset cannot be used: missing, or without `CAP_NET_ADMIN`.
    #[error("cannot use ipset: {0}")]
    Ipset(#[source] ipset_netlink::Error),
    /// nftables cannot be used, or not as the shim needs it.
    #[error("cannot use nftables: {0}")]
    Nftables(String),
    /// Links and addresses cannot be read.
    #[error("cannot use rtnetlink: {0}")]
    Route(#[source] netlink_batch::Error),
    /// The kernel has no such scheduler, and could not load it.
    #[error(
        "cannot use IPVS: the kernel has no scheduler `{name}`, nor could it load one: {reason}. Run `modprobe ip_vs_{name}` on the host, or choose another --ipvs-scheduler (ipvs.scheduler)"
    )]
    Scheduler {
        /// `--ipvs-scheduler`.
        name: String,
        /// Message of the kernel.
        reason: String,
    },
    /// iptables cannot write rules of this family.
    #[error("cannot use iptables: {0}")]
    Iptables(#[from] IptablesError),
    /// A thread cannot be started.
    #[error(
        "cannot start a thread: {0}; see what limits them (`ulimit -u`, pids.max of the cgroup)"
    )]
    Thread(#[from] std::io::Error),
}

/// A set with the name of ours and another type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetInTheWay {
    /// True if the next write replaces it by ours. If false, it stays, and ours cannot be created.
    pub is_replaced: bool,
    /// Message that names the set, its type, the consequence and the next step.
    pub message: String,
}

impl OpenError {
    /// True if the kernel has no ipset at all. Another try changes nothing.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Ipset(ipset_netlink::Error::NoIpset))
    }
}
