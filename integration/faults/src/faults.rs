//! Table of all faults, in the order of docs/faults.md.

mod foreign;
mod kernel;
mod kills;
mod limits;
mod operator;
mod source;

use anyhow::Result;

use crate::mode::{
    IPTABLES, IPVS, IPVS_EXACT, IPVS_LEAN, IPVS_NFTABLES, IPVS_RANGES, IPVS_ROUTES, Mode, NFTABLES,
    NFTABLES_FLAT, USERSPACE,
};
use crate::row::Row;
use crate::stage::Stage;

/// A fault, and the function that causes it and observes the daemon.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// Description of the fault, and of its promise, for docs/faults.md.
    pub(crate) about: &'static str,
    pub(crate) happens: fn(&mut Stage<'_>) -> Result<Row>,
    pub(crate) modes: &'static [&'static Mode],
    /// Modes in which `make test` runs the fault in its short form.
    pub(crate) short: &'static [&'static Mode],
    /// Returns true if the fault can run here. Some faults need a VM, because they change the whole
    /// machine's clock.
    pub(crate) is_for: fn() -> bool,
}

const EVERY: &[&Mode] = &[&IPVS, &IPVS_NFTABLES, &IPTABLES, &NFTABLES, &USERSPACE];
/// All modes in which the kernel carries connections, with all variants of their shims, address
/// modes and layouts.
const EACH_FORM: &[&Mode] = &[
    &IPVS,
    &IPVS_LEAN,
    &IPVS_ROUTES,
    &IPVS_EXACT,
    &IPVS_NFTABLES,
    &IPVS_RANGES,
    &IPTABLES,
    &NFTABLES,
    &NFTABLES_FLAT,
];
/// All modes in which the kernel carries connections, and IPVS mode with its shim in nftables.
const BY_KERNEL: &[&Mode] = &[&IPVS, &IPVS_NFTABLES, &IPTABLES, &NFTABLES];
const ALL_IPVS: &[&Mode] = &[&IPVS, &IPVS_NFTABLES];
const ONLY_IPVS: &[&Mode] = &[&IPVS];
/// IPVS mode and nftables mode: enough for faults whose effect depends only on the kind of kernel
/// state.
const OF_EACH_KIND: &[&Mode] = &[&IPVS, &NFTABLES];
/// Modes whose rules iptables programs write.
const WITH_IPTABLES: &[&Mode] = &[&IPVS, &IPTABLES];
/// Modes whose rules are in an nf_tables table.
const IN_NFTABLES: &[&Mode] = &[&IPVS_NFTABLES, &NFTABLES];
/// Modes in which `make test` kills the daemon during changes: each adopts its entries in its own
/// way.
const CRASHES: &[&Mode] = &[&IPVS, &IPVS_NFTABLES];
const KILLS: &[&Mode] = &[&IPVS, &IPTABLES, &NFTABLES];
/// No mode. `make test` skips these faults, because they take long or because other tests cover
/// them.
const NEVER: &[&Mode] = &[];

fn anywhere() -> bool {
    true
}
/// Returns true in a VM of the lab, false on the host's kernel.
fn in_a_guest() -> bool {
    std::env::var_os("LAB_LANE").is_none_or(|lane| lane != "host")
}
/// Returns true if the kernel can limit the memory of cgroups (v2).
fn has_memory_groups() -> bool {
    let controllers = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers");
    in_a_guest()
        && controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == "memory"))
}
/// Returns true if the kernel can limit memory, and this is a release build. A debug build's code
/// alone needs three times the memory limit.
fn has_memory_groups_and_release() -> bool {
    has_memory_groups() && !cfg!(debug_assertions)
}
/// Returns true if iptables programs take a lock file, as in the legacy backend.
fn has_lock() -> bool {
    lab::iptables_backend() == "legacy"
}
/// Returns true if iptables programs write to nf_tables (the nft backend).
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

/// Returns all modes and variants in which at least one fault runs. Some appear more than once.
pub(crate) fn modes() -> impl Iterator<Item = &'static Mode> {
    EVERY.iter().chain(EACH_FORM).copied()
}

