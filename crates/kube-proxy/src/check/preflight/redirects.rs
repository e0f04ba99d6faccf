//! Finds other programs' iptables rules that redirect packets of Services before kube-proxy's own
//! rules see them, such as a network plugin's rules for `hostPort`.

use std::net::{IpAddr, SocketAddr};

use explain::nobodys;
use iptables::{Iptables, RuleLine, Table};
use modes::footprints;
use packet_path::read::LiveKernel;
use packet_path::{Branch, Hook, Kernel, Packet, Ruleset as _, Tracking, Xtables};
use proxy::{IpFamily, Model, Protocol};
use service_counters::frontend_addresses::{FrontendAddress, places};

use crate::check::finding::{Finding, some};

const NAME: &str = "iptables";

/// Built-in chains that may redirect packets before kube-proxy's rules see them.
const BUILT_IN: [(Hook, &str); 2] = [(Hook::Prerouting, "PREROUTING"), (Hook::Output, "OUTPUT")];

/// Warns of Services whose packets another program's nat rules redirect to an address that is no
/// endpoint of the Service. `own` are the node's addresses.
pub(super) fn judge(iptables: &Iptables, model: &Model, own: &[IpAddr]) -> Option<Finding> {
    let mut all = Vec::new();
    for family in IpFamily::ALL {
        // Ignores unreadable rules, which another finding reports.
        let saved = iptables.save(family).unwrap_or_default();
        if let Some(earlier) = EarlierRules::of(&saved)
            && let Ok(kernel) = LiveKernel::open()
        {
            all.extend(earlier.redirected(family, model, own, &kernel));
        }
    }
    (!all.is_empty()).then(|| {
        let message = format!(
            "rules of other programs redirect packets of Services, because packets meet them \
             before kube-proxy's rules: {}; give the other program (such as a pod's hostPort) or \
             the Service another port",
            some(&all)
        );
        Finding::warn(NAME, message)
    })
}

/// The other programs' nat rules that packets meet before kube-proxy's chains.
struct EarlierRules {
    rules: Xtables,
    /// Hooks at which the built-in chain jumps to a chain of kube-proxy.
    hooks: Vec<Hook>,
}

impl EarlierRules {
    /// Selects the rules from the output of `iptables-save`. Returns `None` if they change no
    /// destination.
    fn of(saved: &str) -> Option<Self> {
        let is_ours = |chain: &str| {
            footprints::ALL
                .iter()
                .any(|mode| mode.has_chain(Table::Nat, chain))
        };
        let (mut rules, mut jumping, mut has_change) = (Xtables::default(), Vec::new(), false);
        let nat = saved.lines().skip_while(|line| *line != "*nat");
        for line in nat.take_while(|line| *line != "COMMIT") {
            if let Some(rule) = RuleLine::parse(line) {
                let target = rule.target().unwrap_or_default();
                if is_ours(&target) {
                    jumping.push(rule.chain);
                }
                if is_ours(rule.chain) || jumping.contains(&rule.chain) {
                    continue;
                }
                has_change |= matches!(&*target, "DNAT" | "REDIRECT" | "NETMAP");
            }
            rules.read(line);
        }
        let hooks = BUILT_IN.iter().filter(|(_, chain)| jumping.contains(chain));
        let hooks = hooks.map(|(hook, _)| *hook).collect();
        has_change.then_some(Self { rules, hooks })
    }

