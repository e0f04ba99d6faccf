//! The userspace mode for one IP family, as a scheme of the [`engine`].
//!
//! ```text
//!   update ─▶ Claims ─▶ Tables ─┬─▶ listening ports ─(their numbers)─▶ redirects ─▶ rules
//!                         ▲     │    lane: sockets                      lane: rules
//!                         └ settle, observe
//! ```
//!
//! The order of writes:
//!
//! * A redirect waits until its listening ports are open.
//! * A redirect moves from one open port to another only once the new port has its wanted
//!   endpoints.
//! * A listening port closes only once no rule leads to it.
//! * If a port cannot be opened, its redirect may still lead to ports of deleted Services. The mode
//!   then removes the redirect. The ports of the deleted Services close, which frees a port number
//!   or a descriptor.

use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use engine::{Concern, Engine, Extent, Served, Step};
use hashbrown::{HashMap, HashSet};
use proxy::{
    EntryKind, Failure, Fate, Model, NamespacedName, Notice, Owner, Protocol, Selection,
    ServicePortName, is_outside,
};
use reconcile::Rows;

use crate::claims::{Claims, RedirectFacts};
use crate::kinds::{Lane, Part, State, UserspaceKinds};
use crate::part_state::{PartState, RedirectState};
use crate::plan::{
    Base, Change, Extent as Writes, NodePortsAt, Outcomes, Plan, RedirectOutcomes, Redirects,
    Refusal, RefusalMeaning, SocketError, Sockets,
};
use crate::port::{Listener, compile};
use crate::tables::Tables;

/// The userspace mode for one IP family.
pub type Proxier<K> = Engine<Userspace, K>;

/// Worker threads (lanes) of this mode: [one for listening ports, one for rules](Lane).
pub type Lanes<K> = engine::Lanes<Userspace, K>;

/// State of userspace mode: the wanted and actual entries, and the data from which it plans the
/// next writes.
pub struct Userspace {
    tables: Tables,
    claims: Claims,
    surroundings: RedirectFacts,
    /// True if a refused write may have changed the kernel's rules.
    is_uncertain: bool,
}

