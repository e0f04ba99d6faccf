//! IPVS mode as a test subject, on its fake kernel or on this machine's kernel.

mod damage;
mod gate;
mod marks;
mod real;
mod switch;
mod verdicts;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::MutexGuard;
use std::time::Instant;

use chance::Chance;
use ipnet::IpNet;
use iptables::Backend;
use proxy::{IpFamily, Mode, Model, NodeFacts, Notice, Protocol, Service, ServiceAddress};
use proxy_ipvs::fake::{FakeKernel, State};
use proxy_ipvs::{
    Config, Ipvs as Scheme, LeftoverPlace, MarkAddresses, Member, Rules, Semantics, Set, ShimStyle,
    Snapshot, VipMode, VirtualServer, VirtualServerKey,
};

use crate::cluster::{NODE, NODE_ADDRESS, at};
use crate::real::{add_bystanders, on_a_node};
use crate::stepped_threads::{ClientLocation, Front, SteppedThread, Write};
use crate::subject::{
    Damage, Entries, FreshStart, Subject, detector, run_afresh, start, toggle_address,
};
use crate::verdict::{SeenClient, Verdicts, accepted};
use marks::{mark_at, marked, marked_address};
use real::RealKernel;
use switch::EXACT;

/// Returns IPVS mode on its fake kernel as a test subject, with the flags of `form`.
pub(super) fn subject(family: IpFamily, form: &'static str) -> Box<dyn Subject> {
    Box::new(on_the_fake(family, form))
}

/// Returns IPVS mode on this machine's kernel as a test subject, with the flags of `form`, in the
/// network namespace of the calling thread.
///
/// # Errors
///
/// Returns an error if the kernel lacks a feature that the mode needs.
pub(super) fn on_the_kernel(
    family: IpFamily,
    form: &'static str,
) -> Result<Box<dyn Subject>, String> {
    let mut subject = on_the_fake(family, form);
    subject.asks_rules = false;
    subject.real = Some(RefCell::new(RealKernel::open(family, &subject.config)?));
    add_bystanders();
    Ok(Box::new(subject))
}

fn on_the_fake(family: IpFamily, form: &'static str) -> Ipvs {
    let shim = match form {
        _ if form.contains("lean") => ShimStyle::Lean,
        _ if form.contains("nftables") => ShimStyle::Nftables,
        _ => ShimStyle::Upstream,
    };
    let exact = form.contains("exact").then_some(EXACT);
    let vip_mode = match form {
        _ if form.contains("range") => VipMode::Range,
        // `--ipvs-semantics=exact` needs routes instead of bound addresses.
        _ if form.contains("route") || exact.is_some() => VipMode::Route,
        _ => VipMode::Address,
    };
    let addresses = [at(family, NODE_ADDRESS), at(family, [10, 244, 1, 254])];
    let kernel = FakeKernel::new(family, &addresses);
    kernel.state().shim = shim;
    Ipvs {
        family,
        kernel,
        config: Config {
            shim,
            vip_mode,
            service_cidrs: vec![cluster_ips(family)],
            detector: detector(family),
            semantics: exact.unwrap_or_default(),
            ..Config::default()
        },
        foreign: BTreeMap::new(),
        orphans: BTreeSet::new(),
        former: Former::default(),
        on_link: BTreeSet::new(),
        had_link: false,
        routed: match vip_mode {
            VipMode::Range => VipMode::Range,
            VipMode::Address | VipMode::Route => VipMode::Route,
        },
        exact,
        has_forbidden: false,
        asks_rules: true,
        real: None,
    }
}

/// Start of the entry names of an fwmark virtual server. It has an entry for each address whose
/// packets get its mark, and the entry's name ends with this address.
const BY_MARK: &str = "server by mark of";

/// Name of the entry that stands for all rules of the shim.
const RULES: &str = "rules";

