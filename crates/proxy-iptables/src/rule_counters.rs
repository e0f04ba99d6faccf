//! Reads counters of rules in the table nat, where a rule counts only the first packet of each
//! connection.
//!
//! ```text
//!   KUBE-SERVICES, KUBE-NODEPORTS: an address and port ─▶ chain of a Service port
//!   KUBE-SVC-, KUBE-SVL-: of a Service port ─▶ KUBE-SEP-: endpoint
//! ```
//!
//! The chain of an endpoint counts the connections to all addresses of its Service port.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use iptables::{CountedRule, RuleLine};
use proxy::{IpFamily, Protocol};

use crate::chain::{Chain, Hash, Purpose};

/// A reader of `iptables-save -c -t nat`, line by line.
#[derive(Debug)]
pub struct CounterReader {
    family: IpFamily,
    /// Served addresses, each with the chain to which its rule jumps, and the number of packets
    /// that matched the rule.
    addresses: Vec<(ServedAddress, Chain, u64)>,
    /// Hash of the Service port to which an endpoint's chain belongs, by the hash of that chain.
    ports: HashMap<Hash, Hash>,
    /// Endpoint and number of packets to it, by the hash of the endpoint's chain.
    endpoints: HashMap<Hash, (SocketAddr, u64)>,
}

/// An address and port at which rules serve a Service port. For a NodePort, the address is
/// `0.0.0.0` or `::`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServedAddress {
    /// Address and port to which clients connect.
    pub at: SocketAddr,
    /// Transport protocol of the port.
    pub protocol: Protocol,
}

/// Numbers of connections to one Service port since its rules were last written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortConnections {
    /// Number of connections to each address, in the order of the rules in `iptables-save`.
    pub addresses: Vec<(ServedAddress, u64)>,
    /// Number of connections to each endpoint, over all addresses.
    pub endpoints: Vec<(SocketAddr, u64)>,
}

impl CounterReader {
    /// Creates a reader for rules of one family.
    pub fn new(family: IpFamily) -> Self {
        Self {
            family,
            addresses: Vec::new(),
            ports: HashMap::new(),
            endpoints: HashMap::new(),
        }
    }

    /// Reads a line of `iptables-save -c`. Ignores rules of other programs.
    pub fn read(&mut self, line: &str) {
        let Some(CountedRule { packets, rule }) = CountedRule::parse(line) else {
            return;
        };
        match rule.chain {
            "KUBE-SERVICES" | "KUBE-NODEPORTS" => self.read_address(packets, rule),
            chain => self.read_chain(chain, packets, rule),
        }
    }

    fn read_address(&mut self, packets: u64, rule: RuleLine<'_>) {
        let target = rule.target();
        let chain = target.as_deref().and_then(Chain::parse);
        if let (Some(chain), Some(served)) = (chain, self.served(rule)) {
            self.addresses.push((served, chain, packets));
        }
    }

    fn read_chain(&mut self, chain: &str, packets: u64, rule: RuleLine<'_>) {
        let (Some(chain), Some(target)) = (Chain::parse(chain), rule.target()) else {
            return;
        };
        match chain.purpose {
            Purpose::Cluster | Purpose::Local => {
                let led = Chain::parse(&target).filter(|led| led.purpose == Purpose::Endpoint);
                if let Some(led) = led {
                    self.ports.insert(led.hash, chain.hash);
                }
            }
            Purpose::Endpoint if target == "DNAT" => {
                if let Some(endpoint) = option(rule, "--to-destination") {
                    self.endpoints.insert(chain.hash, (endpoint, packets));
                }
            }
            _ => {}
        }
    }

    fn served(&self, rule: RuleLine<'_>) -> Option<ServedAddress> {
        let address = match option::<IpNet>(rule, "-d") {
            Some(net) => net.addr(),
            None if rule.chain == "KUBE-NODEPORTS" => match self.family {
                IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
                IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
            },
            None => option::<IpAddr>(rule, "-d")?,
        };
        Some(ServedAddress {
            at: (address, option(rule, "--dport")?).into(),
            protocol: Protocol::from_lower(&option::<String>(rule, "-p")?)?,
        })
    }

