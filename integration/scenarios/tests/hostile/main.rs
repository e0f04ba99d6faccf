//! Tests attacks by a user who may write Services. The attacker must not get other users' packets
//! or disturb other Services. Also tests the daemon with few capabilities, and its secrecy about
//! credentials.

mod objects;
mod rights;
mod secrets;
mod takeover;

use std::time::Duration;

use scenarios::{Cluster, Outcome, Story, tell};

/// Defines one test per mode from a name and a function.
macro_rules! in_each_mode {
    ($($name:literal: $tell:path),+;) => {
        &[$(
            story!($name, "ipvs", [], || true, $tell),
            story!($name, "ipvs_nftables", ["--ipvs-shim=nftables"], has_nft, $tell),
            story!($name, "iptables", ["--proxy-mode=iptables"], || true, $tell),
            story!($name, "nftables", ["--proxy-mode=nftables"], has_nft, $tell),
            story!($name, "userspace", ["--proxy-mode=userspace"], || true, $tell),
        )+]
    };
}

macro_rules! story {
    ($name:literal, $mode:literal, [$($flag:literal),*], $is_possible:expr, $tell:path) => {
        Story {
            name: concat!($mode, "::", $name),
            tell: |c| {
                $(c.flags.push($flag.into());)*
                way_out(c)?;
                $tell(c)
            },
            is_possible: $is_possible,
        }
    };
}

fn main() {
    let of_modes: &[Story] = in_each_mode! {
        "addresses_stay_with_their_rightful_service": takeover::addresses_stay_with_their_rightful_service,
        "hostile_objects_affect_only_their_own_services": objects::hostile_objects_affect_only_their_own_services;
    };
    let story = |name, tell| Story {
        name,
        tell,
        is_possible: || true,
    };
    let others = [
        story(
            "rights::a_non_root_daemon_serves_after_init_only",
            rights::a_non_root_daemon_serves_after_init_only,
        ),
        story(
            "rights::unwritable_kernel_settings_are_named",
            rights::unwritable_kernel_settings_are_named,
        ),
        story(
            "rights::only_this_node_can_read_the_inspection_api",
            rights::only_this_node_can_read_the_inspection_api,
        ),
        story(
            "secrets::secrets_are_never_displayed",
            secrets::secrets_are_never_displayed,
        ),
    ];
    tell(&[of_modes, &others].concat(), Duration::from_mins(8))
}

/// Returns true if the lab's kernel has nf_tables.
fn has_nft() -> bool {
    lab::iptables_backend() == "nft"
}

/// Adds a default route to node1. The node's own packets to a Service need a route, because only
/// IPVS mode makes Service addresses local.
fn way_out(c: &Cluster) -> Outcome {
    c.node1
        .read(["ip", "route", "replace", "default", "via", "172.35.0.9"])?;
    Ok(())
}
