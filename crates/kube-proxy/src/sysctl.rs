//! The kernel settings that a mode and connection tracking need to serve Services, as upstream sets them.
//!
//! Written only where they differ, so that a container which may not write /proc/sys works on a node that is set up already.
//!
//! What cannot be written costs as little as it can: see [`Need`]. Upstream's start ends for any of
//! them.
//!
//! Those that decide which packets a node answers are set back when this process is told that they
//! are no longer wanted, where it wrote them and nobody has changed them since. The kernel does not
//! keep who has written a setting, so of those that an earlier process has set it is only said that
//! they stay, where there is evidence of it. All others stay: others may rely on them by then.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use iptables::Iptables;
use proxy::IpFamily;
use tracing::{error, info, warn};

use crate::flags::{Conntrack, Options, ProxyMode};

/// Upstream's ceiling for what `--conntrack-max-per-core` comes to on a node with many CPUs.
const CONNTRACK_MAX: u64 = 1_048_576;

/// Chains of iptables mode in table nat, and the rule by which it keeps others out of 127.0.0.0/8.
const OF_LOCALHOST: [&str; 2] = [
    ":KUBE-NODEPORTS ",
    "--comment \"block incoming localnet connections\"",
];

/// What this process has found of the settings that it may set back, by their files.
static ORIGINS: Mutex<Origins> = Mutex::new(Origins::new());

type Origins = BTreeMap<&'static str, Origin>;

/// Where the value of a setting that is wanted comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    /// It was there.
    Found,
    /// This process has written it.
    Written {
        /// What was there before.
        before: String,
    },
}

/// What a process is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// To end (`--init-only`): another one serves, and may not be allowed to write what this one
    /// could not.
    Prepare,
    /// To begin to serve.
    Start,
    /// To go on serving with other options.
    GoOn,
}

/// What cannot be done without a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// To carry Services as they must be, or to do it without harm to other hosts. The start ends,
    /// and what another mode has programmed goes on serving; unless this mode has served here
    /// before, when going on makes nothing worse.
    Mode,
    /// To serve NodePorts at 127.0.0.1. They are left out.
    Localhost,
    /// To do something well that works without.
    Comfort,
}

/// Whether a setting is set back when it is no longer wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It stays: connections that are there may rely on it.
    Stays,
    /// It is set back.
    IsSetBack {
        /// What it is where it is wanted.
        wanted: &'static str,
        /// By whom.
        by: &'static str,
        /// What a kernel has that nobody has told anything.
        default: u64,
    },
}

/// One setting.
#[derive(Debug)]
struct Row {
    /// The file, from the root folder.
    path: &'static str,
    /// Its value; `None` leaves it alone.
    value: fn(&Facts) -> Option<u64>,
    /// Whether more than the value will do.
    is_minimum: bool,
    /// The flag that leaves it alone, if there is one.
    off: Option<&'static str>,
    need: Need,
    end: End,
}

/// What the settings depend on.
struct Facts {
    /// Major and minor version of the kernel.
    kernel: (u32, u32),
    /// CPUs that are online, also those that this process may not use.
    cpus: u64,
    mode: ProxyMode,
    strict_arp: bool,
    serves_localhost: bool,
    conntrack: Conntrack,
}

impl Facts {
    fn new(options: &Options) -> Self {
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        Self {
            kernel: version(&release),
            cpus: online_cpus(),
            mode: options.mode,
            strict_arp: options.strict_arp,
            serves_localhost: options.serves_localhost(),
            conntrack: options.conntrack,
        }
    }

    /// A value that only IPVS mode needs.
    fn of_ipvs(&self, value: u64) -> Option<u64> {
        (self.mode == ProxyMode::Ipvs).then_some(value)
    }

    fn conntrack_max(&self) -> Option<u64> {
        let per_core = u64::from(self.conntrack.max_per_core);
        (per_core > 0).then(|| {
            let scaled = per_core.saturating_mul(self.cpus).min(CONNTRACK_MAX);
            scaled.max(self.conntrack.min.into())
        })
    }
}

/// A setting that is always the same.
const fn fixed(path: &'static str, value: fn(&Facts) -> Option<u64>) -> Row {
    Row {
        path,
        value,
        is_minimum: false,
        off: None,
        need: Need::Comfort,
        end: End::Stays,
    }
}

