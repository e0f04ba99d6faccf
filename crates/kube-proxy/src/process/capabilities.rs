//! Capabilities are passed on to the programs that are started.
//!
//! A program that root executes has what is in the bounding set. Any other user's has nothing,
//! unless it is in the *ambient* set. Who runs as another user got the capabilities by the file
//! (`setcap cap_net_admin+p kube-proxy`), or has them ambient already (systemd's
//! `AmbientCapabilities=`); either way iptables and modprobe are to have them, too.

use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{
    CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
};

/// What the daemon and the programs that it starts can use: the network, legacy iptables' raw
/// socket, kernel modules.
const USED: [CapabilitySet; 3] = [
    CapabilitySet::NET_ADMIN,
    CapabilitySet::NET_RAW,
    CapabilitySet::SYS_MODULE,
];

/// Makes effective and ambient, of what this process can use, what it is permitted. Must be called
/// while there is one thread: each has sets of its own, that new ones inherit. Nothing is done for
/// root.
///
/// # Errors
///
/// The kernel refuses, which it does not do by itself.
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
