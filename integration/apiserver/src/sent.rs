//! Times at which the server sends watch events. A benchmark subtracts the server's time from the
//! latency that a client measures.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value};

/// Times at which the server sent each change to the first of its watches, by resource version. In
/// nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share. Clones share the
/// recorded times.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendTimes(Arc<Mutex<BTreeMap<u64, u64>>>);

impl SendTimes {
    /// Records the current time for these resource versions, unless another watch has sent them
    /// before. A watch calls this function just before it sends their events.
    pub(crate) fn note(&self, versions: &[u64]) {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
        let now = u64::try_from(time.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for version in versions {
            times.entry(*version).or_insert(now);
        }
    }

    /// Returns the times recorded since the previous call, as a JSON object from resource versions
    /// to nanoseconds.
    pub(crate) fn take(&self) -> Value {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = std::mem::take(&mut *times).into_iter();
        let times = times.map(|(version, time)| (version.to_string(), time.into()));
        Value::Object(times.collect::<Map<_, _>>())
    }
}
