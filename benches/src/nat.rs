//! Reads the nat tables of iptables. A cheap request returns only the table's length. A full read
//! returns the bytes of the IPv4 table, which [`crate::rules`] parses.

use std::io;

use anyhow::{Context as _, Result, bail};
use iptables::{LegacyTable, LegacyTables};
use proxy::IpFamily;

/// Maximum number of attempts to read a table. The measured kube-proxy may replace the table during
/// a read.
const READINGS: u32 = 100;

/// Length of a table. Two different tables may have the same length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Length {
    /// Number of rules, including the final rule of each chain.
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

/// Sockets to the nat tables, in the network namespace of the thread that opened them.
#[derive(Debug)]
pub(crate) struct Nat {
    v4: LegacyTables,
    v6: LegacyTables,
}

impl Nat {
    /// Opens one socket per IP family. Also makes this process's allocator keep freed memory.
    pub(crate) fn open() -> io::Result<Self> {
        keep_memory();
        Ok(Self {
            v4: LegacyTables::open(IpFamily::V4)?,
            v6: LegacyTables::open(IpFamily::V6)?,
        })
    }

    /// Returns false if IPv4 has rules and IPv6 has none.
    pub(crate) fn is_in_both(&self) -> Result<bool> {
        let has_rules = |tables| {
            Ok::<_, anyhow::Error>(table(tables)?.is_some_and(|table| !table.is_untouched()))
        };
        Ok(!has_rules(&self.v4)? || has_rules(&self.v6)?)
    }

    /// Returns the length of the IPv4 table. The length is zero if the table does not exist.
    pub(crate) fn length(&self) -> Result<Length> {
        Ok(table(&self.v4)?.map_or_else(Length::default, |table| Length::of(&table)))
    }

    /// Returns the bytes of the IPv4 table, and its length. Returns empty values if the table does
    /// not exist.
    pub(crate) fn read(&self) -> Result<(Vec<u8>, Length)> {
        for _ in 0..READINGS {
            let Some(table) = table(&self.v4)? else {
                return Ok(Default::default());
            };
            match self.v4.content(&table) {
                Ok(content) => return Ok((content, Length::of(&table))),
                // The kube-proxy replaced the table after the kernel had returned its size.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINVAL)) => {
                }
                Err(error) => return Err(error).context("cannot read the nat table"),
            }
        }
        bail!("the nat table has another size each time that it is read")
    }
}

/// Makes the allocator keep freed memory. The table of 50,000 Services has 140 MB, and the
/// benchmark reads it repeatedly while a kube-proxy works. In User Mode Linux, fresh pages would
/// take ten times as long as the read itself.
#[allow(unsafe_code, reason = "no crate offers glibc's settings")]
fn keep_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: both settings are allowed at any time. They only control when the allocator returns
    // memory to the kernel.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

/// Returns the nat table of an IP family, or `None` if the table does not exist.
fn table(tables: &LegacyTables) -> Result<Option<LegacyTable>> {
    match tables.table("nat") {
        Ok(table) => Ok(Some(table)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOPROTOOPT) => Ok(None),
            _ => Err(error).context("cannot read the length of the nat table"),
        },
    }
}
