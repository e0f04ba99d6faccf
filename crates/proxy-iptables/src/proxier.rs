//! The iptables mode: what goes on between the model and the kernel, in one IP family.
//!
//! ```text
//!   update ─▶ tables ─plan─▶ a lane that writes and reads rules, one that only looks: at addresses, for the canary
//!               ▲                  │
//!               └── book: verdicts ┘
//! ```
//!
//! Writes go on while something else comes to be wanted. So what is booked is what was written, as the plan has it, and never what
//! is wanted by then.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use netlink_batch::{Gone, Lane, Worker};
use proxy::{
    Changes, Conflict, Drift, Failure, IpFamily, IptablesReport, Mode, Model, NamespacedName,
    NodeFacts, NodePorts, Notice, Owner, Report, Selection, Standing, Unreadable,
};
use reconcile::{Look, Table as Rows};

use crate::base::Base;
use crate::chain::{Chain, Shared, Table};
use crate::config::Config;
use crate::kernel::{Kernel, KernelError};
use crate::plan::{Change, Manner, Part, Plan, Verdict, Verdicts, Whole};
use crate::port::{Content, ServedPort, Slot, Style, compile};
use crate::saved::{Leftovers, Reader, Saved};

/// With more endpoints than this, comments that name endpoints are left out, as upstream.
const MANY_ENDPOINTS: usize = 1000;
/// With fewer they come back: one that comes and goes must not change every chain each time.
const FEW_ENDPOINTS: usize = 900;
/// So many changes in a shared chain are not worth writing it whole.
const FEW_CHANGES: usize = 64;
/// Reading all rules takes no more than this part of the time.
const READING_SHARE: u32 = 50;
/// How soon rules are read again, at the earliest, after they were read.
const REREAD_PAUSE: Duration = Duration::from_millis(100);
/// How soon after the kernel has told of an address all of them are read: they change in bursts.
const SETTLE: Duration = Duration::from_millis(50);

/// The kernel threads of one IP family.
pub struct Lanes<K> {
    rules: Lane<K, Done>,
    looks: Lane<K, Done>,
}

impl<K: Kernel> Lanes<K> {
    /// One worker that writes rules, and reads them between, and one that only looks.
    pub fn new(rules: Worker<K>, looks: Worker<K>) -> Self {
        Self {
            rules: Lane::new(rules),
            looks: Lane::new(looks),
        }
    }

    /// Lanes without threads: what each does is done when it is begun. For tests.
    pub fn inline(kernel: impl Fn() -> K) -> Self {
        Self {
            rules: Lane::inline(kernel()),
            looks: Lane::inline(kernel()),
        }
    }
}

/// What a kernel thread has done.
enum Done {
    Wrote(Box<(Plan, Verdicts)>),
    /// All rules, and how long that took.
    Read(Result<(Box<Saved>, Duration), KernelError>),
    /// Whether the canary is there.
    Canary(Result<bool, KernelError>),
    Addresses(Result<BTreeSet<IpAddr>, KernelError>),
}

/// Where NodePorts are served.
enum NodePortsAt {
    /// At all addresses of this node.
    All,
    At(Vec<IpAddr>),
    /// Not enough is known of the node.
    Unknown,
}

/// The iptables mode for one IP family.
#[allow(
    clippy::struct_excessive_bools,
    reason = "none of them follows from the others"
)]
pub struct Proxier<K: Kernel> {
    config: Arc<Config>,
    node: NodeFacts,
    /// Of all interfaces.
    addresses: BTreeSet<IpAddr>,
    node_ports: NodePorts,
    lanes: Lanes<K>,
    rules_look: Look,
    canary_look: Look,
    addresses_look: Look,
    /// Whether the canary is to be looked for, or all rules read.
    wants_look: bool,
    /// What each Service has been compiled to.
    ports: HashMap<NamespacedName, Vec<Arc<ServedPort>>>,
    /// The same by owner, with how many rules it has in filter and nat.
    by_owner: HashMap<Arc<Owner>, (Arc<ServedPort>, [usize; 2])>,
    base: Rows<(), Arc<Base>, ()>,
    slots: Rows<Slot, Arc<str>, Arc<Owner>>,
    chains: Rows<Chain, Content, Arc<Owner>>,
    /// Shared chains that have to be written whole: what is there of this is what nobody wants.
    disordered: Rows<Shared, (), ()>,
    /// Of IPVS mode: the same. It is only in the way, so that nothing is late for it.
    leftovers: Rows<(), Leftovers, ()>,
    endpoints: usize,
    /// Rules of Services in filter and nat.
    rules: [usize; 2],
    is_terse: bool,
    /// Whether the model has told what is wanted: before that, nothing is written, and nothing taken away.
    has_claims: bool,
    /// True once the sources have told everything: before that, nothing may be taken away.
    may_delete: bool,
    /// After something was refused, until nothing is.
    manner: Manner,
    /// When all rules were last read, and how long that took.
    read: Option<(Instant, Duration)>,
    /// Whether all rules were read since they were last written.
    is_fresh: bool,
    /// Whether nobody knows what was written: a restore was refused.
    is_uncertain: bool,
    /// When the kernel last took something.
    written: Option<Instant>,
    /// Since when no Service that wants rules has any.
    unserved: Option<Instant>,
    news: News,
}