/// One that a mode cannot do without.
const fn needed(path: &'static str, value: fn(&Facts) -> Option<u64>) -> Row {
    Row {
        need: Need::Mode,
        ..fixed(path, value)
    }
}

/// A setting that a flag sets, or leaves alone.
const fn flagged(path: &'static str, value: fn(&Facts) -> Option<u64>, off: &'static str) -> Row {
    Row {
        off: Some(off),
        ..fixed(path, value)
    }
}

/// In the order they are written. Why: see the comment of each.
static ROWS: [Row; 15] = [
    // Masquerading of IPVS connections is done by conntrack.
    needed("proc/sys/net/ipv4/vs/conntrack", |facts| facts.of_ipvs(1)),
    // Before 5.9, a reused source port was rescheduled with one second of delay (k/k#70747); from 5.9 on the kernel's
    // own default is right (k/k#93297). Before 4.1 there is no such setting.
    fixed("proc/sys/net/ipv4/vs/conn_reuse_mode", |facts| {
        facts
            .of_ipvs(0)
            .filter(|_| (4, 1) <= facts.kernel && facts.kernel < (5, 9))
    }),
    // Connections to a destination that was removed end at once, instead of timing out.
    fixed("proc/sys/net/ipv4/vs/expire_nodest_conn", |facts| {
        facts.of_ipvs(1)
    }),
    // Session affinity lets go of a destination that drains (k/k#71809).
    fixed("proc/sys/net/ipv4/vs/expire_quiescent_template", |facts| {
        facts.of_ipvs(1)
    }),
    // Service traffic is forwarded to pods.
    needed("proc/sys/net/ipv4/ip_forward", |facts| facts.of_ipvs(1)),
    // Packets from 127.0.0.1 may leave for a pod, and answers may come back; rules keep others out (k/k#90259).
    Row {
        off: Some("--iptables-localhost-nodeports=false"),
        need: Need::Localhost,
        end: End::IsSetBack {
            wanted: "1",
            by: "iptables mode for NodePorts at 127.0.0.1",
            default: 0,
        },
        ..fixed("proc/sys/net/ipv4/conf/all/route_localnet", |facts| {
            facts.serves_localhost.then_some(1)
        })
    },
    // Answer ARP only for addresses of the interface that is asked: service addresses belong to every node.
    Row {
        end: of_strict_arp("1"),
        ..needed("proc/sys/net/ipv4/conf/all/arp_ignore", |facts| {
            facts.of_ipvs(1).filter(|_| facts.strict_arp)
        })
    },
    Row {
        end: of_strict_arp("2"),
        ..needed("proc/sys/net/ipv4/conf/all/arp_announce", |facts| {
            facts.of_ipvs(2).filter(|_| facts.strict_arp)
        })
    },
    // Every connection to a Service has an entry; when the table is full, new ones are dropped. It is one table for all
    // network namespaces, and only the initial one may change it.
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_max",
        Facts::conntrack_max,
        "--conntrack-max-per-core=0",
    ),
    // Four entries to a bucket at most, on average.
    Row {
        is_minimum: true,
        ..flagged(
            "sys/module/nf_conntrack/parameters/hashsize",
            |facts| Some(facts.conntrack_max()? / 4),
            "--conntrack-max-per-core=0",
        )
    },
    // The kernel's five days keep entries of connections whose peers are long gone.
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
        |facts| seconds(facts.conntrack.tcp_established),
        "--conntrack-tcp-timeout-established=0",
    ),
    // The kernel's minute is too short for a server that is slow to close (k/k#32551).
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait",
        |facts| seconds(facts.conntrack.tcp_close_wait),
        "--conntrack-tcp-timeout-close-wait=0",
    ),
    // A segment that counts as INVALID is not translated back, and its receiver resets the connection (k/k#74839).
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal",
        |facts| facts.conntrack.tcp_be_liberal.then_some(1),
        "--conntrack-tcp-be-liberal=false",
    ),
    // A client that asks without end is bound to its first endpoint for as long as its entry lives.
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_udp_timeout",
        |facts| seconds(facts.conntrack.udp),
        "--conntrack-udp-timeout=0",
    ),
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream",
        |facts| seconds(facts.conntrack.udp_stream),
        "--conntrack-udp-timeout-stream=0",
    ),
];

