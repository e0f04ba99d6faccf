//! The report, drawn from `report.json` alone.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::schema::Report;

/// Writes `report.md` and the charts that it shows into `folder`.
pub(crate) fn draw(report: &Report, folder: &Path) -> Result<()> {
    let text = format!("# Report\n\n{} cells\n", report.measurements.len());
    let file = folder.join("report.md");
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}