/// What is to be told with the next report.
#[derive(Default)]
struct News {
    /// Services that changed, and are not settled yet.
    awaited: HashSet<NamespacedName>,
    /// Those of them that have to be looked at.
    fresh: Vec<NamespacedName>,
    /// Those of them of which somebody else had changed something.
    disturbed: HashSet<NamespacedName>,
    drift: Drift,
    conflicts_version: u64,
    /// All rules were compared, and there was nothing to write.
    counts: Option<IptablesReport>,
}

impl<K: Kernel> Proxier<K> {
    /// A proxier that wants nothing yet and has not looked at the kernel.
    pub fn new(config: Config, mut node: NodeFacts, lanes: Lanes<K>, now: Instant) -> Self {
        node.ip = config.node_ip.or(node.ip);
        let look = Look::new(now, config.sync_period);
        // Whoever reads all rules needs no canary.
        let mut canary_look = look.clone();
        canary_look.begin();
        canary_look.succeed(now);
        let node_ports = NodePorts {
            addresses: Vec::new(),
            on_localhost: config.localhost_node_ports,
        };
        let mut proxier = Self {
            config: Arc::new(config),
            node,
            addresses: BTreeSet::new(),
            node_ports,
            lanes,
            rules_look: look.clone(),
            canary_look,
            addresses_look: look,
            wants_look: false,
            ports: HashMap::new(),
            by_owner: HashMap::new(),
            base: Rows::new(),
            slots: Rows::new(),
            chains: Rows::new(),
            disordered: Rows::new(),
            leftovers: Rows::new(),
            endpoints: 0,
            rules: [0; 2],
            is_terse: false,
            has_claims: false,
            may_delete: false,
            manner: Manner::Together,
            read: None,
            is_fresh: false,
            is_uncertain: false,
            written: None,
            unserved: None,
            news: News::default(),
        };
        proxier.begin(now);
        proxier.slots.count_removals(false);
        proxier.chains.count_removals(false);
        proxier
    }

    /// Says what time it is.
    fn begin(&mut self, now: Instant) {
        self.base.begin(now);
        self.slots.begin(now);
        self.chains.begin(now);
        self.disordered.begin(now);
    }

    // ---- update: what is wanted ----

    /// Takes over what the model says beyond single Services; true if every Service has to be compiled again.
    fn learn(&mut self, model: &Model) -> bool {
        let may_delete = self.has_claims && model.is_complete() && model.is_whole();
        if mem::replace(&mut self.may_delete, may_delete) != may_delete {
            self.slots.count_removals(may_delete);
            self.chains.count_removals(may_delete);
        }
        let family = self.node.family;
        let object = model.node();
        let own = |ip: &IpAddr| IpFamily::of(*ip) == family;
        let ip = object.and_then(|node| node.addresses.iter().copied().find(own));
        let ip = self.config.node_ip.or(ip);
        let zone = object.and_then(|node| node.zone.clone());
        let has_changed = (self.node.ip, &self.node.zone) != (ip, &zone);
        self.node.ip = ip;
        self.node.zone = zone;
        if has_changed || self.base.wanted(&()).is_none() {
            self.want_base();
        }
        has_changed
    }

    /// Wants the base for the addresses as they are.
    fn want_base(&mut self) {
        let (family, config) = (self.node.family, &self.config);
        let outside = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => !ip.is_loopback(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        };
        let (base, addresses) = match self.node_ports_at() {
            NodePortsAt::All => {
                let all = self.addresses.iter().copied().filter(outside);
                (Base::new(family, config, None), all.collect())
            }
            NodePortsAt::At(selected) => {
                let base = Base::new(family, config, Some(&selected));
                (base, selected.into_iter().filter(outside).collect())
            }
            // They go on to be served where they are.
            NodePortsAt::Unknown => {
                let mut base = Base::new(family, config, Some(&[]));
                if let Some(installed) = self.base.actual(&()) {
                    base.keep_node_ports(installed);
                }
                (base, mem::take(&mut self.node_ports.addresses))
            }
        };
        self.base.claim(&(), [((), Arc::new(base))]);
        self.node_ports.addresses = addresses;
    }

    fn node_ports_at(&self) -> NodePortsAt {
        let is_usable = |ip: &IpAddr| !ip.is_loopback() || self.config.localhost_node_ports;
        let selection = self.node.node_port_addresses.of(self.node.family);
        if selection != Selection::All && !self.node.has_addresses {
            return NodePortsAt::Unknown;
        }
        match (selection, self.node.ip) {
            (Selection::All, _) => NodePortsAt::All,
            (Selection::Primary, None) => NodePortsAt::Unknown,
            (Selection::Primary, Some(own)) => {
                let own = Some(own).filter(|ip| self.addresses.contains(ip));
                NodePortsAt::At(own.into_iter().filter(is_usable).collect())
            }
            (Selection::Within(nets), own) => {
                let is_within = |ip: &IpAddr| nets.iter().any(|net| net.contains(ip));
                let within = self.addresses.iter().copied().filter(is_within);
                let within: Vec<IpAddr> = within.filter(is_usable).collect();
                if within.is_empty() && own.is_none() {
                    // The node may not have its address yet.
                    return NodePortsAt::Unknown;
                }
                NodePortsAt::At(within)
            }
        }
    }

