//! What a mode counts beside what all modes do.

use std::fmt::Debug;
use std::time::Duration;

use proxy::{IpFamily, Report};

use super::rows::Rows;

/// The metrics of one mode. The mode brings them, so that nothing here knows modes.
pub(crate) trait OfMode: Debug + Send + Sync {
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
pub(crate) enum Extent {
    /// Only changes were written.
    Partial,
    /// Everything was compared with the kernel.
    Full,
}

impl Extent {
    /// Of a sync that compared everything, or did not.
    pub(crate) const fn of(is_full: bool) -> Self {
        if is_full { Self::Full } else { Self::Partial }
    }
}
