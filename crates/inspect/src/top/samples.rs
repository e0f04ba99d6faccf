//! Stores counter samples, from which rates are computed: of all addresses, and of the endpoints of
//! listed addresses. Requests within a second share a sample.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proxy::ServicePortName;
use service_counters::{At, Count, CounterSample, CounterSelection, Counters};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::RequestRefusal;

/// Minimum time between two samples.
const APART: Duration = Duration::from_secs(1);
/// Time between the last request and the removal of the samples.
const KEPT: Duration = Duration::from_mins(1);

/// Counters of all addresses at one time.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) addresses: HashMap<At, Count>,
    /// Counters by Service port, which only userspace mode has.
    pub(super) ports: HashMap<ServicePortName, Count>,
    pub(super) port_endpoints: HashMap<(ServicePortName, SocketAddr), Count>,
}

/// Two consecutive samples, from which rates are computed.
#[derive(Debug, Clone)]
pub(super) struct Span {
    /// The previous sample, or `None` if `now` is the first sample.
    pub(super) before: Option<Arc<Sample>>,
    pub(super) now: Arc<Sample>,
}

impl Span {
    /// Returns the time between the two samples in seconds, or 0 if there is only one.
    pub(super) fn seconds(&self) -> f64 {
        let before = self.before.as_ref();
        before.map_or(0.0, |before| {
            self.now
                .at
                .saturating_duration_since(before.at)
                .as_secs_f64()
        })
    }
}

/// Counters of endpoints at the listed addresses, in the last two samples.
pub(super) type Endpoints = HashMap<(At, SocketAddr), EndpointCounters>;

/// Counters of one address's endpoints, in one sample.
type ByEndpoint = HashMap<SocketAddr, Count>;

/// The last two samples of one address's endpoints.
#[derive(Debug)]
struct OfAddress {
    at: Instant,
    counted: ByEndpoint,
    /// Time and counters of the previous sample, or `None` if there is only one.
    before: Option<(Instant, ByEndpoint)>,
}

/// Counters of an endpoint in two samples.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndpointCounters {
    pub(super) now: Count,
    /// Counters in the previous sample, and the seconds between both samples. `None` if there is
    /// only one.
    pub(super) before: Option<(Count, f64)>,
}

/// Store of the last samples. Its clones share them.
#[derive(Debug, Clone)]
pub(crate) struct SampleStore {
    /// The last samples. A thread holds the lock while it reads the kernel, so only threads that
    /// may block wait for the lock.
    kept: Arc<Mutex<StoredSamples>>,
    /// Timer that removes the samples [`KEPT`] after the last request.
    forgetting: Arc<Mutex<Option<AbortHandle>>>,
    /// Function that returns freed memory to the system.
    trim: fn(),
}

#[derive(Debug, Default)]
struct StoredSamples {
    last: Option<Span>,
    /// The last samples of endpoints, by address, because requests may list different addresses.
    endpoints: HashMap<At, OfAddress>,
}

impl SampleStore {
    /// Creates an empty store. `trim` is called after the samples are removed, to return their
    /// memory to the system.
    pub(crate) fn new(trim: fn()) -> Self {
        Self {
            kept: Arc::default(),
            forgetting: Arc::default(),
            trim,
        }
    }

    /// Takes a sample of all addresses, and returns it with the previous one. If the last sample is
    /// younger than [`APART`], returns the last two samples instead.
    ///
    /// # Errors
    ///
    /// Fails if the counters cannot be read.
    pub(super) fn take(&self, counters: &Counters, now: Instant) -> Result<Span, RequestRefusal> {
        let mut kept = self.held();
        if let Some(last) = &kept.last
            && now.saturating_duration_since(last.now.at) < APART
        {
            return Ok(last.clone());
        }
        let mut look = Sample {
            at: now,
            addresses: HashMap::new(),
            ports: HashMap::new(),
            port_endpoints: HashMap::new(),
        };
        read(
            counters,
            CounterSelection::Addresses,
            &mut |told| match told {
                CounterSample::Address(at, _, count) => {
                    look.addresses.entry(at).or_default().add(&count);
                }
                CounterSample::Port(port, _, count) => {
                    look.ports.entry(port.clone()).or_default().add(&count);
                }
                CounterSample::PortEndpoint(port, _, endpoint, count) => {
                    let of = look.port_endpoints.entry((port.clone(), endpoint));
                    of.or_default().add(&count);
                }
                CounterSample::Endpoint(..) | CounterSample::Mark(..) => {}
            },
        )?;
        let span = Span {
            before: kept.last.take().map(|last| last.now),
            now: Arc::new(look),
        };
        kept.last = Some(span.clone());
        Ok(span)
    }