const fn of_strict_arp(wanted: &'static str) -> End {
    End::IsSetBack {
        wanted,
        by: "ipvs mode with strictARP",
        default: 0,
    }
}

fn seconds(timeout: Duration) -> Option<u64> {
    Some(timeout.as_secs()).filter(|seconds| *seconds > 0)
}

impl Row {
    /// As sysctl(8) names it, or its file.
    fn name(&self) -> String {
        match self.path.strip_prefix("proc/sys/") {
            Some(key) => key.replace('/', "."),
            None => format!("/{}", self.path),
        }
    }

    fn is_met(&self, found: &str, wanted: u64) -> bool {
        found
            .parse()
            .is_ok_and(|found: u64| found == wanted || (self.is_minimum && found > wanted))
    }

    /// That the setting is as a kube-proxy sets it, and how it is undone; `None` if it is not, or
    /// is one that stays anyway.
    fn stays(&self, root: &Path) -> Option<String> {
        let End::IsSetBack {
            wanted,
            by,
            default,
        } = self.end
        else {
            return None;
        };
        let found = fs::read_to_string(root.join(self.path)).ok()?;
        (found.trim() == wanted).then(|| {
            let name = self.name();
            format!(
                "{name} stays {wanted}, as {by} sets it: who has set it here cannot be told, and others may need it; if nobody \
                 does, `sysctl -w {name}={default}` undoes it"
            )
        })
    }
}

/// Settings that could not be written; the others were.
#[derive(Debug, thiserror::Error)]
pub(crate) struct SysctlErrors(Vec<SysctlError>);

/// A setting that could not be read or written.
#[derive(Debug)]
struct SysctlError {
    row: &'static Row,
    value: u64,
    found: String,
    source: io::Error,
}

/// What is the same for several is said once.
impl fmt::Display for SysctlErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons: Vec<(String, Vec<&SysctlError>)> = Vec::new();
        for error in &self.0 {
            let reason = error.source.to_string();
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, errors)) => errors.push(error),
                None => reasons.push((reason, vec![error])),
            }
        }
        for (number, (reason, errors)) in reasons.iter().enumerate() {
            let settings: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let advice = errors.first().map_or("", |error| error.advice());
            let between = if number == 0 { "" } else { ". And " };
            write!(
                f,
                "{between}cannot set {}: {reason}; {advice}",
                settings.join(", ")
            )?;
        }
        Ok(())
    }
}

/// What was to become of it, and what leaves it alone.
impl fmt::Display for SysctlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            row, value, found, ..
        } = self;
        write!(f, "{} to {value} (it is {found}", row.name())?;
        match row.off {
            Some(off) => write!(f, "; {off} leaves it so)"),
            None => f.write_str(")"),
        }
    }
}

impl SysctlError {
    fn advice(&self) -> &'static str {
        match self.source.kind() {
            io::ErrorKind::NotFound => {
                "the kernel lacks it: are ip_vs and nf_conntrack loaded (modprobe ip_vs)?"
            }
            io::ErrorKind::InvalidInput => "the kernel does not take this value here",
            _ => {
                "set it on the node itself, or let this process, or one before it with --init-only, write /proc/sys and /sys (where an \
                 init container does, `kubectl -n kube-system rollout restart daemonset kube-proxy` runs it)"
            }
        }
    }
}

/// A setting that has not the value that it is to have.
struct Difference {
    row: &'static Row,
    value: u64,
    found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, value, found } = self;
        write!(f, "set {} to {value} (it is {found})", row.name())
    }
}

