//! Tests faults outside of the daemon, such as a hanging iptables program. A fault delays only the
//! work that needs the faulty program or kernel feature. The daemon reports the fault and recovers
//! without help. Each test prints the time of the repair.

mod families;
mod idle;
mod refusals;
mod repairs;
mod waits;

use std::time::Duration;

use scenarios::{is_module, stories, tell};

/// Time limit of the whole run in the lab. Each test has its own, shorter limit.
const LIMIT: Duration = Duration::from_mins(8);

fn main() {
    let stories = stories! {
        waits: slow_iptables_programs_do_not_delay_ipv4_endpoints, unreadable_rules_do_not_delay_endpoints;
        repairs: each_repair_takes_seconds, each_repair_is_logged_once_with_a_count;
        refusals: a_node_with_all_virtual_servers_refused_is_not_healthy if is_module("ip_vs_mh"), a_node_with_all_rules_refused_is_not_healthy;
        idle: blocked_removals_cost_no_cpu_time, an_endpoint_refused_by_the_kernel_costs_no_cpu_time;
        families: disabled_ipv6_is_skipped_and_logged_once;
    };
    tell(&stories, LIMIT)
}
