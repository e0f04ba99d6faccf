//! Tests of the daemon with real packets in a real kernel. [`scenarios::Cluster`] describes the
//! places.

mod addresses;
mod api;
mod asking;
mod conflicts;
mod drain;
mod drift;
mod economy;
mod foreign;
mod manifests;
mod nft;
mod options;
mod refusals;
mod restart;
mod shim;
mod top;
mod vip_mode;
mod ways_in;
mod wrong;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use scenarios::{stories, tell};

/// The lab's time limit. Each test has a shorter one.
const LIMIT: Duration = Duration::from_mins(8);

fn main() {
    let stories = stories! {
        // First, because it needs a kernel that has never loaded IPVS.
        refusals: no_ip_vs if is_ip_vs_loadable(), no_rights, a_scheduler_that_the_kernel_lacks, unknown_flag, no_folder, no_kubeconfig;
        ways_in: over_tcp, over_udp, over_sctp, by_routes_over_tcp, by_routes_over_udp, several_ports, session_affinity, an_address_of_the_node_itself, other_objects_are_left_out;
        manifests: added_edited_deleted, renamed_into_place, an_address_that_goes_over_in_one_file_is_served_throughout, a_broken_file_keeps_what_it_held, broken_at_the_start;
        api: streamed_lists, cached_lists, away_at_the_start, away_for_a_while, nonsense;
        restart: nothing_is_written_and_connections_live;
        shim: one_follows_the_other_under_traffic, nftables_and_iptables_follow_each_other_under_traffic if has_nft(), the_table_in_nftables_is_put_right if has_nft(), neither_iptables_nor_ipset if has_nft(), rules_without_their_programs_are_told_at_each_start if has_nft(), dnat_rules_of_others_get_nothing_of_services if has_nft();
        foreign: what_is_not_ours_stays;
        drift: a_resync_repairs_each_kind_of_damage;
        vip_mode: it_changes_under_open_connections, strict_arp_holds_for_routes;
        addresses: node_ports_follow, node_ports_at_an_address_that_has_moved_away_go;
        drain: an_open_connection_is_served_to_its_end, udp_moves_at_once, no_question_is_lost_by_changes;
        conflicts: the_older_service_wins;
        options: a_service_chooses_its_scheduler, an_option_that_is_not_heeded_is_told;
        wrong: wrong_objects_are_named, an_endpoint_that_the_kernel_refuses, a_set_in_the_way;
        asking: what_is_told_is_what_the_kernel_has, a_sender_with_a_services_address_is_followed, an_address_taken_from_another_node_is_named;
        top: the_terminal_is_given_back_however_it_ends;
        economy: changes_start_no_program;
        nft: is_chosen_where_nothing_speaks_for_either if has_nft(), the_kubelets_hint_moves_rules_under_open_connections if has_both(), a_cleanup_takes_both_backends if has_both(), flows_in_other_zones_stay if has_nft(), native_rules_are_served_beside_and_left if has_nft();
    };
    tell(&stories, LIMIT)
}

/// Returns true if this lane's iptables is iptables-nft.
fn has_nft() -> bool {
    lab::iptables_backend() == "nft"
}

/// Returns true if the kernel also supports legacy iptables, which Linux 7 removed.
fn has_both() -> bool {
    has_nft()
        && Command::new("iptables-legacy")
            .args(["-t", "mangle", "-S"])
            .output()
            .is_ok_and(|output| output.status.success() && !output.stdout.is_empty())
}

/// Returns true if `ip_vs` is an unloaded module in a kernel of this lab.
fn is_ip_vs_loadable() -> bool {
    let is_guest = std::env::var_os("LAB_LANE").is_none_or(|lane| lane != "host");
    is_guest && !Path::new("/sys/module/ip_vs").exists()
}
