//! Settings for the detection of traffic from pods of this node.

use ipnet::IpNet;
use proxy::{IpFamily, LocalDetector, Node};

use flags::Flags;
use flags::nets::nets;
use flags::unusable_flag::UnusableFlag;

/// Largest length of an interface name in bytes (`IFNAMSIZ` without the final NUL).
const INTERFACE_NAME_MAX: usize = 15;

/// Value of `--detect-local-mode`, with its parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetectLocal {
    /// Pod networks of the cluster, at most one for each IP family. Without a network of a family,
    /// no traffic of this family counts as local.
    ClusterCidr(Vec<IpNet>),
    /// Pod networks in the Node object of this node.
    NodeCidr,
    /// Name of the bridge to which pods are attached.
    BridgeInterface(String),
    /// Prefix of the names of pods' interfaces.
    InterfaceNamePrefix(String),
}

impl DetectLocal {
    pub(super) fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
        let cluster_nets = match flags.cluster_cidr.as_deref() {
            None => Vec::new(),
            Some(given) => {
                let nets = nets("cluster-cidr", &given.split(',').collect::<Vec<_>>())?;
                for family in IpFamily::ALL {
                    let of_family = nets
                        .iter()
                        .filter(|net| IpFamily::of(net.addr()) == family)
                        .count();
                    if of_family > 1 {
                        return Err(UnusableFlag::new(
                            "cluster-cidr",
                            given,
                            format!(
                                "{of_family} {family} networks; give at most one of each family"
                            ),
                        ));
                    }
                }
                nets
            }
        };
        match &*flags.detect_local_mode {
            "" | "ClusterCIDR" => Ok(DetectLocal::ClusterCidr(cluster_nets)),
            "NodeCIDR" => Ok(DetectLocal::NodeCidr),
            "BridgeInterface" => interface(
                "pod-bridge-interface",
                &flags.pod_bridge_interface,
                "BridgeInterface",
            )
            .map(DetectLocal::BridgeInterface),
            "InterfaceNamePrefix" => interface(
                "pod-interface-name-prefix",
                &flags.pod_interface_name_prefix,
                "InterfaceNamePrefix",
            )
            .map(DetectLocal::InterfaceNamePrefix),
            other => Err(UnusableFlag::new(
                "detect-local-mode",
                other,
                "give ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix",
            )),
        }
    }

    /// Returns the detector of this node's pod traffic for one IP family. In mode `NodeCIDR`, it
    /// needs the Node object.
    pub fn detector(&self, family: IpFamily, node: Option<&Node>) -> LocalDetector {
        let first = |nets: &[IpNet]| {
            nets.iter()
                .find(|net| IpFamily::of(net.addr()) == family)
                .map_or(LocalDetector::None, |net| LocalDetector::SourceNet(*net))
        };
        match self {
            Self::ClusterCidr(nets) => first(nets),
            Self::NodeCidr => node.map_or(LocalDetector::None, |node| first(&node.pod_cidrs)),
            Self::BridgeInterface(name) => LocalDetector::Bridge(name.clone()),
            Self::InterfaceNamePrefix(prefix) => LocalDetector::InterfacePrefix(prefix.clone()),
        }
    }
}

fn interface(flag: &'static str, name: &str, mode: &str) -> Result<String, UnusableFlag> {
    if name.is_empty() {
        Err(UnusableFlag::new(
            flag,
            name,
            format!("--detect-local-mode={mode} needs it: give the interface's name"),
        ))
    } else if name.len() > INTERFACE_NAME_MAX
        || name.contains(|c: char| c == '/' || c.is_whitespace())
    {
        Err(UnusableFlag::new(
            flag,
            name,
            format!(
                "an interface's name has at most {INTERFACE_NAME_MAX} characters, and neither / nor spaces"
            ),
        ))
    } else {
        Ok(name.to_owned())
    }
}
