//! Traffic during a fault: persistent TCP connections, and new TCP connections all the time, on
//! several paths.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::traffic::{self, Client, Counts, Traffic};
use lab::{Connection, Failure, Place, Transport};
use scenarios::{ANY_STALL, FIRST_TRY, ports};

/// Pause of a client between two new connections.
const PAUSE: Duration = Duration::from_millis(25);
/// Pause of a client between two requests on its persistent connection.
const ECHO: Duration = Duration::from_millis(100);
/// Timeout of a request on a persistent connection, long enough for TCP retransmissions.
const OPEN_WAITS: Duration = Duration::from_secs(20);
/// Interval between two checks whether all paths work again.
const GLANCE: Duration = Duration::from_millis(10);
/// Prefix of an account's name if it counts requests on persistent connections.
const OPEN: &str = "open, ";

/// A path of the traffic: from a pod, node or host to an address of the Service.
#[derive(Debug, Clone)]
pub(crate) struct TrafficPath {
    pub(crate) from: Place,
    pub(crate) to: std::net::SocketAddr,
    /// Number of persistent connections on this path, besides the new connections.
    pub(crate) held: u16,
}

impl TrafficPath {
    fn name(&self) -> String {
        format!("{} to {}", self.from.name(), self.to)
    }
}

/// Results of the traffic, summed over all paths.
#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    /// Results of new connections, each of which sends one request.
    pub(crate) new: traffic::Account,
    /// Results of persistent connections, each of which ends at its first failure.
    pub(crate) open: traffic::Account,
    /// Longest time for which the host gave the VM no CPU time.
    pub(crate) stood_still: Duration,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            new,
            open,
            stood_still,
        } = self;
        write!(
            f,
            "new connections: {new}; of {} open ones: {open}; nothing ran for {stood_still:.2?}",
            open.clients
        )
    }
}

/// The running clients of all paths.
#[derive(Debug)]
pub(crate) struct Load(Traffic);

impl Load {
    /// Starts the traffic on paths that already work: every failure counts.
    pub(crate) fn start(ways: &[TrafficPath]) -> Result<Self> {
        Self::begin(ways, Counts::All)
    }

    /// Starts the traffic on paths that need not work yet: failures before a path's first reply do
    /// not count. Opens no persistent connections.
    pub(crate) fn start_before(ways: &[TrafficPath]) -> Result<Self> {
        let ways: Vec<TrafficPath> = ways
            .iter()
            .cloned()
            .map(|w| TrafficPath { held: 0, ..w })
            .collect();
        Self::begin(&ways, Counts::FromFirstAnswer)
    }

    fn begin(ways: &[TrafficPath], counts: Counts) -> Result<Self> {
        let mut traffic = Traffic::default();
        for (way, mut ports) in ways.iter().cloned().zip(ports()) {
            for port in ports.by_ref().take(way.held.into()) {
                let dial = way.from.dial(Transport::Tcp, way.to).from_port(port);
                let opened = dial.timeout(OPEN_WAITS).open();
                let opened = opened.with_context(|| format!("cannot open {}", way.name()))?;
                let client = Client {
                    counts: Counts::UntilFailure,
                    ..Client::new(format!("{OPEN}{}", way.name()), ECHO)
                };
                traffic.start(&way.from, client, echo(opened));
            }
            let client = Client {
                counts,
                excuse: ANY_STALL,
                ..Client::new(way.name(), PAUSE)
            };
            let mut ports = ports.cycle();
            traffic.start(&way.from.clone(), client, move || {
                let port = ports.next().unwrap_or_default();
                let dial = way.from.dial(Transport::Tcp, way.to).from_port(port);
                Ok(dial.timeout(FIRST_TRY).reset_on_close().ask()?.who)
            });
        }
        Ok(Self(traffic))
    }

    /// Returns the results so far, while the traffic continues.
    pub(crate) fn account(&self) -> Account {
        let mut account = Account {
            stood_still: self.0.longest_stall(),
            ..Account::default()
        };
        for (name, one) in self.0.accounts() {
            let is_open = name.starts_with(OPEN);
            let sum = if is_open {
                &mut account.open
            } else {
                &mut account.new
            };
            sum.add(&one);
        }
        account
    }

    /// Waits until every path has got a reply after `moment` and after the last failure. Returns
    /// the time from `moment` to the last failure.
    pub(crate) fn until_whole(&self, moment: Instant, limit: Duration) -> Result<Duration> {
        let began = Instant::now();
        loop {
            let account = self.account();
            let since = account.new.last_failure.max(Some(moment)).unwrap_or(moment);
            let mut ways = self.0.accounts();
            ways.retain(|name, _| !name.starts_with(OPEN));
            if ways.values().all(|one| one.last_answer > Some(since)) {
                return Ok(since.duration_since(moment));
            }
            ensure!(
                began.elapsed() < limit,
                "traffic is not whole within {limit:.0?}: {account}"
            );
            std::thread::sleep(GLANCE);
        }
    }

    /// Stops the traffic, and returns its results.
    pub(crate) fn stop(mut self) -> Result<Account> {
        self.0.stop()?;
        Ok(self.account())
    }
}

/// Returns a function that sends a request on a persistent connection. It fails if another pod than
/// before replies.
fn echo(mut connection: Connection) -> impl FnMut() -> Result<String, Failure> + Send + 'static {
    let mut first: Option<String> = None;
    move || {
        let pod = connection.ask()?.who;
        match &first {
            Some(first) if *first != pod => Err(Failure::Other("another pod".into())),
            _ => Ok(first.insert(pod).clone()),
        }
    }
}
