//! State of the daemon, as its loop reports it.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use footprint::uses::Uses;
use proxy::contested::Contested;
use proxy::{Conflict, Failure, IpFamily, NodePorts, Standing, Unreadable};
use service_counters::frontend_addresses::is_of_node;

/// State of the daemon.
#[derive(Debug)]
pub struct Facts {
    /// Name of the current mode.
    pub mode: &'static str,
    /// Kernel features and variants of the mode.
    pub uses: Uses,
    /// State of each served family.
    pub families: Vec<FamilyFacts>,
    /// External and load-balancer addresses that the proxy refuses, each with the time at which it
    /// was found.
    pub refused: Vec<(Contested, Instant)>,
    /// Number of Services that the proxy serves.
    pub services: usize,
    /// Number of EndpointSlices of these Services.
    pub slices: usize,
    /// True once both initial lists are complete.
    pub is_complete: bool,
    /// True if every object could be read.
    pub is_whole: bool,
    /// True if this node's Node object exists. `None`: unknown.
    pub has_node: Option<bool>,
    /// Time at which the loop collected these facts.
    pub now: Instant,
}

impl Facts {
    /// Reports whether NodePorts are served at an address.
    pub fn is_of_node(&self, address: IpAddr) -> bool {
        let mut families = self.families.iter();
        let family = families.find(|of| of.family == IpFamily::of(address));
        is_of_node(family.and_then(|of| of.node_ports.as_ref()), address)
    }
}

/// State of an IP family.
#[derive(Debug)]
pub struct FamilyFacts {
    /// IP family of this state.
    pub family: IpFamily,
    /// Progress of the family's writes.
    pub standing: Standing,
    /// True once the kernel has the initial Services.
    pub is_served: bool,
    /// Failures, conflicts and drift from the family's reports.
    pub seen: FamilyProblems,
    /// Variant of the family's entries, such as `layout flat`, if the mode may change it.
    pub form: Option<&'static str>,
    /// Draining endpoints of the family.
    pub drains: proxy::Drains,
    /// Addresses that serve NodePorts, if known.
    pub node_ports: Option<NodePorts>,
}

/// Drift of one kind of entry since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriftTotal {
    /// Number of entries that drifted.
    pub count: u64,
    /// Time of the last drift.
    pub last: SystemTime,
    /// Names of the first entries in the last drift.
    pub names: Vec<String>,
}

/// Problems of a family, from its reports.
#[derive(Debug, Clone, Default)]
pub struct FamilyProblems {
    /// Failures, each with its age.
    pub failures: Vec<(Failure, Duration)>,
    /// Addresses that two Services claim.
    pub conflicts: Vec<Conflict>,
    /// Parts of the kernel that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// Drift, by kind of entry.
    pub drift: Vec<(&'static str, DriftTotal)>,
}
