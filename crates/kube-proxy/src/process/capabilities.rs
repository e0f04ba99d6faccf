//! Passes capabilities to the programs that this process starts.
//!
//! | user | capabilities of an executed program |
//! |---|---|
//! | root | the bounding set |
//! | any other | only the *ambient* capabilities |
//!
//! A daemon that does not run as root has its capabilities from its file (`setcap cap_net_admin+p
//! kube-proxy`) or as ambient capabilities (systemd's `AmbientCapabilities=`). In both cases,
//! iptables and modprobe need these capabilities too.

use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{
    CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

/// Capabilities that the daemon or the programs that it starts use: network administration, the raw
/// socket of legacy iptables, and the loading of kernel modules.
const USED: [CapabilitySet; 3] = [
    CapabilitySet::NET_ADMIN,
    CapabilitySet::NET_RAW,
    CapabilitySet::SYS_MODULE,
];

/// Checks that this process has the capability to change the kernel's network rules. The capability
/// may need [`pass_on`] to become effective.
///
/// # Errors
///
/// Fails if the capability is missing.
pub fn may_administer_network() -> Result<(), NotPrivileged> {
    // Assumes CAP_NET_ADMIN if the capabilities cannot be read. If this assumption is wrong, the
    // first request to the kernel fails.
    let has_it = capabilities(None).map_or(true, |sets| {
        sets.permitted.contains(CapabilitySet::NET_ADMIN)
    });
    if has_it { Ok(()) } else { Err(NotPrivileged) }
}

/// Error about a process that lacks the capability to program the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "CAP_NET_ADMIN is missing: run this as root (sudo), or add NET_ADMIN to the container's \
     capabilities"
)]
pub struct NotPrivileged;

/// Makes the permitted capabilities in `USED` effective and ambient. Does nothing for root. Must be
/// called while the process has only one thread, because new threads inherit the sets of their
/// creator.
///
/// # Errors
///
/// Fails if the kernel refuses the change, which normally does not happen.
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
