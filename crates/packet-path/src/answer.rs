//! Predicts the path of an endpoint's reply to a packet.
//!
//! ```text
//!   endpoint elsewhere ─▶ PREROUTING ─ routing ─┬─▶ FORWARD ── POSTROUTING ─▶ client
//!                         towards the client    │   IPVS: source becomes the service address
//!                                               └─▶ INPUT ─▶ a client process of this node
//!   endpoint here ──────▶ OUTPUT ───────────────────▶ POSTROUTING ─▶ either client
//! ```
//!
//! - **Connection tracking** reverts the translations of nat chains (`nf_nat_inet_fn`): the reply's
//!   destination in PREROUTING and OUTPUT, and its source in POSTROUTING and INPUT.
//! - **IPVS** sets the reply's source to the virtual server's address, after the filter chains of
//!   FORWARD, INPUT or OUTPUT (`ip_vs_out`).
//! - **FORWARD**: replies to packets that IPVS has sent pass FORWARD, although the packets
//!   themselves do not. So the node must have forwarding enabled.

use crate::branch::{Branch, End, Step};
use crate::bridge::comes_by_port;
use crate::kernel::{Kernel, Route};
use crate::outcome::{Fate, Walk};
use crate::packet::{Packet, SourceNat, Tracking};
use crate::reply::crosses;
use crate::ruleset::{Hook, Ruleset};
use crate::walk::{Start, Walker, follow, unknown};

/// Follows the reply to the packet of `arrived`, from the endpoint on. Assumes that the reply
/// enters this node through the interface that leads to the endpoint. Returns no path if no
/// endpoint received the packet.
///
/// [`Fate::Forwarded`] and [`Fate::Local`] mean that the client receives a valid reply.
/// [`Fate::Delivered`] does not occur.
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

fn begin(arrived: &Walk, walker: &Walker<'_>) -> Option<Start> {
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

/// Reports whether a reply passes this node's netfilter rules. A reply that crosses a bridge from
/// port to port does so only if the bridge passes its frames to netfilter.
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

/// Drops a reply that the client would not accept: its source is not the address and port to which
/// the client sent, or its destination is not the client.
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
