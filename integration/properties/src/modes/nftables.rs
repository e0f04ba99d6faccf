//! nftables mode as a test subject, on its fake kernel or on this machine's kernel.

mod real;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use chance::Chance;
use nftables_netlink::{Activity, Bytes, Element, ElementData, Name, Rule, Transaction, Verdict};
use packet_path::nft::{InMemoryTables, Nft};
use proxy::{IpFamily, Mode, Model, Notice, Protocol, Service, Target, Unreadable};
use proxy_nftables::fake::{Content, FakeKernel, FakeState, describe};
use proxy_nftables::{
    Blame as BlameOne, Config, Kernel, Layout, LayoutSizes, LocalhostNodePorts, LocalhostPort,
    NetlinkKernel, Nftables as Scheme, Object, Refusal, TABLE,
};

use crate::cluster::SERVICES;
use crate::packets;
use crate::real::{add_bystanders, on_a_node, set_addresses};
use crate::stepped_threads::{
    Front, Permit, RejectionCause, SteppedThread, ThreadOperation, Turnstile, Write,
};
use crate::subject::{
    Damage, Entries, FreshStart, RejectedPart, Subject, detector, node, node_addresses, run_afresh,
    start, toggle_address,
};
use crate::verdict::{self, SeenClient, Verdicts, accepted};
use real::RealKernel;

/// Numbers of Service ports at which the layout changes, small enough for the few Services of a
/// test. They are adjacent, so that the layout depends only on the objects, and not on the previous
/// layout.
const SIZES: LayoutSizes = LayoutSizes {
    flat_above: 4,
    upstream_below: 5,
};

/// Returns nftables mode on its fake kernel as a test subject, with the flags of `form`.
pub(super) fn subject(family: IpFamily, form: &'static str) -> Box<dyn Subject> {
    Box::new(on_the_fake(family, form))
}

/// Returns nftables mode on this machine's kernel as a test subject, with the flags of `form`, in
/// the network namespace of the calling thread.
///
/// # Errors
///
/// Returns an error if the kernel lacks a feature that the mode needs.
pub(super) fn on_the_kernel(
    family: IpFamily,
    form: &'static str,
) -> Result<Box<dyn Subject>, String> {
    let mut subject = on_the_fake(family, form);
    subject.real = Some(RefCell::new(RealKernel::open(
        family,
        subject.config.layout,
    )?));
    add_bystanders();
    Ok(Box::new(subject))
}

fn on_the_fake(family: IpFamily, form: &'static str) -> Nftables {
    let layout = if form.contains("flat") {
        Layout::Flat
    } else {
        Layout::Upstream
    };
    let is_auto = form.contains("auto");
    let kernel = FakeKernel::new(family, &[]);
    kernel.state().addresses = node_addresses(family).into();
    kernel.state().is_old = form.contains("old");
    Nftables {
        family,
        kernel,
        config: Config {
            layout,
            sizes: is_auto.then_some(SIZES),
            detector: detector(family),
            localhost: if form.contains("localhost") {
                LocalhostNodePorts::Served
            } else {
                LocalhostNodePorts::Off
            },
            ..Config::default()
        },
        barred: Vec::new(),
        has_switched: is_auto,
        is_auto,
        real: None,
    }
}

/// Returns an address as it appears in the key of an element in [`Subject::ours`].
fn part_of_key(address: IpAddr) -> String {
    let key = match address {
        IpAddr::V4(address) => format!("{:?}", address.octets()),
        IpAddr::V6(address) => format!("{:?}", address.octets()),
    };
    key.trim_matches(['[', ']']).to_owned()
}

struct Nftables {
    family: IpFamily,
    /// The fake kernel. On a real kernel: a copy of the state that the test has last read from it.
    kernel: FakeKernel,
    config: Config,
    barred: Vec<RejectedPart>,
    /// True if the layout has changed, or can change without a restart.
    has_switched: bool,
    /// True for the form `nftables-auto`, in which the number of Service ports selects the layout.
    /// A restart with other flags may fix the layout for some time.
    is_auto: bool,
    real: Option<RefCell<RealKernel>>,
}

