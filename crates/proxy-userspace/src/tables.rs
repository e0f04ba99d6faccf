//! Tables of this mode: wanted, actual and pending entries.

use std::sync::Arc;
use std::time::Instant;

use footprint::Leftovers;
use hashbrown::{HashMap, HashSet};
use proxy::{Owner, Protocol};
use reconcile::{Removals, Table};

use crate::part_state::RedirectState;
use crate::plan::{Base, Change, RedirectTarget};
use crate::port::{Listener, ListenerKind, Portal};
use relay::PortBackends;

/// Record of the wanted and actual entries of one IP family, with one table for each kind of entry.
#[derive(Default)]
pub(crate) struct Tables {
    /// Listening ports. Their actual state is always known, because only this process opens them.
    pub(crate) sockets: Table<Listener, Arc<PortBackends>, Arc<Owner>>,
    pub(crate) redirects: Table<Portal, RedirectTarget, Arc<Owner>>,
    pub(crate) base: Table<(), Base, ()>,
    /// Leftovers of other modes, which never delay a Service.
    pub(crate) leftovers: Table<(), Leftovers, ()>,
    /// Port number of each open listener.
    ports: HashMap<Listener, u16>,
    /// Open listeners by protocol and port number.
    numbers: HashMap<(Protocol, u16), Listener>,
    /// Number of redirects in the kernel that lead to each port, by protocol and port number.
    uses: HashMap<(Protocol, u16), usize>,
    /// True if rules may still lead to ports that an earlier process had opened.
    may_have_foreign: bool,
}

impl Tables {
    reconcile::tables!([sockets, redirects, base, leftovers], ..);

    /// Creates empty tables.
    pub(crate) fn new(now: Instant) -> Self {
        let mut tables = Self::default();
        tables.begin(now);
        tables.leftovers.count_removals(Removals::Excused);
        tables
    }

    pub(crate) fn count_removals(&mut self, removals: Removals) {
        self.sockets.count_removals(removals);
        self.redirects.count_removals(removals);
    }

    // ---- listening ports ----

    /// Returns the port number of a listener, or 0 if its port is not open.
    pub(crate) fn port(&self, listener: &Listener) -> u16 {
        self.ports.get(listener).copied().unwrap_or_default()
    }

    /// Records that the port of a listener is open and has these endpoints.
    pub(crate) fn opened(&mut self, listener: &Listener, port: u16, serving: Arc<PortBackends>) {
        let protocol = listener.name.protocol;
        if let Some(before) = self.ports.insert(listener.clone(), port) {
            self.numbers.remove(&(protocol, before));
        }
        self.numbers.insert((protocol, port), listener.clone());
        self.sockets.set_actual(listener, Some(serving));
    }

    /// Records that the port of a listener is closed.
    pub(crate) fn closed(&mut self, listener: &Listener) {
        if let Some(port) = self.ports.remove(listener) {
            self.numbers.remove(&(listener.name.protocol, port));
        }
        self.sockets.set_actual(listener, None);
    }

    /// True if rules lead to the port of a listener, so that it must stay open.
    pub(crate) fn is_used(&self, listener: &Listener) -> bool {
        let port = (listener.name.protocol, self.port(listener));
        self.uses.contains_key(&port)
    }

    /// True if a redirect must keep its old port for now, because a change of the new port is still
    /// pending. For example, the new port has no endpoint yet. The old port may belong to the same
    /// Service, or to the previous owner of the address.
    pub(crate) fn is_early(&self, change: &Change) -> bool {
        // Returns early in the usual case: no change of a listening port is pending.
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

    /// True if a redirect leads only to unwanted ports of other Services, and at least one of its
    /// own ports could not be opened. If the mode removes the redirect, the unwanted ports close,
    /// which may free a port number for this Service.
    pub(crate) fn is_abandoned(&self, change: &Change) -> bool {
        let (Some(owner), Some(before), Some(after)) =
            (&change.owner, &change.before, &change.after)
        else {
            return false;
        };
        let cannot_be_opened = |kind| {
            let name = owner.clone();
            self.sockets.is_failing(&Listener { name, kind })
        };
        let is_left = |port: u16| {
            let listener = self.numbers.get(&(change.portal.protocol, port));
            listener.is_some_and(|listener| {
                listener.name != *owner && self.sockets.wanted(listener).is_none()
            })
        };
        !after.is_open()
            && before.ports().all(is_left)
            && ListenerKind::ALL.into_iter().any(cannot_be_opened)
    }

    /// True if exactly `count` redirects lead to this port and this process has not opened the
    /// port.
    pub(crate) fn leads_alone(&self, protocol: Protocol, number: u16, count: usize) -> bool {
        let port = (protocol, number);
        number != 0
            && !self.numbers.contains_key(&port)
            && self.uses.get(&port).copied() == Some(count)
    }

    /// True if rules may still lead to ports that an earlier process had opened.
    pub(crate) fn may_have_foreign(&self) -> bool {
        self.may_have_foreign
    }

    /// Returns the ports that pending redirects will leave for a port of another Service with
    /// endpoints. Such a port keeps its endpoints until the redirects have moved.
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

    /// True if a pending change removes the last endpoint of a listening port.
    pub(crate) fn is_emptied(&self, listener: &Listener) -> bool {
        let is_empty = |serving: &Arc<PortBackends>| serving.endpoints.is_empty();
        self.sockets.wanted(listener).is_some_and(is_empty)
            && self
                .sockets
                .actual(listener)
                .is_some_and(|of| !is_empty(of))
    }

    /// Returns the ports of an earlier process to which rules in the kernel still lead.
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

    /// Records the target of a redirect in the kernel, or `None` if the kernel has no such
    /// redirect.
    pub(crate) fn redirected(&mut self, portal: &Portal, aim: Option<RedirectTarget>) {
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
        for port in aim.iter().flat_map(RedirectTarget::ports) {
            *self.uses.entry((portal.protocol, port)).or_default() += 1;
        }
        self.redirects.set_actual(portal, aim);
    }

    /// Records the redirects that a read found in the kernel. Returns the portals whose redirects
    /// another program has changed.
    pub(crate) fn observe(&mut self, held: RedirectState) -> Vec<Portal> {
        let RedirectState {
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

    /// True if every port and redirect that an owner claims exists.
    pub(crate) fn has_all_of(&self, owner: &Arc<Owner>) -> bool {
        let mut sockets = self.sockets.keys_of(owner).iter();
        let mut redirects = self.redirects.keys_of(owner).iter();
        sockets.all(|key| !self.sockets.is_pending(key))
            && redirects.all(|key| !self.redirects.is_pending(key))
    }

    /// True if this mode serves all Services: no write of a port or redirect is pending.
    pub(crate) fn serve_all(&self) -> bool {
        self.base.pending_len() == 0
            && self.sockets.pending_len() == 0
            && self.redirects.pending_len() == 0
    }
}
