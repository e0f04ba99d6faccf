//! The packet matrix: who reaches what, by which endpoints, and whether the source is rewritten.
//!
//! `--print` prints docs/packet-matrix.md out of the table in `table.rs`; the test fails where the
//! table is not what is observed, and where the document is not the table. Each story of IPVS mode
//! is told with either shim.

mod cast;
mod echo;
mod edges;
mod matrix;
mod see;
mod table;

use std::time::Duration;

use scenarios::{Story, tell};

macro_rules! stories {
    ($($module:ident: $($name:ident),+;)+) => {
        &[$($(
            Story {
                name: concat!(stringify!($module), "::", stringify!($name)),
                tell: $module::$name,
                is_possible: || true,
            },
            Story {
                name: concat!("lean::", stringify!($module), "::", stringify!($name)),
                tell: |c| {
                    c.flags.push("--ipvs-shim=lean".into());
                    $module::$name(c)
                },
                is_possible: || true,
            },
        )+)+]
    };
}

/// The lab's own limit; each story has a shorter one.
const LIMIT: Duration = Duration::from_mins(5);

fn main() {
    if std::env::args().any(|argument| argument == "--print") {
        print!("{}", table::document());
        return;
    }
    let stories: &[Story] = stories! {
        matrix: every_row, other_protocols;
        edges: no_endpoints_is_refused, unexposed_ports_reach_no_process, a_pod_reaches_itself,
            terminating_endpoints_are_the_last_resort, source_ranges, icmp_echo;
    };
    let iptables_mode = Story {
        name: "matrix::iptables_mode",
        tell: matrix::iptables_mode,
        is_possible: || true,
    };
    tell(&[stories, &[iptables_mode]].concat(), LIMIT)
}
