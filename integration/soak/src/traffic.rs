//! Clients of a soak test. Two accounts count their results: `steady` for Services that always have
//! endpoints, `elsewhere` for Services that change during the test.

use std::ops::Range;
use std::time::Duration;

use lab::traffic::{Account, Client, Traffic};
use lab::{Connection, Failure, Place, Transport};
use scenarios::{Cluster, at};

use crate::churn::{Churn, STEADY, STEADY_V6, STICKY};

/// Timeout for the reply of a steady Service, which always has endpoints.
const PATIENCE: Duration = Duration::from_secs(5);
/// Timeout for the reply of a changing Service, which may have no endpoint.
const BRIEF: Duration = Duration::from_millis(300);
/// Shortest stall of the VM that excuses the timeout of a request: half of [`PATIENCE`].
const EXCUSE: Duration = Duration::from_millis(2_500);
const STEADILY: &str = "steady";
const ELSEWHERE: &str = "elsewhere";

/// Starts the clients, most of them outside the cluster:
///
/// - clients with new TCP connections (both families) and new UDP flows (IPv4);
/// - a TCP client with session affinity, in the cluster;
/// - a client with a persistent connection;
/// - a client of the changing Services.
pub(crate) fn start(cluster: &Cluster) -> Traffic {
    let mut traffic = Traffic::default();
    let outside = &cluster.outside;
    // IPVS finds the connection of a reply packet by the addresses and ports of client and pod,
    // without the Service's address. Two paths from one client host must therefore not use the same
    // port with the same protocol.
    ask(&mut traffic, outside, Transport::Tcp, STEADY, 50);
    ask(&mut traffic, outside, Transport::Udp, STEADY, 100);
    ask(&mut traffic, outside, Transport::Tcp, STEADY_V6, 200);
    hold(&mut traffic, outside);
    stick(&mut traffic, &cluster.client);
    roam(&mut traffic, outside);
    traffic
}

/// Returns the clients' results for the steady Services, where no request may fail, and for the
/// changing Services.
pub(crate) fn accounts(traffic: &Traffic) -> [Account; 2] {
    let mut accounts = traffic.accounts();
    [STEADILY, ELSEWHERE].map(|name| accounts.remove(name).unwrap_or_default())
}

fn steady(rest_ms: u64) -> Client {
    Client {
        excuse: EXCUSE,
        ..Client::new(STEADILY, Duration::from_millis(rest_ms))
    }
}

/// Source ports of most clients. The client with a persistent connection and the client of the
/// changing Services use other ports.
const PORTS: Range<u16> = 10_000..12_500;

/// Sends requests to the Service `steady`, each on a new connection with the next source port.
fn ask(traffic: &mut Traffic, from: &Place, transport: Transport, to: &'static str, rest_ms: u64) {
    let place = from.clone();
    let mut ports = PORTS.cycle();
    traffic.start(from, steady(rest_ms), move || {
        let dial = place.dial(transport, at(to)).timeout(PATIENCE);
        let dial = dial.from_port(ports.next().unwrap_or_default());
        Ok(dial.reset_on_close().ask()?.who)
    });
}

/// Sends requests to the Service `steady` on one connection, which lasts for the whole run.
fn hold(traffic: &mut Traffic, from: &Place) {
    let place = from.clone();
    let mut held: Option<Connection> = None;
    traffic.start(from, steady(1_000), move || {
        let dial = place.dial(Transport::Tcp, at(STEADY)).from_port(9_000);
        let mut connection = match held.take() {
            Some(connection) => connection,
            None => dial.timeout(PATIENCE).open()?,
        };
        let answer = connection.ask()?;
        held = Some(connection);
        Ok(answer.who)
    });
}

/// Sends requests to the Service with session affinity, on new connections. The same pod must reply
/// each time.
fn stick(traffic: &mut Traffic, from: &Place) {
    let place = from.clone();
    let mut ports = PORTS.cycle();
    let mut first: Option<String> = None;
    traffic.start(from, steady(200), move || {
        let dial = place.dial(Transport::Tcp, at(STICKY)).timeout(PATIENCE);
        let dial = dial.from_port(ports.next().unwrap_or_default());
        let who = dial.reset_on_close().ask()?.who;
        match &first {
            Some(first) if *first != who => Err(Failure::Other(format!(
                "{STICKY}: {who} answers a client of {first}"
            ))),
            _ => Ok(first.insert(who).clone()),
        }
    });
}

/// Sends requests to addresses of changing Services. Such a request may fail.
fn roam(traffic: &mut Traffic, from: &Place) {
    let place = from.clone();
    let mut ports = (20_000..22_500).cycle();
    let mut numbers = 0..;
    let client = Client::new(ELSEWHERE, Duration::from_millis(50));
    traffic.start(from, client, move || {
        let (to, transport) = Churn::somewhere(numbers.next().unwrap_or_default());
        let dial = place.dial(transport, at(&to)).timeout(BRIEF);
        let dial = dial.from_port(ports.next().unwrap_or_default());
        Ok(dial.reset_on_close().ask()?.who)
    });
}
