//! What each mode of kube-proxy leaves in the kernel: a row for each.

use footprint::{Footprints, NFTABLES};

/// Those of all modes.
pub(crate) const ALL: Footprints = &[
    &proxy_ipvs::FOOTPRINT,
    &proxy_iptables::FOOTPRINT,
    &NFTABLES,
];
