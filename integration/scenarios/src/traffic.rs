//! Asking several times, and who answered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Failure, Place, Transport};

use crate::cluster::{ANSWERED_WITHIN, SOON, at};
use crate::stalls::{Meter, Over};

/// Between two requests of one way.
const PAUSE: Duration = Duration::from_millis(20);

/// Sooner than the first retransmission (1 s): what is lost once fails.
pub const FIRST_TRY: Duration = Duration::from_millis(900);

/// How many ports the traffic so far has used by one way: the next one goes on with those
/// behind, so that none is soon asked from again. When a mode's virtual servers go, IPVS ends its connections, those
/// it remembers for 10 s after a reset included, and with each what connection tracking holds of the same addresses and ports
/// (`ip_vs_conn_drop_conntrack` in `net/netfilter/ipvs/ip_vs_nfct.c`), even if that is a connection of the mode that has come.
static USED: AtomicUsize = AtomicUsize::new(0);

/// How often who answered, and whom it saw: `near from 10.244.1.99`.
pub type Tally = BTreeMap<String, usize>;

/// Opens a connection (UDP: a flow) so many times, and asks once on each.
pub fn tally(from: &Place, transport: Transport, to: SocketAddr, times: usize) -> Result<Tally> {
    let mut tally = Tally::new();
    for number in 1..=times {
        let answer = from
            .dial(transport, to)
            .timeout(ANSWERED_WITHIN)
            .reset_on_close()
            .ask()
            .with_context(|| {
                format!(
                    "{} asks {to} over {transport:?}, time {number}",
                    from.name()
                )
            })?;
        *tally
            .entry(format!("{} from {}", answer.who, answer.seen_source.ip()))
            .or_default() += 1;
    }
    Ok(tally)
}

/// Opens so many connections by each way, tells the story while each way is asked anew all the time,
/// and asks the open ones again: the same pods must answer, and nothing may have failed, nor have
/// been answered later than `within`.
///
/// # Errors
/// A request that was not answered, or the story's.
///
/// # Panics
/// If another pod answers on an open connection.
pub fn under_traffic(
    ways: &[(&Place, &str)],
    held: usize,
    within: Duration,
    story: impl FnOnce() -> Result<()>,
) -> Result<()> {
    ensure!(ways.len() <= ports().count(), "too many ways");
    let mut open = Vec::new();
    let used = USED.load(Ordering::Relaxed);
    let unused = |ports: Range<u16>| {
        let all = ports.len();
        ports.cycle().skip(used % all).take(all)
    };
    for ((from, to), ports) in ways.iter().zip(ports()) {
        for port in unused(ports).take(held) {
            let dial = from.dial(Transport::Tcp, at(to)).from_port(port);
            // Where the ports begin anew, the next traffic may soon come to this one.
            let mut connection = dial.timeout(SOON).reset_on_close().open()?;
            let who = connection.ask()?.who;
            open.push((connection, who, format!("{} to {to}", from.name())));
        }
    }
    let is_told = AtomicBool::new(false);
    let meter = Meter::default();
    let ask = |(from, to): (&Place, &str), ports: Range<u16>| {
        let (mut times, mut slowest, mut unjudged) = (0, Duration::ZERO, 0);
        for port in unused(ports).skip(held) {
            if times > 0 && is_told.load(Ordering::Relaxed) {
                ensure!(
                    times > 20 * unjudged,
                    "{unjudged} of {times} were not judged"
                );
                USED.fetch_max(used + held + times + unjudged, Ordering::Relaxed);
                return Ok::<_, anyhow::Error>((times, slowest));
            }
            let dial = from
                .dial(Transport::Tcp, at(to))
                .from_port(port)
                .timeout(within);
            let (start, stood_before) = (Instant::now(), meter.so_far());
            let asked = dial.reset_on_close().ask();
            // Where nothing ran meanwhile, nobody could answer: then it is asked again.
            if matches!(asked, Err(Failure::TimedOut)) && meter.so_far() > stood_before {
                unjudged += 1;
                continue;
            }
            asked.with_context(|| format!("{} asks {to}, time {times}", from.name()))?;
            times += 1;
            slowest = slowest.max(start.elapsed());
            thread::sleep(PAUSE);
        }
        anyhow::bail!("{} has no port left to ask {to} from", from.name())
    };
    let ask = &ask;
    let asked = thread::scope(|scope| {
        scope.spawn(|| meter.run(|| is_told.load(Ordering::Relaxed)));
        let ways = ways.iter().copied().zip(ports());
        let ways: Vec<_> = ways
            .map(|(way, ports)| scope.spawn(move || ask(way, ports)))
            .collect();
        let told = {
            let _over = Over(&is_told);
            story()
        };
        let mut asked = Vec::new();
        for way in ways {
            match way.join() {
                Ok(times) => asked.push(times?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        told.map(|()| asked)
    });
    // Whatever fails then may have failed for that.
    let stood_still = meter.longest();
    let asked = asked.with_context(|| format!("nothing ran for {stood_still:.2?} meanwhile"))?;
    let times: Vec<_> = asked.iter().map(|(times, _)| times).collect();
    let slowest = asked.iter().map(|(_, slowest)| slowest).max();
    let slowest = slowest.copied().unwrap_or_default();
    println!(
        "    requests by way: {times:?}, the slowest {slowest:.2?}; nothing ran for {stood_still:.2?}"
    );
    for (connection, who, way) in &mut open {
        let answer = connection.ask();
        let answer = answer.with_context(|| format!("an open connection from {way}"))?;
        assert_eq!(&answer.who, who);
    }
    Ok(())
}

/// Source ports for each way. They are disjoint: IPVS finds the connection of a
/// packet on its way back by the client's address and port and the pod's alone, so that of two
/// connections from one port to one pod, by different addresses of a Service, the older one would
/// starve.
fn ports() -> impl Iterator<Item = Range<u16>> {
    (10_000..30_000)
        .step_by(2_500)
        .map(|first| first..first + 2_500)
}
