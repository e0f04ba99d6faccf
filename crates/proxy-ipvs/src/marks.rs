//! Firewall marks of the virtual servers for clients outside the cluster
//! (`--ipvs-semantics=exact`).
//!
//! Marks survive a restart, because the set KUBE-LOCAL-MARK stores each address with its mark: a
//! map in nftables, or an ipset with `skbmark`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use proxy::{IpFamily, NamespacedName, Owner, Protocol, Rank, ServiceAddress, ServicePortName};

use crate::config::MarkBits;
use crate::mark_addresses::MarkAddresses;
use crate::server::VirtualServerKey;
use crate::sets::{Member, Set};
use crate::tables::Tables;

/// Firewall marks of Service ports, in one IP family.
#[derive(Debug)]
pub(crate) struct Marks {
    family: IpFamily,
    bits: Option<MarkBits>,
    of_owners: HashMap<Arc<Owner>, u32>,
    /// Marks in use, each with the protocol of its Service port.
    taken: HashMap<u32, Protocol>,
    /// Service ports that wait for a free mark, those of the oldest Services first.
    waiting: BTreeSet<Arc<Owner>>,
    /// Latest mark of each service address: read from the kernel at the start, or assigned since.
    ///
    /// `None` until [`take_news`](Self::take_news) opens the table. Before that, no Service port
    /// gets a mark.
    last: Option<HashMap<ServiceAddress, u32>>,
    /// Marks read from the kernel, until [`take_news`](Self::take_news) moves them to `last`.
    read: Option<HashMap<ServiceAddress, u32>>,
    /// Service addresses of each mark in `last`.
    addresses: HashMap<u32, BTreeSet<ServiceAddress>>,
    /// Number of the lowest mark that may be free.
    next: u32,
    /// Number of marks that have become free for waiting Service ports.
    freed: usize,
    /// Service ports that began to wait for a mark, and that the log has not named yet.
    unreported: Vec<ServicePortName>,
    shared: MarkAddresses,
}

impl Marks {
    /// Creates a table without marks. If `bits` is `None`, the table never assigns a mark.
    pub(crate) fn new(bits: Option<MarkBits>, family: IpFamily, shared: MarkAddresses) -> Self {
        Self {
            family,
            bits,
            of_owners: HashMap::new(),
            taken: HashMap::new(),
            waiting: BTreeSet::new(),
            last: None,
            read: None,
            addresses: HashMap::new(),
            next: 1,
            freed: 0,
            unreported: Vec::new(),
            shared,
        }
    }

    /// Returns true if the proxy knows which marks the kernel has, or if it needs no marks.
    pub(crate) fn is_open(&self) -> bool {
        self.bits.is_none() || self.last.is_some()
    }

    /// Returns true if marks have become available, so that Services must be recompiled.
    pub(crate) fn has_news(&self) -> bool {
        self.read.is_some() || self.freed > 0
    }

    /// Opens the table if the proxy has read the kernel's marks. Returns true if so: the caller
    /// must then recompile all Services that may need a mark.
    ///
    /// Callers must have compiled all Services before. Only then does [`of`](Self::of) know which
    /// of several Service ports wins an address.
    pub(crate) fn take_news(&mut self) -> bool {
        let Some(read) = self.read.take() else {
            return false;
        };
        self.last = Some(read);
        true
    }

    /// Returns the Services that should get the marks freed since the last call: those of the
    /// oldest waiting Service ports, one per mark.
    pub(crate) fn take_heirs(&mut self) -> BTreeSet<NamespacedName> {
        let freed = std::mem::take(&mut self.freed);
        let heirs = self.waiting.iter().take(freed);
        heirs.map(|owner| owner.name.service.clone()).collect()
    }

    /// Removes and returns the Service ports that began to wait for a mark since the last call.
    pub(crate) fn take_unreported(&mut self) -> Vec<ServicePortName> {
        std::mem::take(&mut self.unreported)
    }

    /// Stores the marks that the kernel's set of marks contains at the first read.
    pub(crate) fn open(&mut self, members: impl Iterator<Item = Member>) {
        let is_first = self.last.is_none() && self.read.is_none();
        let Some(bits) = self.bits.filter(|_| is_first) else {
            return;
        };
        let mut read = HashMap::new();
        for member in members {
            if let Member::AddressPortMark(address, protocol, port, mark) = member
                && bits.can_hold(mark)
            {
                let at = ServiceAddress::new(address, port, protocol);
                read.insert(at, mark);
                self.addresses.entry(mark).or_default().insert(at);
            }
        }
        self.read = Some(read);
    }

