//! `kube-proxy explain`: the way of a packet through this node, step by step, as the kernel holds it
//! now, in the words of Kubernetes.

pub(crate) mod asked;
mod journeys;
mod objects;
mod origin;
mod text;
mod verdict;
mod walked;

use crate::view::{Explanation, Fate, Journey};

/// Whether packets of a journey may end elsewhere than at an endpoint or a process of this node, or
/// nothing is known of them.
pub(crate) fn fails(journey: &Journey) -> bool {
    let arrives = |fate| matches!(fate, Fate::Delivered | Fate::Local);
    let mut walks = journey.walks.iter();
    journey.walks.is_empty() || walks.any(|walk| !arrives(walk.fate) || walk.unanswered.is_some())
}

/// The exit status of an answer: 0 if all journeys end well, 1 if one does not, 2 if of one it
/// cannot be said.
pub(crate) fn exit_status(explanation: &Explanation) -> u8 {
    let journeys = &explanation.journeys;
    let is_unknown = |journey: &Journey| {
        let mut walks = journey.walks.iter();
        journey.walks.is_empty() || walks.any(|walk| walk.fate == Fate::Unknown)
    };
    if journeys.is_empty() || journeys.iter().any(is_unknown) {
        2
    } else {
        u8::from(journeys.iter().any(fails))
    }
}