impl Nftables {
    /// Returns the kernel's state. On a real kernel, reads it first.
    fn look(&self) -> MutexGuard<'_, FakeState> {
        let mut state = self.kernel.state();
        if let Some(real) = &self.real {
            real.borrow_mut().look(&mut state);
        }
        state
    }

    /// Makes another program's change in the recorded state, and then in the real kernel, if any.
    fn change<T>(&mut self, how: impl FnOnce(&mut FakeState) -> T) -> T {
        let mut state = self.look();
        let before = (state.addresses.clone(), state.table.clone());
        let done = how(&mut state);
        if let Some(real) = &self.real {
            real.borrow_mut().follow(&before, &state);
        }
        done
    }

    /// Returns a test subject with a copy of the recorded state, to which no daemon writes.
    fn recorded(&self, kernel: FakeKernel) -> Self {
        Self {
            kernel,
            config: self.config.clone(),
            barred: self.barred.clone(),
            has_switched: self.has_switched,
            ..on_the_fake(self.family, "")
        }
    }
}

impl Subject for Nftables {
    fn family(&self) -> IpFamily {
        self.family
    }

    fn start(&mut self, now: Instant) -> (Box<dyn Mode>, Vec<SteppedThread>) {
        let (config, node) = (self.config.clone(), node(self.family));
        if self.real.is_some() {
            let kernel = || NetlinkKernel::new(self.family);
            return start::<2, Scheme, _>(config, node, kernel, now);
        }
        // The relay's listening ports close with the daemon's process.
        self.kernel.state().listening.clear();
        start::<2, Scheme, _>(config, node, || self.kernel.clone(), now)
    }

    fn barred(&self) -> &[RejectedPart] {
        &self.barred
    }

    fn forbid(&mut self, chance: &mut Chance) -> Option<String> {
        if self.real.is_some() {
            return None;
        }
        let mut state = self.kernel.state();
        if self.serves_localhost() && chance.is_one_in(2) {
            let port = 30_000 + u16::from(chance.small(SERVICES));
            let is_new = !state.listening.contains_key(&port) && state.taken.insert(port);
            return is_new.then(|| format!("somebody listens at port {port} of localhost"));
        }
        if self.has_switched {
            return None;
        }
        let barred = RejectedPart::any(self.family, chance);
        let part = barred.to_string();
        if state.holds(&part) || state.refused.contains(&part) {
            return None;
        }
        drop(state);
        self.kernel.state().refused.push(part);
        self.barred.push(barred);
        Some(format!("nothing of {barred} can be written"))
    }

    fn is_of(&self, entry: &str, value: &str, service: &Service) -> bool {
        let name = service.name.to_string();
        let addresses = service.cluster_ips.iter().chain(&service.external_ips);
        let mut addresses = addresses.chain(&service.ingress_ips);
        let mut node_ports = service.ports.iter().filter_map(|port| port.node_port);
        // Several Services may share an element of this set, if they have the same endpoint.
        entry.starts_with("element hairpin-connections")
            || entry.contains(&name)
            || value.contains(&name)
            || entry.starts_with("element ")
                && (addresses.any(|address| entry.contains(&part_of_key(*address)))
                    || node_ports.any(|port| {
                        let [high, low] = port.to_be_bytes();
                        entry.contains("nodeports") && entry.contains(&format!("{high}, {low}"))
                    }))
    }

