//! What this mode keeps: what is wanted, what is there, and so what is pending.

use std::sync::Arc;
use std::time::Instant;

use footprint::Leftovers;
use hashbrown::{HashMap, HashSet};
use proxy::{Owner, Protocol};
use reconcile::{Removals, Rows, Table};

use crate::held::Held;
use crate::plan::{Aim, Base, Change};
use crate::port::{Listener, Portal, Way};
use relay::Serving;

/// All tables of one IP family.
pub(crate) struct Tables {
    /// Listening ports. Those that are there are of this process, and so all known.
    pub(crate) sockets: Table<Listener, Arc<Serving>, Arc<Owner>>,
    pub(crate) redirects: Table<Portal, Aim, Arc<Owner>>,
    pub(crate) base: Table<(), Base, ()>,
    /// Of other modes: only in the way, so that nothing is late for it.
    pub(crate) leftovers: Table<(), Leftovers, ()>,
    /// The numbers of the listening ports that are open.
    ports: HashMap<Listener, u16>,
    /// Whose these numbers are: ports that are ours.
    numbers: HashMap<(Protocol, u16), Listener>,
    /// How many redirects that are there lead to a port.
    uses: HashMap<(Protocol, u16), usize>,
    /// Whether rules may lead to ports that are none of ours.
    may_have_foreign: bool,
}

impl Tables {
    /// Nothing is wanted, nor known to be there.
    pub(crate) fn new(now: Instant) -> Self {
        let mut tables = Self {
            sockets: Table::new(),
            redirects: Table::new(),
            base: Table::new(),
            leftovers: Table::new(),
            ports: HashMap::new(),
            numbers: HashMap::new(),
            uses: HashMap::new(),
            may_have_foreign: false,
        };
        tables.begin(now);
        tables.leftovers.count_removals(Removals::Excused);
        tables
    }

    /// Says what time it is.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.sockets.begin(now);
        self.redirects.begin(now);
        self.base.begin(now);
        self.leftovers.begin(now);
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &dyn Rows> {
        let Self {
            sockets,
            redirects,
            base,
            leftovers,
            ..
        } = self;
        [sockets as &dyn Rows, redirects, base, leftovers].into_iter()
    }

    pub(crate) fn count_removals(&mut self, removals: Removals) {
        self.sockets.count_removals(removals);
        self.redirects.count_removals(removals);
    }

    // ---- listening ports ----

    /// The number of a listening port; 0 as long as it is not open.
    pub(crate) fn port(&self, listener: &Listener) -> u16 {
        self.ports.get(listener).copied().unwrap_or_default()
    }

    /// A listening port is open, and these serve there.
    pub(crate) fn opened(&mut self, listener: &Listener, port: u16, serving: Arc<Serving>) {
        let protocol = listener.name.protocol;
        if let Some(before) = self.ports.insert(listener.clone(), port) {
            self.numbers.remove(&(protocol, before));
        }
        self.numbers.insert((protocol, port), listener.clone());
        self.sockets.set_actual(listener, Some(serving));
    }

    /// A listening port is closed.
    pub(crate) fn closed(&mut self, listener: &Listener) {
        if let Some(port) = self.ports.remove(listener) {
            self.numbers.remove(&(listener.name.protocol, port));
        }
        self.sockets.set_actual(listener, None);
    }

    /// Whether rules lead to a listening port: then it stays.
    pub(crate) fn is_used(&self, listener: &Listener) -> bool {
        let port = (listener.name.protocol, self.port(listener));
        self.uses.contains_key(&port)
    }

    /// Whether a redirect would leave a listening port of this process, be it of its Service or of the
    /// one that had the address before, for one that does not yet serve as is wanted: it may have no
    /// endpoint, where the one that is left has.
    pub(crate) fn is_early(&self, change: &Change) -> bool {
        // Mostly so, and where all redirects are written at a start.
        if self.sockets.pending_len() == 0 {
            return false;
        }
        let (Some(owner), Some(before), Some(after)) =
            (&change.owner, &change.before, &change.after)
        else {
            return false;
        };
        let at = |port: u16| self.numbers.get(&(change.portal.protocol, port));
        let is_owners = |listener: &&Listener| listener.name == *owner;
        let does_not_serve = |listener: &Listener| self.sockets.is_pending(listener);
        let [before, after] = [before, after].map(|aim| [aim.outside, aim.pods, aim.node]);
        let mut both = before.into_iter().zip(after);
        both.any(|(before, after)| {
            before != after
                && at(before).is_some()
                && at(after).filter(is_owners).is_some_and(does_not_serve)
        })
    }

