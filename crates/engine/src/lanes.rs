//! The kernel threads of a mode, by their names.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use netlink_batch::{Lane as Thread, Worker};
use proxy::Unreadable;

use crate::scheme::{KernelAccess, Lane as _, Scheme, number};

/// What has come of reading a part.
pub(crate) type Read<S> = Result<<S as Scheme>::Found, Unreadable>;

/// What a kernel thread has done.
pub(crate) enum Done<S: Scheme> {
    /// It has read these parts.
    Read(Vec<(S::Part, Read<S>)>),
    /// It has carried out a step.
    Stepped {
        outcomes: Option<S::Outcomes>,
        answer: Option<S::Answer>,
    },
}

/// The kernel threads of a mode in one IP family.
pub struct Lanes<S: Scheme, K>(Vec<Thread<K, Done<S>>>);

impl<S: KernelAccess<K>, K: Send + 'static> Lanes<S, K> {
    /// One worker for each lane, in the order of [`Lane::ALL`](crate::Lane::ALL).
    pub fn new<const N: usize>(workers: [Worker<K>; N]) -> Self {
        const { assert!(N == S::Lane::ALL.len(), "each lane has one worker") };
        Self(workers.into_iter().map(Thread::new).collect())
    }

    /// Lanes without threads: what each does is done when it is begun. For tests whose writes are
    /// to come in one order.
    pub fn inline(kernel: impl Fn() -> K) -> Self {
        let all = S::Lane::ALL.iter();
        Self(all.map(|_| Thread::inline(kernel())).collect())
    }

    pub(crate) fn of(&mut self, lane: S::Lane) -> &mut Thread<K, Done<S>> {
        #[allow(clippy::indexing_slicing, reason = "there is one for each")]
        &mut self.0[number(S::Lane::ALL, &lane)]
    }

    /// The one that carries out changes of what is served.
    pub(crate) fn is_first_free(&self) -> bool {
        self.0.first().is_some_and(Thread::is_free)
    }

    pub(crate) fn is_free(&self, lane: S::Lane) -> bool {
        let thread = self.0.get(number(S::Lane::ALL, &lane));
        thread.is_some_and(Thread::is_free)
    }

    /// Has a lane read these parts.
    pub(crate) fn read(&mut self, lane: S::Lane, config: &Arc<S::Config>, parts: Vec<S::Part>) {
        let config = Arc::clone(config);
        self.of(lane).start(move |kernel| {
            let mut read = |part| (part, S::read(kernel, &config, part));
            Done::Read(parts.into_iter().map(&mut read).collect())
        });
    }

    /// Has a lane carry out a step.
    pub(crate) fn step(
        &mut self,
        lane: S::Lane,
        config: &Arc<S::Config>,
        plan: Option<Arc<S::Plan>>,
        query: Option<S::Query>,
    ) {
        let config = Arc::clone(config);
        self.of(lane).start(move |kernel| Done::Stepped {
            outcomes: plan.map(|plan| S::write(kernel, &plan)),
            answer: query.map(|query| S::query(kernel, &config, query)),
        });
    }

    /// Has a lane ask, and waits for the answer; `None` if its thread is gone.
    pub(crate) async fn query(
        &mut self,
        lane: S::Lane,
        config: &Arc<S::Config>,
        query: S::Query,
    ) -> Option<S::Answer> {
        self.step(lane, config, None, Some(query));
        let lane = self.of(lane);
        poll_fn(|context| lane.poll(context)).await;
        match lane.take() {
            Some(Ok(Done::Stepped { answer, .. })) => answer,
            _ => None,
        }
    }

    /// Ready when a lane has done something that is to be taken.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let lanes = self.0.iter_mut();
        let is_ready = lanes
            .map(|lane| lane.poll(context).is_ready())
            // Each is to be polled, so that each wakes.
            .fold(false, |any, is_ready| any | is_ready);
        if is_ready {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}