/// All faults. A fault promises that no request fails and no connection is lost, unless its
/// description says otherwise.
pub(crate) const ALL: &[Fault] = faults! {
    operator::restart, "restart", BY_KERNEL, NEVER, anywhere,
        "kube-proxy gets SIGTERM and starts again, several times.";
    operator::upgrade, "upgrade and back", EACH_FORM, NEVER, anywhere,
        "An older binary (`BEFORE`) and this binary replace each other five times.";
    operator::other_flags, "restart with other flags", ALL_IPVS, NEVER, anywhere,
        "kube-proxy restarts with new values of `--ipvs-scheduler`, `--ipvs-sync-period`, `--masquerade-all` and `--ipvs-vip-mode`.";
    operator::reload, "configuration file changed", BY_KERNEL, NEVER, anywhere,
        "The configuration file of the running daemon changes: scheduler, masqueradeAll, sync period.";
    operator::crash_loop, "crash loop", BY_KERNEL, CRASHES, anywhere,
        "kill -9 ends kube-proxy 20 times, each time as soon as it is ready.";
    kills::cold_start, "kill -9 in a cold start", BY_KERNEL, ONLY_IPVS, anywhere,
        "kube-proxy starts on an empty kernel with many Services. Each kill -9 comes later than the previous one. A Service that has answered once must keep answering.";
    kills::change, "kill -9 in a change", BY_KERNEL, KILLS, anywhere,
        "While endpoints change, kill -9 ends kube-proxy at a different point each time.";
    kills::set_swap, "kill -9 in a set swap", ONLY_IPVS, NEVER, anywhere,
        "A set of source ranges grows beyond 65,536 members, and kill -9 interrupts its replacement by a larger set. Without the set, the clients' requests fail.";
    kills::terminated, "SIGTERM during changes", BY_KERNEL, ONLY_IPVS, anywhere,
        "kube-proxy gets SIGTERM during starts and endpoint changes. The kernel state must stay, and the exit status must be 0. In iptables mode, kube-proxy may wait 6 s for iptables-restore before it exits.";
    kills::stopped, "SIGSTOP", BY_KERNEL, ONLY_IPVS, anywhere,
        "SIGSTOP stops kube-proxy for 30 s while endpoints change.";
    foreign::flush_chains, "chains flushed", EVERY, NEVER, anywhere,
        "Another program flushes and deletes all iptables chains, as a reload of firewalld does. Traffic that needs rules fails until the repair.";
    foreign::flush_ruleset, "nft flush ruleset", EVERY, NEVER, has_nft,
        "Another program flushes the whole nf_tables ruleset. kube-proxy restores its own nf_tables tables at once.";
    foreign::sets_deleted, "sets deleted", ONLY_IPVS, NEVER, anywhere,
        "Another program destroys a set together with its rule, and empties another set.";
    foreign::virtual_server, "virtual server deleted", ALL_IPVS, NEVER, anywhere,
        "`ipvsadm -D` deletes a virtual server. kube-proxy notices the smaller number of virtual servers, and repairs within 2 s.";
    foreign::all_virtual_servers, "ipvsadm -C", ALL_IPVS, ONLY_IPVS, anywhere,
        "`ipvsadm -C` deletes all virtual servers. kube-proxy repairs within 2 s.";
    foreign::real_server, "real server deleted", ALL_IPVS, NEVER, anywhere,
        "`ipvsadm -d` deletes a destination. Its connections break, and other destinations serve.";
    foreign::weight, "weight changed", ALL_IPVS, NEVER, anywhere,
        "Another program sets one destination's weight to 0, another's to 5.";
    foreign::address, "address deleted", ALL_IPVS, NEVER, anywhere,
        "Another program deletes an address from `kube-ipvs0`. kube-proxy repairs at once.";
    foreign::link, "kube-ipvs0 deleted", ALL_IPVS, NEVER, anywhere,
        "Another program deletes the link with all service addresses. kube-proxy repairs at once.";
    foreign::rules_deleted, "rule deleted", WITH_IPTABLES, NEVER, anywhere,
        "Another program deletes the jump to kube-proxy's chains.";
    foreign::table_damaged, "element and rule deleted", IN_NFTABLES, NEVER, anywhere,
        "Another program flushes rules of kube-proxy's nf_tables table, in nftables mode also a map. kube-proxy repairs at once.";
    kernel::notices_lost, "netlink notifications lost", ALL_IPVS, ONLY_IPVS, anywhere,
        "Thousands of addresses come and go while SIGSTOP pauses kube-proxy. The kernel drops notifications (ENOBUFS), one of them about a deleted service address.";
    kernel::dumps_interrupted, "dumps interrupted", BY_KERNEL, NEVER, anywhere,
        "Other programs continuously change addresses, sets, virtual servers and rules, so the kernel marks dumps as inconsistent. Endpoints change at the same time.";
    kernel::small_buffers, "small netlink buffers", BY_KERNEL, NEVER, in_a_guest,
        "kube-proxy's socket buffers have the kernel's minimum size while endpoints of many Services change.";
    kernel::memory_group, "memory pressure", OF_EACH_KIND, NEVER, has_memory_groups,
        "kube-proxy's memory cgroup has only 4 MB free while endpoints change. The cgroup also counts socket buffers.";
    kernel::lock_held, "iptables lock held", WITH_IPTABLES, NEVER, has_lock,
        "Another program holds /run/xtables.lock for a minute while endpoints change. IPVS mode must apply changes; iptables mode may wait for the lock.";
    kernel::restore_fails, "iptables-restore fails", WITH_IPTABLES, NEVER, anywhere,
        "iptables-restore fails while a new Service needs rules, then works again.";
    kernel::restore_missing, "iptables-restore missing", WITH_IPTABLES, ONLY_IPVS, in_a_guest,
        "The program iptables-restore is removed while kube-proxy runs, and put back later.";
    kernel::clock_jumps, "clock jumps", EVERY, ONLY_IPVS, in_a_guest,
        "While endpoints change, the clock jumps ten years ahead, then to 1971, then back.";
    limits::full_disk, "full disk", BY_KERNEL, ONLY_IPVS, anywhere,
        "The disk for kube-proxy's log and temporary files is full during a start and endpoint changes.";
    limits::read_only, "read-only /run and /proc/sys", BY_KERNEL, ONLY_IPVS, anywhere,
        "/run and /proc/sys are read-only, and all sysctls already have the values that kube-proxy needs. kube-proxy restarts; then endpoints change.";
    limits::descriptors, "64 file descriptors", BY_KERNEL, ONLY_IPVS, anywhere,
        "kube-proxy may open only 64 files, and clients hold more connections to its HTTP servers.";
    limits::small_memory, "10,000 Services in 48 MB", OF_EACH_KIND, NEVER, has_memory_groups_and_release,
        "kube-proxy starts in a memory cgroup of 48 MB without swap; then endpoints change.";
    source::killed, "API server killed", OF_EACH_KIND, ONLY_IPVS, anywhere,
        "The API server dies while endpoints change, and returns with other endpoints and without watch history.";
    source::emptied, "all API objects deleted", BY_KERNEL, ONLY_IPVS, anywhere,
        "The API server restarts with empty storage, and gets its objects back after 2 s. kube-proxy applies the empty list, so traffic fails for these 2 s.";
    source::garbage, "invalid API responses", ONLY_IPVS, NEVER, anywhere,
        "Another program replies instead of the API server, with invalid and empty responses.";
    source::silent, "silent watch", ONLY_IPVS, NEVER, anywhere,
        "The API server keeps the watches open, but sends nothing. kube-proxy must reopen them after 90 s without event or bookmark.";
    source::flood, "10,000 EndpointSlice changes/s", OF_EACH_KIND, ONLY_IPVS, anywhere,
        "For a minute, EndpointSlices of 1,000 Services change 10,000 times per second. Soon afterwards, the kernel must have the last state.";
    source::all_endpoints, "10,000 endpoints replaced", OF_EACH_KIND, NEVER, anywhere,
        "All 10,000 endpoints of one Service are replaced at once. Removed endpoints still answer, as gracefully terminating pods do.";
};
