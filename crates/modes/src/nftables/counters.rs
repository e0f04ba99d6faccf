//! Counts connections in nftables mode. As in upstream, the rules have no counters, so this reader
//! counts flows in the kernel's conntrack table. It counts only for selected addresses.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use conntrack_netlink::{Conntrack, Flow};
use proxy::{IpFamily, Protocol};
use proxy_nftables::LocalhostPorts;

use service_counters::{At, Count, CounterSample, CounterSelection, ReadCounters, RelayedPort};

/// Maximum number of searches through the conntrack table. If the table changes during a search,
/// the search restarts and reports some flows twice. The reader then discards the counts and
/// searches again.
const ATTEMPTS: usize = 3;

/// A reader that counts flows in the conntrack table.
pub(super) struct TrackedFlows(pub(super) Option<LocalhostPorts>);

impl ReadCounters for TrackedFlows {
    fn tell(
        &mut self,
        which: CounterSelection<'_>,
        take: &mut dyn FnMut(CounterSample<'_>),
    ) -> Result<()> {
        // Reports nothing if all addresses are requested, because a node may track millions of
        // flows.
        let CounterSelection::Of(addresses) = which else {
            return Ok(());
        };
        for family in IpFamily::ALL {
            let of = addresses
                .iter()
                .filter(|at| IpFamily::of(at.address) == family);
            let of: HashSet<At> = of.copied().collect();
            if !of.is_empty() {
                tell(family, &of, take)?;
            }
        }
        Ok(())
    }

    fn relayed(&self, family: IpFamily, protocol: Protocol, port: u16) -> Option<RelayedPort> {
        let ports = self.0.as_ref().filter(|_| protocol == Protocol::Tcp)?;
        let (name, serving) = ports.serving(SocketAddr::new(family.localhost(), port))?;
        Some(RelayedPort {
            name,
            endpoints: serving.endpoints.to_vec(),
            sources: None,
        })
    }

    fn note(&self) -> Option<&'static str> {
        Some(
            "rules of nftables mode count nothing, like upstream's: connections are those in \
             conntrack now, shown only for single Services",
        )
    }
}

fn tell(family: IpFamily, of: &HashSet<At>, take: &mut dyn FnMut(CounterSample<'_>)) -> Result<()> {
    let counts = count(family, of)?;
    let mut sums: HashMap<At, u64> = of.iter().map(|at| (*at, 0)).collect();
    for ((at, endpoint), flows) in counts {
        *sums.entry(at).or_default() += flows;
        take(CounterSample::Endpoint(at, endpoint, None, tracked(flows)));
    }
    for (at, flows) in sums {
        take(CounterSample::Address(at, None, tracked(flows)));
    }
    Ok(())
}

/// Number of flows for each service address and endpoint.
type Flows = HashMap<(At, SocketAddr), u64>;

/// Counts the flows to each address in `of`, by endpoint, in one walk through the conntrack table.
fn count(family: IpFamily, of: &HashSet<At>) -> Result<Flows> {
    let mut conntrack = Conntrack::open().context("cannot count tracked flows")?;
    let mut protocols = of.iter().map(|at| at.protocol);
    let first = protocols.next();
    // If all addresses have the same protocol, the kernel returns only flows of this protocol.
    let only = first.filter(|first| protocols.all(|protocol| protocol == *first));
    for _ in 0..ATTEMPTS {
        let (mut flows, mut looked_at) = (Flows::new(), 0_usize);
        // Counts each flow as it arrives, and returns false so that `find` stores no flow.
        let count = |flow: &Flow| {
            looked_at += 1;
            let at = sent_to(flow);
            if of.contains(&at) {
                *flows.entry((at, flow.reply.source)).or_default() += 1;
            }
            false
        };
        let found = conntrack
            .find(family, only, count)
            .context("cannot count tracked flows")?;
        // If `count` received more flows than the last run of the search, the search has restarted,
        // and some flows were counted twice.
        if looked_at == found.seen {
            return Ok(flows);
        }
    }
    bail!("cannot count tracked flows: their table changes all the time; ask again")
}

fn sent_to(flow: &Flow) -> At {
    let to = flow.original.destination;
    At {
        address: to.ip(),
        port: to.port(),
        protocol: flow.protocol,
    }
}

fn tracked(flows: u64) -> Count {
    Count {
        connections: flows,
        active: Some(flows),
        ..Count::default()
    }
}
