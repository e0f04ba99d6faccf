//! Row of the table in docs/faults.md: the result of one fault in one mode.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::load::Account;

/// Result of one fault in one mode.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Name of the fault.
    pub(crate) fault: String,
    pub(crate) mode: String,
    /// Description of kube-proxy's reaction to the fault.
    pub(crate) did: String,
    /// Evidence of kube-proxy's reaction: counters and log lines.
    pub(crate) seen: String,
    /// Time in seconds until the daemon had repaired the kernel state. `None` if the fault damaged
    /// none.
    pub(crate) repaired: Option<f64>,
    /// Number of requests, each on a new connection.
    pub(crate) sent: u64,
    /// Number of requests on new connections that failed.
    pub(crate) failed: u64,
    /// Number of requests that timed out while the host gave the VM no CPU time, so that they prove
    /// nothing.
    #[serde(default)]
    pub(crate) unjudged: u64,
    /// Number of persistent connections that were open during the fault.
    pub(crate) open: u64,
    /// Number of these persistent connections that were lost.
    pub(crate) lost: u64,
    /// Description of the broken promise, or `None` if the daemon kept it.
    pub(crate) broken: Option<String>,
    /// Duration of this fault's test, including its setup, in seconds.
    pub(crate) took: f64,
}

impl Row {
    /// Copies the traffic's counts of requests and connections into the row.
    pub(crate) fn count(&mut self, account: &Account) {
        self.sent = account.new.requests;
        self.failed = account.new.failed;
        self.unjudged = account.new.unjudged;
        self.open = account.open.clients;
        self.lost = account.open.failed;
    }

    fn repaired(&self) -> String {
        self.repaired
            .map_or_else(|| "–".into(), |seconds| format!("{seconds:.1} s"))
    }
}

const HEAD: &str = "| fault | mode | what kube-proxy did | what was seen | until repaired | requests | failed | open connections lost |\n\
                    |---|---|---|---|---|---|---|---|\n";

/// Returns `rows` as a Markdown table.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = HEAD.to_owned();
    for row in rows {
        let _ = writeln!(text, "{}", line(row));
    }
    text
}

/// Returns a row as one line of the Markdown table.
pub(crate) fn line(row: &Row) -> String {
    let Row {
        fault,
        mode,
        did,
        seen,
        sent,
        failed,
        open,
        lost,
        ..
    } = row;
    let did = match &row.broken {
        Some(why) => format!(
            "**NOT AS PROMISED**: {}",
            why.lines().next().unwrap_or_default()
        ),
        None => did.clone(),
    };
    let unjudged = match row.unjudged {
        0 => String::new(),
        count => format!(" ({count} not judged)"),
    };
    format!(
        "| {fault} | {mode} | {did} | {seen} | {} | {sent}{unjudged} | {failed} | {lost} of {open} |",
        row.repaired()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_row_marks_a_broken_promise() {
        let row = Row {
            fault: "restart".into(),
            mode: "ipvs".into(),
            did: "wrote nothing".into(),
            sent: 700,
            open: 6,
            ..Row::default()
        };
        assert_eq!(
            line(&row),
            "| restart | ipvs | wrote nothing |  | – | 700 | 0 | 0 of 6 |"
        );
        let broken = Row {
            broken: Some("3 failed\nby ways".into()),
            repaired: Some(1.26),
            ..row
        };
        let text = table(&[broken]);
        assert!(text.contains("**NOT AS PROMISED**: 3 failed |"), "{text}");
        assert!(text.contains("| 1.3 s |"), "{text}");
        let columns: Vec<usize> = text.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(columns, [9; 3]);
    }
}
