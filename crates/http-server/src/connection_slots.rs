//! Limits the number of connections to all HTTP servers of this process.
//!
//! Every host can connect to the ports, and a client may connect and stay silent. So a server
//! accepts each new connection immediately. If a limit is exceeded, the new connection evicts an
//! old connection. There are two limits:
//!
//! - A client may have [`CLIENT_SHARE`] connections to one server. A further connection evicts this
//!   client's oldest idle connection.
//! - All servers together may have [`CONNECTIONS_MAX`] connections. A further connection evicts the
//!   oldest idle connection of the client that has the most connections.
//!
//! So a client with few connections, such as a probe or a scraper, is safe. It loses a connection
//! only if the number of clients exceeds the number of allowed connections.
//!
//! One client is:
//!
//! - an IPv4 address;
//! - an IPv6 /64 network, because one owner usually has all its addresses;
//! - this node, with all loopback addresses (127.0.0.0/8 and `::1`);
//! - on a local socket, a user;
//! - on a local socket, all users without access together, because one person may have many user
//!   ids.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{debug, warn};

/// Maximum number of connections to all servers together. If a quarter of the file descriptor limit
/// is lower, this quarter applies instead. Each connection needs memory for its buffers, which are
/// limited, and for the response that it is sending.
const CONNECTIONS_MAX: usize = 512;
/// Maximum number of connections of one client to one server.
const CLIENT_SHARE: usize = 32;
/// Minimum time between two warnings about a client that has too many connections.
const NOTICE_PERIOD: Duration = Duration::from_mins(10);

/// Connection slots that all servers of this process share.
static ALL: LazyLock<Arc<ConnectionSlots>> = LazyLock::new(|| {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let quarter = usize::try_from(files / 4).unwrap_or(usize::MAX);
    Arc::new(ConnectionSlots::new(
        CONNECTIONS_MAX.min(quarter).max(1),
        CLIENT_SHARE,
    ))
});

/// Limits on connections, with the open connections of each server and client.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    most: usize,
    share: usize,
    held: Mutex<OpenConnections>,
    /// Reference time, from which `idle_since` counts milliseconds.
    epoch: Instant,
}

#[derive(Debug, Default)]
struct OpenConnections {
    /// Open connections, by a number that grows with each new connection.
    connections: HashMap<u64, Connection>,
    next: u64,
    told: Option<Instant>,
}

#[derive(Debug)]
struct Connection {
    server: u64,
    client: Client,
    activity: Arc<Activity>,
}

/// A client of the servers. The limits count all its connections together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Client {
    /// A remote IPv4 address, or the 64-bit network of a remote IPv6 address.
    Network(IpAddr),
    /// This node: all loopback addresses count as one client.
    Loopback,
    /// A user on a local socket, by user id.
    Local(u32),
    /// All users who have no access to a local socket.
    Refused,
}

/// Idle time of a connection, and the signal that evicts it.
#[derive(Debug)]
pub(super) struct Activity {
    epoch: Instant,
    /// Time at which the connection became idle, in milliseconds since `epoch`. It is [`BUSY`]
    /// during a request.
    idle_since: AtomicU64,
    /// Signal to the connection's task that the server evicts the connection.
    over: Notify,
}

/// Value of `idle_since` during a request. It is later than any time, so busy connections are
/// evicted last.
const BUSY: u64 = u64::MAX;

/// Entry of a connection in [`ConnectionSlots`]. Dropping the value removes the entry.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    places: Arc<ConnectionSlots>,
    number: u64,
    pub(super) activity: Arc<Activity>,
}

impl ConnectionSlots {
    fn new(most: usize, share: usize) -> Self {
        Self {
            most,
            share,
            held: Mutex::default(),
            epoch: Instant::now(),
        }
    }

    /// Returns the connection slots that all servers of this process share.
    pub(super) fn all() -> Arc<Self> {
        Arc::clone(&ALL)
    }

    /// Returns a new number that identifies one server in these slots.
    pub(super) fn server(&self) -> u64 {
        self.lock().number()
    }

