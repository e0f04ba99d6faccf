//! `--ipvs-shim=upstream`: the chains and rules of upstream, in the same order
//! (`pkg/proxy/ipvs/proxier.go`).

use iptables::{Jump, Match, Rule, SourcePort, Table, Target};
use kube_rules::{FORWARD, MARK_MASQ, POSTROUTING, SERVICES};
use proxy::{Protocol, ServiceAddress};

use super::{DST, DST_DST, DST_DST_SRC, NEW, Shim, loopback, mark, node_port_fields, not_local};
use crate::config::Config;
use crate::rules::{CHAINS, Chains, JUMPS};
use crate::sets::Set;

impl Shim {
    /// Returns all chains with their rules, and the jumps to these chains.
    pub(super) fn upstream(&self, config: &Config) -> Chains {
        let chain = |(table, name)| (table, name, self.chain(table, name, config));
        let chains = CHAINS.map(chain).into_iter();
        let chains: Vec<_> = chains.chain(self.early_chains(config)).collect();
        let exists = |jump: &&Jump| {
            let mut chains = chains.iter();
            chains.any(|(table, name, _)| (*table, *name) == (jump.table, jump.to))
        };
        Chains {
            jumps: JUMPS.iter().filter(exists).collect(),
            chains,
        }
    }

    fn chain(&self, table: Table, name: &str, config: &Config) -> Vec<Rule> {
        match (table, name) {
            (Table::Nat, SERVICES) => self.services(config),
            (Table::Nat, POSTROUTING) => self.postrouting(config),
            (Table::Nat, "KUBE-NODE-PORT") => self.node_ports(config),
            (Table::Nat, "KUBE-LOAD-BALANCER") => self.load_balancers(config),
            (Table::Nat, MARK_MASQ) => vec![Rule::new([], mark(config))],
            (Table::Filter, FORWARD) => kube_rules::forward(config.masquerade_mark).into(),
            (Table::Filter, "KUBE-NODE-PORT") => {
                vec![self.set_rule(Set::HealthCheckNodePort, DST, Target::Accept)]
            }
            (Table::Filter, "KUBE-PROXY-FIREWALL") => self.if_filled(
                Set::LoadBalancerFirewall,
                DST_DST,
                "KUBE-SOURCE-RANGES-FIREWALL",
            ),
            (Table::Filter, "KUBE-SOURCE-RANGES-FIREWALL") => self.source_ranges(),
            (Table::Filter, "KUBE-IPVS-FILTER") => self.access_filter(config),
            _ => self.out_filter(config),
        }
    }

    /// Renders the nat chain KUBE-SERVICES, which marks some packets to service addresses for
    /// masquerading, and accepts all others.
    fn services(&self, config: &Config) -> Vec<Rule> {
        let mut chain = vec![Rule::new(
            [Match::Source(loopback(self.family))],
            Target::Return,
        )];
        chain.extend(self.if_filled(Set::LoadBalancer, DST_DST, "KUBE-LOAD-BALANCER"));
        if self.is_filled(Set::ClusterIp) {
            let comment = Match::comment(Set::ClusterIp.comment());
            chain.extend(not_local(config).map(|(from, fields)| {
                let to_set = [comment, self.in_set(Set::ClusterIp, fields)];
                Rule::new(from.into_iter().chain(to_set), MARK_MASQ)
            }));
        }
        if self.is_filled(Set::ExternalIp) {
            chain.push(self.set_rule(Set::ExternalIp, DST_DST, MARK_MASQ));
            chain.extend(self.accept_external(Set::ExternalIp));
        }
        if self.is_filled(Set::ExternalIpLocal) {
            let own = self.own_packets_to(Set::ExternalIpLocal, DST_DST, config);
            chain.extend(own.map(|own| Rule::new(own, MARK_MASQ)));
            chain.extend(self.accept_external(Set::ExternalIpLocal));
        }
        chain.push(Rule::new([Match::DestinationLocal], "KUBE-NODE-PORT"));
        for set in [Set::ClusterIp, Set::LoadBalancer]
            .into_iter()
            .filter(|set| self.is_filled(*set))
        {
            chain.push(Rule::new([self.in_set(set, DST_DST)], Target::Accept));
        }
        chain
    }

