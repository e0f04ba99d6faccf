//! Converts a traced path to the texts of a response.

use std::net::SocketAddr;

use footprint::Footprints;
use footprint::origin::LISTENING;
use packet_path::{Doubt, Packet, Source};
use proxy::{IpFamily, Protocol};
use service_counters::RelayedPort;
use view::{AddressKind, Chance, Fate, Step, Walk};

use super::answer::{self, EndpointReplies};
use super::journeys::{EndpointIndex, TracedPacket};
use super::origin::{PathStep, origin};

/// Text for the source that an endpoint sees if the relay of kube-proxy connects to it.
const BY_RELAY: &str = "masqueraded, to an address of this node: kube-proxy itself connects";
/// Text for a source address that the endpoint sees unchanged.
const KEPT: &str = "kept";
/// Name of the last step if the packet ends on this node and no Service has its destination
/// address.
pub(crate) const THIS_NODE: &str = "this node itself";

/// Function that returns the Service port for which the daemon itself listens on a port of this
/// node, or `None` if there is none.
pub type Listening<'a> = &'a dyn Fn(IpFamily, Protocol, u16) -> Option<RelayedPort>;

/// Inputs for the conversion of a traced path to texts.
#[derive(Clone, Copy)]
pub(crate) struct TextInputs<'a> {
    pub(crate) kernel: &'a dyn EndpointReplies,
    pub(crate) listening: Listening<'a>,
    /// Modes that may have written the kernel's entries.
    pub(crate) modes: Footprints,
    /// Endpoints of the traced packet's Service port.
    pub(crate) endpoints: &'a EndpointIndex<'a>,
}

