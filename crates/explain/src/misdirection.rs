//! Finds packets that reach an address that is no endpoint of the requested Service.
//!
//! | cause | path | result |
//! |---|---|---|
//! | another program's rule changes the destination, such as a CNI plugin's `hostPort` | `unanswered` | FAILS |
//! | the address is served for another Service or program | `unanswered` | FAILS |
//! | an entry leads to an endpoint that no EndpointSlice lists | `unsure` | not sure |
//!
//! Each listed endpoint belongs to the Service, in any state: not ready, terminating or draining. A
//! process that has the Service's own address, such as NodeLocal DNSCache, belongs to it as well.

use std::fmt::Write as _;
use std::net::SocketAddr;

use footprint::Footprints;
use footprint::origin::LISTENING;
use view::{ANOTHER_PROGRAM, Fate, Walk};

use super::journeys::TracedPacket;
use super::objects::ServicePortAddress;
use super::origin::NOT_OURS;
use super::walk_text::{self, THIS_NODE, TextInputs, in_view};

/// Prefix of the reason why a path leads to no endpoint of the Service.
pub(crate) const NO_ENDPOINT: &str = "no endpoint of ";
/// Prefix of the text that names another program's rule.
pub(crate) const REDIRECTED: &str = "redirected by ";

/// Converts a traced path to paths of a response as [`walk_text::told`] does. Adds to each the
/// reason why its end is no endpoint of the Service, if it is none.
pub(crate) fn told(
    followed: &packet_path::Walk,
    planned: &TracedPacket<'_>,
    around: &TextInputs<'_>,
) -> Vec<Walk> {
    let mut walks = walk_text::told(followed, planned, around);
    for walk in &mut walks {
        note(walk, followed, planned, around);
    }
    walks
}

fn note(
    walk: &mut Walk,
    followed: &packet_path::Walk,
    planned: &TracedPacket<'_>,
    around: &TextInputs<'_>,
) {
    let modes = around.modes;
    if walk.fate == Fate::Refused
        && let Some(last) = walk.steps.last_mut().filter(|last| last.place == THIS_NODE)
        && let Some(why) = describe_redirect(followed, planned, modes)
    {
        let _ = write!(last.says, "; {why}");
    }
    let is_at_service = walk.fate == Fate::Local && followed.redirected_by.is_none();
    if is_at_service || !matches!(walk.fate, Fate::Delivered | Fate::Local) {
        return;
    }
    let (Some(of), Some(end)) = (&planned.of, &walk.endpoint) else {
        return;
    };
    let end = end.parse::<SocketAddr>();
    if end.is_ok_and(|end| around.endpoints.contains_key(&end)) {
        return;
    }
    let service = &of.service.name;
    if let Some(why) = describe_redirect(followed, planned, modes).or_else(|| describe_conflict(of))
    {
        walk.unanswered = Some(format!("{NO_ENDPOINT}{service}: {why}"));
        walk.unsure = None;
        return;
    }
    // Only the daemon itself knows the endpoints behind its listening ports.
    let mut steps = walk.steps.iter();
    let is_relayed = steps.any(|step| step.origin.contains(LISTENING));
    let is_certain = walk.unanswered.is_none() && walk.unsure.is_none();
    if walk.fate == Fate::Delivered && is_certain && !is_relayed {
        walk.unsure = Some(format!(
            "{NO_ENDPOINT}{service}: none of its EndpointSlices lists this address and port"
        ));
    }
}

/// Names the rule of another program that changes the packet's destination, if there is one.
fn describe_redirect(
    followed: &packet_path::Walk,
    planned: &TracedPacket<'_>,
    modes: Footprints,
) -> Option<String> {
    let step = in_view(followed.redirected_by.as_ref()?, planned, modes);
    step.origin.starts_with(NOT_OURS).then(|| {
        let (place, entry, whose) = (step.place, step.entry, step.origin);
        format!("{REDIRECTED}{place} (`{entry}`), {whose}")
    })
}

/// Returns the reason why the address is served for another owner, if it is.
pub(crate) fn describe_conflict(of: &ServicePortAddress<'_>) -> Option<String> {
    let (at, other) = (&of.address.at, of.address.lost_to.as_ref()?);
    Some(if other == ANOTHER_PROGRAM {
        format!("another program has a virtual server at {at}")
    } else {
        format!("{at} is served for {other} instead, which is older")
    })
}

#[cfg(test)]
mod tests;
