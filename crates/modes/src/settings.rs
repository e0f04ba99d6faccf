//! What the modes read of the flags: what all of them read, and a part for each.
//!
//! Modes that are opened with equal settings are equal, so that a changed configuration file opens
//! them anew exactly where these differ. The flags of every mode are checked, whichever is chosen.

use super::iptables::settings as iptables;
use super::ipvs::settings as ipvs;
use super::nftables::settings as nftables;
use super::shared::Shared;
use super::userspace::settings as userspace;

/// What the modes read. Equal are those by which the mode that is chosen is the same.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How Services are carried.
    pub chosen: ProxyMode,
    /// What all of them read.
    pub shared: Shared,
    /// What iptables mode alone reads.
    pub iptables: iptables::Settings,
    /// What IPVS mode alone reads.
    pub ipvs: ipvs::Settings,
    /// What nftables mode alone reads.
    pub nftables: nftables::Settings,
    /// What userspace mode alone reads.
    pub userspace: userspace::Settings,
}

/// `--proxy-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyMode {
    /// By rules. An empty mode is this, as upstream's on Linux: an image that is swapped changes no
    /// data plane.
    #[default]
    Iptables,
    /// By virtual servers.
    Ipvs,
    /// By one table of nftables.
    Nftables,
    /// By this process itself.
    Userspace,
}