/// Returns the range of ClusterIPs.
fn cluster_ips(family: IpFamily) -> IpNet {
    let prefix = match family {
        IpFamily::V4 => 16,
        IpFamily::V6 => 112,
    };
    IpNet::new_assert(at(family, [10, 96, 0, 0]), prefix).trunc()
}

struct Ipvs {
    family: IpFamily,
    /// The fake kernel. On a real kernel: a copy of the state that the test has last read from it.
    kernel: FakeKernel,
    config: Config,
    /// Virtual servers of other programs, as these programs last wrote them.
    foreign: BTreeMap<VirtualServerKey, VirtualServer>,
    /// Virtual servers of the daemon whose proof of ownership may be missing: another program has
    /// removed it, or the kernel has refused it.
    orphans: BTreeSet<VirtualServerKey>,
    /// Sets and rules of the former shim after a change of `--ipvs-shim`, until the daemon removes
    /// them.
    former: Former,
    /// Service addresses on the link at the last call of `told`.
    on_link: BTreeSet<IpAddr>,
    /// True if the link existed at the last call of `told`.
    had_link: bool,
    /// Value of `--ipvs-vip-mode` to which a restart may switch from [`VipMode::Address`], and
    /// back.
    routed: VipMode,
    /// Value of `--ipvs-semantics` that a restart sets or replaces. `None` if the form never
    /// changes it.
    exact: Option<Semantics>,
    /// True if the kernel always refuses a destination.
    has_forbidden: bool,
    /// True if verdicts depend on rules and sets. False on a real kernel, whose rules are too slow
    /// to read after each step.
    asks_rules: bool,
    real: Option<RefCell<RealKernel>>,
}

/// Places where the former shim has left its sets.
const FORMER_SETS: [LeftoverPlace; 2] = [LeftoverPlace::Ipsets, LeftoverPlace::OwnTable];

/// Sets with their members, the sizes of the sets, and the rules that use them.
type Former = (BTreeMap<Set, BTreeSet<Member>>, BTreeMap<Set, u32>, Rules);

impl Ipvs {
    fn foreign_key(&self, chance: &mut Chance) -> VirtualServerKey {
        let family = self.family;
        match chance.small(4) {
            // A mark of another program. With `--ipvs-semantics=exact`, the daemon could own mark
            // number 3, so this uses another.
            3 if self.exact.is_some() => VirtualServerKey::Mark { family, mark: 0x83 },
            3 => VirtualServerKey::Mark { family, mark: 3 },
            host => ServiceAddress::new(at(family, [172, 31, 0, host]), 80, Protocol::Tcp).into(),
        }
    }

    fn node(&self) -> NodeFacts {
        NodeFacts::new(self.family, NODE)
    }

