//! Checks the capabilities of this process. A daemon that starts in the same container or shell has
//! the same capabilities.

use iptables::Backend;
use rustix::thread::CapabilitySet;

use crate::check::finding::Finding;

const NAME: &str = "capabilities";

/// Returns findings about capabilities. `backend` is the iptables backend that the mode writes to,
/// or `None` if the mode does not use iptables.
pub(super) fn judge(effective: CapabilitySet, backend: Option<Backend>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if effective.contains(CapabilitySet::NET_ADMIN) {
        findings.push(Finding::ok(NAME, "CAP_NET_ADMIN: to program the kernel"));
    } else {
        findings.push(Finding::fail(
            NAME,
            "CAP_NET_ADMIN is missing: nothing can be programmed; add it to the container's securityContext \
             (capabilities.add: [NET_ADMIN]), or run as root on the host",
        ));
    }
    if backend == Some(Backend::Legacy) {
        findings.push(if effective.contains(CapabilitySet::NET_RAW) {
            Finding::ok(NAME, "CAP_NET_RAW: for legacy iptables")
        } else {
            Finding::fail(
                NAME,
                "CAP_NET_RAW is missing: legacy iptables opens a raw socket; add NET_RAW to the container's \
                 capabilities, or use iptables-nft (--iptables-backend=nft)",
            )
        });
    }
    if !effective.contains(CapabilitySet::SYS_MODULE) {
        findings.push(Finding::ok(
            NAME,
            "no CAP_SYS_MODULE: needed by --init-only alone, where modules are to be loaded that the kernel \
             does not load by itself",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Status;

    #[test]
    fn only_a_missing_capability_that_the_mode_needs_is_a_failure() {
        let statuses = |effective, backend| {
            let findings = judge(effective, backend).into_iter();
            findings.map(|finding| finding.status).collect::<Vec<_>>()
        };
        let (admin, raw) = (CapabilitySet::NET_ADMIN, CapabilitySet::NET_RAW);
        let nothing = CapabilitySet::empty();
        assert_eq!(statuses(CapabilitySet::all(), None), [Status::Ok]);
        assert_eq!(statuses(nothing, None), [Status::Fail, Status::Ok]);
        let (legacy, nft) = (Some(Backend::Legacy), Some(Backend::Nft));
        assert_eq!(
            statuses(admin, legacy),
            [Status::Ok, Status::Fail, Status::Ok]
        );
        assert_eq!(
            statuses(admin | raw, legacy),
            [Status::Ok, Status::Ok, Status::Ok]
        );
        assert_eq!(statuses(admin, nft), [Status::Ok, Status::Ok]);
    }
}
