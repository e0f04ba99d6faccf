//! Tests the daemon with real packets in a real kernel. [`scenarios::Cluster`] describes the nodes,
//! pods and hosts.

mod addresses;
mod api;
mod conflicts;
mod drain;
mod drift;
mod economy;
mod exact;
mod foreign;
mod inspection;
mod invalid_objects;
mod manifests;
mod nft;
mod options;
mod refusals;
mod restart;
mod shim;
mod top;
mod vip_mode;
mod ways_in;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use scenarios::{stories, tell};

/// Time limit of the lab's boot and all tests. Each test has its own, shorter limit.
const LIMIT: Duration = Duration::from_mins(10);

fn main() {
    let stories = stories! {
        // The module `refusals` comes first, because it needs a kernel that has never loaded
        // `ip_vs`.
        refusals: a_kernel_without_ip_vs_is_reported if is_ip_vs_loadable(), missing_capabilities_are_reported, a_missing_scheduler_stops_the_start, unknown_flags_stop_the_start, a_missing_manifest_directory_stops_the_start, an_unreadable_kubeconfig_stops_the_start;
        ways_in: each_service_address_works_over_tcp, each_service_address_works_over_udp, each_service_address_works_over_sctp, each_service_address_bound_as_route_works_over_tcp, each_service_address_bound_as_route_works_over_udp, a_service_with_several_ports_works, clients_with_session_affinity_keep_their_endpoint, a_node_address_as_external_ip_stays_on_its_interface, headless_services_and_services_of_other_proxies_are_ignored;
        manifests: added_edited_and_deleted_manifests_are_followed, manifests_renamed_into_place_are_followed, an_address_moved_between_services_is_always_served, an_invalid_manifest_keeps_its_services, an_invalid_manifest_at_start_blocks_removals;
        api: services_from_streamed_lists_are_served, services_from_cached_lists_are_served, an_api_server_that_starts_later_is_awaited, services_stay_while_the_api_server_is_unreachable, invalid_responses_keep_all_services;
        restart: a_restart_writes_nothing_and_keeps_connections;
        shim: upstreams_and_lean_shims_switch_under_traffic, nftables_and_iptables_shims_switch_under_traffic if has_nft(), the_shims_nftables_table_is_repaired if has_nft(), the_nftables_shim_needs_neither_iptables_nor_ipset if has_nft(), leftover_rules_without_iptables_are_logged_at_each_start if has_nft(), foreign_dnat_rules_do_not_affect_service_traffic if has_nft();
        foreign: the_daemon_keeps_other_programs_kernel_state;
        drift: a_resync_repairs_each_kind_of_damage;
        vip_mode: a_change_of_the_vip_mode_keeps_open_connections, a_service_range_excludes_the_subnets_of_other_interfaces, strict_arp_applies_to_device_addresses_and_to_routes, service_addresses_answer_ping_only_with_the_flag;
        addresses: node_ports_follow_the_node_addresses, node_ports_at_added_node_addresses_have_exact_semantics if has_nft(), node_ports_at_a_moved_address_are_removed;
        drain: an_open_connection_of_a_removed_endpoint_continues, udp_clients_of_a_removed_endpoint_move_to_a_remaining_endpoint_immediately, endpoint_changes_fail_no_tcp_request;
        conflicts: the_older_service_wins_a_shared_address;
        options: a_service_chooses_its_scheduler, an_ignored_service_option_is_reported;
        invalid_objects: invalid_objects_are_reported_by_name, an_endpoint_refused_by_the_kernel_is_reported, a_foreign_ipset_with_our_name_is_reported;
        inspection: the_api_reports_the_kernels_state, explain_follows_a_sender_with_a_service_address, explain_names_an_address_taken_from_another_node;
        top: top_restores_the_terminal_at_each_exit;
        economy: endpoint_changes_start_no_program;
        exact: iptables_marks_are_adopted_repaired_and_removed, a_missing_iptables_extension_for_marks_is_reported;
        nft: iptables_nft_is_the_default_backend if has_nft(), the_kubelets_hint_switches_the_iptables_backend if has_both(), a_cleanup_covers_both_iptables_backends if has_both(), conntrack_flows_in_foreign_zones_stay if has_nft() && has_conntrack_zones(), native_nft_rules_stay_beside_iptables_rules if has_nft();
    };
    tell(&stories, LIMIT)
}

/// Returns true if the lab's kernel supports iptables-nft, which the tests then use.
fn has_nft() -> bool {
    lab::iptables_backend() == "nft"
}

/// Returns true if the kernel supports both iptables-nft and legacy iptables, which Linux 7
/// removed.
fn has_both() -> bool {
    has_nft()
        && Command::new("iptables-legacy")
            .args(["-t", "mangle", "-S"])
            .output()
            .is_ok_and(|output| output.status.success() && !output.stdout.is_empty())
}

/// Returns true if the kernel supports conntrack zones, as kernels of `integration/kernel/build` do.
fn has_conntrack_zones() -> bool {
    let flow = "-I -w 7 -p udp -s 192.0.2.1 --sport 1 -d 192.0.2.2 --dport 1 -t 1";
    Command::new("conntrack")
        .args(flow.split(' '))
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Returns true if the tests run in a VM of the lab whose kernel has not loaded `ip_vs` yet.
fn is_ip_vs_loadable() -> bool {
    let is_guest = std::env::var_os("LAB_LANE").is_none_or(|lane| lane != "host");
    is_guest && !Path::new("/sys/module/ip_vs").exists()
}
