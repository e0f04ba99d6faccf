//! When watches were given changes: by it a benchmark tells what a client takes from what this
//! server took before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::{Map, Value};

/// Times of sent changes by resource version, in nanoseconds of `CLOCK_MONOTONIC`, which all
/// processes share: just before the first watch for the change writes its event. A clone is a
/// handle to the same times.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sent(Arc<Mutex<BTreeMap<u64, u64>>>);

impl Sent {
    /// Events of these versions are about to be written.
    pub(crate) fn note(&self, versions: &[u64]) {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
        let now = u64::try_from(tv_sec).unwrap_or(0) * 1_000_000_000;
        let now = now + u64::try_from(tv_nsec).unwrap_or(0);
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for version in versions {
            times.entry(*version).or_insert(now);
        }
    }

    /// Returns the times noted since the last call, as a JSON object.
    pub(crate) fn take(&self) -> Value {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = std::mem::take(&mut *times).into_iter();
        let times = times.map(|(version, time)| (version.to_string(), time.into()));
        Value::Object(times.collect::<Map<_, _>>())
    }
}
