//! Reads kernel state of this network namespace: nf_tables tables with `nft`, and properties of
//! IPVS that `ipvsadm` does not print.

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipvs_netlink::{Destination, DestinationEntry, Flags, Ipvs, ServiceEntry};
use lab::Running;
use netlink_batch::{Batch, Reply};

use crate::scratch::{Scratch, output};
use crate::table::{Dumps, Table};

/// Version of `nft` that wrote upstream's dumps. Another version loads them as a slightly different
/// kernel state.
const REFERENCE: &str = "nftables v1.0.6 ";
/// Tables of `iptables-nft`, which `nft` dumps omit, because `iptables-save` dumps contain them.
const OF_IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
/// Temporary table that the test adds and deletes to get an event from `nft monitor`.
const MARK: &str = "golden-mark";
/// Temporary table by which the daemon tests the kernel's features.
const PROBE: &str = " kube-proxy-probe";
/// Time limit for `nft monitor` to print an event.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// Tables of the shim of IPVS mode, and of userspace mode's redirects.
const SHIMS: [&str; 2] = ["kube-proxy-ipvs", "kube-proxy-userspace"];

/// Returns family and name of every nf_tables table, such as `ip kube-proxy`.
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

/// Dumps the nf_tables tables of IPVS mode and userspace mode. Returns an empty dump without such
/// tables, or without nf_tables.
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

/// Returns the flags of all virtual servers, and the connection limit of each destination that has
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

/// Sets flags of virtual servers and limits of destinations, both of which must exist, from a
/// `dump` in the format of [`details`].
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

/// Dumps the tables of nftables mode, and all other nf_tables tables except those of
/// `iptables-nft`.
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

/// Returns a dump of nf_tables tables as the installed version of `nft` lists them. Loads the dump
/// in a temporary network namespace.
pub(crate) fn relisted(scratch: &Scratch, table: Table, file: &str) -> Result<String> {
    if file.is_empty() || !matches!(table, Table::NftIp | Table::NftIp6 | Table::NftShim) {
        return Ok(file.to_owned());
    }
    // Finds the tables' names in lines such as `table ip kube-proxy {`.
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

/// Returns true if the installed `nft` has the version that wrote upstream's dumps.
pub(crate) fn is_reference() -> Result<bool> {
    Ok(output(Command::new("nft").arg("--version"))?.starts_with(REFERENCE))
}

/// A running `nft monitor`, which prints all nf_tables transactions.
#[derive(Debug)]
pub(crate) struct Monitor(Running);

impl Monitor {
    /// Starts `nft monitor`, and waits until it prints events.
    pub(crate) fn start() -> Result<Self> {
        let mut command = Command::new("nft");
        command.arg("monitor");
        let mut monitor = Self(Running::start(command)?);
        let deadline = Instant::now() + TOLD_WITHIN;
        loop {
            mark()?;
            // The deletion of the temporary table is its last event.
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

    /// Returns the changes of nf_tables since the start, one per line, with the program that made
    /// them. Omits the test's and the daemon's temporary tables.
    pub(crate) fn heard(&mut self) -> Result<Vec<String>> {
        mark()?;
        let mut heard = Vec::new();
        // Lines of the current transaction, whose last line has the new generation.
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
