//! Faults of the kernel, of iptables programs and of clocks: for example, the kernel loses, refuses
//! or delays netlink messages.

use std::fmt::Write as _;
use std::fs::File;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{Running, Signal};
use scenarios::Faults;

use super::limits::{group, pressed};
use crate::churn::Churn;
use crate::row::Row;
use crate::stage::{Promise, Stage, crowd, external};

pub(super) fn notices_lost(s: &mut Stage<'_>) -> Result<Row> {
    let api = s.serve_on_api(&[])?;
    s.c.sh("ip link add lost0 type dummy; ip link set lost0 up")?;
    s.traffic()?;
    s.c.signal(Signal::STOP)?;
    // Causes more netlink notifications than fit into the daemon's socket buffer. One of them
    // reports a deleted Service address, which the daemon must add again although the kernel drops
    // notifications.
    let mut script = String::new();
    for number in 0..s.size.pick(1_500, 6_000) {
        let (high, low) = (number / 250, number % 250 + 1);
        let _ = writeln!(script, "address add 198.18.{high}.{low}/32 dev lost0");
    }
    std::fs::write(s.c.folder().join("batch"), &script)?;
    let batch = s.c.folder().join("batch").display().to_string();
    let run = |s: &Stage<'_>| {
        s.c.sh(&format!("ip -batch {batch}; ip address flush dev lost0"))
    };
    run(s)?;
    let damaged = Instant::now();
    s.c.sh("ip address del 10.96.0.10/32 dev kube-ipvs0")?;
    run(s)?;
    s.c.signal(Signal::CONT)?;
    let awake = Instant::now();
    s.until_holds(
        "ip address show dev kube-ipvs0 | grep -q 10.96.0.10/32",
        damaged,
    )?;
    s.repaired(awake.elapsed());
    ensure!(
        awake.elapsed() < Duration::from_secs(5),
        "it took {:.1?}",
        awake.elapsed()
    );
    s.expect_drift(&["address"])?;
    s.follows(&api.objects())?;
    s.did("read all addresses again, and bound the deleted one");
    s.close(
        damaged,
        Promise::WholeWithin(damaged.elapsed() + Duration::from_secs(3)),
    )
}

pub(super) fn dumps_interrupted(s: &mut Stage<'_>) -> Result<Row> {
    // Keeps changing each kind of kernel entry that the daemon dumps, which interrupts its dumps.
    let script =
        "ip link add busy0 type dummy; ip link set busy0 up; ipset create BUSY hash:ip 2>/dev/null
        i=0; while :; do i=$(((i + 1) % 200))
        ip address add 198.18.1.$i/32 dev busy0; ip address del 198.18.1.$i/32 dev busy0
        ipvsadm -A -t 198.18.2.$i:80 2>/dev/null && ipvsadm -D -t 198.18.2.$i:80
        ipset create BUSY$i hash:ip && ipset destroy BUSY$i
        iptables-$backend -t nat -N BUSY$i; iptables-$backend -t nat -X BUSY$i; done 2>/dev/null";
    let api = s.serve_on_api(&[])?;
    api.apply(&crowd(s.size.pick(50, 500)))?;
    s.follows(&api.objects())?;
    s.traffic()?;
    let began = Instant::now();
    let busy: Running =
        s.c.node1
            .spawn(["sh", "-c", &scenarios::with_backend(script)])?;
    let lasting = s.size.period * s.size.pick(2, 3);
    let (made, took) = s.follows_changes(&api, (s.size.pick(50, 500), 100), lasting)?;
    drop(busy);
    s.repaired(took);
    s.did(format!(
        "repeated interrupted dumps, and applied {made} changes"
    ));
    s.close(began, Promise::NothingFails)
}

