//! Metrics that only one mode has.

pub mod buckets;
pub mod relay;
pub mod restores;
pub mod rows;
pub mod sync_durations;

use std::fmt::Debug;
use std::time::Duration;

use proxy::{IpFamily, Report};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::gauge::Gauge;

use rows::Rows;

/// Metrics that only one mode has. Each mode provides its own metrics, so shared code does not
/// distinguish modes.
pub trait ModeLabels: Debug + Send + Sync {
    /// Adds the mode's metrics to `rows`.
    fn register(&self, rows: &mut Rows);

    /// Creates the counters of `family` with the value zero. A counter that appeared only at its
    /// first increment would hide this increment from `rate()` in Prometheus.
    fn begins(&self, family: IpFamily);

    /// Updates the mode's metrics from a report of the engine.
    fn booked(&self, family: IpFamily, report: &Report);

    /// Records the variant of the mode's entries in `family`, such as `layout flat`. Does nothing
    /// in a mode with a single variant.
    fn form(&self, _family: IpFamily, _form: &'static str) {}

    /// Returns the extent of the sync that `report` describes. Returns `None` if the mode does not
    /// distinguish partial and full syncs.
    fn extent(&self, report: &Report) -> Option<SyncExtent>;

    /// Records the duration of a finished sync in a histogram.
    fn synced(&self, family: IpFamily, took: Duration, extent: SyncExtent);
}

/// Extent of a sync, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncExtent {
    /// The sync wrote only what had changed since the last sync.
    Partial,
    /// The sync compared the whole state with the kernel.
    Full,
}

impl SyncExtent {
    /// Returns `Full` if `is_full` is true, or else `Partial`.
    pub const fn of(is_full: bool) -> Self {
        if is_full { Self::Full } else { Self::Partial }
    }
}

/// The IP family as a metric's label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FamilyLabels {
    /// IP family: `IPv4` or `IPv6`.
    pub ip_family: &'static str,
}

/// The IP family and the iptables table as a metric's labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TableLabels {
    /// IP family: `IPv4` or `IPv6`.
    pub ip_family: &'static str,
    /// Name of the iptables table.
    pub table: &'static str,
}

/// Returns the label for the IP family `family`.
pub fn of(family: IpFamily) -> FamilyLabels {
    let ip_family = match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    };
    FamilyLabels { ip_family }
}

/// Sets `gauge` to `count`, or to the largest possible value if `count` is larger.
pub fn set(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}
