//! The modes in which faults run.

/// A mode, with the daemon's flags for it.
#[derive(Debug)]
pub(crate) struct Mode {
    /// Name of the mode in the table of docs/faults.md.
    pub(crate) name: &'static str,
    pub(crate) flags: &'static [&'static str],
    /// Name of the flag for the sync period, in which the daemon compares the kernel with the
    /// wanted state.
    pub(crate) period: &'static str,
    pub(crate) needs_nftables: bool,
}

/// IPVS mode with upstream's iptables rules.
pub(crate) const IPVS: Mode = Mode {
    name: "ipvs",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=upstream"],
    period: "ipvs-sync-period",
    needs_nftables: false,
};
/// IPVS mode with its rules in an nf_tables table.
pub(crate) const IPVS_NFTABLES: Mode = Mode {
    name: "ipvs, shim in nftables",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=nftables"],
    needs_nftables: true,
    ..IPVS
};
/// IPVS mode with fewer iptables rules.
pub(crate) const IPVS_LEAN: Mode = Mode {
    name: "ipvs, lean shim",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=lean"],
    ..IPVS
};
/// IPVS mode with a local route for each Service address.
pub(crate) const IPVS_ROUTES: Mode = Mode {
    name: "ipvs, routes",
    flags: &[
        "--proxy-mode=ipvs",
        "--ipvs-shim=upstream",
        "--ipvs-vip-mode=route",
    ],
    ..IPVS
};
/// IPVS mode with virtual servers by firewall mark.
pub(crate) const IPVS_EXACT: Mode = Mode {
    name: "ipvs, exact",
    flags: &[
        "--proxy-mode=ipvs",
        "--ipvs-shim=upstream",
        "--ipvs-semantics=exact",
    ],
    ..IPVS
};
/// IPVS mode with a local route for each network of Service addresses.
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
/// nftables mode, with one nftables table per family.
pub(crate) const NFTABLES: Mode = Mode {
    name: "nftables",
    flags: &["--proxy-mode=nftables"],
    needs_nftables: true,
    ..IPTABLES
};
/// nftables mode with the flat layout.
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
    /// Returns true if the running kernel supports the mode.
    pub(crate) fn is_possible(&self) -> bool {
        !self.needs_nftables || lab::iptables_backend() == "nft"
    }
}
