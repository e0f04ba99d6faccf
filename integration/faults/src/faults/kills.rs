//! Faults in which the daemon gets SIGKILL, SIGTERM or SIGSTOP while it works.

use std::fmt::Write as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::Signal;
use scenarios::Service;

use crate::churn::Churn;
use crate::mode::IPTABLES;
use crate::row::Row;
use crate::stage::{Promise, Stage, crowd, web};

/// Kills the daemon while it starts. Each attempt is killed later than the one before, until a
/// start completes.
pub(super) fn cold_start(s: &mut Stage<'_>) -> Result<Row> {
    let rounds = s.size.pick(1, 3);
    s.c.write("crowd", &crowd(s.size.pick(100, 300)))?;
    let undisturbed = Instant::now();
    s.serve(&[])?;
    // With a step of a twentieth of an undisturbed start, but at least 50 ms, at most about 20 kills
    // precede a complete start, also on slow machines.
    let step = (undisturbed.elapsed() / 20).max(Duration::from_millis(50));
    let whole = s.c.state()?;
    let (mut kills, mut row) = (0, None);
    let began = Instant::now();
    for _ in 0..rounds {
        s.c.stop()?;
        clean_up(s)?;
        s.traffic_before()?;
        for kill in 1.. {
            s.launch(&[])?;
            sleep(step * kill);
            let is_done = scenarios::health(s.c, "/readyz").is_ok_and(|code| code == 200);
            s.c.kill()?;
            kills += 1;
            if is_done {
                break;
            }
        }
        s.launch(&[])?;
        s.until_served()?;
        s.holds(&whole)?;
        s.did(format!(
            "adopted the existing state after {kills} kills in {rounds} cold starts"
        ));
        if row.is_none() {
            s.sees("kernel state as after an undisturbed start");
        }
        let closed = s.close(began, Promise::NothingFails)?;
        row = Some(row.map_or(closed.clone(), |so_far: Row| Row {
            sent: so_far.sent + closed.sent,
            ..closed
        }));
    }
    row.ok_or_else(|| anyhow::anyhow!("no round"))
}

/// Removes all kernel state that the daemon has left (`kube-proxy --cleanup`).
fn clean_up(s: &Stage<'_>) -> Result<()> {
    let program = scenarios::kube_proxy()?;
    s.c.sh(&format!("{} --cleanup", program.display()))?;
    Ok(())
}

pub(super) fn change(s: &mut Stage<'_>) -> Result<Row> {
    let api = s.serve_on_api(&[])?;
    s.traffic()?;
    let began = Instant::now();
    let churn = Churn::start(api.objects(), 0, 100);
    let times: u32 = s.size.pick(5, 30);
    let mut slowest = Duration::ZERO;
    for kill in 0..times {
        // Interrupts each change after a different time.
        sleep(Duration::from_millis(250) + Duration::from_millis(37) * (kill % 11));
        s.c.kill()?;
        s.launch_on(&api, &[])?;
        slowest = slowest.max(s.until_ready()?);
    }
    let (made, _) = churn.stop()?;
    let took = s.follows(&api.objects())?;
    s.did(format!("adopted the existing state after {times} kills and {made} changes, ready after {slowest:.1?} at most"));
    s.repaired(took);
    s.close(began, Promise::NothingFails)
}

/// Returns the Service `web` with `count` source ranges for its load balancer, and the range of the
/// external host.
fn ranges(count: u32) -> Service {
    let mut ranges = String::from("172.35.0.0/24");
    for number in 0..count {
        let _ = write!(
            ranges,
            ", {}/32",
            std::net::Ipv4Addr::from(0x0b00_0000 + number)
        );
    }
    web().spec(&format!("loadBalancerSourceRanges: [{ranges}]"))
}

pub(super) fn set_swap(s: &mut Stage<'_>) -> Result<Row> {
    const SET: &str = "KUBE-LOAD-BALANCER-SOURCE-CIDR";
    const FEW: u32 = 65_400;
    let larger = |s: &Stage<'_>| -> Result<bool> {
        let header = s.c.sh(&format!("ipset list -t {SET}"))?;
        Ok(!header.contains("maxelem 65536 "))
    };
    s.c.apply(&ranges(FEW))?;
    s.launch(&[])?;
    s.until_served()?;
    let times = s.size.pick(3, 12);
    s.traffic()?;
    let began = Instant::now();
    let mut kills = 0;
    for round in 0..times {
        // 65,800 source ranges are more than the ipset can hold (65,536), so the daemon must swap
        // in a larger ipset.
        s.c.apply(&ranges(FEW + 400))?;
        sleep(Duration::from_millis(900 + 120 * round));
        s.c.kill()?;
        kills += 1;
        s.launch(&[])?;
        s.until_ready()?;
    }
    ensure!(larger(s)?, "the set has not grown");
    let left = s.c.sh("ipset list -n")?;
    ensure!(
        !left.contains("SPARE") && !left.contains("TMP"),
        "a set is left over: {left}"
    );
    s.did(format!("completed the swap despite {kills} kills"));
    s.sees(&format!(
        "{SET} with more than 65,536 members, no leftover set"
    ));
    s.close(began, Promise::NothingFails)
}

pub(super) fn terminated(s: &mut Stage<'_>) -> Result<Row> {
    /// Time limit for the daemon's exit after SIGTERM. The daemon exits immediately, but the VM is
    /// busy.
    const AT_ONCE: Duration = Duration::from_secs(2);
    /// Time limit for the daemon's exit after SIGTERM while `iptables-restore` runs. The daemon
    /// waits up to 6 s for this program, which could otherwise run in parallel with the next
    /// kube-proxy's.
    const AFTER_A_RESTORE: Duration = Duration::from_secs(8);
    let mut api = s.serve_on_api(&[])?;
    api.apply(&crowd(s.size.pick(50, 300)))?;
    s.traffic()?;
    let began = Instant::now();
    let churn = Churn::start(api.objects(), s.size.pick(50, 300), 200);
    let times: u32 = s.size.pick(5, 20);
    let mut slowest = Duration::ZERO;
    for time in 0..times {
        // Stops the daemon after different times: some during its start, some while it applies
        // changes.
        sleep(Duration::from_millis(60) * (time % 8));
        let asked = Instant::now();
        s.c.stop()?;
        slowest = slowest.max(asked.elapsed());
        s.launch_on(&api, &[])?;
        s.c.await_line("FLAG: ")?;
    }
    let (made, _) = churn.stop()?;
    s.until_served()?;
    s.follows(&api.objects())?;
    let patience = if s.mode.name == IPTABLES.name {
        AFTER_A_RESTORE
    } else {
        AT_ONCE
    };
    ensure!(slowest < patience, "it took {slowest:.1?} to end");
    api.stop();
    s.did(format!(
        "exited {times} times during {made} changes, at most {slowest:.1?} after SIGTERM, and kept the kernel state"
    ));
    s.close(began, Promise::NothingFails)
}

pub(super) fn stopped(s: &mut Stage<'_>) -> Result<Row> {
    let api = s.serve_on_api(&[])?;
    s.traffic()?;
    let began = Instant::now();
    let churn = Churn::start(api.objects(), 0, 100);
    let stands = Duration::from_secs(s.size.pick(3, 30));
    s.c.signal(Signal::STOP)?;
    sleep(stands);
    s.c.signal(Signal::CONT)?;
    let awake = Instant::now();
    churn.stop()?;
    s.follows(&api.objects())?;
    s.repaired(awake.elapsed());
    s.did(format!(
        "was paused for {stands:.0?}, and then wrote the pending changes"
    ));
    s.close(began, Promise::NothingFails)
}
