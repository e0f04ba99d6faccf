//! The IPVS mode, on a fake kernel and on this machine's kernel.

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

/// Creates the test subject on the fake kernel: IPVS mode with the settings of this variant.
pub(super) fn subject(family: IpFamily, form: &'static str) -> Box<dyn Subject> {
    Box::new(on_the_fake(family, form))
}

/// Creates the test subject on this machine's kernel: IPVS mode with the settings of this variant,
/// in the calling thread's network namespace.
///
/// # Errors
///
/// Fails if the kernel lacks a required feature.
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
        // `--ipvs-semantics=exact` needs routes.
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

/// Prefix of the names of an fwmark virtual server. Each name ends with an address whose packets
/// get the virtual server's mark.
const BY_MARK: &str = "server by mark of";

/// Name of the entry for the shim's rules.
const RULES: &str = "rules";

/// Returns the network of the cluster IPs.
fn cluster_ips(family: IpFamily) -> IpNet {
    let prefix = match family {
        IpFamily::V4 => 16,
        IpFamily::V6 => 112,
    };
    IpNet::new_assert(at(family, [10, 96, 0, 0]), prefix).trunc()
}

struct Ipvs {
    family: IpFamily,
    /// The fake kernel, or a copy of the state that was last read from the real kernel.
    kernel: FakeKernel,
    config: Config,
    /// Virtual servers of other programs.
    foreign: BTreeMap<VirtualServerKey, VirtualServer>,
    /// Virtual servers of the daemon without a certain proof of ownership: another program may have
    /// removed the proof, or the kernel has refused the proof for a new virtual server.
    orphans: BTreeSet<VirtualServerKey>,
    /// Sets and rules of the shim before a switch, until the daemon removes them.
    former: Former,
    /// Service addresses on the link, according to the kernel's last notification.
    on_link: BTreeSet<IpAddr>,
    /// True if the link existed when the kernel last reported changes.
    had_link: bool,
    /// Alternative to [`VipMode::Address`]: a switch changes between these two values of
    /// `--ipvs-vip-mode`.
    routed: VipMode,
    /// Value of `--ipvs-semantics` that a switch sets or replaces. `None` if no switch changes the
    /// semantics.
    exact: Option<Semantics>,
    /// True once the kernel permanently refuses a destination.
    has_forbidden: bool,
    /// True if verdicts include rules and sets. On a real kernel, this is false, because the test
    /// does not read the rules after each step.
    asks_rules: bool,
    real: Option<RefCell<RealKernel>>,
}

/// Leftovers that contain the sets of the former shim.
const FORMER_SETS: [LeftoverPlace; 2] = [LeftoverPlace::Ipsets, LeftoverPlace::OwnTable];

/// Sets with their members, sizes of sets, and the rules that use the sets.
type Former = (BTreeMap<Set, BTreeSet<Member>>, BTreeMap<Set, u32>, Rules);

impl Ipvs {
    fn foreign_key(&self, chance: &mut Chance) -> VirtualServerKey {
        let family = self.family;
        match chance.small(4) {
            // Another program's mark. With exact semantics, mark 3 would be a mark of this proxy.
            3 if self.exact.is_some() => VirtualServerKey::Mark { family, mark: 0x83 },
            3 => VirtualServerKey::Mark { family, mark: 3 },
            host => ServiceAddress::new(at(family, [172, 31, 0, host]), 80, Protocol::Tcp).into(),
        }
    }

    fn node(&self) -> NodeFacts {
        NodeFacts::new(self.family, NODE)
    }

    /// Returns the kernel's present state. Includes the rules only if `takes_in_rules` is true,
    /// because reading rules is slow.
    fn look(&self, takes_in_rules: bool) -> MutexGuard<'_, State> {
        let mut state = self.kernel.state();
        if let Some(real) = &self.real {
            let mut real = real.borrow_mut();
            real.look(&self.config, &mut state.snapshot, takes_in_rules);
        }
        state
    }

    /// Returns the kernel's state with the members that are still in the sets of the former shim. A
    /// start reads these members as evidence of ownership, too.
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

    /// Applies another program's changes from the recorded state to the real kernel.
    fn follow(&self, before: Option<&Snapshot>) {
        if let (Some(real), Some(before)) = (&self.real, before) {
            let state = self.kernel.state();
            real.borrow_mut()
                .follow(&self.config, before, &state.snapshot);
        }
    }

    /// Returns the virtual server. Omits its destinations if all of them drain and the kernel
    /// permanently refuses a destination. In this state, draining destinations stay until another
    /// destination works.
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
                // A fresh start may choose another mark for the virtual server. So its names
                // contain the marked addresses, not the mark. Each address has an entry, which stays
                // when the set of addresses changes.
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
            ours.insert(RULES.to_owned(), rules_text(rules));
        }
        for place in there.leftovers.iter().flatten().map(|(place, _)| place) {
            ours.insert(format!("leftovers in {place:?}"), String::new());
        }
        if there.has_link {
            ours.insert("link".to_owned(), String::new());
        }
        ours
    }

    /// Returns a test subject with a copy of the recorded kernel state. No daemon process writes to
    /// this copy.
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
        // Drops the notifications of changes that the kernel made before this start.
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
            // A set gives a mark to packets of clients outside the cluster. IPVS first looks for a
            // virtual server of this mark.
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
        // The daemon writes set members before the virtual server, because the members prove that
        // the daemon owns the virtual server.
        true
    }

    fn passes_over(&mut self, which: u64) {
        // If the daemon's read misses a virtual server, this virtual server may lose its proof of
        // ownership.
        let state = self.look(false);
        let at = Chance::new(which).index(state.snapshot.servers.len());
        let key = state.snapshot.servers.keys().nth(at).copied();
        drop(state);
        self.orphans.extend(key);
    }

    fn done(&mut self, write: &Write) {
        // A new virtual server works even if the kernel refused the entries that prove ownership.
        // The virtual server's address alone proves ownership until a set contains this address
        // with another port.
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
        // The daemon gets no notifications of routes.
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
        // If all wanted destinations are refused, the members of the former destinations stay, too.
        let is_of_former = self.has_forbidden && entry.starts_with("member LoopBack ");
        let server = entry.strip_prefix("server ");
        let is_orphan = |server| self.orphans.iter().any(|key| key.to_string() == server);
        is_of_former || server.is_some_and(is_orphan)
    }

    /// If the kernel permanently refuses all wanted destinations of a virtual server, its former
    /// destinations serve until another destination works.
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
        // The rules depend on which sets have members, so this comparison skips the rules. The test
        // compares the effect of the rules at all other frontends.
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

/// Reports whether an entry is the virtual server at this address, or helps to prove its ownership.
/// Such entries are the address itself, and set members with its address or port.
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

/// Returns true if one of these leftovers is still in the kernel.
fn is_left(state: &State, places: &[LeftoverPlace]) -> bool {
    let leftovers = state.snapshot.leftovers.iter().flatten();
    let mut there = leftovers.map(|(place, _)| place);
    there.any(|place| places.contains(place))
}

fn rules_text(rules: &Rules) -> String {
    format!("{}{rules:?}", rules.restore_text(&Rules::default()))
}
