//! Looks at what is counted, as few as are needed for rates: all addresses, and of those that are listed
//! their endpoints. Whoever asks within a second of another is answered from the same look.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proxy::ServicePortName;
use service_counters::{At, Count, Counters, Told, Which};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::Unanswered;

/// Looks are that far apart at least.
const APART: Duration = Duration::from_secs(1);
/// For how long a look is kept after the last question.
const KEPT: Duration = Duration::from_mins(1);

/// What was counted at one moment.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) addresses: HashMap<At, Count>,
    /// In userspace mode.
    pub(super) ports: HashMap<ServicePortName, Count>,
    pub(super) port_endpoints: HashMap<(ServicePortName, SocketAddr), Count>,
}

/// Two looks.
#[derive(Debug, Clone)]
pub(super) struct Span {
    /// Absent at the first look.
    pub(super) before: Option<Arc<Look>>,
    pub(super) now: Arc<Look>,
}

impl Span {
    /// Seconds between them; 0 at the first.
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

/// Endpoints of the ports that are listed: since when each is counted, and what, before and now.
pub(super) type Endpoints = HashMap<(At, SocketAddr), Counted>;

/// What was counted at an address, by endpoint.
type ByEndpoint = HashMap<SocketAddr, Count>;

/// The endpoints of an address.
#[derive(Debug)]
struct OfAddress {
    at: Instant,
    counted: ByEndpoint,
    /// The look before, and when that was.
    before: Option<(Instant, ByEndpoint)>,
}

/// An endpoint at two moments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    pub(super) now: Count,
    /// What was counted before, and how many seconds earlier.
    pub(super) before: Option<(Count, f64)>,
}

/// The looks that are kept. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Looks {
    /// Held while the kernel is read: no thread that has something else to do may wait for it.
    kept: Arc<Mutex<Kept>>,
    /// Held for a moment.
    forgetting: Arc<Mutex<Option<AbortHandle>>>,
    /// Gives memory back.
    trim: fn(),
}

#[derive(Debug, Default)]
struct Kept {
    last: Option<Span>,
    /// Each by itself: those who ask need not have the same list.
    endpoints: HashMap<At, OfAddress>,
}

impl Looks {
    /// Keeps none yet; gives memory back by this function.
    pub(crate) fn new(trim: fn()) -> Self {
        Self {
            kept: Arc::default(),
            forgetting: Arc::default(),
            trim,
        }
    }

    /// Looks, unless that was only just done.
    ///
    /// # Errors
    ///
    /// What is counted cannot be read.
    pub(super) fn take(&self, counters: &Counters, now: Instant) -> Result<Span, Unanswered> {
        let mut kept = self.held();
        if let Some(last) = &kept.last
            && now.saturating_duration_since(last.now.at) < APART
        {
            return Ok(last.clone());
        }
        let mut look = Look {
            at: now,
            addresses: HashMap::new(),
            ports: HashMap::new(),
            port_endpoints: HashMap::new(),
        };
        read(counters, Which::Addresses, &mut |told| match told {
            Told::Address(at, _, count) => look.addresses.entry(at).or_default().add(&count),
            Told::Port(port, _, count) => look.ports.entry(port.clone()).or_default().add(&count),
            Told::PortEndpoint(port, _, endpoint, count) => {
                let of = look.port_endpoints.entry((port.clone(), endpoint));
                of.or_default().add(&count);
            }
            Told::Endpoint(..) | Told::Mark(..) => {}
        })?;
        let span = Span {
            before: kept.last.take().map(|last| last.now),
            now: Arc::new(look),
        };
        kept.last = Some(span.clone());
        Ok(span)
    }

    /// Looks at the endpoints of these addresses, but those at which that was only just done.
    ///
    /// # Errors
    ///
    /// What is counted cannot be read.
    pub(super) fn endpoints(
        &self,
        counters: &Counters,
        of: &[At],
        now: Instant,
    ) -> Result<Endpoints, Unanswered> {
        let mut kept = self.held();
        let kept = &mut kept.endpoints;
        let age = |of: &OfAddress| now.saturating_duration_since(of.at);
        kept.retain(|_, of| age(of) < KEPT);
        let is_due = |at: &&At| kept.get(at).is_none_or(|of| age(of) >= APART);
        let due: Vec<At> = of.iter().filter(is_due).copied().collect();
        if !due.is_empty() {
            let mut told: HashMap<At, ByEndpoint> =
                due.iter().map(|at| (*at, ByEndpoint::new())).collect();
            read(counters, Which::Of(&due), &mut |one| {
                if let Told::Endpoint(at, endpoint, _, count) = one
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

    /// Forgets all, when nobody has asked for a while.
    pub(super) fn forget_later(&self) {
        let (kept, trim) = (Arc::downgrade(&self.kept), self.trim);
        let forgetting = tokio::spawn(async move {
            sleep(KEPT).await;
            let forget = move || {
                if let Some(kept) = kept.upgrade() {
                    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    *kept = Kept::default();
                    drop(kept);
                    trim();
                }
            };
            // The runtime ends.
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

    fn held(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OfAddress {
    fn found(&self, at: At) -> impl Iterator<Item = ((At, SocketAddr), Counted)> {
        self.counted.iter().map(move |(endpoint, now)| {
            let before = self.before.as_ref().and_then(|(then, counted)| {
                let seconds = self.at.saturating_duration_since(*then).as_secs_f64();
                Some((*counted.get(endpoint)?, seconds))
            });
            let counted = Counted { now: *now, before };
            ((at, *endpoint), counted)
        })
    }
}

fn read(
    counters: &Counters,
    which: Which<'_>,
    take: &mut dyn FnMut(Told<'_>),
) -> Result<(), Unanswered> {
    match counters.with(|reader| reader.tell(which, take)) {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => Err(Unanswered::Unreadable(format!("{error:#}"))),
        None => Err(Unanswered::Starting("the mode to be opened".to_owned())),
    }
}
