//! Times at which the server sends events of changes. A benchmark uses them to subtract the
//! server's share from a client's latency.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value};

/// Send times of changes by resource version, in nanoseconds of `CLOCK_MONOTONIC`, which all
/// processes share. The time is taken just before the first watch writes the event. A clone is a
/// handle to the same times.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendTimes(Arc<Mutex<BTreeMap<u64, u64>>>);

impl SendTimes {
    /// Records the present time for these resource versions. A watch calls this function just
    /// before it writes the events of these versions.
    pub(crate) fn note(&self, versions: &[u64]) {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
        let now = u64::try_from(time.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for version in versions {
            times.entry(*version).or_insert(now);
        }
    }

    /// Returns the times recorded since the previous call, as a JSON object.
    pub(crate) fn take(&self) -> Value {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = std::mem::take(&mut *times).into_iter();
        let times = times.map(|(version, time)| (version.to_string(), time.into()));
        Value::Object(times.collect::<Map<_, _>>())
    }
}
