//! iptables mode as a test subject, on its fake kernel or on this machine's kernel.

mod real;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::MutexGuard;
use std::time::Instant;

use chance::Chance;
use iptables::{Input, Kind};
use packet_path::Xtables;
use proxy::{IpFamily, Mode, Model, Notice, Service, Unreadable};
use proxy_iptables::fake::{FakeKernel, FakeState};
use proxy_iptables::{Config, Iptables as Scheme, IptablesKernel, Kernel, Refusal, Table};

use crate::cluster::at;
use crate::packets;
use crate::real::{add_bystanders, on_a_node, set_addresses};
use crate::stepped_threads::{
    Front, Permit, RejectionCause, SteppedThread, ThreadOperation, Turnstile, Write,
};
use crate::subject::{
    Damage, Entries, FreshStart, RejectedPart, Subject, detector, node, node_addresses, run_afresh,
    start, toggle_address,
};
use crate::verdict::Verdicts;
use real::RealKernel;

/// Text that marks the rules and chains of other programs.
const THEIRS: &str = "theirs";

/// Lines of a test transaction, with which the daemon finds out whether the kernel accepts any
/// write.
const TRIAL: [&str; 3] = ["*nat", ":KUBE-PROXY-CANARY - [0:0]", "COMMIT"];

/// Chains that contain rules for each Service port.
const SHARED: [&str; 5] = [
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
];

pub(super) fn subject(family: IpFamily, _: &'static str) -> Box<dyn Subject> {
    Box::new(on_the_fake(family))
}

/// Returns iptables mode on this machine's kernel as a test subject, in the network namespace of
/// the calling thread.
///
/// # Errors
///
/// Returns an error if the kernel lacks a feature that the mode needs.
pub(super) fn on_the_kernel(family: IpFamily, _: &'static str) -> Result<Box<dyn Subject>, String> {
    let mut subject = on_the_fake(family);
    subject.real = Some(RefCell::new(RealKernel::open(family)?));
    add_bystanders();
    Ok(Box::new(subject))
}

fn on_the_fake(family: IpFamily) -> Iptables {
    let kernel = FakeKernel::new(&[]);
    kernel.state().addresses = node_addresses(family).into();
    Iptables {
        family,
        kernel,
        config: Config {
            detector: detector(family),
            ..Config::default()
        },
        theirs: Entries::new(),
        made: 0,
        barred: Vec::new(),
        real: None,
    }
}

struct Iptables {
    family: IpFamily,
    /// The fake kernel. On a real kernel: a copy of the state that the test has last read from it.
    kernel: FakeKernel,
    config: Config,
    /// Other programs' rules and chains, as these programs last wrote them.
    theirs: Entries,
    made: usize,
    barred: Vec<RejectedPart>,
    real: Option<RefCell<RealKernel>>,
}

impl Iptables {
    /// Returns the source address that another program's rule matches, in the notation of
    /// `iptables-save`.
    fn somebody(&self, number: u8) -> String {
        let length = match self.family {
            IpFamily::V4 => 32,
            IpFamily::V6 => 128,
        };
        format!("{}/{length}", at(self.family, [172, 31, 0, number]))
    }

    /// Returns the kernel's state. On a real kernel, reads it first.
    fn look(&self) -> MutexGuard<'_, FakeState> {
        if let Some(real) = &self.real {
            real.borrow_mut().look(&self.kernel);
        }
        self.kernel.state()
    }

    /// Makes another program's change in the recorded state, and then in the real kernel, if any.
    fn change<T>(&mut self, how: impl FnOnce(&mut Self) -> T) -> T {
        drop(self.look());
        let before = self.kernel.state().clone();
        let done = how(self);
        if let Some(real) = &self.real {
            real.borrow_mut().follow(&before, &self.kernel);
        }
        done
    }

    /// Returns a test subject with a copy of the recorded state, to which no daemon writes.
    fn recorded(&self, kernel: FakeKernel) -> Self {
        Self {
            kernel,
            config: self.config.clone(),
            barred: self.barred.clone(),
            ..on_the_fake(self.family)
        }
    }

    /// Returns text by which rules of the refused part can be recognized.
    fn part(&self, barred: RejectedPart) -> String {
        match (barred, self.family) {
            (RejectedPart::Endpoint(address), IpFamily::V6) => format!("[{address}]:"),
            _ => format!("{barred}:"),
        }
    }

    fn entries(&self, is_theirs: bool) -> Entries {
        let state = self.look();
        let mut entries = Entries::new();
        for (table, chains) in &state.tables {
            for (chain, rules) in chains {
                let is_of = |rule: &&String| rule.contains(THEIRS) == is_theirs;
                let is_built_in = !chain.starts_with("KUBE-") && !chain.contains(THEIRS);
                let mut rules: Vec<&str> = rules.iter().filter(is_of).map(String::as_str).collect();
                if SHARED.contains(&chain.as_str()) || is_built_in {
                    // The order of rules in these chains matters only for few packets, for which
                    // the verdicts are checked. So entries of these chains have no position.
                    for rule in rules.drain(..) {
                        let again = entries.entry(format!("{table:?} {rule}")).or_default();
                        again.push('|');
                    }
                }
                if chain.contains(THEIRS) == is_theirs && !is_built_in || !rules.is_empty() {
                    entries.insert(format!("{table:?} {chain}"), rules.join("\n"));
                }
            }
        }
        entries
    }
}