impl Userspace {
    /// Sets the wanted base (rules that do not depend on Services) for the node's current
    /// addresses. Returns true if redirects must change with these addresses.
    fn want_base(&mut self, state: &mut State) -> bool {
        let node = &state.node;
        let outside = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        };
        let held = || node.interface_addresses.iter().copied().filter(outside);
        let own = node.ip.filter(|ip| node.interface_addresses.contains(ip));
        let via = own.or_else(|| held().next());
        let selection = node.node_port_addresses.of(node.family);
        let (wanted, addresses) = if selection == Selection::All {
            let at = if state.config.localhost_node_ports {
                NodePortsAt::Everywhere
            } else {
                NodePortsAt::NotAtLocalhost
            };
            let all = node.interface_addresses.iter().copied();
            (Some(at), all.filter(is_outside).collect())
        } else if let Some(selected) = node.serving_node_ports([]) {
            let addresses = selected.iter().copied().filter(outside).collect();
            (Some(NodePortsAt::These(selected)), addresses)
        } else {
            // Keeps NodePorts at the addresses that the kernel's rules have, because the node's
            // addresses are unknown.
            let installed = self.tables.base.actual(&());
            let installed = installed.map(|base| base.node_ports.clone());
            let addresses = mem::take(&mut state.serving.addresses);
            (installed, addresses)
        };
        let node_ports = wanted.unwrap_or(NodePortsAt::These(Vec::new()));
        let base = Base {
            node_ports,
            own_mark: state.config.own_mark,
        };
        self.tables.base.claim(&(), [((), base)]);
        state.serving.addresses = addresses;
        // Redirects keep the address to which they lead until the node's addresses are known.
        let is_other = node.has_addresses && self.surroundings.via != via;
        if is_other {
            self.surroundings.via = via;
        }
        is_other
    }

    fn update_service(&mut self, state: &mut State, model: &Model, name: &NamespacedName) {
        let view = model.view(name);
        let ports = view.map_or_else(Vec::new, |view| compile(&view, &state.node));
        self.claims
            .put(name, ports, &mut self.tables, &self.surroundings);
        state.news.changed(name);
    }

    fn next_of_sockets(&mut self, state: &State) -> Option<Plan> {
        // Opens no port before the rules are known, because rules of an earlier process may still
        // lead to a free port. If the mode opened this port for another Service, the endpoints of
        // that Service would get packets for the earlier Service.
        if !state.knows(Part::Rules) {
            return None;
        }
        let tables = &self.tables;
        let being_used = being_used(state);
        let handed_over = if tables
            .sockets
            .due(state.now)
            .any(|listener| tables.is_emptied(listener))
        {
            tables.handed_over()
        } else {
            HashSet::new()
        };
        let due = tables.sockets.due(state.now).filter(|listener| {
            let port = (listener.name.protocol, tables.port(listener));
            let is_free = || !tables.is_used(listener) && !being_used.contains(&port);
            if tables.sockets.wanted(listener).is_some() {
                !(handed_over.contains(&port) && tables.is_emptied(listener))
            } else {
                state.may_delete() && is_free()
            }
        });
        let mut due: HashSet<&Listener> = due.collect();
        if due.is_empty() {
            return None;
        }
        let opens = |listener: &&Listener| {
            tables.sockets.wanted(listener).is_some() && tables.port(listener) == 0
        };
        // If this plan opens or closes a port, it also retries the ports that could not be opened.
        // Otherwise, younger listeners could take the free port numbers.
        let closes = |listener: &&Listener| tables.sockets.wanted(listener).is_none();
        let is_chance = due.iter().any(|of| opens(of) || closes(of));
        if tables.sockets.failing_len() > 0 && is_chance {
            let waiting = tables.sockets.pending().filter(opens);
            due.extend(waiting.filter(|listener| !tables.sockets.is_excused(listener)));
        }
        let mut again = HashMap::new();
        if tables.may_have_foreign() {
            let opened = due.iter().filter(|listener| opens(listener));
            for listener in opened {
                let owner = tables.sockets.owner(listener);
                let before = owner.map(|owner| self.claims.ports_before(owner, tables));
                let port = before.and_then(|ports| ports.get(&listener.kind).copied());
                again.extend(port.map(|port| ((*listener).clone(), port)));
            }
        }
        let rank = |listener: &Listener| {
            let owner = tables.sockets.owner(listener);
            let order = owner.map(|owner| (owner.rank, Arc::clone(owner)));
            // Closes ports first, because this frees port numbers. Then opens the ports that an
            // earlier process had opened, and finally all other ports.
            let is_new = order.is_some() && !again.contains_key(listener);
            (is_new, order)
        };
        let mut changes: Vec<_> = due.into_iter().map(|of| (rank(of), of)).collect();
        changes.sort_unstable();
        let changes = changes.into_iter().map(|(_, listener)| {
            let serving = tables.sockets.wanted(listener).cloned();
            (listener.clone(), serving)
        });
        let changes = changes.collect();
        Some(Plan::Sockets(Sockets {
            changes,
            avoided: self.tables.foreign_ports(),
            again,
        }))
    }

    /// True if ports are being opened, or must be opened now.
    fn is_opening(&self, state: &State) -> bool {
        let opens = |listener: &Listener| self.tables.port(listener) == 0;
        let mut due = self.tables.sockets.due(state.now);
        let mut in_flight = state.in_flight().flat_map(|plan| match plan {
            Plan::Sockets(sockets) => sockets.changes.as_slice(),
            Plan::Redirects(_) => &[],
        });
        due.any(|listener| self.tables.sockets.wanted(listener).is_some() && opens(listener))
            || in_flight.any(|(listener, serving)| serving.is_some() && opens(listener))
    }

    fn next_of_rules(&mut self, state: &State) -> Option<Plan> {
        // Waits for the node's addresses. Without them, the new rules could lack addresses at which
        // NodePorts still serve.
        if !(state.knows(Part::Rules) && state.look(Part::Addresses).is_tried()) {
            return None;
        }
        // Waits until all due ports are open, so that one write contains all redirects.
        if self.is_opening(state) {
            return None;
        }
        let tables = &self.tables;
        let mut plan = Redirects {
            detector: self.surroundings.detector.clone(),
            ..Redirects::default()
        };
        if tables.base.due(state.now).next().is_some() {
            plan.base = tables.base.wanted(&()).cloned();
            if tables.base.actual(&()).is_none() {
                plan.extent = Writes::Whole;
            }
        }
        let change = |portal| {
            let mut change = Change {
                portal,
                before: tables.redirects.actual(&portal).cloned(),
                after: tables.redirects.wanted(&portal).cloned(),
                owner: tables.redirects.owner(&portal).map(|of| of.name.clone()),
            };
            if tables.is_abandoned(&change) {
                change.after = None;
            }
            change
        };
        let is_ready = |change: &Change| match &change.after {
            Some(aim) => aim.is_open() && !tables.is_early(change),
            None => state.may_delete(),
        };
        if plan.extent == Writes::Whole {
            // Keeps the current target of each redirect that cannot change yet, for example because
            // its new ports are not open.
            let wanted = tables.redirects.iter_wanted().map(|(portal, _)| *portal);
            let held = tables.redirects.iter_actual().map(|(portal, _)| *portal);
            let all: HashSet<_> = wanted.chain(held).collect();
            let kept = |mut change: Change| {
                if !is_ready(&change) {
                    change.after.clone_from(&change.before);
                }
                change
            };
            let all = all.into_iter().map(|portal| kept(change(portal)));
            plan.changes = all.filter(|change| change.after.is_some()).collect();
        } else {
            let due = tables.redirects.due(state.now);
            plan.changes = due.map(|portal| change(*portal)).filter(is_ready).collect();
        }
        plan.changes.sort_by_key(|change| change.portal);
        if plan.is_empty() && state.may_delete() && tables.serve_all() && !self.is_uncertain {
            let due = tables.leftovers.due(state.now).next();
            let leftovers = due.and_then(|due| tables.leftovers.actual(due));
            plan.leftovers = leftovers.cloned().unwrap_or_default();
        }
        (!plan.is_empty()).then_some(Plan::Redirects(plan))
    }

    /// Records the rules that a read found in the kernel. Returns true if redirects must change.
    fn observe_rules(&mut self, state: &mut State, held: RedirectState) -> bool {
        let is_drift = state.knows(Part::Rules) && !mem::take(&mut self.is_uncertain);
        let is_aimed = self.aim_as_found(state, &held);
        let had_base = self.tables.base.actual(&()).cloned();
        let drifted = self.tables.observe(held);
        let is_other = self.want_base(state) || is_aimed;
        if !is_drift {
            return is_other;
        }
        let (now, news) = (state.now, &mut state.news);
        news.drifted_of(now, "rule", &self.tables.redirects, drifted);
        if had_base.is_some() && self.tables.base.actual(&()) != had_base.as_ref() {
            news.drifted(now, "chain", || "the ways to the redirects".to_owned());
        }
        is_other
    }

    /// Uses the address to which an earlier process redirected packets, until the node's addresses
    /// are known. Without an address, the mode would not serve packets from other hosts. Returns
    /// true if the address has changed.
    fn aim_as_found(&mut self, state: &State, held: &RedirectState) -> bool {
        let via = &mut self.surroundings.via;
        if state.node.has_addresses || via.is_some() {
            return false;
        }
        *via = held.redirects.values().filter_map(|aim| aim.via).min();
        via.is_some()
    }

    fn settle_sockets(
        &mut self,
        state: &mut State,
        plan: &Sockets,
        outcomes: Vec<Result<Option<u16>, SocketError>>,
    ) {
        let mut opened: HashSet<Arc<Owner>> = HashSet::new();
        for ((listener, serving), outcome) in plan.changes.iter().zip(outcomes) {
            let owner = self.tables.sockets.owner(listener).cloned();
            state.news.wrote([listener.name.service.clone()]);
            let failure = match (outcome, serving) {
                (Ok(Some(port)), Some(serving)) => {
                    if self.tables.port(listener) != port {
                        opened.extend(owner);
                    }
                    self.tables.opened(listener, port, Arc::clone(serving));
                    count(state, EntryKind::ListeningPorts);
                    state.wrote(Part::Rules);
                    continue;
                }
                (Ok(_), _) => {
                    self.tables.closed(listener);
                    count(state, EntryKind::ListeningPorts);
                    continue;
                }
                (Err(failure), _) => failure,
            };
            match failure {
                SocketError::Never(_) => self.tables.sockets.excuse(listener, state.now),
                SocketError::Now(_) => self.tables.sockets.fail(listener, state.now),
            }
            let writes = &mut state.report.writes;
            writes.add(EntryKind::ListeningPorts, Fate::Refused, 1);
            let object = match serving {
                Some(_) => format!("open the listening port of {listener}"),
                None => format!("close the listening port of {listener}"),
            };
            tell(state, object, Some(&listener.name), failure.to_string());
        }
        for owner in opened {
            self.claims
                .aim(&owner, &mut self.tables, &self.surroundings);
        }
    }

    fn settle_redirects(&mut self, state: &mut State, plan: &Redirects, written: RedirectOutcomes) {
        if written.is_refused() {
            // Reads the rules again, because the kernel may have applied a part of the refused
            // write.
            self.is_uncertain = true;
            state.doubt(Part::Rules);
        }
        if let Some(base) = &plan.base {
            match &written.base {
                None => {
                    self.tables.base.set_actual(&(), Some(base.clone()));
                    state.news.review();
                }
                Some(refusal) => {
                    let what = "write the rules that lead to redirects".to_owned();
                    tell(state, what, None, refusal.to_string());
                    self.tables.base.fail(&(), state.now);
                }
            }
        }
        let mut refused = written.changes.into_iter().peekable();
        for (at, change) in plan.changes.iter().enumerate() {
            let owner = change.owner.as_ref();
            state.news.wrote(owner.map(|owner| owner.service.clone()));
            match refused.next_if(|(of, _)| *of == at) {
                None => {
                    let portal = &change.portal;
                    self.tables.redirected(portal, change.after.clone());
                    if change.after.is_none() {
                        let report = &mut state.report;
                        report.withdraw(portal.address, portal.protocol, portal.port);
                    }
                    count(state, EntryKind::Redirects);
                    state.wrote(Part::Rules);
                }
                Some((_, refusal)) => {
                    let writes = &mut state.report.writes;
                    writes.add(EntryKind::Redirects, Fate::Refused, 1);
                    self.refuse(state, change, &refusal, written.base.as_ref());
                }
            }
        }
        if !plan.leftovers.is_empty() {
            match written.leftovers {
                None => self.tables.leftovers.set_actual(&(), None),
                Some(refusal) => {
                    let what = "remove the rules that another mode has left".to_owned();
                    tell(state, what, None, refusal.to_string());
                    self.tables.leftovers.fail(&(), state.now);
                }
            }
        }
    }

    fn refuse(
        &mut self,
        state: &mut State,
        change: &Change,
        refusal: &Refusal,
        base: Option<&Refusal>,
    ) {
        let redirects = &mut self.tables.redirects;
        if base.is_some() || refusal.blame == RefusalMeaning::None {
            redirects.fail(&change.portal, state.now);
        } else {
            // Does not count the redirect as overdue: the kernel accepted the other changes of the
            // plan, so this change is invalid.
            redirects.excuse(&change.portal, state.now);
        }
        if base.is_none() {
            let object = match change.after {
                Some(_) => format!("redirect {}", change.portal),
                None => format!("remove the redirect of {}", change.portal),
            };
            tell(state, object, change.owner.as_ref(), refusal.to_string());
        }
    }
}

