//! Writes docs/faults.md, the page with the results of all faults.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::faults::ALL;
use crate::mode::IPVS_NFTABLES;
use crate::row::Row;

/// Results of the faults on one kernel of the lab (a lane: host, A or B), as saved in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct KernelRows {
    pub(crate) lane: String,
    pub(crate) kernel: String,
    pub(crate) rows: Vec<Row>,
}

const HEAD: &str = "\
For operators who ask what a fault on a node costs. `make faults RELEASE=1 BEFORE=COMMIT` ([integration/faults](../integration/faults)) \
writes this page.

Each fault hits a lab node under traffic. Clients open TCP connections, at most 40 per second on each of five paths:

* from a pod to a ClusterIP, over IPv4 and over IPv6,
* from outside to a node port and to a load-balancer address,
* from the node itself.

Six further connections stay open, each with ten requests per second.

| column | meaning |
|---|---|
| modes | `ipvs-nftables` is IPVS mode with `--ipvs-shim=nftables`. Modes without a loss share a row |
| time until repaired | longest time from the fault, or from the end of a lasting fault, until the kernel's state is correct. If the fault damaged no entry: duration of the next start or change. The sync period is 30 s |
| failed/sent requests | requests without a reply within 0.9 s (before TCP repeats a lost SYN), and all sent requests. *Not judged*: requests that timed out while the virtual machine paused for over 0.15 s |
| lost/open connections | connections that were reset, or silent for 20 s, and all connections that were open at the fault |

kube-proxy promises that a fault costs no request and no open connection, unless it removes the kernel entries or API objects that serve \
them. Then traffic must work again within a time limit. `make faults` fails if a run breaks this promise.

The lab has two kernels: lane A is Debian's User Mode Linux, with legacy iptables; lane B is this project's own build, with nf_tables.
";

/// Returns the page's heading, and a paragraph that sums up all results.
fn summary(parts: &[KernelRows]) -> String {
    let rows = || parts.iter().flat_map(|part| &part.rows);
    let faults: BTreeSet<_> = rows().map(|row| &*row.fault).collect();
    let costly: BTreeSet<_> = rows()
        .filter(|row| !is_free(row))
        .map(|row| &*row.fault)
        .collect();
    let costly: Vec<_> = ALL
        .iter()
        .map(|fault| fault.name)
        .filter(|name| costly.contains(name))
        .collect();
    let broken = rows().filter(|row| row.broken.is_some()).count();
    format!(
        "# Faults, and what they cost\n\n**This page has the results of {} faults, in {} runs (one per fault, mode and kernel). {} faults cost no request and no \
         connection; in {broken} runs, kube-proxy broke a promise.** Only these faults cost requests or connections: {}.\n\n",
        faults.len(),
        rows().count(),
        faults.len() - costly.len(),
        costly.join(", ")
    )
}

/// Returns true if no request failed, no connection was lost and no promise was broken.
fn is_free(row: &Row) -> bool {
    row.failed == 0 && row.lost == 0 && row.broken.is_none()
}

/// Returns the name of a mode for a table cell.
fn short_name(mode: &str) -> &str {
    if mode == IPVS_NFTABLES.name {
        "ipvs-nftables"
    } else {
        mode
    }
}

/// Returns a Markdown table of faults and modes. Modes in which a fault caused no loss share one
/// line.
fn table(rows: &[Row]) -> String {
    let mut text = "| fault | modes | time until repaired | failed/sent requests | lost/open connections |\n|---|---|--:|--:|--:|\n".to_owned();
    for group in
        rows.chunk_by(|one, other| one.fault == other.fault && is_free(one) && is_free(other))
    {
        let [first, ..] = group else { continue };
        let modes: Vec<&str> = group.iter().map(|row| short_name(&row.mode)).collect();
        let sum = |of: fn(&Row) -> u64| group.iter().map(of).sum::<u64>();
        let repaired = group.iter().filter_map(|row| row.repaired).reduce(f64::max);
        let repaired = repaired.map_or_else(|| "not measured".into(), duration);
        let unjudged = match sum(|row| row.unjudged) {
            0 => String::new(),
            count => format!(" ({count} not judged)"),
        };
        let broken = first.broken.as_deref().and_then(|why| why.lines().next());
        let broken = broken.map_or_else(String::new, |why| format!(" **NOT AS PROMISED**: {why}"));
        let _ = writeln!(
            text,
            "| {}{broken} | {} | {repaired} | {}/{}{unjudged} | {}/{} |",
            first.fault,
            modes.join("; "),
            sum(|row| row.failed),
            sum(|row| row.sent),
            sum(|row| row.lost),
            sum(|row| row.open)
        );
    }
    text
}

/// Formats a duration in seconds with one decimal, such as `2.5 s` or `under 0.1 s`.
fn duration(seconds: f64) -> String {
    let text = format!("{seconds:.1} s");
    if text == "0.0 s" {
        "under 0.1 s".to_owned()
    } else {
        text
    }
}

