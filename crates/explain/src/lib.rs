//! `kube-proxy explain` traces a packet through this node step by step. It reads the kernel's
//! current state, and describes it in terms of Kubernetes.
//!
//! ```text
//!   command line ─▶ TraceRequest ─┐
//!   the daemon's loop ─▶ Objects ─┴─▶ journeys ─▶ packet_path ─▶ walked ─▶ view
//!                                                  │                │
//!                                  reads the kernel ┘                └ origin, answer,
//!                                                                    misdirection, verdict
//! ```
//!
//! - The kernel alone determines the path of a packet. Kubernetes objects only select the packets
//!   to trace and name the kernel's entries.
//! - Without a daemon, the path is the same, but the entries have no Kubernetes names.
//! - The crate writes nothing, and limits the size of a response.

mod answer;
mod journeys;
mod listeners;
mod live;
mod misdirection;
mod objects;
mod origin;
mod quotes;
mod text;
mod trace_request;
mod verdict;
mod walk_text;

pub use journeys::nobodys;
pub use live::answer;
pub use objects::{Objects, OwnNode};
pub use quotes::Quotes;
pub use text::{Style, render};
pub use trace_request::{PortOf, RequestError, TraceDestination, TraceRequest, TraceSender};
pub use walk_text::Listening;

use answer::EndpointReplies;
use footprint::Footprints;
use journeys::TracedPacket;
use view::{Explanation, Fate, Journey, Walk};
use walk_text::TextInputs;

/// Maximum number of packets that one request traces.
const JOURNEYS_MAX: usize = 200;
/// Maximum number of paths that a response lists for one packet.
const LISTED_MAX: usize = 500;
/// Number of listed paths at which the tracing of further packets stops. A path takes about 5 KB of
/// memory.
const WALKS_MAX: usize = 2_000;

/// Interface to the kernel's state for tracing packets.
pub(crate) trait PacketTracer: EndpointReplies {
    /// Returns all paths that the packet `planned` may take.
    fn follow(&self, planned: &TracedPacket<'_>) -> Vec<packet_path::Walk>;

    /// Returns messages about parts of the kernel's state that could not be read.
    fn unread(&self) -> Vec<String>;
}

/// Traces all packets that a request selects, and describes their paths in terms of Kubernetes.
pub(crate) fn explain(
    asked: &TraceRequest,
    objects: &Objects,
    kernel: &impl PacketTracer,
    listening: Listening<'_>,
    quotes: Quotes,
    modes: Footprints,
) -> Explanation {
    let planned = journeys::plan(asked, objects, kernel);
    let mut explanation = Explanation {
        to: asked.text.clone(),
        mode: objects.mode.clone(),
        notes: planned.notes,
        ..Explanation::default()
    };
    let count = planned.planned.len();
    let (mut listed, mut is_cut) = (0, false);
    for planned in planned.planned.iter().take(JOURNEYS_MAX) {
        if listed >= WALKS_MAX {
            break;
        }
        let around = TextInputs {
            kernel,
            listening,
            modes,
            endpoints: &planned.endpoints(),
        };
        let walks = kernel.follow(planned).into_iter();
        let walks = walks.flat_map(|walk| misdirection::told(&walk, planned, &around));
        let mut walks: Vec<Walk> = walks.collect();
        is_cut |= quotes.leave_out(&mut walks);
        let verdict = verdict::verdict(planned, &walks);
        if walks.len() > LISTED_MAX {
            let (from, to) = (&planned.sender.words, planned.to);
            explanation.notes.push(format!(
                "{from} to {to}: {LISTED_MAX} of {} ways are listed",
                walks.len()
            ));
            walks.truncate(LISTED_MAX);
        }
        listed += walks.len();
        explanation.journeys.push(Journey {
            from: planned.sender.words.clone(),
            to: planned.to.to_string(),
            protocol: planned.protocol.to_string(),
            of: planned.of.as_ref().map(objects::ServicePortAddress::words),
            walks,
            verdict,
        });
    }
    let followed = explanation.journeys.len();
    if followed < count {
        explanation.notes.push(format!(
            "{followed} of {count} journeys were followed: ask for one port, one address, or one sender (--from)"
        ));
    }
    if is_cut {
        explanation.notes.push(quotes::LEFT_OUT.to_owned());
    }
    explanation.notes.extend(kernel.unread());
    explanation
}

/// Reports whether a packet may fail: on at least one path, it does not arrive, gets no reply of
/// the Service, or has an unknown fate.
pub(crate) fn fails(journey: &Journey) -> bool {
    let arrives = |fate| matches!(fate, Fate::Delivered | Fate::Local);
    let mut walks = journey.walks.iter();
    journey.walks.is_empty() || walks.any(|walk| !arrives(walk.fate) || walk.unanswered.is_some())
}

/// Reports whether the Service's reply may be missing on at least one path.
pub(crate) fn is_unsure(journey: &Journey) -> bool {
    journey.walks.iter().any(|walk| walk.unsure.is_some())
}

/// Returns the exit status of `kube-proxy explain`:
///
/// * 0: All packets arrive, and all replies return.
/// * 1: A packet or a reply fails, and the path of every packet is known.
/// * 2: Undetermined. No packet was traced, or the path of a packet is unknown, or all packets
///   arrive and the path of a reply is unknown.
pub fn exit_status(explanation: &Explanation) -> u8 {
    let journeys = &explanation.journeys;
    let is_unknown = |journey: &Journey| {
        let mut walks = journey.walks.iter();
        journey.walks.is_empty() || walks.any(|walk| walk.fate == Fate::Unknown)
    };
    if journeys.is_empty() || journeys.iter().any(is_unknown) {
        2
    } else if journeys.iter().any(fails) {
        1
    } else if journeys.iter().any(is_unsure) {
        2
    } else {
        0
    }
}

/// Parses a trace request, for the fuzzer.
#[doc(hidden)]
pub fn read_question(to: &str, from: &str, namespace: &str) {
    drop(TraceRequest::parse(to, from, namespace));
}

/// Parses the text of a file such as `/proc/net/tcp`, for the fuzzer.
#[doc(hidden)]
pub fn read_sockets(text: &str) {
    listeners::read(text);
}

#[cfg(test)]
const MODES: Footprints = &[
    &proxy_ipvs::FOOTPRINT,
    &proxy_iptables::FOOTPRINT,
    &proxy_userspace::FOOTPRINT,
    &proxy_nftables::FOOTPRINT,
];

#[cfg(test)]
mod tests;