/// Brings every setting to its value, and back those that are no longer wanted; says what became of
/// them. `ip_vs` must be loaded, which loads `nf_conntrack`. What cannot be done without those that
/// cannot be written is taken out of `options`; an error if the step cannot be made.
pub(crate) fn settle(options: &mut Options, step: Step) -> Result<(), SysctlErrors> {
    let settled = {
        let mut origins = ORIGINS.lock().unwrap_or_else(PoisonError::into_inner);
        apply_below(Path::new("/"), &Facts::new(options), &mut origins)
    };
    if !settled.written.is_empty() {
        info!(
            sysctls = settled.written.join(" "),
            "kernel settings written"
        );
    }
    for line in &settled.set_back {
        info!("{line}");
    }
    for line in &settled.left {
        warn!("{line}");
    }
    if step != Step::GoOn && options.mode == ProxyMode::Ipvs && !options.strict_arp {
        note_strict_arp(Path::new("/"));
    }
    let is_missing = |need| {
        settled
            .failures
            .iter()
            .any(|failure| failure.row.need == need)
    };
    if is_missing(Need::Localhost) {
        options.localhost_node_ports = false;
    }
    let has_served = options.mode == ProxyMode::Ipvs && has_link(Path::new("/"));
    if !settled.failures.is_empty() && step.ends(is_missing(Need::Mode), has_served) {
        return Err(SysctlErrors(settled.failures));
    }
    let mut rest = settled.failures;
    for (need, then) in [
        (
            Need::Mode,
            "this mode has served here before, and goes on as it did",
        ),
        (
            Need::Localhost,
            "NodePorts at 127.0.0.1 are not served, and everything else is",
        ),
        (Need::Comfort, "everything is served"),
    ] {
        let (failures, others) = rest.into_iter().partition(|one| one.row.need == need);
        rest = others;
        let failures = SysctlErrors(failures);
        if !failures.0.is_empty() {
            error!("{failures}. Until then {then}");
        }
    }
    Ok(())
}

impl Step {
    /// Whether a setting that could not be written is an error of this step as a whole.
    fn ends(self, lacks_the_mode: bool, has_served: bool) -> bool {
        match self {
            Self::Prepare => true,
            Self::Start => lacks_the_mode && !has_served,
            Self::GoOn => false,
        }
    }
}

/// Says that the node answers ARP as with strictARP, where that is not asked for: a kube-proxy before
/// may have been asked, or somebody else wants it so.
fn note_strict_arp(root: &Path) {
    let rows = ROWS.iter();
    let of_arp = rows.filter(|row| row.need == Need::Mode && row.end != End::Stays);
    let lines: Option<Vec<String>> = of_arp.map(|row| row.stays(root)).collect();
    for line in lines.unwrap_or_default() {
        info!("{line}");
    }
}

/// Whether IPVS mode has programmed this network namespace.
fn has_link(root: &Path) -> bool {
    let links = fs::read_to_string(root.join("proc/thread-self/net/dev"));
    links.is_ok_and(|links| {
        links
            .lines()
            .any(|line| line.trim_start().starts_with("kube-ipvs0:"))
    })
}

/// Says that a setting of iptables mode stays, if that mode is about to be cleared away. Whoever
/// wrote it, nobody can tell now. Costs no process, unless the setting is there and rules that have
/// not been read.
pub(crate) fn note_leftovers(iptables: &Iptables) {
    let row = ROWS.iter().find(|row| row.need == Need::Localhost);
    let Some(line) = row.and_then(|row| row.stays(Path::new("/"))) else {
        return;
    };
    let others = Iptables::other_than(iptables);
    let served = [iptables.clone()]
        .into_iter()
        .chain(others)
        .any(|iptables| {
            !iptables.is_empty(IpFamily::V4)
                && iptables
                    .save(IpFamily::V4)
                    .is_ok_and(|saved| OF_LOCALHOST.iter().all(|part| saved.contains(part)))
        });
    if served {
        warn!("{line}");
    }
}

/// The settings that are as a kube-proxy sets them and as a kernel has not, a line each.
pub(crate) fn leftovers() -> Vec<String> {
    let rows = ROWS.iter();
    rows.filter_map(|row| row.stays(Path::new("/"))).collect()
}

/// What [`apply`] would write, a line each.
pub(crate) fn pending(options: &Options) -> Vec<String> {
    let facts = Facts::new(options);
    differences(Path::new("/"), &facts)
        .map(|difference| difference.to_string())
        .collect()
}

fn differences(root: &Path, facts: &Facts) -> impl Iterator<Item = Difference> {
    ROWS.iter().filter_map(move |row| {
        let value = (row.value)(facts)?;
        let found = fs::read_to_string(root.join(row.path)).map(|text| text.trim().to_owned());
        let is_met = found.as_deref().is_ok_and(|found| row.is_met(found, value));
        (!is_met).then(|| Difference {
            row,
            value,
            found: found.unwrap_or_else(|_| "unreadable".to_owned()),
        })
    })
}

