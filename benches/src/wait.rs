//! Waits until the kernel has the expected state.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::time::{ClockId, clock_gettime};

use crate::kernel::{CLUSTER_IP, IPVS_IPS, Kernel, LOOP_BACK, Snapshot};
use crate::nat::Length;
use crate::objects::{Objects, PORT};
use crate::rules::Rules;
use crate::schema::{KernelDigest, Mode, Outcome};

/// Number of Services that quick checks look up before the whole state is compared.
const SAMPLE: u32 = 100;
/// Minimum pause between two quick checks. A check makes two system calls, which take less than 2 %
/// of the pause.
const PAUSE: Duration = Duration::from_millis(5);
/// Minimum pause after a quick check, as a multiple of the CPU time of the check. Without it,
/// checks that read a whole table would slow down the measured program. A check at background
/// priority takes no CPU time from the program, so there the multiple is 1.
const REST: u32 = 10;
/// Pause between two reads of the whole state, while the measured program still has to remove
/// entries.
const WHOLE_PAUSE: Duration = Duration::from_millis(50);

/// Guard that gives this thread the background priority `SCHED_IDLE` until it is dropped. Threads
/// and processes that it starts inherit the priority.
#[derive(Debug)]
pub(crate) struct Background;

impl Background {
    pub(crate) fn enter() -> Result<Self> {
        schedule(libc::SCHED_IDLE)?;
        // Yields the CPU, because the new priority otherwise takes effect only at the kernel's next
        // tick, up to 10 ms later.
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
    // SAFETY: the call only reads the structure, which outlives it. The process ID 0 is the calling
    // thread.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    ensure!(
        result == 0,
        "cannot set the scheduling policy: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}

/// Reason why a wait has ended.
#[derive(Debug)]
pub(crate) enum WaitEnd {
    /// The kernel has the expected state. Contains the time of the first quick check that
    /// succeeded, and a digest of the state.
    Done(Instant, KernelDigest),
    /// The measured program did not write the expected state in time, or it wrote a wrong state.
    Not(Outcome),
}

/// Waits until the kernel has exactly the Services of `wanted`, and rules in both IP families (even
/// an IP family without Services has some rules).
///
/// Gives up `limit` after `started`. `alive` must return an error if the measured program has
/// ended.
pub(crate) fn until(
    kernel: &mut Kernel,
    mode: Mode,
    wanted: &Snapshot,
    services: u32,
    started: Instant,
    limit: Duration,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<WaitEnd> {
    // Runs the quick checks at normal priority. At background priority, they would notice the state
    // too late, because the program continues to work after its writes.
    let mut looks = match mode {
        Mode::Ipvs => LookSubject::Servers(sample(services)),
        Mode::Nftables => LookSubject::Elements(sample(services)),
        Mode::Iptables | Mode::Userspace => LookSubject::Table {
            services: sample(services),
            // After a restart, a change or a deletion, the table is long enough from the start. So
            // its length does not prove that the program is done.
            unwanted: Some(kernel.nat()?.length()?)
                .filter(|length| are_enough(mode, wanted, *length)),
        },
    };
    let deadline = started + limit;
    loop {
        // Repeats the quick check until it succeeds.
        let since = loop {
            let before = own_cpu();
            let look = match &mut looks {
                LookSubject::Servers(services) => seen(kernel, wanted, services)?,
                LookSubject::Elements(services) => carried(kernel, wanted, services)?,
                LookSubject::Table { services, unwanted } => {
                    reached(kernel, mode, wanted, services, unwanted)?
                }
            };
            let rest = match look {
                LookResult::Done(since) if kernel.is_in_both()? => break since,
                LookResult::NotYet { rest } => rest,
                LookResult::Done(_) => REST,
            };
            alive()?;
            if Instant::now() > deadline {
                return Ok(WaitEnd::Not(over(kernel, wanted, limit)?));
            }
            std::thread::sleep(PAUSE.max(own_cpu().saturating_sub(before) * rest));
        };
        let rules = kernel.rules()?;
        let length = match looks {
            LookSubject::Table { .. } => kernel.nat()?.length()?,
            _ => Length::default(),
        };
        let found = kernel.snapshot(wanted)?;
        if found == *wanted {
            return Ok(WaitEnd::Done(since, found.state(rules)));
        }
        alive()?;
        if Instant::now() > deadline {
            let differences = found.differences(wanted);
            return Ok(WaitEnd::Not(if found.holds(wanted) {
                Outcome::Wrong { differences }
            } else {
                Outcome::Over {
                    limit_s: limit.as_secs(),
                    reached: differences,
                }
            }));
        }
        let lacking = found.lacking(wanted).into_iter();
        match &mut looks {
            LookSubject::Servers(services) | LookSubject::Elements(services) => {
                *services = lacking.collect();
                if services.is_empty() {
                    std::thread::sleep(WHOLE_PAUSE);
                }
            }
            LookSubject::Table { services, unwanted } => {
                let amiss = lacking.chain(found.excess(wanted));
                *services = amiss.take(SAMPLE as usize).collect();
                *unwanted = Some(length);
            }
        }
    }
}

/// Entries of the kernel that the quick check still has to find.
enum LookSubject {
    /// IPVS mode: virtual servers that are not correct yet. The check also compares the number of
    /// members of the ipsets.
    Servers(Vec<Ipv4Addr>),
    /// nftables mode: Services whose chains or map elements are not correct yet.
    Elements(Vec<Ipv4Addr>),
    /// iptables mode and userspace mode: the nat table, which the kernel returns only as a whole.
    Table {
        /// Addresses of Services that are not correct yet.
        services: Vec<Ipv4Addr>,
        /// Length of the table at which it was last incorrect. While this is `None`, the check
        /// compares only the length, and does not read the table.
        unwanted: Option<Length>,
    },
}

/// Returns the CPU time of this thread, which was not available to the measured program.
fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map(Duration::from).unwrap_or_default()
}

/// Returns the addresses of the Services to look up: the first, the last and others in a scattered
/// order, in which no kube-proxy is likely to write.
fn sample(services: u32) -> Vec<Ipv4Addr> {
    // A prime number, so that the steps visit all Services in a scattered order.
    const STEP: u32 = 7_919;
    (0..SAMPLE.min(services))
        .map(|turn| turn * STEP % services)
        .chain([0, services.saturating_sub(1)])
        .map(Objects::address)
        .collect()
}

/// Result of a quick check of the kernel.
enum LookResult {
    /// All looked-up entries were correct at this time.
    Done(Instant),
    /// An entry is missing or wrong. The next check must wait for at least `rest` times the CPU
    /// time of this check.
    NotYet { rest: u32 },
}

/// Quick check in IPVS mode: looks up virtual servers and the sizes of the ipsets. Removes correct
/// Services from `services`.
fn seen(
    kernel: &mut Kernel,
    wanted: &Snapshot,
    services: &mut Vec<Ipv4Addr>,
) -> Result<LookResult> {
    while let Some(&address) = services.last() {
        let reals = wanted.servers.get(&SocketAddrV4::new(address, PORT));
        let is_seen = match reals {
            Some(reals) => kernel.is_local(address)? && kernel.reals(address)? == *reals,
            None => !kernel.is_local(address)? && kernel.reals(address)?.is_empty(),
        };
        if !is_seen {
            return Ok(LookResult::NotYet { rest: REST });
        }
        services.pop();
    }
    let sets = [
        (CLUSTER_IP, wanted.cluster_ip.len()),
        (IPVS_IPS, wanted.ipvs_ips.len()),
        (LOOP_BACK, wanted.loop_back.len()),
    ];
    for (set, members) in sets {
        if kernel.members(set)? != members as u64 {
            return Ok(LookResult::NotYet { rest: REST });
        }
    }
    Ok(LookResult::Done(Instant::now()))
}

/// Quick check in nftables mode: looks up the Services' chains or map elements. Removes correct
/// Services from `services`.
fn carried(
    kernel: &mut Kernel,
    wanted: &Snapshot,
    services: &mut Vec<Ipv4Addr>,
) -> Result<LookResult> {
    let none = BTreeSet::new();
    while let Some(&address) = services.last() {
        let reals = wanted.servers.get(&SocketAddrV4::new(address, PORT));
        if !kernel.serves(address, reals.unwrap_or(&none))? {
            return Ok(LookResult::NotYet { rest: REST });
        }
        services.pop();
    }
    Ok(LookResult::Done(Instant::now()))
}

/// Quick check in iptables and userspace mode: compares the table's length, then the destinations
/// of packets to the Services. Removes correct Services from `services`.
fn reached(
    kernel: &mut Kernel,
    mode: Mode,
    wanted: &Snapshot,
    services: &mut Vec<Ipv4Addr>,
    unwanted: &mut Option<Length>,
) -> Result<LookResult> {
    let length = kernel.nat()?.length()?;
    let since = Instant::now();
    if !are_enough(mode, wanted, length) {
        return Ok(LookResult::NotYet { rest: REST });
    }
    if unwanted.is_none() {
        return Ok(LookResult::Done(since));
    }
    // The table has the length at which it was last incorrect, but may have been replaced. Only a
    // read can tell. It takes long, so it runs at background priority.
    let background = if *unwanted == Some(length) {
        Some(Background::enter()?)
    } else {
        None
    };
    let (table, length) = kernel.nat()?.read()?;
    *unwanted = Some(length);
    let rules = Rules::new(&table);
    while let Some(&address) = services.last() {
        let at = SocketAddrV4::new(address, PORT);
        let targets = rules.targets(at)?;
        if wanted
            .servers
            .get(&at)
            .map_or(!targets.is_empty(), |reals| match mode {
                // In userspace mode, a correct Service has rules that lead to a single port of the
                // daemon.
                Mode::Userspace => targets.len() != 1,
                _ => *reals != targets,
            })
        {
            let rest = if background.is_some() { 1 } else { REST };
            return Ok(LookResult::NotYet { rest });
        }
        services.pop();
    }
    // A read at background priority may end long after the query of the length. Then the time of
    // success is the end of the read.
    Ok(LookResult::Done(
        background.map_or(since, |_| Instant::now()),
    ))
}

/// Returns true if the nat table can be complete by its number of rules: three for each
/// destination, and one for each Service. In userspace mode: two for each Service.
fn are_enough(mode: Mode, wanted: &Snapshot, length: Length) -> bool {
    let services = wanted.servers.len();
    let reals: usize = wanted.servers.values().map(BTreeSet::len).sum();
    let least = match mode {
        Mode::Userspace => 2 * services,
        _ => services + 3 * reals,
    };
    length.rules >= least as u64
}

fn over(kernel: &mut Kernel, wanted: &Snapshot, limit: Duration) -> Result<Outcome> {
    let found = kernel.snapshot(wanted)?;
    let state = found.state(0);
    Ok(Outcome::Over {
        limit_s: limit.as_secs(),
        reached: format!(
            "{} virtual servers, {} destinations, {} addresses",
            state.servers, state.destinations, state.addresses
        ),
    })
}

#[cfg(test)]
mod tests {
    use lab::{Place, World};

    use super::*;
    use crate::kernel::SetsIn;
    use crate::rules::tests::{LEFTOVERS, WAYS, table};

    const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");

    /// Creates a host with the iptables rules of a file, and with some IPv6 rules.
    fn host_with(world: &mut World, rules: &str) -> Place {
        let host = world.host("host", "172.35.0.200/24").unwrap();
        let script = "iptables-legacy-restore < \"$1\"; ip6tables-legacy -t nat -N KUBE-SERVICES";
        let file = format!("{DATA}/{rules}.rules");
        host.read(["sh", "-ec", script, "sh", &file]).unwrap();
        host
    }

    fn reals<const N: usize>(texts: [&str; N]) -> BTreeSet<SocketAddrV4> {
        texts.map(|text| text.parse().unwrap()).into()
    }

    #[test]
    #[ignore = "needs a kernel with legacy iptables: run by make test in the lab"]
    fn a_captured_table_equals_the_table_of_the_running_kernel() {
        let mut world = World::new("layout").unwrap();
        for (rules, captured) in [("leftovers", LEFTOVERS), ("ways", WAYS)] {
            let host = host_with(&mut world, rules);
            let kernel = Kernel::open(&host, Mode::Iptables, SetsIn::Ipset).unwrap();
            let (found, _) = kernel.nat().unwrap().read().unwrap();
            assert!(found == table(captured), "{rules}");
            world.remove(&host);
        }
    }

    #[test]
    #[ignore = "needs a kernel with legacy iptables: run by make test in the lab"]
    fn unreachable_leftover_rules_do_not_delay_the_end_of_a_wait() {
        let mut world = World::new("leftovers").unwrap();
        let host = host_with(&mut world, "leftovers");
        let mut kernel = Kernel::open(&host, Mode::Iptables, SetsIn::Ipset).unwrap();
        let mut serves = |service, wanted: &BTreeSet<_>| {
            let address = Objects::address(service);
            kernel.serves(address, wanted).unwrap()
        };
        assert!(serves(0, &reals(["10.128.1.0:8080", "10.192.0.7:8080"])));
        assert!(!serves(0, &reals(["10.128.1.0:8080", "10.128.1.1:8080"])));
        // The Service's chains exist, but no rule of KUBE-SERVICES jumps to them.
        assert!(!serves(3, &reals(["10.128.1.6:8080"])));
        assert!(serves(3, &reals([])));
    }

    #[test]
    #[ignore = "needs a kernel with legacy iptables: run by make test in the lab"]
    fn the_wait_ends_when_a_removed_rule_exists_again() {
        let mut world = World::new("back").unwrap();
        let host = host_with(&mut world, "leftovers");
        let mut kernel = Kernel::open(&host, Mode::Iptables, SetsIn::Ipset).unwrap();
        let served = [
            (0, reals(["10.128.1.0:8080", "10.192.0.7:8080"])),
            (1, reals(["10.128.1.2:8080", "10.128.1.3:8080"])),
            (3, reals(["10.128.1.6:8080"])),
            (4, reals(["10.128.1.8:8080", "10.128.1.9:8080"])),
        ];
        let at = |service| SocketAddrV4::new(Objects::address(service), PORT);
        let wanted = Snapshot {
            servers: served.map(|(service, reals)| (at(service), reals)).into(),
            ..Snapshot::default()
        };
        let mut wait = |limit, alive: &mut dyn FnMut()| {
            let (started, limit) = (Instant::now(), Duration::from_millis(limit));
            let alive = || {
                alive();
                Ok(())
            };
            until(
                &mut kernel,
                Mode::Iptables,
                &wanted,
                5,
                started,
                limit,
                alive,
            )
            .unwrap()
        };
        let without = wait(500, &mut || {});
        assert!(
            matches!(without, WaitEnd::Not(Outcome::Over { .. })),
            "{without:?}"
        );

        let mut is_back = None;
        let done = wait(60_000, &mut || {
            is_back.get_or_insert_with(|| {
                let rule = "iptables-legacy -t nat -I KUBE-SERVICES -d 10.96.1.3 -p tcp --dport 80 -j KUBE-SVC-3333333333333333";
                host.read(rule.split(' ')).unwrap();
                Instant::now()
            });
        });
        let WaitEnd::Done(since, state) = done else {
            panic!("{done:?}");
        };
        assert!(since >= is_back.unwrap());
        assert_eq!((state.servers, state.destinations), (4, 7));
    }
}
