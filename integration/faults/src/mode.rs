//! The modes in which faults run.

/// A mode, with the daemon's flags for it.
#[derive(Debug)]
pub(crate) struct Mode {
    /// Name in the table.
    pub(crate) name: &'static str,
    pub(crate) flags: &'static [&'static str],
    /// The flag for the period between two comparisons with the kernel.
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
/// IPVS mode with an nf_tables table.
pub(crate) const IPVS_NFTABLES: Mode = Mode {
    name: "ipvs, shim in nftables",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=nftables"],
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
/// Userspace mode, in which the process carries connections.
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