    /// Returns the kernel's state. On a real kernel, reads it first, but the rules only if
    /// `takes_in_rules` is true, because reading them is slow.
    fn look(&self, takes_in_rules: bool) -> MutexGuard<'_, State> {
        let mut state = self.kernel.state();
        if let Some(real) = &self.real {
            let mut real = real.borrow_mut();
            real.look(&self.config, &mut state.snapshot, takes_in_rules);
        }
        state
    }

    /// Returns the kernel's state, with the members that the former shim's sets still have. After a
    /// restart, they are evidence of ownership as well.
    fn with_former_sets(&self) -> Snapshot {
        let state = self.look(false);
        let mut there = state.snapshot.clone();
        if is_left(&state, &FORMER_SETS) {
            for (set, members) in &self.former.0 {
                there.sets.entry(*set).or_default().extend(members);
            }
        }
        there
    }

    /// Makes another program's change in the real kernel, if there is one: from `before` to the
    /// recorded state.
    fn follow(&self, before: Option<&Snapshot>) {
        if let (Some(real), Some(before)) = (&self.real, before) {
            let state = self.kernel.state();
            real.borrow_mut()
                .follow(&self.config, before, &state.snapshot);
        }
    }

    /// Returns the virtual server without its destinations, if all of them drain and the kernel
    /// always refuses a destination. Such destinations stay until another destination works.
    fn without_stuck(&self, server: &VirtualServer) -> VirtualServer {
        let serves = server.destinations.iter().any(|real| real.weight > 0);
        let mut server = server.clone();
        if !serves && self.has_forbidden {
            server.destinations = Vec::new().into();
        }
        server
    }

    fn entries(&self, there: &Snapshot) -> Entries {
        let mut ours = Entries::new();
        let marked = marked(there);
        for (key, server) in &there.servers {
            if !self.foreign.contains_key(key) {
                let server = self.without_stuck(server);
                let is = format!("{server:?}");
                // Names the virtual server by its marked addresses, because a fresh start may
                // choose another mark. Each address has its own entry, which stays when others are
                // added or removed.
                let names = match key {
                    VirtualServerKey::Mark { mark, .. } => match marked.get(mark) {
                        Some(all) => all.iter().map(|at| format!("{BY_MARK} {at}")).collect(),
                        None => vec![format!("server without packets {:?}", server.destinations)],
                    },
                    VirtualServerKey::Address(_) => vec![format!("server {key}")],
                };
                ours.extend(names.into_iter().map(|name| (name, is.clone())));
            }
        }
        for (set, members) in &there.sets {
            for member in members {
                let name = match marked_address(member) {
                    Some((at, _)) => at.to_string(),
                    None => member.to_string(),
                };
                ours.insert(format!("member {set:?} {name}"), String::new());
            }
        }
        for address in &there.bound {
            ours.insert(format!("address {address}"), String::new());
        }
        for address in &there.bound_otherwise {
            ours.insert(
                format!("address in the other form {address}"),
                String::new(),
            );
        }
        for (net, source) in &there.ranges {
            ours.insert(format!("range {net}"), format!("{source:?}"));
        }
        if let Some(rules) = &there.rules {
            // Once the kernel always refuses a destination, hairpin members of former ones stay (see
            // `may_stay`), with their rule.
            let text = if self.has_forbidden {
                without_hairpin_rule(rules)
            } else {
                rules_text(rules)
            };
            ours.insert(RULES.to_owned(), text);
        }
        for place in there.leftovers.iter().flatten().map(|(place, _)| place) {
            ours.insert(format!("leftovers in {place:?}"), String::new());
        }
        if there.has_link {
            ours.insert("link".to_owned(), String::new());
        }
        ours
    }

    /// Returns a test subject with a copy of the recorded state, to which no daemon writes.
    fn recorded(&self, kernel: FakeKernel) -> Self {
        Self {
            kernel,
            config: self.config.clone(),
            has_forbidden: self.has_forbidden,
            asks_rules: self.asks_rules,
            ..on_the_fake(self.family, "")
        }
    }
}

impl Subject for Ipvs {
    fn family(&self) -> IpFamily {
        self.family
    }

    fn start(&mut self, now: Instant) -> (Box<dyn Mode>, Vec<SteppedThread>) {
        // Drops notifications of changes from before this start.
        self.told();
        let (config, node) = (self.config.clone(), self.node());
        if let Some(real) = &self.real {
            let process = real.borrow_mut().process(&self.config);
            return start::<4, Scheme, _>(config, node, || process.kernel(), now);
        }
        {
            let mut state = self.kernel.state();
            state.former = if is_left(&state, &FORMER_SETS) {
                self.former.0.clone()
            } else {
                BTreeMap::new()
            };
        }
        start::<4, Scheme, _>(config, node, || self.kernel.clone(), now)
    }

    fn switch(&mut self, chance: &mut Chance) -> Option<String> {
        self.switch_settings(chance)
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.look(false).snapshot.interface_addresses.clone()
    }

