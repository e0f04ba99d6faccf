//! Virtual servers and destinations of one IP family, over generic netlink.

mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink::{
    DestinationEntry, Error, Forward, Ipvs, Service, ServiceCounter, ServiceKey, Timeouts,
};
use netlink_batch::Batch;
use proxy::{IpFamily, Protocol, ServiceAddress, Target};

use crate::kernel::Glance;
use crate::plan::{Op, Outcome};
use crate::server::{Properties, RealServer, VirtualServer, VirtualServerKey};
use write::Writing;

/// Access to the virtual servers of one IP family.
#[derive(Debug)]
pub(super) struct Servers {
    ipvs: Ipvs,
    family: IpFamily,
    /// True until the kernel refuses the flag [`Properties::OWNED`]. All known kernels accept it.
    takes_notes: bool,
    /// The kernel's counter of virtual servers. `None` for IPv6, which has no counter.
    counter: Option<ServiceCounter>,
}

impl Servers {
    pub(super) fn open(family: IpFamily) -> Result<Self, Error> {
        Ok(Self {
            ipvs: Ipvs::open()?,
            family,
            takes_notes: true,
            counter: match family {
                IpFamily::V4 => ServiceCounter::open().ok(),
                IpFamily::V6 => None,
            },
        })
    }

    /// Returns the number of virtual servers in the kernel. If the kernel does not count them,
    /// returns whether the virtual server `one` exists.
    pub(super) fn glance(&mut self, one: &VirtualServerKey) -> Result<Glance, Error> {
        if let Some(counter) = &self.counter
            && let Ok(count) = counter.count()
        {
            return Ok(Glance::Count(count));
        }
        let there = self.ipvs.service(&(*one).into())?;
        Ok(Glance::IsThere(there.is_some()))
    }

    pub(super) fn sent(&self) -> u32 {
        self.ipvs.sent()
    }

    /// Reads all virtual servers of this IP family. Skips those whose protocol no Service can have.
    pub(super) fn dump(&mut self) -> Result<BTreeMap<VirtualServerKey, VirtualServer>, Error> {
        self.ipvs = Ipvs::open()?;
        let mut schedulers: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut servers = BTreeMap::new();
        for entry in self.ipvs.services()? {
            let service = entry.service;
            let Some(key) = self.key(&service.key) else {
                continue;
            };
            let Some(destinations) = self.destinations(&service.key)? else {
                continue;
            };
            let mut destinations: Vec<_> = destinations.iter().map(real_server).collect();
            destinations.sort_unstable();
            // If another program changes the list during the dump, a destination may occur twice.
            destinations.dedup_by_key(|real| real.target);
            let name = service.scheduler.as_str();
            let scheduler = schedulers.get(name).cloned().unwrap_or_else(|| name.into());
            schedulers.insert(scheduler.clone());
            let server = VirtualServer {
                properties: properties(&service, scheduler),
                destinations: destinations.into(),
            };
            servers.insert(key, server);
        }
        Ok(servers)
    }

    /// Returns the number of active and inactive connections of each destination, without
    /// persistence templates. Upstream's drain waits until this number is 0, too.
    pub(super) fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Error> {
        let mut connections = BTreeMap::new();
        for key in keys {
            let Some(entries) = self.destinations(&(*key).into())? else {
                continue;
            };
            let count = |entry: &DestinationEntry| {
                let target = real_server(entry).target;
                (target, entry.active.saturating_add(entry.inactive))
            };
            connections.insert(*key, entries.iter().map(count).collect());
        }
        Ok(connections)
    }

    pub(super) fn timeouts(&mut self) -> Result<[Duration; 3], Error> {
        let Timeouts { tcp, tcp_fin, udp } = self.ipvs.timeouts()?;
        Ok([tcp, tcp_fin, udp].map(|seconds| Duration::from_secs(seconds.into())))
    }

    pub(super) fn set_timeouts(
        &mut self,
        tcp: Duration,
        tcp_fin: Duration,
        udp: Duration,
    ) -> Result<(), Error> {
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        self.ipvs.set_timeouts(&Timeouts {
            tcp: seconds(tcp),
            tcp_fin: seconds(tcp_fin),
            udp: seconds(udp),
        })
    }

    /// Writes virtual servers and destinations, in as many netlink messages as needed.
    pub(super) fn apply(&mut self, run: &[Op]) -> Vec<Outcome> {
        let (family, ipvs) = (self.ipvs.family(), &mut self.ipvs);
        let execute = |batch: &Batch| ipvs.execute(batch);
        Writing::new(family, execute, &mut self.takes_notes).run(run)
    }

    /// Returns the destinations of a virtual server, or `None` if it does not exist. The kernel's
    /// dump is empty in both cases, so a second query distinguishes them.
    fn destinations(&mut self, key: &ServiceKey) -> Result<Option<Vec<DestinationEntry>>, Error> {
        let destinations = self.ipvs.destinations(key)?;
        if destinations.is_empty() && self.ipvs.service(key)?.is_none() {
            return Ok(None);
        }
        Ok(Some(destinations))
    }

    fn key(&self, key: &ServiceKey) -> Option<VirtualServerKey> {
        match *key {
            _ if key.family() != self.family => None,
            ServiceKey::Address {
                protocol,
                address,
                port,
            } => {
                let protocol = Protocol::from_number(protocol.0)?;
                Some(ServiceAddress::new(address, port, protocol).into())
            }
            ServiceKey::Fwmark { family, mark } => Some(VirtualServerKey::Mark { family, mark }),
        }
    }
}

fn properties(service: &Service, scheduler: Arc<str>) -> Properties {
    let flags = service.flags.bits() & !Properties::HASHED;
    let is_persistent = flags & Properties::PERSISTENT != 0;
    Properties {
        scheduler,
        flags,
        timeout: if is_persistent { service.timeout } else { 0 },
    }
}

fn real_server(entry: &DestinationEntry) -> RealServer {
    let there = entry.destination;
    RealServer {
        target: Target {
            ip: there.key.address,
            port: there.key.port,
        },
        weight: u16::try_from(there.weight).unwrap_or(u16::MAX),
        max_connections: u16::try_from(there.upper_threshold).unwrap_or(u16::MAX),
        is_plain: there.forward == Forward::Masq
            && there.lower_threshold == 0
            && there.upper_threshold <= u16::MAX.into(),
    }
}
