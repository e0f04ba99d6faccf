//! Sends requests to a Service, as a series or continuously in the background of a test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::traffic::{Client, Traffic};
use lab::{Failure, Place, Transport};

use crate::cluster::{ANSWERED_WITHIN, SOON, at};

/// Pause between two requests of a background client.
const PAUSE: Duration = Duration::from_millis(20);

/// Timeout of a request, shorter than TCP's initial retransmission timeout (1 s). A single lost
/// packet therefore makes the request fail.
pub const FIRST_TRY: Duration = Duration::from_millis(900);

/// Value of [`lab::traffic::Client::excuse`] with which even the shortest stall of the VM excuses a
/// timeout.
pub const ANY_STALL: Duration = Duration::from_nanos(1);

/// Number of source ports that earlier traffic has used on each path. New traffic uses the next
/// ports, because a reused port may break a connection:
///
/// - When the daemon removes a virtual server, IPVS ends its connections. These include connections
///   that a client reset up to 10 s ago.
/// - For each connection, IPVS deletes the conntrack entry with the same addresses and ports
///   (`ip_vs_conn_drop_conntrack` in `net/netfilter/ipvs/ip_vs_nfct.c`). With a reused port, this
///   entry belongs to a new connection.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Number of replies by server and client address: `near from 10.244.1.99`.
pub type Tally = BTreeMap<String, usize>;

/// Sends `times` requests, each on a new connection (UDP: a new flow). Counts the replies by server
/// and client address.
///
/// # Errors
/// Fails if a request gets no reply.
pub fn tally(from: &Place, transport: Transport, to: SocketAddr, times: usize) -> Result<Tally> {
    let mut tally = Tally::new();
    // Keeps UDP sockets open, so that their source ports stay in use. If two requests had the same
    // port, IPVS would send both to the same pod.
    let mut flows = Vec::new();
    for number in 1..=times {
        let dial = from
            .dial(transport, to)
            .timeout(ANSWERED_WITHIN)
            .reset_on_close();
        let asked = dial.open().and_then(|mut connection| {
            let answer = connection.ask();
            flows.extend((transport == Transport::Udp).then_some(connection));
            answer
        });
        let answer = asked.with_context(|| {
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

/// Opens `held` connections on each path, and runs the test. During the test, clients send requests
/// on new connections of each path. After the test, sends a request on each held connection. The
/// same pods as before must reply.
///
/// # Errors
/// Fails if a request gets no reply in time, or if the test fails. `within` is the timeout of
/// requests on new connections.
///
/// # Panics
/// Panics if another pod replies on a held connection.
pub fn under_traffic(
    ways: &[(&Place, &str)],
    held: usize,
    within: Duration,
    story: impl FnOnce() -> Result<()>,
) -> Result<()> {
    ensure!(ways.len() <= ports().count(), "too many ways");
    let mut open = Vec::new();
    let used = USED.load(Ordering::Relaxed);
    let mut traffic = Traffic::default();
    for ((from, to), ports) in ways.iter().zip(ports()) {
        let (name, all) = (format!("{} to {to}", from.name()), ports.len());
        let mut ports = ports.cycle().skip(used % all).take(all);
        for port in ports.by_ref().take(held) {
            let dial = from.dial(Transport::Tcp, at(to)).from_port(port);
            // A reset at the end frees the port immediately. Later traffic may soon use this port
            // again, because port numbers wrap around.
            let mut connection = dial.timeout(SOON).reset_on_close().open()?;
            let who = connection.ask()?.who;
            open.push((connection, who, name.clone()));
        }
        let (place, to) = ((*from).clone(), at(to));
        let client = Client {
            excuse: ANY_STALL,
            ..Client::new(name, PAUSE)
        };
        traffic.start(from, client, move || {
            let port = ports
                .next()
                .ok_or_else(|| Failure::Other("no port is left".into()))?;
            let dial = place.dial(Transport::Tcp, to).from_port(port);
            Ok(dial.timeout(within).reset_on_close().ask()?.who)
        });
    }
    let told = story();
    traffic.stop()?;
    let accounts = traffic.accounts();
    let most = accounts.values().map(|one| one.requests).max();
    let most = usize::try_from(most.unwrap_or_default())?;
    USED.fetch_max(used + held + most, Ordering::Relaxed);
    let stood_still = traffic.longest_stall();
    for (way, account) in &accounts {
        println!("    {way}: {account}");
        ensure!(
            account.failed == 0 && account.is_judged(),
            "{way}: {account}; nothing ran for {stood_still:.2?} meanwhile"
        );
    }
    told?;
    for (connection, who, way) in &mut open {
        let answer = connection.ask();
        let answer = answer.with_context(|| format!("an open connection from {way}"))?;
        assert_eq!(&answer.who, who);
    }
    Ok(())
}

/// Returns the source ports of each path. No port belongs to two paths, because IPVS finds the
/// connection of a reply packet by the addresses and ports of client and pod, without the Service's
/// address. If a client used one port for two addresses of a Service with the same pod, the older
/// connection would get no replies.
pub fn ports() -> impl Iterator<Item = Range<u16>> {
    (10_000..30_000)
        .step_by(2_500)
        .map(|first| first..first + 2_500)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_of_test_clients_are_unique() {
        let mut all: Vec<u16> = ports().flatten().collect();
        let count = all.len();
        all.dedup();
        assert_eq!((all.len(), count), (20_000, 20_000));
    }
}
