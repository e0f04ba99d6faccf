//! Queries the kernel about legacy iptables without running a program: which tables exist, whether
//! they have changed, and which tables, matches and targets the kernel supports.
//!
//! This module does not parse rules, because `iptables-save` prints them. A digest shows whether
//! the rules have changed.
//!
//! Source: `linux/netfilter_ipv4/ip_tables.h`, `linux/netfilter_ipv6/ip6_tables.h`,
//! `linux/netfilter/x_tables.h`.

use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use inet::IpFamily;
use rustix::net::{AddressFamily, SocketType, ipproto, socket};

use crate::backend::exists;
use crate::modules;
use crate::reading::{RuleSupport, TablesState};
use crate::table::Table;

/// Socket option that returns the size of a table: `IPT_SO_GET_INFO`, `IP6T_SO_GET_INFO`.
const GET_INFO: libc::c_int = 64;
/// Socket option that returns the entries of a table: `IPT_SO_GET_ENTRIES`, `IP6T_SO_GET_ENTRIES`.
const GET_ENTRIES: libc::c_int = 65;
/// Length of a table's name in bytes (`XT_TABLE_MAXNAMELEN`).
const NAME: usize = 32;
/// Size in bytes of `struct ipt_getinfo`: name, hooks, 5 entries, 5 underflows, number of entries,
/// size.
const INFO: usize = 84;
/// Size in bytes of `struct ipt_get_entries` before its entries: name, size, and padding to a
/// multiple of 8.
const ENTRIES: usize = 40;
/// Maximum total size in bytes of a family's tables whose changes this crate detects. A digest of
/// larger tables would take long, and `Readings` does not store their text anyway.
const MOST: usize = 1 << 20;
/// Lock file that all programs that write legacy iptables share.
const LOCK: &str = "/run/xtables.lock";
/// Kernel modules that rules of both families need. The first two modules answer queries about
/// tables, and the other four modules contain the tables.
const MODULES: [&str; 6] = [
    "ip_tables",
    "ip6_tables",
    "iptable_nat",
    "ip6table_nat",
    "iptable_filter",
    "ip6table_filter",
];

/// Returns the state of a family's tables, or `None` if the query fails. Loads no module.
pub(crate) fn state(family: IpFamily) -> Option<TablesState> {
    let names = names(family).ok()?;
    if names.is_empty() {
        return Some(TablesState::Empty);
    }
    let tables = LegacyTables::open(family).ok()?;
    let infos = names.iter().map(|name| tables.table(name));
    let infos: Vec<LegacyTable> = infos.collect::<io::Result<_>>().ok()?;
    if infos.iter().all(LegacyTable::is_untouched) {
        return Some(TablesState::Empty);
    }
    if infos.iter().map(|info| info.size).sum::<usize>() > MOST {
        return Some(TablesState::Holds(None));
    }
    let mut hasher = DefaultHasher::new();
    for info in &infos {
        tables.digest(info, &mut hasher).ok()?;
    }
    Some(TablesState::Holds(Some(hasher.finish())))
}

/// Returns the chains of all existing tables, or `None` if they cannot be read. Loads no module.
pub(crate) fn chains(family: IpFamily) -> Option<Vec<(Table, String)>> {
    let names = names(family).ok()?;
    let known: Vec<Table> = names.iter().filter_map(|name| Table::find(name)).collect();
    if known.is_empty() {
        return Some(Vec::new());
    }
    let tables = LegacyTables::open(family).ok()?;
    let mut chains = Vec::new();
    for table in known {
        let info = tables.table(table.name()).ok()?;
        if !info.is_untouched() {
            let made = made_chains(&tables.content(&info).ok()?, family)?;
            chains.extend(made.into_iter().map(|name| (table, name)));
        }
    }
    Some(chains)
}