    fn is_forbidden(&self, write: &Write, barred: &[Service]) -> bool {
        let state = self.kernel.state();
        let mut refused = state.refused.iter();
        if let Some(port) = write.what.strip_prefix("listen at ") {
            let port = port.split(':').next().and_then(|port| port.parse().ok());
            return port.is_some_and(|port| state.taken.contains(&port));
        }
        let words = write.what.split('\n').next().unwrap_or_default();
        // If the kernel refuses a part of a Service, the Service's previous rules stay, and with
        // them the chains and elements that they use.
        let mut barred = barred.iter().map(|service| service.name.to_string());
        refused.any(|part| words.contains(part)) || barred.any(|name| words.contains(&name))
    }

    fn ends_with_process(&self) -> bool {
        self.serves_localhost()
    }

    fn serves_localhost(&self) -> bool {
        self.config.localhost == LocalhostNodePorts::Served
    }

    fn switch(&mut self, _: &mut Chance) -> Option<String> {
        // After a change of layout, entries of the former layout stay until the daemon has written
        // all Services. With a refused part, this never happens, so the layout must not change.
        if !self.barred.is_empty() {
            return None;
        }
        self.has_switched = true;
        if self.is_auto {
            let was_auto = self.config.sizes.is_some();
            self.config.sizes = (!was_auto).then_some(SIZES);
            if !was_auto {
                return Some("the number of Service ports chooses the layout".to_owned());
            }
        }
        self.config.layout = match self.config.layout {
            Layout::Upstream => Layout::Flat,
            Layout::Flat => Layout::Upstream,
        };
        Some(format!("the layout is {:?}", self.config.layout))
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.look().addresses.clone()
    }

    fn verdicts(&self, fronts: &BTreeSet<Front>) -> Verdicts {
        let state = self.look();
        let node = packets::node(self.family, state.addresses.iter().copied());
        let listening = state.listening.clone();
        let mut held = InMemoryTables::default();
        if let Some(content) = &state.table
            && content.activity == Activity::Active
        {
            let family = self.family.into();
            held.add_table(family, TABLE);
            for (set, elements) in content.sets.values() {
                held.add_set(family, TABLE, set, elements.values().cloned().collect());
            }
            for (chain, rules) in content.chains.values() {
                held.add_chain(family, TABLE, chain, rules.clone());
            }
        }
        drop(state);
        match Nft::read(held, self.family) {
            Ok(nft) => {
                let mut verdicts = packets::verdicts(fronts, &[&nft], &node);
                // Packets that rules pass to localhost reach a listening port of the relay.
                for (front, verdicts) in &mut verdicts {
                    let is_tcp = front.protocol == Protocol::Tcp;
                    if front.address.is_loopback()
                        && *verdicts == [verdict::Verdict::Missed].into()
                        && let Some(serving) = listening.get(&front.port).filter(|_| is_tcp)
                    {
                        let targets = serving.endpoints.iter().map(|at| Target {
                            ip: at.ip(),
                            port: at.port(),
                        });
                        *verdicts = accepted(targets, SeenClient::Node);
                    }
                }
                verdicts
            }
            Err(_) => Verdicts::new(),
        }
    }

    fn ours(&self) -> Entries {
        let state = self.look();
        let mut ours = Entries::new();
        for (port, serving) in &state.listening {
            ours.insert(format!("listener {port}"), format!("{serving:?}"));
        }
        let Some(content) = &state.table else {
            return ours;
        };
        ours.insert("table".to_owned(), format!("{:?}", content.activity));
        for (name, (set, elements)) in &content.sets {
            ours.insert(format!("set {name}"), format!("{set:?}"));
            for (key, element) in elements {
                // Ignores the element's comment, which only the first writer of the element can
                // set.
                let element = Element {
                    comment: None,
                    ..element.clone()
                };
                if let Some(at) = key.get(4..).filter(|_| name.starts_with("endpoints-")) {
                    // Ignores the element's number, because an endpoint keeps its number when other
                    // endpoints are added or removed.
                    let to = &element.data;
                    ours.insert(format!("element {name} {at:?} to {to:?}"), String::new());
                    continue;
                }
                ours.insert(format!("element {name} {key:?}"), format!("{element:?}"));
            }
        }
        for (name, (chain, rules)) in &content.chains {
            // Ignores the chain's comment, which only the first writer of the chain can set.
            ours.insert(
                format!("chain {name}"),
                format!("{:?} {rules:?}", chain.base),
            );
        }
        ours
    }

