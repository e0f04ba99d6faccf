//! The axes in words, and the figures that each has.

use super::point::{Metric, Unit};
use crate::schema::{Axis, Cell, Measured, Occasion};

/// An axis as a heading.
pub(super) fn title(axis: Axis) -> &'static str {
    match axis {
        Axis::Cold => "Cold start",
        Axis::Loaded => "Cold start with the kernel modules loaded",
        Axis::Restart => "Restart on a programmed kernel",
        Axis::Add => "One Service more",
        Axis::Change => "One endpoint changed",
        Axis::Rolling => "100 endpoints changed",
        Axis::Delete => "All Services deleted",
        Axis::Idle => "Idle",
        Axis::Memory => "Memory",
        Axis::Big => "One Service with 10,000 endpoints",
        Axis::Api => "What the API server has to do",
        Axis::First => "First packet of a flow",
        Axis::Connect => "New connections",
        Axis::Keptalive => "Requests on a kept connection",
        Axis::Udp => "Datagrams",
        Axis::Throughput => "Throughput",
        Axis::Anatomy => "What each rule and set look-up costs",
    }
}

/// What was measured, in a sentence or two.
pub(super) fn explained(axis: Axis) -> &'static str {
    match axis {
        Axis::Cold => {
            "From the start of the program, in an empty kernel, until the kernel holds everything. The API fixture shares the one CPU; what it uses is part of the wall time and stands beside it. The floor is a bare loader that sends the same state of the IPVS mode as messages encoded beforehand. Modules for IPVS, ipsets' core, connection tracking and dummy links are loaded before; of the others our daemon loads what it can in one process, and the floor leaves them to the kernel, which starts one for each as it is first needed."
        }
        Axis::Loaded => {
            "A cold start after all kernel modules that it needs have been loaded, so that neither the daemon nor the floor has a part of it."
        }
        Axis::Restart => {
            "The program is stopped, one Service is taken out of the kernel, and the program started again: until that Service is back."
        }
        Axis::Add => {
            "From the request to the API until the kernel serves the new Service; 20 times."
        }
        Axis::Change => {
            "One endpoint of one Service is replaced by another: from the request to the API until the kernel has it (in iptables mode: until packets get to the Service's endpoints and to no others), one after another. Whoever is slow makes fewer of them. The API fixture says when it handed the event to the watch, just before writing it: what it did until then is its own part. What the program does right after the write, and the look that finds it in the kernel, are in the rest. The floor has no API: it sends what the daemon sends (the new destination and weight 0 for the old one, the look at its connections, its removal). The kernel keeps what was removed for two to three minutes and looks there first for each new destination, so a thousand changes in a second cost it more, each, than one would."
        }
        Axis::Rolling => {
            "100 endpoints of 100 Services replaced, one request after another without waiting, until the kernel has all."
        }
        Axis::Delete => {
            "Everything is deleted while the program is stopped; from its going on until the kernel holds nothing of it."
        }
        Axis::Idle => "Nothing happens for a while.",
        Axis::Memory => "Of the program, after a cold start.",
        Axis::Big => "As a cold start.",
        Axis::Api => {
            "Bytes are those on the wire (HTTP/1.1, no TLS), with headers and as compressed; *lists* are answers with all objects of a kind, streamed or not. The objects have what controllers write beside what is read (who manages which fields, owners, the pods behind endpoints). *Restart*: stopped and started again. *Changes*: one endpoint replaced, one request after another without waiting; of the server's CPU time what the same changes cost when nobody watches is taken off, and the rest divided by the 21 that watch (the subject, and 20 clients that ask as it does). *Reconnect*: all connections break; the requests that the one subject makes then are recorded, and played again by many clients at once, whose sum is shown. *504 to watches* (streamed lists, too), *504 to all*: for ten seconds the server refuses, after all connections broke; counted until everything is watched again. A figure counts when the kernel then holds what it must. **Not shown:** the fixture is no real API server. Its CPU time is not one's: it is written in another language, encodes each version of an object once where a real one encodes for each list, and has no etcd, TLS, authorization, priority and fairness behind it. It is counted in steps of 10 ms. Who asks how often, for what and in which encoding is the subject's own."
        }
        Axis::First => {
            "What the first packet of a new TCP connection costs from a pod's socket, through the node, to the network of another host: blocks of SYNs from a raw socket with one system call each. That host drops them, or, where a table says so, answers by a reset, whose way back to the pod is in the figure then. First, middle and last are places in the order in which the kernel has the Services: of the rules, or in which virtual servers were made (a new one comes to the head of its bucket, so the first is found last). `direct` goes to a pod of that host without a Service, through the same node; the subject `direct` has no Services at all, and bare-ipvs nothing but virtual servers: how it grows is the kernel's own table (256 buckets up to Linux 6.x). All hosts of the lab share one kernel, and Linux up to 6.12 keeps the addresses of all network namespaces in one table of 256 chains: with many addresses on the node, a pod pays for each answer that it gets, too (docs/operating.md)."
        }
        Axis::Connect => {
            "Connections in a second from a pod to a pod of another host, one after another: opened, one byte there and back, reset."
        }
        Axis::Keptalive => {
            "64 bytes there and back in a second, one after another on one connection."
        }
        Axis::Udp => {
            "64 bytes there and back in a second, one after another, through one UDP Service that was added after all others; from one socket, and from a new one each time."
        }
        Axis::Throughput => "Bytes on one connection from a pod to a pod of another host.",
        Axis::Anatomy => {
            "The first packet of a new connection from a pod to a cluster IP. Each row has all pieces of the rows above and one more, on a node of its own in the same kernel; blocks of packets take turns between the rows. `ipvs` has the pieces of upstream's shim, `ipvs-lean` those of the lean one, `ipvs-nftables` and `nftables` the rules of the daemon's table, read from the kernel; in nftables mode the pod is asked until the rows have what leads to a Service. `by the daemon` is a node that a daemon has programmed, also in the modes that it is compared with. A difference below about 100 ns is noise."
        }
    }
}