/// Returns the names of the user-defined chains in a table's entries. The first entry of each chain
/// has the target `ERROR`, which contains the chain's name (`struct xt_error_target`). Returns
/// `None` for malformed entries.
fn made_chains(mut entries: &[u8], family: IpFamily) -> Option<Vec<String>> {
    // Offset of the target and minimum size of an entry, in `struct ipt_entry` and `struct
    // ip6t_entry`.
    let (target, least) = match family {
        IpFamily::V4 => (88, 112),
        IpFamily::V6 => (140, 168),
    };
    let mut names = Vec::new();
    while !entries.is_empty() {
        let short = |at: usize| {
            let bytes = entries.get(at..at + 2)?.try_into().ok()?;
            Some(usize::from(u16::from_ne_bytes(bytes)))
        };
        let (at, length) = (short(target)?, short(target + 2)?.max(least));
        let (entry, rest) = entries.split_at_checked(length)?;
        // `struct xt_entry_target`: size, name, revision.
        if text(entry.get(at + 2..at + 31)?) == "ERROR" {
            names.push(text(entry.get(at + 32..at + 62)?));
        }
        entries = rest;
    }
    // The last `ERROR` entry marks the end of the table. It does not begin a chain.
    names.pop();
    Some(names)
}

/// Passes fuzzed entries to each parser of this file.
pub(crate) fn look(entries: &[u8], family: IpFamily) {
    drop(made_chains(entries, family));
    let _ = digest(entries, family, &mut DefaultHasher::new());
}

fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// Reports whether the kernel lacks the table nat of a family, or a match or target that rules of
/// every mode use.
pub(crate) fn is_absent(family: IpFamily) -> bool {
    ask_for_nat(family).is_err_and(|error| is_unknown(&error))
}

/// Queries the kernel for table nat, and for the match `addrtype` and the target `MARK`, which
/// rules of every mode use.
fn ask_for_nat(family: IpFamily) -> io::Result<()> {
    let tables = LegacyTables::open(family)?;
    tables.table("nat")?;
    tables.has_revisions()
}

/// Reports whether the error means that the kernel lacks the family, the table or the match.
pub(crate) fn is_unknown(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ENOPROTOOPT
                | libc::ENOENT
                | libc::EAFNOSUPPORT
                | libc::EPROTONOSUPPORT
                | libc::EPROTOTYPE
        )
    )
}

/// Returns the names of a family's existing tables, from the file that `iptables-legacy-save` also
/// reads.
fn names(family: IpFamily) -> io::Result<Vec<String>> {
    match fs::read_to_string(names_file(family)) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn names_file(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    }
}

/// Loads the modules that answer queries about tables, because the kernel does not load these
/// modules automatically. Also loads the modules of the tables, and the `needed` modules.
pub(crate) fn load_modules(needed: &[&str]) {
    let is_missing = |family| exists(family).is_ok() && !Path::new(names_file(family)).exists();
    if IpFamily::ALL.into_iter().any(is_missing) {
        modules::load(&MODULES, needed);
    }
}

/// Checks that the kernel has or can load table nat, and a match and a target that rules of every
/// mode use. Also checks that the lock file can be opened.
pub(crate) fn probe(family: IpFamily) -> RuleSupport {
    match ask_for_nat(family).and_then(|()| lock()) {
        Ok(_) => RuleSupport::Works,
        // Only the iptables program can explain this failure.
        Err(_) => RuleSupport::Unknown,
    }
}

/// Opens the lock file without taking the lock.
fn lock() -> io::Result<File> {
    // Creates the file if necessary, as iptables does.
    let mut options = OpenOptions::new();
    options.read(true).create(true).write(true).mode(0o600);
    options.open(LOCK)
}

/// A table of legacy iptables.
#[derive(Debug)]
pub struct LegacyTable {
    name: String,
    hooks: u32,
    /// Number of entries, including the entries that end each chain and the table.
    pub entries: u32,
    /// Size of all entries in bytes.
    pub size: usize,
}

impl LegacyTable {
    /// Reports whether the table contains only the policies of its built-in chains, apart from the
    /// entry that ends the table.
    pub fn is_untouched(&self) -> bool {
        self.entries == self.hooks.count_ones() + 1
    }
}

