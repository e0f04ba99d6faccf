//! Waiting until the kernel holds what it must.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::time::{ClockId, clock_gettime};

use crate::kernel::{CLUSTER_IP, IPVS_IPS, Kernel, LOOP_BACK, Snapshot};
use crate::objects::{Objects, PORT};
use crate::schema::{Mode, Outcome, State};

/// How many Services are looked up at most before everything is read.
const SAMPLE: u32 = 100;
/// Between two looks, at a state of many entries: a look takes two system calls, less than 2 % of this.
const PAUSE: Duration = Duration::from_millis(5);
/// How much longer than a look's CPU time a pause is at least: some looks read a whole table.
const REST: u32 = 10;
/// Between two readings of a whole state in which nothing is missing, but something is too many.
const WHOLE_PAUSE: Duration = Duration::from_millis(50);

/// This thread runs only when no other wants to (`SCHED_IDLE`), as long as this is held. What it starts meanwhile would too.
#[derive(Debug)]
pub(crate) struct Background;

impl Background {
    pub(crate) fn enter() -> Result<Self> {
        schedule(libc::SCHED_IDLE)?;
        // Whoever can run does so now: the kernel notices a change of policy at its next tick only, 10 ms away.
        std::thread::yield_now();
        Ok(Self)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = schedule(libc::SCHED_OTHER);
    }
}

#[allow(unsafe_code, reason = "no crate offers this system call")]
fn schedule(policy: libc::c_int) -> Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure outlives the call, which only reads it; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    ensure!(
        result == 0,
        "cannot set the scheduling policy: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// How waiting ended.
#[derive(Debug)]
pub(crate) enum Waited {
    /// All is there; since when, as the cheap looks saw it, and the state.
    Done(Instant, State),
    /// It took too long, or it came out wrong.
    Not(Outcome),
}

/// Waits until the kernel holds `wanted` of these Services, and no others of them, and rules in both families where there are any
/// (a family that has no Service has its shim nevertheless), at most until `limit` after `started`.
/// `alive` fails when the subject has ended.
pub(crate) fn until(
    kernel: &mut Kernel,
    mode: Mode,
    wanted: &Snapshot,
    services: u32,
    started: Instant,
    limit: Duration,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<Waited> {
    // Not in the background: a subject that goes on to look at what it wrote would hide when it was there.
    let mut looks = sample(services);
    let mut unwanted = None;
    let deadline = started + limit;
    loop {
        // The cheap looks.
        loop {
            let before = own_cpu();
            if seen(kernel, mode, wanted, &mut looks, unwanted.as_ref())?
                && kernel.has_rules_in_both()?
            {
                break;
            }
            alive()?;
            if Instant::now() > deadline {
                return Ok(Waited::Not(over(kernel, limit)?));
            }
            std::thread::sleep(PAUSE.max(own_cpu().saturating_sub(before) * REST));
        }
        let since = Instant::now();
        let rules = kernel.rules()?;
        let found = kernel.snapshot()?;
        if found == *wanted {
            return Ok(Waited::Done(since, found.state(rules)));
        }
        alive()?;
        if Instant::now() > deadline {
            let differences = found.differences(wanted);
            return Ok(Waited::Not(if found.holds(wanted) {
                Outcome::Wrong { differences }
            } else {
                Outcome::Over {
                    limit_s: limit.as_secs(),
                    reached: differences,
                }
            }));
        }
        let lacking = found.lacking(wanted);
        if mode == Mode::Iptables && !lacking.is_empty() {
            let of = |address: &Ipv4Addr| wanted.servers.get(&SocketAddrV4::new(*address, PORT));
            let reals = lacking.iter().take(SAMPLE as usize).filter_map(of);
            let names = reals.flatten().map(|at| *at.ip()).collect();
            unwanted = Some(Unwanted { rules, names });
            continue;
        }
        looks = lacking.into_iter().collect();
        if looks.is_empty() {
            std::thread::sleep(WHOLE_PAUSE);
        }
    }
}

/// CPU time of this thread: what a look takes from the subject.
fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A table that was not as wanted.
struct Unwanted {
    rules: u64,
    /// Endpoints that some Services lacked: when the rules name them all, the whole is worth reading again.
    names: Vec<Ipv4Addr>,
}

/// Services to look up: the first, the last, and some between them in no order that a program might have too.
fn sample(services: u32) -> Vec<Ipv4Addr> {
    // A prime, so that the steps visit the Services in a scattered order.
    const STEP: u32 = 7_919;
    (0..SAMPLE.min(services))
        .map(|turn| turn * STEP % services)
        .chain([0, services.saturating_sub(1)])
        .map(Objects::address)
        .collect()
}

/// Whether these Services are as wanted; those that are need not be looked at again. `unwanted`: a table that was not.
fn seen(
    kernel: &mut Kernel,
    mode: Mode,
    wanted: &Snapshot,
    looks: &mut Vec<Ipv4Addr>,
    unwanted: Option<&Unwanted>,
) -> Result<bool> {
    if mode == Mode::Iptables {
        // A table is replaced as a whole; each destination takes three rules, each Service one.
        let reals: usize = wanted.servers.values().map(BTreeSet::len).sum();
        let rules = kernel.rules()?;
        let are_enough = rules >= (wanted.servers.len() + 3 * reals) as u64;
        return match unwanted {
            // As many as before: others only if they name what was missing.
            Some(unwanted) if are_enough && unwanted.rules == rules => {
                kernel.rules_name(&unwanted.names, None)
            }
            _ => Ok(are_enough),
        };
    }
    while let Some(&address) = looks.last() {
        let reals = wanted.servers.get(&SocketAddrV4::new(address, PORT));
        let is_seen = match reals {
            Some(reals) => kernel.is_local(address)? && kernel.reals(address)? == *reals,
            None => !kernel.is_local(address)? && kernel.reals(address)?.is_empty(),
        };
        if !is_seen {
            return Ok(false);
        }
        looks.pop();
    }
    let sets = [
        (CLUSTER_IP, wanted.cluster_ip.len()),
        (IPVS_IPS, wanted.ipvs_ips.len()),
        (LOOP_BACK, wanted.loop_back.len()),
    ];
    for (set, members) in sets {
        if kernel.members(set)? != members as u64 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn over(kernel: &mut Kernel, limit: Duration) -> Result<Outcome> {
    let found = kernel.snapshot()?;
    let state = found.state(0);
    Ok(Outcome::Over {
        limit_s: limit.as_secs(),
        reached: format!(
            "{} virtual servers, {} destinations, {} addresses",
            state.servers, state.destinations, state.addresses
        ),
    })
}