    /// Adds a connection of `client` to a server. If a limit is reached, evicts the oldest idle
    /// connection of this client or of the client with the most connections. `what` is the server's
    /// name in the log.
    pub(super) fn admit(
        self: &Arc<Self>,
        server: u64,
        client: Client,
        what: &impl fmt::Display,
    ) -> ConnectionSlot {
        let mut held = self.lock();
        let of_client = |one: &Connection| one.server == server && one.client == client;
        if held.count(of_client) >= self.share {
            held.end(of_client);
            held.notice(client, self.share, what);
        }
        if held.connections.len() >= self.most {
            held.shrink();
        }
        let activity = Arc::new(Activity::new(self.epoch));
        let connection = Connection {
            server,
            client,
            activity: Arc::clone(&activity),
        };
        let number = held.number();
        held.connections.insert(number, connection);
        ConnectionSlot {
            places: Arc::clone(self),
            number,
            activity,
        }
    }

    /// Evicts a connection of the client with the most connections. The server calls this function
    /// after a failed `accept`, usually for lack of file descriptors.
    pub(super) fn make_room(&self) {
        self.lock().shrink();
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn count(&self, is_meant: impl Fn(&Connection) -> bool) -> usize {
        self.connections
            .values()
            .filter(|one| is_meant(one))
            .count()
    }

    /// Evicts the oldest idle connection among the connections that `is_meant` accepts. If none of
    /// them is idle, evicts the oldest busy connection among them.
    fn end(&mut self, is_meant: impl Fn(&Connection) -> bool) {
        let meant = self.connections.iter().filter(|(_, one)| is_meant(one));
        let oldest = meant.min_by_key(|(number, one)| (one.activity.idle_since(), **number));
        let Some(number) = oldest.map(|(number, _)| *number) else {
            return;
        };
        if let Some(connection) = self.connections.remove(&number) {
            connection.activity.over.notify_one();
        }
    }

    /// Evicts a connection of the client that has the most connections. If several clients have
    /// equally many connections, chooses the client with the oldest connection.
    fn shrink(&mut self) {
        let mut clients = HashMap::<Client, (usize, Reverse<(u64, u64)>)>::new();
        for (number, one) in &self.connections {
            let age = Reverse((one.activity.idle_since(), *number));
            let (count, oldest) = clients.entry(one.client).or_insert((0, age));
            *count += 1;
            *oldest = age.max(*oldest);
        }
        let Some((client, (count, _))) = clients.into_iter().max_by_key(|(_, rank)| *rank) else {
            return;
        };
        self.end(|one| one.client == client);
        if count > 1 {
            self.notice(client, count, &"all servers of this process");
        }
    }

    fn notice(&mut self, client: Client, count: usize, what: &impl fmt::Display) {
        if self.told.is_some_and(|told| told.elapsed() < NOTICE_PERIOD) {
            debug!("{client} has {count} connections to {what}: the oldest idle one is closed");
            return;
        }
        self.told = Some(Instant::now());
        warn!(
            "{client} has {count} connections to {what}: its oldest idle one is closed for each \
             new one, and others are served. \
             Find the program that opens them; this line appears at most once in ten minutes"
        );
    }
}

impl Client {
    /// Returns the client to which this remote address belongs.
    pub(super) fn of(peer: IpAddr) -> Self {
        const NETWORK: u128 = !0 << 64;
        if peer.to_canonical().is_loopback() {
            return Self::Loopback;
        }
        Self::Network(match peer.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into(),
            ip @ IpAddr::V4(_) => ip,
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(IpAddr::V4(ip)) => ip.fmt(formatter),
            Self::Network(IpAddr::V6(ip)) => write!(formatter, "{ip}/64"),
            Self::Loopback => formatter.write_str("this node (127.0.0.0/8, ::1)"),
            Self::Local(user) => write!(formatter, "user {user} of this node"),
            Self::Refused => formatter.write_str("whoever may not ask by the local socket"),
        }
    }
}

impl Activity {
    fn new(epoch: Instant) -> Self {
        let activity = Self {
            epoch,
            idle_since: AtomicU64::new(0),
            over: Notify::new(),
        };
        activity.idle();
        activity
    }

    /// Records that the server is responding to a request on the connection.
    pub(super) fn busy(&self) {
        self.idle_since.store(BUSY, Ordering::Relaxed);
    }

    /// Records that the connection is idle from now on.
    pub(super) fn idle(&self) {
        let since = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(BUSY);
        self.idle_since.store(since, Ordering::Relaxed);
    }

    pub(super) fn is_busy(&self) -> bool {
        self.idle_since() == BUSY
    }

