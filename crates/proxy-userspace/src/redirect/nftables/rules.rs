//! Builds the chains of the nf\_tables table and their rules, in the form in which `nft` would
//! write them.

use std::net::IpAddr;

use ipnet::IpNet;
use kube_rules::LOCALHOST;
use kube_rules::nft::{ADDRESS_AND_PORT, Line, PORT, Sense, Side};
use nftables_netlink::{BaseChain, Chain, ChainKind, Hook, Policy, Rule, Verdict};
use proxy::{IpFamily, LocalDetector};

use super::layout::Origin;
use crate::plan::{Base, NodePortsAt};

/// Priority of the chains: `NF_IP_PRI_NAT_DST` minus 10. So the chains precede those of iptables,
/// whose leftover rules may lead to closed ports.
const PRIORITY: i32 = -110;

/// Prefix of the comment of each rule for NodePorts.
pub(super) const EVERYWHERE: &str = "NodePorts";

/// Returns the base chains `prerouting` and `output` of the table, with their rules.
pub(super) fn chains(
    family: IpFamily,
    base: &Base,
    detector: &LocalDetector,
) -> Vec<(Chain, Vec<Rule>)> {
    let chain = |name: &str, hook| Chain {
        name: name.into(),
        base: Some(BaseChain {
            kind: ChainKind::Nat,
            hook,
            priority: PRIORITY,
            policy: Policy::Accept,
        }),
        comment: None,
    };
    let pods = Line::new(family).pod_traffic(Sense::Is, detector);
    let from_pods = pods.map(|pods| (Origin::Pods, pods));
    let from_outside = (Origin::Outside, Line::new(family));
    let from_elsewhere: Vec<_> = from_pods.into_iter().chain([from_outside]).collect();
    let of_node_ports = |(from, line): &(Origin, Line)| node_ports(family, *from, line, base);
    let prerouting = from_elsewhere
        .iter()
        .map(|(from, line)| portals(*from, line))
        .chain(from_elsewhere.iter().flat_map(of_node_ports));
    let node = Line::new(family);
    let own = base.own_mark.into_iter().map(|mark| pass_by(family, mark));
    let output = own.chain([portals(Origin::Node, &node)]).chain(node_ports(
        family,
        Origin::Node,
        &node,
        base,
    ));
    vec![
        (chain("prerouting", Hook::Prerouting), prerouting.collect()),
        (chain("output", Hook::Output), output.collect()),
    ]
}

/// Returns the rule that exempts packets of the relay from the redirects.
fn pass_by(family: IpFamily, mark: u32) -> Rule {
    let line = Line::new(family).marked(mark).verdict(Verdict::Return);
    line.comment("connections of kube-proxy itself")
}

/// Returns the rule that looks up destination addresses and ports in the map of portals.
fn portals(from: Origin, line: &Line) -> Rule {
    let [map, _] = from.maps();
    let line = line.clone().translate_by(ADDRESS_AND_PORT, map);
    line.comment("addresses of Services")
}

/// Returns the rules that look up NodePorts in their map. This is one rule, or one rule for each
/// address at which NodePorts are served.
fn node_ports(family: IpFamily, from: Origin, line: &Line, base: &Base) -> Vec<Rule> {
    let [_, map] = from.maps();
    let line = line.clone();
    let to = Side::Destination;
    let of = |line: Line, comment: &str| line.translate_by(PORT, map).comment(comment);
    match &base.node_ports {
        NodePortsAt::Everywhere => vec![of(line.of_this_node(to), EVERYWHERE)],
        NodePortsAt::NotAtLocalhost => {
            let localhost = match family {
                IpFamily::V4 => LOCALHOST,
                IpFamily::V6 => family.localhost().into(),
            };
            let line = line.in_net(to, Sense::IsNot, localhost);
            vec![of(line.of_this_node(to), EVERYWHERE)]
        }
        NodePortsAt::These(addresses) => {
            let at = |address: &IpAddr| {
                let line = line.clone();
                let line = line.in_net(to, Sense::Is, IpNet::from(*address));
                of(line, &comment_of(*address))
            };
            addresses.iter().map(at).collect()
        }
    }
}

/// Returns the comment of the rule for NodePorts at one address.
pub(super) fn comment_of(address: IpAddr) -> String {
    format!("{EVERYWHERE} at {address}")
}
