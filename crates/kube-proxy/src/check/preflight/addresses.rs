//! Finds Service addresses that two Services claim, that the node has, or that a route covers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proxy::{Model, Protocol};

use super::routes::Route;
use crate::check::finding::{Finding, some};

const NAME: &str = "addresses";
/// Largest number of addresses near this node that have a finding of their own.
const NAMED: usize = 5;

/// Reports the API server's addresses, which no Service may use. Returns `None` if the source has
/// no API server.
pub(super) fn api_server(guarded: &[String]) -> Option<Finding> {
    let message = format!("no Service may have {}", guarded.join(", "));
    (!guarded.is_empty()).then(|| Finding::ok("api server", message))
}

/// Returns findings about conflicting addresses. `own` has the node's addresses with their links,
/// except the addresses on the link of IPVS mode. `near` describes the addresses that other hosts
/// near the node may have.
pub(super) fn judge(
    model: &Model,
    own: &BTreeMap<IpAddr, String>,
    routes: &[Route],
    near: &[String],
    mode: &str,
) -> Vec<Finding> {
    let mut claims: BTreeMap<(SocketAddr, Protocol), BTreeSet<String>> = BTreeMap::new();
    let mut carried = BTreeSet::new();
    let mut covered: BTreeMap<String, String> = BTreeMap::new();
    let views = model.service_names().filter_map(|name| model.view(name));
    for service in views.map(|view| view.service) {
        let name = service.name.to_string();
        let addresses = service.cluster_ips.iter().chain(&service.external_ips);
        let addresses: BTreeSet<IpAddr> = addresses.chain(&service.ingress_ips).copied().collect();
        for address in &addresses {
            if let Some(link) = own.get(address) {
                carried.insert(format!("{address} of {name} on {link}"));
            }
            for port in &service.ports {
                let at = (SocketAddr::new(*address, port.port), port.protocol);
                claims.entry(at).or_default().insert(name.clone());
            }
        }
        for address in &service.cluster_ips {
            let covers = |route: &&Route| route.net.contains(address);
            if let Some(route) = routes.iter().find(covers) {
                let route = format!("{} on {}", route.net, route.link);
                covered
                    .entry(route)
                    .or_insert_with(|| format!("{address} of {name}"));
            }
        }
    }
    let mut findings = Vec::new();
    let contested: Vec<String> = claims
        .iter()
        .filter(|(_, names)| names.len() > 1)
        .map(|((at, protocol), names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("{at}/{protocol} ({})", names.join(", "))
        })
        .collect();
    if !contested.is_empty() {
        findings.push(Finding::warn(
            NAME,
            format!(
                "claimed by two Services, of which the older one has it: {}; give one of them \
                 another address or port",
                some(&contested)
            ),
        ));
    }
    if !carried.is_empty() {
        let carried: Vec<String> = carried.into_iter().collect();
        let what = match mode {
            "ipvs" => "are served, and not bound to kube-ipvs0",
            _ => {
                "are served by rules: the node's own listeners at those ports are not reachable \
                 there"
            }
        };
        findings.push(Finding::warn(
            NAME,
            format!(
                "this node has addresses of Services on other interfaces, which {what}: {}",
                some(&carried)
            ),
        ));
    }
    if !covered.is_empty() {
        let covered: Vec<String> = covered
            .into_iter()
            .map(|(route, address)| format!("{route} has {address}"))
            .collect();
        findings.push(Finding::warn(
            NAME,
            format!(
                "routes of this node lead to networks in which Services are: {}; hosts in both \
                 are not reached: \
                 check --service-cluster-ip-range against the networks of nodes and pods",
                some(&covered)
            ),
        ));
    }
    let (named, others) = near.split_at(near.len().min(NAMED));
    findings.extend(named.iter().map(|line| Finding::warn(NAME, line)));
    if !others.is_empty() {
        let message = format!("and {} more addresses near this node", others.len());
        findings.push(Finding::warn(NAME, message));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            NAME,
            "no conflicts between Services, or with addresses and routes of this node",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use proxy::{Event, Service};

    use super::*;
    use crate::check::finding::Status;

    fn service(name: &str, ip: &str, external: &[&str]) -> Service {
        Service {
            external_ips: external.iter().map(|ip| ip.parse().unwrap()).collect(),
            ..fixtures::service(name, ip.parse::<IpAddr>().unwrap())
        }
    }

    fn told(services: Vec<Service>, own: &[(&str, &str)], routes: &[(&str, &str)]) -> Vec<String> {
        let mut model = Model::new();
        for service in services {
            model.apply(Event::ServiceApplied(service));
        }
        let own = own
            .iter()
            .map(|(ip, link)| (ip.parse().unwrap(), (*link).to_owned()));
        let routes = routes.iter().map(|(net, link)| Route {
            net: net.parse().unwrap(),
            link: (*link).to_owned(),
        });
        let routes: Vec<Route> = routes.collect();
        let findings = judge(&model, &own.collect(), &routes, &[], "ipvs");
        let is_ok = findings.len() == 1 && findings[0].status == Status::Ok;
        if is_ok {
            return Vec::new();
        }
        findings.into_iter().map(|of| of.message).collect()
    }

    #[test]
    fn conflicting_addresses_are_reported_with_their_services() {
        let web = || service("web", "10.96.0.10", &["192.0.2.1"]);
        let api = || service("api", "10.96.0.11", &["192.0.2.1"]);
        let around = [("10.97.0.0/16", "eth1"), ("fd00::/64", "eth1")];
        assert!(told(vec![web()], &[("192.0.2.9", "eth0")], &around).is_empty());
        let two = told(vec![web(), api()], &[], &[]);
        assert!(
            two[0].contains("192.0.2.1:80/TCP (default/api, default/web)"),
            "{two:?}"
        );
        let carried = told(vec![web()], &[("192.0.2.1", "eth0")], &[]);
        assert!(
            carried[0].contains("192.0.2.1 of default/web on eth0"),
            "{carried:?}"
        );
        let covered = told(vec![web()], &[], &[("10.96.0.0/24", "eth1")]);
        assert!(
            covered[0].contains("10.96.0.0/24 on eth1 has 10.96.0.10 of default/web"),
            "{covered:?}"
        );
    }
}
