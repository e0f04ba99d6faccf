//! `--ipvs-shim=lean`: gives packets the verdicts of upstream's rules, in the same chains, with
//! less work for the first packet of a flow:
//!
//! - The shim jumps only to chains that have rules.
//! - The rules for cluster IPs come first and need one look-up, because most packets to Services go
//!   to a cluster IP.
//! - One rule with all conditions, the most selective first, replaces each of upstream's chains of
//!   RETURN rules.
//! - Packets of established flows leave the chain KUBE-IPVS-FILTER at its first condition.
//! - Rules do not look up empty sets, query the routing table (`addrtype`) only for possible
//!   NodePorts, and never check bridges (`physdev`).
//!
//! For operators, `docs/ipvs-shim.md` shows the rules, and the two kinds of packets that only
//! upstream's rules always masquerade.

use iptables::{Field, Jump, Match, Rule, Table, Target};
use kube_rules::{FORWARD, MARK_MASQ, POSTROUTING, SERVICES};
use proxy::Protocol;

use super::{DST, DST_DST, DST_DST_SRC, NEW, Shim, loopback, mark, node_port_fields, not_local};
use crate::config::Config;
use crate::rules::{CHAINS, Chains, JUMPS};
use crate::sets::Set;

impl Shim {
    /// Returns all chains with their rules, and the jumps to chains that have rules.
    pub(super) fn lean(&self, config: &Config) -> Chains {
        let chain = |(table, name)| (table, name, self.lean_chain(table, name, config));
        let chains = CHAINS.map(chain).into_iter();
        let early = self.early_chains(config).map(|(table, name, rules)| {
            let rules = rules.into_iter().map(Rule::without_comments).collect();
            (table, name, rules)
        });
        let chains: Vec<_> = chains.chain(early).collect();
        let has_rules = |jump: &&Jump| {
            let is_it = |(table, name, _): &&(Table, &str, Vec<Rule>)| {
                (*table, *name) == (jump.table, jump.to)
            };
            chains
                .iter()
                .find(is_it)
                .is_some_and(|(.., rules)| !rules.is_empty())
        };
        Chains {
            jumps: JUMPS.iter().filter(has_rules).collect(),
            chains,
        }
    }

    fn lean_chain(&self, table: Table, name: &str, config: &Config) -> Vec<Rule> {
        let chain = match (table, name) {
            (Table::Nat, SERVICES) => self.lean_services(config),
            (Table::Nat, POSTROUTING) => self.postrouting(config),
            (Table::Nat, "KUBE-NODE-PORT") => self.lean_node_ports(config),
            (Table::Nat, "KUBE-LOAD-BALANCER") => self.lean_load_balancers(config),
            // Creates this chain without a jump from our chains, because network plug-ins jump to
            // it, too.
            (Table::Nat, MARK_MASQ) => vec![Rule::new([], mark(config))],
            (Table::Filter, FORWARD) => lean_forward(config),
            (Table::Filter, "KUBE-NODE-PORT") => {
                self.if_filled(Set::HealthCheckNodePort, DST, Target::Accept)
            }
            (Table::Filter, "KUBE-PROXY-FIREWALL") => self.lean_firewall(),
            (Table::Filter, "KUBE-IPVS-FILTER") => self.lean_access_filter(config),
            (Table::Filter, "KUBE-IPVS-OUT-FILTER") => self.out_filter(config),
            _ => Vec::new(),
        };
        chain.into_iter().map(Rule::without_comments).collect()
    }

    fn lean_services(&self, config: &Config) -> Vec<Rule> {
        let mut chain = Vec::new();
        if self.is_filled(Set::ClusterIp) {
            chain.extend(not_local(config).map(|(from, fields)| {
                let to_set = [self.in_set(Set::ClusterIp, fields)];
                Rule::new(from.into_iter().chain(to_set), mark(config))
            }));
            chain.push(self.to(Set::ClusterIp, Target::Accept));
        }
        if self.is_filled(Set::LoadBalancer) {
            chain.push(self.to(Set::LoadBalancer, "KUBE-LOAD-BALANCER"));
        }
        if self.is_filled(Set::ExternalIp) {
            chain.push(self.to(Set::ExternalIp, mark(config)));
            chain.push(self.to(Set::ExternalIp, Target::Accept));
        }
        if self.is_filled(Set::ExternalIpLocal) {
            let own = self.own_packets_to(Set::ExternalIpLocal, DST_DST, config);
            chain.extend(own.map(|own| Rule::new(own, mark(config))));
            chain.push(self.to(Set::ExternalIpLocal, Target::Accept));
        }
        if !self.lean_node_ports(config).is_empty() {
            chain.push(Rule::new([], "KUBE-NODE-PORT"));
        }
        if !chain.is_empty() {
            chain.insert(
                0,
                Rule::new([Match::Source(loopback(self.family))], Target::Return),
            );
        }
        chain
    }

