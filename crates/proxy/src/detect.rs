//! Detection of traffic from this node's pods (`--detect-local-mode`). Rules need not masquerade
//! such traffic.

use ipnet::IpNet;

/// Detector of traffic from pods of this node, for one IP family (`--detect-local-mode`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalDetector {
    /// No detection. As in upstream, rules then masquerade packets to cluster IPs only with
    /// `--masquerade-all`. IPVS mode with upstream's semantics also masquerades packets that have a
    /// service address as their source.
    #[default]
    None,
    /// Detection by the source address, for the modes `ClusterCIDR` and `NodeCIDR`.
    SourceNet(IpNet),
    /// Detection by the bridge on which packets arrive, for the mode `BridgeInterface`.
    Bridge(String),
    /// Detection by a name prefix of the interface on which packets arrive, for the mode
    /// `InterfaceNamePrefix`.
    InterfacePrefix(String),
}
