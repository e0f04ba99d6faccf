//! What the log says about syncs: what is new, once, by name; not the same failure at every retry.

use std::collections::BTreeSet;

use proxy::{Failure, IpFamily, SyncReport};
use tracing::{debug, error, info, warn};

/// How many failures are named one by one; a kernel that refuses everything must not flood the log.
const MAX_NAMED: usize = 20;

/// Says what is new in each report of one family.
#[derive(Debug)]
pub(crate) struct Reporter {
    family: IpFamily,
    failing: BTreeSet<String>,
    conflicts: BTreeSet<String>,
    unreadable: Option<String>,
    has_synced: bool,
}

impl Reporter {
    /// A reporter that has said nothing yet.
    pub(crate) fn new(family: IpFamily) -> Self {
        Self {
            family,
            failing: BTreeSet::new(),
            conflicts: BTreeSet::new(),
            unreadable: None,
            has_synced: false,
        }
    }

    /// After a sync.
    pub(crate) fn synced(&mut self, report: &SyncReport) {
        let family = self.family;
        let failing: BTreeSet<String> = report.failures.iter().map(ToString::to_string).collect();
        let fresh: Vec<_> = failing.difference(&self.failing).collect();
        for failure in fresh.iter().take(MAX_NAMED) {
            error!(%family, "cannot {failure}; it is tried again");
        }
        if fresh.len() > MAX_NAMED {
            error!(%family, count = fresh.len() - MAX_NAMED, "and more that could not be done; it is tried again");
        }
        if failing.is_empty() && !self.failing.is_empty() && report.pending == 0 {
            info!(%family, "all that had failed is done");
            self.failing.clear();
        }
        self.failing.extend(failing);
        let conflicts: BTreeSet<String> = report
            .conflicts
            .iter()
            .map(|conflict| {
                format!(
                    "{} is claimed by Services {} and {}: the former has it, as the older one or the first by name",
                    conflict.object, conflict.winner, conflict.loser
                )
            })
            .collect();
        for conflict in conflicts.difference(&self.conflicts) {
            warn!(%family, "{conflict}");
        }
        self.conflicts = conflicts;
        let (written, pending, took) = (report.written, report.pending, report.took);
        if !self.has_synced {
            info!(%family, written, pending, ?took, "first sync done");
            self.has_synced = true;
        } else if written > 0 {
            debug!(%family, written, pending, ?took, "synced");
        }
    }

    /// The kernel could not be read.
    pub(crate) fn unreadable(&mut self, failure: &Failure) {
        let text = failure.to_string();
        if self.unreadable.as_ref() != Some(&text) {
            error!(family = %self.family, "{text}; what is programmed stays, and it is tried again");
            self.unreadable = Some(text);
        }
    }

    /// The kernel could be read.
    pub(crate) fn readable(&mut self) {
        if self.unreadable.take().is_some() {
            info!(family = %self.family, "the kernel can be read again");
        }
    }
}