    fn update_all(&mut self, model: &Model) {
        let known: HashSet<NamespacedName> = self
            .ports
            .keys()
            .chain(model.service_names())
            .cloned()
            .collect();
        for name in known {
            self.update_service(model, &name);
        }
    }

    fn update_service(&mut self, model: &Model, name: &NamespacedName) {
        let view = model.view(name);
        let ports = view.map_or_else(Vec::new, |view| compile(&view, &self.node));
        let ports: Vec<Arc<ServedPort>> = ports.into_iter().map(Arc::new).collect();
        let before = if ports.is_empty() {
            self.ports.remove(name)
        } else {
            self.ports.insert(name.clone(), ports.clone())
        };
        for old in before.into_iter().flatten() {
            self.endpoints -= old.endpoints;
            if !ports.iter().any(|port| port.owner == old.owner) {
                self.release(&old.owner);
            }
        }
        for port in ports {
            self.endpoints += port.endpoints;
            self.claim(port);
        }
        if self.news.awaited.insert(name.clone()) {
            self.news.fresh.push(name.clone());
        }
    }

    fn style(&self) -> Style<'_> {
        Style {
            config: &self.config,
            is_terse: self.is_terse,
        }
    }

    fn claim(&mut self, port: Arc<ServedPort>) {
        let slots = port.slots(self.style());
        let chains = port.chains(self.style());
        let mut rules = [0; 2];
        for (slot, text) in &slots {
            let [filter, nat] = &mut rules;
            let of = if slot.chain.table() == Table::Nat {
                nat
            } else {
                filter
            };
            *of += text.lines().count();
        }
        let own = chains.iter().map(|(_, content)| content.rules as usize);
        rules[1] += own.sum::<usize>();
        self.slots.claim(&port.owner, slots);
        self.chains.claim(&port.owner, chains);
        self.count(&port.owner.clone(), Some((port, rules)));
    }

    fn release(&mut self, owner: &Arc<Owner>) {
        self.slots.release(owner);
        self.chains.release(owner);
        self.count(owner, None);
    }

    /// Keeps what an owner has, and the sums.
    fn count(&mut self, owner: &Arc<Owner>, now: Option<(Arc<ServedPort>, [usize; 2])>) {
        let rules = now.as_ref().map_or([0; 2], |(_, rules)| *rules);
        let before = match now {
            Some(now) => self.by_owner.insert(Arc::clone(owner), now),
            None => self.by_owner.remove(owner),
        };
        let before = before.map_or([0; 2], |(_, rules)| rules);
        for (sum, (plus, minus)) in self.rules.iter_mut().zip(rules.into_iter().zip(before)) {
            *sum = *sum + plus - minus;
        }
    }

    /// Decides again how much the comments say.
    fn settle_style(&mut self) {
        let most = if self.is_terse {
            FEW_ENDPOINTS
        } else {
            MANY_ENDPOINTS
        };
        let is_terse = self.endpoints > most;
        if is_terse == self.is_terse {
            return;
        }
        self.is_terse = is_terse;
        let ports: Vec<Arc<ServedPort>> = self.ports.values().flatten().cloned().collect();
        for port in ports {
            self.claim(port);
        }
    }

    // ---- observe: what is there ----

    fn observe(&mut self, saved: Saved) {
        let Saved {
            chains,
            slots,
            base,
            disordered,
            leftovers,
        } = saved;
        let is_drift = self.rules_look.is_known() && !mem::take(&mut self.is_uncertain);
        let before = self.base.actual(&()).cloned();
        let base = Arc::new(base);
        self.base.observe([((), Arc::clone(&base))]);
        let chains = self.chains.observe(chains);
        let slots = slots.into_iter();
        let slots = self
            .slots
            .observe(slots.map(|(slot, text)| (slot, Arc::from(text))));
        let disordered = disordered.into_iter();
        self.disordered.observe(disordered.map(|chain| (chain, ())));
        let leftovers = (!leftovers.is_empty()).then_some(leftovers);
        self.leftovers.observe(leftovers.map(|found| ((), found)));
        self.want_base();
        if !is_drift {
            return;
        }
        for chain in chains {
            self.news.drift.add("chain", || chain.to_string());
            let owner = self.chains.owner(&chain);
            let service = owner.map(|owner| owner.name.service.clone());
            self.news.disturb(service);
        }
        for slot in slots {
            self.news.drift.add("rule", || slot.to_string());
            let owner = self.slots.owner(&slot);
            let service = owner.map(|owner| owner.name.service.clone());
            self.news.disturb(service);
        }
        if let Some(before) = before.filter(|before| *before != base) {
            for (table, name, _) in before.differing(&base) {
                let name = || format!("{name} of table {}", table.name());
                self.news.drift.add("chain", name);
            }
            for (_, rule) in before.missing_guests(&base) {
                self.news.drift.add("rule", || rule.to_string());
            }
        }
    }

    // ---- plan ----

    fn plan(&mut self, now: Instant) -> Plan {
        let mut plan = Plan {
            config: Arc::clone(&self.config),
            is_terse: self.is_terse,
            manner: self.manner,
            ..Plan::default()
        };
        let due: Vec<Slot> = self.due_slots(now);
        self.plan_base(now, &due, &mut plan);
        let mut parts: BTreeMap<Option<Arc<Owner>>, Part> = BTreeMap::new();
        for chain in self.chains.due(now) {
            match (self.chains.owner(chain), self.chains.wanted(chain)) {
                (Some(owner), Some(content)) => {
                    let part = parts.entry(Some(Arc::clone(owner))).or_default();
                    part.chains.insert(*chain, *content);
                    part.rules += content.rules as usize;
                }
                _ if self.may_delete => plan.stale.push(*chain),
                _ => {}
            }
        }
        let mut changed: BTreeMap<Option<&Arc<Owner>>, BTreeSet<Slot>> = BTreeMap::new();
        for slot in due {
            let owner = self.slots.owner(&slot);
            changed.entry(owner).or_default().insert(slot);
        }
        for (owner, slots) in changed {
            let part = parts.entry(owner.cloned()).or_default();
            part.slots = self.in_order(owner, &slots);
        }
        plan.stale.sort_unstable();
        plan.parts = parts
            .into_iter()
            .map(|(owner, mut part)| {
                let port = owner.as_ref().and_then(|owner| self.by_owner.get(owner));
                part.port = port.map(|(port, _)| Arc::clone(port));
                part.owner = owner;
                part
            })
            .collect();
        plan
    }

    /// The changes in slots, and what of their owner is in the same chains, in the order in which they are to stand: what is put
    /// in anew comes first.
    fn in_order(&self, owner: Option<&Arc<Owner>>, changed: &BTreeSet<Slot>) -> Vec<Change> {
        let change = |slot: &Slot| Change {
            slot: *slot,
            before: self.slots.actual(slot).cloned(),
            after: self.slots.wanted(slot).cloned(),
        };
        let Some(owner) = owner else {
            return changed.iter().map(change).collect();
        };
        let chains: BTreeSet<Shared> = changed.iter().map(|slot| slot.chain).collect();
        let own = self.slots.keys_of(owner).iter().filter(|slot| {
            let is_settled = self.slots.actual(slot) == self.slots.wanted(slot);
            changed.contains(*slot)
                || (is_settled
                    && chains.contains(&slot.chain)
                    && self.slots.owner(slot) == Some(owner))
        });
        own.map(change).collect()
    }

    /// The slots to be written; those that nobody wants only if they may go.
    fn due_slots(&self, now: Instant) -> Vec<Slot> {
        let due = self.slots.due(now);
        due.filter(|slot| self.may_delete || self.slots.wanted(slot).is_some())
            .copied()
            .collect()
    }

    fn plan_base(&self, now: Instant, due: &[Slot], plan: &mut Plan) {
        let Some(wanted) = self.base.wanted(&()) else {
            return;
        };
        let installed = self.base.actual(&()).cloned().unwrap_or_default();
        let mut whole: BTreeSet<Shared> = self.disordered.due(now).copied().collect();
        // Where the base is put off, what is there of it stays.
        let mut tails = &installed;
        if self.base.due(now).next().is_some() {
            plan.wanted = Some(Arc::clone(wanted));
            tails = wanted;
            for (table, name, lines) in wanted.differing(&installed) {
                match Shared::find(table, name) {
                    Some(chain) => {
                        whole.insert(chain);
                    }
                    None => plan.base.push((table, name, lines.to_vec())),
                }
            }
            plan.guests = wanted.missing_guests(&installed);
        }
        if self.manner == Manner::Together {
            for chain in Shared::ALL {
                let changes = due.iter().filter(|slot| slot.chain == chain).count();
                if changes > FEW_CHANGES && changes > self.slots.wanted_len() / 8 {
                    whole.insert(chain);
                }
            }
        }
        let mut texts = self.texts_of(&whole);
        plan.whole = whole
            .into_iter()
            .map(|chain| Whole {
                chain,
                slots: texts.remove(&chain).unwrap_or_default(),
                tail: tails.tail(chain).to_vec(),
            })
            .collect();
    }

    /// All rules of Services that are to be in these chains, in the order of their owners.
    fn texts_of(&self, chains: &BTreeSet<Shared>) -> BTreeMap<Shared, Vec<Arc<str>>> {
        let mut texts: BTreeMap<Shared, Vec<Arc<str>>> = BTreeMap::new();
        if chains.is_empty() {
            return texts;
        }
        let mut put = |slot: &Slot, text: Option<&Arc<str>>| {
            if let Some(text) = text.filter(|_| chains.contains(&slot.chain)) {
                texts.entry(slot.chain).or_default().push(Arc::clone(text));
            }
        };
        let is_apart = self.manner == Manner::Apart;
        let mut owners: Vec<&Arc<Owner>> = self.by_owner.keys().collect();
        owners.sort_unstable_by_key(|owner| (owner.rank, *owner));
        for owner in owners {
            let slots = self.slots.keys_of(owner).iter();
            for slot in slots.filter(|slot| self.slots.owner(slot) == Some(owner)) {
                // What is tried apart stays out: only what the kernel has taken before.
                if is_apart {
                    put(slot, self.slots.actual(slot));
                } else {
                    put(slot, self.slots.wanted(slot));
                }
            }
        }
        if is_apart || !self.may_delete {
            for (slot, text) in self.slots.iter_actual() {
                if self.slots.wanted(slot).is_none() {
                    put(slot, Some(text));
                }
            }
        }
        texts
    }

    /// Once everything is served by this mode, what IPVS mode has left may go.
    fn plan_leftovers(&self, now: Instant) -> Option<Plan> {
        // After a refusal it is not known what of them is left.
        if !self.may_delete || self.pending() > 0 || self.is_uncertain {
            return None;
        }
        let due = self.leftovers.due(now).next()?;
        Some(Plan {
            manner: self.manner,
            leftovers: self.leftovers.actual(due)?.clone(),
            ..Plan::default()
        })
    }

    // ---- book: what became of it ----

    /// Notes since when nothing of Services is there: since it was asked for, not since it was refused.
    fn note_unserved(&mut self, now: Instant) {
        let mut wanted = self.slots.iter_wanted();
        let is_any = self.slots.wanted_len() > 0;
        let is_none = is_any && wanted.all(|(slot, _)| self.slots.actual(slot).is_none());
        self.unserved = is_none.then(|| self.unserved.unwrap_or(now));
    }

    fn take_verdicts(
        &mut self,
        plan: &Plan,
        verdicts: &Verdicts,
        now: Instant,
        report: &mut Report,
    ) {
        report.failed_restores += verdicts.refused;
        report.written += verdicts.taken;
        if verdicts.taken > 0 {
            self.written = Some(now);
        }
        let was_together = self.manner == Manner::Together;
        if verdicts.refused > 0 {
            // Not in every case is it known what was written.
            self.is_uncertain = true;
            self.read = None;
            self.rules_look.ask_apart(now, REREAD_PAUSE);
        }
        if let Some(reason) = &verdicts.general {
            self.fail_all(plan, now);
            report
                .failures
                .push(failure("write iptables rules", None, reason));
            return;
        }
        self.manner = if verdicts.refused > 0 {
            Manner::Apart
        } else {
            Manner::Together
        };
        if was_together && verdicts.refused > 0 {
            // What is to blame is said when it is known.
            return;
        }
        if plan.has_base() {
            match &verdicts.base {
                Verdict::Done => {
                    if let Some(wanted) = &plan.wanted {
                        self.base.set_actual(&(), Some(Arc::clone(wanted)));
                    }
                    for whole in &plan.whole {
                        self.disordered.set_actual(&whole.chain, None);
                    }
                    self.news.review();
                }
                Verdict::Refused(reason) => {
                    let what = "write the iptables rules that all Services need";
                    report.failures.push(failure(what, None, reason));
                    self.fail_base(plan, now);
                }
                Verdict::Untried => self.fail_base(plan, now),
            }
        }
        for (part, verdict) in plan.parts.iter().zip(&verdicts.parts) {
            if let Some(owner) = &part.owner {
                self.news.fresh.push(owner.name.service.clone());
            }
            match verdict {
                Verdict::Done => {
                    for (chain, content) in &part.chains {
                        self.chains.set_actual(chain, Some(*content));
                    }
                    for change in &part.slots {
                        self.slots.set_actual(&change.slot, change.after.clone());
                    }
                }
                // Alone, among others that are taken: it is to blame itself.
                Verdict::Refused(reason) => {
                    let owner = part.owner.as_ref().map(|owner| owner.name.clone());
                    report
                        .failures
                        .push(failure("write iptables rules", owner, reason));
                    self.fail_part(part, Rows::excuse, Rows::excuse, now);
                }
                Verdict::Untried => self.fail_part(part, Rows::fail, Rows::fail, now),
            }
        }
        for (chain, verdict) in plan.stale.iter().zip(&verdicts.stale) {
            match verdict {
                Verdict::Done => {
                    self.chains.set_actual(chain, None);
                    continue;
                }
                Verdict::Refused(reason) => {
                    let what = format!("remove iptables chain {chain}");
                    report.failures.push(failure(&what, None, reason));
                }
                Verdict::Untried => {}
            }
            self.chains.fail(chain, now);
        }
        if !plan.leftovers.is_empty() {
            match &verdicts.leftovers {
                Verdict::Done => self.leftovers.set_actual(&(), None),
                Verdict::Refused(reason) => {
                    let what = "remove the iptables rules that IPVS mode has left";
                    report.failures.push(failure(what, None, reason));
                    self.leftovers.fail(&(), now);
                }
                Verdict::Untried => self.leftovers.fail(&(), now),
            }
        }
    }

    fn fail_all(&mut self, plan: &Plan, now: Instant) {
        self.fail_base(plan, now);
        for part in &plan.parts {
            self.fail_part(part, Rows::fail, Rows::fail, now);
        }
        for chain in &plan.stale {
            self.chains.fail(chain, now);
        }
        if !plan.leftovers.is_empty() {
            self.leftovers.fail(&(), now);
        }
    }

    fn fail_base(&mut self, plan: &Plan, now: Instant) {
        if plan.wanted.is_some() {
            self.base.fail(&(), now);
        }
        for whole in &plan.whole {
            self.disordered.fail(&whole.chain, now);
        }
    }

    fn fail_part(
        &mut self,
        part: &Part,
        fail_chain: impl Fn(&mut Rows<Chain, Content, Arc<Owner>>, &Chain, Instant),
        fail_slot: impl Fn(&mut Rows<Slot, Arc<str>, Arc<Owner>>, &Slot, Instant),
        now: Instant,
    ) {
        for chain in part.chains.keys() {
            fail_chain(&mut self.chains, chain, now);
        }
        for change in &part.slots {
            fail_slot(&mut self.slots, &change.slot, now);
        }
    }

    /// Whether all that a Service wants is there.
    fn is_settled(&self, service: &NamespacedName) -> bool {
        let mut ports = self.ports.get(service).into_iter().flatten();
        self.base.pending_len() == 0
            && self.disordered.pending_len() == 0
            && ports.all(|port| {
                let mut slots = self.slots.keys_of(&port.owner).iter();
                let mut chains = self.chains.keys_of(&port.owner).iter();
                slots.all(|slot| !self.slots.is_pending(slot))
                    && chains.all(|chain| !self.chains.is_pending(chain))
            })
    }

    /// Looks which of the Services that changed, or were written, are settled by now.
    fn settle(&mut self, report: &mut Report) {
        for service in mem::take(&mut self.news.fresh) {
            if self.news.awaited.contains(&service) && self.is_settled(&service) {
                self.news.awaited.remove(&service);
                if self.news.disturbed.remove(&service) {
                    report.repaired.push(service.clone());
                }
                report.settled.push(service);
            }
        }
    }

    /// How much of what serves differs from what is wanted.
    fn pending(&self) -> usize {
        let common = self.base.pending_len() + self.disordered.pending_len();
        common + self.slots.pending_len() + self.chains.pending_len()
    }

    /// How much of that could not be written.
    fn failing(&self) -> usize {
        let common = self.base.failing_len() + self.disordered.failing_len();
        common + self.slots.failing_len() + self.chains.failing_len()
    }

    fn conflicts(&self) -> Vec<Conflict> {
        let losers = self.slots.contested().flat_map(|(slot, claims)| {
            let winner = claims.first().map(|(owner, _)| owner);
            let losers = claims.iter().skip(1);
            losers.filter_map(move |(loser, _)| {
                Some(Conflict {
                    object: slot.to_string(),
                    winner: winner?.name.clone(),
                    loser: loser.name.clone(),
                })
            })
        });
        let mut conflicts: Vec<_> = losers.collect();
        conflicts.sort_by(|a, b| (&a.object, &a.loser).cmp(&(&b.object, &b.loser)));
        conflicts.dedup();
        conflicts
    }

    /// Reads the kernel, and writes nothing.
    ///
    /// # Errors
    ///
    /// What could not be read.
    pub async fn read(&mut self, model: &Model, now: Instant) -> Result<(), Unreadable> {
        while !(self.rules_look.is_tried() && self.addresses_look.is_tried()) {
            self.proceed(model, now);
            poll_fn(|context| self.poll_finished(context)).await;
            let report = self.book(model, now).unwrap_or_default();
            if let Some(unreadable) = report.unreadable.into_iter().next() {
                return Err(unreadable);
            }
        }
        Ok(())
    }

    /// What would be written, in order, each plan as if all before it had been done; nothing is written. The kernel has been read,
    /// and all that is wanted is known.
    pub fn preview(mut self, now: Instant) -> Vec<Plan> {
        let plan = self.plan(now);
        let mut report = Report::default();
        let done = Verdicts {
            parts: vec![Verdict::Done; plan.parts.len()],
            stale: vec![Verdict::Done; plan.stale.len()],
            ..Verdicts::default()
        };
        self.take_verdicts(&plan, &done, now, &mut report);
        let plans = [plan].into_iter().chain(self.plan_leftovers(now));
        plans.filter(|plan| !plan.is_empty()).collect()
    }

    // ---- proceed: what the lanes do next ----

    /// Starts to look at addresses, or for the canary. Writes go on meanwhile, so that what hangs here delays none; nor can what
    /// is found be wrong for it: without a canary all rules are read, in turn with what is written.
    fn start_looks(&mut self, now: Instant) {
        // Who reads all rules finds out more.
        let reads_rules = self.rules_look.is_awaited();
        if !reads_rules && mem::take(&mut self.wants_look) {
            let look = if self.is_reading_due(now) {
                &mut self.rules_look
            } else {
                &mut self.canary_look
            };
            look.ask(now);
        }
        if !self.lanes.looks.is_free() {
            return;
        }
        if self.addresses_look.is_due(now) {
            self.addresses_look.begin();
            let read = |kernel: &mut K| Done::Addresses(kernel.addresses());
            self.lanes.looks.start(read);
        } else if !reads_rules && self.canary_look.is_due(now) {
            self.canary_look.begin();
            let config = Arc::clone(&self.config);
            let look = move |kernel: &mut K| Done::Canary(has_canary(kernel, &config));
            self.lanes.looks.start(look);
        }
    }

    fn start_rules(&mut self, now: Instant) {
        if !self.lanes.rules.is_free() {
            return;
        }
        if self.rules_look.is_due(now) {
            self.rules_look.begin();
            let config = Arc::clone(&self.config);
            let read = move |kernel: &mut K| Done::Read(read_all(kernel, &config));
            return self.lanes.rules.start(read);
        }
        // A base that is written before the node's addresses are known could take NodePorts away.
        if !(self.has_claims && self.rules_look.is_known() && self.addresses_look.is_tried()) {
            return;
        }
        let mut plan = self.plan(now);
        if plan.is_empty() {
            if mem::take(&mut self.is_fresh) {
                self.news.counts = Some(self.counts(None, true));
            }
            match self.plan_leftovers(now) {
                Some(leftovers) => plan = leftovers,
                None => return,
            }
        }
        self.lanes.rules.start(move |kernel| {
            let verdicts = plan.apply(kernel, plan.manner);
            Done::Wrote(Box::new((plan, verdicts)))
        });
    }

    /// Whether a check reads all rules, and not only looks for the canary.
    fn is_reading_due(&self, now: Instant) -> bool {
        let period = self.config.sync_period;
        let period = period.saturating_sub(period / 8);
        self.read.is_none_or(|(at, took)| {
            now.saturating_duration_since(at) >= period.max(took.saturating_mul(READING_SHARE))
        })
    }

    /// How many rules are wanted, and how many were written.
    fn counts(&self, written: Option<[usize; 2]>, is_full: bool) -> IptablesReport {
        let base = self.base.wanted(&());
        let base = |table| base.map_or(0, |base| base.rules(table));
        let [filter, nat] = self.rules;
        IptablesReport {
            wanted: [filter + base(Table::Filter), nat + base(Table::Nat)],
            written,
            is_full,
        }
    }

    fn take(&mut self, done: Done, now: Instant, report: &mut Report) {
        match done {
            Done::Wrote(wrote) => {
                let (plan, verdicts) = *wrote;
                let written = [Table::Filter, Table::Nat].map(|table| plan.rules(table));
                report.iptables = Some(self.counts(Some(written), self.is_fresh));
                self.is_fresh &= verdicts.refused > 0;
                self.take_verdicts(&plan, &verdicts, now, report);
                report.has_used_much = plan.parts.len() >= MANY_ENDPOINTS;
            }
            Done::Read(Ok((saved, took))) => {
                self.observe(*saved);
                self.news.review();
                self.read = Some((now, took));
                self.is_fresh = true;
                report.has_used_much = self.slots.len() >= MANY_ENDPOINTS;
                self.rules_look.succeed(now);
                report.readable.push(RULES);
            }
            Done::Read(Err(KernelError { what, reason })) => {
                self.rules_look.fail(now);
                report.unreadable.push(Unreadable { part: what, reason });
            }
            Done::Canary(Ok(is_there)) => {
                self.canary_look.succeed(now);
                if is_there {
                    report.readable.push(RULES);
                } else {
                    self.rules_look.ask(now);
                }
            }
            Done::Canary(Err(KernelError { what, reason })) => {
                self.canary_look.fail(now);
                report.unreadable.push(Unreadable { part: what, reason });
            }
            Done::Addresses(Ok(addresses)) => {
                self.addresses_look.succeed(now);
                report.readable.push(ADDRESSES);
                self.node.has_addresses = true;
                self.addresses = addresses;
                self.want_base();
            }
            Done::Addresses(Err(KernelError { what, reason })) => {
                self.addresses_look.fail(now);
                report.unreadable.push(Unreadable { part: what, reason });
            }
        }
    }
}