pub(super) fn small_buffers(s: &mut Stage<'_>) -> Result<Row> {
    // Sets the sizes of socket buffers to the minimum that Linux accepts. Only the initial network
    // namespace has these sysctls, but they apply to all namespaces.
    const LEAST: &str = "for n in rmem_default rmem_max wmem_default wmem_max; do
        cat /proc/sys/net/core/$n; echo 4608 >/proc/sys/net/core/$n; done";
    let api = s.serve_on_api(&[])?;
    let count = s.size.pick(100, 1_000);
    api.apply(&crowd(count))?;
    s.follows(&api.objects())?;
    s.traffic()?;
    let began = Instant::now();
    s.c.stop()?;
    let before = std::process::Command::new("sh")
        .args(["-ec", LEAST])
        .output()?;
    ensure!(before.status.success(), "the buffers cannot be made small");
    let before = String::from_utf8_lossy(&before.stdout).into_owned();
    s.launch_on(&api, &[])?;
    let outcome = (|| -> Result<(Duration, usize, Duration)> {
        let ready = s.until_ready()?;
        let (made, took) = s.follows_changes(&api, (count, 300), s.size.period * 2)?;
        Ok((ready, made, took))
    })();
    for (name, value) in ["rmem_default", "rmem_max", "wmem_default", "wmem_max"]
        .iter()
        .zip(before.lines())
    {
        std::fs::write(format!("/proc/sys/net/core/{name}"), value)?;
    }
    let (ready, made, took) = outcome?;
    s.repaired(took);
    s.did(format!(
        "was ready after {ready:.1?}, and applied {made} changes"
    ));
    s.close(began, Promise::NothingFails)
}

pub(super) fn memory_group(s: &mut Stage<'_>) -> Result<Row> {
    const BESIDE: u64 = 4 << 20;
    let api = s.serve_on_api(&[])?;
    let count = s.size.pick(100, 1_000);
    api.apply(&crowd(count))?;
    s.follows(&api.objects())?;
    s.c.stop()?;
    s.c.prefix = group("pressed", 1 << 30)?;
    s.launch_on(&api, &[])?;
    s.until_served()?;
    s.traffic()?;
    let began = Instant::now();
    let now: u64 =
        s.c.sh("cat /tmp/group/pressed/memory.current")?
            .trim()
            .parse()?;
    let limit = now + BESIDE;
    s.c.sh(&format!("echo {limit} >/tmp/group/pressed/memory.max"))?;
    let (made, took) = s.follows_changes(&api, (count, 300), s.size.period * 2)?;
    let (ended, _) = pressed(s, "pressed")?;
    ensure!(ended == 0, "the kernel has ended it {ended} times");
    s.repaired(took);
    s.did(format!(
        "applied {made} changes in {} MB of memory",
        limit >> 20
    ));
    s.close(began, Promise::NothingFails)
}

pub(super) fn lock_held(s: &mut Stage<'_>) -> Result<Row> {
    let api = s.serve_on_api(&[])?;
    s.traffic()?;
    let began = Instant::now();
    let held = Duration::from_secs(s.size.pick(5, 60));
    let lock = File::create("/run/xtables.lock")?;
    lock.lock()?;
    // In IPVS mode with upstream's shim, no rule depends on endpoints. So a change of endpoints
    // must not wait for the xtables lock.
    let is_free = s.mode.name == "ipvs";
    let churn = Churn::start(api.objects(), 0, 100);
    let mut slowest = Duration::ZERO;
    if is_free {
        while began.elapsed() < held {
            slowest = slowest.max(s.follows(&api.objects())?);
            sleep(Duration::from_millis(300));
        }
    } else {
        sleep(held);
    }
    churn.stop()?;
    drop(lock);
    let released = Instant::now();
    s.follows(&api.objects())?;
    s.repaired(released.elapsed());
    s.did(if is_free {
        format!("applied endpoint changes after {slowest:.1?} at most")
    } else {
        "waited for the lock, and then wrote all changes".to_owned()
    });
    s.close(began, Promise::NothingFails)
}

