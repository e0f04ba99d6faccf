//! Faults in which the daemon lacks disk space, writable files, file descriptors or memory.

use std::ffi::OsString;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use scenarios::{Cluster, METRICS, at, health};

use crate::row::Row;
use crate::stage::{Promise, Stage, crowd_of_ipv4};

/// Restarts the daemon under traffic, with the command prefix `prefix`, which limits its resources.
/// Checks that it becomes ready, and applies changes of endpoints.
///
/// - `until_ready` waits until the daemon is ready. It returns the time that this took, and a value
///   that is dropped after the changes (such as open connections).
/// - `ending` formats this value as the end of the row's text.
fn restart_behind<T>(
    s: &mut Stage<'_>,
    prefix: &[&str],
    until_ready: impl FnOnce(&mut Stage<'_>) -> Result<(Duration, T)>,
    ending: impl FnOnce(&T) -> String,
) -> Result<Row> {
    let api = s.serve_on_api(&[])?;
    s.traffic()?;
    let began = Instant::now();
    s.c.stop()?;
    s.c.prefix = prefix.iter().map(Into::into).collect();
    s.launch_on(&api, &[])?;
    let (ready, kept) = until_ready(s)?;
    let lasting = Duration::from_secs(s.size.pick(1, 5));
    let (_, took) = s.follows_changes(&api, (0, 100), lasting)?;
    s.repaired(ready);
    s.did(format!(
        "was ready after {ready:.1?}, and applied changes within {took:.1?}{}",
        ending(&kept)
    ));
    s.close(began, Promise::NothingFails)
}

pub(super) fn full_disk(s: &mut Stage<'_>) -> Result<Row> {
    // Redirects the daemon's log into a file on a full file system, as when a container's log fills
    // the disk.
    let script = "mkdir -p /run/full; mount -t tmpfs -o size=64k none /run/full
        cat /dev/zero >/run/full/filler 2>/dev/null
        ! (echo more >/run/full/more) 2>/dev/null || exit 1
        export TMPDIR=/run/full; cd /run/full; exec \"$@\" >log 2>&1";
    let prefix = ["unshare", "--mount", "sh", "-c", script, "sh"];
    let is_ready = |c: &Cluster| health(c, "/readyz").is_ok_and(|code| code == 200);
    let until_ready = |s: &mut Stage<'_>| {
        let ready = s.c.until("it is ready", || Ok(is_ready(s.c)))?;
        Ok((ready, ()))
    };
    restart_behind(s, &prefix, until_ready, |()| " without a log".to_owned())
}

pub(super) fn read_only(s: &mut Stage<'_>) -> Result<Row> {
    let script = "mount --bind -o ro /run /run && mount -o remount,bind,ro /run
        mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys
        touch /run/kube-proxy-may-not 2>/dev/null && exit 3
        (echo 1 >/proc/sys/net/ipv4/ip_forward) 2>/dev/null && exit 4
        exec \"$@\"";
    let prefix = ["unshare", "--mount", "sh", "-c", script, "sh"];
    let until_ready = |s: &mut Stage<'_>| Ok((s.until_ready()?, ()));
    restart_behind(s, &prefix, until_ready, |()| String::new())
}

pub(super) fn descriptors(s: &mut Stage<'_>) -> Result<Row> {
    let until_ready = |s: &mut Stage<'_>| {
        let ready = s.until_ready()?;
        // Opens more connections to the daemon than it may have file descriptors.
        let mut idle = Vec::new();
        for _ in 0..100 {
            let connect = || TcpStream::connect_timeout(&at(METRICS), Duration::from_secs(1));
            idle.extend(s.c.node1.enter(connect).ok());
        }
        let opened = idle.len();
        ensure!(opened > 8, "only {opened} connections could be opened");
        Ok((ready, idle))
    };
    restart_behind(s, &["prlimit", "--nofile=64:64"], until_ready, |idle| {
        format!(" despite {} idle connections", idle.len())
    })
}

/// Creates a cgroup with a memory limit (`limit`, in bytes). Returns a command prefix that runs a
/// program in this cgroup.
pub(super) fn group(name: &str, limit: u64) -> Result<Vec<OsString>> {
    // Mounts the cgroup file system outside of the node, because the node's mounts are private.
    let script = format!(
        "grep -q ' /tmp/group cgroup2 ' /proc/mounts || {{ mkdir -p /tmp/group; mount -t cgroup2 none /tmp/group; }}
         echo +memory >/tmp/group/cgroup.subtree_control; mkdir -p /tmp/group/{name}
         echo {limit} >/tmp/group/{name}/memory.max"
    );
    let made = Command::new("sh").args(["-ec", &script]).status()?;
    ensure!(made.success(), "no memory group can be made");
    let enter = format!("echo $$ >/tmp/group/{name}/cgroup.procs; exec \"$@\"");
    Ok(["sh", "-ec", &enter, "sh"].map(Into::into).to_vec())
}

/// Returns the number of the kernel's out-of-memory kills in the cgroup, and the cgroup's peak
/// memory in bytes (or its current memory on an older kernel).
pub(super) fn pressed(s: &Stage<'_>, name: &str) -> Result<(u64, u64)> {
    let number = |script: &str| -> Result<u64> { Ok(s.c.sh(script)?.trim().parse()?) };
    let ended = number(&format!(
        "sed -n 's/^oom_kill //p' /tmp/group/{name}/memory.events"
    ))?;
    let now = number(&format!(
        "cat /tmp/group/{name}/memory.peak 2>/dev/null || cat /tmp/group/{name}/memory.current"
    ))?;
    Ok((ended, now))
}

pub(super) fn small_memory(s: &mut Stage<'_>) -> Result<Row> {
    const COUNT: usize = 10_000;
    const LIMIT: u64 = 48 << 20;
    s.c.patience = Duration::from_mins(4);
    let count = s.size.pick(500, COUNT);
    let api = s.serve_on_api(&[])?;
    for part in crowd_of_ipv4(count)
        .split_inclusive("\n---\n")
        .collect::<Vec<_>>()
        .chunks(1_000)
    {
        api.apply(&part.concat())?;
    }
    s.follows(&api.objects())?;
    s.traffic()?;
    let began = Instant::now();
    s.c.stop()?;
    s.c.prefix = group("small", LIMIT)?;
    s.launch_on(&api, &[])?;
    let ready = s.until_ready()?;
    // Changes endpoints for longer than a sync period, so that a periodic check of the kernel runs
    // meanwhile.
    let (made, _) = s.follows_changes(&api, (0, 100), s.size.period * 3 / 2)?;
    let (ended, peak) = pressed(s, "small").context("the memory group")?;
    ensure!(ended == 0, "the kernel has ended it {ended} times");
    s.repaired(ready);
    let megabytes = peak >> 20;
    s.did(format!("adopted {count} Services within {ready:.0?}, and applied {made} changes in {megabytes} MB of memory"));
    s.close(began, Promise::NothingFails)
}
