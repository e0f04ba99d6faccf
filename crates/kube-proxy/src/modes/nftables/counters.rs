//! What can be told in nftables mode, whose rules, as upstream's, have no counters: how many flows
//! the kernel tracks, for addresses that somebody names.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use conntrack_netlink::{Conntrack, Family, Flow};
use proxy::{IpFamily, Protocol};

use crate::modes::counters::{At, Count, ReadCounters, Told, Which};

/// How often the table is looked through, should the kernel begin anew meanwhile.
const ATTEMPTS: usize = 3;

/// Reads them out of connection tracking.
pub(super) struct TrackedFlows;

impl ReadCounters for TrackedFlows {
    fn tell(&mut self, which: Which<'_>, take: &mut dyn FnMut(Told<'_>)) -> Result<()> {
        // A node may track millions of flows: they are not looked through for everything at once.
        let Which::Of(addresses) = which else {
            return Ok(());
        };
        for family in [Family::Inet, Family::Inet6] {
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                let of = addresses
                    .iter()
                    .filter(|at| at.protocol == protocol && conntrack_family(at) == family);
                let of: HashSet<SocketAddr> = of.map(|at| (at.address, at.port).into()).collect();
                if !of.is_empty() {
                    tell(family, protocol, &of, take)?;
                }
            }
        }
        Ok(())
    }

    fn note(&self) -> Option<&'static str> {
        Some(
            "rules of nftables mode count nothing, as upstream's: connections are those that the kernel tracks now, \
             told for single Services",
        )
    }
}

fn conntrack_family(at: &At) -> Family {
    match IpFamily::of(at.address) {
        IpFamily::V4 => Family::Inet,
        IpFamily::V6 => Family::Inet6,
    }
}

fn tell(
    family: Family,
    protocol: Protocol,
    of: &HashSet<SocketAddr>,
    take: &mut dyn FnMut(Told<'_>),
) -> Result<()> {
    let counts = count(family, protocol, of)?;
    let mut sums: HashMap<SocketAddr, u64> = of.iter().map(|address| (*address, 0)).collect();
    let at = |address: SocketAddr| At {
        address: address.ip(),
        port: address.port(),
        protocol,
    };
    for ((address, endpoint), flows) in counts {
        *sums.entry(address).or_default() += flows;
        take(Told::Endpoint(at(address), endpoint, None, tracked(flows)));
    }
    for (address, flows) in sums {
        take(Told::Address(at(address), None, tracked(flows)));
    }
    Ok(())
}

/// How many flows there are, by where they were sent and who answers.
type Flows = HashMap<(SocketAddr, SocketAddr), u64>;

fn count(family: Family, protocol: Protocol, of: &HashSet<SocketAddr>) -> Result<Flows> {
    let mut conntrack = Conntrack::open().context("cannot count tracked flows")?;
    let transport = match protocol {
        Protocol::Tcp => conntrack_netlink::Protocol::Tcp,
        Protocol::Udp => conntrack_netlink::Protocol::Udp,
        Protocol::Sctp => conntrack_netlink::Protocol::Sctp,
    };
    for _ in 0..ATTEMPTS {
        let (mut flows, mut looked_at) = (Flows::new(), 0_usize);
        // Counted as they come, so that none is kept.
        let count = |flow: &Flow| {
            looked_at += 1;
            let to = flow.original.destination;
            if of.contains(&to) {
                *flows.entry((to, flow.reply.source)).or_default() += 1;
            }
            false
        };
        let found = conntrack
            .find(family, transport, count)
            .context("cannot count tracked flows")?;
        // Where the kernel was asked anew, some were counted twice.
        if looked_at == found.seen {
            return Ok(flows);
        }
    }
    bail!("cannot count tracked flows: their table changes all the time; ask again")
}

fn tracked(flows: u64) -> Count {
    Count {
        connections: flows,
        active: Some(flows),
        ..Count::default()
    }
}