    /// Returns the connections to each Service port, in arbitrary order.
    pub fn into_ports(self) -> impl Iterator<Item = PortConnections> {
        let mut all: HashMap<Hash, PortConnections> = HashMap::new();
        for (served, chain, packets) in self.addresses {
            let of = all.entry(chain.hash).or_default();
            let mut known = of.addresses.iter_mut();
            // Sums the packets if several rules lead from one address and port to the same Service
            // port.
            match known.find(|(known, _)| *known == served) {
                Some((_, sum)) => *sum = sum.saturating_add(packets),
                None => of.addresses.push((served, packets)),
            }
        }
        for (chain, endpoint) in self.endpoints {
            let port = self.ports.get(&chain);
            if let Some(of) = port.and_then(|port| all.get_mut(port)) {
                of.endpoints.push(endpoint);
            }
        }
        all.into_values()
    }
}

/// Returns the value of a rule's option, or `None` if the option is absent or its value does not
/// parse.
fn option<T: std::str::FromStr>(rule: RuleLine<'_>, name: &str) -> Option<T> {
    let mut options = rule.options();
    options.find(|word| word == name)?;
    options.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(family: IpFamily, saved: &str) -> Vec<PortConnections> {
        let mut counts = CounterReader::new(family);
        saved.lines().for_each(|line| counts.read(line));
        let mut ports: Vec<PortConnections> = counts.into_ports().collect();
        ports.sort_by_key(|port| port.addresses.clone());
        for port in &mut ports {
            port.endpoints.sort_unstable();
        }
        ports
    }

    /// Output of `iptables-save -c -t nat` in iptables mode, with traffic. `KUBE-SEP-` chains
    /// precede the chains that lead to them.
    const SAVED: &str = r#"*nat
:KUBE-SERVICES - [0:0]
[5:300] -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
[3:180] -A KUBE-NODEPORTS -p tcp -m comment --comment "default/web:http" -m tcp --dport 30080 -j KUBE-EXT-LOLE4ISW44XBNF3G
[0:0] -A KUBE-SEP-AAAAAAAAAAAAAAAA -s 10.244.0.5/32 -m comment --comment "default/web:http" -j KUBE-MARK-MASQ
[4:240] -A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.0.5:8080
[6:360] -A KUBE-SEP-BBBBBBBBBBBBBBBB -p tcp -m comment --comment "default/web:http" -m tcp -j DNAT --to-destination 10.244.0.6:8080
[7:420] -A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-LOLE4ISW44XBNF3G
[1:60] -A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
[4:240] -A KUBE-SVC-LOLE4ISW44XBNF3G -m comment --comment "default/web:http -> 10.244.0.5:8080" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-AAAAAAAAAAAAAAAA
[6:360] -A KUBE-SVC-LOLE4ISW44XBNF3G -m comment --comment "default/web:http -> 10.244.0.6:8080" -j KUBE-SEP-BBBBBBBBBBBBBBBB
COMMIT
"#;

    #[test]
    fn connections_are_counted_by_service_port() {
        let served = |at: &str| ServedAddress {
            at: at.parse().unwrap(),
            protocol: Protocol::Tcp,
        };
        let endpoint = |at: &str| -> SocketAddr { at.parse().unwrap() };
        assert_eq!(
            counted(IpFamily::V4, SAVED),
            [PortConnections {
                addresses: vec![(served("0.0.0.0:30080"), 3), (served("10.96.0.20:80"), 7)],
                endpoints: vec![
                    (endpoint("10.244.0.5:8080"), 4),
                    (endpoint("10.244.0.6:8080"), 6)
                ],
            }]
        );
    }

    proptest! {
        #[test]
        fn arbitrary_saved_rules_never_panic_the_counter_parser(saved in "(\\[1:2\\] -A KUBE-(SERVICES|SEP-A{16}|SVC-A{16}) (-d|-p|-j|--dport|[a-z0-9./:]*| )*\n|.*\n){0,8}") {
            let _ = counted(IpFamily::V4, &saved);
        }
    }
}