    fn verdicts(&self, fronts: &BTreeSet<Front>) -> Verdicts {
        let state = self.look(false);
        if self.asks_rules {
            let rules = [
                LeftoverPlace::Other(Backend::Legacy),
                LeftoverPlace::OwnTable,
            ];
            let former = is_left(&state, &rules).then_some(&self.former);
            return verdicts::verdicts(fronts, &state, former);
        }
        let there = &state.snapshot;
        let is_local = |address: &IpAddr| {
            let is_bound = there.bound.contains(address)
                || there.bound_otherwise.contains(address)
                || there.ranges.keys().any(|net| net.contains(address));
            (there.has_link && is_bound) || there.interface_addresses.contains(address)
        };
        let mut served = Verdicts::new();
        for front in fronts {
            let at = ServiceAddress::new(front.address, front.port, front.protocol);
            // For clients outside the cluster, a set may select a mark. IPVS prefers the virtual
            // server of this mark.
            let is_outside = front.from == ClientLocation::Outside;
            let mark = is_outside.then(|| mark_at(there, at)).flatten();
            let family = self.family;
            let by_mark = mark.map(|mark| VirtualServerKey::Mark { family, mark });
            let by_mark = by_mark.and_then(|key| there.servers.get(&key));
            let server = by_mark.or_else(|| there.servers.get(&at.into()));
            let Some(server) = server.filter(|_| is_local(&front.address)) else {
                continue;
            };
            let open = server.destinations.iter().filter(|real| real.weight > 0);
            let open = accepted(open.map(|real| real.target), SeenClient::Client);
            if !open.is_empty() {
                served.insert(*front, open);
            }
        }
        served
    }

    fn ours(&self) -> Entries {
        self.entries(&self.look(false).snapshot)
    }

    fn all_ours(&self) -> Entries {
        self.entries(&self.look(true).snapshot)
    }

    fn hands_over(&self) -> bool {
        true
    }

    fn refuses_in_pieces(&self) -> bool {
        // The daemon writes set members before the virtual server, because they prove its
        // ownership.
        true
    }

    fn may_close_unread(&self, part: &str) -> bool {
        part == gate::RULES_PART
    }

    fn passes_over(&mut self, which: u64) {
        // A virtual server that the daemon's read misses may lose its proof of ownership.
        let state = self.look(false);
        let at = Chance::new(which).index(state.snapshot.servers.len());
        let key = state.snapshot.servers.keys().nth(at).copied();
        drop(state);
        self.orphans.extend(key);
    }

    fn done(&mut self, write: &Write) {
        // Notes a new virtual server whose proof of ownership the kernel has refused. Its address
        // alone proves ownership only until a set has this address with another port.
        if !write.what.starts_with("add ") {
            return;
        }
        let there = self.with_former_sets();
        let ours = there.servers.keys();
        let ours = ours.filter(|key| !self.foreign.contains_key(*key));
        let unproven = ours.filter(|key| !there.says_ours(key));
        self.orphans.extend(unproven);
    }

    fn forbid(&mut self, chance: &mut Chance) -> Option<String> {
        if self.is_real() {
            return None;
        }
        let address = at(
            self.family,
            [10, 244, 1 + chance.small(2), 1 + chance.small(5)],
        );
        let mut state = self.kernel.state();
        let mut all = state.snapshot.servers.values();
        let is_there = |server: &VirtualServer| {
            let mut all = server.destinations.iter();
            all.any(|real| real.target.ip == address)
        };
        if all.any(is_there) || !state.forbidden.insert(address) {
            return None;
        }
        drop(state);
        self.has_forbidden = true;
        Some(format!("no destination can be at {address}"))
    }

    fn is_forbidden(&self, write: &Write, _barred: &[Service]) -> bool {
        if let Some(made) = write.what.strip_prefix("add virtual server ") {
            return self.unproven().iter().any(|at| at.to_string() == made);
        }
        let Some(made) = write.what.strip_prefix("add destination ") else {
            return false;
        };
        let target = made.split(' ').next().and_then(|at| at.parse().ok());
        let target = target.map(|target: SocketAddr| target.ip());
        target.is_some_and(|ip| self.kernel.state().forbidden.contains(&ip))
    }