/// What became of the settings.
#[derive(Debug, Default)]
struct Settled {
    /// The names of those that were written.
    written: Vec<String>,
    /// Those that are as they were before, a line each.
    set_back: Vec<String>,
    /// Those that are no longer wanted, and stay; a line each.
    left: Vec<String>,
    failures: Vec<SysctlError>,
}

fn apply_below(root: &Path, facts: &Facts, origins: &mut Origins) -> Settled {
    let mut settled = Settled::default();
    for row in &ROWS {
        match (row.value)(facts) {
            None => settled.set_back(root, row, origins),
            // Whatever differs is written below.
            Some(_) if row.end == End::Stays => {}
            Some(_) => {
                origins.entry(row.path).or_insert(Origin::Found);
            }
        }
    }
    for Difference { row, value, found } in differences(root, facts) {
        match fs::write(root.join(row.path), value.to_string()) {
            Ok(()) => {
                settled.written.push(row.name());
                if let Some(origin) = origins.get_mut(row.path) {
                    *origin = Origin::Written { before: found };
                }
            }
            // Container engines mount /sys read-only at times; a table with few buckets is slow, but works. As upstream.
            Err(source) if row.is_minimum && source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                warn!(setting = row.name(), %found, wanted = value, "is on a read-only file system and stays too small; set it on the node itself");
            }
            Err(source) => {
                // There is nothing to set back.
                origins.remove(row.path);
                settled.failures.push(SysctlError {
                    row,
                    value,
                    found,
                    source,
                });
            }
        }
    }
    settled
}

impl Settled {
    /// Sets back what is no longer wanted, if this process wrote it and nobody has since.
    fn set_back(&mut self, root: &Path, row: &Row, origins: &mut Origins) {
        let Some(origin) = origins.remove(row.path) else {
            return;
        };
        // Who has changed it does not want what was there before either.
        let Some(stays) = row.stays(root) else {
            return;
        };
        let Origin::Written { before } = origin else {
            self.left.push(stays);
            return;
        };
        match fs::write(root.join(row.path), &before) {
            Ok(()) => self.set_back.push(format!(
                "{} is {before} again, as before this kube-proxy: it is no longer wanted",
                row.name()
            )),
            Err(error) => self.left.push(format!("{stays} (here: {error})")),
        }
    }
}

fn online_cpus() -> u64 {
    let listed = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    listed
        .and_then(|list| count(list.trim()))
        .unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, |usable| usable.get() as u64)
        })
}

/// How many numbers a list of ranges such as `0-3,7` holds.
fn count(list: &str) -> Option<u64> {
    list.split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .sum()
}

