//! Follows a packet from hook to hook, on every path that it may take.
//!
//! ```text
//!            ┌───────────┐ routing ┌───────┐
//!  from ────▶│PREROUTING ├───┬────▶│INPUT  ├─▶ IPVS ──▶ a process of this node
//!  outside   └───────▲───┘   │     └───────┘    │
//!                    │lo     │     ┌───────┐    │     ┌───────────┐
//!                    │       └────▶│FORWARD├────┼────▶│POSTROUTING├──▶ leaves, or returns by lo
//!                    │             └───────┘    │     └────▲──────┘
//!                    └──────────────────────────┼──────────┤
//!  from this node ── routing ──▶ OUTPUT ◀───────┘          │
//!                                  └─ IPVS ── routed again ┘
//! ```

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use inet::{IpFamily, Protocol};

use crate::branch::{Branch, Doubt, End, MOST_BRANCHES, Step};
use crate::ipvs::{self, AfterIpvs};
use crate::kernel::{Kernel, Route, RouteQuestion};
use crate::outcome::{self, Walk};
use crate::packet::{Interface, Packet, Tracking};
use crate::reply;
use crate::ruleset::{Base, ChainKind, Hook, Ruleset};

/// Priority of connection tracking (`NF_IP_PRI_CONNTRACK`).
const TRACKING: i32 = -200;
/// Priority of the kernel's destination NAT (`NF_IP_PRI_NAT_DST`).
const NAT_DESTINATION: i32 = -100;
/// Priority of the kernel's source NAT (`NF_IP_PRI_NAT_SRC`).
const NAT_SOURCE: i32 = 100;
/// Number of paths above which the walk joins paths with equal packets at the same hook.
const JOINED_ABOVE: usize = 64;
/// Maximum number of hooks on a path. A longer path counts as a loop in the rules.
///
/// A path that returns through `lo` has eight hooks: PREROUTING, INPUT, OUTPUT and POSTROUTING,
/// each twice.
const MOST_HOOKS: usize = 12;

/// A flow whose first packet a walk follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Protocol of the flow.
    pub protocol: Protocol,
    /// Sender of the flow's first packet.
    pub from: Sender,
    /// Destination address and port of the flow.
    pub to: SocketAddr,
    /// Source port, or `None` for any ephemeral port, which is usual.
    pub source_port: Option<u16>,
}

/// Sender of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sender {
    /// This node, from this address. With `None`, the kernel chooses the source address.
    Node(Option<IpAddr>),
    /// A pod or another host: its address, and the interface on which its packets arrive. With
    /// `None`, they arrive on the interface of the route to the address.
    Other(IpAddr, Option<Interface>),
}

/// Follows the first packet of a flow, and returns every path that it may take.
pub fn walk(question: &Question, rulesets: &[&dyn Ruleset], kernel: &dyn Kernel) -> Vec<Walk> {
    let walker = Walker { rulesets, kernel };
    follow(&walker, walker.begin(question))
}

/// Start of a path: its first hook and branch, or only the branch if the path ends before the first
/// hook.
pub(crate) type Start = Result<(Hook, Branch), Box<Branch>>;

/// Follows all paths of a packet to their ends, and returns the outcomes.
pub(crate) fn follow(walker: &Walker<'_>, begun: Start) -> Vec<Walk> {
    let mut done = Vec::new();
    let mut under_way = match begun {
        Ok(begun) => vec![begun],
        Err(ended) => {
            done.push(*ended);
            Vec::new()
        }
    };
    for _ in 0..MOST_HOOKS {
        if under_way.is_empty() {
            break;
        }
        let mut next = Vec::new();
        for (stage, branch) in under_way {
            for (stage, branch) in walker.advance(stage, branch) {
                if branch.end.is_some() {
                    done.push(branch);
                } else {
                    next.push((stage, branch));
                }
            }
        }
        under_way = if next.len() > JOINED_ABOVE {
            joined(next)
        } else {
            next
        };
        bound(&mut under_way, &mut done);
    }
    for (_, mut branch) in under_way {
        branch.end = Some(End::Unknown("the rules form a loop".to_owned()));
        done.push(branch);
    }
    outcome::settle(done)
}