impl Subject for Iptables {
    fn family(&self) -> IpFamily {
        self.family
    }

    fn start(&mut self, now: Instant) -> (Box<dyn Mode>, Vec<SteppedThread>) {
        let (config, node) = (self.config.clone(), node(self.family));
        let Some(real) = &self.real else {
            return start::<2, Scheme, _>(config, node, || self.kernel.clone(), now);
        };
        let programs = real.borrow().programs();
        let kernel = || IptablesKernel::new(self.family, programs.clone());
        start::<2, Scheme, _>(config, node, kernel, now)
    }

    fn barred(&self) -> &[RejectedPart] {
        &self.barred
    }

    fn forbid(&mut self, chance: &mut Chance) -> Option<String> {
        if self.real.is_some() {
            return None;
        }
        let barred = RejectedPart::any(self.family, chance);
        let part = self.part(barred);
        if self.kernel.saved().contains(&part) || self.barred.contains(&barred) {
            return None;
        }
        self.kernel.state().refused.push(part);
        self.barred.push(barred);
        Some(format!("no rule of {barred} can be written"))
    }

    fn may_stay(&self, entry: &str) -> bool {
        // If the kernel has refused the rule that replaces a jump to this chain, the old jump
        // stays, and with it the chain.
        let chain = entry.rsplit(' ').next().unwrap_or_default();
        let target = format!(" -j {chain}");
        let state = self.kernel.state();
        let mut rules = state.tables.values().flat_map(BTreeMap::values).flatten();
        !self.barred.is_empty() && rules.any(|rule| rule.ends_with(&target))
    }

    fn is_of(&self, entry: &str, value: &str, service: &Service) -> bool {
        let name = format!("{}:", service.name);
        let addresses = service.cluster_ips.iter().chain(&service.external_ips);
        let mut addresses = addresses.chain(&service.ingress_ips);
        let mut node_ports = service.ports.iter().filter_map(|port| port.node_port);
        // A rule with an address or a NodePort of this Service counts as its entry, even if the
        // rule belongs to another Service: the former owner's rule stays until the daemon writes
        // this Service's rules.
        entry.contains(&name)
            || value.contains(&name)
            || addresses.any(|address| entry.contains(&format!("-d {address}/")))
            || node_ports.any(|port| entry.contains(&format!("--dport {port} ")))
    }

    fn is_forbidden(&self, write: &Write, _barred: &[Service]) -> bool {
        // The daemon writes this test transaction after the kernel has refused all rules.
        if write.what.lines().eq(TRIAL) {
            return !self.barred.is_empty();
        }
        let mut same = FakeKernel::new(&[]);
        same.state().clone_from(&self.kernel.state());
        let tried = same.restore(&mut |sink| sink.write_all(write.what.as_bytes()));
        tried.is_err()
    }

    fn switch(&mut self, chance: &mut Chance) -> Option<String> {
        if chance.is_one_in(2) {
            self.config.masquerade_all = !self.config.masquerade_all;
            return Some(format!("masquerade-all {}", self.config.masquerade_all));
        }
        self.config.lets_invalid_pass = !self.config.lets_invalid_pass;
        Some(format!("liberal {}", self.config.lets_invalid_pass))
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.look().addresses.clone()
    }

    fn verdicts(&self, fronts: &BTreeSet<Front>) -> Verdicts {
        let node = packets::node(self.family, self.addresses());
        // `addresses` has already read the real kernel's state into `self.kernel`.
        let rules = Xtables::of(&self.kernel.saved());
        packets::verdicts(fronts, &[&rules], &node)
    }

    fn ours(&self) -> Entries {
        self.entries(false)
    }

    fn foreign(&self) -> Entries {
        self.entries(true)
    }

    fn foreign_left(&self) -> Entries {
        self.theirs.clone()
    }

    fn damage(&mut self, chance: &mut Chance) -> Option<Damage> {
        self.change(|subject| subject.damage_state(chance))
    }

    fn change_foreign(&mut self, chance: &mut Chance) -> Option<String> {
        let what = self.change(|subject| subject.change_foreign_state(chance))?;
        self.theirs = self.entries(true);
        Some(what)
    }

    fn change_address(&mut self, chance: &mut Chance) -> Notice {
        let family = self.family;
        self.change(|subject| toggle_address(family, chance, &mut subject.kernel.state().addresses))
    }

