//! The nf_tables state of this network namespace, read by the `nft` program.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::Running;

use crate::scratch::{Scratch, output};
use crate::table::{Dumps, Table};

/// The `nft` version that wrote upstream's dumps. Only this version encodes the dumps into exactly
/// the state that upstream left.
const REFERENCE: &str = "nftables v1.0.6 ";
/// Tables of the iptables programs. Separate dumps contain their content.
const OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// A temporary table. Its events show that the monitor is running.
const MARK: &str = "golden-mark";
/// A temporary table with which the daemon tests the kernel's features.
const PROBE: &str = " kube-proxy-probe";
/// Timeout for the monitor to report an event.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// Dumps the tables of nftables mode and all other tables.
pub(crate) fn dumps() -> Result<Dumps> {
    let mut dumps = Dumps::from(Table::NFT.map(|table| (table, String::new())));
    let tables = output(Command::new("nft").args(["list", "tables"]))?;
    // A line looks like `table ip kube-proxy`.
    for line in tables.lines() {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let table = match *words {
            ["ip", "kube-proxy"] => Table::NftIp,
            ["ip6", "kube-proxy"] => Table::NftIp6,
            ["ip" | "ip6", name] if OF_IPTABLES.contains(&name) => continue,
            _ => Table::NftOthers,
        };
        let listing = output(
            Command::new("nft")
                .args(["-s", "list", "table"])
                .args(&words),
        )?;
        dumps.entry(table).or_default().push_str(&listing);
    }
    Ok(dumps)
}

/// Returns a file's rules as this `nft` lists them, because versions print the same kernel state
/// differently.
pub(crate) fn relisted(scratch: &Scratch, table: Table, file: &str) -> Result<String> {
    let family = match table {
        Table::NftIp => "ip",
        Table::NftIp6 => "ip6",
        _ => return Ok(file.to_owned()),
    };
    let script = format!("nft -f - && nft -s list table {family} kube-proxy");
    let file = scratch.file(file)?;
    output(
        Command::new("unshare")
            .args(["--net", "sh", "-c", &script])
            .stdin(file),
    )
    .with_context(|| format!("{} does not load", table.file()))
}

/// Returns true if this `nft` encodes rules like upstream's version.
pub(crate) fn is_reference() -> Result<bool> {
    Ok(output(Command::new("nft").arg("--version"))?.starts_with(REFERENCE))
}

/// A monitor of all nf_tables transactions.
#[derive(Debug)]
pub(crate) struct Monitor(Running);

impl Monitor {
    /// Starts the monitor. Returns when it receives events.
    pub(crate) fn start() -> Result<Self> {
        let mut command = Command::new("nft");
        command.arg("monitor");
        let mut monitor = Self(Running::start(command)?);
        let deadline = Instant::now() + TOLD_WITHIN;
        loop {
            mark()?;
            // The last event of the temporary table is its removal.
            let told = monitor
                .0
                .wait_for(&format!("delete table inet {MARK}"), TOLD_WITHIN / 50);
            if told.is_ok() {
                return Ok(monitor);
            }
            ensure!(
                Instant::now() < deadline,
                "`nft monitor` hears nothing: {}",
                monitor.0.said()
            );
        }
    }

    /// Returns the writes since the start of the monitor with their writers, one per line.
    pub(crate) fn heard(&mut self) -> Result<Vec<String>> {
        mark()?;
        let mut heard = Vec::new();
        // Lines of one transaction. The line of its generation ends it.
        let mut transaction = Vec::new();
        loop {
            let line = self
                .0
                .next_line(TOLD_WITHIN)?
                .context("`nft monitor` has ended")?;
            let is_last = line == format!("delete table inet {MARK}");
            let is_generation = line.starts_with("# new generation ");
            transaction.push(line);
            if is_generation {
                let is_others = |line: &String| {
                    line.starts_with('#') || [MARK, PROBE].iter().any(|name| line.contains(name))
                };
                if !transaction.iter().all(is_others) {
                    heard.append(&mut transaction);
                }
                transaction.clear();
            }
            if is_last {
                return Ok(heard);
            }
        }
    }
}

fn mark() -> Result<()> {
    for verb in ["add", "delete"] {
        output(Command::new("nft").args([verb, "table", "inet", MARK]))?;
    }
    Ok(())
}
