//! Warns about settings that name only one IP family in a dual-stack cluster. Upstream does the
//! same checks at its start (`checkBadConfig`, `checkBadIPConfig`).
//!
//! A family counts as in use if the cluster's objects have addresses of this family. The checked
//! settings do not decide which families are in use.

use ipnet::IpNet;
use proxy::{Changes, IpFamily, Model, Node, NodePortAddresses, Selection};
use proxy_nftables::LocalhostNodePorts;
use tracing::warn;

use modes::detect_local::DetectLocal;
use modes::settings::Settings;

/// Warning about a setting that does not fit the cluster or this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingWarning {
    /// Flag that sets the unfit value.
    pub(crate) flag: &'static str,
    pub(crate) message: String,
}

/// Checker that warns once about each setting without a value for an IP family in use.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    in_use: [bool; IpFamily::ALL.len()],
    /// Warnings already logged for the current settings.
    told: Vec<SettingWarning>,
}

impl Watch {
    /// Checks the settings after objects changed. Costs O(1), unless an IP family is new or the
    /// Node changed.
    pub(crate) fn look(&mut self, settings: &Settings, model: &Model, changes: &Changes) {
        let before = self.in_use;
        for (is_used, family) in self.in_use.iter_mut().zip(IpFamily::ALL) {
            let of_node = changes.node && model.node().is_some_and(|node| has(node, family));
            *is_used |= changes.families.contains(family) || of_node;
        }
        if before != self.in_use || changes.node {
            self.judge(settings, model);
        }
    }

    /// Checks the settings after they or the Node have changed, and logs new warnings.
    pub(crate) fn judge(&mut self, settings: &Settings, model: &Model) {
        let all = self.in_use.into_iter().zip(IpFamily::ALL);
        let used: Vec<IpFamily> = all.filter_map(|(is, of)| is.then_some(of)).collect();
        let found = judge(settings, model.node(), &used);
        for one in found.iter().filter(|one| !self.told.contains(one)) {
            warn!("{}", one.message);
        }
        self.told = found;
    }

    /// Returns the warnings that hold now.
    pub(crate) fn found(&self) -> &[SettingWarning] {
        &self.told
    }
}

/// Returns upstream's hint that NodePorts accept connections on all addresses, or `None` if a flag
/// restricts the addresses.
pub(crate) fn hint(settings: &Settings) -> Option<&'static str> {
    (settings.shared.node_port_addresses == NodePortAddresses::All).then_some(
        "--nodeport-addresses is not given: NodePorts are served at every address of this node; consider `primary`, which \
         serves them at those of its Node alone",
    )
}

/// Returns the IP families of this Node's addresses and of the Services' cluster IPs. Walks through
/// all Services.
pub(crate) fn families_of(model: &Model) -> Vec<IpFamily> {
    let is_used = |family: &IpFamily| {
        let mut services = model.services();
        model.node().is_some_and(|node| has(node, *family))
            || services.any(|service| service.cluster_ip(*family).is_some())
    };
    IpFamily::ALL.into_iter().filter(is_used).collect()
}

fn has(node: &Node, family: IpFamily) -> bool {
    let mut addresses = node.addresses.iter();
    addresses.any(|address| IpFamily::of(*address) == family)
}

/// Returns the settings that have no usable value for at least one of the IP families in `used`.
/// Loopback addresses are not usable.
pub(crate) fn judge(
    settings: &Settings,
    node: Option<&Node>,
    used: &[IpFamily],
) -> Vec<SettingWarning> {
    let mut found = Vec::new();
    for family in used {
        found.extend(detection(&settings.shared.detect_local, node, *family));
        found.extend(node_ports(settings, *family));
    }
    found
}

/// Returns a warning if the flag that detects local traffic has values of the other IP family only,
/// or if the Node has no pod network of `family`.
fn detection(
    detection: &DetectLocal,
    node: Option<&Node>,
    family: IpFamily,
) -> Option<SettingWarning> {
    let lacks = |nets: &[IpNet]| !nets.is_empty() && !nets.iter().any(|net| is_of(net, family));
    let (flag, what, next) = match detection {
        DetectLocal::ClusterCidr(nets) if lacks(nets) => (
            "--cluster-cidr",
            format!("--cluster-cidr has no {family} network"),
            format!("add the {family} network of pods to it"),
        ),
        DetectLocal::NodeCidr => {
            let lack = match node {
                Some(node) if node.pod_cidrs.iter().any(|net| is_of(net, family)) => return None,
                Some(node) => format!(
                    "spec.podCIDRs of Node {} has no {family} network",
                    node.name
                ),
                None => "this node has no Node object, which would name its networks".to_owned(),
            };
            (
                "--detect-local-mode",
                format!("{lack} (--detect-local-mode=NodeCIDR)"),
                format!("choose another --detect-local-mode, or give nodes {family} networks"),
            )
        }
        _ => return None,
    };
    Some(SettingWarning {
        flag,
        message: format!(
            "{what}, and this cluster uses {family}: {family} packets of this node's pods are taken for packets from \
             outside, so that externalTrafficPolicy: Local holds for them and masquerading differs; {next}"
        ),
    })
}

