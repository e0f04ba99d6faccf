//! The host's side: which cells, in which order, within which limits.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::schema::{Axis, Size};

/// Measures, and writes report.json, report.md and charts.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Services, or Services x endpoints: 100,10000,10000x50
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<Size>,
    /// What is asked: cold, restart, add, change, rolling, delete, idle, memory, big, first, connect, keptalive, udp, throughput
    #[arg(long, value_delimiter = ',')]
    axes: Vec<Axis>,
    /// How often each is measured
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// Folder for the report
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Run {
    /// Measures all, and writes the report.
    pub(crate) fn run(&self) -> Result<()> {
        bail!("nothing to run yet: {self:?}")
    }
}
