//! Settings of the modes, read from the flags: those of every mode, and a part for each.
//!
//! Two equal settings open equal modes. A changed configuration file reopens the modes only if the
//! settings differ. The flags of every mode are checked, whichever is chosen.

use super::iptables::settings as iptables;
use super::ipvs::settings as ipvs;
use super::nftables::settings as nftables;
use super::shared::Shared;
use super::userspace::settings as userspace;

/// Settings of the modes. Two are equal if the chosen mode behaves the same with both.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The chosen mode.
    pub chosen: ProxyMode,
    /// Settings of every mode.
    pub shared: Shared,
    /// Settings of iptables mode alone.
    pub iptables: iptables::Settings,
    /// Settings of IPVS mode alone.
    pub ipvs: ipvs::Settings,
    /// Settings of nftables mode alone.
    pub nftables: nftables::Settings,
    /// Settings of userspace mode alone.
    pub userspace: userspace::Settings,
}

/// `--proxy-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyMode {
    /// Rules of iptables. As in upstream on Linux, an empty value means this mode, so that a
    /// swapped image changes no data plane.
    #[default]
    Iptables,
    /// Virtual servers.
    Ipvs,
    /// One table of nftables.
    Nftables,
    /// This process itself.
    Userspace,
}
