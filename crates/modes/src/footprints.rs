//! What each mode of kube-proxy leaves in the kernel: a row for each.

use footprint::Footprints;

/// Those of all modes.
pub const ALL: Footprints = &[
    &proxy_ipvs::FOOTPRINT,
    &proxy_iptables::FOOTPRINT,
    &proxy_userspace::FOOTPRINT,
    &proxy_nftables::FOOTPRINT,
];