/// Replaces all paths beyond [`MOST_BRANCHES`] by one path with unknown fate.
fn bound(under_way: &mut Vec<(Hook, Branch)>, done: &mut Vec<Branch>) {
    if under_way.len() <= MOST_BRANCHES {
        return;
    }
    let mut rest = under_way.split_off(MOST_BRANCHES).into_iter();
    if let Some((_, mut first)) = rest.next() {
        first.chance += rest.map(|(_, branch)| branch.chance).sum::<f64>();
        let why = format!("more than {MOST_BRANCHES} ways that it may go are not followed");
        first.end = Some(End::Unknown(why));
        done.push(first);
    }
}

/// Joins branches with equal packets at the same hook, and adds up their probabilities.
fn joined(ways: Vec<(Hook, Branch)>) -> Vec<(Hook, Branch)> {
    let mut places: HashMap<(u32, Packet, Vec<Doubt>), usize> = HashMap::new();
    let mut kept: Vec<(Hook, Branch)> = Vec::new();
    for (hook, branch) in ways {
        let key = (hook as u32, branch.packet.clone(), branch.doubts.clone());
        if let Some((_, same)) = places.get(&key).and_then(|place| kept.get_mut(*place)) {
            same.chance += branch.chance;
        } else {
            places.insert(key, kept.len());
            kept.push((hook, branch));
        }
    }
    kept
}

/// A step that the kernel makes for a packet at a hook.
enum HookStep<'a> {
    Chain(&'a dyn Ruleset, Base),
    Tracking,
    /// The kernel's own NAT, which calls these chains.
    Nat(Vec<(&'a dyn Ruleset, Base)>),
    Ipvs,
}

pub(crate) struct Walker<'a> {
    pub(crate) rulesets: &'a [&'a dyn Ruleset],
    pub(crate) kernel: &'a dyn Kernel,
}

impl<'a> Walker<'a> {
    /// Creates the packet, and finds the first hook on its path.
    fn begin(&self, question: &Question) -> Start {
        let to = question.to;
        let protocol = question.protocol.number();
        let packet = |source| {
            let mut packet = Packet::new(protocol, source, to.ip(), to.port());
            packet.source_port = question.source_port;
            packet
        };
        let unspecified = match IpFamily::of(to.ip()) {
            IpFamily::V4 => IpAddr::from([0; 4]),
            IpFamily::V6 => IpAddr::from([0; 16]),
        };
        match &question.from {
            Sender::Other(address, iif) => {
                let mut branch = Branch::new(packet(*address));
                let iif = match iif {
                    Some(given) => given.clone(),
                    None => match self.way_to(*address, None, 0) {
                        Ok(Route::Out { interface, .. }) => interface,
                        Ok(Route::Local { .. }) => return self.send(packet(*address), true),
                        Ok(Route::None { why, .. }) => {
                            let why = format!("the interface of {address} is unknown: {why}");
                            return Err(unknown(branch, why));
                        }
                        Err(unread) => return Err(unknown(branch, unread)),
                    },
                };
                branch.packet.iif = Some(iif);
                // The kernel receives packets with priority 0, except on a VLAN interface with an
                // ingress map (`ip link ... type vlan ingress-qos-map`).
                branch.packet.priority = Some(0);
                Ok((Hook::Prerouting, branch))
            }
            Sender::Node(source) => {
                self.send(packet(source.unwrap_or(unspecified)), source.is_some())
            }
        }
    }