    /// Whether a redirect leads to ports of other Services that are gone, as one that it is to lead to
    /// could not be opened: what comes to it is not theirs, and it may be theirs that is needed.
    pub(crate) fn is_abandoned(&self, change: &Change) -> bool {
        let (Some(owner), Some(before), Some(after)) =
            (&change.owner, &change.before, &change.after)
        else {
            return false;
        };
        let cannot_be_opened = |way| {
            let name = owner.clone();
            self.sockets.is_failing(&Listener { name, way })
        };
        let is_left = |port: u16| {
            let listener = self.numbers.get(&(change.portal.protocol, port));
            listener.is_some_and(|listener| {
                listener.name != *owner && self.sockets.wanted(listener).is_none()
            })
        };
        !after.is_open()
            && before.ports().all(is_left)
            && Way::ALL.into_iter().any(cannot_be_opened)
    }

    /// Whether no more redirects than these lead to a port that is none of ours.
    pub(crate) fn leads_alone(&self, protocol: Protocol, number: u16, count: usize) -> bool {
        let port = (protocol, number);
        number != 0
            && !self.numbers.contains_key(&port)
            && self.uses.get(&port).copied() == Some(count)
    }

    /// Whether rules may lead to ports of a process before us.
    pub(crate) fn may_have_foreign(&self) -> bool {
        self.may_have_foreign
    }

    /// The ports that redirects are about to leave for those of another Service that has endpoints.
    /// Until then whoever serves there goes on to.
    pub(crate) fn handed_over(&self) -> HashSet<(Protocol, u16)> {
        let redirects = &self.redirects;
        let pending = redirects
            .pending()
            .filter(|portal| !redirects.is_failing(portal));
        let mut ports = HashSet::new();
        for portal in pending {
            let (Some(owner), Some(before)) = (redirects.owner(portal), redirects.actual(portal))
            else {
                continue;
            };
            let mut listeners = self.sockets.keys_of(owner).iter();
            let is_served = listeners.any(|listener| {
                let serving = self.sockets.wanted(listener);
                serving.is_some_and(|serving| !serving.endpoints.is_empty())
                    && !self.sockets.is_failing(listener)
            });
            let left = before.ports().map(|port| (portal.protocol, port));
            let is_others = |port: &(Protocol, u16)| {
                let listener = self.numbers.get(port);
                listener.is_some_and(|listener| listener.name != owner.name)
            };
            ports.extend(left.filter(|port| is_served && is_others(port)));
        }
        ports
    }

    /// Whether a listening port is about to have no endpoint any more.
    pub(crate) fn is_emptied(&self, listener: &Listener) -> bool {
        let is_empty = |serving: &Arc<Serving>| serving.endpoints.is_empty();
        self.sockets.wanted(listener).is_some_and(is_empty)
            && self
                .sockets
                .actual(listener)
                .is_some_and(|of| !is_empty(of))
    }

    /// The ports that rules of a process before us lead to.
    pub(crate) fn foreign_ports(&mut self) -> HashSet<(Protocol, u16)> {
        if !self.may_have_foreign {
            return HashSet::new();
        }
        let used = self.uses.keys().copied();
        let foreign: HashSet<_> = used
            .filter(|port| !self.numbers.contains_key(port))
            .collect();
        self.may_have_foreign = !foreign.is_empty();
        foreign
    }

    // ---- redirects ----

    /// Books what a redirect is now.
    pub(crate) fn redirected(&mut self, portal: &Portal, aim: Option<Aim>) {
        if let Some(before) = self.redirects.actual(portal) {
            for port in before.ports() {
                let port = (portal.protocol, port);
                if let Some(count) = self.uses.get_mut(&port) {
                    *count -= 1;
                    if *count == 0 {
                        self.uses.remove(&port);
                    }
                }
            }
        }
        for port in aim.iter().flat_map(Aim::ports) {
            *self.uses.entry((portal.protocol, port)).or_default() += 1;
        }
        self.redirects.set_actual(portal, aim);
    }

    /// Takes over what was found; the redirects that are not as they were believed to be.
    pub(crate) fn observe(&mut self, held: Held) -> Vec<Portal> {
        let Held {
            base,
            redirects,
            leftovers,
        } = held;
        self.base.observe(base.map(|base| ((), base)));
        let leftovers = (!leftovers.is_empty()).then_some(leftovers);
        self.leftovers.observe(leftovers.map(|found| ((), found)));
        self.uses.clear();
        for (portal, aim) in &redirects {
            for port in aim.ports() {
                *self.uses.entry((portal.protocol, port)).or_default() += 1;
            }
        }
        self.may_have_foreign = true;
        self.redirects.observe(redirects)
    }

    /// Whether all that an owner claims is there.
    pub(crate) fn has_all_of(&self, owner: &Arc<Owner>) -> bool {
        let mut sockets = self.sockets.keys_of(owner).iter();
        let mut redirects = self.redirects.keys_of(owner).iter();
        sockets.all(|key| !self.sockets.is_pending(key))
            && redirects.all(|key| !self.redirects.is_pending(key))
    }

    /// Whether everything is served by this mode.
    pub(crate) fn serve_all(&self) -> bool {
        self.base.pending_len() == 0
            && self.sockets.pending_len() == 0
            && self.redirects.pending_len() == 0
    }
}
