//! Kernel settings of connection tracking, which every mode needs.

use std::time::Duration;

use super::machine::Machine;
use super::row::{AcceptableValue, OnReadOnly, Rows, SysctlRow, WantedSetting, wanted};
use super::settings::Conntrack;

/// Upstream's limit for the product of `--conntrack-max-per-core` and the number of CPUs, in
/// conntrack entries.
const SCALED_ENTRIES_MAX: u64 = 1_048_576;

/// Inputs from which the daemon computes the values of the connection tracking settings.
type Context = (Conntrack, Machine);

static ROWS: &Rows<Context> = &[
    // Every connection to a Service has a conntrack entry. If the table is full, the kernel drops
    // new connections. All network namespaces share one limit, which only the initial namespace may
    // change.
    //
    // The daemon never lowers the limit, even if an earlier kube-proxy raised it. The kernel does
    // not record who raised the limit, and an operator may have done so
    // (kubernetes/kubernetes#142035).
    (
        SysctlRow {
            enough: AcceptableValue::AtLeast,
            ..SysctlRow::flagged(
                "proc/sys/net/netfilter/nf_conntrack_max",
                "--conntrack-max-per-core=0",
            )
        },
        |(conntrack, machine)| entries(conntrack, machine.cpus),
    ),
    // Sets one hash bucket for every four entries, as upstream does. A full table then has four
    // entries per bucket on average.
    (
        SysctlRow {
            enough: AcceptableValue::AtLeast,
            // With few buckets, look-ups are slow but work. Upstream also ignores this failure.
            on_read_only: OnReadOnly::Warns,
            ..SysctlRow::flagged(
                "sys/module/nf_conntrack/parameters/hashsize",
                "--conntrack-max-per-core=0",
            )
        },
        |(conntrack, machine)| Some(entries(conntrack, machine.cpus)? / 4),
    ),
    // The kernel's default is five days, so it keeps entries long after both peers have gone.
    (
        SysctlRow::flagged(
            "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
            "--conntrack-tcp-timeout-established=0",
        ),
        |(conntrack, _)| seconds(conntrack.tcp_established),
    ),
    // The kernel's default is one minute, which is too short for servers that close slowly
    // (kubernetes/kubernetes#32551).
    (
        SysctlRow::flagged(
            "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            "--conntrack-tcp-timeout-close-wait=0",
        ),
        |(conntrack, _)| seconds(conntrack.tcp_close_wait),
    ),
    // By default, TCP segments outside of the window are INVALID for connection tracking. The
    // kernel does not translate the addresses of INVALID packets, so their receiver would reset the
    // connection (kubernetes/kubernetes#74839).
    (
        SysctlRow::flagged(
            "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal",
            "--conntrack-tcp-be-liberal=false",
        ),
        |(conntrack, _)| conntrack.tcp_be_liberal.then_some(1),
    ),
    // Timeouts of UDP flows without and with replies. A client that sends again within the timeout
    // keeps its conntrack entry, and so its endpoint.
    (
        SysctlRow::flagged(
            "proc/sys/net/netfilter/nf_conntrack_udp_timeout",
            "--conntrack-udp-timeout=0",
        ),
        |(conntrack, _)| seconds(conntrack.udp),
    ),
    (
        SysctlRow::flagged(
            "proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream",
            "--conntrack-udp-timeout-stream=0",
        ),
        |(conntrack, _)| seconds(conntrack.udp_stream),
    ),
];

/// Returns the kernel settings of connection tracking, with their wanted values.
pub fn settings(asked: Conntrack, machine: Machine) -> Vec<WantedSetting> {
    wanted(ROWS, Some(&(asked, machine)))
}

/// Returns the wanted maximum number of conntrack entries, or `None` to keep the kernel's value.
fn entries(asked: &Conntrack, cpus: u64) -> Option<u64> {
    let per_core = u64::from(asked.max_per_core);
    (per_core > 0).then(|| {
        let scaled = per_core.saturating_mul(cpus).min(SCALED_ENTRIES_MAX);
        scaled.max(asked.min.into())
    })
}

fn seconds(timeout: Duration) -> Option<u64> {
    Some(timeout.as_secs()).filter(|seconds| *seconds > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conntrack_table_size_grows_with_the_cpus() {
        for (max_per_core, min, cpus, max) in [
            (32_768, 131_072, 1, Some(131_072)),
            (32_768, 131_072, 4, Some(131_072)),
            (32_768, 131_072, 8, Some(262_144)),
            (32_768, 131_072, 64, Some(1_048_576)),
            (1, 2_000_000, 64, Some(2_000_000)),
            (0, 131_072, 8, None),
        ] {
            let conntrack = Conntrack {
                max_per_core,
                min,
                ..Conntrack::default()
            };
            assert_eq!(
                entries(&conntrack, cpus),
                max,
                "{max_per_core}, {min}, {cpus} CPUs"
            );
        }
    }
}
