//! How the daemon stands, as its loop hands it out.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use footprint::uses::Uses;
use proxy::contested::Contested;
use proxy::{Conflict, Failure, IpFamily, NodePorts, Standing, Unreadable};
use service_counters::places::is_of_node;

/// How the daemon stands.
#[derive(Debug)]
pub struct Facts {
    /// The mode's name.
    pub mode: &'static str,
    /// What the mode is made of.
    pub uses: Uses,
    /// The families that are served.
    pub families: Vec<OfFamily>,
    /// External and load-balancer addresses that are not served, and since when that is known.
    pub refused: Vec<(Contested, Instant)>,
    /// How many are proxied.
    pub services: usize,
    /// EndpointSlices of these.
    pub slices: usize,
    /// Whether both lists were complete once.
    pub is_complete: bool,
    /// Whether every object that exists could be read.
    pub is_whole: bool,
    /// True if the own Node exists; `None` if unknown.
    pub has_node: Option<bool>,
    /// The moment of these facts.
    pub now: Instant,
}

impl Facts {
    /// Whether NodePorts are served at an address.
    pub fn is_of_node(&self, address: IpAddr) -> bool {
        let mut families = self.families.iter();
        let family = families.find(|of| of.family == IpFamily::of(address));
        is_of_node(family.and_then(|of| of.node_ports.as_ref()), address)
    }
}

/// How a family does.
#[derive(Debug)]
pub struct OfFamily {
    /// The family.
    pub family: IpFamily,
    /// Progress of its writes.
    pub standing: Standing,
    /// True once the kernel has had all that was first known.
    pub is_served: bool,
    /// Failures, conflicts and drift that its reports name.
    pub seen: Seen,
    /// Endpoints that drain.
    pub drains: proxy::Drains,
    /// Where NodePorts are served, as far as is known.
    pub node_ports: Option<NodePorts>,
}

/// What has drifted since the start, of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriftTotal {
    /// Number of entries.
    pub count: u64,
    /// When the last was found.
    pub last: SystemTime,
    /// The first names of that time.
    pub names: Vec<String>,
}

/// What a family's reports have said, for those who ask.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// What fails, with how long it has.
    pub failures: Vec<(Failure, Duration)>,
    /// Addresses that two Services claim.
    pub conflicts: Vec<Conflict>,
    /// Parts of the kernel that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// Drift, by kind of entry.
    pub drift: Vec<(&'static str, DriftTotal)>,
}
