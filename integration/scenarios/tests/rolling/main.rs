//! Tests that no request fails while endpoints are removed and added under load. Further tests
//! cover single aspects of draining. [`scenarios::Cluster`] describes the nodes and pods.

mod load;
mod stories;
mod update;
mod web;

use std::time::Duration;

use scenarios::{stories, tell};

/// Time limit of the lab's boot and all tests. Each test has its own, shorter limit.
const LIMIT: Duration = Duration::from_mins(5);

fn main() {
    let all = stories! {
        update: a_rolling_update_fails_no_request;
        stories: an_endpoint_that_returns_during_a_restart_serves, removed_udp_and_sctp_endpoints_do_not_drain, a_deleted_service_refuses_new_connections, a_client_with_a_fixed_source_port_is_served, a_client_with_affinity_moves_from_a_draining_endpoint, a_drain_ends_at_its_configured_limit;
    };
    tell(&all, LIMIT)
}
