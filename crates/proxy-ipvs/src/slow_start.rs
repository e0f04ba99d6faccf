//! Slow start: a new endpoint of a serving virtual server begins with a tenth of its weight, which
//! then grows step by step.
//!
//! - **State**: a growing destination is an ordinary entry of the table of virtual servers, with
//!   the weight of its current step as the wanted weight.
//! - **Weights**: the kernel has only integer weights, so with slow start, all full weights are
//!   multiplied by the number of steps.
//! - **Restart**: the weight in the kernel shows how far the destination has grown.
//! - **Condition**: a destination grows only while another has its full weight. So if a Service
//!   begins to serve, all its destinations get their full weights immediately.
//! - **Cost**: each new destination needs at most nine more writes. One timer serves all steps. It
//!   fires at most once a second, or every 100 ms while more virtual servers are due than fit into
//!   one round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use proxy::options::SlowStart;
use proxy::{Owner, Target};

use crate::server::{RealServer, VirtualServer, VirtualServerKey};

/// Number of weights that a growing destination gets, including the full weight.
const STEPS: u16 = 10;
/// Largest weight that the scheduler `mh` can distinguish from weight 1: `mh` halves all weights
/// until the largest fits.
const MOST_OF_MH: u16 = 63;
/// Shortest time between two rounds. In a round, growing destinations take their next step.
const PAUSE: Duration = Duration::from_secs(1);
/// Shortest time between two rounds if the first left due virtual servers over.
const SHORT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of virtual servers in one round.
const SERVERS_AT_ONCE: usize = 512;

/// Slow start of a Service's new endpoints: duration and number of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ramp {
    duration: Duration,
    /// Number of weights that a growing destination gets, at least 2.
    steps: u16,
}

impl Ramp {
    /// Returns the slow start for this scheduler, with `largest` as the largest weight of an
    /// endpoint. Returns `None` if the scheduler could not distinguish the weights.
    pub(crate) fn new(duration: Duration, scheduler: &str, largest: u16) -> Option<Self> {
        let most = if scheduler == "mh" {
            MOST_OF_MH / largest.max(1)
        } else {
            STEPS
        };
        let steps = most.min(STEPS);
        (steps > 1).then_some(Self { duration, steps })
    }

    /// Returns the number of steps, the factor by which full weights are multiplied.
    pub(crate) fn steps(self) -> u16 {
        self.steps
    }

    fn first_weight(self, full: u16) -> u16 {
        (full / self.steps).max(1)
    }

    /// Returns the age at which a destination reaches a step. Step 1 begins at age 0.
    fn age_at(self, step: u16) -> Duration {
        self.duration * u32::from(step - 1) / u32::from(self.steps - 1)
    }

    fn step(self, age: Duration) -> u16 {
        let mut steps = (1..=self.steps).rev();
        steps.find(|step| self.age_at(*step) <= age).unwrap_or(1)
    }

    /// Returns the age of a growing destination, according to its weight in the kernel.
    fn age(self, weight: u16, full: u16) -> Duration {
        let step = weight / self.first_weight(full);
        self.age_at(step.clamp(1, self.steps))
    }

    fn weight(self, age: Duration, full: u16) -> u16 {
        if age >= self.duration {
            return full;
        }
        full.min(self.first_weight(full) * self.step(age))
    }
}

/// A virtual server that is recomputed, and the Service port that wants it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) key: VirtualServerKey,
    pub(crate) owner: &'a Arc<Owner>,
    /// Virtual server as it was wanted before. If `None`, only the weights in the kernel decide
    /// which destinations grow.
    pub(crate) before: Option<&'a VirtualServer>,
}

/// Destinations in slow start, by virtual server.
#[derive(Debug)]
pub(crate) struct Growths {
    /// Slow start of each Service port that requests it.
    ramps: HashMap<Arc<Owner>, Ramp>,
    servers: BTreeMap<VirtualServerKey, Growth>,
    /// Virtual servers with growing destinations, sorted by the time of their next step.
    due: BTreeSet<(Instant, VirtualServerKey)>,
    /// Earliest time of the next round, in which growing destinations take their next step.
    next_round: Instant,
    now: Instant,
}

