//! Limits the share of each client and each Service in the relay's connections and flows.
//!
//! A relay has a limited number of slots, one for each connection or flow. (The code calls a slot a
//! place.) A client may keep its slots forever, so each client and each Service has a limit:
//!
//! | limit | number of slots |
//! |---|---|
//! | of a client | half of all slots |
//! | of a Service | three quarters of all slots |
//! | of all clients together | all slots |
//!
//! If a limit is reached, a new connection evicts an existing connection.
//!
//! The evicted connection belongs to the client with the most slots within this limit. It is
//! approximately the connection that was idle longest.
//!
//! If no slot is free, clients with [few](Shares::new) slots lose none. If all clients have few
//! slots, new connections wait.
//!
//! A client is one IPv4 address, one IPv6 /64 network, or this node at all its loopback addresses.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use tokio::sync::Notify;
use tracing::{debug, warn};

/// Number of recently used connections that one eviction may skip.
const CHANCES: usize = 16;

/// Shortest time between two warnings about a client with too many connections.
const NOTICE_PERIOD: Duration = Duration::from_mins(10);

/// Name of a Service port. The relay does not interpret the name.
type Service = Arc<str>;

/// A client whose slots count together, even if it uses several addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Client {
    /// An IPv4 address, or the first address of an IPv6 /64 network.
    Network(IpAddr),
    /// This node, at its loopback addresses.
    Node,
}

impl Client {
    /// Returns the client to which this address belongs.
    pub(crate) fn of(address: IpAddr) -> Self {
        const NETWORK: u128 = !0 << 64;
        let address = address.to_canonical();
        if address.is_loopback() {
            return Self::Node;
        }
        match address {
            IpAddr::V6(ip) => Self::Network(Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into()),
            ip @ IpAddr::V4(_) => Self::Network(ip),
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(IpAddr::V4(ip)) => ip.fmt(f),
            Self::Network(IpAddr::V6(ip)) => write!(f, "{ip}/64"),
            Self::Node => f.write_str("this node (127.0.0.0/8, ::1)"),
        }
    }
}

/// Slots for connections or flows, limited in number. `T` is a handle that ends one connection or
/// flow.
pub(crate) struct Shares<T> {
    held: RefCell<Holders<T>>,
    /// Signal that a connection slot has become free.
    freed: Notify,
}

/// A new slot, and the handle that ends the connection or flow that was evicted for it, if any.
pub(crate) struct NewPlace<T: Clone> {
    pub(crate) place: ClientPlace<T>,
    pub(crate) evicted: Option<T>,
}

/// A client's slot for one connection or flow. Dropping the value frees the slot.
pub(crate) struct ClientPlace<T: Clone> {
    shares: Rc<Shares<T>>,
    number: u64,
    used: Rc<Cell<bool>>,
}

struct Holders<T> {
    /// Noun for the log: connections or flows.
    what: &'static str,
    most: PlaceLimits,
    members: HashMap<u64, Member<T>>,
    groups: HashMap<(Service, Client), Group>,
    services: HashMap<Service, PlaceRanking<Client>>,
    clients: PlaceRanking<Client>,
    of_clients: HashMap<Client, PlaceRanking<Service>>,
    next: u64,
    told: Option<Instant>,
}

/// Largest number of connection slots: in total, for one Service, and for one client.
struct PlaceLimits {
    all: usize,
    service: usize,
    client: usize,
    /// Number of connection slots that a client may keep even if no slot is free.
    few: usize,
}

/// Availability of a slot for one more connection or flow.
enum ConnectionRoom {
    /// A slot is free for the new connection or flow.
    Free,
    /// No slot is free. A connection or flow of this client to this Service must end first.
    Of((Service, Client)),
    /// No slot is free, and no client has to give up a slot.
    None,
}

struct Member<T> {
    of: (Service, Client),
    used: Rc<Cell<bool>>,
    end: T,
}

/// Connections or flows of one client to one Service, oldest first. The queue may still contain
/// numbers of connections or flows that have ended.
#[derive(Default)]
struct Group {
    queue: VecDeque<u64>,
    count: usize,
}