    fn afresh(&self, model: &Model) -> FreshStart {
        let kernel = FakeKernel::new(&[]);
        kernel.state().addresses = self.addresses();
        let refused = self.kernel.state().refused.clone();
        kernel.state().refused = refused;
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
            let mut real = RealKernel::open(family)?;
            let there = FakeKernel::new(&[]);
            real.look(&there);
            set_addresses(&there.state().addresses, &addresses);
            let programs = real.programs();
            let kernel = || IptablesKernel::new(family, programs.clone());
            let pending = run_afresh::<Scheme, _>(config, node, kernel, model);
            real.look(&there);
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

impl Iptables {
    fn damage_state(&mut self, chance: &mut Chance) -> Option<Damage> {
        let untold = |what: String| Some(Damage { what, told: None });
        let which = chance.below(6);
        if which == 0 {
            self.kernel.flush();
            self.theirs = Entries::new();
            return untold("all tables are flushed".to_owned());
        }
        let mut state = self.kernel.state();
        let table = *chance.one_of(&[Table::Nat, Table::Nat, Table::Filter, Table::Mangle])?;
        let chains = state.tables.get_mut(&table)?;
        if which == 1 {
            chains.retain(|name, _| !name.starts_with("KUBE-") || name.contains(THEIRS));
            for rules in chains.values_mut() {
                rules.retain(|rule| rule.contains(THEIRS));
            }
            return untold(format!("what is ours in table {table:?} is removed"));
        }
        let names: Vec<String> = chains.keys().cloned().collect();
        let name = chance.one_of(&names)?.clone();
        // The kubelet owns this chain.
        if name == "KUBE-FIREWALL" {
            return None;
        }
        let rules = chains.get_mut(&name)?;
        if which == 2 {
            rules.retain(|rule| rule.contains(THEIRS));
            return untold(format!("chain {name} of {table:?} is flushed"));
        }
        if which == 3 && name.starts_with("KUBE-") {
            rules.push(format!("-A {name} -s {} -j RETURN", self.somebody(1)));
            return untold(format!("chain {name} of {table:?} gets a rule"));
        }
        let at = chance.index(rules.len());
        if rules.get(at).is_none_or(|rule| rule.contains(THEIRS)) {
            return None;
        }
        let rule = rules.remove(at);
        untold(format!("{rule} of {table:?} is deleted"))
    }

    fn change_foreign_state(&mut self, chance: &mut Chance) -> Option<String> {
        let mut state = self.kernel.state();
        let chains = state.tables.get_mut(&Table::Nat)?;
        self.made += 1;
        let rule = format!(
            "-A POSTROUTING -s {} -m comment --comment {THEIRS}{} -j RETURN",
            self.somebody(chance.small(9)),
            self.made
        );
        let rules = chains.get_mut("POSTROUTING")?;
        let what = if chance.is_one_in(3) {
            let at = rules.iter().position(|rule| rule.contains(THEIRS))?;
            format!("they delete {}", rules.remove(at))
        } else {
            let what = format!("they write {rule}");
            if chance.is_one_in(2) {
                rules.push(rule);
            } else {
                rules.insert(0, rule);
            }
            what
        };
        Some(what)
    }
}

impl<K: Kernel> Kernel for Turnstile<K> {
    fn clock(&self) -> Instant {
        self.gate.clock()
    }

    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        self.read("the addresses of this node", Kernel::addresses)
    }

    fn save(
        &mut self,
        table: Option<Table>,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Unreadable> {
        const PART: &str = "the iptables rules";
        match self.gate.pass(ThreadOperation::Read(PART)) {
            Permit::Go => self.kernel.save(table, line),
            // Cuts off the output of `iptables-save`.
            Permit::PassOver(which) => {
                let mut left = Chance::new(which).index(60);
                self.kernel.save(table, &mut |text| {
                    if left > 0 {
                        left -= 1;
                        line(text);
                    }
                })?;
                Err(Unreadable::new(PART, "it broke off, on purpose"))
            }
            _ => Err(Unreadable::new(PART, "on purpose")),
        }
    }

    fn restore(&mut self, text: Input<'_>) -> Result<(), Refusal> {
        let mut bytes = Vec::new();
        // Writing to a `Vec` cannot fail.
        let _ = text(&mut bytes);
        let refuse = |kind| {
            let reason = "on purpose".to_owned();
            Err(Refusal { reason, kind })
        };
        let what = String::from_utf8_lossy(&bytes).into_owned();
        match self.pass_write(what) {
            Permit::Go => self.kernel.restore(text),
            // `iptables-restore` commits, but is killed before it reports success.
            Permit::LoseDone => {
                self.kernel.restore(text)?;
                refuse(Kind::TimedOut)
            }
            Permit::Refuse(RejectionCause::Entry) => refuse(Kind::Refused),
            Permit::Refuse(_) => refuse(Kind::LockHeld),
            _ => refuse(Kind::TimedOut),
        }
    }
}