    fn told(&mut self) -> Vec<Notice> {
        let state = self.kernel.state();
        let there = &state.snapshot;
        // The kernel sends the daemon no notifications of routes.
        let on_link = match self.config.vip_mode {
            VipMode::Address => there.bound.clone(),
            VipMode::Route | VipMode::Range => there.bound_otherwise.clone(),
        };
        let has_link = there.has_link;
        drop(state);
        let had_link = mem::replace(&mut self.had_link, has_link);
        let before = mem::replace(&mut self.on_link, on_link);
        let gone = before.difference(&self.on_link).copied();
        let mut told: Vec<Notice> = gone.map(Notice::ServiceAddressRemoved).collect();
        if had_link != has_link {
            told.push(Notice::ServiceLink);
        }
        told
    }

    fn is_told(&self, entry: &str) -> bool {
        self.config.vip_mode == VipMode::Address && entry.starts_with("address ")
    }

    fn may_stay(&self, entry: &str) -> bool {
        // If the kernel refuses all wanted destinations, the hairpin members of former destinations
        // stay.
        let is_of_former = self.has_forbidden && entry.starts_with("member LoopBack ");
        let server = entry.strip_prefix("server ");
        let is_orphan = |server| self.orphans.iter().any(|key| key.to_string() == server);
        is_of_former || server.is_some_and(is_orphan)
    }

    /// Returns true once the kernel always refuses a destination: former destinations then serve
    /// until another destination works.
    fn may_serve_former(&self) -> bool {
        self.has_forbidden
    }

    fn may_differ(&self, made: &str) -> bool {
        self.may_serve_former() && made.contains("destinations: []")
    }

    fn unproven(&self) -> BTreeSet<ServiceAddress> {
        let there = self.with_former_sets();
        let is_unproven =
            |key: &&VirtualServerKey| there.servers.contains_key(*key) && !there.says_ours(key);
        let unproven = self.orphans.iter().filter(is_unproven);
        unproven.filter_map(VirtualServerKey::address).collect()
    }

    fn beside(&self, entry: String, unproven: &BTreeSet<ServiceAddress>) -> Option<String> {
        // Skips the rules, which depend on the sets that have members. The verdicts at all other
        // frontends cover them.
        let is_of = |at: &ServiceAddress| entry == RULES || is_at(&entry, *at);
        (!unproven.iter().any(is_of)).then_some(entry)
    }

    fn may_disown(&self, entry: &str) -> bool {
        let state = self.look(false);
        let there = &state.snapshot.servers;
        let mut orphans = self.orphans.iter().filter(|key| there.contains_key(*key));
        let is_at = |key: &VirtualServerKey| key.address().is_some_and(|at| is_at(entry, at));
        !entry.starts_with("server ") && orphans.any(is_at)
    }

    fn foreign(&self) -> Entries {
        let state = self.look(false);
        let there = &state.snapshot.servers;
        let foreign = self.foreign.keys().filter_map(|key| {
            let server = there.get(key)?;
            Some((key.to_string(), format!("{server:?}")))
        });
        foreign.collect()
    }

    fn foreign_left(&self) -> Entries {
        let left = self.foreign.iter();
        left.map(|(key, server)| (key.to_string(), format!("{server:?}")))
            .collect()
    }

    fn damage(&mut self, chance: &mut Chance) -> Option<Damage> {
        let before = self.is_real().then(|| self.look(true).snapshot.clone());
        let damage = self.damage_state(chance);
        self.follow(before.as_ref());
        damage
    }

    fn change_foreign(&mut self, chance: &mut Chance) -> Option<String> {
        let before = self.is_real().then(|| self.look(true).snapshot.clone());
        let what = self.change_foreign_state(chance);
        self.follow(before.as_ref());
        Some(what)
    }