    /// Routes a packet of this node. If `is_chosen` is false, the route decides its source address.
    pub(crate) fn send(&self, packet: Packet, is_chosen: bool) -> Start {
        let chosen = is_chosen.then_some(packet.source);
        let mut branch = Branch::new(packet);
        let found = self.way_to(branch.packet.destination, chosen, 0);
        let (interface, source) = match found {
            Err(unread) => return Err(unknown(branch, unread)),
            Ok(Route::None { why, .. }) => {
                branch.step(Step::new("routing", "", format!("cannot be sent: {why}")));
                branch.end = Some(End::Unrouted(why));
                return Err(Box::new(branch));
            }
            Ok(route) => {
                let to = branch.packet.destination;
                branch.step(Step::new("routing", listed(to, &route), said(&route)));
                leaving_by(route)
            }
        };
        if let Some(source) = source.filter(|_| !is_chosen) {
            branch.packet.source = source;
            branch.packet.original_source = source;
        }
        branch.packet.oif = Some(interface);
        Ok((Hook::Output, branch))
    }

    pub(crate) fn way_to(
        &self,
        destination: IpAddr,
        source: Option<IpAddr>,
        mark: u32,
    ) -> Result<Route, String> {
        let question = RouteQuestion {
            destination,
            source,
            iif: None,
            mark,
        };
        self.kernel
            .route(&question)
            .map_err(|unread| unread.to_string())
    }

    /// Moves a packet through a hook. Returns the resulting branches, each with its next hook.
    fn advance(&self, hook: Hook, branch: Branch) -> Vec<(Hook, Branch)> {
        let (before, mark) = (branch.packet.to().ip(), branch.packet.mark);
        let ways = self.through(hook, branch);
        let next = ways.into_iter().map(|passed| match passed {
            AfterIpvs::Leaves(branch) => (Hook::Output, branch),
            AfterIpvs::Stays(branch) if branch.end.is_some() => (hook, branch),
            AfterIpvs::Stays(branch) => match hook {
                Hook::Prerouting => self.route_in(branch),
                Hook::Input => ended(hook, branch, End::Local),
                Hook::Forward => (Hook::Postrouting, branch),
                Hook::Output => {
                    let is_new = branch.packet.destination != before || branch.packet.mark != mark;
                    (
                        Hook::Postrouting,
                        if is_new {
                            self.route_anew(branch)
                        } else {
                            branch
                        },
                    )
                }
                Hook::Postrouting => self.leave(branch),
            },
        });
        next.collect()
    }

    /// Moves a packet through all steps of a hook, in the kernel's order.
    fn through(&self, hook: Hook, branch: Branch) -> Vec<AfterIpvs> {
        let (mut here, mut gone) = (vec![branch], Vec::new());
        for stop in self.stops(hook) {
            for branch in std::mem::take(&mut here) {
                if branch.end.is_some() {
                    here.push(branch);
                    continue;
                }
                match &stop {
                    HookStep::Tracking => here.push(track(branch)),
                    HookStep::Nat(_) if branch.packet.reply.is_some() => {
                        here.push(reply::translate_back(hook, branch));
                    }
                    HookStep::Ipvs if branch.packet.reply.is_some() => {
                        here.push(reply::pass_ipvs(branch));
                    }
                    HookStep::Chain(ruleset, base) => {
                        here.extend(ruleset.walk(base, branch, self.kernel));
                    }
                    HookStep::Nat(chains) => here.extend(self.translate(hook, chains, branch)),
                    HookStep::Ipvs => {
                        for passed in ipvs::pass(branch, self.kernel) {
                            match passed {
                                AfterIpvs::Stays(branch) => here.push(branch),
                                leaves @ AfterIpvs::Leaves(_) => gone.push(leaves),
                            }
                        }
                    }
                }
            }
        }
        gone.extend(here.into_iter().map(AfterIpvs::Stays));
        gone
    }

