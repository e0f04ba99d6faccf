//! Settings of the modes, read from the flags: shared settings, and a part for each mode.
//!
//! Equal settings open equal modes, so a changed configuration file reopens the modes only if the
//! settings differ. The flags of all modes are checked, even those of modes that are not chosen.

use super::iptables::settings as iptables;
use super::ipvs::settings as ipvs;
use super::nftables::settings as nftables;
use super::shared::Shared;
use super::userspace::settings as userspace;

/// Settings of the modes. Two settings are equal if the chosen mode behaves the same with both.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The chosen mode.
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

/// Value of `--proxy-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyMode {
    /// Rules of iptables. As in upstream on Linux, an empty value means this mode, so that
    /// replacing upstream's image keeps the data plane.
    #[default]
    Iptables,
    /// Virtual servers of IPVS.
    Ipvs,
    /// One nftables table for each family.
    Nftables,
    /// A relay in this process.
    Userspace,
}
