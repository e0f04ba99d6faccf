//! The modes that faults happen in.

/// A mode, as the daemon is started in it.
#[derive(Debug)]
pub(crate) struct Mode {
    /// Name in the table.
    pub(crate) name: &'static str,
    pub(crate) flags: &'static [&'static str],
    /// The flag that says how often the kernel is compared.
    pub(crate) period: &'static str,
    pub(crate) needs_nftables: bool,
}

/// IPVS, with upstream's rules of iptables beside it.
pub(crate) const IPVS: Mode = Mode {
    name: "ipvs",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=upstream"],
    period: "ipvs-sync-period",
    needs_nftables: false,
};
/// IPVS, with a table of nf_tables beside it.
pub(crate) const IPVS_NFTABLES: Mode = Mode {
    name: "ipvs, shim in nftables",
    flags: &["--proxy-mode=ipvs", "--ipvs-shim=nftables"],
    needs_nftables: true,
    ..IPVS
};
/// Rules of iptables.
pub(crate) const IPTABLES: Mode = Mode {
    name: "iptables",
    flags: &["--proxy-mode=iptables"],
    period: "iptables-sync-period",
    needs_nftables: false,
};
/// Mode with one table of nf_tables in each family.
pub(crate) const NFTABLES: Mode = Mode {
    name: "nftables",
    flags: &["--proxy-mode=nftables"],
    needs_nftables: true,
    ..IPTABLES
};
/// Connections that the process carries itself.
pub(crate) const USERSPACE: Mode = Mode {
    name: "userspace",
    flags: &["--proxy-mode=userspace"],
    ..IPTABLES
};

impl Mode {
    /// Returns true if the running kernel has all that the mode needs.
    pub(crate) fn is_possible(&self) -> bool {
        !self.needs_nftables || lab::iptables_backend() == "nft"
    }
}