/// What was counted in a cell.
pub(super) fn counted(cell: &Cell, measured: &Measured) -> String {
    match (cell.axis, measured.figures.get("steps")) {
        (Axis::Add, Some(steps)) => format!("{steps:.0} Services more"),
        (Axis::Change, Some(steps)) => format!("{steps:.0} changes"),
        (Axis::Rolling, _) => "100 changes".into(),
        (Axis::Delete, _) => "all deleted".into(),
        (Axis::Restart, _) => "the start, nothing missing".into(),
        _ => "the start".into(),
    }
}

/// The title of the share: the least disturbed of the rates, as both sides take turns in one guest.
pub(super) const SHARE: &str = "to the last Service, against direct in the same guest";

/// The title of the time of a cold start.
pub(super) const COLD: &str = "until the kernel holds everything";

/// The title of what is the daemon's and the kernel's of a change.
pub(super) const FROM_EVENT: &str = "of it, from that event until the kernel has it: median";

/// The figures with tables of their own; the first of an axis has the chart.
pub(super) const SHOWN: &[Metric] = &[
    wall(Axis::Cold, COLD),
    seconds(
        Axis::Cold,
        "the same without the CPU time of the API fixture",
        |one| Some(one.wall_s? - one.fixture_cpu_s.unwrap_or(0.0)),
    ),
    cpu(Axis::Cold),
    peak(Axis::Cold),
    wall(Axis::Loaded, COLD),
    cpu(Axis::Loaded),
    wall(Axis::Restart, "until what was taken out is back"),
    cpu(Axis::Restart),
    figure(Axis::Add, "median", Unit::Milliseconds, |one| {
        p50(one, "all")
    }),
    figure(Axis::Add, "99th percentile", Unit::Milliseconds, p99),
    figure(Axis::Change, "median", Unit::Milliseconds, |one| {
        p50(one, "all")
    }),
    figure(Axis::Change, "99th percentile", Unit::Milliseconds, p99),
    figure(
        Axis::Change,
        "of it, until the API sends the event: median",
        Unit::Milliseconds,
        |one| p50(one, "until-event"),
    ),
    figure(Axis::Change, FROM_EVENT, Unit::Milliseconds, |one| {
        p50(one, "from-event")
    }),
    figure(
        Axis::Change,
        "of it, from that event until the kernel has it: 99th percentile",
        Unit::Milliseconds,
        |one| Some(one.series.get("from-event")?.p99),
    ),
    figure(
        Axis::Change,
        "CPU time of the program for each",
        Unit::Milliseconds,
        |one| one.figures.get("cpu_ms_per_step").copied(),
    ),
    figure(Axis::Change, "changes made", Unit::Count, |one| {
        Some(f64::from(u32::try_from(one.series.get("all")?.n).ok()?))
    }),
    wall(Axis::Rolling, "until the kernel has all"),
    cpu(Axis::Rolling),
    wall(Axis::Delete, "until nothing is left"),
    cpu(Axis::Delete),
    figure(Axis::Idle, "wake-ups", Unit::PerMinute, |one| {
        one.figures.get("wakeups_per_min").copied()
    }),
    figure(Axis::Idle, "processes started", Unit::PerMinute, |one| {
        one.figures.get("processes_per_min").copied()
    }),
    figure(Axis::Idle, "CPU time", Unit::MillisecondsPerMinute, |one| {
        one.figures.get("cpu_ms_per_min").copied()
    }),
    peak(Axis::Memory),
    steady(Axis::Memory),
    wall(Axis::Big, "until the kernel holds everything"),
    cpu(Axis::Big),
    peak(Axis::Big),
    figure(
        Axis::Api,
        "received at the first list",
        Unit::Megabytes,
        |one| {
            let cost = one.server.get(&Occasion::First)?;
            Some(f64::from(u32::try_from(cost.bytes).ok()?) / 1e6)
        },
    ),
    figure(Axis::First, "to the last Service", Unit::Nanoseconds, last),
    figure(
        Axis::First,
        "to the first Service",
        Unit::Nanoseconds,
        |one| p50(one, "first"),
    ),
    figure(
        Axis::First,
        "to the middle Service",
        Unit::Nanoseconds,
        |one| p50(one, "middle"),
    ),
    figure(
        Axis::First,
        "to the first Service, best block",
        Unit::Nanoseconds,
        |one| Some(one.series.get("first")?.min),
    ),
    figure(Axis::First, "direct", Unit::Nanoseconds, |one| {
        p50(one, "direct")
    }),
    figure(
        Axis::First,
        "to the last Service, best block",
        Unit::Nanoseconds,
        |one| {
            Some(
                one.series
                    .get("last")
                    .or_else(|| one.series.get("first"))?
                    .min,
            )
        },
    ),
    figure(
        Axis::First,
        "to the last Service, with its answer",
        Unit::Nanoseconds,
        |one| p50(one, "last answered").or_else(|| p50(one, "first answered")),
    ),
    figure(
        Axis::First,
        "to the first Service, with its answer, best block",
        Unit::Nanoseconds,
        |one| Some(one.series.get("first answered")?.min),
    ),
    figure(
        Axis::First,
        "direct, with its answer",
        Unit::Nanoseconds,
        |one| p50(one, "direct answered"),
    ),
    figure(Axis::Connect, "to the last Service", Unit::PerSecond, last),
    figure(
        Axis::Connect,
        "to the first Service",
        Unit::PerSecond,
        |one| p50(one, "first"),
    ),
    figure(
        Axis::Connect,
        "to the middle Service",
        Unit::PerSecond,
        |one| p50(one, "middle"),
    ),
    figure(Axis::Connect, "direct", Unit::PerSecond, |one| {
        p50(one, "direct")
    }),
    share(Axis::Connect),
    figure(
        Axis::Keptalive,
        "to the last Service",
        Unit::PerSecond,
        last,
    ),
    figure(Axis::Keptalive, "direct", Unit::PerSecond, |one| {
        p50(one, "direct")
    }),
    share(Axis::Keptalive),
    figure(Axis::Udp, "one socket", Unit::PerSecond, last),
    figure(Axis::Udp, "one socket, direct", Unit::PerSecond, |one| {
        p50(one, "direct")
    }),
    figure(
        Axis::Udp,
        "a new socket each time",
        Unit::PerSecond,
        |one| p50(one, "new-last"),
    ),
    figure(
        Axis::Udp,
        "a new socket each time, direct",
        Unit::PerSecond,
        |one| p50(one, "new-direct"),
    ),
    share(Axis::Udp),
    figure(
        Axis::Throughput,
        "to the last Service",
        Unit::GigabitsPerSecond,
        last,
    ),
    figure(Axis::Throughput, "direct", Unit::GigabitsPerSecond, |one| {
        p50(one, "direct")
    }),
    share(Axis::Throughput),
];

