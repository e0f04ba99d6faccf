//! The lanes (worker threads) of a mode.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use netlink_batch::{Lane as Thread, Worker};
use proxy::Unreadable;

use crate::kinds::{Lane as _, number};
use crate::scheme::{ConfigOf, KernelAccess, LaneOf, PartOf, PlanOf, Scheme};

/// Result of reading a part of the kernel's state.
pub(crate) type Read<S> = Result<<S as Scheme>::PartContent, Unreadable>;

/// Work that a lane (worker thread) has finished.
pub(crate) enum LaneResult<S: Scheme> {
    /// Parts of the kernel's state that the lane has read, each with its content or error.
    Read(Vec<(PartOf<S>, Read<S>)>),
    /// Results of an executed step: the outcomes of its plan, and the response to its query.
    Stepped {
        outcomes: Option<S::Outcomes>,
        answer: Option<S::QueryResponse>,
    },
}

/// The lanes (worker threads) of a mode, for one IP family.
pub struct Lanes<S: Scheme, K>(Vec<Thread<K, LaneResult<S>>>);

impl<S: KernelAccess<K>, K: Send + 'static> Lanes<S, K> {
    /// Creates one lane for each worker, in the order of [`Lane::ALL`](crate::Lane::ALL).
    pub fn new<const N: usize>(workers: [Worker<K>; N]) -> Self {
        const { assert!(N == LaneOf::<S>::ALL.len(), "each lane has one worker") };
        Self(workers.into_iter().map(Thread::new).collect())
    }

    /// Creates lanes without threads, for tests. Such a lane does its work within the call that
    /// requests it, so the order of writes is fixed.
    pub fn inline(kernel: impl Fn() -> K) -> Self {
        let all = LaneOf::<S>::ALL.iter();
        Self(all.map(|_| Thread::inline(kernel())).collect())
    }

    pub(crate) fn of(&mut self, lane: LaneOf<S>) -> &mut Thread<K, LaneResult<S>> {
        #[allow(clippy::indexing_slicing, reason = "there is one for each")]
        &mut self.0[number(LaneOf::<S>::ALL, &lane)]
    }

    /// Reports whether the first lane is idle. This lane writes the changes that Services need.
    pub(crate) fn is_first_free(&self) -> bool {
        self.0.first().is_some_and(Thread::is_free)
    }

    pub(crate) fn is_free(&self, lane: LaneOf<S>) -> bool {
        let thread = self.0.get(number(LaneOf::<S>::ALL, &lane));
        thread.is_some_and(Thread::is_free)
    }

    /// Starts a read of `parts` of the kernel's state on `lane` (a worker thread).
    pub(crate) fn read(
        &mut self,
        lane: LaneOf<S>,
        config: &Arc<ConfigOf<S>>,
        parts: Vec<PartOf<S>>,
    ) {
        let config = Arc::clone(config);
        self.of(lane).start(move |kernel| {
            let mut read = |part| (part, S::read(kernel, &config, part));
            LaneResult::Read(parts.into_iter().map(&mut read).collect())
        });
    }

    /// Starts a step on `lane` (a worker thread), which writes `plan`, then sends `query`.
    pub(crate) fn step(
        &mut self,
        lane: LaneOf<S>,
        config: &Arc<ConfigOf<S>>,
        plan: Option<Arc<PlanOf<S>>>,
        query: Option<S::Query>,
    ) {
        let config = Arc::clone(config);
        self.of(lane).start(move |kernel| LaneResult::Stepped {
            outcomes: plan.map(|plan| S::write(kernel, &plan)),
            answer: query.map(|query| S::query(kernel, &config, query)),
        });
    }

    /// Sends a query to a lane and waits for the response. Returns `None` if the lane's thread has
    /// ended.
    pub(crate) async fn query(
        &mut self,
        lane: LaneOf<S>,
        config: &Arc<ConfigOf<S>>,
        query: S::Query,
    ) -> Option<S::QueryResponse> {
        self.step(lane, config, None, Some(query));
        let lane = self.of(lane);
        poll_fn(|context| lane.poll(context)).await;
        match lane.take() {
            Some(Ok(LaneResult::Stepped { answer, .. })) => answer,
            _ => None,
        }
    }

    /// Becomes ready once at least one lane has finished its work.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let lanes = self.0.iter_mut();
        let is_ready = lanes
            .map(|lane| lane.poll(context).is_ready())
            // Polls every lane, even after one is ready. A lane can wake the task later only if it
            // was polled.
            .fold(false, |any, is_ready| any | is_ready);
        if is_ready {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}