    fn stops(&self, hook: Hook) -> Vec<HookStep<'a>> {
        let mut stops: Vec<(i32, HookStep<'a>)> = Vec::new();
        if matches!(hook, Hook::Prerouting | Hook::Output) {
            stops.push((TRACKING, HookStep::Tracking));
        }
        let mut nat = Vec::new();
        for ruleset in self.rulesets {
            for base in ruleset.base_chains(hook) {
                if base.kind == ChainKind::Nat {
                    nat.push((*ruleset, base));
                } else {
                    stops.push((base.priority, HookStep::Chain(*ruleset, base)));
                }
            }
        }
        nat.sort_by_key(|(_, base)| base.priority);
        let at = if is_of_destination(hook) {
            NAT_DESTINATION
        } else {
            NAT_SOURCE
        };
        if hook != Hook::Forward {
            stops.push((at, HookStep::Nat(nat)));
        }
        stops.extend(ipvs::priority(hook).map(|priority| (priority, HookStep::Ipvs)));
        stops.sort_by_key(|(priority, _)| *priority);
        stops.into_iter().map(|(_, stop)| stop).collect()
    }

    /// Calls nat chains until one of them decides the translation, like the kernel's
    /// `nf_nat_inet_fn`.
    fn translate(
        &self,
        hook: Hook,
        chains: &[(&'a dyn Ruleset, Base)],
        branch: Branch,
    ) -> Vec<Branch> {
        let is_for_destination = is_of_destination(hook);
        let is_settled = |branch: &Branch| {
            let packet = &branch.packet;
            let is_settled = if is_for_destination {
                packet.destination_settled
            } else {
                packet.source_settled
            };
            branch.end.is_some() || is_settled || packet.tracking != Tracking::New
        };
        let mut ways = vec![branch];
        for (ruleset, base) in chains {
            let mut next = Vec::new();
            for branch in ways {
                if is_settled(&branch) {
                    next.push(branch);
                    continue;
                }
                let before = branch.packet.to();
                for mut branch in ruleset.walk(base, branch, self.kernel) {
                    if branch.packet.to() != before {
                        // A translation ends the walk through the chains, so it is the last step.
                        branch.redirected_by = branch.steps.last().cloned();
                    }
                    next.push(branch);
                }
            }
            ways = next;
        }
        for branch in &mut ways {
            if branch.packet.tracking == Tracking::New {
                if is_for_destination {
                    branch.packet.destination_settled = true;
                } else {
                    branch.packet.source_settled = true;
                }
            }
        }
        ways
    }

    /// Routes a packet that has passed PREROUTING.
    fn route_in(&self, mut branch: Branch) -> (Hook, Branch) {
        let packet = &branch.packet;
        let question = RouteQuestion {
            destination: packet.destination,
            source: Some(packet.source),
            iif: packet.iif.clone(),
            mark: packet.mark,
        };
        let route = if packet.iif.as_ref().is_some_and(Interface::is_loopback) {
            // A packet that arrives on the loopback interface is for this node, and keeps its
            // earlier route.
            Ok(Route::Local { source: None })
        } else if let Some(bridge) = reply::crosses(packet, self.kernel) {
            Ok(bridge)
        } else {
            self.kernel.route(&question)
        };
        let to = packet.destination;
        match route {
            Err(unread) => ended(Hook::Prerouting, branch, End::Unknown(unread.to_string())),
            Ok(Route::None { why, is_told: true }) => {
                branch.step(Step::new(
                    "routing",
                    "",
                    format!("cannot be sent on: {why}"),
                ));
                ended(Hook::Prerouting, branch, End::Unrouted(why))
            }
            Ok(Route::None { why, .. }) => {
                branch.step(Step::new("routing", "", format!("dropped: {why}")));
                ended(Hook::Prerouting, branch, End::Dropped)
            }
            Ok(route) => {
                branch.step(Step::new("routing", listed(to, &route), said(&route)));
                match route {
                    Route::Out { interface, .. } => {
                        branch.packet.oif = Some(interface);
                        (Hook::Forward, branch)
                    }
                    Route::Local { .. } | Route::None { .. } => (Hook::Input, branch),
                }
            }
        }
    }

    /// Routes a packet of this node again after OUTPUT, because its destination or mark has
    /// changed.
    fn route_anew(&self, mut branch: Branch) -> Branch {
        let packet = &branch.packet;
        let found = self.way_to(packet.destination, Some(packet.source), packet.mark);
        match found {
            Err(why) => branch.end = Some(End::Unknown(why)),
            Ok(Route::None { why, .. }) => {
                branch.step(Step::new("routing", "", format!("dropped: {why}")));
                branch.end = Some(End::Dropped);
            }
            Ok(route) => {
                let to = packet.destination;
                branch.step(Step::new("routing", listed(to, &route), said(&route)));
                branch.packet.oif = Some(leaving_by(route).0);
            }
        }
        branch
    }

    /// Decides where a packet goes after POSTROUTING.
    fn leave(&self, mut branch: Branch) -> (Hook, Branch) {
        let packet = &mut branch.packet;
        if packet.oif.as_ref().is_some_and(Interface::is_loopback) {
            packet.iif = packet.oif.take();
            return (Hook::Prerouting, branch);
        }
        if packet.original_source.is_loopback() && packet.reply.is_none() {
            return match self.answer_to_localhost(&branch.packet) {
                Ok(true) => ended(Hook::Postrouting, branch, End::Forwarded),
                Ok(false) => {
                    let says = "leaves, but its answer would be dropped: nobody may send to a \
                                loopback address \
                                from outside (net.ipv4.conf.all.route_localnet is 0)";
                    branch.step(Step::new("routing", "", says));
                    ended(Hook::Postrouting, branch, End::Dropped)
                }
                Err(why) => ended(Hook::Postrouting, branch, End::Unknown(why)),
            };
        }
        ended(Hook::Postrouting, branch, End::Forwarded)
    }

    /// Reports whether a reply from another host can reach a loopback address of this node.
    fn answer_to_localhost(&self, packet: &Packet) -> Result<bool, String> {
        if packet.family() == IpFamily::V6 {
            return Ok(false);
        }
        let by = packet.oif.as_ref().map_or("", |oif| &oif.name);
        for interface in ["all", by] {
            let name = format!("net/ipv4/conf/{interface}/route_localnet");
            let value = self
                .kernel
                .setting(&name)
                .map_err(|unread| unread.to_string())?;
            if value.is_some_and(|value| value == "1") {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn is_of_destination(hook: Hook) -> bool {
    matches!(hook, Hook::Prerouting | Hook::Output)
}

fn track(mut branch: Branch) -> Branch {
    if branch.packet.tracking == Tracking::NotYet {
        branch.packet.tracking = match branch.packet.reply {
            None => Tracking::New,
            Some(_) => Tracking::Established,
        };
    }
    branch
}

fn ended(hook: Hook, mut branch: Branch, end: End) -> (Hook, Branch) {
    branch.end = Some(end);
    (hook, branch)
}

pub(crate) fn unknown(mut branch: Branch, why: String) -> Box<Branch> {
    branch.end = Some(End::Unknown(why));
    Box::new(branch)
}

/// Returns the output interface of a route, and the source address that the kernel would choose.
fn leaving_by(route: Route) -> (Interface, Option<IpAddr>) {
    match route {
        Route::Out {
            interface, source, ..
        } => (interface, source),
        Route::Local { source } => (Interface::loopback(), source),
        Route::None { .. } => (Interface::loopback(), None),
    }
}

/// Formats a route like `ip route get`.
fn listed(to: IpAddr, route: &Route) -> String {
    match route {
        Route::Local { .. } => format!("local {to}"),
        Route::Out {
            interface,
            gateway: Some(gateway),
            ..
        } => format!("{to} via {gateway} dev {}", interface.name),
        Route::Out { interface, .. } => format!("{to} dev {}", interface.name),
        Route::None { why, .. } => format!("{to}: {why}"),
    }
}

fn said(route: &Route) -> String {
    match route {
        Route::Local { .. } => "is for this node itself".to_owned(),
        Route::Out { interface, .. } => format!("leaves by {}", interface.name),
        Route::None { why, .. } => why.clone(),
    }
}