impl News {
    /// What they wait for may be there without having been written.
    fn review(&mut self) {
        self.fresh = self.awaited.iter().cloned().collect();
    }

    fn disturb(&mut self, service: Option<NamespacedName>) {
        if let Some(service) = service {
            self.awaited.insert(service.clone());
            self.disturbed.insert(service);
        }
    }
}

fn read_all(
    kernel: &mut dyn Kernel,
    config: &Config,
) -> Result<(Box<Saved>, Duration), KernelError> {
    let started = Instant::now();
    let saved = read(kernel, config, None)?;
    Ok((Box::new(saved), started.elapsed()))
}

fn has_canary(kernel: &mut dyn Kernel, config: &Config) -> Result<bool, KernelError> {
    // The table that holds the least is flushed with the others.
    let saved = read(kernel, config, Some(Table::Mangle))?;
    Ok(saved.base.has_canary(Table::Mangle))
}

fn read(
    kernel: &mut dyn Kernel,
    config: &Config,
    table: Option<Table>,
) -> Result<Saved, KernelError> {
    let mut reader = Reader::new(config);
    kernel.save(table, &mut |line| reader.line(line))?;
    Ok(reader.finish())
}

impl<K: Kernel> Mode for Proxier<K> {
    fn family(&self) -> IpFamily {
        self.node.family
    }

