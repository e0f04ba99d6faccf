//! Load balancing of one Service: its scheduler, the scheduler's flags, and the weights and
//! connection limits of destinations.

use std::sync::Arc;

use proxy::options::{MaxConnections, SlowStart, Weights};
use proxy::{Backends, Service, Target};

use crate::server::{Destinations, Properties, RealServer};
use crate::slow_start::Ramp;

/// Schedulers of one Service's virtual servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSchedulers {
    /// Scheduler that the Service requests if the kernel has it, otherwise the node's scheduler.
    pub own: Arc<str>,
    /// Scheduler `sh` (source hashing). `None` if the kernel lacks `sh`, or if the proxy does not
    /// know yet whether the kernel has it.
    pub by_source: Option<Arc<str>>,
}

/// Load-balancing options of a Service, without those that its scheduler ignores.
#[derive(Debug)]
pub(crate) struct Balance<'a> {
    scheduler: &'a Arc<str>,
    /// Scheduler flags of the virtual servers (`IP_VS_SVC_F_SCHED*`).
    flags: u32,
    max_connections: u16,
    weights: Option<Weights>,
    /// Slow start of new endpoints, or `None` if new endpoints get their full weight immediately.
    pub(crate) ramp: Option<Ramp>,
}

impl<'a> Balance<'a> {
    /// Returns the Service's load-balancing options that apply to this scheduler.
    pub(crate) fn of(service: &Service, scheduler: &'a Arc<str>) -> Self {
        let options = service.options.as_deref();
        let flags = options.and_then(|options| options.scheduler_flags);
        let flags = match flags.filter(|flags| flags.are_heeded_by(scheduler)) {
            Some(flags) => {
                let set = |is_set, flag| if is_set { flag } else { 0 };
                set(flags.port, Properties::HASH_PORT) | set(flags.fallback, Properties::FALLBACK)
            }
            // Without flags from the Service, `mh` hashes the client's port, as in upstream.
            None if &**scheduler == "mh" => Properties::HASH_PORT,
            None => 0,
        };
        let weights = options.and_then(|options| options.weights);
        let weights = weights.filter(|_| Weights::are_heeded_by(scheduler));
        let ceiling = options.and_then(|options| options.max_connections);
        let slow_start = options.and_then(|options| options.slow_start);
        let slow_start = slow_start.filter(|_| SlowStart::is_heeded_by(scheduler));
        let largest = weights.map_or(1, Weights::largest);
        Self {
            scheduler,
            flags,
            max_connections: ceiling.map_or(0, MaxConnections::get),
            weights,
            ramp: slow_start.and_then(|time| Ramp::new(time.duration(), scheduler, largest)),
        }
    }

    /// Returns the scheduler, flags and persistence timeout of the Service's virtual servers.
    pub(crate) fn properties(&self, service: &Service) -> Properties {
        let is_persistent = service.affinity_seconds.is_some();
        let persistent = if is_persistent {
            Properties::PERSISTENT
        } else {
            0
        };
        Properties {
            scheduler: Arc::clone(self.scheduler),
            flags: self.flags | persistent,
            timeout: service.affinity_seconds.unwrap_or(0),
        }
    }

    /// Returns one destination per target. The weight can depend on whether the endpoint is on this
    /// node or in its zone, as listed in `backends`.
    pub(crate) fn destinations(&self, targets: &[Target], backends: &Backends) -> Destinations {
        let is_in = |list: &[Target], target: &Target| list.binary_search(target).is_ok();
        let weight = |target: &Target, weights: Weights| {
            weights.of(
                is_in(&backends.on_node, target),
                is_in(&backends.in_zone, target),
            )
        };
        let steps = self.ramp.map_or(1, Ramp::steps);
        let real = |target: &Target| RealServer {
            weight: steps * self.weights.map_or(1, |weights| weight(target, weights)),
            max_connections: self.max_connections,
            ..RealServer::new(*target)
        };
        targets.iter().map(real).collect()
    }
}