    fn may_stay(&self, entry: &str) -> bool {
        // Services with equal numbers of endpoints share such a chain, so it may stay for later
        // Services.
        entry.starts_with("chain endpoints-of-")
    }

    fn damage(&mut self, chance: &mut Chance) -> Option<Damage> {
        self.change(|state| Self::damage_state(state, chance))
    }

    fn change_address(&mut self, chance: &mut Chance) -> Notice {
        let family = self.family;
        self.change(|state| toggle_address(family, chance, &mut state.addresses))
    }

    fn afresh(&self, model: &Model) -> FreshStart {
        let kernel = FakeKernel::new(self.family, &[]);
        {
            let addresses = self.addresses();
            let (mut state, own) = (kernel.state(), self.kernel.state());
            (state.addresses, state.is_old) = (addresses, own.is_old);
            state.refused.clone_from(&own.refused);
            state.taken.clone_from(&own.taken);
        }
        let (config, node) = (self.config.clone(), node(self.family));
        let pending = run_afresh::<Scheme, _>(config, node, || kernel.clone(), model);
        let subject = Box::new(self.recorded(kernel));
        FreshStart { subject, pending }
    }

    fn afresh_on_same(&self, model: &Model) -> Result<FreshStart, String> {
        if self.real.is_none() {
            return Ok(self.afresh(model));
        }
        let (addresses, node) = (self.addresses(), node(self.family));
        let (family, config) = (self.family, self.config.clone());
        let made = on_a_node(family, || {
            let mut real = RealKernel::open(family, config.layout)?;
            let there = FakeKernel::new(family, &[]);
            real.look(&mut there.state());
            set_addresses(&there.state().addresses, &addresses);
            let kernel = || NetlinkKernel::new(family);
            let pending = run_afresh::<Scheme, _>(config, node, kernel, model);
            real.look(&mut there.state());
            Ok::<_, String>((there, pending))
        })?;
        let (there, pending) = made?;
        let subject = Box::new(self.recorded(there));
        Ok(FreshStart { subject, pending })
    }

    fn is_real(&self) -> bool {
        self.real.is_some()
    }
}

impl Nftables {
    fn damage_state(state: &mut FakeState, chance: &mut Chance) -> Option<Damage> {
        let told = |what: String| {
            Some(Damage {
                what,
                told: Some(Notice::Ruleset),
            })
        };
        let content = state.table.as_mut()?;
        match chance.below(8) {
            0 => {
                state.table = None;
                told("the table is deleted".to_owned())
            }
            1 => {
                *content = Content::default();
                told("the table is made anew, empty".to_owned())
            }
            2 => {
                let at = chance.index(content.chains.len());
                let (name, (_, rules)) = content.chains.iter_mut().nth(at)?;
                rules.clear();
                told(format!("chain {name} is flushed"))
            }
            3 => {
                let at = chance.index(content.chains.len());
                let (name, (_, rules)) = content.chains.iter_mut().nth(at)?;
                let at = chance.index(rules.len());
                if at >= rules.len() {
                    return None;
                }
                rules.remove(at);
                told(format!("rule {at} of chain {name} is deleted"))
            }
            4 => {
                let at = chance.index(content.sets.len());
                let (name, (_, elements)) = content.sets.iter_mut().nth(at)?;
                elements.clear();
                told(format!("set {name} is flushed"))
            }
            5 => {
                let at = chance.index(content.sets.len());
                let (name, (_, elements)) = content.sets.iter_mut().nth(at)?;
                let at = chance.index(elements.len());
                let key: Bytes = elements.keys().nth(at)?.clone();
                elements.remove(&key);
                told(format!("element {key:?} of set {name} is deleted"))
            }
            6 => {
                // Changes a map element's target to a wrong chain, which rejects packets.
                let chains: Vec<Name> = content.chains.keys().cloned().collect();
                let chain = chance.one_of(&chains)?.clone();
                let at = chance.index(content.sets.len());
                let (name, (_, elements)) = content.sets.iter_mut().nth(at)?;
                let at = chance.index(elements.len());
                let element = elements.values_mut().nth(at)?;
                let leads = matches!(&element.data, Some(ElementData::Verdict(Verdict::Goto(_))));
                if !leads || !chain.starts_with("reject-chain") {
                    return None;
                }
                element.data = Some(ElementData::Verdict(Verdict::Goto(Arc::clone(&chain))));
                let element: &Element = element;
                told(format!(
                    "element {:?} of {name} leads to {chain}",
                    element.key
                ))
            }
            _ => {
                content.activity = Activity::Dormant;
                told("the table is dormant".to_owned())
            }
        }
    }
}

