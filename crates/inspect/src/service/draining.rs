//! Lists draining endpoints, and others that only the kernel or the userspace relay still has. The
//! mode reports when each drain began.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use proxy::{DrainingEndpoint, ServicePortName};
use service_counters::{At, Count, CounterSamples};
use view::{Condition, Drain, Endpoint};

use crate::question::NodeContext;

/// Endpoints that drain or that the kernel or the relay still has, by address or by Service port.
pub(super) struct HeldEndpoints<'a> {
    counted: &'a CounterSamples,
    drains: HashMap<At, Vec<ReportedDrain<'a>>>,
    /// Destinations of the IPVS virtual server at each address.
    destinations: HashMap<At, Vec<SocketAddr>>,
    /// Endpoints with open connections of the userspace relay, by Service port.
    carried: HashMap<&'a ServicePortName, Vec<SocketAddr>>,
}

/// A draining endpoint in the mode's report.
struct ReportedDrain<'a> {
    endpoint: SocketAddr,
    drain: &'a DrainingEndpoint,
    limit: Option<Duration>,
    now: Instant,
}

/// Owner of the connections to an endpoint: the kernel or the userspace relay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionOwner {
    Kernel,
    Relay,
}

impl<'a> HeldEndpoints<'a> {
    pub(super) fn new(ground: &'a NodeContext, counted: &'a CounterSamples) -> Self {
        let mut held = Self {
            counted,
            drains: HashMap::new(),
            destinations: HashMap::new(),
            carried: HashMap::new(),
        };
        for of in &ground.families {
            for drain in &of.drains.first {
                held.drains
                    .entry(drain.at)
                    .or_default()
                    .push(ReportedDrain {
                        endpoint: SocketAddr::new(drain.target.ip, drain.target.port),
                        drain,
                        limit: of.drains.limit,
                        now: of.now,
                    });
            }
        }
        for ((at, endpoint), of) in &counted.endpoints {
            if of.weight.is_some() {
                held.destinations.entry(*at).or_default().push(*endpoint);
            }
        }
        for ((name, endpoint), count) in &counted.port_endpoints {
            if is_carried(count) {
                held.carried.entry(name).or_default().push(*endpoint);
            }
        }
        held
    }

    /// Lists all endpoints of a Service port that drain or that the kernel or the relay still has.
    pub(super) fn all(&self, name: &ServicePortName, at: &[At]) -> BTreeSet<SocketAddr> {
        let drains = at.iter().filter_map(|at| self.drains.get(at)).flatten();
        let destinations = at.iter().filter_map(|at| self.destinations.get(at));
        let carried = self.carried.get(name).into_iter();
        drains
            .map(|known| known.endpoint)
            .chain(destinations.chain(carried).flatten().copied())
            .collect()
    }

    /// Returns the number of endpoints of a Service port that the mode reports as draining.
    pub(super) fn count(&self, at: &[At]) -> usize {
        if self.drains.is_empty() {
            return 0;
        }
        let drains = at.iter().filter_map(|at| self.drains.get(at)).flatten();
        let endpoints: BTreeSet<_> = drains.map(|known| known.endpoint).collect();
        endpoints.len()
    }

    /// Adds the state of its drain to an endpoint of an EndpointSlice. Does nothing without a
    /// drain.
    pub(super) fn add_drain(
        &self,
        endpoint: &mut Endpoint,
        socket: SocketAddr,
        name: &ServicePortName,
        at: &[At],
    ) {
        let is_in = endpoint.cluster || endpoint.local_policy;
        let found = self
            .known(socket, at)
            .map(|drain| (drain, ConnectionOwner::Kernel));
        let found = found.or_else(|| {
            let carried = self.relayed(socket, name).filter(|_| !is_in)?;
            Some((carried, ConnectionOwner::Relay))
        });
        if let Some((drain, by)) = found {
            let _ = write!(endpoint.why, "; {}", says(&drain, by));
            endpoint.draining = Some(drain);
        }
    }

    /// Explains in `endpoint` why the kernel or the relay still has this endpoint, which no
    /// EndpointSlice contains.
    pub(super) fn left(
        &self,
        endpoint: &mut Endpoint,
        socket: SocketAddr,
        name: &ServicePortName,
        at: &[At],
    ) {
        let kernel = || {
            self.known(socket, at)
                .or_else(|| (endpoint.weight == Some(0)).then(|| self.unknown(socket, at)))
        };
        let drain = match kernel() {
            Some(drain) => Some((drain, ConnectionOwner::Kernel)),
            None => self
                .relayed(socket, name)
                .map(|drain| (drain, ConnectionOwner::Relay)),
        };
        let Some((drain, by)) = drain else {
            endpoint.condition = Condition::Left;
            "no EndpointSlice has it, and the kernel still sends to it: it is about to go, or it \
             stays until every object can be \
             read (kube-proxy status)"
                .clone_into(&mut endpoint.why);
            return;
        };
        endpoint.condition = Condition::Draining;
        endpoint.why = format!("no EndpointSlice has it any more; {}", says(&drain, by));
        endpoint.draining = Some(drain);
    }

