//! Detection of local traffic, which comes from this node's own pods and needs no masquerading.

use ipnet::IpNet;

/// Detection of local traffic (`--detect-local-mode`) for one IP family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalDetector {
    /// No detection: upstream then masquerades only traffic that comes from a cluster IP.
    #[default]
    None,
    /// By source address: modes `ClusterCIDR` and `NodeCIDR`.
    SourceNet(IpNet),
    /// By the bridge it enters through: mode `BridgeInterface`.
    Bridge(String),
    /// By the prefix of the interface it enters through: mode `InterfaceNamePrefix`.
    InterfacePrefix(String),
}