/// Returns a problem if `--nodeport-addresses` has no network of this IP family, or only loopback
/// networks of it.
fn node_ports(settings: &Settings, family: IpFamily) -> Option<SettingWarning> {
    const FLAG: &str = "--nodeport-addresses";
    let addresses = &settings.shared.node_port_addresses;
    let message = match addresses.of(family) {
        Selection::All if addresses.lacks(family) => {
            // If the flag has no network of an IP family, upstream also serves every address of
            // this family, except in nftables mode.
            let which = if settings.chosen.name() == "nftables" {
                "no"
            } else {
                "every"
            };
            format!(
                "{FLAG} has no {family} network, and this cluster uses {family}: NodePorts are served at {which} {family} \
                 address of this node; add an {family} network to it, or give `primary`"
            )
        }
        Selection::Within(nets) if nets.iter().all(|net| net.addr().is_loopback()) => {
            let mode = settings.chosen.name();
            let is_served = match mode {
                "iptables" | "userspace" => family == IpFamily::V4,
                "nftables" => {
                    let localhost = settings.nftables.localhost(&settings.shared, family);
                    localhost == LocalhostNodePorts::Served
                }
                _ => false,
            };
            let served = if is_served {
                "to this node itself alone"
            } else {
                "nowhere"
            };
            format!(
                "{FLAG} has loopback addresses alone of {family}, where {mode} mode serves NodePorts {served}; add a network \
                 of this node's {family} addresses to it, or give `primary`"
            )
        }
        _ => return None,
    };
    Some(SettingWarning {
        flag: FLAG,
        message,
    })
}

fn is_of(net: &IpNet, family: IpFamily) -> bool {
    IpFamily::of(net.addr()) == family
}

#[cfg(test)]
mod tests {
    use proxy::{Event, NamespacedName, Service};

    use super::*;
    use crate::tests::options;

    fn told(flags: &[&str], used: &[IpFamily]) -> Vec<String> {
        let mode = flags.iter().any(|flag| flag.starts_with("--proxy-mode"));
        let default = (!mode).then_some("--proxy-mode=ipvs");
        let flags: Vec<&str> = default.into_iter().chain(flags.iter().copied()).collect();
        let found = judge(&options(&flags).modes, None, used).into_iter();
        found.map(|one| one.message).collect()
    }

    #[test]
    fn a_loopback_network_serves_node_ports_in_nftables_mode_only_with_the_gate() {
        let gate = "--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true";
        let flags = ["--proxy-mode=nftables", "--nodeport-addresses=127.0.0.0/8"];
        let without = told(&flags, &[IpFamily::V4]);
        assert!(without[0].contains("NodePorts nowhere"), "{without:?}");
        let with = told(&[flags[0], flags[1], gate], &[IpFamily::V4]);
        assert!(with[0].contains("to this node itself alone"), "{with:?}");
    }

    #[test]
    fn single_family_cidr_flags_cause_a_warning_on_dual_stack() {
        let (v4, v6, both) = (IpFamily::V4, IpFamily::V6, IpFamily::ALL);
        let quiet = [
            (
                &[
                    "--cluster-cidr=10.244.0.0/16",
                    "--nodeport-addresses=172.35.0.0/24",
                ][..],
                &[v4][..],
            ),
            (&["--cluster-cidr=10.244.0.0/16,fd44::/16"], &both),
            (&["--nodeport-addresses=172.35.0.0/24,fd35::/64"], &both),
            (&["--nodeport-addresses=primary"], &both),
            (
                &["--nodeport-addresses=127.0.0.0/8,172.35.0.0/24,fd35::/64"],
                &both,
            ),
            (
                &[
                    "--detect-local-mode=InterfaceNamePrefix",
                    "--pod-interface-name-prefix=veth",
                ],
                &both,
            ),
            (&[], &both),
        ];
        for (flags, used) in quiet {
            assert_eq!(told(flags, used), Vec::<String>::new(), "{flags:?}");
        }
        for (flags, used, parts) in [
            (
                &["--cluster-cidr=10.244.0.0/16"][..],
                &both[..],
                &["--cluster-cidr has no IPv6"][..],
            ),
            (
                &["--cluster-cidr=fd44::/16"],
                &[v4],
                &["--cluster-cidr has no IPv4"],
            ),
            (
                &["--nodeport-addresses=172.35.0.0/24"],
                &both,
                &["--nodeport-addresses has no IPv6", "every IPv6 address"],
            ),
            (
                &["--nodeport-addresses=172.35.0.0/24"],
                &[v6],
                &["has no IPv6"],
            ),
        ] {
            let told = told(flags, used);
            assert!(
                told.len() == 1 && parts.iter().all(|part| told[0].contains(part)),
                "{flags:?}: {told:?}"
            );
        }
        let at_none = told(
            &[
                "--proxy-mode=nftables",
                "--nodeport-addresses=172.35.0.0/24",
            ],
            &both,
        );
        assert!(
            at_none.len() == 1 && at_none[0].contains("at no IPv6 address"),
            "{at_none:?}"
        );
        let loopback = told(&["--nodeport-addresses=127.0.0.0/8"], &both);
        assert!(
            loopback.len() == 2
                && loopback[0].contains(
                    "loopback addresses alone of IPv4, where ipvs mode serves NodePorts nowhere"
                )
                && loopback[1].contains("has no IPv6"),
            "{loopback:?}"
        );
    }

    #[test]
    fn a_single_family_warning_appears_once_per_setting() {
        let settings = options(&["--proxy-mode=ipvs", "--cluster-cidr=10.244.0.0/16"]).modes;
        let (mut watch, mut model) = (Watch::default(), Model::new());
        let mut after = |name: &str, ip: &str| {
            let service = Service::at(NamespacedName::new("default", name), [ip.parse().unwrap()]);
            model.apply(Event::ServiceApplied(service));
            let changes = model.take_changes();
            watch.look(&settings, &model, &changes);
            watch.told.len()
        };
        assert_eq!(after("a", "10.96.0.1"), 0);
        assert_eq!(after("b", "fd96::1"), 1);
        assert_eq!(after("c", "fd96::2"), 1);
        assert_eq!(families_of(&model), IpFamily::ALL);
    }
}
