//! What is said of objects that are wrong.

use std::collections::HashMap;

use crate::decode::{Key, Problem};

/// What was said of each object's problems, so that it is said once and not with every update of
/// the object.
#[derive(Debug, Default)]
pub(crate) struct Complaints(HashMap<Key, Vec<Problem>>);

impl Complaints {
    /// The lines to say about an object that now has these problems.
    pub(crate) fn of(&mut self, key: &Key, problems: Vec<Problem>) -> Vec<String> {
        /// A slice with a thousand wrong endpoints is one mistake.
        const MOST: usize = 5;
        if problems.is_empty() {
            self.0.remove(key);
            return Vec::new();
        }
        if self.0.get(key) == Some(&problems) {
            return Vec::new();
        }
        let mut lines: Vec<String> = problems
            .iter()
            .take(MOST)
            .map(ToString::to_string)
            .collect();
        if let Some(further @ 1..) = problems.len().checked_sub(MOST) {
            lines.push(format!("{key}: {further} further problems like these"));
        }
        self.0.insert(key.clone(), problems);
        lines
    }

    pub(crate) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }
}
