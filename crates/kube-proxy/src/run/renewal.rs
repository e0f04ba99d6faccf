//! Prepares changed options of a running daemon while the current modes continue to serve.
//!
//! ```text
//!   want ─▶ start ─▶ modes opened, kernel settings written ─▶ finished ─▶ all options in effect
//!                          └── failed: retry with the latest options ──┘
//! ```
//!
//! All changed options take effect together or not at all, so that the reported configuration is
//! correct. There is one exception: if this process may not write an option's kernel setting, it
//! drops this option and logs an error.

use std::future::pending;
use std::mem;
use std::time::{Duration, Instant};

use anyhow::Result;
use modes::definition::Opened;
use modes::open::open;
use tokio::task::JoinHandle;

use crate::config::options::Options;
use crate::node::kernel_settings::{Step, settle};

/// First delay after a failure. Each further failure doubles the delay, up to the sync period.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Options that will take effect, and the state of their preparation.
#[derive(Default)]
pub(crate) struct Renewal {
    wanted: Option<Wanted>,
    task: Option<JoinHandle<Result<Prepared>>>,
    /// True if newer options arrived after the preparation had begun.
    is_outdated: bool,
    /// Time of the next attempt after a failure, and the delay before this attempt. `None` if no
    /// attempt has failed since the last success.
    retry: Option<(Instant, Duration)>,
}

/// Changed options that are ready to take effect.
pub(crate) struct Prepared {
    /// Options, except those that this node cannot apply.
    pub(crate) options: Box<Options>,
    /// Kernel access for new modes. `None`: the current modes stay.
    pub(crate) opened: Option<Box<dyn Opened>>,
}

struct Wanted {
    options: Box<Options>,
    modes: Modes,
}

/// Condition under which changed options open the modes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Modes {
    /// Opens the modes again only if their settings have changed.
    AsSettingsSay,
    /// Opens the modes again, even with equal settings.
    Anew,
}

impl Renewal {
    /// Requests these options, which replace requested options that have not taken effect yet.
    pub(crate) fn want(&mut self, options: Options, modes: Modes) {
        let before = self.wanted.take();
        self.wanted = Some(Wanted {
            options: Box::new(options),
            modes: before.map_or(modes, |before| before.modes.max(modes)),
        });
        self.is_outdated = self.task.is_some();
        self.retry = None;
    }

    /// Returns the requested options that are not in effect yet, if any.
    pub(crate) fn wanted(&self) -> Option<&Options> {
        self.wanted.as_ref().map(|wanted| &*wanted.options)
    }

    /// Reports whether the last attempt to prepare the requested options failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.retry.is_some()
    }

    /// Starts to prepare the requested options if their time has come. `used` are the options in
    /// effect.
    pub(crate) fn start(&mut self, used: &Options, now: Instant) {
        let is_due = self.retry.is_none_or(|(at, _)| at <= now);
        let Some(wanted) = self.wanted.as_ref().filter(|_| is_due) else {
            return;
        };
        if self.task.is_some() {
            return;
        }
        let modes = if wanted.options.modes == used.modes {
            wanted.modes
        } else {
            Modes::Anew
        };
        let options = wanted.options.clone();
        self.is_outdated = false;
        self.task = Some(tokio::spawn(prepare(options, modes)));
    }

    /// Returns the time at which [`start`](Self::start) has work again, or `None` if no work is
    /// planned.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let is_waiting = self.task.is_none() && self.wanted.is_some();
        self.retry.filter(|_| is_waiting).map(|(at, _)| at)
    }

    /// Waits until the requested options are prepared. Returns `None` if newer options were
    /// requested during the preparation; the caller must then call [`start`](Self::start). Cancel
    /// safe.
    pub(crate) async fn finished(&mut self) -> Option<Result<Prepared>> {
        let Some(task) = &mut self.task else {
            return pending().await;
        };
        let result = task.await;
        self.task = None;
        if mem::take(&mut self.is_outdated) {
            return None;
        }
        Some(result.map_err(anyhow::Error::from).flatten())
    }

    /// Records that the requested options are in effect.
    pub(crate) fn succeed(&mut self) {
        self.retry = None;
        self.wanted = None;
    }

    /// Records that the preparation failed. Returns the delay until the next attempt.
    pub(crate) fn fail(&mut self, now: Instant, longest: Duration) -> Duration {
        let delay = self
            .retry
            .map_or(FIRST_RETRY, |(_, delay)| delay.saturating_mul(2))
            .min(longest);
        self.retry = Some((now + delay, delay));
        delay
    }
}

/// Opens the modes if necessary, and writes the kernel settings that the options need.
async fn prepare(mut options: Box<Options>, modes: Modes) -> Result<Prepared> {
    let opened = match modes {
        Modes::Anew => Some(open(&options.modes).await?),
        Modes::AsSettingsSay => None,
    };
    // Uses a blocking thread, because some of the kernel's files are slow to write.
    let settled = move || {
        // Ignores the result: `settle` logs settings that cannot be written.
        let _ = settle(&mut options, Step::GoOn);
        options
    };
    let options = tokio::task::spawn_blocking(settled).await?;
    Ok(Prepared { options, opened })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(result: Result<Prepared>) -> JoinHandle<Result<Prepared>> {
        tokio::spawn(async { result })
    }

    fn prepared() -> Prepared {
        Prepared {
            options: Box::new(options("wrr")),
            opened: None,
        }
    }

    fn options(scheduler: &str) -> Options {
        crate::tests::options(&[&format!("--ipvs-scheduler={scheduler}")])
    }

    #[tokio::test]
    async fn a_failed_mode_change_is_retried_with_back_off() {
        let mut renewal = Renewal::default();
        let (start, longest) = (Instant::now(), Duration::from_secs(3));
        assert_eq!(renewal.next_due(), None);
        renewal.want(options("wrr"), Modes::AsSettingsSay);
        let mut delays = Vec::new();
        let mut now = start;
        for _ in 0..4 {
            renewal.task = Some(task(Err(anyhow::anyhow!("on purpose"))));
            assert_eq!(renewal.next_due(), None, "it is under way");
            assert!(renewal.finished().await.unwrap().is_err());
            let delay = renewal.fail(now, longest);
            assert_eq!(renewal.next_due(), Some(now + delay));
            delays.push(delay.as_secs());
            now += delay;
        }
        assert_eq!(delays, [1, 2, 3, 3]);
        assert!(renewal.is_failing());
        assert_eq!(renewal.wanted().unwrap().modes.ipvs.scheduler, "wrr");
        renewal.succeed();
        assert!(renewal.wanted().is_none() && renewal.next_due().is_none());
        assert!(!renewal.is_failing());
    }

    #[tokio::test]
    async fn a_superseded_mode_change_is_discarded() {
        let mut renewal = Renewal::default();
        renewal.want(options("wrr"), Modes::Anew);
        renewal.task = Some(task(Ok(prepared())));
        renewal.want(options("sh"), Modes::AsSettingsSay);
        assert!(renewal.finished().await.is_none());
        let wanted = renewal.wanted.as_ref().unwrap();
        assert_eq!(
            (&*wanted.options.modes.ipvs.scheduler, wanted.modes),
            ("sh", Modes::Anew)
        );
        renewal.task = Some(task(Ok(prepared())));
        assert!(renewal.finished().await.unwrap().is_ok());
    }
}
