//! A way that a packet has been followed on, in the words that are answered.

use std::net::SocketAddr;
use std::sync::Arc;

use packet_path::{Doubt, End, Packet, SourceNat};
use proxy::{IpFamily, Protocol};

use super::journeys::{Planned, Routing, Way};
use super::origin::{LISTENING, Met, origin};
use crate::modes::counters::Relayed;
use crate::view::{Chance, Fate, Step, Walk};

/// How the source is told that an endpoint sees as it was sent.
const KEPT: &str = "kept";

/// A way with its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Followed<'a> {
    pub(crate) packet: &'a Packet,
    pub(crate) chance: f64,
    pub(crate) end: &'a End,
    pub(crate) steps: &'a [Arc<packet_path::Step>],
    pub(crate) passed: usize,
    pub(crate) doubts: &'a [Doubt],
}

/// Who serves what comes to a listening port of the daemon.
pub(crate) type Listening<'a> = &'a dyn Fn(IpFamily, Protocol, u16) -> Option<Relayed>;

/// What ways are looked at with.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) routing: &'a dyn Routing,
    pub(crate) listening: Listening<'a>,
}

/// A way in words; several where the daemon itself goes on with it.
pub(crate) fn told(
    followed: &Followed<'_>,
    planned: &Planned<'_>,
    around: &Surroundings<'_>,
) -> Vec<Walk> {
    let mut walk = Walk {
        chance: Chance(followed.chance),
        rules_passed: followed.passed,
        doubts: followed.doubts.iter().map(doubt).collect(),
        steps: followed
            .steps
            .iter()
            .map(|step| in_view(step, planned))
            .collect(),
        ..Walk::default()
    };
    let packet = followed.packet;
    let is_sent_on = packet.destination_changed || packet.server.is_some();
    match followed.end {
        End::Dropped => walk.fate = Fate::Dropped,
        End::Refused(_) => walk.fate = Fate::Refused,
        End::Unknown(why) => {
            walk.fate = Fate::Unknown;
            if !walk
                .steps
                .last()
                .is_some_and(|last| last.says.contains(&**why))
            {
                walk.steps.push(Step {
                    place: "not understood".to_owned(),
                    says: why.clone(),
                    ..Step::default()
                });
            }
        }
        End::Local if is_listening(&walk) => return relayed(walk, packet, planned, around),
        End::Local | End::Forwarded if is_sent_on => {
            walk.fate = Fate::Delivered;
            walk.endpoint = Some(packet.to().to_string());
            see(&mut walk, packet, planned);
            walk.unanswered = unanswered(packet, planned, around);
        }
        End::Local => {
            walk.fate = Fate::Local;
            walk.endpoint = Some(packet.to().to_string());
            see(&mut walk, packet, planned);
        }
        End::Forwarded => {
            walk.fate = Fate::Forwarded;
            walk.endpoint = Some(packet.to().to_string());
            see(&mut walk, packet, planned);
        }
    }
    vec![walk]
}

fn doubt(doubt: &Doubt) -> String {
    let taken = if doubt.matches {
        "to match"
    } else {
        "not to match"
    };
    format!("{}; taken {taken}", doubt.what)
}

fn in_view(step: &packet_path::Step, planned: &Planned<'_>) -> Step {
    let met = Met {
        place: &step.place,
        entry: &step.entry,
        members: &step.members,
    };
    Step {
        place: step.place.clone(),
        entry: step.entry.clone(),
        says: step.says.clone(),
        origin: origin(&met, planned.of.as_ref()),
        packets: step.counters.map(|counted| counted.packets),
        bytes: step.counters.map(|counted| counted.bytes),
        members: step.members.clone(),
    }
}

/// Whom the endpoint sees.
fn see(walk: &mut Walk, packet: &Packet, planned: &Planned<'_>) {
    let new = match packet.source_nat {
        None => {
            walk.seen_as = Some(packet.source.to_string());
            let is_service = is_of_service(packet, planned);
            walk.source = if is_service {
                format!("{KEPT}: {}, the Service's own address", packet.source)
            } else {
                KEPT.to_owned()
            };
            return;
        }
        Some(SourceNat::To(address, _) | SourceNat::Masquerade(address)) => address,
    };
    walk.seen_as = new.map(|address| address.to_string());
    walk.source = match new {
        Some(address) if address == packet.original_source => {
            format!("masqueraded, to {address} again, and perhaps another port")
        }
        Some(address) => format!("masqueraded, to {address}"),
        None => "masqueraded, to an address of this node".to_owned(),
    };
}