impl<K: Kernel> Kernel for Turnstile<K> {
    fn clock(&self) -> Instant {
        self.gate.clock()
    }

    fn family(&self) -> IpFamily {
        self.kernel.family()
    }

    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        self.read("the addresses of this node", Kernel::addresses)
    }

    fn table(&mut self, tell: &mut dyn FnMut(Object)) -> Result<(), Unreadable> {
        const PART: &str = "the nftables table kube-proxy";
        match self.gate.pass(ThreadOperation::Read(PART)) {
            Permit::Go => self.kernel.table(tell),
            // Another program's write during the read makes the daemon read the table again.
            Permit::PassOver(which) => {
                let mut left = Chance::new(which).index(20);
                self.kernel.table(&mut |object| {
                    if left > 0 {
                        left -= 1;
                        tell(object);
                    }
                })?;
                self.kernel.table(tell)
            }
            _ => Err(Unreadable::new(PART, "on purpose")),
        }
    }

    fn rules(&mut self, chain: &str) -> Result<Vec<(u64, Rule)>, Unreadable> {
        self.read("the rules of a chain", |kernel| kernel.rules(chain))
    }

    fn timeout(&mut self, set: &str) -> Result<Option<u32>, Unreadable> {
        self.read("the timeout of a set", |kernel| kernel.timeout(set))
    }

    fn listen(&mut self, port: &LocalhostPort) -> Result<(), String> {
        let what = format!("listen at {}: {:?}", port.number, port.serving);
        // Another thread of the daemon's own process opens the port, so its reply cannot be lost.
        match self.pass_write(what) {
            Permit::Go | Permit::LoseDone => self.kernel.listen(port),
            _ => Err("on purpose".to_owned()),
        }
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        let reason = || "on purpose".to_owned();
        let what = {
            let words: Vec<String> = transaction.changes.iter().map(describe).collect();
            format!("{}\n{:?}", words.join("; "), transaction.changes)
        };
        match self.pass_write(what) {
            Permit::Go => self.kernel.commit(transaction),
            Permit::LoseDone => {
                self.kernel.commit(transaction)?;
                Err(Refusal::Unknown(reason()))
            }
            Permit::Refuse(RejectionCause::Entry) => {
                let number = transaction.changes.len() / 2;
                Err(Refusal::Refused {
                    reason: reason(),
                    changes: vec![BlameOne {
                        change: number,
                        errno: 95,
                        reason: reason(),
                    }],
                })
            }
            Permit::Refuse(RejectionCause::Belief) => Err(Refusal::Refused {
                reason: reason(),
                changes: Vec::new(),
            }),
            Permit::Refuse(RejectionCause::Node) => Err(Refusal::General(reason())),
            _ => Err(Refusal::Unknown(reason())),
        }
    }
}
