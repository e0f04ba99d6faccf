//! Reads the connection counters in the rules of iptables mode. Each read runs `iptables-save` once
//! for each IP family, to print all rules of the table nat.

use std::collections::HashSet;

use anyhow::{Context as _, Result};
use iptables::{Iptables, Table};
use proxy::IpFamily;
use proxy_iptables::{CounterReader, PortConnections, ServedAddress};

use service_counters::{At, Count, CounterSample, CounterSelection, ReadCounters};

/// A reader of connection counters that runs `iptables-save`.
pub(super) struct RuleCounters {
    pub(super) iptables: Iptables,
    pub(super) families: Vec<IpFamily>,
}

impl ReadCounters for RuleCounters {
    fn tell(
        &mut self,
        which: CounterSelection<'_>,
        take: &mut dyn FnMut(CounterSample<'_>),
    ) -> Result<()> {
        let asked: HashSet<At> = match which {
            CounterSelection::Of(asked) => asked.iter().copied().collect(),
            CounterSelection::Addresses | CounterSelection::All => HashSet::new(),
        };
        for family in &self.families {
            let mut counts = CounterReader::new(*family);
            self.iptables
                .save_counted(*family, Some(Table::Nat), &mut |line| counts.read(line))
                .with_context(|| format!("cannot read the rule counters of {family}"))?;
            for port in counts.into_ports() {
                let mut at = port.addresses.iter().map(|(served, _)| at(served));
                if !matches!(which, CounterSelection::Of(_)) || at.any(|at| asked.contains(&at)) {
                    tell(&port, which, take);
                }
            }
        }
        Ok(())
    }

    fn note(&self) -> Option<&'static str> {
        Some(
            "rules of iptables mode count new connections, and neither packets nor bytes of those \
             there are; \
             an endpoint's are of all addresses of its Service port",
        )
    }
}

fn tell(
    port: &PortConnections,
    which: CounterSelection<'_>,
    take: &mut dyn FnMut(CounterSample<'_>),
) {
    for (served, connections) in &port.addresses {
        take(CounterSample::Address(
            at(served),
            None,
            count(*connections),
        ));
    }
    // Reports endpoints under a cluster IP or external IP, because the address of a NodePort is
    // unspecified (`0.0.0.0`). If the port has only NodePort addresses, takes the first of them.
    let mut own = port.addresses.iter().map(|(served, _)| served);
    let first = own.clone().next();
    let own = own
        .find(|served| !served.at.ip().is_unspecified())
        .or(first);
    if let (Some(own), false) = (own, which == CounterSelection::Addresses) {
        for (endpoint, connections) in &port.endpoints {
            take(CounterSample::Endpoint(
                at(own),
                *endpoint,
                None,
                count(*connections),
            ));
        }
    }
}

fn at(served: &ServedAddress) -> At {
    At {
        address: served.at.ip(),
        port: served.at.port(),
        protocol: served.protocol,
    }
}

fn count(connections: u64) -> Count {
    Count {
        connections,
        ..Count::default()
    }
}
