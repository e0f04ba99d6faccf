//! Detection of local traffic, which comes from this node's own pods and needs no masquerading.

use ipnet::IpNet;

/// Detection of local traffic (`--detect-local-mode`) for one IP family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalDetector {
    /// No detection: upstream then masquerades only traffic that comes from a cluster IP.
    #[default]
    None,
    /// Detection by source address: modes `ClusterCIDR` and `NodeCIDR`.
    SourceNet(IpNet),
    /// Detection by the bridge that packets enter through: mode `BridgeInterface`.
    Bridge(String),
    /// Detection by the prefix of the interface that packets enter through: mode `InterfaceNamePrefix`.
    InterfacePrefix(String),
}
