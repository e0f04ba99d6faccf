//! All faults, one row each, in the order of the table.

mod foreign;
mod kernel;
mod kills;
mod limits;
mod ours;
mod source;

use anyhow::Result;

use crate::mode::{IPTABLES, IPVS, IPVS_NFTABLES, Mode, NFTABLES, USERSPACE};
use crate::row::Row;
use crate::stage::Stage;

/// A fault, and the function that causes it.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// Description of the fault and the promise, for docs/faults.md.
    pub(crate) about: &'static str,
    pub(crate) happens: fn(&mut Stage<'_>) -> Result<Row>,
    pub(crate) modes: &'static [&'static Mode],
    /// The modes of the short form, which `make test` runs.
    pub(crate) short: &'static [&'static Mode],
    /// Condition for the fault to be possible. Some faults need a VM, because the clock of the
    /// host's kernel affects every process.
    pub(crate) is_for: fn() -> bool,
}

pub(crate) const EVERY: &[&Mode] = &[&IPVS, &IPVS_NFTABLES, &IPTABLES, &NFTABLES, &USERSPACE];
/// Modes in which the kernel carries connections.
const BY_KERNEL: &[&Mode] = &[&IPVS, &IPVS_NFTABLES, &IPTABLES, &NFTABLES];
const ALL_IPVS: &[&Mode] = &[&IPVS, &IPVS_NFTABLES];
const ONLY_IPVS: &[&Mode] = &[&IPVS];
/// One mode for each kind of kernel state. For faults that depend only on this kind.
const OF_EACH_KIND: &[&Mode] = &[&IPVS, &NFTABLES];
/// Modes with iptables rules.
const WITH_IPTABLES: &[&Mode] = &[&IPVS, &IPTABLES];
/// Modes with nf_tables rules.
const IN_NFTABLES: &[&Mode] = &[&IPVS_NFTABLES, &NFTABLES];
/// Modes that resume differently after a crash. `make test` runs these.
const CRASHES: &[&Mode] = &[&IPVS, &IPVS_NFTABLES];
const KILLS: &[&Mode] = &[&IPVS, &IPTABLES, &NFTABLES];
/// No mode. `make test` skips the fault, because other scenarios cover it or because it takes too
/// long.
const NEVER: &[&Mode] = &[];

fn anywhere() -> bool {
    true
}
/// Returns true in a VM of the lab.
fn in_a_guest() -> bool {
    std::env::var_os("LAB_LANE").is_none_or(|lane| lane != "host")
}
/// Returns true if the kernel can limit the memory of a cgroup.
fn has_memory_groups() -> bool {
    let controllers = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers");
    in_a_guest()
        && controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == "memory"))
}
/// Returns true if the kernel can limit memory and this is a release build. The code of a debug
/// build alone takes three times the limit.
fn has_memory_groups_and_release() -> bool {
    has_memory_groups() && !cfg!(debug_assertions)
}
/// Returns true if iptables has a lock.
fn has_lock() -> bool {
    lab::iptables_backend() == "legacy"
}
/// Returns true if iptables writes to nf_tables.
fn has_nft() -> bool {
    lab::iptables_backend() == "nft"
}

macro_rules! faults {
    ($($module:ident::$happens:ident, $name:literal, $modes:expr, $short:expr, $is_for:expr, $about:literal;)+) => {
        &[$(Fault {
            name: $name,
            about: $about,
            happens: $module::$happens,
            modes: $modes,
            short: $short,
            is_for: $is_for,
        }),+]
    };
}

