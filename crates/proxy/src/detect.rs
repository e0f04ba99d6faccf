//! Which traffic counts as local to this node, that is, comes from its own pods and needs no
//! masquerading.

use ipnet::IpNet;

/// How local traffic is told apart (`--detect-local-mode`), for one IP family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalDetector {
    /// Not told apart: upstream then masquerades what comes from a cluster IP only.
    #[default]
    None,
    /// By source address: modes `ClusterCIDR` and `NodeCIDR`.
    SourceNet(IpNet),
    /// By the bridge it enters through: mode `BridgeInterface`.
    Bridge(String),
    /// By the prefix of the interface it enters through: mode `InterfaceNamePrefix`.
    InterfacePrefix(String),
}
