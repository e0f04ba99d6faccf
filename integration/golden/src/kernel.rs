//! Reads the kernel state of this network namespace: nf_tables with `nft`, and details of IPVS that
//! `ipvsadm` does not print.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipvs_netlink::{Destination, DestinationEntry, Flags, Ipvs, ServiceEntry};
use lab::Running;
use netlink_batch::{Batch, Reply};

use crate::scratch::{Scratch, output};
use crate::table::{Dumps, Table};

/// Version of the `nft` that wrote upstream's dumps. Other versions load the dumps as a slightly
/// different kernel state.
const REFERENCE: &str = "nftables v1.0.6 ";
/// Names of the tables that `iptables-nft` uses. The dumps of `iptables-save` contain these tables,
/// so the dumps of `nft` omit them.
const OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// Name of a temporary nftables table. Events about this table show that `nft monitor` works.
const MARK: &str = "golden-mark";
/// Name of the temporary table with which the daemon tests the kernel's features.
const PROBE: &str = " kube-proxy-probe";
/// Timeout for `nft monitor` to print an event.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// Names of two tables: the shim of IPVS mode, and the redirects of userspace mode.
const SHIMS: [&str; 2] = ["kube-proxy-ipvs", "kube-proxy-userspace"];

/// Returns the family and name of every table, such as `ip kube-proxy`.
fn tables() -> Result<Vec<String>> {
    let tables = output(Command::new("nft").args(["list", "tables"]))?;
    let names = tables
        .lines()
        .filter_map(|line| line.strip_prefix("table "));
    Ok(names.map(str::to_owned).collect())
}

fn listing(table: &str) -> Result<String> {
    let words = ["-s", "list", "table"].into_iter().chain(table.split(' '));
    output(Command::new("nft").args(words))
}

/// Dumps the nftables tables of IPVS mode and userspace mode. Returns an empty dump if the kernel
/// has no nf_tables.
pub(crate) fn shims() -> Result<String> {
    let mut dump = String::new();
    for table in tables().unwrap_or_default() {
        if SHIMS
            .iter()
            .any(|name| table.ends_with(&format!(" {name}")))
        {
            dump.push_str(&listing(&table)?);
        }
    }
    Ok(dump)
}

/// Returns the flags of all virtual servers, and the connection limits of destinations that have
/// one:
///
/// ```text
/// TCP 10.96.0.1:443 flags 0x40000002
/// TCP 10.96.0.1:443 to 192.0.2.1:6443 limit 100
/// ```
pub(crate) fn details() -> Result<String> {
    let mut ipvs = Ipvs::open()?;
    let mut dump = String::new();
    for entry in ipvs.services()? {
        let (key, flags) = (entry.service.key, entry.service.flags.bits());
        let _ = writeln!(dump, "{key} flags {flags:#x}");
        for entry in ipvs.destinations(&key)? {
            let Destination {
                key: to,
                upper_threshold: limit,
                ..
            } = entry.destination;
            if limit != 0 {
                let _ = writeln!(dump, "{key} to {to} limit {limit}");
            }
        }
    }
    Ok(dump)
}

/// Sets the flags and limits of existing virtual servers from a `dump` in the format of
/// [`details`].
pub(crate) fn set_details(dump: &str) -> Result<()> {
    if dump.is_empty() {
        return Ok(());
    }
    let mut ipvs = Ipvs::open()?;
    let (family, mut batch) = (ipvs.family(), Batch::new());
    for ServiceEntry { mut service, .. } in ipvs.services()? {
        let key = service.key;
        let own = format!("{key} ");
        let details: Vec<&str> = dump
            .lines()
            .filter_map(|line| line.strip_prefix(&own))
            .collect();
        let flags = details
            .iter()
            .find_map(|detail| detail.strip_prefix("flags 0x"));
        let flags = flags.with_context(|| format!("ipvs-details has no flags of {key}"))?;
        service.flags = Flags::from_bits_retain(u32::from_str_radix(flags, 16)?);
        family.set_service(&mut batch, &service);
        for DestinationEntry {
            mut destination, ..
        } in ipvs.destinations(&key)?
        {
            let limit = format!("to {} limit ", destination.key);
            if let Some(limit) = details.iter().find_map(|one| one.strip_prefix(&limit)) {
                destination.upper_threshold = limit.parse()?;
                family.set_destination(&mut batch, &key, &destination);
            }
        }
    }
    let replies = ipvs.execute(&batch)?;
    let refused = replies.iter().find(|reply| **reply != Reply::Done);
    ensure!(refused.is_none(), "ipvs-details: {refused:?}");
    Ok(())
}

/// Dumps the tables of nftables mode, and all other tables except those of iptables.
pub(crate) fn dumps() -> Result<Dumps> {
    let mut dumps = Dumps::from(Table::NFT.map(|table| (table, String::new())));
    for name in tables()? {
        let table = match name.split_once(' ') {
            Some(("ip", "kube-proxy")) => Table::NftIp,
            Some(("ip6", "kube-proxy")) => Table::NftIp6,
            Some(("ip" | "ip6", name)) if OF_IPTABLES.contains(&name) => continue,
            _ => Table::NftOthers,
        };
        dumps.entry(table).or_default().push_str(&listing(&name)?);
    }
    Ok(dumps)
}

/// Returns the rules of a dump as this `nft` lists them, because versions of `nft` print the same
/// kernel state differently.
pub(crate) fn relisted(scratch: &Scratch, table: Table, file: &str) -> Result<String> {
    if file.is_empty() || !matches!(table, Table::NftIp | Table::NftIp6 | Table::NftShim) {
        return Ok(file.to_owned());
    }
    // Finds the names of the tables in lines such as `table ip kube-proxy {`.
    let mut script = "nft -f -".to_owned();
    let names = file.lines().filter_map(|line| line.strip_prefix("table "));
    for name in names.map(|name| name.trim_end_matches([' ', '{'])) {
        script.extend([" && nft -s list table ", name]);
    }
    let file = scratch.file(file)?;
    output(
        Command::new("unshare")
            .args(["--net", "sh", "-c", &script])
            .stdin(file),
    )
    .with_context(|| format!("{} does not load", table.file()))
}

/// Returns true if this `nft` is the version that wrote upstream's dumps.
pub(crate) fn is_reference() -> Result<bool> {
    Ok(output(Command::new("nft").arg("--version"))?.starts_with(REFERENCE))
}

/// A running `nft monitor`, which prints all nf_tables transactions.
#[derive(Debug)]
pub(crate) struct Monitor(Running);

impl Monitor {
    /// Starts the monitor, and waits until it receives events.
    pub(crate) fn start() -> Result<Self> {
        let mut command = Command::new("nft");
        command.arg("monitor");
        let mut monitor = Self(Running::start(command)?);
        let deadline = Instant::now() + TOLD_WITHIN;
        loop {
            mark()?;
            // The last event about the temporary table is its removal.
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

    /// Returns the writes since the start of the monitor, one per line. Each write names the
    /// program that made it.
    pub(crate) fn heard(&mut self) -> Result<Vec<String>> {
        mark()?;
        let mut heard = Vec::new();
        // Lines of the present transaction, which ends with a line that has the new generation.
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
