//! The answer to a packet that has arrived.
//!
//! ```text
//!   endpoint elsewhere ─▶ PREROUTING ─ routing ─┬─▶ FORWARD ── POSTROUTING ─▶ who asked
//!                         back to who asked     │   IPVS: back to who was asked
//!                                               └─▶ INPUT ─▶ a process of this node that asked
//!   endpoint here ──────▶ OUTPUT (both) ────────────▶ POSTROUTING ─▶ who asked
//! ```
//!
//! Connection tracking translates back what chains of type nat have done: the destination where an answer
//! comes in, or is made; its source where it leaves, or ends (`nf_nat_inet_fn`). IPVS gives it the
//! virtual server's address in FORWARD, INPUT or OUTPUT (`ip_vs_out`), behind the filters. What IPVS
//! has sent without passing FORWARD is answered through it, and only if the node forwards.

use crate::branch::{Branch, End, Step};
use crate::bridge::comes_by_port;
use crate::kernel::{Kernel, Route, RouteQuestion};
use crate::outcome::{Fate, Walk};
use crate::packet::{Packet, SourceNat, Tracking};
use crate::ruleset::{Hook, Ruleset};
use crate::walk::{Begun, Walker, follow, unknown};

/// Follows the answer to a packet, from where it has arrived. It is taken to come by this node, by the
/// interface that leads to the endpoint; of a packet that nobody has got there is none.
///
/// A way whose fate is [`Fate::Forwarded`] or [`Fate::Local`] reaches who asked, as what it has asked;
/// none is [`Fate::Delivered`].
pub fn answer(arrived: &Walk, rulesets: &[&dyn Ruleset], kernel: &dyn Kernel) -> Vec<Walk> {
    let walker = Walker { rulesets, kernel };
    let Some(begun) = begin(arrived, &walker) else {
        return Vec::new();
    };
    let mut walks = follow(&walker, begun);
    let came_in = arrived.packet.iif.as_ref();
    let is_from_elsewhere = came_in.is_some_and(|iif| !iif.is_loopback());
    for walk in &mut walks {
        conclude(walk);
        if is_from_elsewhere && walk.fate == Fate::Local {
            (walk.fate, walk.presumed) = (Fate::Dropped, Fate::Dropped);
            let client = walk.packet.destination;
            walk.why = format!("this node has {client} itself, so that it stays here");
        }
    }
    walks
}

/// Whether it comes by this node where who answers and who asked are ports of one bridge: only if
/// netfilter sees what bridges carry.
pub(crate) fn crosses(packet: &Packet, kernel: &dyn Kernel) -> Option<Route> {
    let reply = packet.reply.as_ref()?;
    let iif = packet.iif.as_ref()?;
    if packet.destination != reply.client || !kernel.is_bridge(iif).ok()? {
        return None;
    }
    let route = kernel.route(&question(packet)).ok()?;
    match &route {
        // A bridge asks nobody whether the node forwards.
        Route::Out {
            interface,
            gateway: None,
            ..
        } if interface.name == iif.name => Some(route),
        _ => None,
    }
}

fn question(packet: &Packet) -> RouteQuestion {
    RouteQuestion {
        destination: packet.destination,
        source: None,
        iif: None,
        mark: packet.mark,
    }
}

fn begin(arrived: &Walk, walker: &Walker<'_>) -> Option<Begun> {
    if !matches!(arrived.fate, Fate::Delivered | Fate::Local) {
        return None;
    }
    let endpoint = arrived.endpoint?;
    let asked = &arrived.packet;
    let packet = Packet::answer_to(asked, endpoint);
    let branch = Branch::new(packet.clone());
    if asked.source_nat == Some(SourceNat::Masquerade(None)) {
        let why = "the address that it is masqueraded to is not known".to_owned();
        return Some(Err(unknown(branch, why)));
    }
    if asked.tracking == Tracking::Untracked {
        let why = "its connection is not tracked".to_owned();
        return Some(Err(unknown(branch, why)));
    }
    Some(match walker.way_to(endpoint.ip(), None, 0) {
        Ok(Route::Local { .. }) => walker.send(packet, true),
        Ok(Route::Out { interface, .. }) => {
            let mut branch = branch;
            branch.packet.iif = Some(interface);
            match passes_by(&branch.packet, walker.kernel) {
                Ok(true) => Ok((Hook::Prerouting, branch)),
                Ok(false) => {
                    branch.step(bridged_past(&branch.packet));
                    branch.end = Some(End::Dropped);
                    Err(Box::new(branch))
                }
                Err(why) => Err(unknown(branch, why)),
            }
        }
        Ok(Route::None { why, .. }) | Err(why) => Err(unknown(branch, why)),
    })
}

/// Whether netfilter sees it.
fn passes_by(packet: &Packet, kernel: &dyn Kernel) -> Result<bool, String> {
    let is_bridged = crosses(packet, kernel).is_some();
    Ok(!is_bridged || comes_by_port(packet, kernel).map_err(|unread| unread.to_string())?)
}

fn bridged_past(packet: &Packet) -> Step {
    let bridge = packet.iif.as_ref().map_or("", |iif| &iif.name);
    let client = packet.destination;
    let setting = if client.is_ipv4() {
        "iptables"
    } else {
        "ip6tables"
    };
    let says = format!(
        "the bridge {bridge} carries it straight to {client}, past this node's rules, so that it comes from \
         {} and not from {} (net.bridge.bridge-nf-call-{setting} is not 1)",
        packet.source,
        packet.original.ip()
    );
    Step::new("bridge", bridge, says)
}

/// As `nf_nat_packet` does to a packet of the reply direction.
pub(crate) fn translate_back(hook: Hook, mut branch: Branch) -> Branch {
    let packet = &mut branch.packet;
    if packet.tracking != Tracking::Established {
        return branch;
    }
    match hook {
        Hook::Prerouting | Hook::Output => packet.destination = packet.original_source,
        Hook::Input | Hook::Postrouting if packet.server.is_none() => speak_as_asked(packet),
        Hook::Input | Hook::Postrouting | Hook::Forward => {}
    }
    branch
}

/// As `ip_vs_out` does.
pub(crate) fn pass_ipvs(mut branch: Branch) -> Branch {
    if branch.packet.server.is_some() {
        speak_as_asked(&mut branch.packet);
    }
    branch
}

/// It comes from where the question was sent to.
fn speak_as_asked(packet: &mut Packet) {
    packet.source = packet.original.ip();
    packet.source_port = Some(packet.original.port());
}

/// Who asked takes nothing but an answer from whom it has asked.
fn conclude(walk: &mut Walk) {
    let packet = &walk.packet;
    let fate = match walk.presumed {
        Fate::Delivered => match &packet.oif {
            Some(_) => Fate::Forwarded,
            None => Fate::Local,
        },
        other => other,
    };
    let is_taken = packet.source == packet.original.ip()
        && packet.destination == packet.original_source
        && packet.source_port == Some(packet.original.port());
    let ended = match fate {
        Fate::Forwarded | Fate::Local if !is_taken => Fate::Dropped,
        other => other,
    };
    if ended != fate {
        walk.why = format!(
            "it arrives at {} from {}, who has asked {}",
            packet.destination, packet.source, packet.original
        );
    }
    if walk.fate != Fate::Unknown {
        walk.fate = ended;
    }
    walk.presumed = ended;
}
