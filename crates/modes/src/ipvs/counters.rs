//! Reads the 64-bit counters of IPVS virtual servers and destinations.
//!
//! One dump lists all virtual servers. Destinations need a further dump for each virtual server,
//! because no other request returns them. A socket handles one dump at a time, and each takes three
//! system calls.
//!
//! In the lab, where system calls are slow, reading 50,000 virtual servers with two destinations
//! each takes 1.2 s. The dump of all virtual servers takes 0.8 s (`cargo run -p ipvs-netlink
//! --example read_cost`).

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use ipvs_netlink::{DestinationEntry, Ipvs, ServiceEntry, ServiceKey, Statistics};
use proxy::Protocol;

use service_counters::{At, Count, CounterSample, ReadCounters, Which};

/// Reads the counters through a separate socket.
#[derive(Debug, Default)]
pub(super) struct IpvsCounters {
    /// Socket that the first read opens.
    ipvs: Option<Ipvs>,
}

impl ReadCounters for IpvsCounters {
    fn tell(&mut self, which: Which<'_>, take: &mut dyn FnMut(CounterSample<'_>)) -> Result<()> {
        let mut ipvs = match self.ipvs.take() {
            Some(ipvs) => ipvs,
            None => Ipvs::open().context("cannot read the IPVS counters")?,
        };
        tell(&mut ipvs, which, take).context("cannot read the IPVS counters")?;
        // Keeps the socket only after a success.
        self.ipvs = Some(ipvs);
        Ok(())
    }

    fn tells_more_of_single(&self) -> bool {
        true
    }
}

fn tell(
    ipvs: &mut Ipvs,
    which: Which<'_>,
    take: &mut dyn FnMut(CounterSample<'_>),
) -> Result<(), ipvs_netlink::Error> {
    match which {
        Which::Addresses => {
            for entry in ipvs.services()? {
                tell_server(&entry, count(&entry.statistics), take);
            }
        }
        Which::All => {
            for entry in ipvs.services()? {
                tell_with_destinations(ipvs, &entry, take)?;
            }
        }
        Which::Of(addresses) => {
            for at in addresses {
                if let Some(entry) = ipvs.service(&key(at))? {
                    tell_with_destinations(ipvs, &entry, take)?;
                }
            }
        }
    }
    Ok(())
}

fn tell_with_destinations(
    ipvs: &mut Ipvs,
    entry: &ServiceEntry,
    take: &mut dyn FnMut(CounterSample<'_>),
) -> Result<(), ipvs_netlink::Error> {
    // Empty if the virtual server was deleted meanwhile.
    let destinations = ipvs.destinations(&entry.service.key)?;
    let at = at(&entry.service.key);
    let mut whole = Count {
        active: Some(0),
        inactive: Some(0),
        persistent: Some(0),
        ..count(&entry.statistics)
    };
    for destination in &destinations {
        let of = of_destination(destination);
        whole.add(&Count {
            active: of.active,
            inactive: of.inactive,
            persistent: of.persistent,
            ..Count::default()
        });
        if let Some(at) = at {
            let key = destination.destination.key;
            let endpoint = SocketAddr::new(key.address, key.port);
            let weight = Some(destination.destination.weight);
            take(CounterSample::Endpoint(at, endpoint, weight, of));
        }
    }
    tell_server(entry, whole, take);
    Ok(())
}

fn tell_server(entry: &ServiceEntry, count: Count, take: &mut dyn FnMut(CounterSample<'_>)) {
    let scheduler = entry.service.scheduler.as_str();
    match entry.service.key {
        ServiceKey::Address { .. } => {
            if let Some(at) = at(&entry.service.key) {
                take(CounterSample::Address(at, Some(scheduler), count));
            }
        }
        ServiceKey::Fwmark { family, mark } => {
            take(CounterSample::Mark(family, mark, scheduler, count));
        }
    }
}

/// Returns the address and port, or `None` for a firewall mark and for a protocol that Services do
/// not have.
fn at(key: &ServiceKey) -> Option<At> {
    let ServiceKey::Address {
        protocol,
        address,
        port,
    } = *key
    else {
        return None;
    };
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let mut protocols = protocols.into_iter();
    Some(At {
        address,
        port,
        protocol: protocols.find(|known| known.number() == protocol.0)?,
    })
}

fn key(at: &At) -> ServiceKey {
    let protocol = ipvs_netlink::Protocol(at.protocol.number());
    ServiceKey::new(protocol, at.address, at.port)
}

fn of_destination(entry: &DestinationEntry) -> Count {
    Count {
        active: Some(entry.active.into()),
        inactive: Some(entry.inactive.into()),
        persistent: Some(entry.persistent.into()),
        ..count(&entry.statistics)
    }
}

fn count(statistics: &Statistics) -> Count {
    Count {
        connections: statistics.connections,
        packets_in: Some(statistics.incoming_packets),
        packets_out: Some(statistics.outgoing_packets),
        bytes_in: Some(statistics.incoming_bytes),
        bytes_out: Some(statistics.outgoing_bytes),
        ..Count::default()
    }
}
