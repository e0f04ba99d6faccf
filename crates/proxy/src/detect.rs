//! Detection of traffic from pods of this node. Rules need not masquerade such traffic.

use ipnet::IpNet;

/// Detector of traffic from pods of this node, for one IP family (`--detect-local-mode`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LocalDetector {
    /// No detection. As in upstream, rules then do not masquerade packets to cluster IPs, unless
    /// `--masquerade-all` is set. With upstream's semantics of IPVS mode, packets whose source is a
    /// service address are an exception.
    #[default]
    None,
    /// Detection by the source address, for the modes `ClusterCIDR` and `NodeCIDR`.
    SourceNet(IpNet),
    /// Detection by the bridge on which packets arrive, for the mode `BridgeInterface`.
    Bridge(String),
    /// Detection by the name of the interface on which packets arrive (mode `InterfaceNamePrefix`).
    /// The text is the prefix of the name.
    InterfacePrefix(String),
}