    fn lean_load_balancers(&self, config: &Config) -> Vec<Rule> {
        if !self.is_filled(Set::LoadBalancer) {
            return Vec::new();
        }
        let not_pinned = self.unless(Set::LoadBalancerLocal, DST_DST);
        let own = self.own_packets_to(Set::LoadBalancerLocal, DST_DST, config);
        let mut chain = vec![Rule::new(not_pinned, mark(config))];
        chain.extend(own.map(|own| Rule::new(own, mark(config))));
        chain.push(Rule::new([], Target::Accept));
        chain
    }

    /// Returns the rules for NodePorts. The cheapest condition of a rule comes first (look-up of
    /// the port in a set), the dearest last (look-up of the address in the routing table).
    fn lean_node_ports(&self, config: &Config) -> Vec<Rule> {
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter();
        let filled = protocols.filter(|protocol| self.is_filled(Set::node_port(*protocol)));
        let rule_of = |protocol| {
            let fields = node_port_fields(protocol);
            let is_served = [
                Match::Protocol(protocol),
                self.in_set(Set::node_port(protocol), fields),
            ];
            let matches = is_served
                .into_iter()
                .chain(self.unless(Set::node_port_local(protocol), fields))
                .chain([Match::DestinationLocal]);
            let own = self.own_packets_to(Set::node_port_local(protocol), fields, config);
            let own = own.map(|own| {
                let of_protocol = [Match::Protocol(protocol)].into_iter();
                let to_node = of_protocol.chain(own).chain([Match::DestinationLocal]);
                Rule::new(to_node, mark(config))
            });
            [Rule::new(matches, mark(config))].into_iter().chain(own)
        };
        filled.flat_map(rule_of).collect()
    }

    /// Returns the rules that drop packets from outside a load balancer's source ranges. They match
    /// established flows as well, so withdrawing a source range also ends its flows.
    pub(super) fn lean_firewall(&self) -> Vec<Rule> {
        if !self.is_filled(Set::LoadBalancerFirewall) {
            return Vec::new();
        }
        let ranges = [Set::LoadBalancerSourceCidr, Set::LoadBalancerSourceIp];
        let outside = ranges
            .into_iter()
            .filter_map(|set| self.unless(set, DST_DST_SRC));
        let limited = self.in_set(Set::LoadBalancerFirewall, DST_DST);
        vec![Rule::new(
            [limited].into_iter().chain(outside),
            Target::Drop,
        )]
    }

    fn lean_access_filter(&self, config: &Config) -> Vec<Rule> {
        let others = [
            (Set::LoadBalancer, DST_DST),
            (Set::ExternalIp, DST_DST),
            (Set::ExternalIpLocal, DST_DST),
            (Set::HealthCheckNodePort, DST),
        ];
        let others = others.into_iter();
        let others = others.filter_map(|(set, fields)| self.unless(set, fields));
        let others: Vec<Match> = others.collect();
        let of_cluster_ips = self.unless(Set::ClusterIp, DST_DST);
        let mut chain: Vec<Rule> = self.ping_rule(config).into_iter().collect();
        if self.is_filled(Set::IpvsIps) {
            let matches = [NEW]
                .into_iter()
                .chain(of_cluster_ips.clone())
                .chain([self.in_set(Set::IpvsIps, DST)])
                .chain(others.iter().cloned());
            chain.push(Rule::new(matches, Target::Reject(self.family)));
        }
        let exposed: Vec<Match> = of_cluster_ips.into_iter().chain(others).collect();
        chain.extend(self.range_rules(&exposed));
        chain
    }

    /// Returns a match for packets whose fields are not in the set. Returns `None` for an empty
    /// set, which needs no look-up.
    fn unless(&self, set: Set, fields: &'static [Field]) -> Option<Match> {
        self.is_filled(set).then_some(self.not_in_set(set, fields))
    }

    fn to(&self, set: Set, target: impl Into<Target>) -> Rule {
        Rule::new([self.in_set(set, DST_DST)], target)
    }
}

/// Returns two rules that accept forwarded packets. Nearly all packets belong to established flows,
/// and need only the first rule.
fn lean_forward(config: &Config) -> Vec<Rule> {
    let mut chain = Vec::from(kube_rules::forward(config.masquerade_mark));
    chain.reverse();
    chain
}

#[cfg(test)]
mod tests;