    fn is_ready(&self) -> bool {
        self.lanes.rules.is_free()
    }

    fn update(&mut self, model: &Model, changes: &Changes, now: Instant) {
        self.begin(now);
        let is_first = !mem::replace(&mut self.has_claims, true);
        if self.learn(model) || is_first {
            self.update_all(model);
        } else {
            for name in &changes.services {
                self.update_service(model, name);
            }
        }
        self.settle_style();
        self.note_unserved(now);
    }

    fn notice(&mut self, notice: &Notice, now: Instant) {
        let own = |address: &IpAddr| IpFamily::of(*address) == self.node.family;
        // What is being read may be from before this, whatever was believed until then.
        let is_open = self.addresses_look.is_awaited();
        let is_there = |address: &IpAddr| self.addresses.contains(address);
        let is_news = match notice {
            // Its lifetime was prolonged.
            Notice::AddressAdded(address) => own(address) && (is_open || !is_there(address)),
            Notice::AddressRemoved(address) => own(address) && (is_open || is_there(address)),
            Notice::ServiceAddressRemoved(_) | Notice::ServiceLink => false,
            Notice::Anything => true,
        };
        if is_news {
            self.addresses_look.ask_after(now, SETTLE);
        }
    }

    fn check(&mut self, now: Instant) {
        self.wants_look = true;
        self.addresses_look.ask(now);
    }