/// Clients or Services, ranked by the number of connection slots that each occupies.
struct PlaceRanking<K> {
    total: usize,
    counts: HashMap<K, usize>,
    ranked: BTreeSet<(usize, K)>,
}

impl<K: Clone + Ord + Hash> PlaceRanking<K> {
    fn new() -> Self {
        Self {
            total: 0,
            counts: HashMap::new(),
            ranked: BTreeSet::new(),
        }
    }

    fn count(&self, of: &K) -> usize {
        self.counts.get(of).copied().unwrap_or_default()
    }

    /// Returns the client or Service that occupies the most connection slots, and the number of
    /// these slots.
    fn biggest(&self) -> Option<(usize, &K)> {
        self.ranked.last().map(|(count, of)| (*count, of))
    }

    fn set(&mut self, of: &K, count: usize) {
        let before = self.count(of);
        self.total = self.total + count - before;
        self.ranked.remove(&(before, of.clone()));
        if count == 0 {
            self.counts.remove(of);
        } else {
            self.counts.insert(of.clone(), count);
            self.ranked.insert((count, of.clone()));
        }
    }
}

impl<T: Clone> Shares<T> {
    /// Creates `all` connection slots, at least one. A client with at most `few` slots keeps its
    /// slots even if no slot is free.
    pub(crate) fn new(what: &'static str, all: usize, few: usize) -> Self {
        let all = all.max(1);
        let held = Holders {
            what,
            most: PlaceLimits {
                all,
                service: (all - all / 4).max(few + 1),
                client: all.div_ceil(2).max(few + 1),
                few,
            },
            members: HashMap::new(),
            groups: HashMap::new(),
            services: HashMap::new(),
            clients: PlaceRanking::new(),
            of_clients: HashMap::new(),
            next: 0,
            told: None,
        };
        Self {
            held: RefCell::new(held),
            freed: Notify::new(),
        }
    }

    /// Waits until a connection slot becomes free.
    pub(crate) async fn until_freed(&self) {
        self.freed.notified().await;
    }

    /// Gives a client a slot for a connection or flow to a Service. If necessary, evicts another
    /// connection or flow. Returns `None` if no slot is free and no connection or flow may be
    /// evicted.
    pub(crate) fn admit(
        self: &Rc<Self>,
        service: &Service,
        client: Client,
        end: T,
    ) -> Option<NewPlace<T>> {
        let mut held = self.held.borrow_mut();
        let evicted = match held.room(service, client) {
            ConnectionRoom::Free => None,
            ConnectionRoom::Of(from) => Some(held.evict(&from)?),
            ConnectionRoom::None => return None,
        };
        let number = held.next;
        held.next += 1;
        let used = Rc::<Cell<bool>>::default();
        held.insert(
            number,
            Member {
                of: (Arc::clone(service), client),
                used: Rc::clone(&used),
                end,
            },
        );
        let place = ClientPlace {
            shares: Rc::clone(self),
            number,
            used,
        };
        Some(NewPlace { place, evicted })
    }

    /// Evicts a connection of the client with the most connections, unless that client has few
    /// connections.
    pub(crate) fn make_room(&self) -> Option<T> {
        let mut held = self.held.borrow_mut();
        let (count, client) = held.clients.biggest()?;
        let from = (count > held.most.few).then(|| held.biggest_of(*client))??;
        held.evict(&from)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.held.borrow().members.len()
    }
}

impl<T: Clone> Holders<T> {
    /// Reports whether a slot is free for one more connection of a client to a Service. If not,
    /// also names the connections of which one must end.
    fn room(&self, service: &Service, client: Client) -> ConnectionRoom {
        let of_service = self.services.get(service);
        let from = if let Some(ranks) = of_service.filter(|ranks| ranks.total >= self.most.service)
        {
            chosen(ranks, client, 0).map(|client| (Arc::clone(service), client))
        } else if self.clients.count(&client) >= self.most.client {
            self.biggest_of(client)
        } else if self.members.len() >= self.most.all {
            let from = chosen(&self.clients, client, self.most.few);
            from.and_then(|client| self.biggest_of(client))
        } else {
            return ConnectionRoom::Free;
        };
        from.map_or(ConnectionRoom::None, ConnectionRoom::Of)
    }

