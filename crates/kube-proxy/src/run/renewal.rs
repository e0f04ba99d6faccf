//! Other options for a daemon that goes on: what they need is prepared beside the modes that serve.
//!
//! ```text
//!   want ─▶ start ─▶ modes opened, settings of the kernel ─▶ finished ─▶ all of it in effect
//!                          └── failed: later again, with what is wanted then ──┘
//! ```
//!
//! Options take effect as a whole or not at all, so that what is told of them is true. Settings of
//! the kernel that this process may not write are taken out of them, and said.

use std::future::pending;
use std::mem;
use std::time::{Duration, Instant};

use anyhow::Result;
use modes::definition::Opened;
use modes::open::open;
use tokio::task::JoinHandle;

use crate::config::options::Options;
use crate::node::kernel_settings::{Step, settle};

/// The first delay after a failure; it doubles with each further one, up to the sync period.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// What is wanted, and how far that is.
#[derive(Default)]
pub(crate) struct Renewal {
    wanted: Option<Wanted>,
    task: Option<JoinHandle<Result<Prepared>>>,
    /// Whether something else has come to be wanted since the task began.
    is_outdated: bool,
    /// After failures: when to try again, and the last delay.
    retry: Option<(Instant, Duration)>,
}

/// What can be in effect at once.
pub(crate) struct Prepared {
    /// As they were wanted, without what cannot be done here.
    pub(crate) options: Box<Options>,
    /// To open modes with; `None`: those that serve go on.
    pub(crate) opened: Option<Box<dyn Opened>>,
}

struct Wanted {
    options: Box<Options>,
    modes: Modes,
}

/// What becomes of the modes that serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Modes {
    /// They go on, unless they would read other settings.
    AsSettingsSay,
    /// They are opened anew.
    Anew,
}

impl Renewal {
    /// These are to be in effect, instead of any that are not yet.
    pub(crate) fn want(&mut self, options: Options, modes: Modes) {
        let before = self.wanted.take();
        self.wanted = Some(Wanted {
            options: Box::new(options),
            modes: before.map_or(modes, |before| before.modes.max(modes)),
        });
        self.is_outdated = self.task.is_some();
        self.retry = None;
    }

    /// The options that are to be in effect, if those are not yet.
    pub(crate) fn wanted(&self) -> Option<&Options> {
        self.wanted.as_ref().map(|wanted| &*wanted.options)
    }

    /// Begins to prepare what is wanted, if that is due. `used` are the options in effect.
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

    /// When it is to be [started](Self::start) again.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let is_waiting = self.task.is_none() && self.wanted.is_some();
        self.retry.filter(|_| is_waiting).map(|(at, _)| at)
    }

    /// Waits until what is wanted is prepared, or cannot be. `None` if something else has come to
    /// be wanted meanwhile, which is to be [started](Self::start). Cancel safe.
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

    /// What is wanted is in effect.
    pub(crate) fn succeed(&mut self) {
        self.retry = None;
        self.wanted = None;
    }

    /// It could not be prepared. Says after what time that is tried again.
    pub(crate) fn fail(&mut self, now: Instant, longest: Duration) -> Duration {
        let delay = self
            .retry
            .map_or(FIRST_RETRY, |(_, delay)| delay.saturating_mul(2))
            .min(longest);
        self.retry = Some((now + delay, delay));
        delay
    }
}

/// Opens modes, and sets the kernel as the options need it.
async fn prepare(mut options: Box<Options>, modes: Modes) -> Result<Prepared> {
    let opened = match modes {
        Modes::Anew => Some(open(&options.modes).await?),
        Modes::AsSettingsSay => None,
    };
    // Writes files of the kernel's, one of which may take it a while.
    let settled = move || {
        // Says itself what cannot be written.
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
    async fn what_fails_is_tried_again_later_and_later() {
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
        assert_eq!(renewal.wanted().unwrap().modes.ipvs.scheduler, "wrr");
        renewal.succeed();
        assert!(renewal.wanted().is_none() && renewal.next_due().is_none());
    }

    #[tokio::test]
    async fn what_was_wanted_before_does_not_count() {
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