    fn proceed(&mut self, model: &Model, now: Instant) {
        self.begin(now);
        if self.learn(model) {
            self.update_all(model);
            self.settle_style();
        }
        self.start_looks(now);
        self.start_rules(now);
    }

    fn go_on_serving(&mut self, _: Instant) {
        // One lane writes all rules: where it is free, nothing else goes on for long.
    }

    fn poll_finished(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Both, so that each wakes.
        let rules = self.lanes.rules.poll(context);
        let looks = self.lanes.looks.poll(context);
        if rules.is_ready() || looks.is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn book(&mut self, _: &Model, now: Instant) -> Option<Report> {
        let mut report = Report::default();
        self.begin(now);
        let taken = [self.lanes.looks.take(), self.lanes.rules.take()];
        let taken: Vec<Result<Done, Gone>> = taken.into_iter().flatten().collect();
        let has_taken = !taken.is_empty();
        for done in taken {
            match done {
                Ok(done) => self.take(done, now, &mut report),
                Err(gone) => report.gone = Some(gone.to_string()),
            }
        }
        self.settle(&mut report);
        let conflicts = self.slots.contested_version();
        if mem::replace(&mut self.news.conflicts_version, conflicts) != conflicts {
            report.conflicts = Some(self.conflicts());
        }
        let failing = self.failing();
        if !self.news.drift.is_empty() && self.pending() == failing {
            report.drift = mem::take(&mut self.news.drift);
        }
        self.note_unserved(now);
        report.iptables = report.iptables.or(self.news.counts.take());
        let has_news = has_taken
            || !report.settled.is_empty()
            || report.conflicts.is_some()
            || !report.drift.is_empty()
            || report.iptables.is_some();
        has_news.then_some(report)
    }

    fn is_idle(&self) -> bool {
        self.lanes.rules.is_free() && self.lanes.looks.is_free()
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        let due = [
            self.base.next_retry(now),
            self.slots.next_retry(now),
            self.chains.next_retry(now),
            self.disordered.next_retry(now),
            self.leftovers.next_retry(now),
            self.rules_look.next_due(now),
            self.canary_look.next_due(now),
            self.addresses_look.next_due(now),
        ];
        due.into_iter().flatten().min()
    }

    fn standing(&self) -> Standing {
        let needs_addresses = self.node.node_port_addresses.of(self.node.family) != Selection::All;
        let addresses = self.addresses_look.unknown_since();
        // Each may seem to be wrong in itself, but not all at once.
        let all_refused = self.slots.failing_len() >= self.slots.wanted_len();
        let none_served = self.unserved.filter(|_| all_refused);
        let pending_since = [
            self.base.pending_since(),
            self.slots.pending_since(),
            self.chains.pending_since(),
            self.disordered.pending_since(),
            self.rules_look.unknown_since(),
            addresses.filter(|_| needs_addresses),
            none_served,
        ];
        let pending_since = pending_since.into_iter().flatten().min();
        let stuck = |since: Instant| match none_served {
            Some(none) => none,
            None => self.written.map_or(since, |at| at.max(since)),
        };
        Standing {
            pending_since,
            stuck_since: pending_since.map(stuck),
            is_settled: self.lanes.rules.is_free(),
            pending: self.pending() + self.leftovers.pending_len(),
            failing: self.failing() + self.leftovers.failing_len(),
        }
    }

    fn node_ports(&self) -> Option<&NodePorts> {
        self.addresses_look.is_known().then_some(&self.node_ports)
    }
}

/// The parts of the kernel's state that are read, as [`KernelError`] names them.
const RULES: &str = "the iptables rules";
const ADDRESSES: &str = "the addresses of this node";

fn failure(object: &str, owner: Option<proxy::ServicePortName>, reason: &str) -> Failure {
    Failure {
        object: object.to_owned(),
        owner,
        reason: reason.to_owned(),
    }
}