    /// Returns the Service to which a client has the most connections or flows, together with the
    /// client.
    fn biggest_of(&self, client: Client) -> Option<(Service, Client)> {
        let (_, service) = self.of_clients.get(&client)?.biggest()?;
        Some((Arc::clone(service), client))
    }

    /// Evicts a connection or flow of this client to this Service that has been idle for long.
    /// Returns the handle that ends the connection or flow.
    fn evict(&mut self, from: &(Service, Client)) -> Option<T> {
        let group = self.groups.get_mut(from)?;
        let mut chances = CHANCES;
        let number = loop {
            let number = group.queue.pop_front()?;
            let Some(member) = self.members.get(&number) else {
                continue;
            };
            if chances == 0 || !member.used.replace(false) {
                break number;
            }
            chances -= 1;
            group.queue.push_back(number);
        };
        let count = group.count;
        self.tell(from, count);
        Some(self.remove(number)?.end)
    }

    fn insert(&mut self, number: u64, member: Member<T>) {
        let group = self.groups.entry(member.of.clone()).or_default();
        if group.queue.len() > 2 * group.count + CHANCES {
            group.queue.retain(|of| self.members.contains_key(of));
        }
        group.queue.push_back(number);
        group.count += 1;
        let count = group.count;
        self.count(&member.of, count);
        self.members.insert(number, member);
    }

    fn remove(&mut self, number: u64) -> Option<Member<T>> {
        let member = self.members.remove(&number)?;
        let group = self.groups.get_mut(&member.of)?;
        group.count -= 1;
        let count = group.count;
        if count == 0 {
            self.groups.remove(&member.of);
        }
        self.count(&member.of, count);
        Some(member)
    }

    /// Records the number of a client's connections or flows to a Service.
    fn count(&mut self, of: &(Service, Client), count: usize) {
        let (service, client) = of;
        let ranks = self.services.entry(Arc::clone(service));
        let ranks = ranks.or_insert_with(PlaceRanking::new);
        ranks.set(client, count);
        if ranks.total == 0 {
            self.services.remove(service);
        }
        let ranks = self
            .of_clients
            .entry(*client)
            .or_insert_with(PlaceRanking::new);
        ranks.set(service, count);
        let total = ranks.total;
        if total == 0 {
            self.of_clients.remove(client);
        }
        self.clients.set(client, total);
    }

    fn tell(&mut self, (service, client): &(Service, Client), count: usize) {
        let what = self.what;
        if self.told.is_some_and(|told| told.elapsed() < NOTICE_PERIOD) {
            debug!("{client} has {count} {what} to {service}: the longest idle one is ended");
            return;
        }
        self.told = Some(Instant::now());
        warn!(
            "{client} has {count} {what} to {service}: the longest idle one is ended for each new \
             one that needs room, and \
             others are served. Find the program that opens them; this line appears at most once \
             in ten minutes"
        );
    }
}

/// Returns the client that must free a connection slot. This is the client with the most slots, or
/// `client` if no other client has more slots. Returns `None` if no client has more than `few`
/// slots.
fn chosen(ranks: &PlaceRanking<Client>, client: Client, few: usize) -> Option<Client> {
    let mine = ranks.count(&client);
    let (count, biggest) = ranks.biggest()?;
    let from = if count > mine { *biggest } else { client };
    (count > few).then_some(from)
}

impl<T: Clone> ClientPlace<T> {
    /// Records a use of the connection or flow, so that the next eviction may skip it.
    pub(crate) fn note_use(&self) {
        self.used.set(true);
    }
}