    /// Returns the mark of a Service port with these addresses. A Service port without a mark gets
    /// the latest mark of one of its addresses, unless another Service port wins an address of that
    /// mark. Replaces a mark at which another program has a virtual server. Returns `None` if no
    /// mark is free, or if the kernel's marks are not known yet.
    pub(crate) fn of(
        &mut self,
        owner: &Arc<Owner>,
        at: &[ServiceAddress],
        tables: &Tables,
    ) -> Option<u32> {
        let last = self.last.as_ref()?;
        let family = self.family;
        let is_foreign = |mark: u32| {
            tables
                .foreign
                .is_known_at(&VirtualServerKey::Mark { family, mark })
        };
        if let Some(lost) = self.get(owner).filter(|mark| is_foreign(*mark)) {
            self.of_owners.remove(owner);
            self.taken.remove(&lost);
        }
        let mark = self.get(owner).or_else(|| {
            let wins = |at: &&ServiceAddress| {
                let winner = tables.servers.owner(&(**at).into());
                winner.is_none_or(|winner| winner >= owner)
            };
            let kept = at.iter().filter(wins).filter_map(|at| last.get(at));
            // With this mark, packets to another Service's address would reach this Service port's
            // endpoints.
            let is_others = |other: &ServiceAddress| {
                let winner = tables.servers.owner(&(*other).into());
                !at.contains(other) && winner.is_some_and(|winner| winner != owner)
            };
            let is_free = |mark: u32| !self.taken.contains_key(&mark) && !is_foreign(mark);
            kept.copied()
                .find(|mark| is_free(*mark) && !self.addresses(*mark).any(is_others))
        });
        let Some(mark) = mark.or_else(|| self.free(tables)) else {
            self.wait(owner);
            return None;
        };
        self.waiting.remove(owner);
        self.taken.insert(mark, owner.name.protocol);
        self.of_owners.insert(Arc::clone(owner), mark);
        self.note_addresses(mark, at, tables);
        Some(mark)
    }

    /// Returns the protocol of the Service port that has this mark.
    pub(crate) fn protocol(&self, mark: u32) -> Option<Protocol> {
        self.taken.get(&mark).copied()
    }

    /// Returns the mark of a Service port, or `None` if it has none.
    pub(crate) fn get(&self, owner: &Arc<Owner>) -> Option<u32> {
        self.of_owners.get(owner).copied()
    }

    /// Returns the Service port that has this mark, or `None` if the mark is free.
    pub(crate) fn owner(&self, mark: u32) -> Option<&Arc<Owner>> {
        let mut marked = self.of_owners.iter();
        marked.find(|(_, of)| **of == mark).map(|(owner, _)| owner)
    }

    /// Returns true if the table knows the service addresses of each mark, as with
    /// `--ipvs-semantics=exact`. Upstream's semantics use no marks.
    pub(crate) fn has_addresses(&self) -> bool {
        self.bits.is_some()
    }

    /// Returns the service addresses at which packets may get this mark.
    pub(crate) fn addresses(&self, mark: u32) -> impl Iterator<Item = &ServiceAddress> {
        self.addresses.get(&mark).into_iter().flatten()
    }

    /// Releases the mark of a Service port. Another Service port can get it once the fwmark virtual
    /// server is removed.
    pub(crate) fn release(&mut self, owner: &Arc<Owner>, tables: &Tables) {
        self.waiting.remove(owner);
        if let Some(mark) = self.of_owners.remove(owner) {
            self.taken.remove(&mark);
            let family = self.family;
            if !tables.is_ours(&VirtualServerKey::Mark { family, mark }) {
                self.removed(mark);
            }
        }
    }

    /// Records that the kernel no longer has a virtual server for this mark.
    pub(crate) fn removed(&mut self, mark: u32) {
        if let Some(bits) = self.bits
            && bits.can_hold(mark)
            && !self.taken.contains_key(&mark)
        {
            self.shared.remove(self.family, mark);
            self.next = self.next.min(bits.number(mark));
            self.freed = (self.freed + 1).min(self.waiting.len());
        }
    }