    fn idle_since(&self) -> u64 {
        self.idle_since.load(Ordering::Relaxed)
    }
}

impl ConnectionSlot {
    /// Waits until the server evicts the connection.
    pub(super) async fn over(&self) {
        self.activity.over.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.places.lock().connections.remove(&self.number);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use futures::FutureExt as _;

    use super::*;

    pub(in super::super) fn as_in_the_daemon() -> Arc<ConnectionSlots> {
        places(CONNECTIONS_MAX, CLIENT_SHARE)
    }

    /// Creates empty connection slots: `most` in total, of which each client may use `share` per
    /// server.
    pub(in super::super) fn places(most: usize, share: usize) -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots::new(most, share))
    }

    fn peer(text: &str) -> Client {
        Client::of(text.parse().unwrap())
    }

    fn is_over(place: &ConnectionSlot) -> bool {
        place.over().now_or_never().is_some()
    }

    #[test]
    fn a_client_with_too_many_connections_loses_its_own_oldest_connection() {
        let places = places(100, 2);
        let [one, two] = [places.server(), places.server()];
        let admit = |server, from: &str| places.admit(server, peer(from), &"tests");
        let first = admit(one, "10.0.0.1");
        let other = admit(one, "10.0.0.2");
        let elsewhere = admit(two, "10.0.0.1");
        let second = admit(one, "::ffff:10.0.0.1");
        assert!(
            ![&first, &other, &elsewhere, &second]
                .into_iter()
                .any(is_over)
        );
        let third = admit(one, "10.0.0.1");
        assert!(is_over(&first));
        assert!(
            ![&other, &elsewhere, &second, &third]
                .into_iter()
                .any(is_over)
        );
        drop(second);
        drop(first);
        let fourth = admit(one, "10.0.0.1");
        assert!(!is_over(&third) && !is_over(&fourth), "a place was free");
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_is_idle_longest_is_evicted_first() {
        let places = places(100, 3);
        let server = places.server();
        let admit = || places.admit(server, peer("10.0.0.1"), &"tests");
        let all = [admit(), admit(), admit()];
        tokio::time::advance(Duration::from_millis(5)).await;
        all[0].activity.busy();
        all[1].activity.busy();
        all[1].activity.idle();
        let more = [admit(), admit()];
        let over: Vec<_> = all.iter().chain(&more).map(is_over).collect();
        assert_eq!(over, [false, true, true, false, false]);
        // If no connection is idle, the server evicts the oldest busy connection.
        for place in &more {
            place.activity.busy();
        }
        admit();
        assert!(is_over(&all[0]));
    }

    #[test]
    fn a_full_server_evicts_connections_of_the_client_with_most_connections() {
        let places = places(6, 5);
        let server = places.server();
        let admit = |from: &str| places.admit(server, peer(from), &"tests");
        let few = [admit("10.0.0.1"), admit("10.0.0.2")];
        // Counts all addresses of one IPv6 network as one client.
        let many: Vec<_> = (1..=4)
            .map(|last| admit(&format!("fd00::{last}")))
            .collect();
        let new = admit("10.0.0.3");
        assert!(is_over(&many[0]));
        assert!(!few.iter().chain(&many[1..]).chain([&new]).any(is_over));
        places.make_room();
        assert!(is_over(&many[1]));
        // From now on, each client has only one connection. So the server evicts the oldest
        // connection of all clients.
        drop(many);
        let rest: Vec<_> = (4..=6)
            .map(|last| admit(&format!("10.0.0.{last}")))
            .collect();
        assert!(!is_over(&few[0]));
        let last = admit("10.0.0.7");
        assert!(is_over(&few[0]));
        assert!(
            !few[1..]
                .iter()
                .chain(&rest)
                .chain([&new, &last])
                .any(is_over)
        );
    }

    #[test]
    fn all_loopback_addresses_are_one_client() {
        let same = ["127.0.0.1", "127.200.3.4", "::1", "::ffff:127.0.0.9"];
        assert!(same.iter().all(|text| peer(text) == Client::Loopback));
    }

    #[test]
    fn clients_without_access_do_not_evict_clients_with_access() {
        let places = places(8, 3);
        let server = places.server();
        let admit = |client| places.admit(server, client, &"tests");
        let root = [admit(Client::Local(0)), admit(Client::Local(0))];
        let others: Vec<_> = (0..100).map(|_| admit(Client::Refused)).collect();
        assert!(!root.iter().any(is_over));
        let left = others.iter().filter(|place| !is_over(place)).count();
        assert_eq!(left, 3);
    }

    #[test]
    fn all_addresses_of_an_ipv6_network_of_64_bits_are_one_client() {
        let of = |text: &str| peer(text).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(of("::2"), "::/64");
        assert_eq!(of("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(of("192.0.2.1"), "192.0.2.1");
    }
}