/// Saves the results for one kernel in `folder`. Keeps the saved results of faults and modes that
/// this run did not include.
pub(crate) fn keep(folder: &Path, part: &KernelRows) -> Result<()> {
    let file = folder.join(format!("{}.json", part.lane.replace(' ', "-")));
    let mut kept: KernelRows = match fs::read_to_string(&file) {
        Ok(text) => serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?,
        Err(_) => KernelRows::default(),
    };
    let is_of = |one: &Row, other: &Row| one.fault == other.fault && one.mode == other.mode;
    kept.rows
        .retain(|old| !part.rows.iter().any(|new| is_of(old, new)));
    kept.rows.extend(part.rows.iter().cloned());
    let place = |row: &Row| ALL.iter().position(|fault| fault.name == row.fault);
    kept.rows.retain(|row| place(row).is_some());
    // A stable sort: if one run included all modes of a fault, they keep their order.
    kept.rows.sort_by_key(place);
    kept.lane.clone_from(&part.lane);
    kept.kernel.clone_from(&part.kernel);
    Ok(fs::write(&file, serde_json::to_string_pretty(&kept)?)?)
}

/// Reads the saved results for all kernels from `folder`.
pub(crate) fn kept(folder: &Path) -> Result<Vec<KernelRows>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let text = fs::read_to_string(entry?.path())?;
        parts.push(serde_json::from_str::<KernelRows>(&text).context("what is kept")?);
    }
    parts.sort_by(|one, other| one.lane.cmp(&other.lane));
    Ok(parts)
}

/// Returns the text of docs/faults.md.
pub(crate) fn page(parts: &[KernelRows]) -> String {
    let mut text = summary(parts) + HEAD;
    for part in parts {
        let _ = write!(
            text,
            "\n## Linux {} ({})\n\n{}",
            part.kernel,
            part.lane,
            table(&part.rows)
        );
        let rows = part.rows.iter();
        let run: BTreeSet<_> = rows.map(|row| (&*row.fault, &*row.mode)).collect();
        // Modes in which at least one fault ran on this kernel.
        let modes_there: BTreeSet<_> = run.iter().map(|(_, mode)| *mode).collect();
        let missing = ALL.iter().filter_map(|fault| {
            let modes = fault.modes.iter().map(|mode| mode.name);
            let modes = modes.filter(|mode| modes_there.contains(mode));
            let modes = modes.filter(|mode| !run.contains(&(fault.name, *mode)));
            let modes: Vec<&str> = modes.map(short_name).collect();
            (!modes.is_empty()).then(|| format!("{} ({})", fault.name, modes.join(", ")))
        });
        let missing: Vec<String> = missing.collect();
        if !missing.is_empty() {
            let missing = missing.join("\n* ");
            let _ = writeln!(
                text,
                "\nThese faults were not run on this kernel:\n\n* {missing}"
            );
        }
    }
    text += "\n## Each fault, and kube-proxy's reaction\n\nkube-proxy repairs other programs' changes within the sync period, unless a row names a shorter time. In the last \
             column, parentheses contain log lines, and numbers of entries that another program changed (*drift*).\n\n\
             | fault | what happens, and requirements | what kube-proxy did |\n|---|---|---|\n";
    for fault in ALL {
        let _ = write!(text, "| **{}** | {} | ", fault.name, fault.about);
        let mut rows = parts.iter().flat_map(|part| &part.rows);
        if let Some(row) = rows.find(|row| row.fault == fault.name && row.broken.is_none()) {
            text += &row.did;
            if !row.seen.is_empty() {
                let _ = write!(text, " ({})", row.seen);
            }
        }
        text += " |\n";
    }
    lab::pages::wrapped(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faults_page_describes_each_fault() {
        let row = Row {
            fault: "restart".into(),
            mode: "ipvs".into(),
            ..Row::default()
        };
        let part = KernelRows {
            lane: "lane A".into(),
            kernel: "6.1".into(),
            rows: vec![row],
        };
        let page = page(&[part]);
        assert!(page.contains("## Linux 6.1 (lane A)"));
        assert!(page.contains(
            "These faults were not run on this kernel:\n\n* upgrade and back (ipvs)\n* "
        ));
        assert!(!page.contains("(nftables)"), "that kernel may not have it");
        for fault in ALL {
            assert!(page.contains(&format!("| **{}** | ", fault.name)));
        }
        assert!(
            page.lines()
                .all(|line| line.starts_with('|') || line.chars().count() <= 100)
        );
    }

    #[test]
    fn modes_without_failures_share_a_row_of_the_faults_page() {
        let row = |mode: &str, failed, seconds| Row {
            fault: "restart".into(),
            mode: mode.into(),
            sent: 10,
            failed,
            repaired: Some(seconds),
            open: 6,
            ..Row::default()
        };
        let text = table(&[
            row("ipvs", 0, 1.0),
            row("iptables", 0, 2.0),
            row("nftables", 3, 1.0),
        ]);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| restart | ipvs; iptables | 2.0 s | 0/20 | 0/12 |",
                "| restart | nftables | 1.0 s | 3/10 | 0/6 |"
            ]
        );
    }
}
