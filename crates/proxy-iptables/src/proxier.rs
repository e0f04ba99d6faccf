//! The iptables mode: tables between the compiler and the kernel, and the sync that empties what is pending.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use netlink_batch::Worker;
use proxy::{
    Changes, Conflict, Failure, IpFamily, IptablesReport, Mode, Model, NamespacedName, NodeFacts,
    NodePortAddresses, SyncReport,
};
use reconcile::Table as Rows;

use crate::base::Base;
use crate::chain::{Chain, Shared, Table};
use crate::config::Config;
use crate::kernel::{Kernel, KernelError};
use crate::plan::{Change, Manner, Part, Plan, Verdict, Verdicts, Whole};
use crate::port::{Content, Owner, ServedPort, Slot, Style, compile};
use crate::saved::{Leftovers, Reader, Saved};

/// With more endpoints than this, comments that name endpoints are left out, as upstream.
const MANY_ENDPOINTS: usize = 1000;
/// With fewer they come back: one that comes and goes must not change every chain each time.
const FEW_ENDPOINTS: usize = 900;
/// So many changes in a shared chain are not worth writing it whole.
const FEW_CHANGES: usize = 64;
/// Reading all rules takes no more than this part of the time.
const READING_SHARE: u32 = 50;

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
    /// The addresses that serve NodePorts.
    node_ports: Vec<IpAddr>,
    kernel: Worker<K>,
    /// What each Service has been compiled to.
    ports: HashMap<NamespacedName, Vec<Arc<ServedPort>>>,
    /// The same by owner, with how many rules it has in filter and nat.
    by_owner: HashMap<Arc<Owner>, (Arc<ServedPort>, [usize; 2])>,
    base: Rows<(), Arc<Base>, ()>,
    slots: Rows<Slot, Arc<str>, Arc<Owner>>,
    chains: Rows<Chain, Content, Arc<Owner>>,
    /// Shared chains that have to be written whole.
    disordered: BTreeSet<Shared>,
    /// Of IPVS mode.
    leftovers: Leftovers,
    endpoints: usize,
    /// Rules of Services in filter and nat.
    rules: [usize; 2],
    is_terse: bool,
    /// True once the sources have told everything: before that, nothing may be taken away.
    may_delete: bool,
    needs_resync: bool,
    /// After something was refused, until nothing is.
    manner: Manner,
    /// When all rules were last read, and how long that took.
    read: Option<(Instant, Duration)>,
    /// Whether all rules were read since the last sync.
    is_fresh: bool,
}

impl<K: Kernel> Proxier<K> {
    /// A proxier that wants nothing yet and has not looked at the kernel.
    pub fn new(config: Config, mut node: NodeFacts, kernel: Worker<K>) -> Self {
        node.ip = config.node_ip.or(node.ip);
        Self {
            config: Arc::new(config),
            node,
            addresses: BTreeSet::new(),
            node_ports: Vec::new(),
            kernel,
            ports: HashMap::new(),
            by_owner: HashMap::new(),
            base: Rows::new(),
            slots: Rows::new(),
            chains: Rows::new(),
            disordered: BTreeSet::new(),
            leftovers: Leftovers::default(),
            endpoints: 0,
            rules: [0; 2],
            is_terse: false,
            may_delete: false,
            needs_resync: true,
            manner: Manner::Together,
            read: None,
            is_fresh: false,
        }
    }

    // ---- update: what is wanted ----

    /// Takes over what the model says beyond single Services; true if every Service has to be compiled again.
    fn learn(&mut self, model: &Model) -> bool {
        self.may_delete = model.is_complete() && model.is_whole();
        let family = self.node.family;
        let object = model.node();
        let own = |ip: &IpAddr| IpFamily::of(*ip) == family;
        let ip = object.and_then(|node| node.addresses.iter().copied().find(own));
        let ip = self.config.node_ip.or(ip);
        let zone = object.and_then(|node| node.zone.clone());
        let has_changed = (self.node.ip, &self.node.zone) != (ip, &zone);
        self.node.ip = ip;
        self.node.zone = zone;
        self.want_base();
        has_changed
    }