/// Returns the ports to which redirects lead in plans that a lane is writing now.
fn being_used(state: &State) -> HashSet<(Protocol, u16)> {
    let changes = state.in_flight().flat_map(|plan| match plan {
        Plan::Redirects(redirects) => redirects.changes.as_slice(),
        Plan::Sockets(_) => &[],
    });
    let aims = changes.filter_map(|change| Some((change.portal.protocol, change.after.as_ref()?)));
    aims.flat_map(|(protocol, aim)| aim.ports().map(move |port| (protocol, port)))
        .collect()
}

/// Counts one successful write of this kind of entry in the report.
fn count(state: &mut State, subject: EntryKind) {
    state.report.written += 1;
    state.report.writes.add(subject, Fate::Done, 1);
}

fn tell(state: &mut State, object: String, owner: Option<&ServicePortName>, reason: String) {
    state.report.failures.push(Failure {
        object,
        owner: owner.cloned(),
        reason,
    });
}

impl engine::Scheme for Userspace {
    type Kinds = UserspaceKinds;
    type Outcomes = Outcomes;
    type PartContent = PartState;
    type Query = ();
    type QueryResponse = ();

    const ADDRESSES: Part = Part::Addresses;
    const EVIDENCE: &'static [Part] = &[];
    const WRITING: &'static [Lane] = &[Lane::Sockets, Lane::Rules];
    // During a change of mode, only the lane (worker thread) for ports continues to write, because
    // changed endpoints need no other lane.
    const SERVING: &'static [Lane] = &[Lane::Sockets];