    fn change_address(&mut self, chance: &mut Chance) -> Notice {
        let before = self.look(true).snapshot.clone();
        let mut state = self.kernel.state();
        let there = &mut state.snapshot.interface_addresses;
        let notice = toggle_address(self.family, chance, there);
        drop(state);
        self.follow(Some(&before));
        notice
    }

    fn notices(&self) -> &'static [Notice] {
        &[Notice::ServiceLink, Notice::Ruleset, Notice::Anything]
    }

    fn afresh(&self, model: &Model) -> FreshStart {
        let addresses: Vec<IpAddr> = self.addresses().into_iter().collect();
        let kernel = FakeKernel::new(self.family, &addresses);
        {
            let mut state = kernel.state();
            state.shim = self.config.shim;
            state.forbidden.clone_from(&self.kernel.state().forbidden);
        }
        let config = Config {
            mark_addresses: MarkAddresses::default(),
            ..self.config.clone()
        };
        let node = self.node();
        let pending = run_afresh::<Scheme, _>(config, node, || kernel.clone(), model);
        let subject = Box::new(self.recorded(kernel));
        FreshStart { subject, pending }
    }

    fn afresh_on_same(&self, model: &Model) -> Result<FreshStart, String> {
        if self.real.is_none() {
            return Ok(self.afresh(model));
        }
        let (addresses, node) = (self.addresses(), self.node());
        let (family, config) = (self.family, self.config.clone());
        let made = on_a_node(family, || {
            let mut real = RealKernel::open(family, &config)?;
            let mut there = Snapshot::default();
            real.look(&config, &mut there, false);
            real::set_addresses(&there.interface_addresses, &addresses);
            let process = real.process(&config);
            let kernel = || process.kernel();
            let pending = run_afresh::<Scheme, _>(config.clone(), node, kernel, model);
            real.look(&config, &mut there, true);
            Ok::<_, String>((there, pending))
        })?;
        let (there, pending) = made?;
        let kernel = FakeKernel::new(family, &[]);
        kernel.state().snapshot = there;
        let subject = Box::new(self.recorded(kernel));
        Ok(FreshStart { subject, pending })
    }

    fn is_real(&self) -> bool {
        self.real.is_some()
    }
}

/// Returns true if an entry is the virtual server at this address, or may prove its ownership: the
/// address itself, or a set member with this address or port.
fn is_at(entry: &str, at: ServiceAddress) -> bool {
    let (ip, plain) = (at.address.to_string(), Member::from(at).to_string());
    let Some((kind, name)) = entry.rsplit_once(' ') else {
        return false;
    };
    match kind {
        "server" | BY_MARK => name == at.to_string(),
        "address" | "address in the other form" => name == ip,
        _ if kind.starts_with("member ") => {
            let rest = name.strip_prefix(&plain);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
                || [at.to_string(), ip, at.port.to_string()].contains(&name.to_owned())
        }
        _ => false,
    }
}

/// Returns true if the kernel still has leftovers in one of these places.
fn is_left(state: &State, places: &[LeftoverPlace]) -> bool {
    let leftovers = state.snapshot.leftovers.iter().flatten();
    let mut there = leftovers.map(|(place, _)| place);
    there.any(|place| places.contains(place))
}

fn rules_text(rules: &Rules) -> String {
    format!("{}{rules:?}", rules.restore_text(&Rules::default()))
}

/// Returns the rules without the rule that matches KUBE-LOOP-BACK.
fn without_hairpin_rule(rules: &Rules) -> String {
    let text = rules.restore_text(&Rules::default());
    let others = text
        .lines()
        .filter(|line| !line.contains("--match-set KUBE-LOOP-BACK"));
    let debug = format!("{rules:?}");
    let native = debug.split_once("native: ").map(|(_, native)| native);
    let native = native.into_iter().flat_map(|it| it.split("Rule { "));
    let native = native.filter(|rule| !rule.contains("Named(\"KUBE-LOOP-BACK"));
    others.chain(native).collect::<Vec<_>>().join("\n")
}