/// Adds a Service with an external IP, which needs new rules, while `breaks` makes an iptables
/// program faulty. Checks that the daemon logs the failure, and writes the rules after `restore`.
fn with_external_ip(
    s: &mut Stage<'_>,
    restore: impl FnOnce() -> Result<()>,
    breaks: impl FnOnce() -> Result<()>,
) -> Result<Row> {
    s.traffic()?;
    let began = Instant::now();
    breaks()?;
    s.c.apply(&external())?;
    s.expect_line("iptables")?;
    sleep(Duration::from_secs(s.size.pick(2, 10)));
    restore()?;
    let mended = Instant::now();
    s.c.until_answered(&s.c.outside, "192.0.2.20:80")?;
    s.repaired(mended.elapsed());
    s.did("logged the failure, kept the old rules, and later wrote the new ones");
    s.close(began, Promise::NothingFails)
}

pub(super) fn restore_fails(s: &mut Stage<'_>) -> Result<Row> {
    let faults = Faults::prepare(s.c)?;
    s.serve(&[])?;
    let mut failing = Vec::new();
    let held = std::cell::RefCell::new(&mut failing);
    with_external_ip(
        s,
        || {
            held.borrow_mut().clear();
            Ok(())
        },
        || {
            for program in ["iptables restore", "ip6tables restore"] {
                held.borrow_mut().push(faults.fail(program)?);
            }
            Ok(())
        },
    )
}

/// Paths of `iptables-restore` and `ip6tables-restore`, each with the path to which a test moves
/// the program. Dropping this value moves them back.
struct Away(Vec<(PathBuf, PathBuf)>);

impl Away {
    fn find(s: &Stage<'_>) -> Result<Self> {
        let mut files = Vec::new();
        for stem in ["iptables", "ip6tables"] {
            let file = s.c.sh(&format!("command -v {stem}-$backend-restore"))?;
            let file = PathBuf::from(file.trim());
            files.push((file.clone(), file.with_extension("away")));
        }
        Ok(Self(files))
    }

    fn go(&self) -> Result<()> {
        for (here, away) in &self.0 {
            std::fs::rename(here, away)?;
        }
        Ok(())
    }

    fn come_back(&self) -> Result<()> {
        for (here, away) in self
            .0
            .iter()
            .filter(|(_, away)| away.is_symlink() || away.exists())
        {
            std::fs::rename(away, here)?;
        }
        Ok(())
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        let _ = self.come_back();
    }
}

pub(super) fn restore_missing(s: &mut Stage<'_>) -> Result<Row> {
    s.serve(&[])?;
    let programs = Away::find(s)?;
    with_external_ip(s, || programs.come_back(), || programs.go())
}

pub(super) fn clock_jumps(s: &mut Stage<'_>) -> Result<Row> {
    const YEARS: i64 = 10 * 365 * 86_400;
    let api = s.serve_on_api(&[])?;
    s.traffic()?;
    let began = Instant::now();
    let churn = Churn::start(api.objects(), 0, 100);
    let now = || {
        s.c.sh("date +%s")
            .map(|text| text.trim().parse::<i64>().unwrap_or_default())
    };
    let (start, rest) = (now()?, Duration::from_millis(s.size.pick(400, 5_000)));
    let mut slowest = Duration::ZERO;
    for to in [start + YEARS, 40_000_000, start] {
        s.c.sh(&format!("date -s @{to} >/dev/null"))?;
        sleep(rest);
        slowest = slowest.max(s.follows(&api.objects())?);
    }
    churn.stop()?;
    s.did(format!("applied changes after {slowest:.1?} at most"));
    ensure!(
        scenarios::health(s.c, "/readyz")? == 200 && scenarios::health(s.c, "/healthz")? == 200,
        "it is not healthy"
    );
    s.sees("/readyz and /healthz 200");
    s.close(began, Promise::NothingFails)
}