/// Converts a traced path to paths of a response: one or, if the daemon relays the connection, one
/// for each endpoint.
pub(crate) fn told(
    followed: &packet_path::Walk,
    planned: &TracedPacket<'_>,
    around: &TextInputs<'_>,
) -> Vec<Walk> {
    use packet_path::Fate as Found;

    let packet = &followed.packet;
    let steps = followed.steps.iter();
    let mut walk = Walk {
        chance: Chance(followed.chance),
        fate: match followed.fate {
            Found::Delivered => Fate::Delivered,
            Found::Refused => Fate::Refused,
            Found::Unrouted => Fate::Unrouted,
            Found::Dropped => Fate::Dropped,
            Found::Local => Fate::Local,
            Found::Forwarded => Fate::Forwarded,
            Found::Unknown => Fate::Unknown,
        },
        endpoint: followed.endpoint.map(|at| at.to_string()),
        rules_passed: followed.passed,
        doubts: followed.doubts.iter().map(doubt).collect(),
        steps: steps
            .map(|step| in_view(step, planned, around.modes))
            .collect(),
        ..Walk::default()
    };
    match walk.fate {
        Fate::Delivered | Fate::Local if is_listening(&walk) => {
            answer::follow(&mut walk, followed, planned, around);
            return relayed(walk, packet, planned, around);
        }
        Fate::Delivered => {
            see(&mut walk, followed, planned);
            answer::follow(&mut walk, followed, planned, around);
        }
        Fate::Local if is_relayed_on_localhost(packet, planned, around) => {
            return relayed(walk, packet, planned, around);
        }
        Fate::Local => {
            see(&mut walk, followed, planned);
            listened(&mut walk, followed, planned, around);
        }
        Fate::Forwarded => see(&mut walk, followed, planned),
        Fate::Unknown => {
            let why = &followed.why;
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
        Fate::Refused | Fate::Unrouted | Fate::Dropped | Fate::Reset => {}
    }
    vec![walk]
}

/// Finds out whether a process on this node receives the packet, and adds the result to the path.
fn listened(
    walk: &mut Walk,
    followed: &packet_path::Walk,
    planned: &TracedPacket<'_>,
    around: &TextInputs<'_>,
) {
    let at = followed.packet.to();
    match around.kernel.listens(at, planned.protocol) {
        Ok(true) => answer::follow(walk, followed, planned, around),
        Ok(false) => {
            (walk.fate, walk.endpoint) = (Fate::Refused, None);
            (walk.source, walk.seen_as) = (String::new(), None);
            walk.steps.push(Step {
                place: THIS_NODE.to_owned(),
                says: format!("refused: no process listens at {at}/{}", planned.protocol),
                ..Step::default()
            });
        }
        Err(why) => {
            walk.unsure = Some(format!(
                "whether a process listens at {at}/{} is unknown: {why}",
                planned.protocol
            ));
        }
    }
}

fn doubt(doubt: &Doubt) -> String {
    let taken = if doubt.matches {
        "to match"
    } else {
        "not to match"
    };
    format!("{}; taken {taken}", doubt.what)
}

pub(super) fn in_view(
    step: &packet_path::Step,
    planned: &TracedPacket<'_>,
    modes: Footprints,
) -> Step {
    let met = PathStep {
        place: &step.place,
        entry: &step.entry,
        members: &step.members,
    };
    Step {
        place: step.place.clone(),
        entry: step.entry.clone(),
        says: step.says.clone(),
        origin: origin(&met, planned.of.as_ref(), modes),
        packets: step.counters.map(|counted| counted.packets),
        bytes: step.counters.map(|counted| counted.bytes),
        members: step.members.clone(),
    }
}

/// Adds to a path the source address that the endpoint sees.
fn see(walk: &mut Walk, followed: &packet_path::Walk, planned: &TracedPacket<'_>) {
    let packet = &followed.packet;
    let (new, how) = match source(followed, planned) {
        Source::Kept => {
            walk.seen_as = Some(packet.source.to_string());
            KEPT.clone_into(&mut walk.source);
            return;
        }
        Source::ServiceAddress => {
            walk.seen_as = Some(packet.source.to_string());
            walk.source = format!("{KEPT}: {}, the Service's own address", packet.source);
            return;
        }
        Source::Masqueraded(address) => (address, "masqueraded"),
        Source::Rewritten(address) => (address, "rewritten"),
    };
    walk.seen_as = new.map(|address| address.to_string());
    walk.source = match new {
        Some(address) => format!("{how}, to {address}"),
        None => format!("{how}, to an address of this node"),
    };
}

/// Returns the source that the endpoint sees. At a NodePort, or without a Service, the destination
/// address belongs to the node, so the result is never [`Source::ServiceAddress`].
pub(super) fn source(followed: &packet_path::Walk, planned: &TracedPacket<'_>) -> Source {
    let of = planned.of.as_ref().map(|of| of.address.kind);
    match followed.source {
        Source::ServiceAddress if matches!(of, None | Some(AddressKind::NodePort)) => Source::Kept,
        source => source,
    }
}

/// Reports whether a path ends at a port on which the daemon itself listens.
fn is_listening(walk: &Walk) -> bool {
    walk.steps
        .iter()
        .any(|step| step.origin.contains(LISTENING))
}

/// Reports whether the packet goes to a NodePort on localhost that the daemon's relay serves.
fn is_relayed_on_localhost(
    packet: &Packet,
    planned: &TracedPacket<'_>,
    around: &TextInputs<'_>,
) -> bool {
    let family = packet.family();
    packet.destination == family.localhost()
        && (around.listening)(family, planned.protocol, packet.port).is_some()
}

/// Returns the paths of a connection that the daemon's relay accepts, one for each endpoint.
/// Returns a single path if the endpoints are unknown, or if the relay rejects the connection.
fn relayed(
    mut walk: Walk,
    packet: &Packet,
    planned: &TracedPacket<'_>,
    around: &TextInputs<'_>,
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
                "port {} of this node, where kube-proxy listens in userspace mode: only its \
                 process knows the endpoint",
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
        BY_RELAY.clone_into(&mut walk.source);
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