    /// Returns the drain of an endpoint that the mode has reported, summed up over all addresses.
    /// Returns `None` if the mode has reported none.
    fn known(&self, socket: SocketAddr, at: &[At]) -> Option<Drain> {
        let known = |at: &At| {
            let mut of = self.drains.get(at)?.iter();
            of.find(|known| known.endpoint == socket)
        };
        let drains: Vec<(At, &ReportedDrain<'_>)> =
            at.iter().filter_map(|at| Some((*at, known(at)?))).collect();
        if drains.is_empty() {
            return None;
        }
        let ago = |known: &ReportedDrain<'_>| {
            let since = known.drain.since?;
            Some(known.now.saturating_duration_since(since))
        };
        let left = |known: &ReportedDrain<'_>| Some(known.limit?.saturating_sub(ago(known)?));
        // If the drain at any of the addresses has no time limit, the summed-up drain has none.
        let ends = drains.iter().map(|(_, known)| left(known));
        let ends = ends.collect::<Option<Vec<_>>>();
        let ends = ends.and_then(|ends| ends.into_iter().max());
        let at: Vec<At> = drains.iter().map(|(at, _)| *at).collect();
        Some(Drain {
            seconds: drains
                .iter()
                .filter_map(|(_, known)| ago(known))
                .max()
                .map(seconds),
            ends_within_seconds: ends.map(seconds),
            ..self.unknown(socket, &at)
        })
    }

    /// Returns the drain of a destination with weight 0, with its connections, but without the
    /// start time, which is unknown.
    fn unknown(&self, socket: SocketAddr, at: &[At]) -> Drain {
        let held = at.iter().map(|at| (*at, socket));
        let counts = held.filter_map(|key| self.counted.endpoints.get(&key));
        let sum = counts.map(|of| of.count).reduce(|mut sum, count| {
            sum.add(&count);
            sum
        });
        Drain {
            open: sum.and_then(|sum| sum.active),
            ended: sum.and_then(|sum| sum.inactive),
            ..Drain::default()
        }
    }

    fn relayed(&self, socket: SocketAddr, name: &ServicePortName) -> Option<Drain> {
        let is_carried = self.carried.get(name)?.contains(&socket);
        let key = (name.clone(), socket);
        let count = self.counted.port_endpoints.get(&key);
        is_carried.then(|| Drain {
            open: count.and_then(|count| count.active),
            ..Drain::default()
        })
    }
}

fn is_carried(count: &Count) -> bool {
    count.active.is_some_and(|active| active > 0)
}

/// Converts a duration to seconds, rounded down to milliseconds.
fn seconds(time: Duration) -> f64 {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).as_secs_f64()
}

/// Describes a drain: its duration, its open connections and its time limit.
fn says(drain: &Drain, by: ConnectionOwner) -> String {
    let mut text = "drains".to_owned();
    // Ignores the results, because a write to a String cannot fail.
    if let Some(seconds) = drain.seconds {
        let _ = write!(text, " for {seconds:.0} s");
    }
    let open = match (drain.open, drain.ended) {
        (None, _) => return text,
        (Some(0), None | Some(0)) => {
            text.push_str(": no connection is left; it is removed at the next check");
            return text;
        }
        (Some(open), ended) => {
            let noun = if open == 1 {
                "connection"
            } else {
                "connections"
            };
            let ended = ended.filter(|ended| *ended > 0);
            let ended =
                ended.map(|ended| format!(", {ended} closed and still remembered by the kernel"));
            format!(": {open} {noun} open{}", ended.unwrap_or_default())
        }
    };
    text.push_str(&open);
    let until = match (by, drain.ends_within_seconds) {
        (ConnectionOwner::Relay, _) => "; kube-proxy carries them until they end".to_owned(),
        (ConnectionOwner::Kernel, Some(left)) => {
            format!(
                "; it is removed when they have ended, or in {left:.0} s \
                     (--ipvs-drain-timeout)"
            )
        }
        (ConnectionOwner::Kernel, None) => {
            "; it is removed when they have ended, without a limit (--ipvs-drain-timeout sets \
             one)"
                .to_owned()
        }
    };
    text.push_str(&until);
    text
}
