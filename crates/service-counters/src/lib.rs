//! Traffic counters of Services, from the kernel or, in userspace mode, from the relay.
//!
//! Observers read the counters through their own blocking sockets. So a mode's worker threads
//! (kernel I/O) never wait for such a read.
//!
//! | mode | has one counter for each | connections | packets, bytes | active |
//! |---|---|---|---|---|
//! | IPVS | address, endpoint | yes | yes | yes, inactive too |
//! | iptables | address, endpoint (under one address of its Service port) | yes | no | no |
//! | nftables | address, endpoint (requested addresses only) | tracked flows | no | yes |
//! | userspace | Service port, endpoint | yes | bytes; packets only for UDP | yes |

pub mod frontend_addresses;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use ipnet::IpNet;
use proxy::{IpFamily, Protocol, ServicePortName};

/// An address at which a Service port is served. A NodePort has an entry for each node address that
/// serves it. In iptables mode, one rule covers all node addresses, so the NodePort's entry has the
/// unspecified address.
pub use proxy::ServiceAddress as At;

/// Selection of the counters that a read returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterSelection<'a> {
    /// Counters of all addresses, but not of endpoints. The read needs one dump.
    Addresses,
    /// Counters of all addresses and of their endpoints.
    All,
    /// Counters of the given addresses and of their endpoints.
    Of(&'a [At]),
}

/// Counters from one read. They may include virtual servers that belong to other programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CounterSamples {
    /// Counters of each service address.
    pub addresses: HashMap<At, OfAddress>,
    /// Counters of each endpoint at each service address.
    pub endpoints: HashMap<(At, SocketAddr), OfEndpoint>,
    /// Counters of other programs' virtual servers by firewall mark, in IPVS mode. A connection
    /// with one of this program's marks is counted at an address of its Service instead.
    pub marks: HashMap<(IpFamily, u32), OfAddress>,
    /// Counters by Service port, in userspace mode, which has no counters by address. Includes all
    /// Service ports, regardless of the selection.
    pub ports: HashMap<ServicePortName, Count>,
    /// Counters by Service port and endpoint, in userspace mode.
    pub port_endpoints: HashMap<(ServicePortName, SocketAddr), Count>,
    /// Note for the reader about counters that this mode lacks, with the reason. `None` if the mode
    /// lacks no counter.
    pub note: Option<&'static str>,
}

/// Counters of one service address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfAddress {
    /// Scheduler of the virtual server in IPVS mode, or `None` in other modes.
    pub scheduler: Option<String>,
    /// Counters of the traffic to and from the service address.
    pub count: Count,
}

/// Counters of one endpoint at one service address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OfEndpoint {
    /// Weight of the destination in IPVS mode, or `None` in other modes.
    pub weight: Option<u32>,
    /// Counters of the endpoint's traffic under the service address.
    pub count: Count,
}

/// Counters of one entry of the kernel or the relay, since the entry was created. A counter that
/// the mode does not have is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of opened connections.
    pub connections: u64,
    /// Number of packets towards the endpoint, if the mode counts packets.
    pub packets_in: Option<u64>,
    /// Number of packets from the endpoint, if the mode counts packets.
    pub packets_out: Option<u64>,
    /// Number of bytes towards the endpoint, if the mode counts bytes.
    pub bytes_in: Option<u64>,
    /// Number of bytes from the endpoint, if the mode counts bytes.
    pub bytes_out: Option<u64>,
    /// Number of connections that are open now, if the mode counts them.
    pub active: Option<u64>,
    /// Number of closed connections that the kernel still stores. Counted only in IPVS mode.
    pub inactive: Option<u64>,
    /// Number of clients that session affinity binds to this endpoint (persistence templates in
    /// IPVS), if the mode counts them.
    pub persistent: Option<u64>,
}