impl<T: Clone> Drop for ClientPlace<T> {
    fn drop(&mut self) {
        // Ends the borrow of the shares before `ended` is dropped, because this drop may use the
        // shares again.
        let ended = self.shares.held.borrow_mut().remove(self.number);
        if ended.is_some() {
            // Wakes all waiting tasks. A single task might need a slot of another Service, while
            // other tasks could use the free slot.
            self.shares.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tried {
        shares: Rc<Shares<usize>>,
        places: HashMap<usize, ClientPlace<usize>>,
        ended: Vec<usize>,
        refused: usize,
    }

    impl Tried {
        fn new(all: usize) -> Self {
            Self {
                shares: Rc::new(Shares::new("connections", all, 16)),
                places: HashMap::new(),
                ended: Vec::new(),
                refused: 0,
            }
        }

        fn admit(&mut self, number: usize, service: &str, client: &str) {
            let client = Client::of(client.parse().unwrap());
            match self.shares.admit(&service.into(), client, number) {
                Some(admitted) => {
                    if let Some(ended) = admitted.evicted {
                        self.ended.push(ended);
                        self.places.remove(&ended);
                    }
                    self.places.insert(number, admitted.place);
                }
                None => self.refused += 1,
            }
        }
    }

    #[test]
    fn a_client_with_half_of_all_slots_loses_its_own_idle_connections() {
        let mut tried = Tried::new(100);
        for number in 0..50 {
            tried.admit(number, "web", "10.0.0.1");
        }
        assert_eq!(tried.ended, []);
        tried.places[&0].note_use();
        tried.admit(50, "web", "10.0.0.1");
        assert_eq!(tried.ended, [1], "the first one is in use");
        tried.admit(51, "dns", "10.0.0.1");
        assert_eq!(tried.ended, [1, 2], "to whichever Service");
        tried.admit(52, "web", "10.0.0.2");
        assert_eq!((tried.ended.len(), tried.refused), (2, 0));
    }

    #[test]
    fn a_service_at_its_share_loses_a_connection_of_its_largest_client() {
        let mut tried = Tried::new(100);
        for number in 0..75 {
            let client = if number < 40 { "10.0.0.1" } else { "10.0.0.2" };
            tried.admit(number, "web", client);
        }
        tried.admit(75, "web", "10.0.0.3");
        assert_eq!(tried.ended, [0]);
        tried.admit(76, "dns", "10.0.0.3");
        assert_eq!(tried.ended, [0], "other Services have the rest");
    }

    #[test]
    fn a_full_relay_keeps_clients_with_few_connections() {
        let mut tried = Tried::new(60);
        for number in 0..60 {
            let client = if number < 30 {
                "fd00::1"
            } else {
                "fd00:0:0:1::1"
            };
            tried.admit(number, ["a", "b"][number / 30], client);
        }
        for number in 60..80 {
            tried.admit(number, "c", &format!("10.0.0.{number}"));
        }
        assert!(tried.ended.iter().all(|number| *number < 60));
        assert_eq!((tried.ended.len(), tried.refused), (20, 0));
        assert_eq!(tried.shares.len(), 60);
        // From this number of clients on, every client has so few slots that it may keep them.
        for number in 80..200 {
            tried.admit(number, "c", &format!("10.0.1.{number}"));
        }
        assert_eq!(tried.shares.len(), 60);
        assert!(tried.refused > 0 && tried.shares.make_room().is_none());
    }

    #[test]
    fn ended_connections_leave_no_entries_in_the_per_client_shares() {
        let mut tried = Tried::new(1_000);
        tried.admit(0, "web", "10.0.0.1");
        for number in 1..10_000 {
            tried.admit(number, "web", "10.0.0.1");
            tried.places.remove(&number);
        }
        {
            let held = tried.shares.held.borrow();
            let queued: usize = held.groups.values().map(|group| group.queue.len()).sum();
            assert!(queued < 64, "{queued}");
        }
        tried.places.clear();
        let held = tried.shares.held.borrow();
        assert!(held.members.is_empty() && held.groups.is_empty() && held.services.is_empty());
        assert!(held.of_clients.is_empty() && held.clients.ranked.is_empty());
    }
}
