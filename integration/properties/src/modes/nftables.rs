//! The nftables mode.

mod real;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use chance::Chance;
use nftables_netlink::{Activity, Bytes, Element, ElementData, Name, Rule, Transaction, Verdict};
use packet_path::nft::{Held, Nft};
use proxy::{
    IpFamily, LocalDetector, Mode, Model, NodeFacts, NodePortAddresses, Notice, Unreadable,
};
use proxy_nftables::fake::{Content, FakeKernel, State};
use proxy_nftables::{
    Blame as BlameOne, Config, Kernel, Lanes, Layout, LocalhostPort, NetlinkKernel, Object,
    Proxier, Refusal, TABLE,
};

use crate::cluster::{NODE, NODE_ADDRESS, at, net};
use crate::packets;
use crate::real::{add_bystanders, bystanders, on_a_node, set_addresses};
use crate::subject::{Damage, Entries, Fresh, Served, Subject, run_afresh};
use crate::turnstile::{Ask, Blame, Front, Lane, Permit, Serves, Turnstile, Write};
use real::Real;

/// In a form, by its name.
pub(super) fn subject(family: IpFamily, form: &'static str) -> Box<dyn Subject> {
    Box::new(on_the_fake(family, form))
}

/// The same on the kernel, in the calling thread's network namespace.
///
/// # Errors
///
/// What the kernel lacks.
pub(super) fn on_the_kernel(
    family: IpFamily,
    form: &'static str,
) -> Result<Box<dyn Subject>, String> {
    let mut subject = on_the_fake(family, form);
    subject.real = Some(RefCell::new(Real::open(family, subject.config.layout)?));
    add_bystanders();
    Ok(Box::new(subject))
}

fn on_the_fake(family: IpFamily, form: &'static str) -> Nftables {
    let layout = if form.contains("flat") {
        Layout::Flat
    } else {
        Layout::Upstream
    };
    let addresses = [
        at(family, [127, 0, 0, 1]),
        at(family, NODE_ADDRESS),
        at(family, [10, 244, 1, 254]),
    ];
    let kernel = FakeKernel::new(family, &[]);
    kernel.state().addresses = addresses.into();
    kernel.state().is_old = form.contains("old");
    let detector = net(family, [10, 244, 1, 0], 24);
    Nftables {
        family,
        kernel,
        config: Config {
            layout,
            detector: detector.map_or(LocalDetector::None, LocalDetector::SourceNet),
            ..Config::default()
        },
        real: None,
    }
}

struct Nftables {
    family: IpFamily,
    /// The kernel, or what was last read of the real one.
    kernel: FakeKernel,
    config: Config,
    real: Option<RefCell<Real>>,
}

impl Nftables {
    /// The state, as the kernel has it now.
    fn look(&self) -> MutexGuard<'_, State> {
        let mut state = self.kernel.state();
        if let Some(real) = &self.real {
            real.borrow_mut().look(&mut state);
        }
        state
    }

    /// Somebody changes the state, and so the kernel.
    fn change<T>(&mut self, how: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.look();
        let before = (state.addresses.clone(), state.table.clone());
        let done = how(&mut state);
        if let Some(real) = &self.real {
            real.borrow_mut().follow(&before, &state);
        }
        done
    }

    fn begin<K: Kernel>(
        &self,
        mut kernel: impl FnMut() -> K,
        now: Instant,
    ) -> (Box<dyn Mode>, Vec<Lane>) {
        let mut lanes = Vec::new();
        let mut worker = || {
            let (lane, worker) = Lane::new(kernel());
            lanes.push(lane);
            worker
        };
        let workers = Lanes::new([worker(), worker()]);
        let mode = Proxier::new(self.config.clone(), self.node(), workers, now);
        (Box::new(mode), lanes)
    }

    /// A recorded state: nobody writes to it any more.
    fn recorded(&self, kernel: FakeKernel) -> Self {
        Self {
            family: self.family,
            kernel,
            config: self.config.clone(),
            real: None,
        }
    }

    fn node(&self) -> NodeFacts {
        let mut node = NodeFacts::new(self.family, NODE);
        node.node_port_addresses = NodePortAddresses::All;
        node
    }
}

impl Subject for Nftables {
    fn family(&self) -> IpFamily {
        self.family
    }

    fn start(&mut self, now: Instant) -> (Box<dyn Mode>, Vec<Lane>) {
        match &self.real {
            Some(_) => self.begin(|| NetlinkKernel::new(self.family), now),
            None => self.begin(|| self.kernel.clone(), now),
        }
    }

    fn switch(&mut self, _: &mut Chance) -> Option<String> {
        self.config.layout = match self.config.layout {
            Layout::Upstream => Layout::Flat,
            Layout::Flat => Layout::Upstream,
        };
        Some(format!("the layout is {:?}", self.config.layout))
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.look().addresses.clone()
    }

