//! What the loop says to those who ask.

use std::time::Instant;

use super::daemon::Daemon;
use crate::family::Family;
use crate::inspect::{Facts, Question};

/// How many failures, conflicts and drains of a family are told.
const TOLD_MAX: usize = 100;

impl Daemon {
    /// Answers a question, within about 2 ms. Whoever asked may have gone.
    pub(super) fn answer(&mut self, question: Question) {
        match question {
            Question::Facts(answer) => drop(answer.send(self.facts(Instant::now()))),
        }
    }

    fn facts(&self, now: Instant) -> Facts {
        let model = &self.model;
        let families = self.families.iter();
        Facts {
            mode: self.options.modes.chosen.name(),
            forms: Vec::new(),
            families: families.map(|of: &Family| of.told(TOLD_MAX, now)).collect(),
            services: model.service_count(),
            slices: model.slice_count(),
            is_complete: model.is_complete(),
            is_whole: model.is_whole(),
            has_node: model.has_node(),
            now,
        }
    }
}
