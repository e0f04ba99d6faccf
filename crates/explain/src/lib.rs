//! `kube-proxy explain`: the way of a packet through this node, step by step, as the kernel holds it
//! now, in the words of Kubernetes.
//!
//! ```text
//!   what was typed ─▶ Asked ──────┐
//!   the daemon's loop ─▶ Objects ─┴─▶ journeys ─▶ packet_path, which reads the kernel ─▶ walked ─▶ view
//!                                                               origin, answer, verdict ─┘
//! ```
//!
//! What packets do is the kernel's word alone. Objects only say which journeys there are, and put
//! names to what is found: without a daemon it is the same without names. Nothing is written, and what
//! one answer may hold is bounded.

mod answer;
mod asked;
mod journeys;
mod listeners;
mod live;
mod objects;
mod origin;
mod quotes;
mod text;
mod verdict;
mod walked;

pub use asked::{Asked, From, PortOf, To, Unclear};
pub use journeys::nobodys;
pub use live::answer;
pub use objects::{Objects, OwnNode};
pub use quotes::Quotes;
pub use text::{Style, render};
pub use walked::Listening;

use answer::Answers;
use footprint::Footprints;
use journeys::Planned;
use view::{Explanation, Fate, Journey, Walk};
use walked::Surroundings;

/// Of more journeys the first are followed.
const JOURNEYS_MAX: usize = 200;
/// Of more ways of a journey the first are listed.
const LISTED_MAX: usize = 500;
/// No further journey is followed once so many ways are listed: an answer has some 5 KB for each.
const WALKS_MAX: usize = 2_000;

/// Follows packets by what the kernel holds.
pub(crate) trait Follow: Answers {
    /// All ways of the first packet of a flow.
    fn follow(&self, planned: &Planned<'_>) -> Vec<packet_path::Walk>;

    /// What could not be read, and why.
    fn unread(&self) -> Vec<String>;
}

/// Follows all journeys that a question is about.
pub(crate) fn explain(
    asked: &Asked,
    objects: &Objects,
    kernel: &impl Follow,
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
    let around = Surroundings {
        kernel,
        listening,
        modes,
    };
    let count = planned.planned.len();
    let (mut listed, mut is_cut) = (0, false);
    for planned in planned.planned.iter().take(JOURNEYS_MAX) {
        if listed >= WALKS_MAX {
            break;
        }
        let walks = kernel.follow(planned).into_iter();
        let walks = walks.flat_map(|walk| walked::told(&walk, planned, &around));
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
            of: planned.of.as_ref().map(objects::Place::words),
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

/// Whether packets of a journey may end elsewhere than at an endpoint or a process of this node, or
/// stay without an answer, or nothing is known of them.
pub(crate) fn fails(journey: &Journey) -> bool {
    let arrives = |fate| matches!(fate, Fate::Delivered | Fate::Local);
    let mut walks = journey.walks.iter();
    journey.walks.is_empty() || walks.any(|walk| !arrives(walk.fate) || walk.unanswered.is_some())
}

/// Whether it cannot be said of packets of a journey that they are answered.
pub(crate) fn is_unsure(journey: &Journey) -> bool {
    journey.walks.iter().any(|walk| walk.unsure.is_some())
}

/// The exit status of an answer: 0 if all journeys end well, 1 if one does not, 2 if of one it
/// cannot be said.
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

/// Reads a question.
#[doc(hidden)]
pub fn read_question(to: &str, from: &str, namespace: &str) {
    drop(Asked::parse(to, from, namespace));
}

/// Reads a list of sockets.
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