    fn served(&self, fronts: &BTreeSet<Front>) -> Served {
        let state = self.look();
        let node = packets::node(self.family, state.addresses.iter().copied());
        let mut held = Held::default();
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
            Ok(nft) => packets::served(fronts, &nft, &node),
            Err(_) => Served::new(),
        }
    }

    fn ours(&self) -> Entries {
        let state = self.look();
        let mut ours = Entries::new();
        let Some(content) = &state.table else {
            return ours;
        };
        ours.insert("table".to_owned(), format!("{:?}", content.activity));
        for (name, (set, elements)) in &content.sets {
            ours.insert(format!("set {name}"), format!("{set:?}"));
            for (key, element) in elements {
                // The comment is that of whoever made it, and cannot be changed.
                let element = Element {
                    comment: None,
                    ..element.clone()
                };
                ours.insert(format!("element {name} {key:?}"), format!("{element:?}"));
            }
        }
        for (name, (chain, rules)) in &content.chains {
            // The comment is that of whoever made it, and cannot be changed.
            ours.insert(
                format!("chain {name}"),
                format!("{:?} {rules:?}", chain.base),
            );
        }
        ours
    }

    fn may_stay(&self, entry: &str) -> bool {
        // How many endpoints a Service has had once, another one may have next.
        entry.starts_with("chain endpoints-of-")
    }

    fn foreign(&self) -> Entries {
        Entries::new()
    }

    fn foreign_left(&self) -> Entries {
        Entries::new()
    }

    fn damage(&mut self, chance: &mut Chance) -> Option<Damage> {
        self.change(|state| Self::damage_state(state, chance))
    }

    fn change_foreign(&mut self, _: &mut Chance) -> Option<String> {
        None
    }

    fn change_address(&mut self, chance: &mut Chance) -> Notice {
        let other = at(self.family, [192, 168, 99, 11 + chance.small(2)]);
        self.change(|state| {
            if state.addresses.remove(&other) {
                Notice::AddressRemoved(other)
            } else {
                state.addresses.insert(other);
                Notice::AddressAdded(other)
            }
        })
    }

    fn notices(&self) -> &'static [Notice] {
        &[Notice::Ruleset, Notice::Anything]
    }

    fn afresh(&self, model: &Model) -> Fresh {
        let kernel = FakeKernel::new(self.family, &[]);
        {
            let (addresses, is_old) = (self.addresses(), self.kernel.state().is_old);
            let mut state = kernel.state();
            (state.addresses, state.is_old) = (addresses, is_old);
        }
        let handle = kernel.clone();
        let lanes = Lanes::inline(|| handle.clone());
        let mut mode = Proxier::new(self.config.clone(), self.node(), lanes, Instant::now());
        let pending = run_afresh(&mut mode, model);
        let subject = Box::new(self.recorded(kernel));
        Fresh { subject, pending }
    }

    fn afresh_on_same(&self, model: &Model) -> Result<Fresh, String> {
        if self.real.is_none() {
            return Ok(self.afresh(model));
        }
        let (addresses, node) = (self.addresses(), self.node());
        let (family, config) = (self.family, self.config.clone());
        let made = on_a_node(family, || {
            let mut real = Real::open(family, config.layout)?;
            let there = FakeKernel::new(family, &[]);
            real.look(&mut there.state());
            set_addresses(&there.state().addresses, &addresses);
            let lanes = Lanes::inline(|| NetlinkKernel::new(family));
            let mut mode = Proxier::new(config, node, lanes, Instant::now());
            let pending = run_afresh(&mut mode, model);
            real.look(&mut there.state());
            Ok::<_, String>((there, pending))
        })?;
        let (there, pending) = made?;
        let subject = Box::new(self.recorded(there));
        Ok(Fresh { subject, pending })
    }

    fn bystanders(&self) -> Vec<Option<String>> {
        match &self.real {
            Some(_) => bystanders(),
            None => Vec::new(),
        }
    }
}

impl Nftables {
    fn damage_state(state: &mut State, chance: &mut Chance) -> Option<Damage> {
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
                // A way to nobody in a map of ours.
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
        const PART: &str = "the addresses of this node";
        match self.gate.pass(Ask::Read(PART)) {
            Permit::Go | Permit::PassOver(_) => self.kernel.addresses(),
            _ => Err(Unreadable::new(PART, "on purpose")),
        }
    }

    fn table(&mut self, tell: &mut dyn FnMut(Object)) -> Result<(), Unreadable> {
        const PART: &str = "the nftables table kube-proxy";
        match self.gate.pass(Ask::Read(PART)) {
            Permit::Go => self.kernel.table(tell),
            // Somebody writes meanwhile: it is told from the start again.
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
        match self.gate.pass(Ask::Read("the rules of a chain")) {
            Permit::Go | Permit::PassOver(_) => self.kernel.rules(chain),
            _ => Err(Unreadable::new("the rules of a chain", "on purpose")),
        }
    }

    fn timeout(&mut self, set: &str) -> Result<Option<u32>, Unreadable> {
        match self.gate.pass(Ask::Read("the timeout of a set")) {
            Permit::Go | Permit::PassOver(_) => self.kernel.timeout(set),
            _ => Err(Unreadable::new("the timeout of a set", "on purpose")),
        }
    }

    fn listen(&mut self, port: &LocalhostPort) -> Result<(), String> {
        self.kernel.listen(port)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        let reason = || "on purpose".to_owned();
        let ask = Ask::Write(Write {
            what: format!("{:?}", transaction.changes),
            serves: Serves::All,
            removes: None,
        });
        match self.gate.pass(ask) {
            Permit::Go => self.kernel.commit(transaction),
            Permit::LoseDone => {
                self.kernel.commit(transaction)?;
                Err(Refusal::Unknown(reason()))
            }
            Permit::Refuse(Blame::Entry) => {
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
            Permit::Refuse(Blame::Belief) => Err(Refusal::Refused {
                reason: reason(),
                changes: Vec::new(),
            }),
            Permit::Refuse(Blame::Node) => Err(Refusal::General(reason())),
            _ => Err(Refusal::Unknown(reason())),
        }
    }
}