/// `6.1.0-13-amd64` is (6, 1); what cannot be read is taken for new.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (u32::MAX, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("6.1.0-13-amd64"), (6, 1));
        assert_eq!(version("5.4"), (5, 4));
        assert_eq!(version("odd"), (u32::MAX, 0));
    }

    #[test]
    fn cpus_are_counted() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,7"), Some(5));
        assert_eq!(count("0-3,"), None);
        assert_eq!(count("3-0"), None);
    }

    /// A kernel in which every setting is 0, and the settings of `facts` that leave connection tracking alone.
    fn kernel(name: &str, version: (u32, u32)) -> (PathBuf, Facts) {
        let root = std::env::temp_dir().join(format!("sysctl-{}-{name}", std::process::id()));
        for row in &ROWS {
            let path = root.join(row.path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "0\n").unwrap();
        }
        let facts = Facts {
            kernel: version,
            cpus: 1,
            mode: ProxyMode::Ipvs,
            strict_arp: false,
            serves_localhost: false,
            conntrack: Conntrack::default(),
        };
        (root, facts)
    }

    /// What is written where all can be.
    fn written(root: &Path, facts: &Facts) -> Vec<String> {
        let settled = apply_below(root, facts, &mut Origins::new());
        assert!(settled.failures.is_empty(), "{settled:?}");
        settled.written
    }

    fn refusal(root: &Path, facts: &Facts) -> String {
        let settled = apply_below(root, facts, &mut Origins::new());
        assert!(!settled.failures.is_empty(), "{settled:?}");
        SysctlErrors(settled.failures).to_string()
    }

    #[test]
    fn only_what_differs_is_written() {
        let (root, mut facts) = kernel("differs", (6, 1));
        fs::write(root.join("proc/sys/net/ipv4/ip_forward"), "1\n").unwrap();
        let told: Vec<String> = differences(&root, &facts)
            .map(|difference| difference.to_string())
            .collect();
        assert_eq!(told.len(), 3);
        assert_eq!(told[0], "set net.ipv4.vs.conntrack to 1 (it is 0)");
        assert_eq!(
            written(&root, &facts),
            [
                "net.ipv4.vs.conntrack",
                "net.ipv4.vs.expire_nodest_conn",
                "net.ipv4.vs.expire_quiescent_template"
            ]
        );
        assert_eq!(written(&root, &facts), Vec::<String>::new());
        (facts.kernel, facts.strict_arp) = ((5, 4), true);
        fs::write(root.join("proc/sys/net/ipv4/vs/conn_reuse_mode"), "1\n").unwrap();
        assert_eq!(written(&root, &facts).len(), 3);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn connection_tracking_is_set_as_the_flags_say() {
        let (root, mut facts) = kernel("conntrack", (6, 1));
        written(&root, &facts);
        let hash_size = root.join("sys/module/nf_conntrack/parameters/hashsize");
        let netfilter = root.join("proc/sys/net/netfilter");
        let read = |name: &str| fs::read_to_string(netfilter.join(name)).unwrap();
        facts.conntrack = Conntrack {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established: Duration::from_hours(24),
            tcp_close_wait: Duration::from_hours(1),
            tcp_be_liberal: true,
            udp: Duration::from_secs(30),
            udp_stream: Duration::from_millis(120_900),
        };
        assert_eq!(written(&root, &facts).len(), 7);
        for (name, value) in [
            ("nf_conntrack_max", "131072"),
            ("nf_conntrack_tcp_timeout_established", "86400"),
            ("nf_conntrack_tcp_timeout_close_wait", "3600"),
            ("nf_conntrack_tcp_be_liberal", "1"),
            ("nf_conntrack_udp_timeout", "30"),
            ("nf_conntrack_udp_timeout_stream", "120"),
        ] {
            assert_eq!(read(name), value, "{name}");
        }
        assert_eq!(fs::read_to_string(&hash_size).unwrap(), "32768");
        // A smaller table keeps its buckets.
        facts.conntrack.min = 0;
        assert_eq!(written(&root, &facts), ["net.netfilter.nf_conntrack_max"]);
        assert_eq!(read("nf_conntrack_max"), "32768");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_table_grows_with_the_cpus_between_two_limits() {
        for (max_per_core, min, cpus, max) in [
            (32_768, 131_072, 1, Some(131_072)),
            (32_768, 131_072, 4, Some(131_072)),
            (32_768, 131_072, 8, Some(262_144)),
            (32_768, 131_072, 64, Some(1_048_576)),
            (1, 2_000_000, 64, Some(2_000_000)),
            (0, 131_072, 8, None),
        ] {
            let conntrack = Conntrack {
                max_per_core,
                min,
                ..Conntrack::default()
            };
            let facts = Facts {
                kernel: (6, 1),
                cpus,
                mode: ProxyMode::Ipvs,
                strict_arp: false,
                serves_localhost: false,
                conntrack,
            };
            assert_eq!(
                facts.conntrack_max(),
                max,
                "{max_per_core}, {min}, {cpus} CPUs"
            );
        }
    }

    const ARP: [&str; 2] = [
        "proc/sys/net/ipv4/conf/all/arp_ignore",
        "proc/sys/net/ipv4/conf/all/arp_announce",
    ];

    #[test]
    fn what_this_process_wrote_is_set_back_and_what_others_did_is_said() {
        let (root, mut facts) = kernel("origins", (6, 1));
        let mut origins = Origins::new();
        let found = || ARP.map(|path| fs::read_to_string(root.join(path)).unwrap());
        let mut settle = |strict_arp| {
            facts.strict_arp = strict_arp;
            let Settled { set_back, left, .. } = apply_below(&root, &facts, &mut origins);
            (set_back.len(), left)
        };
        settle(false);
        settle(true);
        settle(true);
        assert_eq!(found(), ["1", "2"]);
        assert_eq!(settle(false), (2, Vec::new()));
        assert_eq!(found(), ["0", "0"]);
        assert_eq!(settle(false), (0, Vec::new()), "once");

        // It was there before, and somebody changes what was written.
        fs::write(root.join(ARP[0]), "1\n").unwrap();
        settle(true);
        fs::write(root.join(ARP[1]), "3\n").unwrap();
        let (set_back, left) = settle(false);
        assert_eq!((set_back, left.len()), (0, 1));
        assert!(
            left[0].contains("arp_ignore stays 1")
                && left[0].contains("sysctl -w net.ipv4.conf.all.arp_ignore=0"),
            "{left:?}"
        );
        assert_eq!(found(), ["1\n", "3\n"]);
        // Another one's value, which strict ARP takes, comes back.
        settle(true);
        assert_eq!(settle(false).0, 1);
        assert_eq!(found(), ["1\n", "3"]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_cannot_be_set_ends_a_start_if_the_mode_would_make_things_worse() {
        for (step, lacks_the_mode, has_served, ends) in [
            (Step::Prepare, false, true, true),
            (Step::Start, false, false, false),
            (Step::Start, true, false, true),
            (Step::Start, true, true, false),
            (Step::GoOn, true, false, false),
        ] {
            assert_eq!(step.ends(lacks_the_mode, has_served), ends, "{step:?}");
        }
        let (root, mut facts) = kernel("needs", (6, 1));
        assert!(!has_link(&root));
        let links = root.join("proc/thread-self/net");
        fs::create_dir_all(&links).unwrap();
        let text = "Inter-|   Receive\n    lo:  1  2\nkube-ipvs0:  0  0\n";
        fs::write(links.join("dev"), text).unwrap();
        assert!(has_link(&root));

        // What is no file cannot be written.
        for row in &ROWS {
            fs::remove_file(root.join(row.path)).unwrap();
            fs::create_dir(root.join(row.path)).unwrap();
        }
        let needs = |facts: &Facts| {
            let failures = apply_below(&root, facts, &mut Origins::new()).failures;
            let needs = failures.iter();
            needs
                .filter(|failure| failure.row.need != Need::Comfort)
                .map(|failure| failure.row.name())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            needs(&facts),
            ["net.ipv4.vs.conntrack", "net.ipv4.ip_forward"]
        );
        facts.strict_arp = true;
        assert_eq!(needs(&facts).len(), 4);
        (facts.mode, facts.serves_localhost) = (ProxyMode::Iptables, true);
        facts.conntrack.tcp_be_liberal = true;
        assert_eq!(needs(&facts), ["net.ipv4.conf.all.route_localnet"]);
        // What is the same for several is said once.
        let failures = apply_below(&root, &facts, &mut Origins::new()).failures;
        let text = SysctlErrors(failures).to_string();
        assert_eq!(text.matches("rollout restart").count(), 1, "{text}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn an_error_names_the_setting_and_the_next_step() {
        let (root, mut facts) = kernel("missing", (6, 1));
        let error_without = |folder: &str, facts: &Facts| {
            fs::remove_dir_all(root.join(folder)).unwrap();
            refusal(&root, facts)
        };
        let expect = |error: String, parts: &[&str]| {
            for part in parts {
                assert!(error.contains(part), "{error}");
            }
        };
        facts.conntrack.max_per_core = 1;
        // What is no file cannot be written.
        let max = "proc/sys/net/netfilter/nf_conntrack_max";
        fs::remove_file(root.join(max)).unwrap();
        fs::create_dir(root.join(max)).unwrap();
        let error = refusal(&root, &facts);
        expect(
            error,
            &[
                "net.netfilter.nf_conntrack_max to 1 ",
                "--conntrack-max-per-core=0",
            ],
        );
        let error = error_without("proc/sys/net/ipv4/vs", &facts);
        expect(
            error,
            &[
                "net.ipv4.vs.conntrack",
                "modprobe ip_vs",
                "net.ipv4.vs.expire_nodest_conn",
                "net.netfilter.nf_conntrack_max",
            ],
        );
        fs::remove_dir_all(root).unwrap();
    }
}
