//! Virtual servers and their destinations of one family, over generic netlink.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink::{
    AddressFamily, BadName, Destination, DestinationEntry, DestinationKey, Error, Flags, Forward,
    Ipvs, Service, ServiceKey, Timeouts,
};
use netlink_batch::{Batch, CHUNK_MESSAGES, Refusal, Reply};
use proxy::{IpFamily, Protocol, Target};

use super::reason::{refused, said, surprise, unsent};
use crate::plan::{Op, Outcome};
use crate::server::{Properties, RealServer, VirtualServer, VirtualServerKey};

/// The virtual servers of one family.
#[derive(Debug)]
pub(super) struct Servers {
    ipvs: Ipvs,
    family: AddressFamily,
}

impl Servers {
    pub(super) fn open(family: IpFamily) -> Result<Self, Error> {
        Ok(Self {
            ipvs: Ipvs::open()?,
            family: match family {
                IpFamily::V4 => AddressFamily::Inet,
                IpFamily::V6 => AddressFamily::Inet6,
            },
        })
    }

    pub(super) fn sent(&self) -> u32 {
        self.ipvs.sent()
    }

    /// All of this family, but those for marked packets and for other protocols than ours: these are not for Services.
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
            // A list that changes while it is read may name one twice.
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

    /// Active and inactive connections, which is what upstream waits for when it drains; not the templates of persistence.
    pub(super) fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Error> {
        let mut connections = BTreeMap::new();
        for key in keys {
            let Some(entries) = self.destinations(&service_key(key))? else {
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

    /// Writes virtual servers and destinations, a send after another.
    pub(super) fn apply(&mut self, run: &[Op]) -> Vec<Outcome> {
        // A virtual server that was refused has no destinations: that is no surprise.
        let mut missing = BTreeSet::new();
        let mut outcomes = Vec::with_capacity(run.len());
        let mut batch = Batch::new();
        for part in run.chunks(CHUNK_MESSAGES) {
            batch.clear();
            self.apply_part(part, &mut batch, &mut missing, &mut outcomes);
        }
        outcomes
    }

    fn apply_part(
        &mut self,
        part: &[Op],
        batch: &mut Batch,
        missing: &mut BTreeSet<VirtualServerKey>,
        outcomes: &mut Vec<Outcome>,
    ) {
        // What cannot even be said is not sent.
        let pushed: Vec<Result<_, Outcome>> = part.iter().map(|op| self.push(batch, op)).collect();
        let mut replies = match self.ipvs.execute(batch) {
            Ok(replies) => replies.into_iter(),
            Err(Error::Netlink(error)) => {
                return outcomes.extend(part.iter().map(|_| unsent(&error)));
            }
            Err(error) => {
                return outcomes.extend(part.iter().map(|_| refused(error.to_string())));
            }
        };
        for (op, pushed) in part.iter().zip(pushed) {
            let outcome = match pushed {
                Ok(_) => match replies.next() {
                    Some(Reply::Done) => Outcome::Done,
                    Some(Reply::Refused(refusal)) => outcome(op, &refusal, missing),
                    Some(Reply::Unknown) | None => Outcome::Unknown,
                },
                Err(outcome) => outcome,
            };
            if let (
                Op::AddServer(key, _),
                Outcome::Refused {
                    is_surprise: false, ..
                },
            ) = (op, &outcome)
            {
                missing.insert(*key);
            }
            outcomes.push(outcome);
        }
    }

    fn push(&self, batch: &mut Batch, op: &Op) -> Result<usize, Outcome> {
        let family = self.ipvs.family();
        let service = |key, properties| {
            service(key, properties)
                .map_err(|bad| refused(format!("{bad}: choose another --ipvs-scheduler")))
        };
        Ok(match op {
            Op::AddServer(key, properties) => family.new_service(batch, &service(key, properties)?),
            Op::SetServer(key, properties) => family.set_service(batch, &service(key, properties)?),
            Op::RemoveServer(key) => family.del_service(batch, &service_key(key)),
            Op::AddDestination(key, real) => {
                family.new_destination(batch, &service_key(key), &destination(real))
            }
            Op::SetDestination(key, real) => {
                family.set_destination(batch, &service_key(key), &destination(real))
            }
            Op::RemoveDestination(key, target) => {
                family.del_destination(batch, &service_key(key), &destination_key(*target))
            }
            _ => return Err(Outcome::Unknown),
        })
    }

    /// The destinations of a service; `None` if there is none such: an empty answer may mean that.
    fn destinations(&mut self, key: &ServiceKey) -> Result<Option<Vec<DestinationEntry>>, Error> {
        let destinations = self.ipvs.destinations(key)?;
        if destinations.is_empty() && self.ipvs.service(key)?.is_none() {
            return Ok(None);
        }
        Ok(Some(destinations))
    }

    fn key(&self, key: &ServiceKey) -> Option<VirtualServerKey> {
        match *key {
            ServiceKey::Address {
                protocol,
                address,
                port,
            } if key.family() == self.family => Some(VirtualServerKey {
                address,
                port,
                protocol: Protocol::from_number(protocol.0)?,
            }),
            _ => None,
        }
    }
}

fn outcome(op: &Op, refusal: &Refusal, missing: &BTreeSet<VirtualServerKey>) -> Outcome {
    let gone = "the virtual server is gone; it is made again";
    match (op, refusal.errno) {
        (Op::RemoveServer(_), libc::ESRCH)
        | (Op::RemoveDestination(..), libc::ENOENT | libc::ESRCH) => Outcome::Done,
        (Op::AddServer(..) | Op::AddDestination(..), libc::EEXIST) => surprise(said(
            refusal,
            "somebody else made it; the kernel is read again",
        )),
        (Op::AddDestination(key, _), libc::ESRCH) if missing.contains(key) => {
            refused(said(refusal, "its virtual server was refused"))
        }
        (Op::SetServer(..) | Op::AddDestination(..) | Op::SetDestination(..), libc::ESRCH) => {
            surprise(said(refusal, gone))
        }
        (Op::SetDestination(..), libc::ENOENT) => {
            surprise(said(refusal, "the destination is gone; it is made again"))
        }
        (
            Op::AddServer(_, Properties { scheduler, .. })
            | Op::SetServer(_, Properties { scheduler, .. }),
            libc::ENOENT,
        ) => refused(said(
            refusal,
            &format!(
                "the kernel has no scheduler `{scheduler}`: run `modprobe ip_vs_{scheduler}` on the host, or choose another \
                 --ipvs-scheduler"
            ),
        )),
        (_, libc::EAFNOSUPPORT) => refused(said(
            refusal,
            "this kernel's IPVS has no IPv6 (CONFIG_IP_VS_IPV6)",
        )),
        (_, libc::EPROTONOSUPPORT) => refused(said(
            refusal,
            "this kernel's IPVS does not balance that protocol (CONFIG_IP_VS_PROTO_SCTP for SCTP)",
        )),
        (Op::AddDestination(..) | Op::SetDestination(..), libc::EINVAL) => refused(said(
            refusal,
            "the destination's address is not one that a pod can have: correct the EndpointSlice",
        )),
        _ => refused(said(refusal, "try it with `ipvsadm` by hand")),
    }
}

fn service_key(key: &VirtualServerKey) -> ServiceKey {
    let protocol = ipvs_netlink::Protocol(key.protocol.number());
    ServiceKey::new(protocol, key.address, key.port)
}

fn service(key: &VirtualServerKey, properties: &Properties) -> Result<Service, BadName> {
    let scheduler = properties.scheduler.parse()?;
    Ok(Service {
        flags: Flags::from_bits_retain(properties.flags),
        timeout: properties.timeout,
        ..Service::new(service_key(key), scheduler)
    })
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

fn destination_key(target: Target) -> DestinationKey {
    DestinationKey {
        address: target.ip,
        port: target.port,
    }
}

/// Always a plain one.
fn destination(real: &RealServer) -> Destination {
    Destination::new(destination_key(real.target), real.weight.into())
}

fn real_server(entry: &DestinationEntry) -> RealServer {
    let there = entry.destination;
    RealServer {
        target: Target {
            ip: there.key.address,
            port: there.key.port,
        },
        weight: u16::try_from(there.weight).unwrap_or(u16::MAX),
        is_plain: there.forward == Forward::Masq
            && (there.upper_threshold, there.lower_threshold) == (0, 0),
    }
}