/// The legacy tables of an IP family, in the network namespace of the thread that opened them.
#[derive(Debug)]
pub struct LegacyTables {
    socket: OwnedFd,
    family: IpFamily,
}

impl LegacyTables {
    /// Opens a raw socket for queries about the tables of an IP family.
    ///
    /// # Errors
    ///
    /// Fails if the system call fails: `EPERM` without `CAP_NET_RAW`.
    pub fn open(family: IpFamily) -> io::Result<Self> {
        let domain = match family {
            IpFamily::V4 => AddressFamily::INET,
            IpFamily::V6 => AddressFamily::INET6,
        };
        let socket = socket(domain, SocketType::RAW, Some(ipproto::RAW))?;
        Ok(Self { socket, family })
    }

    /// Returns a table. If the table does not exist, the kernel tries to create it.
    ///
    /// # Errors
    ///
    /// `ENOPROTOOPT`: the kernel lacks tables of this family; `ENOENT`: it lacks this table;
    /// `EPERM` without `CAP_NET_ADMIN`.
    pub fn table(&self, name: &str) -> io::Result<LegacyTable> {
        let mut answer = named(name, INFO)?;
        self.ask(GET_INFO, &mut answer)?;
        let number = |at| number(&answer, at).ok_or(io::ErrorKind::InvalidData);
        Ok(LegacyTable {
            hooks: number(NAME)?,
            entries: number(INFO - 8)?,
            size: usize::try_from(number(INFO - 4)?).map_err(io::Error::other)?,
            name: name.to_owned(),
        })
    }

    /// Returns all entries of a table as raw bytes (`struct ipt_entry`, `struct ip6t_entry`).
    ///
    /// # Errors
    ///
    /// `EAGAIN`: the table's size has changed.
    pub fn content(&self, table: &LegacyTable) -> io::Result<Vec<u8>> {
        let mut answer = named(&table.name, ENTRIES + table.size)?;
        let size = u32::try_from(table.size).map_err(io::Error::other)?;
        if let Some(place) = answer.get_mut(NAME..NAME + 4) {
            place.copy_from_slice(&size.to_ne_bytes());
        }
        self.ask(GET_ENTRIES, &mut answer)?;
        Ok(answer.split_off(ENTRIES))
    }