#[derive(Debug)]
struct Growth {
    /// Destinations that still grow, sorted by target.
    targets: Vec<Growing>,
    due: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Growing {
    target: Target,
    since: Instant,
    /// Weight of the destination after its slow start.
    full: u16,
}

impl Growths {
    /// Creates a table in which no destination grows.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            ramps: HashMap::new(),
            servers: BTreeMap::new(),
            due: BTreeSet::new(),
            next_round: now,
            now,
        }
    }

    /// Sets the current time for all later calls.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.now = now;
    }

    /// Sets the slow start of a Service port. Returns true if the port had none before, for example
    /// while the kernel's schedulers were unknown. The caller must then ignore the weights wanted
    /// before, which do not show which destinations have grown.
    pub(crate) fn set_ramp(&mut self, owner: &Arc<Owner>, ramp: Option<Ramp>) -> bool {
        let Some(ramp) = ramp else {
            self.ramps.remove(owner);
            return false;
        };
        self.ramps.insert(Arc::clone(owner), ramp).is_none()
    }

    fn growing(&self, key: &VirtualServerKey, target: Target) -> Option<&Growing> {
        let targets = &self.servers.get(key)?.targets;
        let at = targets.binary_search_by_key(&target, |growing| growing.target);
        targets.get(at.ok()?)
    }

    /// Returns the destination with its full weight, which slow start may have lowered.
    pub(crate) fn full(&self, key: &VirtualServerKey, real: RealServer) -> RealServer {
        match self.growing(key, real.target) {
            Some(growing) => real.with_weight(growing.full),
            None => real,
        }
    }

    /// Lowers the weights of destinations in slow start. In `wanted`, each destination has its full
    /// weight, or drains.
    pub(crate) fn apply(
        &mut self,
        place: &Place<'_>,
        actual: &VirtualServer,
        wanted: VirtualServer,
    ) -> VirtualServer {
        let key = place.key;
        let ramp = self.ramps.get(place.owner).copied();
        let ramp = ramp.filter(|_| SlowStart::is_heeded_by(&wanted.properties.scheduler));
        let Some(ramp) = ramp else {
            self.forget(&key);
            return wanted;
        };
        let (mut targets, mut serves) = (Vec::new(), false);
        for (there, real) in actual.destinations.beside(&wanted.destinations) {
            let Some(real) = real.filter(|real| real.weight > 0) else {
                continue;
            };
            let weight = there.map_or(0, |there| there.weight);
            let since = self.since(place, real, weight, ramp);
            let age = since.map(|since| self.now.saturating_duration_since(since));
            match since
                .filter(|_| age.is_some_and(|age| ramp.weight(age, real.weight) < real.weight))
            {
                Some(since) => targets.push(Growing {
                    target: real.target,
                    since,
                    full: real.weight,
                }),
                None => serves |= weight > 0,
            }
        }
        self.forget(&key);
        if targets.is_empty() || !serves {
            return wanted;
        }
        let age = |growing: &Growing| self.now.saturating_duration_since(growing.since);
        let next = |growing: &Growing| growing.since + ramp.age_at(ramp.step(age(growing)) + 1);
        let due = targets.iter().map(next).min().unwrap_or(self.now);
        let mut growing = targets.iter().peekable();
        let lowered = |real: RealServer| match growing.next_if(|of| of.target == real.target) {
            Some(of) => real.with_weight(ramp.weight(age(of), of.full)),
            None => real,
        };
        let destinations = wanted.destinations.iter().map(lowered).collect();
        self.due.insert((due, key));
        self.servers.insert(key, Growth { targets, due });
        VirtualServer {
            destinations,
            ..wanted
        }
    }

    /// Returns the time at which a destination began to grow, or `None` if it gets its full weight
    /// immediately.
    fn since(
        &self,
        place: &Place<'_>,
        real: RealServer,
        there: u16,
        ramp: Ramp,
    ) -> Option<Instant> {
        if let Some(growing) = self.growing(&place.key, real.target) {
            return Some(growing.since);
        }
        let before = place
            .before
            .and_then(|before| before.destination(real.target));
        // A destination that was wanted before does not grow again, even if the kernel lacks it:
        // its write may be pending, or another program may have removed it.
        if there >= real.weight || before.is_some_and(|before| before.weight > 0) {
            return None;
        }
        let age = ramp.age(there, real.weight);
        Some(self.now.checked_sub(age).unwrap_or(self.now))
    }

    /// Removes a virtual server from the table of growing destinations.
    pub(crate) fn forget(&mut self, key: &VirtualServerKey) {
        if let Some(growth) = self.servers.remove(key) {
            self.due.remove(&(growth.due, *key));
        }
    }

    /// Removes the virtual servers whose next step is due from the queue, and returns them, at most
    /// `SERVERS_AT_ONCE`.
    pub(crate) fn take_due(&mut self) -> Vec<VirtualServerKey> {
        let is_due = |(due, _): &&(Instant, VirtualServerKey)| *due <= self.now;
        if self.next_round > self.now {
            return Vec::new();
        }
        let due = self.due.iter().take_while(is_due).take(SERVERS_AT_ONCE);
        let due: Vec<_> = due.copied().collect();
        for of in &due {
            self.due.remove(of);
        }
        if !due.is_empty() {
            let is_full = due.len() == SERVERS_AT_ONCE;
            self.next_round = self.now + if is_full { SHORT_PAUSE } else { PAUSE };
        }
        due.into_iter().map(|(_, key)| key).collect()
    }

    /// Returns the time of the next step, or `None` if no destination grows.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let (due, _) = self.due.first()?;
        Some(self.next_round.max(*due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn a_weight_grows_in_equal_steps_and_shows_the_age_of_its_destination() {
        let ramp = Ramp::new(MINUTE, "wrr", 1).unwrap();
        let at = |seconds: u64| ramp.weight(Duration::from_secs(seconds), 10);
        let weights: Vec<u16> = [0, 6, 7, 13, 14, 53, 54, 59, 60, 61].map(at).into();
        assert_eq!(weights, [1, 1, 2, 2, 3, 8, 9, 9, 10, 10]);
        for base in [1, 4, 100] {
            let full = base * ramp.steps();
            for step in 1..=ramp.steps() {
                let weight = base * step;
                assert_eq!(ramp.weight(ramp.age(weight, full), full), weight);
                // A weight between two steps counts as the lower step.
                let next = ramp.age(weight + base - 1, full);
                assert_eq!(next, ramp.age(weight, full));
            }
        }
        assert_eq!(ramp.age(0, 10), Duration::ZERO);
        // A full weight of 1 has no smaller step, so the destination gets it immediately.
        assert_eq!(ramp.weight(Duration::ZERO, 1), 1);
    }

    #[test]
    fn slow_start_has_no_more_steps_than_weights_that_mh_distinguishes() {
        let steps = |scheduler, largest| Ramp::new(MINUTE, scheduler, largest).map(Ramp::steps);
        let of_mh = [1, 6, 7, 31, 32, 100].map(|largest| steps("mh", largest));
        assert_eq!(of_mh, [Some(10), Some(10), Some(9), Some(2), None, None]);
        assert_eq!(steps("wrr", 100), Some(10));
    }
}