/// Whether the node has sent it from the very address that it went to.
fn is_of_service(packet: &Packet, planned: &Planned<'_>) -> bool {
    let is_made = matches!(planned.sender.way, Way::Made(_));
    is_made && packet.source == planned.to.ip() && packet.destination != planned.to.ip()
}

/// Why an endpoint's answers do not come back.
fn unanswered(packet: &Packet, planned: &Planned<'_>, around: &Surroundings<'_>) -> Option<String> {
    let is_kept = packet.source_nat.is_none();
    if is_kept && packet.source == packet.destination && packet.iif.is_some() {
        return Some(format!(
            "{} sees its own address as the client's, and answers itself",
            packet.to()
        ));
    }
    if is_kept && is_of_service(packet, planned) && !is_here(packet.to(), planned, around) {
        return Some(format!(
            "{} sees the Service's own address {} as the client's, and what it answers does not come to this node",
            packet.to(),
            packet.source
        ));
    }
    None
}

/// Whether an endpoint is on this node: by its object, else by where packets to it go.
fn is_here(endpoint: SocketAddr, planned: &Planned<'_>, around: &Surroundings<'_>) -> bool {
    let known = planned.of.as_ref().and_then(|of| {
        let mut endpoints = of.endpoints();
        endpoints
            .find(|(at, _)| *at == endpoint)
            .map(|(_, endpoint)| endpoint.local)
    });
    known.unwrap_or_else(|| {
        let hop = around.routing.hop(endpoint.ip());
        hop.is_some_and(|hop| hop.is_local || hop.is_neighbour)
    })
}

/// Whether it was led to a listening port of the daemon.
fn is_listening(walk: &Walk) -> bool {
    walk.steps
        .iter()
        .any(|step| step.origin.contains(LISTENING))
}

/// What the daemon does with what comes to one of its listening ports.
fn relayed(
    mut walk: Walk,
    packet: &Packet,
    planned: &Planned<'_>,
    around: &Surroundings<'_>,
) -> Vec<Walk> {
    let at = packet.to();
    walk.endpoint = Some(at.to_string());
    walk.seen_as = Some(packet.source.to_string());
    KEPT.clone_into(&mut walk.source);
    let Some(serving) = (around.listening)(packet.family(), planned.protocol, packet.port) else {
        walk.fate = Fate::Local;
        walk.steps.push(Step {
            place: "kube-proxy".to_owned(),
            says: format!(
                "port {} of this node, where kube-proxy listens in userspace mode, if it runs: whom it connects to it alone knows",
                packet.port
            ),
            ..Step::default()
        });
        return vec![walk];
    };
    let step = |says: String| Step {
        place: "kube-proxy".to_owned(),
        entry: format!("listening port {}/{}", packet.port, planned.protocol),
        says,
        origin: format!("EndpointSlices of {}", serving.name.service),
        ..Step::default()
    };
    let is_admitted = |net: &ipnet::IpNet| net.contains(&packet.source);
    let refused = match &serving.sources {
        Some(ranges) if !ranges.iter().any(is_admitted) => Some(format!(
            "{} is in no source range of the Service",
            packet.source
        )),
        _ if serving.endpoints.is_empty() => Some("there is no endpoint to connect to".to_owned()),
        _ => None,
    };
    if let Some(why) = refused {
        (walk.fate, walk.endpoint) = (Fate::Reset, None);
        let mut says = format!("accepted, and ended at once: {why}");
        if planned.protocol != Protocol::Tcp {
            walk.fate = Fate::Dropped;
            says = format!("taken, and not answered: {why}");
        }
        walk.steps.push(step(says));
        return vec![walk];
    }
    let count = serving.endpoints.len();
    let to = |endpoint: &SocketAddr| {
        let mut walk = walk.clone();
        #[allow(clippy::cast_precision_loss, reason = "a number of endpoints")]
        let share = walk.chance.0 / count as f64;
        walk.chance = Chance(share);
        walk.fate = Fate::Delivered;
        walk.endpoint = Some(endpoint.to_string());
        walk.seen_as = None;
        walk.source =
            "masqueraded, to an address of this node: kube-proxy itself connects".to_owned();
        walk.steps.push(step(match count {
            1 => format!("connects to {endpoint}"),
            _ => format!("connects to {endpoint}, one of {count} in turn"),
        }));
        walk
    };
    serving.endpoints.iter().map(to).collect()
}

#[cfg(test)]
mod tests;