    /// Takes a sample of the endpoints of each address in `of`, unless its last sample is younger
    /// than [`APART`]. Returns the last two samples of each endpoint.
    ///
    /// # Errors
    ///
    /// Fails if the counters cannot be read.
    pub(super) fn endpoints(
        &self,
        counters: &Counters,
        of: &[At],
        now: Instant,
    ) -> Result<Endpoints, RequestRefusal> {
        let mut kept = self.held();
        let kept = &mut kept.endpoints;
        let age = |of: &OfAddress| now.saturating_duration_since(of.at);
        kept.retain(|_, of| age(of) < KEPT);
        let is_due = |at: &&At| kept.get(at).is_none_or(|of| age(of) >= APART);
        let due: Vec<At> = of.iter().filter(is_due).copied().collect();
        if !due.is_empty() {
            let mut told: HashMap<At, ByEndpoint> =
                due.iter().map(|at| (*at, ByEndpoint::new())).collect();
            read(counters, CounterSelection::Of(&due), &mut |one| {
                if let CounterSample::Endpoint(at, endpoint, _, count) = one
                    && let Some(counted) = told.get_mut(&at)
                {
                    counted.entry(endpoint).or_default().add(&count);
                }
            })?;
            for (at, counted) in told {
                let before = kept.remove(&at).map(|of| (of.at, of.counted));
                let of = OfAddress {
                    at: now,
                    counted,
                    before,
                };
                kept.insert(at, of);
            }
        }
        let found = of.iter().filter_map(|at| Some((at, kept.get(at)?)));
        Ok(found.flat_map(|(at, of)| of.found(*at)).collect())
    }

    /// Restarts the timer that removes all samples [`KEPT`] after the last request.
    pub(super) fn forget_later(&self) {
        let (kept, trim) = (Arc::downgrade(&self.kept), self.trim);
        let forgetting = tokio::spawn(async move {
            sleep(KEPT).await;
            let forget = move || {
                if let Some(kept) = kept.upgrade() {
                    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    *kept = StoredSamples::default();
                    drop(kept);
                    trim();
                }
            };
            // Ignores the error, because the runtime may be shutting down.
            let _ = tokio::task::spawn_blocking(forget).await;
        });
        let mut held = self
            .forgetting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = held.replace(forgetting.abort_handle());
        if let Some(before) = before {
            before.abort();
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.held().last.is_none()
    }

    fn held(&self) -> MutexGuard<'_, StoredSamples> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OfAddress {
    fn found(&self, at: At) -> impl Iterator<Item = ((At, SocketAddr), EndpointCounters)> {
        self.counted.iter().map(move |(endpoint, now)| {
            let before = self.before.as_ref().and_then(|(then, counted)| {
                let seconds = self.at.saturating_duration_since(*then).as_secs_f64();
                Some((*counted.get(endpoint)?, seconds))
            });
            let counted = EndpointCounters { now: *now, before };
            ((at, *endpoint), counted)
        })
    }
}

fn read(
    counters: &Counters,
    which: CounterSelection<'_>,
    take: &mut dyn FnMut(CounterSample<'_>),
) -> Result<(), RequestRefusal> {
    match counters.with(|reader| reader.tell(which, take)) {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => Err(RequestRefusal::Unreadable(format!("{error:#}"))),
        None => Err(RequestRefusal::Starting("the mode to be opened".to_owned())),
    }
}
