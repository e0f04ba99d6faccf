//! docs/faults.md.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::faults::ALL;
use crate::row::{Row, table};

/// The rows of a kernel.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) lane: String,
    pub(crate) kernel: String,
    pub(crate) rows: Vec<Row>,
}

const HEAD: &str = "\
# Faults, and what they cost

This page is made by `make faults RELEASE=1 BEFORE=COMMIT` ([integration/faults](../integration/faults)), which keeps its rows: those of a fault that is run again by
`FAULT=name` take the place of older ones. Each row is one fault on a node of the lab while traffic runs: new TCP connections by five ways, each at most
40 a second (from a pod to a ClusterIP of each family, from outside to a node port and to a load balancer's address, from the node itself), and six
connections that are held open and asked ten times a second.

*Failed*: not answered within 0.9 s, which is before TCP sends a lost packet again. *Not judged*: the same, while the whole guest stood still for longer than
0.15 s, as its machine gave it no time. *Lost*: an open connection that was reset, or not answered within 20 s. *Until repaired* is counted from the fault, or
from its end where it lasts, until all is as it is to be; the sync period is the default, 30 s. Where nothing of ours was wrong it is how long the next
change, or the start, took.

Every row has a promise, and the command fails where one is not kept: no request fails and no open connection ends, unless somebody else has taken away
what carries them. Then it is how soon all is whole again; what failed until then is counted.
";

/// Keeps the rows of a lane, beside those of faults and modes that were not run now.
pub(crate) fn keep(folder: &Path, part: &Part) -> Result<()> {
    let file = folder.join(format!("{}.json", part.lane.replace(' ', "-")));
    let mut kept: Part = match fs::read_to_string(&file) {
        Ok(text) => serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?,
        Err(_) => Part::default(),
    };
    let is_of = |one: &Row, other: &Row| one.fault == other.fault && one.mode == other.mode;
    kept.rows
        .retain(|old| !part.rows.iter().any(|new| is_of(old, new)));
    kept.rows.extend(part.rows.iter().cloned());
    let place = |row: &Row| ALL.iter().position(|fault| fault.name == row.fault);
    kept.rows.retain(|row| place(row).is_some());
    // Stable: the modes of a fault stay in their order, unless they were run one by one.
    kept.rows.sort_by_key(place);
    kept.lane.clone_from(&part.lane);
    kept.kernel.clone_from(&part.kernel);
    Ok(fs::write(&file, serde_json::to_string_pretty(&kept)?)?)
}

/// Reads the results of all lanes that are kept.
pub(crate) fn kept(folder: &Path) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let text = fs::read_to_string(entry?.path())?;
        parts.push(serde_json::from_str::<Part>(&text).context("what is kept")?);
    }
    parts.sort_by(|one, other| one.lane.cmp(&other.lane));
    Ok(parts)
}

/// The page.
pub(crate) fn page(parts: &[Part]) -> String {
    let mut text = HEAD.to_owned();
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
        // Of the modes that this kernel has.
        let modes_there: BTreeSet<_> = run.iter().map(|(_, mode)| *mode).collect();
        let missing = ALL.iter().flat_map(|fault| {
            let modes = fault.modes.iter().map(|mode| mode.name);
            let modes = modes.filter(|mode| modes_there.contains(mode));
            let modes = modes.filter(|mode| !run.contains(&(fault.name, *mode)));
            modes.map(|mode| format!("{} ({mode})", fault.name))
        });
        let missing: Vec<String> = missing.collect();
        if !missing.is_empty() {
            let _ = writeln!(text, "\nNot run there: {}.", missing.join(", "));
        }
    }
    text += "\n## What each fault is\n\n";
    for fault in ALL {
        let _ = writeln!(text, "* **{}**: {}", fault.name, fault.about);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_what_each_fault_is() {
        let row = Row {
            fault: "restart".into(),
            mode: "ipvs".into(),
            ..Row::default()
        };
        let part = Part {
            lane: "lane A".into(),
            kernel: "6.1".into(),
            rows: vec![row],
        };
        let page = page(&[part]);
        assert!(page.contains("## Linux 6.1 (lane A)"));
        assert!(page.contains("Not run there: upgrade and back (ipvs), "));
        assert!(!page.contains("(nftables)"), "that kernel may not have it");
        for fault in ALL {
            assert!(page.contains(&format!("* **{}**: ", fault.name)));
        }
    }
}
