//! How the daemon stands, as its loop hands it out.

use std::time::Instant;

use proxy::{IpFamily, Standing};

use crate::modes::uses::Uses;
use crate::report::Seen;

/// How the daemon stands.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) mode: &'static str,
    /// What the mode is made of.
    pub(crate) uses: Uses,
    pub(crate) families: Vec<OfFamily>,
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

/// How a family does.
#[derive(Debug)]
pub(crate) struct OfFamily {
    pub(crate) family: IpFamily,
    pub(crate) standing: Standing,
    pub(crate) is_served: bool,
    pub(crate) seen: Seen,
    pub(crate) drains: proxy::Drains,
}
