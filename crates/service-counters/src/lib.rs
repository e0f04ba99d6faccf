//! Counters of Services that the kernel (in userspace mode: the relay) keeps, for observers: read by blocking,
//! over sockets of its own, so that no lane of a mode waits for it.
//!
//! | mode | by | connections | packets, bytes | active |
//! |---|---|---|---|---|
//! | IPVS | address, endpoint | yes | yes | yes, inactive too |
//! | iptables | address, endpoint (under one address of its Service port) | yes | no | no |
//! | nftables | address, endpoint, where they are named | those that are still tracked | no | yes |
//! | userspace | Service port, endpoint | yes | bytes; of UDP packets, too | yes |

pub mod places;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use ipnet::IpNet;
use proxy::{IpFamily, Protocol, ServicePortName};

/// An address that a Service port is served at; a NodePort's is each address of the node that serves
/// it, as the kernel has it: in iptables mode, which has one rule for all of these, the unspecified
/// address.
pub use proxy::ServiceAddress as At;

/// What is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// All addresses, without their endpoints: one dump.
    Addresses,
    /// All addresses with their endpoints.
    All,
    /// These addresses with their endpoints.
    Of(&'a [At]),
}

/// What was counted. It may be of more than this process has made: virtual servers of others are
/// told as well.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    /// By address.
    pub addresses: HashMap<At, OfAddress>,
    /// By address and endpoint.
    pub endpoints: HashMap<(At, SocketAddr), OfEndpoint>,
    /// By mark of the firewall: virtual servers of others, in IPVS mode.
    pub marks: HashMap<(IpFamily, u32), OfAddress>,
    /// By Service port, in userspace mode, which has no counters by address. All of
    /// them are told, whichever are asked for.
    pub ports: HashMap<ServicePortName, Count>,
    /// By Service port and endpoint, there.
    pub port_endpoints: HashMap<(ServicePortName, SocketAddr), Count>,
    /// What is not counted in this mode, and why: a line for who asked.
    pub note: Option<&'static str>,
}

/// Of an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfAddress {
    /// The scheduler, in IPVS mode.
    pub scheduler: Option<String>,
    /// The count.
    pub count: Count,
}

/// Of an endpoint at an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OfEndpoint {
    /// The weight, in IPVS mode.
    pub weight: Option<u32>,
    /// The count.
    pub count: Count,
}

/// Since the entry was made; what is not counted in a mode is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Connections that were opened.
    pub connections: u64,
    /// Packets towards the endpoint.
    pub packets_in: Option<u64>,
    /// Packets from the endpoint.
    pub packets_out: Option<u64>,
    /// Bytes towards the endpoint.
    pub bytes_in: Option<u64>,
    /// Bytes from the endpoint.
    pub bytes_out: Option<u64>,
    /// Connections that are open.
    pub active: Option<u64>,
    /// Connections that the kernel remembers and that are not open, in IPVS mode.
    pub inactive: Option<u64>,
    /// Clients that keep their endpoint (IPVS: persistence templates), of an endpoint.
    pub persistent: Option<u64>,
}

impl Count {
    /// Adds what was counted elsewhere; what is absent in both stays so.
    pub fn add(&mut self, other: &Self) {
        let add = |one: &mut Option<u64>, other: Option<u64>| {
            if let Some(other) = other {
                *one = Some(one.unwrap_or_default().saturating_add(other));
            }
        };
        self.connections = self.connections.saturating_add(other.connections);
        add(&mut self.packets_in, other.packets_in);
        add(&mut self.packets_out, other.packets_out);
        add(&mut self.bytes_in, other.bytes_in);
        add(&mut self.bytes_out, other.bytes_out);
        add(&mut self.active, other.active);
        add(&mut self.inactive, other.inactive);
        add(&mut self.persistent, other.persistent);
    }
}

