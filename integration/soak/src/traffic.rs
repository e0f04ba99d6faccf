//! Clients that ask all the time, and what they got.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use lab::{Connection, Crew, Failure, Place, Transport};
use scenarios::{Cluster, Meter, at};

use crate::churn::{Churn, STEADY, STEADY_V6, STICKY};

/// A request of a Service that always has endpoints fails after this.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of one that may have none.
const BRIEF: Duration = Duration::from_millis(300);
/// How many failures are told one by one.
const TOLD: usize = 10;

/// What the clients of one kind got so far.
#[derive(Debug, Default)]
struct Count {
    answered: AtomicU64,
    failed: AtomicU64,
    /// Failed while this machine was not given the time to work.
    starved: AtomicU64,
}

/// Whether nothing ran for half of the time that something took.
fn was_starved(late: Duration, took: Duration) -> bool {
    late * 2 > took && late > Duration::from_millis(500)
}

/// What clients got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    /// Of Services that never lack an endpoint.
    pub(crate) answered: u64,
    /// None of these may fail.
    pub(crate) failed: u64,
    /// These failed while nothing ran here: the machine had no time for the guest.
    pub(crate) starved: u64,
    /// Of Services that come and go.
    pub(crate) elsewhere: u64,
    /// Of those many fail: their Services are gone.
    pub(crate) in_vain: u64,
}

/// Clients at work; dropped, they stop.
#[derive(Debug)]
pub(crate) struct Traffic {
    steady: Arc<Count>,
    elsewhere: Arc<Count>,
    meter: Meter,
    told: Arc<std::sync::Mutex<Vec<String>>>,
    clients: Crew,
}

impl Traffic {
    /// New TCP connections and UDP flows of both families from outside, a TCP client that is kept at
    /// its pod, one connection that is held for the whole time, and one that asks those that come
    /// and go.
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let mut traffic = Self {
            steady: Arc::default(),
            elsewhere: Arc::default(),
            meter: Meter::default(),
            told: Arc::default(),
            clients: Crew::default(),
        };
        let meter = traffic.meter.clone();
        let clients = &mut traffic.clients;
        clients.begin(move |over| meter.run(|| over.is_over()));
        let (outside, client) = (&cluster.outside, &cluster.client);
        // IPVS finds a connection on its way back by the client's port and the pod's address alone:
        // no two ways from a place have a port of one protocol in common.
        traffic.ask(outside, Transport::Tcp, STEADY, 10_000..12_500, 50);
        traffic.ask(outside, Transport::Udp, STEADY, 10_000..12_500, 100);
        traffic.ask(outside, Transport::Tcp, STEADY_V6, 10_000..12_500, 200);
        traffic.hold(outside);
        traffic.stick(client);
        traffic.roam(outside);
        traffic
    }

    /// So far.
    pub(crate) fn account(&self) -> Account {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Account {
            answered: of(&self.steady.answered),
            failed: of(&self.steady.failed),
            starved: of(&self.steady.starved),
            elsewhere: of(&self.elsewhere.answered),
            in_vain: of(&self.elsewhere.failed),
        }
    }

    /// The first failures.
    pub(crate) fn told(&self) -> Vec<String> {
        self.told
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    /// Stops all clients after their current request.
    pub(crate) fn stop(&mut self) {
        let _ = self.clients.stop();
    }

    /// A thread that asks, and rests between requests.
    fn spawn(
        &mut self,
        rest: Duration,
        mut ask: impl FnMut() -> anyhow::Result<()> + Send + 'static,
    ) {
        let count = Arc::clone(&self.steady);
        let (told, meter) = (Arc::clone(&self.told), self.meter.clone());
        self.clients.begin(move |over| {
            while !over.is_over() {
                let (start, late) = (Instant::now(), meter.so_far());
                match ask() {
                    Ok(()) => count.answered.fetch_add(1, Ordering::Relaxed),
                    Err(error)
                        if matches!(error.downcast_ref(), Some(Failure::TimedOut))
                            && was_starved(
                                meter.so_far().saturating_sub(late),
                                start.elapsed(),
                            ) =>
                    {
                        count.starved.fetch_add(1, Ordering::Relaxed)
                    }
                    Err(error) => {
                        let mut told = told
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner);
                        if told.len() < TOLD {
                            told.push(format!("{error:#}"));
                        }
                        count.failed.fetch_add(1, Ordering::Relaxed)
                    }
                };
                std::thread::sleep(rest);
            }
        });
    }

    /// A connection for each request.
    fn ask(
        &mut self,
        from: &Place,
        transport: Transport,
        to: &'static str,
        ports: Range<u16>,
        rest_ms: u64,
    ) {
        let from = from.clone();
        let mut ports = ports.cycle();
        self.spawn(Duration::from_millis(rest_ms), move || {
            let dial = from.dial(transport, at(to)).timeout(PATIENCE);
            let dial = dial.from_port(ports.next().unwrap_or_default());
            let asked = dial.reset_on_close().ask();
            asked
                .map(drop)
                .with_context(|| format!("{transport:?} to {to}"))
        });
    }

    /// One connection for the whole time.
    fn hold(&mut self, from: &Place) {
        let from = from.clone();
        let mut held: Option<Connection> = None;
        self.spawn(Duration::from_secs(1), move || {
            let mut connection = match held.take() {
                Some(connection) => connection,
                None => from
                    .dial(Transport::Tcp, at(STEADY))
                    .from_port(9_000)
                    .timeout(PATIENCE)
                    .open()
                    .context("the held connection")?,
            };
            let asked = connection.ask();
            asked.context("the held connection")?;
            held = Some(connection);
            Ok(())
        });
    }

    /// New connections of one client, which the same pod answers.
    fn stick(&mut self, from: &Place) {
        let from = from.clone();
        let mut ports = (10_000..12_500).cycle();
        let mut first: Option<String> = None;
        self.spawn(Duration::from_millis(200), move || {
            let dial = from.dial(Transport::Tcp, at(STICKY)).timeout(PATIENCE);
            let dial = dial.from_port(ports.next().unwrap_or_default());
            let asked = dial.reset_on_close().ask();
            let who = asked.context(STICKY)?.who;
            let first = first.get_or_insert_with(|| who.clone());
            ensure!(*first == who, "{STICKY}: {who} answers who was at {first}");
            Ok(())
        });
    }

    /// Asks those that come and go; nothing is expected of it.
    fn roam(&mut self, from: &Place) {
        let from = from.clone();
        let count = Arc::clone(&self.elsewhere);
        let mut ports = (20_000..22_500).cycle();
        self.clients.begin(move |over| {
            for number in (0..).take_while(|_| !over.is_over()) {
                let (to, transport) = Churn::somewhere(number);
                let dial = from.dial(transport, at(&to)).timeout(BRIEF);
                let dial = dial.from_port(ports.next().unwrap_or_default());
                match dial.reset_on_close().ask() {
                    Ok(_) => count.answered.fetch_add(1, Ordering::Relaxed),
                    Err(_) => count.failed.fetch_add(1, Ordering::Relaxed),
                };
                std::thread::sleep(Duration::from_millis(50));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_given_no_time_did_not_fail() {
        let seconds = Duration::from_secs_f64;
        assert!(was_starved(seconds(4.0), seconds(5.0)));
        assert!(!was_starved(seconds(1.0), seconds(5.0)));
        // One that is refused at once has failed.
        assert!(!was_starved(seconds(0.002), seconds(0.003)));
    }
}