    /// Adds a table without its counters to a digest.
    fn digest(&self, table: &LegacyTable, hasher: &mut DefaultHasher) -> io::Result<()> {
        table.name.hash(hasher);
        let digested = digest(&self.content(table)?, self.family, hasher);
        digested.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Checks that the kernel supports `-m addrtype` and `-j MARK --set-xmark`.
    fn has_revisions(&self) -> io::Result<()> {
        self.has_match("addrtype", 1)?;
        self.ask_revision(1, "MARK", 2)
    }

    /// Checks that the kernel has or can load this revision of the match `name`.
    pub(crate) fn has_match(&self, name: &str, revision: u8) -> io::Result<()> {
        self.ask_revision(0, name, revision)
    }

    /// Queries a revision of a match (`kind` 0) or of a target (`kind` 1). The option for matches
    /// is `IPT_SO_GET_REVISION_MATCH` or `IP6T_SO_GET_REVISION_MATCH`. The option for targets has
    /// the next number.
    fn ask_revision(&self, kind: libc::c_int, name: &str, revision: u8) -> io::Result<()> {
        let get_match = match self.family {
            IpFamily::V4 => 66,
            IpFamily::V6 => 68,
        };
        // `struct xt_get_revision`: name, revision.
        let mut question = named(name, 30)?;
        if let Some(last) = question.last_mut() {
            *last = revision;
        }
        self.ask(get_match + kind, &mut question)
    }

    #[allow(unsafe_code, reason = "no crate offers these socket options")]
    fn ask(&self, option: libc::c_int, answer: &mut [u8]) -> io::Result<()> {
        let level = match self.family {
            IpFamily::V4 => libc::IPPROTO_IP,
            IpFamily::V6 => libc::IPPROTO_IPV6,
        };
        let mut length = libc::socklen_t::try_from(answer.len()).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open, and the kernel reads and writes at most `length` bytes of
        // `answer`, which is that long.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                level,
                option,
                answer.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// Returns a buffer of `length` bytes: `name`, padded with zeros.
fn named(name: &str, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let place = bytes.get_mut(..name.len()).filter(|_| name.len() < 29);
    let place = place.ok_or(io::ErrorKind::InvalidInput)?;
    place.copy_from_slice(name.as_bytes());
    Ok(bytes)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// Adds entries without their counters to a digest. Returns `None` for malformed entries.
fn digest(mut entries: &[u8], family: IpFamily, hasher: &mut DefaultHasher) -> Option<()> {
    // Offset of the entry's length, and range of its counters, in `struct ipt_entry` and `struct
    // ip6t_entry`.
    let (next, from, to) = match family {
        IpFamily::V4 => (90, 96, 112),
        IpFamily::V6 => (142, 152, 168),
    };
    while !entries.is_empty() {
        let length = entries.get(next..next + 2)?.try_into().ok()?;
        let length = usize::from(u16::from_ne_bytes(length)).max(to);
        let (entry, rest) = entries.split_at_checked(length)?;
        hasher.write(entry.get(..from)?);
        hasher.write(entry.get(to..)?);
        entries = rest;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: &[u8], family: IpFamily) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        digest(entries, family, &mut hasher)?;
        Some(hasher.finish())
    }

    #[test]
    fn a_table_digest_ignores_only_counters() {
        for (family, head, next) in [(IpFamily::V4, 112, 90), (IpFamily::V6, 168, 142)] {
            let mut entry = vec![7_u8; head + 40];
            let length = u16::try_from(entry.len()).unwrap();
            entry[next..next + 2].copy_from_slice(&length.to_ne_bytes());
            let table = [entry.clone(), entry.clone()].concat();
            let first = of(&table, family).unwrap();
            for at in 0..entry.len() {
                let mut changed = table.clone();
                changed[entry.len() + at] ^= 1;
                let is_counter = (head - 16..head).contains(&at);
                assert_eq!(of(&changed, family) == Some(first), is_counter, "{at}");
            }
            for cut in 1..entry.len() {
                assert_eq!(of(&table[..entry.len() + cut], family), None, "{cut}");
            }
            assert_ne!(of(&entry, family), Some(first));
        }
    }

    #[test]
    fn user_chains_are_found_by_their_head_entries() {
        for (family, head, target) in [(IpFamily::V4, 112, 88), (IpFamily::V6, 168, 140)] {
            let entry = |of: &str, chain: &str| {
                let mut entry = vec![0_u8; head + 64];
                let number = |of: usize| u16::try_from(of).unwrap().to_ne_bytes();
                entry[target..target + 2].copy_from_slice(&number(head));
                entry[target + 2..target + 4].copy_from_slice(&number(head + 64));
                entry[head + 2..head + 2 + of.len()].copy_from_slice(of.as_bytes());
                entry[head + 32..head + 32 + chain.len()].copy_from_slice(chain.as_bytes());
                entry
            };
            let table = [
                entry("", ""),
                entry("ERROR", "KUBE-SERVICES"),
                entry("DNAT", "KUBE-NONE"),
                entry("ERROR", "ERROR"),
            ]
            .concat();
            assert_eq!(made_chains(&table, family).unwrap(), ["KUBE-SERVICES"]);
            for cut in 1..head + 64 {
                assert_eq!(made_chains(&table[..table.len() - cut], family), None);
            }
        }
    }

    #[test]
    fn a_legacy_table_entry_of_length_0_is_read_as_its_header() {
        assert!(of(&[0; 224], IpFamily::V4).is_some());
        assert_eq!(of(&[0; 200], IpFamily::V4), None);
    }

    #[test]
    fn a_legacy_table_with_only_policies_counts_as_untouched() {
        let info = |entries| LegacyTable {
            name: "nat".to_owned(),
            hooks: 0b11011,
            entries,
            size: 0,
        };
        assert!(info(5).is_untouched());
        assert!(!info(6).is_untouched());
    }
}