    /// Lists the addresses of Services whose packets the rules redirect, each with the rule's
    /// chain.
    fn redirected(
        &self,
        family: IpFamily,
        model: &Model,
        own: &[IpAddr],
        kernel: &dyn Kernel,
    ) -> Vec<String> {
        let addresses = model.node().into_iter().flat_map(|node| &node.addresses);
        let node = addresses
            .chain(own)
            .find(|ip| IpFamily::of(**ip) == family && !ip.is_loopback());
        let mut found = Vec::new();
        for view in model.service_names().filter_map(|name| model.view(name)) {
            let is_endpoint = |ip: IpAddr| {
                let mut endpoints = view.slices().flat_map(|slice| slice.endpoints.iter());
                endpoints.any(|endpoint| endpoint.address == ip)
            };
            let ports = view.service.ports.iter();
            for place in ports.flat_map(|port| places(view.service, port)) {
                let (at, protocol) = match (place, node) {
                    (FrontendAddress::At(at), _) => {
                        (SocketAddr::new(at.address, at.port), at.protocol)
                    }
                    (FrontendAddress::NodePort(port, protocol), Some(node)) => {
                        (SocketAddr::new(*node, port), protocol)
                    }
                    (FrontendAddress::NodePort(..), None) => continue,
                };
                if IpFamily::of(at.ip()) == family
                    && let Some((to, chain)) = self.redirect(at, protocol, kernel)
                    && !is_endpoint(to.ip())
                {
                    let name = &view.service.name;
                    found.push(format!("{at}/{protocol} of {name} to {to} (chain {chain})"));
                }
            }
        }
        found
    }

    /// Returns the address to which the rules redirect a packet from outside of the cluster, with
    /// the redirecting rule's chain.
    fn redirect(
        &self,
        at: SocketAddr,
        protocol: Protocol,
        kernel: &dyn Kernel,
    ) -> Option<(SocketAddr, String)> {
        let hooks = self.hooks.iter();
        let mut bases = hooks.flat_map(|hook| self.rules.base_chains(*hook));
        bases.find_map(|base| {
            let from = nobodys(at.is_ipv4());
            let mut packet = Packet::new(protocol.number(), from, at.ip(), at.port());
            packet.tracking = Tracking::New;
            let branches = self.rules.walk(&base, Branch::new(packet), kernel);
            let mut sure = branches.iter().filter(|branch| branch.doubts.is_empty());
            let redirected = sure.find(|branch| branch.packet.destination_changed)?;
            let place = &redirected.steps.last()?.place;
            let chain = place.strip_prefix("nat ").unwrap_or(place);
            Some((redirected.packet.to(), chain.to_owned()))
        })
    }
}

#[cfg(test)]
mod tests {
    use packet_path::Snapshot;
    use proxy::{Event, NamespacedName, Service, ServicePort};

    use super::*;

    #[test]
    fn services_behind_a_foreign_redirect_are_reported() {
        let service = Service {
            ports: [80, 443]
                .into_iter()
                .map(|port| ServicePort {
                    name: "".into(),
                    protocol: Protocol::Tcp,
                    port,
                    node_port: Some(30_000 + port),
                })
                .collect(),
            ..Service::at(NamespacedName::new("shop", "web"), [[10, 96, 0, 1].into()])
        };
        let mut model = Model::new();
        model.apply(Event::ServiceApplied(service));
        let found = |jumps: [&str; 2]| {
            let jumps = jumps.map(|jump| format!("-A PREROUTING {jump}\n")).concat();
            let saved = format!(
                "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n*nat\n:PREROUTING ACCEPT [0:0]\n\
                 :CNI-DN [0:0]\n:KUBE-SERVICES [0:0]\n{jumps}\
                 -A CNI-DN -p tcp -m multiport --dports 80,30443 -j DNAT --to-destination 10.244.1.9:8080\n\
                 -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -j DNAT --to-destination 10.244.1.1\nCOMMIT\n"
            );
            let own = [[127, 0, 0, 1].into(), [172, 35, 0, 100].into()];
            let earlier = EarlierRules::of(&saved).unwrap();
            earlier.redirected(IpFamily::V4, &model, &own, &Snapshot::default())
        };
        let (foreign, ours) = ("-j CNI-DN", "-j KUBE-SERVICES");
        assert_eq!(
            found([foreign, ours]),
            [
                "10.96.0.1:80/TCP of shop/web to 10.244.1.9:8080 (chain CNI-DN)",
                "172.35.0.100:30443/TCP of shop/web to 10.244.1.9:8080 (chain CNI-DN)",
            ]
        );
        assert!(found([ours, foreign]).is_empty());
        // At its next start, kube-proxy adds its jump before the other program's.
        assert!(found([foreign, "-j ACCEPT"]).is_empty());
        let kubelets = "*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n";
        assert!(EarlierRules::of(kubelets).is_none());
    }
}