    fn new(state: &State) -> Self {
        Self {
            tables: Tables::new(state.now),
            claims: Claims::default(),
            surroundings: RedirectFacts {
                via: None,
                detector: state.config.detector.clone(),
            },
            is_uncertain: false,
        }
    }

    fn begin(&mut self, now: Instant) {
        self.tables.begin(now);
    }

    fn tables(&self, part: Part) -> impl Iterator<Item = &dyn Rows> {
        let of_rules = (part == Part::Rules).then(|| self.tables.all());
        of_rules.into_iter().flatten()
    }

    fn served(&self) -> &dyn Served {
        &self.tables.redirects
    }

    fn is_settled(&self, service: &NamespacedName) -> bool {
        self.claims.is_settled(service, &self.tables)
    }

    fn concern(&self, _: &State, _: Part) -> Concern {
        Concern::Clients
    }

    fn removals_change(&mut self, state: &State) {
        self.tables.count_removals(state.removals());
    }

    fn node_changed(&mut self, state: &mut State) -> bool {
        self.want_base(state)
    }

    fn update(&mut self, state: &mut State, model: &Model, extent: Extent<'_>) {
        for name in extent.services(model, self.claims.services()) {
            self.update_service(state, model, &name);
        }
    }

    fn notice(&mut self, state: &mut State, notice: &Notice) -> bool {
        if *notice == Notice::Ruleset {
            // Schedules one read of the rules for several notifications, because they often arrive
            // in groups.
            state.doubt(Part::Rules);
        }
        // Requests no read of addresses, because this mode adds no service addresses to links.
        false
    }

