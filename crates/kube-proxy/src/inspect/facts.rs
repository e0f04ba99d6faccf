//! How the daemon stands, as its loop hands it out.

use std::net::IpAddr;
use std::time::Instant;

use footprint::uses::Uses;
use proxy::{IpFamily, NodePorts, Standing};
use service_counters::places::is_of_node;

use crate::external_addresses::Contested;
use crate::report::Seen;

/// How the daemon stands.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) mode: &'static str,
    /// What the mode is made of.
    pub(crate) uses: Uses,
    pub(crate) families: Vec<OfFamily>,
    /// External and load-balancer addresses that are not served, and since when that is known.
    pub(crate) refused: Vec<(Contested, Instant)>,
    /// How many are proxied.
    pub(crate) services: usize,
    pub(crate) slices: usize,
    /// Whether both lists were complete once.
    pub(crate) is_complete: bool,
    /// Whether every object that exists could be read.
    pub(crate) is_whole: bool,
    pub(crate) has_node: Option<bool>,
    pub(crate) now: Instant,
}

impl Facts {
    /// Whether NodePorts are served at an address.
    pub(crate) fn is_of_node(&self, address: IpAddr) -> bool {
        let mut families = self.families.iter();
        let family = families.find(|of| of.family == IpFamily::of(address));
        is_of_node(family.and_then(|of| of.node_ports.as_ref()), address)
    }
}

/// How a family does.
#[derive(Debug)]
pub(crate) struct OfFamily {
    pub(crate) family: IpFamily,
    pub(crate) standing: Standing,
    pub(crate) is_served: bool,
    pub(crate) seen: Seen,
    pub(crate) drains: proxy::Drains,
    /// Where NodePorts are served, as far as is known.
    pub(crate) node_ports: Option<NodePorts>,
}
