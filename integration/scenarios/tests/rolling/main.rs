//! Endpoints are removed and added under load, and no request may fail. Separate tests cover each
//! aspect of draining. [`scenarios::Cluster`] describes the places.

mod load;
mod stories;
mod update;
mod web;

use std::time::Duration;

use scenarios::{stories, tell};

/// The lab's time limit. Each test has a shorter one.
const LIMIT: Duration = Duration::from_mins(5);

fn main() {
    let all = stories! {
        update: a_rolling_update_fails_no_request;
        stories: an_endpoint_that_returns_while_the_daemon_is_away, udp_and_sctp_are_not_drained, a_deleted_service_leaves_no_blackhole, one_source_port_is_not_stuck, a_client_with_affinity_is_moved, a_drain_has_a_limit;
    };
    tell(&all, LIMIT)
}
