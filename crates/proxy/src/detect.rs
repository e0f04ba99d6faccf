//! Detection of local traffic. Traffic from this node's own pods needs no masquerading.

use ipnet::IpNet;

/// Detection of local traffic (`--detect-local-mode`) for one IP family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalDetector {
    /// No detection. As in upstream, only traffic from a service address is then masqueraded.
    #[default]
    None,
    /// Detection by source address: modes `ClusterCIDR` and `NodeCIDR`.
    SourceNet(IpNet),
    /// Detection by ingress bridge: mode `BridgeInterface`.
    Bridge(String),
    /// Detection by the prefix of the ingress interface's name: mode `InterfaceNamePrefix`.
    InterfacePrefix(String),
}