/// The faults. Unless stated otherwise, a fault promises no failed request and no lost connection.
pub(crate) const ALL: &[Fault] = faults! {
    ours::restart, "restart", BY_KERNEL, NEVER, anywhere,
        "SIGTERM, and a new start, several times.";
    ours::upgrade, "upgrade and back", BY_KERNEL, NEVER, anywhere,
        "An older binary (`BEFORE`) is replaced by this one, and this one by the older, twice.";
    ours::other_flags, "restart with other flags", ALL_IPVS, NEVER, anywhere,
        "The scheduler, the sync period, masquerading and the form of addresses change from start to start.";
    ours::reload, "config reload", BY_KERNEL, NEVER, anywhere,
        "The configuration file changes under the running daemon, to and fro: the scheduler, masqueradeAll, the sync period.";
    ours::crash_loop, "crash loop", BY_KERNEL, CRASHES, anywhere,
        "kill -9 as soon as it is ready, and a new start, 20 times.";
    kills::cold_start, "kill -9 in a cold start", BY_KERNEL, ONLY_IPVS, anywhere,
        "From an empty kernel, with a crowd of Services, killed later and later and started again, until it gets to its end. A request counts from the first answer on its way on: what serves once goes on serving. In the end the kernel holds what an undisturbed start leaves.";
    kills::change, "kill -9 in a change", BY_KERNEL, KILLS, anywhere,
        "While endpoints change all the time, killed at all points and started again.";
    kills::set_swap, "kill -9 in a set swap", ONLY_IPVS, NEVER, anywhere,
        "A set of source ranges grows beyond 65,536 members, for which a larger one is put in its place; killed all along, and started again. The traffic is let in by a member of that set.";
    kills::terminated, "SIGTERM in the middle", BY_KERNEL, ONLY_IPVS, anywhere,
        "While endpoints change and in starts: what is programmed stays, it ends with status 0 and at once; in iptables mode when the restore that runs has ended, 6 s at most.";
    kills::stopped, "SIGSTOP", BY_KERNEL, ONLY_IPVS, anywhere,
        "It stands still while endpoints change (30 s), and then catches up.";
    foreign::flush_chains, "chains flushed", EVERY, NEVER, anywhere,
        "All tables of iptables are flushed and their chains deleted, as a reload of firewalld does. Traffic that needs the rules fails until they are back, which is within the sync period.";
    foreign::flush_ruleset, "nft flush ruleset", EVERY, NEVER, has_nft,
        "All of nf_tables goes. At once where the kernel tells of it, else within the sync period.";
    foreign::sets_deleted, "sets deleted", ONLY_IPVS, NEVER, anywhere,
        "A set is destroyed together with the rule that has it, and another one is emptied.";
    foreign::virtual_server, "virtual server deleted", ALL_IPVS, NEVER, anywhere,
        "`ipvsadm -D`: within 2 s, as the number of virtual servers is asked for.";
    foreign::all_virtual_servers, "ipvsadm -C", ALL_IPVS, ONLY_IPVS, anywhere,
        "All virtual servers go: within 2 s.";
    foreign::real_server, "real server deleted", ALL_IPVS, NEVER, anywhere,
        "`ipvsadm -d`: the others serve, connections to that one break off; within the sync period.";
    foreign::weight, "weight changed", ALL_IPVS, NEVER, anywhere,
        "A weight is set to 0 and another to 5: nothing fails; within the sync period.";
    foreign::address, "address deleted", ALL_IPVS, NEVER, anywhere,
        "An address is taken from `kube-ipvs0`: at once, as the kernel tells of it.";
    foreign::link, "kube-ipvs0 deleted", ALL_IPVS, NEVER, anywhere,
        "The link goes with all service addresses: at once, as the kernel tells of it.";
    foreign::rules_deleted, "rule deleted", WITH_IPTABLES, NEVER, anywhere,
        "The jump to our chains is deleted. iptables mode looks for the sake of flushed tables only at each period, and so does the other.";
    foreign::table_damaged, "element and rule deleted", IN_NFTABLES, NEVER, anywhere,
        "Rules in the chains of our table are flushed: at once, as the kernel tells of each transaction.";
    kernel::notices_lost, "ENOBUFS", ALL_IPVS, ONLY_IPVS, anywhere,
        "The daemon stands still while thousands of addresses come and go, so that the kernel drops what it has to tell; among it, that a service address was deleted.";
    kernel::dumps_interrupted, "dumps interrupted", BY_KERNEL, NEVER, anywhere,
        "Addresses, sets, virtual servers and rules of others change without pause, so that dumps are told to be inconsistent, while endpoints change and checks run.";
    kernel::small_buffers, "small netlink buffers", BY_KERNEL, NEVER, in_a_guest,
        "Socket buffers have the least size that the kernel takes, and endpoints change with a crowd of Services around.";
    kernel::memory_group, "memory pressure", OF_EACH_KIND, NEVER, has_memory_groups,
        "A memory group that also counts the kernel's socket buffers leaves 4 MB beside what the daemon has, while endpoints change.";
    kernel::lock_held, "iptables lock held", WITH_IPTABLES, NEVER, has_lock,
        "Another program holds /run/xtables.lock for a minute, while endpoints change. In IPVS mode they get into the kernel all the same; in iptables mode they wait for the lock.";
    kernel::restore_fails, "iptables-restore fails", WITH_IPTABLES, NEVER, anywhere,
        "The programs fail for a while, with a Service more that needs rules, and then work again.";
    kernel::restore_missing, "iptables-restore missing", WITH_IPTABLES, ONLY_IPVS, in_a_guest,
        "The program is taken away under the running daemon, and put back.";
    kernel::clock_jumps, "clock jumps", EVERY, ONLY_IPVS, in_a_guest,
        "The clock is set ten years ahead, back to 1971, and to what it was, while endpoints change.";
    limits::full_disk, "full disk", BY_KERNEL, ONLY_IPVS, anywhere,
        "No byte can be written where the log and temporary files go. The daemon is started so, and endpoints change.";
    limits::read_only, "read-only /run and /proc/sys", BY_KERNEL, ONLY_IPVS, anywhere,
        "On a prepared node, started again so, and endpoints change.";
    limits::descriptors, "64 descriptors", BY_KERNEL, ONLY_IPVS, anywhere,
        "The limit of open files, with connections held open to its pages.";
    limits::small_memory, "48 MB, 10,000 Services", OF_EACH_KIND, NEVER, has_memory_groups_and_release,
        "A memory group without swap, Services of one family with two endpoints: started, and endpoints change.";
    source::killed, "API server killed", OF_EACH_KIND, ONLY_IPVS, anywhere,
        "It goes while endpoints change, and comes back with other endpoints and without its history.";
    source::emptied, "API server emptied", BY_KERNEL, ONLY_IPVS, anywhere,
        "It is restarted with a new storage, and refilled 2 s later. It says that there are no Services, which is believed: traffic fails until they are back, and is whole soon after.";
    source::garbage, "API server says garbage", ONLY_IPVS, NEVER, anywhere,
        "Something else answers in its place, with nonsense and with empty answers.";
    source::silent, "silent watch", ONLY_IPVS, NEVER, anywhere,
        "The watches say nothing more and stay open. After 90 s without a word, not even a bookmark, they are opened anew.";
    source::flood, "10,000 changes a second", OF_EACH_KIND, ONLY_IPVS, anywhere,
        "So many EndpointSlices change, of 1,000 Services, for a minute; where the lab's API server cannot tell as many, the row says so. The last state is then in the kernel soon.";
    source::all_endpoints, "10,000 endpoints at once", OF_EACH_KIND, NEVER, anywhere,
        "One Service with 10,000 endpoints, all of which are replaced by others at once. Those that go still answer, as pods do that end well.";
};