impl Count {
    /// Adds the counters of another entry. A counter that neither entry has stays `None`.
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

/// Counters of one entry, as a mode reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterSample<'a> {
    /// Sample of an address, with its scheduler in IPVS mode.
    Address(At, Option<&'a str>, Count),
    /// Sample of an endpoint at an address, with its weight in IPVS mode.
    Endpoint(At, SocketAddr, Option<u32>, Count),
    /// Sample of a firewall mark, with its scheduler.
    Mark(IpFamily, u32, &'a str, Count),
    /// Sample of a Service port, at one of its listening ports.
    Port(&'a ServicePortName, Listener, Count),
    /// Sample of an endpoint of a Service port, at one of the Service port's listening ports.
    PortEndpoint(&'a ServicePortName, Listener, SocketAddr, Count),
}

/// Number that identifies a listening port in this process. A Service port may have several
/// listening ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Listener(pub u64);

/// Service port and endpoints to which the relay connects the clients of a listening port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayedPort {
    /// Service port to which the listening port belongs.
    pub name: ServicePortName,
    /// Endpoints to which the relay connects clients, in turn.
    pub endpoints: Vec<SocketAddr>,
    /// Networks whose clients the relay accepts. `None`: the relay accepts every client.
    pub sources: Option<Vec<IpNet>>,
}

/// Reader of a mode's counters.
pub trait ReadCounters: Send {
    /// Reads the selected counters, and passes each sample to `take`. Stores no sample. Blocks.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be read. The error has the reason and the next step.
    fn tell(
        &mut self,
        which: CounterSelection<'_>,
        take: &mut dyn FnMut(CounterSample<'_>),
    ) -> Result<()>;

    /// Reports whether [`CounterSelection::Of`] returns more counters of an address than
    /// [`CounterSelection::Addresses`]. Callers should then request only the addresses that they
    /// need. Otherwise, [`CounterSelection::All`] is not slower than a request for some addresses.
    fn tells_more_of_single(&self) -> bool {
        false
    }

    /// Returns a note about counters that this mode lacks, with the reason. `None`: it lacks none.
    fn note(&self) -> Option<&'static str> {
        None
    }

    /// Returns the Service port and the endpoints of a listening port of this process, in userspace
    /// mode.
    fn relayed(&self, _family: IpFamily, _protocol: Protocol, _port: u16) -> Option<RelayedPort> {
        None
    }

    /// Reads the selected counters into maps. Blocks.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be read. The error has the reason and the next step.
    fn read(&mut self, which: CounterSelection<'_>) -> Result<CounterSamples> {
        let mut all = CounterSamples {
            note: self.note(),
            ..CounterSamples::default()
        };
        self.tell(which, &mut |told| all.take(told))?;
        Ok(all)
    }
}

impl CounterSamples {
    fn take(&mut self, told: CounterSample<'_>) {
        match told {
            CounterSample::Address(at, scheduler, count) => {
                let of = self.addresses.entry(at).or_default();
                of.scheduler = scheduler.map(str::to_owned);
                of.count.add(&count);
            }
            CounterSample::Endpoint(at, endpoint, weight, count) => {
                let of = self.endpoints.entry((at, endpoint)).or_default();
                of.weight = of.weight.max(weight);
                of.count.add(&count);
            }
            CounterSample::Mark(family, mark, scheduler, count) => {
                let of = self.marks.entry((family, mark)).or_default();
                of.scheduler = Some(scheduler.to_owned());
                of.count.add(&count);
            }
            CounterSample::Port(port, _, count) => {
                self.ports.entry(port.clone()).or_default().add(&count);
            }
            CounterSample::PortEndpoint(port, _, endpoint, count) => {
                let of = self.port_endpoints.entry((port.clone(), endpoint));
                of.or_default().add(&count);
            }
        }
    }
}

/// Counters of the current mode, for observers on any thread. Clones share one reader,
/// which serves one caller at a time.
#[derive(Clone, Default)]
pub struct Counters(Arc<CurrentReader>);

#[derive(Default)]
struct CurrentReader {
    /// Reader of the current mode, until the next read begins to use it. Threads lock this field
    /// only briefly.
    next: Mutex<Option<Box<dyn ReadCounters>>>,
    /// Reader in use. A thread locks this field during a complete read.
    reader: Mutex<Option<Box<dyn ReadCounters>>>,
}

impl Counters {
    /// Replaces the reader after a change of mode. Never waits: a read in progress continues with
    /// the old reader.
    pub fn set(&self, reader: Box<dyn ReadCounters>) {
        *lock(&self.0.next) = Some(reader);
        if let Ok(mut held) = self.0.reader.try_lock() {
            self.0.take_over(&mut held);
        }
    }

    /// Returns the current mode's note about counters that it lacks. `None`: it lacks none, or no
    /// mode runs yet.
    pub fn note(&self) -> Option<String> {
        self.with(|reader| reader.note().map(str::to_owned))
            .flatten()
    }

    /// Runs `work` with the reader. Blocks while another caller uses the reader. Returns `None`
    /// before the first mode has set its reader.
    pub fn with<R>(&self, work: impl FnOnce(&mut dyn ReadCounters) -> R) -> Option<R> {
        let mut held = lock(&self.0.reader);
        self.0.take_over(&mut held);
        let done = held.as_mut().map(|reader| work(&mut **reader));
        // If the mode has changed since the last call, drops the old mode's reader. This closes the
        // reader's sockets.
        self.0.take_over(&mut held);
        done
    }
}

impl CurrentReader {
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

/// Readers of the counters, one for each kind of caller, so that callers of different kinds do not
/// wait for each other.
#[derive(Debug, Clone, Default)]
pub struct SeparateReaders {
    /// Reader for operators' requests. Its reads may be slow.
    pub asked: Counters,
    /// Reader for `/api/v1/status`.
    pub status: Counters,
    /// Reader for `/metrics`.
    pub scraped: Counters,
    /// Reader for the daemon's cleanup of stale UDP flows.
    pub own: Counters,
}

/// New readers, in the order of the fields of [`SeparateReaders`].
pub type Readers = [Box<dyn ReadCounters>; 4];

impl SeparateReaders {
    /// Replaces all readers after a change of mode.
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
