//! Facts about the daemon's state, which its main loop copies for a response.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use footprint::uses::Uses;
use proxy::contested::Contested;
use proxy::{Conflict, Failure, IpFamily, NodePorts, Standing, Unreadable};
use service_counters::frontend_addresses::is_of_node;

/// State of the daemon at one point in time.
#[derive(Debug)]
pub struct Facts {
    /// Name of the mode that the daemon runs.
    pub mode: &'static str,
    /// Variant of the mode, and the kernel features that it uses.
    pub uses: Uses,
    /// State of each IP family that the daemon serves.
    pub families: Vec<FamilyFacts>,
    /// Parts of Services that the daemon rejects, each with the time of the rejection: addresses,
    /// options, and Services above the size limit.
    pub refused: Vec<(Contested, Instant)>,
    /// Addresses of Services that the daemon serves with side effects, each with the time at which
    /// it found them.
    pub served_contested: Vec<(Contested, Instant)>,
    /// Settings that do not fit the cluster or this node, each with its flag as the object.
    pub unfit_settings: Vec<Failure>,
    /// Health and metrics servers that cannot listen.
    pub unbound_servers: Vec<Failure>,
    /// Number of Services that the daemon serves.
    pub services: usize,
    /// Number of EndpointSlices that belong to the Services in `services`.
    pub slices: usize,
    /// True once both initial lists (Services and EndpointSlices) are complete.
    pub is_complete: bool,
    /// True once each Service and EndpointSlice that exists has been readable at least once.
    pub is_whole: bool,
    /// True if this node has a Node object, or `None` if this is unknown.
    pub has_node: Option<bool>,
    /// Time at which the daemon's main loop copied these facts.
    pub now: Instant,
}

impl Facts {
    /// Reports whether `address` serves NodePorts.
    pub fn is_of_node(&self, address: IpAddr) -> bool {
        let mut families = self.families.iter();
        let family = families.find(|of| of.family == IpFamily::of(address));
        is_of_node(family.and_then(|of| of.node_ports.as_ref()), address)
    }
}

/// State of the daemon in one IP family.
#[derive(Debug)]
pub struct FamilyFacts {
    /// IP family that this state belongs to.
    pub family: IpFamily,
    /// Numbers of pending and failing entries, and since when changes are pending or stuck.
    pub standing: Standing,
    /// True once the kernel has the entries of all Services that existed at the start.
    pub is_served: bool,
    /// Failures, conflicts and drift in the mode's reports.
    pub seen: FamilyProblems,
    /// Failures of the health-check servers of Services, each with the time of the failure.
    pub health_checks: Vec<(Failure, Instant)>,
    /// Variant of the mode's entries, such as `layout flat`. `None` if the mode has only one
    /// variant.
    pub form: Option<&'static str>,
    /// Draining endpoints in this IP family.
    pub drains: proxy::Drains,
    /// Addresses that serve NodePorts, or `None` if they are unknown.
    pub node_ports: Option<NodePorts>,
}

/// Drift (changes by other programs) of one kind of entry since the daemon's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriftTotal {
    /// Number of entries that other programs have changed.
    pub count: u64,
    /// Time at which the daemon last found such drift.
    pub last: SystemTime,
    /// Names of the first few entries in the last report of such drift.
    pub names: Vec<String>,
}

/// Problems in one IP family, from the mode's reports.
#[derive(Debug, Clone, Default)]
pub struct FamilyProblems {
    /// Entries that the kernel refuses, each with the time since its first refusal.
    pub failures: Vec<(Failure, Duration)>,
    /// Addresses that more than one Service claims.
    pub conflicts: Vec<Conflict>,
    /// Parts of the kernel's state that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// Drift since the daemon's start, by kind of entry.
    pub drift: Vec<(&'static str, DriftTotal)>,
}