/// The figures of the main table.
pub(super) fn headline() -> &'static [Metric] {
    const HEADLINE: &[Metric] = &[
        wall(Axis::Cold, "Cold start"),
        wall(Axis::Restart, "Restart"),
        figure(
            Axis::Change,
            "One endpoint changed",
            Unit::Milliseconds,
            |one| p50(one, "all"),
        ),
        peak_of(Axis::Memory, "Peak memory"),
        figure(
            Axis::First,
            "First packet to the last Service",
            Unit::Nanoseconds,
            last,
        ),
        figure(
            Axis::Connect,
            "New connections to the last Service",
            Unit::PerSecond,
            last,
        ),
        figure(
            Axis::Keptalive,
            "Requests on a kept connection",
            Unit::PerSecond,
            last,
        ),
        figure(
            Axis::Throughput,
            "Throughput",
            Unit::GigabitsPerSecond,
            last,
        ),
    ];
    HEADLINE
}

/// The middle of a series.
fn p50(one: &Measured, series: &str) -> Option<f64> {
    Some(one.series.get(series)?.p50)
}

fn p99(one: &Measured) -> Option<f64> {
    Some(one.series.get("all")?.p99)
}

/// Of the last Service, which is the first where there is one only, or of the pod where there is
/// none.
pub(super) fn last(one: &Measured) -> Option<f64> {
    p50(one, "last")
        .or_else(|| p50(one, "first"))
        .or_else(|| p50(one, "direct"))
}

