//! Modes of kube-proxy, with variants, in which faults run.

/// A mode of kube-proxy, and the daemon's flags that select it.
#[derive(Debug)]
pub(crate) struct Mode {
    /// Name of the mode in the table of docs/faults.md.
    pub(crate) name: &'static str,
    pub(crate) flags: &'static [&'static str],
    /// Flag that sets the sync period, the interval between two periodic checks of the kernel.
    pub(crate) period: &'static str,
    pub(crate) needs_nftables: bool,
}

/// IPVS mode with the same iptables rules as upstream.
pub(crate) const IPVS: Mode = Mode {
    name: "ipvs",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=upstream"],
    period: "ipvs-sync-period",
    needs_nftables: false,
};
/// IPVS mode whose rules are in an nf_tables table instead of iptables.
pub(crate) const IPVS_NFTABLES: Mode = Mode {
    name: "ipvs, shim in nftables",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=nftables"],
    needs_nftables: true,
    ..IPVS
};
/// IPVS mode with the lean shim, which has fewer iptables rules than upstream's.
pub(crate) const IPVS_LEAN: Mode = Mode {
    name: "ipvs, lean shim",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=lean"],
    ..IPVS
};
/// IPVS mode that adds a local route for each Service address instead of binding it.
pub(crate) const IPVS_ROUTES: Mode = Mode {
    name: "ipvs, routes",
    flags: &[
        "--proxy-mode=ipvs",
        "--ipvs-shim=upstream",
        "--ipvs-vip-mode=route",
    ],
    ..IPVS
};
/// IPVS mode whose rules select virtual servers by firewall mark (`--ipvs-semantics=exact`).
pub(crate) const IPVS_EXACT: Mode = Mode {
    name: "ipvs, exact",
    flags: &[
        "--proxy-mode=ipvs",
        "--ipvs-shim=upstream",
        "--ipvs-semantics=exact",
    ],
    ..IPVS
};
/// IPVS mode that adds a local route for each range of Service addresses.
pub(crate) const IPVS_RANGES: Mode = Mode {
    name: "ipvs, ranges",
    flags: &[
        "--proxy-mode=ipvs",
        "--ipvs-shim=nftables",
        "--ipvs-vip-mode=range",
        "--ipvs-service-cidrs=10.96.0.0/12,fd96::/112",
    ],
    needs_nftables: true,
    ..IPVS
};
/// iptables mode.
pub(crate) const IPTABLES: Mode = Mode {
    name: "iptables",
    flags: &["--proxy-mode=iptables"],
    period: "iptables-sync-period",
    needs_nftables: false,
};
/// nftables mode with the same layout as upstream.
pub(crate) const NFTABLES: Mode = Mode {
    name: "nftables",
    flags: &["--proxy-mode=nftables"],
    needs_nftables: true,
    ..IPTABLES
};
/// nftables mode with our flat layout instead of upstream's.
pub(crate) const NFTABLES_FLAT: Mode = Mode {
    name: "nftables, flat layout",
    flags: &["--proxy-mode=nftables", "--nftables-layout=flat"],
    ..NFTABLES
};
/// Userspace mode, in which the daemon itself relays connections.
pub(crate) const USERSPACE: Mode = Mode {
    name: "userspace",
    flags: &["--proxy-mode=userspace"],
    ..IPTABLES
};

impl Mode {
    /// Returns true if the running kernel supports this mode.
    pub(crate) fn is_possible(&self) -> bool {
        !self.needs_nftables || lab::iptables_backend() == "nft"
    }
}
