//! Finds the addresses of this node that serve NodePorts, for the model. The model needs them
//! before the modes read them: it must not give a Service's NodePort to an external IP of another
//! Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proxy::IpFamily;
use route_netlink::Rtnetlink;

use super::definition::Start;
use crate::footprints;

/// Returns the sorted addresses of this node that serve NodePorts. Omits interface addresses of a
/// family if the kernel does not return them.
pub fn addresses(start: &Start<'_>) -> Vec<IpAddr> {
    let mut serving: Vec<IpAddr> = Vec::new();
    for family in IpFamily::ALL {
        let mut facts = start.node_facts(family);
        let node = start.model.node();
        let mut of_node = node.into_iter().flat_map(|node| &node.addresses).copied();
        let flag_ip = facts.flag_ip;
        facts.ip = flag_ip.or_else(|| of_node.find(|ip| IpFamily::of(*ip) == family));
        if let Some(own) = own(family) {
            facts.interface_addresses = own;
            facts.has_addresses = true;
        }
        serving.extend(facts.serving_node_ports([]).unwrap_or_default());
    }
    serving.sort_unstable();
    serving
}

/// Returns the node's addresses in `family`, except loopback addresses and those on links of
/// kube-proxy modes. Returns `None` if they cannot be read.
fn own(family: IpFamily) -> Option<BTreeSet<IpAddr>> {
    let mut rtnetlink = Rtnetlink::open().ok()?;
    let made = footprint::links(footprints::ALL).into_iter();
    let made = made.map(|name| rtnetlink.link(name).map(|link| link.map(|link| link.index)));
    let made: Vec<Option<u32>> = made.collect::<Result<_, _>>().ok()?;
    let all = rtnetlink.addresses(family.into()).ok()?.into_iter();
    let own = all.filter(|held| !made.contains(&Some(held.link)) && !held.address.is_loopback());
    Some(own.map(|held| held.address).collect())
}
