//! Faults around the daemon. They delay only work that needs the missing part. The daemon reports
//! them and recovers without help. The test prints the time of each repair.

mod families;
mod idle;
mod refusals;
mod repairs;
mod waits;

use std::time::Duration;

use scenarios::{is_module, stories, tell};

/// The lab's time limit. Each test has a shorter one.
const LIMIT: Duration = Duration::from_mins(8);

fn main() {
    let stories = stories! {
        waits: a_held_xtables_lock_and_a_hanging_ip6tables_delay_no_ipv4_endpoint, rules_that_cannot_be_read_hold_up_no_endpoint;
        repairs: each_takes_seconds_where_the_period_is_half_a_minute, each_is_told_once_with_a_count;
        refusals: virtual_servers_that_are_all_refused_are_not_ready_nor_healthy if is_module("ip_vs_mh"), rules_that_are_all_refused_are_not_ready_nor_healthy;
        idle: what_cannot_go_yet_costs_nothing, an_endpoint_that_the_kernel_refuses_costs_nothing;
        families: ipv6_that_is_disabled_is_left_out_and_said_once;
    };
    tell(&stories, LIMIT)
}
