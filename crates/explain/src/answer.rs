//! Predicts whether an endpoint's reply returns to the client.
//!
//! ```text
//!   does the reply pass this node? ──no──▶ unanswered       unknown ──▶ unsure
//!              │ yes
//!              ▼
//!   packet_path::answer ─▶ all paths of the reply arrive
//!              │
//!              ├─ some paths are dropped ──▶ unsure
//!              └─ all paths are dropped ──▶ unanswered
//! ```

use std::net::SocketAddr;

use footprint::Footprints;
use packet_path::{Fate, Source};
use proxy::Protocol;
use view::{Step, Walk};

use super::journeys::{PacketOrigin, Routing, TracedPacket};
use super::origin::NOT_OURS;
use super::walk_text::{TextInputs, in_view, source};

/// Interface to the kernel's state that decides the paths of replies.
pub(crate) trait EndpointReplies: Routing {
    /// Returns every path through this node that the reply to the packet of `arrived` may take.
    fn answers(&self, arrived: &packet_path::Walk) -> Vec<packet_path::Walk>;

    /// Reports whether a process on this node listens at an address.
    ///
    /// # Errors
    ///
    /// Fails with the reason if the list of sockets cannot be read.
    fn listens(&self, at: SocketAddr, protocol: Protocol) -> Result<bool, String>;
}

/// Predicts whether the reply to a delivered packet returns to the client, and adds the prediction
/// to `walk`.
pub(crate) fn follow(
    walk: &mut Walk,
    followed: &packet_path::Walk,
    planned: &TracedPacket<'_>,
    around: &TextInputs<'_>,
) {
    walk.unanswered = never_back(followed, planned, around);
    if walk.unanswered.is_some() {
        return;
    }
    walk.unsure = elsewhere(followed, planned, around);
    if walk.unsure.is_some() {
        return;
    }
    let ways = around.kernel.answers(followed);
    let mut failing = ways.iter().filter(|way| !arrives(way));
    let Some(first) = failing.next() else {
        walk.answer = ways
            .first()
            .map_or_else(Vec::new, |way| steps(way, planned, around.modes));
        return;
    };
    walk.answer = steps(first, planned, around.modes);
    let said = said(first, &walk.answer);
    let is_certain = ways
        .iter()
        .all(|way| !arrives(way) && way.fate != Fate::Unknown);
    if is_certain {
        walk.unanswered = Some(said);
    } else {
        walk.unsure = Some(said);
    }
}

fn arrives(way: &packet_path::Walk) -> bool {
    matches!(way.fate, Fate::Local | Fate::Forwarded)
}

fn steps(way: &packet_path::Walk, planned: &TracedPacket<'_>, modes: Footprints) -> Vec<Step> {
    way.steps
        .iter()
        .map(|step| in_view(step, planned, modes))
        .collect()
}

/// Returns the reason why the reply on the path `way` does not arrive.
fn said(way: &packet_path::Walk, steps: &[Step]) -> String {
    if way.fate == Fate::Unknown {
        return format!("the fate of its reply is unknown: {}", way.why);
    }
    if !way.why.is_empty() && way.fate == Fate::Dropped {
        return format!("its answer is not taken: {}", way.why);
    }
    let Some(last) = steps.last() else {
        return "its answer is dropped here".to_owned();
    };
    let says = last.says.strip_prefix("dropped: ").unwrap_or(&last.says);
    let entry = match &*last.entry {
        "" => format!(": {says}"),
        entry => format!(" (`{entry}`)"),
    };
    let whose = match &*last.origin {
        origin if origin.starts_with(NOT_OURS) => format!(", {origin}"),
        _ => String::new(),
    };
    format!("its answer is dropped by {}{entry}{whose}", last.place)
}

/// Returns the reason why the endpoint's reply can never reach the client, or `None` if it may.
fn never_back(
    followed: &packet_path::Walk,
    planned: &TracedPacket<'_>,
    around: &TextInputs<'_>,
) -> Option<String> {
    let (endpoint, address) = (followed.endpoint?, followed.packet.source);
    match source(followed, planned) {
        Source::Kept
            if address == endpoint.ip()
                && matches!(planned.sender.way, PacketOrigin::Comes(..)) =>
        {
            Some(format!(
                "{endpoint} sees its own address as the client's, and answers itself"
            ))
        }
        Source::ServiceAddress if !is_here(endpoint, around) => Some(format!(
            "{endpoint} sees the Service's own address {address} as the client, and its replies \
             do not reach this node"
        )),
        _ => None,
    }
}

/// Returns the reason why the reply may bypass this node, or `None` if it certainly passes this
/// node.
fn elsewhere(
    followed: &packet_path::Walk,
    planned: &TracedPacket<'_>,
    around: &TextInputs<'_>,
) -> Option<String> {
    let endpoint = followed.endpoint?;
    let client = match source(followed, planned) {
        // The endpoint sees an address of this node as the source, so its reply passes this node.
        Source::Masqueraded(_) | Source::ServiceAddress => return None,
        Source::Kept | Source::Rewritten(_) => followed.packet.source,
    };
    let is_local = around.kernel.hop(client).is_some_and(|hop| hop.is_local);
    if is_local || is_here(endpoint, around) {
        return None;
    }
    // If sender and endpoint are on the same interface, the endpoint's reply may go directly to the
    // sender and bypass this node's rules.
    let by = around.kernel.hop(endpoint.ip()).map(|hop| hop.interface);
    let is_between = match &planned.sender.way {
        PacketOrigin::Made(_) => true,
        PacketOrigin::Comes(interface, _) => by.is_none_or(|by| by != *interface),
    };
    if planned.sender.is_here && is_between {
        return None;
    }
    Some(format!(
        "the endpoint is on another node and replies to {client} directly: {client} accepts the \
         reply only if it passes this node and so comes from {}",
        followed.packet.original
    ))
}

/// Reports whether an endpoint is on this node, according to its EndpointSlice. If the EndpointSlice
/// has no `nodeName` for the endpoint, or no EndpointSlice lists the endpoint, its route decides.
fn is_here(endpoint: SocketAddr, around: &TextInputs<'_>) -> bool {
    let known = around.endpoints.get(&endpoint);
    let known = known.filter(|known| known.node.is_some());
    let known = known.map(|known| known.local);
    known.unwrap_or_else(|| {
        let hop = around.kernel.hop(endpoint.ip());
        hop.is_some_and(|hop| hop.is_local || hop.is_inner)
    })
}
