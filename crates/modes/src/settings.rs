//! Settings of the modes, read from flags: those that all modes share, and a part for each mode.
//!
//! With equal settings, the daemon opens a mode in the same way. So after a change of the
//! configuration file, it opens the mode again only if the settings differ. Invalid flags of other
//! modes are errors as well.

use super::iptables::settings as iptables;
use super::ipvs::settings as ipvs;
use super::nftables::settings as nftables;
use super::shared::Shared;
use super::userspace::settings as userspace;

/// Settings of all modes. Two values are equal if the chosen mode behaves the same with both.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The mode that `--proxy-mode` names.
    pub chosen: ProxyMode,
    /// Settings that apply to every mode.
    pub shared: Shared,
    /// Settings that only iptables mode has.
    pub iptables: iptables::Settings,
    /// Settings that only IPVS mode has.
    pub ipvs: ipvs::Settings,
    /// Settings that only nftables mode has.
    pub nftables: nftables::Settings,
    /// Settings that only userspace mode has.
    pub userspace: userspace::Settings,
}

/// Value of `--proxy-mode`: one of the modes in this build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyMode {
    /// iptables rules. As in upstream on Linux, an empty `--proxy-mode` chooses this mode. So a
    /// node keeps its data plane if an operator replaces upstream's image by this program's image.
    #[default]
    Iptables,
    /// IPVS virtual servers, with additional rules (the shim).
    Ipvs,
    /// Rules in one nftables table for each IP family.
    Nftables,
    /// A relay in this process, to which rules redirect the packets.
    Userspace,
}