    fn check(&mut self, state: &mut State) {
        state.ask(Part::Rules);
        state.ask(Part::Addresses);
    }

    fn next(&mut self, lane: Lane, state: &mut State) -> Step<Self> {
        let plan = match lane {
            Lane::Sockets => self.next_of_sockets(state),
            Lane::Rules => self.next_of_rules(state),
        };
        Step { plan, query: None }
    }

    fn observe(&mut self, state: &mut State, model: &Model, found: PartState) {
        let is_other = match found {
            PartState::Rules(held) => self.observe_rules(state, *held),
            PartState::Addresses(addresses) => {
                state.node.interface_addresses = addresses;
                state.node.has_addresses = true;
                self.want_base(state)
            }
        };
        if is_other {
            engine::Scheme::update(self, state, model, Extent::All);
        }
    }

    fn settle(&mut self, state: &mut State, plan: &Plan, outcomes: Outcomes) {
        match (plan, outcomes) {
            (Plan::Sockets(plan), Outcomes::Sockets(outcomes)) => {
                self.settle_sockets(state, plan, outcomes);
            }
            (Plan::Redirects(plan), Outcomes::Redirects(written)) => {
                self.settle_redirects(state, plan, written);
            }
            // Cannot occur: a lane (worker thread) returns only outcomes of its own plans.
            _ => {}
        }
    }

    fn as_done(plan: &Plan) -> Outcomes {
        match plan {
            // Invents port numbers for the preview, because the kernel chooses the real numbers
            // when the ports open.
            Plan::Sockets(sockets) => Outcomes::Sockets(
                (1..=u16::MAX)
                    .cycle()
                    .zip(&sockets.changes)
                    .map(|(number, (_, serving))| Ok(serving.as_ref().map(|_| number)))
                    .collect(),
            ),
            Plan::Redirects(_) => Outcomes::Redirects(RedirectOutcomes::default()),
        }
    }

    fn take(&mut self, _: &mut State, (): ()) {}
}
