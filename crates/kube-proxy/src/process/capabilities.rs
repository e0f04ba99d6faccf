//! Passes capabilities to the programs that this process starts.
//!
//! A program that root executes gets the bounding set. A program of any other user gets only
//! capabilities in the *ambient* set. A daemon of another user has capabilities from its file
//! (`setcap cap_net_admin+p kube-proxy`) or as ambient ones (systemd's `AmbientCapabilities=`). In
//! both cases iptables and modprobe need them, too.

use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{
    CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

/// Capabilities that the daemon and its programs can use: for the network, for the raw socket of
/// legacy iptables, and for kernel modules.
const USED: [CapabilitySet; 3] = [
    CapabilitySet::NET_ADMIN,
    CapabilitySet::NET_RAW,
    CapabilitySet::SYS_MODULE,
];

/// Returns true if this process may read and write the network's rules in the kernel, or can get
/// that right with [`pass_on`].
pub fn may_administer_network() -> bool {
    // If the capabilities cannot be read, the first request to the kernel will show them.
    capabilities(None).map_or(true, |sets| {
        sets.permitted.contains(CapabilitySet::NET_ADMIN)
    })
}

/// Makes capabilities effective and ambient if they are permitted and the daemon or its programs
/// can use them. Must be called while the process has one thread. Each thread has separate sets,
/// which new threads inherit. Does nothing for root.
///
/// # Errors
///
/// The kernel rejects the change, which normally does not happen.
pub fn pass_on() -> Result<(), Errno> {
    if geteuid().is_root() {
        return Ok(());
    }
    let mut sets = capabilities(None)?;
    let held = USED
        .into_iter()
        .filter(|one| sets.permitted.contains(*one))
        .collect::<Vec<_>>();
    for one in &held {
        sets.effective |= *one;
        sets.inheritable |= *one;
    }
    set_capabilities(None, sets)?;
    held.into_iter()
        .try_for_each(|one| configure_capability_in_ambient_set(one, true))
}
