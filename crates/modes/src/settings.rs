//! Settings of the modes, read from flags: settings that all modes share, and a part for each mode.
//!
//! Equal settings open equal modes. So after a change to the configuration file, the daemon reopens
//! the modes only if the settings differ. The flags of all modes are checked, not only those of the
//! chosen mode.

use super::iptables::settings as iptables;
use super::ipvs::settings as ipvs;
use super::nftables::settings as nftables;
use super::shared::Shared;
use super::userspace::settings as userspace;

/// Settings of the modes. Two values are equal if the chosen mode behaves the same with both.
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
    /// Rules of iptables. As in upstream on Linux, an empty value chooses this mode. So a node
    /// keeps its data plane if an operator replaces upstream's image by this program's image.
    #[default]
    Iptables,
    /// Virtual servers of IPVS, with a shim of rules.
    Ipvs,
    /// One nftables table for each IP family.
    Nftables,
    /// A relay in this process, to which rules redirect packets.
    Userspace,
}
