//! Converts the registry's OpenMetrics text to Prometheus' own text format, which every scraper
//! reads. The format differs from OpenMetrics:
//!
//! - The name of a counter's family ends in `_total`.
//! - Units and the end mark are missing.
//! - The bounds of buckets have Go's format, because they are labels that dashboards use: `le="1"`,
//!   not `le="1.0"`.
//! - A metric family without samples is omitted.

use prometheus_client::registry::Registry;

/// Renders the metrics as OpenMetrics text, version 1.0.0.
pub(super) fn openmetrics(registry: &Registry) -> String {
    let mut encoded = String::new();
    // Cannot fail: a String accepts every write.
    let _ = prometheus_client::encoding::text::encode(&mut encoded, registry);
    let mut text = String::with_capacity(encoded.len());
    for line in encoded.lines() {
        // Removes the full stop that the registry appends to every help text.
        let is_help = line.starts_with("# HELP ");
        let bare = line.strip_suffix('.').filter(|_| is_help);
        text.extend([bare.unwrap_or(line), "\n"]);
    }
    text
}

/// Converts OpenMetrics to version 0.0.4 of Prometheus' text format.
pub(super) fn classic(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut help = "";
    let mut header = None;
    let mut is_histogram = false;
    for line in openmetrics.lines() {
        if let Some(named) = line.strip_prefix("# HELP ") {
            help = named.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').unwrap_or((typed, "untyped"));
            let suffix = if kind == "counter" { "_total" } else { "" };
            is_histogram = kind == "histogram";
            header = Some(format!(
                "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n"
            ));
        } else if !line.starts_with('#') {
            text.push_str(&header.take().unwrap_or_default());
            match bound(line).filter(|_| is_histogram) {
                Some((before, bound, after)) => {
                    let bound = bound.strip_suffix(".0").unwrap_or(bound);
                    text.extend([before, bound, after]);
                }
                None => text.push_str(line),
            }
            text.push('\n');
        }
    }
    text
}

/// Returns the upper bound in a bucket's sample line, with the text before and after it. Returns
/// `None` for any other line.
fn bound(line: &str) -> Option<(&str, &str, &str)> {
    const LABEL: &str = "le=\"";
    let start = line.find("_bucket{")?;
    let start = start + line.get(start..)?.find(LABEL)? + LABEL.len();
    let end = start + line.get(start..)?.find('"')?;
    Some((line.get(..start)?, line.get(start..end)?, line.get(end..)?))
}