    /// Wants the base for the addresses as they are.
    fn want_base(&mut self) {
        let selected = self.selected_node_ports();
        let base = Base::new(self.node.family, &self.config, selected.as_deref());
        self.base.claim(&(), [((), Arc::new(base))]);
        let outside = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => !ip.is_loopback(),
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        };
        let all = || self.addresses.iter().copied().filter(outside).collect();
        self.node_ports = selected.unwrap_or_else(all);
    }

    /// The addresses that serve NodePorts, if it is not all of this node.
    fn selected_node_ports(&self) -> Option<Vec<IpAddr>> {
        let is_usable = |ip: &IpAddr| !ip.is_loopback() || self.config.localhost_node_ports;
        match &self.node.node_port_addresses {
            NodePortAddresses::All => None,
            NodePortAddresses::Primary => {
                let own = self.node.ip.filter(|ip| self.addresses.contains(ip));
                Some(own.into_iter().filter(is_usable).collect())
            }
            NodePortAddresses::Within(cidrs) => {
                let own = |net: &&ipnet::IpNet| IpFamily::of(net.addr()) == self.node.family;
                let own: Vec<_> = cidrs.iter().filter(own).collect();
                let is_all = own.is_empty() || own.iter().any(|net| net.prefix_len() == 0);
                let is_within = |ip: &IpAddr| own.iter().any(|net| net.contains(ip));
                (!is_all).then(|| {
                    let within = self.addresses.iter().copied().filter(is_within);
                    within.filter(is_usable).collect()
                })
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
        self.base.observe([((), Arc::new(base))]);
        self.chains.observe(chains);
        let slots = slots.into_iter();
        self.slots
            .observe(slots.map(|(slot, text)| (slot, Arc::from(text))));
        self.disordered = disordered;
        self.leftovers = leftovers;
    }

    // ---- plan ----

    fn plan(&mut self, now: Instant) -> Plan {
        let mut plan = Plan {
            config: Arc::clone(&self.config),
            is_terse: self.is_terse,
            ..Plan::default()
        };
        let due: Vec<Slot> = self.due_slots(now);
        self.plan_base(now, &due, &mut plan);
        let mut parts: BTreeMap<Option<Arc<Owner>>, Part> = BTreeMap::new();
        for chain in self.chains.due(now) {
            match (self.chains.owner(chain), self.chains.wanted(chain)) {
                (Some(owner), Some(content)) => {
                    let part = parts.entry(Some(Arc::clone(owner))).or_default();
                    part.chains.push(*chain);
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
                part.chains.sort_unstable();
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
        let mut whole = self.disordered.clone();
        if self.base.due(now).next().is_some() {
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
                tail: wanted.tail(chain).to_vec(),
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
        owners.sort_unstable();
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
    fn plan_leftovers(&self) -> Option<Plan> {
        let is_ready = self.may_delete && self.pending() == 0 && self.manner == Manner::Together;
        (is_ready && !self.leftovers.is_empty()).then(|| Plan {
            leftovers: self.leftovers.clone(),
            ..Plan::default()
        })
    }

    // ---- book: what became of it ----

    fn book(&mut self, plan: &Plan, verdicts: &Verdicts, now: Instant, report: &mut SyncReport) {
        report.failed_restores += verdicts.refused;
        report.written += verdicts.taken;
        let was_together = self.manner == Manner::Together;
        // Not in every case is it known what was written.
        self.needs_resync |= verdicts.refused > 0;
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
                    self.base.set_written(&());
                    self.disordered.clear();
                }
                Verdict::Refused(reason) => {
                    let what = "write the iptables rules that all Services need";
                    report.failures.push(failure(what, None, reason));
                    self.base.fail(&(), now);
                }
                Verdict::Untried => self.base.fail(&(), now),
            }
        }
        for (part, verdict) in plan.parts.iter().zip(&verdicts.parts) {
            match verdict {
                Verdict::Done => {
                    for chain in &part.chains {
                        self.chains.set_written(chain);
                    }
                    for change in &part.slots {
                        self.slots.set_written(&change.slot);
                    }
                    continue;
                }
                Verdict::Refused(reason) => {
                    let owner = part.owner.as_ref().map(|owner| owner.name.clone());
                    report
                        .failures
                        .push(failure("write iptables rules", owner, reason));
                }
                Verdict::Untried => {}
            }
            self.fail_part(part, now);
        }
        for (chain, verdict) in plan.stale.iter().zip(&verdicts.stale) {
            match verdict {
                Verdict::Done => {
                    self.chains.set_written(chain);
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
                Verdict::Done => {
                    self.leftovers = Leftovers::default();
                }
                Verdict::Refused(reason) => {
                    let what = "remove the iptables rules that IPVS mode has left";
                    report.failures.push(failure(what, None, reason));
                }
                Verdict::Untried => {}
            }
        }
    }

    fn fail_all(&mut self, plan: &Plan, now: Instant) {
        if plan.has_base() {
            self.base.fail(&(), now);
        }
        for part in &plan.parts {
            self.fail_part(part, now);
        }
        for chain in &plan.stale {
            self.chains.fail(chain, now);
        }
    }

    fn fail_part(&mut self, part: &Part, now: Instant) {
        for chain in &part.chains {
            self.chains.fail(chain, now);
        }
        for change in &part.slots {
            self.slots.fail(&change.slot, now);
        }
    }

    fn pending(&self) -> usize {
        self.base.pending_len() + self.slots.pending_len() + self.chains.pending_len()
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

    /// What a sync would write, in order, each plan as if all before it had been done; nothing is written. Call
    /// [`update`](Mode::update) and [`resync`](Mode::resync) before.
    pub fn preview(mut self, now: Instant) -> Vec<Plan> {
        let plan = self.plan(now);
        let mut report = SyncReport::default();
        let done = Verdicts {
            parts: vec![Verdict::Done; plan.parts.len()],
            stale: vec![Verdict::Done; plan.stale.len()],
            ..Verdicts::default()
        };
        self.book(&plan, &done, now, &mut report);
        let plans = [plan].into_iter().chain(self.plan_leftovers());
        plans.filter(|plan| !plan.is_empty()).collect()
    }

    async fn run_sync(&mut self, now: Instant) -> SyncReport {
        let started = Instant::now();
        let mut report = SyncReport::default();
        let mut counts = IptablesReport {
            is_full: self.is_fresh,
            ..IptablesReport::default()
        };
        if !self.needs_resync {
            let plan = self.plan(now);
            counts.written = (!plan.is_empty())
                .then(|| [Table::Filter, Table::Nat].map(|table| plan.rules(table)));
            if self.apply(plan, now, &mut report).await {
                self.is_fresh = false;
            }
            if let Some(plan) = self.plan_leftovers() {
                self.apply(plan, now, &mut report).await;
            }
        }
        let base = self.base.wanted(&());
        let base = |table| base.map_or(0, |base| base.rules(table));
        let [filter, nat] = self.rules;
        counts.wanted = [filter + base(Table::Filter), nat + base(Table::Nat)];
        report.iptables = Some(counts);
        report.pending = self.pending();
        report.failing =
            self.base.failing_len() + self.slots.failing_len() + self.chains.failing_len();
        report.is_base_failing = self.base.failing_len() > 0;
        report.conflicts = self.conflicts();
        report.took = started.elapsed();
        report
    }

    /// Carries out a plan; whether all of it was done.
    async fn apply(&mut self, plan: Plan, now: Instant, report: &mut SyncReport) -> bool {
        if plan.is_empty() {
            return true;
        }
        let manner = self.manner;
        let applied = self.kernel.call(move |kernel| {
            let verdicts = plan.apply(kernel, manner);
            (plan, verdicts)
        });
        match applied.await {
            Ok((plan, verdicts)) => {
                self.book(&plan, &verdicts, now, report);
                verdicts.refused == 0
            }
            Err(gone) => {
                self.needs_resync = true;
                let gone = gone.to_string();
                report
                    .failures
                    .push(failure("use the kernel thread", None, &gone));
                false
            }
        }
    }

    /// Whether all rules are to be read, and not only the canary looked for.
    fn is_reading_due(&self, now: Instant) -> bool {
        // The second family's turn comes a little early when the first had less to do than last time.
        let period = self.config.sync_period;
        let period = period.saturating_sub(period / 8);
        self.read.is_none_or(|(at, took)| {
            now.saturating_duration_since(at) >= period.max(took.saturating_mul(READING_SHARE))
        })
    }

    async fn run_resync(&mut self, model: &Model, now: Instant) -> Result<(), Failure> {
        let reads_all = self.needs_resync || self.is_reading_due(now);
        let config = Arc::clone(&self.config);
        let read = self
            .kernel
            .call(move |kernel| look(kernel, &config, reads_all));
        let gone =
            |gone: netlink_batch::Gone| failure("use the kernel thread", None, &gone.to_string());
        let looked: Result<Looked, KernelError> = read.await.map_err(gone)?;
        let Looked { addresses, saved } = looked
            .map_err(|error| failure(&format!("read {}", error.what), None, &error.reason))?;
        let is_node_new = self.learn(model);
        if self.addresses != addresses {
            self.addresses = addresses;
            self.want_base();
        }
        if is_node_new {
            self.update_all(model);
        }
        if let Some((saved, took)) = saved {
            self.observe(saved);
            self.read = Some((now, took));
            self.is_fresh = true;
        }
        self.settle_style();
        self.needs_resync = false;
        Ok(())
    }
}

/// What was seen of the kernel.
struct Looked {
    addresses: BTreeSet<IpAddr>,
    /// With how long it took; `None` if it was not looked for, and the canary is there.
    saved: Option<(Saved, Duration)>,
}

fn look(kernel: &mut dyn Kernel, config: &Config, reads_all: bool) -> Result<Looked, KernelError> {
    let addresses = kernel.addresses()?;
    let mut read = |table| {
        let started = Instant::now();
        let mut reader = Reader::new(config);
        kernel.save(table, &mut |line| reader.line(line))?;
        Ok((reader.finish(), started.elapsed()))
    };
    // The table that holds the least is flushed with the others.
    let is_needed = reads_all || !read(Some(Table::Mangle))?.0.base.has_canary(Table::Mangle);
    let saved = is_needed.then(|| read(None)).transpose()?;
    Ok(Looked { addresses, saved })
}

/// Whether there are rules that count: in each family there is one for packets that are INVALID, unless conntrack is liberal.
pub fn has_counting_rules(family: IpFamily, iptables: &iptables::Iptables) -> bool {
    if iptables.is_empty(family) {
        return false;
    }
    let mut has_some = false;
    let mut look = |line: &str| has_some |= line.contains(" -m nfacct ");
    let read = iptables.save_lines(family, Some("filter"), &mut look);
    read.is_ok() && has_some
}

/// Whether the kernel counts, and iptables can have it count; counters that are missing are made. One process. Writes nothing
/// where rules count already.
pub fn probe_counters(family: IpFamily, iptables: &iptables::Iptables) -> Result<(), String> {
    let ensured = crate::nfacct::Accounting::open().and_then(|mut accounting| accounting.ensure());
    ensured.map_err(|error| error.to_string())?;
    if has_counting_rules(family, iptables) {
        return Ok(());
    }
    let counter = crate::nfacct::Counter::InvalidDropped.name();
    let probe = format!(
        "*filter\n:KUBE-PROXY-PROBE - [0:0]\n-A KUBE-PROXY-PROBE -m nfacct --nfacct-name {counter} -j DROP\n\
         -F KUBE-PROXY-PROBE\n-X KUBE-PROXY-PROBE\nCOMMIT\n"
    );
    let probed = iptables.restore(family, &probe);
    probed.map_err(|error| error.to_string())
}

impl<K: Kernel> Mode for Proxier<K> {
    fn family(&self) -> IpFamily {
        self.node.family
    }

    fn update(&mut self, model: &Model, changes: &Changes) {
        if self.learn(model) {
            self.update_all(model);
        } else {
            for name in &changes.services {
                self.update_service(model, name);
            }
        }
        self.settle_style();
    }

    fn sync(&mut self, now: Instant) -> Pin<Box<dyn Future<Output = SyncReport> + Send + '_>> {
        Box::pin(self.run_sync(now))
    }

    fn resync<'a>(
        &'a mut self,
        model: &'a Model,
        now: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>> {
        Box::pin(self.run_resync(model, now))
    }

    fn next_due(&self) -> Option<Instant> {
        let retries = [
            self.base.next_retry(),
            self.slots.next_retry(),
            self.chains.next_retry(),
        ];
        retries.into_iter().flatten().min()
    }

    fn needs_resync(&self) -> bool {
        self.needs_resync
    }

    fn node_port_addresses(&self) -> &[IpAddr] {
        &self.node_ports
    }
}

fn failure(object: &str, owner: Option<proxy::ServicePortName>, reason: &str) -> Failure {
    Failure {
        object: object.to_owned(),
        owner,
        reason: reason.to_owned(),
    }
}
