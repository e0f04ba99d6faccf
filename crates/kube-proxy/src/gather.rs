//! Taking in what the source tells: the first lists, and whatever is queued.

use std::time::{Duration, Instant};

use futures::future::FutureExt as _;
use futures::stream::{BoxStream, StreamExt as _};
use proxy::{Event, Model};
use tokio::task::{unconstrained, yield_now};
use tokio::time::sleep_until;
use tracing::{info, warn};

use crate::options::object_source::OwnNode;

/// How many queued events are taken in before the kernel is written, so that a flood cannot put
/// that off for ever.
const DRAINED_MAX: usize = 50_000;
/// How often a start that still waits for its sources says so.
pub(crate) const WAITING_NOTICE: Duration = Duration::from_secs(10);
/// How long the start waits for the own Node, as upstream.
const NODE_PATIENCE: Duration = Duration::from_secs(30);

/// Takes in events until Services and EndpointSlices have been told, and the own Node, if it comes
/// in time.
pub(crate) async fn gather(
    events: &mut BoxStream<'static, Event>,
    model: &mut Model,
    source: &source::Settings,
) {
    gather_within(events, model, OwnNode::of(source), NODE_PATIENCE).await;
}

/// The same, and waits so long for the own Node. Where it need not exist, to be told that there is
/// none will do.
pub(crate) async fn gather_within(
    events: &mut BoxStream<'static, Event>,
    model: &mut Model,
    node: OwnNode,
    patience: Duration,
) {
    let started = Instant::now();
    let mut notice = started + WAITING_NOTICE;
    let enough = started + patience;
    loop {
        let is_patient = Instant::now() < enough;
        let is_listed = model.is_node_listed();
        let is_node_known = model.node().is_some() || (is_listed && node == OwnNode::Optional);
        if model.is_complete() && (is_node_known || !is_patient) {
            if !is_node_known {
                let why = if is_listed {
                    "it does not exist; check --hostname-override"
                } else {
                    "it cannot be listed; check that this may list and watch nodes"
                };
                warn!(
                    why,
                    "going on without the own Node, its addresses and its zone"
                );
            }
            return;
        }
        tokio::select! {
            event = events.next() => match event {
                // As many as there are: each turn of this loop asks for the time, and sets timers.
                Some(event) => drain(events, model, event).await,
                None => return,
            },
            () = sleep_until(enough.into()), if is_patient => {}
            () = sleep_until(notice.into()) => {
                notice += WAITING_NOTICE;
                let awaited = if model.is_complete() { "the own Node" } else { "Services and EndpointSlices" };
                info!(waiting_for = awaited, "nothing is programmed before the first lists are complete");
            }
        }
    }
}

/// Takes in an event and all that the source has to tell behind it, which may be more than its
/// queue holds.
pub(crate) async fn drain(events: &mut BoxStream<'static, Event>, model: &mut Model, first: Event) {
    model.apply(first);
    let mut drained = 0;
    loop {
        let before = drained;
        // Unconstrained: tokio lets a task receive 128 messages, then says that there are none
        // until it has waited.
        while drained < DRAINED_MAX
            && let Some(Some(event)) = unconstrained(events.next()).now_or_never()
        {
            model.apply(event);
            drained += 1;
        }
        if drained == before || drained == DRAINED_MAX {
            return;
        }
        // The source goes on where its queue was full.
        yield_now().await;
    }
}