    fn wait(&mut self, owner: &Arc<Owner>) {
        if self.waiting.is_empty() {
            tracing::warn!(
                service = %owner.name,
                "all marks of --ipvs-mark-bits are in use: clients inside the cluster reach only the local endpoints of this and further \
                 Services with externalTrafficPolicy Local at their external addresses; add bits that nothing else uses"
            );
        }
        if self.waiting.insert(Arc::clone(owner)) {
            self.unreported.push(owner.name.clone());
        }
    }

    /// Records the service addresses of a mark. A former address stays recorded as long as the
    /// kernel maps it to the mark.
    fn note_addresses(&mut self, mark: u32, at: &[ServiceAddress], tables: &Tables) {
        if let Some(first) = at.first() {
            self.shared.set(self.family, mark, *first);
        }
        let Some(last) = &mut self.last else {
            return;
        };
        let known = self.addresses.entry(mark).or_default();
        if at.len() == known.len() && at.iter().all(|at| known.contains(at)) {
            return;
        }
        let wanted: BTreeSet<ServiceAddress> = at.iter().copied().collect();
        known.retain(|at| {
            let is_kept = wanted.contains(at) || is_marked_at(tables, at, mark);
            if !is_kept {
                forget(last, at, mark);
            }
            is_kept
        });
        last.extend(wanted.iter().map(|at| (*at, mark)));
        known.extend(wanted);
    }

    /// Returns a mark that no Service port has and no virtual server uses, including other
    /// programs' virtual servers. Returns `None` if there is none.
    fn free(&mut self, tables: &Tables) -> Option<u32> {
        let (bits, family) = (self.bits?, self.family);
        loop {
            let mark = bits.mark(self.next)?;
            self.next += 1;
            let key = VirtualServerKey::Mark { family, mark };
            let is_used = self.taken.contains_key(&mark)
                || tables.foreign.stands_at(&key)
                || tables.is_ours(&key);
            if !is_used {
                let former = self.addresses.remove(&mark).unwrap_or_default();
                for at in &former {
                    let last = self.last.iter_mut();
                    last.for_each(|last| forget(last, at, mark));
                }
                return Some(mark);
            }
        }
    }
}

/// Fwmark virtual servers that no Service wants.
pub(crate) struct FormerMarks {
    /// Owner of the claims for these virtual servers. This owner sorts after every Service, so a
    /// Service that gets a virtual server's mark wins the virtual server.
    pub(crate) owner: Arc<Owner>,
    /// Service addresses that the kernel maps, or once mapped, to the virtual server's mark.
    pub(crate) addresses: BTreeMap<VirtualServerKey, BTreeSet<ServiceAddress>>,
}

impl FormerMarks {
    /// Creates a table without virtual servers.
    pub(crate) fn new() -> Self {
        let owner = Owner {
            created: i64::MAX,
            name: ServicePortName {
                service: NamespacedName::new("~", "former-marks"),
                port: "".into(),
                protocol: Protocol::Tcp,
            },
            rank: Rank::Other,
        };
        Self {
            owner: Arc::new(owner),
            addresses: BTreeMap::new(),
        }
    }

    /// Returns the protocol of a virtual server that no Service wants. Unknown protocols count as
    /// TCP, because after a restart only virtual servers of TCP drain.
    pub(crate) fn protocol(&self, key: &VirtualServerKey) -> Protocol {
        let first = self.addresses.get(key).and_then(BTreeSet::first);
        first.map_or(Protocol::Tcp, |at| at.protocol)
    }

    /// Returns true if packets of the virtual server's connections may still arrive: a Service
    /// wants one of its addresses, or its addresses are unknown.
    pub(crate) fn is_reachable(&self, key: &VirtualServerKey, tables: &Tables) -> bool {
        let wants = |at: &ServiceAddress| tables.servers.wanted(&(*at).into()).is_some();
        let addresses = self.addresses.get(key);
        addresses.is_none_or(|all| all.iter().any(wants))
    }
}

fn forget(last: &mut HashMap<ServiceAddress, u32>, at: &ServiceAddress, mark: u32) {
    if last.get(at) == Some(&mark) {
        last.remove(at);
    }
}

/// Returns true if packets to this address get this mark.
pub(crate) fn is_marked_at(tables: &Tables, at: &ServiceAddress, mark: u32) -> bool {
    let member = Member::AddressPortMark(at.address, at.protocol, at.port, mark);
    tables.members(Set::LocalMark).actual(&member).is_some()
}