    /// Returns two rules that accept packets to external IPs: those whose sender is neither a
    /// bridged pod nor the node, and those whose destination is local.
    fn accept_external(&self, set: Set) -> [Rule; 2] {
        let to_set = || {
            let comment = Match::comment(set.comment());
            [comment, self.in_set(set, DST_DST)].into_iter()
        };
        let from_elsewhere = [Match::NotFromBridgePort, Match::SourceNotLocal];
        [
            Rule::new(to_set().chain(from_elsewhere), Target::Accept),
            Rule::new(to_set().chain([Match::DestinationLocal]), Target::Accept),
        ]
    }

    /// Renders the nat chain KUBE-POSTROUTING, which masquerades marked packets, and packets of
    /// pods that connect to themselves through a Service.
    pub(super) fn postrouting(&self, config: &Config) -> Vec<Rule> {
        let hairpin = Target::Masquerade(SourcePort::Kept);
        let mut chain = self.if_filled(Set::LoopBack, DST_DST_SRC, hairpin);
        let marked = kube_rules::masquerade(config.masquerade_mark, config.source_port);
        chain.extend(marked);
        chain
    }

    fn node_ports(&self, config: &Config) -> Vec<Rule> {
        let mut chain = Vec::new();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let fields = node_port_fields(protocol);
            let own = self.own_packets_to(Set::node_port_local(protocol), fields, config);
            chain.extend(own.map(|own| {
                let of_protocol = [Match::Protocol(protocol)].into_iter();
                Rule::new(of_protocol.chain(own), MARK_MASQ)
            }));
            for (set, target) in [
                (Set::node_port_local(protocol), Target::Return),
                (Set::node_port(protocol), MARK_MASQ.into()),
            ] {
                if self.is_filled(set) {
                    let matches = [
                        Match::Protocol(protocol),
                        Match::comment(set.comment()),
                        self.in_set(set, fields),
                    ];
                    chain.push(Rule::new(matches, target));
                }
            }
        }
        chain
    }

    fn load_balancers(&self, config: &Config) -> Vec<Rule> {
        let own = self.own_packets_to(Set::LoadBalancerLocal, DST_DST, config);
        let own = own.map(|own| Rule::new(own, MARK_MASQ));
        let mut chain: Vec<Rule> = own.into_iter().collect();
        chain.extend(self.if_filled(Set::LoadBalancerLocal, DST_DST, Target::Return));
        chain.push(Rule::new([], MARK_MASQ));
        chain
    }

    fn source_ranges(&self) -> Vec<Rule> {
        let mut chain = self.if_filled(Set::LoadBalancerSourceCidr, DST_DST_SRC, Target::Return);
        chain.extend(self.if_filled(Set::LoadBalancerSourceIp, DST_DST_SRC, Target::Return));
        chain.push(Rule::new([], Target::Drop));
        chain
    }

    /// Renders the filter chain KUBE-IPVS-FILTER. Service addresses are local, so without this
    /// chain, packets to a port without a Service would reach the node's own processes
    /// (kubernetes/kubernetes#72236).
    fn access_filter(&self, config: &Config) -> Vec<Rule> {
        let exposed = [
            (Set::LoadBalancer, DST_DST),
            (Set::ClusterIp, DST_DST),
            (Set::ExternalIp, DST_DST),
            (Set::ExternalIpLocal, DST_DST),
            (Set::HealthCheckNodePort, DST),
        ];
        let mut chain: Vec<_> = exposed
            .into_iter()
            .map(|(set, fields)| Rule::new([self.in_set(set, fields)], Target::Return))
            .collect();
        chain.extend(self.ping_rule(config));
        let rest = [NEW, self.in_set(Set::IpvsIps, DST)];
        chain.push(Rule::new(rest, Target::Reject(self.family)));
        chain.extend(self.range_rules(&[]));
        chain
    }

    /// Renders the filter chain KUBE-IPVS-OUT-FILTER. With `--ipvs-semantics=exact` it is empty,
    /// because rules before IPVS check source ranges.
    pub(super) fn out_filter(&self, config: &Config) -> Vec<Rule> {
        if config.semantics.is_exact() {
            return Vec::new();
        }
        let forbid = |at: &ServiceAddress| {
            let from_itself = [
                Match::Source(at.address.into()),
                Match::VirtualServer(at.protocol, at.address, at.port),
            ];
            Rule::new(from_itself, Target::Drop)
        };
        self.forbidden_to_node.iter().map(forbid).collect()
    }
}
