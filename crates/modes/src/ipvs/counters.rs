//! Reads the 64-bit counters of IPVS virtual servers and destinations.
//!
//! One dump returns all virtual servers, without their destinations. Each virtual server needs a
//! further dump for its destinations. A socket handles one dump at a time, and each dump takes
//! three system calls.
//!
//! In the lab, where system calls are slow, a read of 50,000 virtual servers with two destinations
//! each takes 1.2 s. The dump of all virtual servers takes 0.8 s of this time (`cargo run -p
//! ipvs-netlink --example read_cost`).

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use ipvs_netlink::{DestinationEntry, Ipvs, ServiceEntry, ServiceKey, Statistics};
use proxy::Protocol;
use proxy_ipvs::MarkAddresses;

use service_counters::{At, Count, CounterSample, CounterSelection, ReadCounters};

/// A reader of IPVS counters, with its own netlink socket.
#[derive(Debug, Default)]
pub(super) struct IpvsCounters {
    /// Netlink socket, or `None` before the first read and after a failed one.
    ipvs: Option<Ipvs>,
    /// Service address that each fwmark stands for.
    marks: MarkAddresses,
}

impl IpvsCounters {
    /// Creates a reader that also reads fwmark virtual servers. It adds their connections to the
    /// service address that `marks` has for the fwmark.
    pub(super) fn with_marks(marks: MarkAddresses) -> Self {
        Self { ipvs: None, marks }
    }
}

impl ReadCounters for IpvsCounters {
    fn tell(
        &mut self,
        which: CounterSelection<'_>,
        take: &mut dyn FnMut(CounterSample<'_>),
    ) -> Result<()> {
        let mut ipvs = match self.ipvs.take() {
            Some(ipvs) => ipvs,
            None => Ipvs::open().context("cannot read the IPVS counters")?,
        };
        tell(&mut ipvs, &self.marks, which, take).context("cannot read the IPVS counters")?;
        // Stores the socket only after a successful read.
        self.ipvs = Some(ipvs);
        Ok(())
    }

    fn tells_more_of_single(&self) -> bool {
        true
    }
}

/// Virtual servers that serve one service address: one with this address, and others that have only
/// an fwmark.
#[derive(Debug, Default)]
struct AddressServers<'a> {
    at_address: Option<&'a ServiceEntry>,
    by_mark: Vec<&'a ServiceEntry>,
}

/// Extent of a read: only virtual servers, or their destinations as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    Servers,
    Destinations,
}

fn tell(
    ipvs: &mut Ipvs,
    marks: &MarkAddresses,
    which: CounterSelection<'_>,
    take: &mut dyn FnMut(CounterSample<'_>),
) -> Result<(), ipvs_netlink::Error> {
    let (entries, depth) = match which {
        CounterSelection::Addresses => (ipvs.services()?, Depth::Servers),
        CounterSelection::All => (ipvs.services()?, Depth::Destinations),
        CounterSelection::Of(addresses) => {
            let by_mark = marks.at(addresses).into_iter();
            let by_mark = by_mark.map(|(family, mark)| ServiceKey::Fwmark { family, mark });
            let mut entries = Vec::new();
            for key in addresses.iter().map(key).chain(by_mark) {
                entries.extend(ipvs.service(&key)?);
            }
            (entries, Depth::Destinations)
        }
    };
    let mut of_marks: HashMap<At, Vec<&ServiceEntry>> = HashMap::new();
    for entry in &entries {
        if let ServiceKey::Fwmark { family, mark } = entry.service.key {
            if let Some(at) = marks.get(family, mark) {
                of_marks.entry(at).or_default().push(entry);
                continue;
            }
            let scheduler = entry.service.scheduler.as_str();
            let (count, _) = counted(ipvs, entry, depth)?;
            take(CounterSample::Mark(family, mark, scheduler, count));
        }
    }
    for entry in &entries {
        if let Some(at) = at(&entry.service.key) {
            let place = AddressServers {
                at_address: Some(entry),
                by_mark: of_marks.remove(&at).unwrap_or_default(),
            };
            tell_place(ipvs, at, &place, depth, take)?;
        }
    }
    for (at, by_mark) in of_marks {
        let at_address = None;
        let place = AddressServers {
            at_address,
            by_mark,
        };
        tell_place(ipvs, at, &place, depth, take)?;
    }
    Ok(())
}

/// Passes to `take` the counters of each destination of a service address, then the counters of the
/// address itself. Each count is a sum over all virtual servers of the address, so each destination
/// has one sample.
fn tell_place(
    ipvs: &mut Ipvs,
    at: At,
    of: &AddressServers<'_>,
    depth: Depth,
    take: &mut dyn FnMut(CounterSample<'_>),
) -> Result<(), ipvs_netlink::Error> {
    let mut sum = Count::default();
    let mut endpoints: BTreeMap<SocketAddr, (Option<u32>, Count)> = BTreeMap::new();
    let all = || of.at_address.iter().chain(&of.by_mark);
    for entry in all() {
        let (count, destinations) = counted(ipvs, entry, depth)?;
        sum.add(&count);
        for destination in &destinations {
            let key = destination.destination.key;
            let endpoint = SocketAddr::new(key.address, key.port);
            let (weight, count) = endpoints.entry(endpoint).or_default();
            *weight = (*weight).max(Some(destination.destination.weight));
            count.add(&of_destination(destination));
        }
    }
    for (endpoint, (weight, count)) in endpoints {
        take(CounterSample::Endpoint(at, endpoint, weight, count));
    }
    let scheduler = all().next().map(|entry| entry.service.scheduler.as_str());
    take(CounterSample::Address(at, scheduler, sum));
    Ok(())
}

/// Returns the counters of a virtual server. With [`Depth::Destinations`], also returns its
/// destinations, and sums up their connections.
fn counted(
    ipvs: &mut Ipvs,
    entry: &ServiceEntry,
    depth: Depth,
) -> Result<(Count, Vec<DestinationEntry>), ipvs_netlink::Error> {
    let mut whole = count(&entry.statistics);
    if depth == Depth::Servers {
        return Ok((whole, Vec::new()));
    }
    // If the virtual server was deleted after the first dump, the list is empty.
    let destinations = ipvs.destinations(&entry.service.key)?;
    let zero = Some(0);
    (whole.active, whole.inactive, whole.persistent) = (zero, zero, zero);
    for destination in &destinations {
        let of = of_destination(destination);
        whole.add(&Count {
            active: of.active,
            inactive: of.inactive,
            persistent: of.persistent,
            ..Count::default()
        });
    }
    Ok((whole, destinations))
}

/// Returns the address, port and protocol of a virtual server. Returns `None` for an fwmark virtual
/// server, and for a protocol that Services cannot have.
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