const fn figure(
    axis: Axis,
    title: &'static str,
    unit: Unit,
    of: fn(&Measured) -> Option<f64>,
) -> Metric {
    Metric {
        axis,
        title,
        unit,
        of,
    }
}

const fn seconds(axis: Axis, title: &'static str, of: fn(&Measured) -> Option<f64>) -> Metric {
    figure(axis, title, Unit::Seconds, of)
}

const fn wall(axis: Axis, title: &'static str) -> Metric {
    seconds(axis, title, |one| one.wall_s)
}

const fn share(axis: Axis) -> Metric {
    figure(axis, SHARE, Unit::Share, |one| {
        let service = p50(one, "last").or_else(|| p50(one, "first"))?;
        Some(service / p50(one, "direct")?)
    })
}

const fn cpu(axis: Axis) -> Metric {
    seconds(axis, "CPU time of the program and what it starts", |one| {
        one.cpu_s
    })
}

const fn peak_of(axis: Axis, title: &'static str) -> Metric {
    figure(axis, title, Unit::Megabytes, |one| megabytes(one.peak_kib))
}

const fn peak(axis: Axis) -> Metric {
    peak_of(axis, "peak memory")
}

const fn steady(axis: Axis) -> Metric {
    figure(axis, "steady memory", Unit::Megabytes, |one| {
        megabytes(one.steady_kib)
    })
}

fn megabytes(kib: Option<u64>) -> Option<f64> {
    Some(f64::from(u32::try_from(kib?).ok()?) * 1024.0 / 1e6)
}
