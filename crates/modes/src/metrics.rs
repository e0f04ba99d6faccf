//! What a mode counts beside what all modes do.

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

/// The metrics of one mode. The mode brings them, so that nothing here knows modes.
pub trait OfMode: Debug + Send + Sync {
    /// Adds them to what is told.
    fn register(&self, rows: &mut Rows);

    /// A family begins to be served: a counter that appears with its first increment would show
    /// none.
    fn begins(&self, family: IpFamily);

    /// Kernel threads have finished something.
    fn booked(&self, family: IpFamily, report: &Report);

    /// How much a sync concerned of which this is a part; `None` if the mode does not tell.
    fn extent(&self, report: &Report) -> Option<Extent>;

    /// A sync has ended.
    fn synced(&self, family: IpFamily, took: Duration, extent: Extent);
}

/// How much a sync concerned, the less first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Only changes were written.
    Partial,
    /// Everything was compared with the kernel.
    Full,
}

impl Extent {
    /// Of a sync that compared everything, or did not.
    pub const fn of(is_full: bool) -> Self {
        if is_full { Self::Full } else { Self::Partial }
    }
}

/// The label of a family.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfFamily {
    /// `IPv4` or `IPv6`.
    pub ip_family: &'static str,
}

/// The labels of a table of iptables.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfTable {
    /// `IPv4` or `IPv6`.
    pub ip_family: &'static str,
    /// The table's name.
    pub table: &'static str,
}

/// Returns the label of a family.
pub fn of(family: IpFamily) -> OfFamily {
    let ip_family = match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    };
    OfFamily { ip_family }
}

/// Sets a gauge to a count.
pub fn set(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}
