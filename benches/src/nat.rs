//! Reads the nat tables of legacy iptables from the kernel. A cheap query returns only a table's
//! length. A full read returns the IPv4 table's bytes, which [`crate::rules`] parses.

use std::io;

use anyhow::{Context as _, Result, bail};
use iptables::{LegacyTable, LegacyTables};
use proxy::IpFamily;

/// Maximum number of attempts to read a table, which the measured kube-proxy may replace during
/// each attempt.
const READINGS: u32 = 100;

/// Length of a nat table. Equal lengths do not prove that the content is equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Length {
    /// Number of rules in the table, including the final rule of each chain.
    pub(crate) rules: u64,
    bytes: usize,
}

impl Length {
    fn of(table: &LegacyTable) -> Self {
        Self {
            rules: table.entries.into(),
            bytes: table.size,
        }
    }
}

/// Sockets for the nat tables of both IP families, in the network namespace of the thread that
/// opened them.
#[derive(Debug)]
pub(crate) struct Nat {
    v4: LegacyTables,
    v6: LegacyTables,
}

impl Nat {
    /// Opens a socket for each IP family. Also makes this process's allocator keep freed memory
    /// ([`keep_memory`]).
    pub(crate) fn open() -> io::Result<Self> {
        keep_memory();
        Ok(Self {
            v4: LegacyTables::open(IpFamily::V4)?,
            v6: LegacyTables::open(IpFamily::V6)?,
        })
    }

    /// Returns false if only the IPv4 table has rules, so that the IPv6 rules are still missing.
    pub(crate) fn is_in_both(&self) -> Result<bool> {
        let has_rules = |tables| {
            Ok::<_, anyhow::Error>(table(tables)?.is_some_and(|table| !table.is_untouched()))
        };
        Ok(!has_rules(&self.v4)? || has_rules(&self.v6)?)
    }

    /// Returns the length of the IPv4 nat table, or zero if the table does not exist.
    pub(crate) fn length(&self) -> Result<Length> {
        Ok(table(&self.v4)?.map_or_else(Length::default, |table| Length::of(&table)))
    }

    /// Reads the IPv4 nat table. Returns its bytes and its length, both empty if the table does not
    /// exist.
    pub(crate) fn read(&self) -> Result<(Vec<u8>, Length)> {
        for _ in 0..READINGS {
            let Some(table) = table(&self.v4)? else {
                return Ok(Default::default());
            };
            match self.v4.content(&table) {
                Ok(content) => return Ok((content, Length::of(&table))),
                // The kube-proxy has replaced the table after the query of its size, so the read
                // starts again.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINVAL)) => {
                }
                Err(error) => return Err(error).context("cannot read the nat table"),
            }
        }
        bail!("the nat table has another size each time that it is read")
    }
}

/// Makes glibc's allocator keep freed memory for later reads of the table, which has 140 MB with
/// 50,000 Services. Without this, each read would need new pages, which in User Mode Linux takes
/// ten times as long as the read itself.
#[allow(unsafe_code, reason = "no crate offers glibc's settings")]
fn keep_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: both options may be set at any time. They only control whether the allocator returns
    // memory to the kernel.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

/// Queries the nat table of an IP family. Returns `None` if the table does not exist.
fn table(tables: &LegacyTables) -> Result<Option<LegacyTable>> {
    match tables.table("nat") {
        Ok(table) => Ok(Some(table)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOPROTOOPT) => Ok(None),
            _ => Err(error).context("cannot read the length of the nat table"),
        },
    }
}
