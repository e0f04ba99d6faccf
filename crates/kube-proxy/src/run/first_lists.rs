//! Applies events of the source to the model: the first lists, and queued events.

use std::time::{Duration, Instant};

use futures::future::FutureExt as _;
use futures::stream::{BoxStream, StreamExt as _};
use proxy::{Event, Model};
use tokio::task::{unconstrained, yield_now};
use tokio::time::{sleep_until, timeout};
use tracing::{info, warn};

use crate::config::options::object_source::{OwnNode, SideKinds};

/// Largest number of queued events that the daemon applies before the next write to the kernel.
/// Without this limit, a flood of events could delay the write forever.
const DRAINED_MAX: usize = 50_000;
/// Longest time for which the daemon applies queued events before the next write. A large object
/// takes milliseconds.
const DRAINED_FOR: Duration = Duration::from_millis(50);
/// Number of queued events between two reads of the clock. Where the clock needs a system call, as
/// in some virtual machines, a read for each event would take longer than the events.
const CLOCK_EVERY: usize = 16;
/// Interval of the log line while the start waits for its first lists.
pub(crate) const WAITING_NOTICE: Duration = Duration::from_secs(10);
/// Longest time that the start waits for this node's Node object, as in upstream.
const NODE_PATIENCE: Duration = Duration::from_secs(30);
/// Longest time that the start waits for ServiceCIDRs after the other lists are complete. A fast
/// API server delivers ServiceCIDRs before the first sync. A slow API server must not delay the
/// sync.
const SERVICE_CIDR_PATIENCE: Duration = Duration::from_secs(1);

/// Applies events until Services, EndpointSlices and this Node are listed. Continues without the
/// Node after a time limit. Calls `seen` with the model before each batch of events.
pub(crate) async fn gather(
    events: &mut BoxStream<'static, Event>,
    model: &mut Model,
    source: &source::Settings,
    seen: impl FnMut(&Model),
) {
    gather_within(events, model, OwnNode::of(source), NODE_PATIENCE, seen).await;
    if SideKinds::of(source) == SideKinds::ServiceCidrs {
        let listed = gather_service_cidrs(events, model);
        // Ignores a timeout: ServiceCIDRs that arrive later are a change like any other.
        let _ = timeout(SERVICE_CIDR_PATIENCE, listed).await;
    }
}

/// Applies events until ServiceCIDRs are listed, or until the source reports that it has none.
async fn gather_service_cidrs(events: &mut BoxStream<'static, Event>, model: &mut Model) {
    while !model.are_service_cidrs_listed() {
        match events.next().await {
            Some(event) => drain(events, model, event).await,
            None => return,
        }
    }
}

/// Applies events as [`gather`] does. `patience` limits the wait for this Node. If the Node is
/// optional, a complete list without the Node also ends the wait.
pub(crate) async fn gather_within(
    events: &mut BoxStream<'static, Event>,
    model: &mut Model,
    node: OwnNode,
    patience: Duration,
    mut seen: impl FnMut(&Model),
) {
    let started = Instant::now();
    let mut notice = started + WAITING_NOTICE;
    let enough = started + patience;
    loop {
        seen(model);
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
                // Applies all queued events together, because each turn of this loop reads the
                // clock and sets timers.
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

/// Applies an event and all further events that are ready. The source may have more events ready
/// than its queue can hold.
pub(crate) async fn drain(events: &mut BoxStream<'static, Event>, model: &mut Model, first: Event) {
    model.apply(first);
    let mut drained = 0;
    let mut began = None;
    let mut is_enough = |drained: usize| {
        let reads_clock = drained > 0 && drained.is_multiple_of(CLOCK_EVERY);
        drained == DRAINED_MAX
            || (reads_clock && began.get_or_insert_with(Instant::now).elapsed() >= DRAINED_FOR)
    };
    loop {
        let before = drained;
        // Uses `unconstrained`. Otherwise tokio reports an empty queue after 128 messages, until
        // the task yields.
        while !is_enough(drained)
            && let Some(Some(event)) = unconstrained(events.next()).now_or_never()
        {
            model.apply(event);
            drained += 1;
        }
        if drained == before || is_enough(drained) {
            return;
        }
        // Yields to the source's task, which waits while its queue is full.
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use proxy::{IpFamily, Kind, ServiceCidr};
    use tokio::time::Instant;

    use super::*;

    fn listed(kind: Kind) -> [Event; 2] {
        let is_whole = true;
        [
            Event::ListStarted(kind),
            Event::ListComplete { kind, is_whole },
        ]
    }

    /// Returns the model after a start, and the start's duration. The source sends `first`
    /// immediately, and the events in `later` after a pause.
    async fn gathered(first: Vec<Event>, later: (Duration, Vec<Event>)) -> (Model, Duration) {
        let (pause, later) = later;
        let later = stream::once(async move {
            tokio::time::sleep(pause).await;
            stream::iter(later)
        });
        let events = stream::iter(first).chain(later.flatten());
        let mut events = events.chain(stream::pending()).boxed();
        let settings = source::Settings::Api(source::Api {
            service_cidrs: source::ServiceCidrWatch::On,
            ..source::Api::default()
        });
        let (mut model, began) = (Model::new(), Instant::now());
        gather(&mut events, &mut model, &settings, |_| ()).await;
        (model, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn the_start_waits_only_briefly_for_service_cidrs() {
        let node = proxy::Node {
            name: "n".into(),
            ..proxy::Node::default()
        };
        let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node];
        let mut first: Vec<Event> = kinds.into_iter().flat_map(listed).collect();
        first.push(Event::NodeApplied(node));
        let [start, end] = listed(Kind::ServiceCidr);
        let cidr = Event::ServiceCidrApplied(ServiceCidr {
            name: "kubernetes".into(),
            nets: vec!["10.96.0.0/12".parse().unwrap()],
        });
        let cidrs = vec![start, cidr, end];

        let soon = Duration::from_millis(300);
        let (model, took) = gathered(first.clone(), (soon, cidrs.clone())).await;
        assert_eq!(model.service_cidrs(IpFamily::V4).unwrap().len(), 1);
        assert_eq!(took, soon);

        let (model, took) = gathered(first.clone(), (Duration::from_mins(1), cidrs)).await;
        assert_eq!(model.service_cidrs(IpFamily::V4), None);
        assert!(model.is_complete());
        assert_eq!(took, SERVICE_CIDR_PATIENCE);

        // Reports to the model that this API server has no ServiceCIDRs.
        let untold = Event::ListComplete {
            kind: Kind::ServiceCidr,
            is_whole: false,
        };
        let (_, took) = gathered(first, (Duration::ZERO, vec![untold])).await;
        assert!(took < SERVICE_CIDR_PATIENCE, "{took:?}");
    }
}