/// One thing that was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told<'a> {
    /// An address, with its scheduler in IPVS mode.
    Address(At, Option<&'a str>, Count),
    /// An endpoint at an address, with its weight in IPVS mode.
    Endpoint(At, SocketAddr, Option<u32>, Count),
    /// A mark of the firewall, with its scheduler.
    Mark(IpFamily, u32, &'a str, Count),
    /// A Service port, at one of its listening ports.
    Port(&'a ServicePortName, Listener, Count),
    /// An endpoint of a Service port, at one of its listening ports.
    PortEndpoint(&'a ServicePortName, Listener, SocketAddr, Count),
}

/// A listening port of this process, by its number among all that were ever opened: a Service port
/// has one for each way in which it is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Listener(pub u64);

/// Who serves what comes to a listening port of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relayed {
    /// Whose it is.
    pub name: ServicePortName,
    /// Whom it connects to, in turn.
    pub endpoints: Vec<SocketAddr>,
    /// From where alone clients may come; `None`: from everywhere.
    pub sources: Option<Vec<IpNet>>,
}

/// Reads what is counted.
pub trait ReadCounters: Send {
    /// Reads, by blocking, and tells each thing as it comes: nothing of it is kept.
    ///
    /// # Errors
    ///
    /// The kernel cannot be read; the reason, and what to do.
    fn tell(&mut self, which: Which<'_>, take: &mut dyn FnMut(Told<'_>)) -> Result<()>;

    /// Whether single addresses are told with more than all of them are by [`Which::Addresses`], so
    /// that it is worth asking for those that matter; else [`Which::All`] costs no more.
    fn tells_more_of_single(&self) -> bool {
        false
    }

    /// What is not counted in this mode, and why.
    fn note(&self) -> Option<&'static str> {
        None
    }

    /// Who serves what comes to a listening port of this process, in userspace mode.
    fn relayed(&self, _family: IpFamily, _protocol: Protocol, _port: u16) -> Option<Relayed> {
        None
    }

    /// Reads, by blocking.
    ///
    /// # Errors
    ///
    /// The kernel cannot be read; the reason, and what to do.
    fn read(&mut self, which: Which<'_>) -> Result<Counted> {
        let mut all = Counted {
            note: self.note(),
            ..Counted::default()
        };
        self.tell(which, &mut |told| all.take(told))?;
        Ok(all)
    }
}

impl Counted {
    fn take(&mut self, told: Told<'_>) {
        match told {
            Told::Address(at, scheduler, count) => {
                let of = self.addresses.entry(at).or_default();
                of.scheduler = scheduler.map(str::to_owned);
                of.count.add(&count);
            }
            Told::Endpoint(at, endpoint, weight, count) => {
                let of = self.endpoints.entry((at, endpoint)).or_default();
                of.weight = of.weight.max(weight);
                of.count.add(&count);
            }
            Told::Mark(family, mark, scheduler, count) => {
                let of = self.marks.entry((family, mark)).or_default();
                of.scheduler = Some(scheduler.to_owned());
                of.count.add(&count);
            }
            Told::Port(port, _, count) => self.ports.entry(port.clone()).or_default().add(&count),
            Told::PortEndpoint(port, _, endpoint, count) => {
                let of = self.port_endpoints.entry((port.clone(), endpoint));
                of.or_default().add(&count);
            }
        }
    }
}

/// The counters of the mode that serves, for whoever looks, on whatever thread. Clones are the same,
/// and read one after the other.
#[derive(Clone, Default)]
pub struct Counters(Arc<Held>);

#[derive(Default)]
struct Held {
    /// That of the mode that serves now, until who reads takes it over; held for a moment.
    next: Mutex<Option<Box<dyn ReadCounters>>>,
    /// Held while it reads.
    reader: Mutex<Option<Box<dyn ReadCounters>>>,
}

impl Counters {
    /// Another mode serves now. Whoever reads goes on with the one before: nobody waits for it here.
    pub fn set(&self, reader: Box<dyn ReadCounters>) {
        *lock(&self.0.next) = Some(reader);
        if let Ok(mut held) = self.0.reader.try_lock() {
            self.0.take_over(&mut held);
        }
    }

    /// What is not counted in the mode, and why.
    pub fn note(&self) -> Option<String> {
        self.with(|reader| reader.note().map(str::to_owned))
            .flatten()
    }

    /// Does something with what reads them, by blocking, one after the other; `None` before there is
    /// a mode.
    pub fn with<R>(&self, work: impl FnOnce(&mut dyn ReadCounters) -> R) -> Option<R> {
        let mut held = lock(&self.0.reader);
        self.0.take_over(&mut held);
        let done = held.as_mut().map(|reader| work(&mut **reader));
        // One that has ended keeps nothing open.
        self.0.take_over(&mut held);
        done
    }
}

impl Held {
    fn take_over(&self, held: &mut Option<Box<dyn ReadCounters>>) {
        let next = lock(&self.next).take();
        if next.is_some() {
            *held = next;
        }
    }
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same counters, with a reader for each of those who are not to wait for one another.
#[derive(Debug, Clone, Default)]
pub struct Apart {
    /// For those who ask for what takes a while.
    pub asked: Counters,
    /// For those who ask how it stands.
    pub status: Counters,
    /// For `/metrics`.
    pub scraped: Counters,
    /// For the daemon's own work.
    pub own: Counters,
}

/// A reader for each.
pub type Readers = [Box<dyn ReadCounters>; 4];

impl Apart {
    /// Another mode serves now.
    pub fn set(&self, readers: Readers) {
        let all = [&self.asked, &self.status, &self.scraped, &self.own];
        for (counters, reader) in all.into_iter().zip(readers) {
            counters.set(reader);
        }
    }
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Counters").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
