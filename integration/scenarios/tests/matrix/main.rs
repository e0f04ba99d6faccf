//! The packet matrix: which client reaches which endpoint, and which source address the endpoint
//! sees.
//!
//! `--print` prints docs/packet-matrix.md from the table in `table.rs`. The test fails if the table
//! differs from the observed packets or from the document.
//!
//! Each test runs in these modes:
//!
//! - IPVS mode, with every shim;
//! - nftables mode, with each layout;
//! - userspace mode;
//! - iptables mode, only for the rows over TCP.
//!
//! Each test also compares packets with `kube-proxy explain`, which reads the kernel. `answers`
//! covers lost replies.

mod answers;
mod clients;
mod edges;
mod explained;
mod matrix;
mod observe;
mod table;

use std::time::Duration;

use scenarios::{Story, tell};

/// Repeats each test with the flags of each mode.
macro_rules! stories {
    ($($module:ident: $($name:ident),+;)+) => {
        &[$($(
            story!("", [], || true, $module::$name),
            story!("lean::", ["--ipvs-shim=lean"], || true, $module::$name),
            story!("ipvs_nftables::", ["--ipvs-shim=nftables"], clients::has_nftables, $module::$name),
            story!("nftables::", ["--proxy-mode=nftables"], clients::has_nftables, $module::$name),
            story!("nftables_flat::", ["--proxy-mode=nftables", "--nftables-layout=flat"],
                clients::has_nftables, $module::$name),
            story!("ipvs_exact::", ["--ipvs-semantics=exact"], clients::has_nftables, $module::$name),
            // With an iptables shim, `--ipvs-semantics=exact` runs only on request:
            // `--include-ignored ipvs_exact`.
            story!("ipvs_exact_upstream::", ["--ipvs-semantics=exact", "--ipvs-shim=upstream"], || false, $module::$name),
            story!("ipvs_exact_lean::", ["--ipvs-semantics=exact", "--ipvs-shim=lean"],
                || is_in_tests(concat!(stringify!($module), "::", stringify!($name))), $module::$name),
            // Userspace mode redirects packets by nftables rules or, on a kernel without nf_tables
            // (lane A), by iptables rules.
            story!("userspace::", ["--proxy-mode=userspace"], || true, $module::$name),
        )+)+]
    };
}

macro_rules! story {
    ($prefix:literal, [$($flag:literal),*], $is_possible:expr, $module:ident::$name:ident) => {
        Story {
            name: concat!($prefix, stringify!($module), "::", stringify!($name)),
            tell: |c| {
                $(c.flags.push($flag.into());)*
                $module::$name(c)
            },
            is_possible: $is_possible,
        }
    };
}

/// Returns true for the only test that runs by default with `--ipvs-semantics=exact` and an
/// iptables shim:
///
/// - without nf_tables (lane A): the test of the rows for UDP and SCTP, which takes a quarter of
///   the time;
/// - with nf_tables (lane B): the test of the rows for TCP, in `make test-full`.
fn is_in_tests(story: &str) -> bool {
    let rows = if clients::has_nftables() {
        "matrix::each_row_of_the_packet_matrix_holds"
    } else {
        "matrix::each_row_of_the_packet_matrix_holds_for_udp_and_sctp"
    };
    story == rows
}

/// Time limit of the lab's boot and all tests. Each test has its own, shorter limit.
const LIMIT: Duration = Duration::from_mins(15);

fn main() {
    if std::env::args().any(|argument| argument == "--print") {
        print!("{}", table::document());
        return;
    }
    let stories: &[Story] = stories! {
        matrix: each_row_of_the_packet_matrix_holds, each_row_of_the_packet_matrix_holds_for_udp_and_sctp;
        edges: a_service_without_endpoints_is_refused, unexposed_service_ports_reach_no_process, a_pod_reaches_itself_through_its_service,
            terminating_endpoints_serve_only_without_ready_endpoints, source_ranges_limit_load_balancer_addresses,
            pings_get_the_result_of_unexposed_service_ports;
    };
    let iptables = [
        story!(
            "iptables::",
            ["--proxy-mode=iptables"],
            || true,
            matrix::each_row_of_the_packet_matrix_holds
        ),
        story!(
            "userspace_iptables::",
            ["--proxy-mode=userspace", "--iptables-backend=nft"],
            clients::has_nftables,
            matrix::each_row_of_the_packet_matrix_holds
        ),
        // On a kernel without nf_tables (lane A), all supported modes write iptables rules. The
        // explain tests for replies then run only in IPVS mode.
        story!("", [], || true, answers::explain_predicts_replies),
        story!(
            "iptables::",
            ["--proxy-mode=iptables"],
            clients::has_nftables,
            answers::explain_predicts_replies
        ),
        story!(
            "nftables::",
            ["--proxy-mode=nftables"],
            clients::has_nftables,
            answers::explain_predicts_replies
        ),
        story!(
            "userspace::",
            ["--proxy-mode=userspace"],
            clients::has_nftables,
            answers::explain_predicts_replies
        ),
    ];
    tell(&[stories, &iptables].concat(), LIMIT)
}
