//! Chooses an endpoint for a client: the Service port's next endpoint in turn or, with session
//! affinity, the client's previous endpoint.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::recent::Recent;

/// Maximum number of clients whose endpoint one listening port remembers for session affinity.
const MOST_CLIENTS: usize = 65_536;

/// Endpoints of a listening port, with its session affinity and its allowed clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortBackends {
    /// Sorted endpoints. Without endpoints, the relay resets connections and drops datagrams.
    pub endpoints: Box<[SocketAddr]>,
    /// Time for which a client keeps its endpoint after its last connection, or `None` for no
    /// affinity.
    pub affinity: Option<Duration>,
    /// Networks of allowed clients, or `None` if all clients are allowed.
    pub sources: Option<Box<[IpNet]>>,
}

impl PortBackends {
    /// Reports whether `endpoint` is one of the port's endpoints.
    pub fn has(&self, endpoint: &SocketAddr) -> bool {
        self.endpoints.binary_search(endpoint).is_ok()
    }

    /// Reports whether a client with this address may connect.
    pub fn admits(&self, client: IpAddr) -> bool {
        let sources = self.sources.as_deref();
        sources.is_none_or(|nets| nets.iter().any(|net| net.contains(&client)))
    }
}

/// Rule by which a port chooses an endpoint for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// With session affinity, the port chooses the client's previous endpoint. Otherwise, it
    /// chooses the next endpoint in turn.
    Kept,
    /// The port chooses the next endpoint in turn, because the endpoint that was tried before did
    /// not accept the client.
    Another,
}

/// Round-robin position and session affinity of one listening port.
pub(crate) struct Balance {
    serving: Arc<PortBackends>,
    next: usize,
    kept: Option<Recent<IpAddr, SocketAddr>>,
}

impl Balance {
    pub(crate) fn new(serving: Arc<PortBackends>) -> Self {
        // Begins at a random endpoint. Otherwise, all nodes would begin at the same endpoint.
        let random = RandomState::new().build_hasher().finish();
        let mut balance = Self {
            serving: Arc::default(),
            next: usize::try_from(random >> 33).unwrap_or_default(),
            kept: None,
        };
        balance.update(serving);
        balance
    }

    /// Replaces the endpoints. A client keeps an endpoint that the port still has, unless the
    /// affinity timeout changes.
    pub(crate) fn update(&mut self, serving: Arc<PortBackends>) {
        if serving.affinity != self.serving.affinity {
            let of = |ttl| Recent::new(ttl, MOST_CLIENTS);
            self.kept = serving.affinity.map(of);
        }
        self.serving = serving;
    }

    pub(crate) fn serving(&self) -> &PortBackends {
        &self.serving
    }

    /// Chooses the endpoint for the next connection of a client. Returns `None` if the port has no
    /// endpoints.
    pub(crate) fn pick(
        &mut self,
        client: IpAddr,
        choice: Choice,
        now: Instant,
    ) -> Option<SocketAddr> {
        if let Some(kept) = self.kept.as_mut().filter(|_| choice == Choice::Kept)
            && let Some(endpoint) = kept.get(&client, now)
            && self.serving.has(endpoint)
        {
            return Some(*endpoint);
        }
        let at = self.next.checked_rem(self.serving.endpoints.len())?;
        self.next = at + 1;
        let endpoint = *self.serving.endpoints.get(at)?;
        if let Some(kept) = &mut self.kept {
            kept.insert(client, endpoint, now);
        }
        Some(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn serving(ports: &[u16], affinity: Option<u64>) -> Arc<PortBackends> {
        let at = |port: &u16| SocketAddr::from(([10, 0, 0, 1], *port));
        Arc::new(PortBackends {
            endpoints: ports.iter().map(at).collect(),
            affinity: affinity.map(Duration::from_secs),
            sources: None,
        })
    }

    fn client(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn each_endpoint_is_picked_equally_often() {
        let mut balance = Balance::new(serving(&[1, 2, 3], None));
        let mut counts = BTreeMap::new();
        for _ in 0..30 {
            let picked = balance.pick(client(1), Choice::Kept, Instant::now());
            *counts.entry(picked.unwrap().port()).or_insert(0) += 1;
        }
        assert_eq!(counts, BTreeMap::from([(1, 10), (2, 10), (3, 10)]));
        balance.update(serving(&[], None));
        assert_eq!(balance.pick(client(1), Choice::Kept, Instant::now()), None);
    }

    #[test]
    fn a_client_keeps_its_endpoint_until_the_affinity_timeout() {
        let mut balance = Balance::new(serving(&[1, 2, 3], Some(10)));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pick = |seconds, choice| balance.pick(client(1), choice, at(seconds)).unwrap();
        let first = pick(0, Choice::Kept);
        assert_eq!(pick(9, Choice::Kept), first);
        assert_eq!(pick(18, Choice::Kept), first, "each connection prolongs it");
        let second = pick(28, Choice::Kept);
        assert_ne!(second, first);
        let third = pick(29, Choice::Another);
        assert_ne!(third, second);
        assert_eq!(pick(30, Choice::Kept), third, "it has moved");
        balance.update(serving(&[9], Some(10)));
        let left = balance.pick(client(1), Choice::Kept, at(31)).unwrap();
        assert_eq!(left.port(), 9);
    }

    #[test]
    fn clients_outside_the_source_ranges_are_not_admitted() {
        let serving = PortBackends {
            sources: Some(["192.0.2.0/29".parse().unwrap()].into()),
            ..PortBackends::default()
        };
        assert!(serving.admits(client(7)) && !serving.admits(client(8)));
        assert!(PortBackends::default().admits(client(8)));
    }
}
