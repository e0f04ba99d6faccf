//! What is said of objects that are wrong.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::decode::{Key, Problem};

/// What was said of each object's problems, so that it is said once and not with every update of
/// the object.
#[derive(Debug, Default)]
pub(crate) struct Complaints(HashMap<Key, Told>);

/// What was said of an object, as far as it takes to know it again: an object may have as many
/// problems as it has lines.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    problems: usize,
    digest: u64,
}

impl Told {
    fn of(problems: &[Problem]) -> Self {
        let mut hasher = DefaultHasher::new();
        problems.hash(&mut hasher);
        Self {
            problems: problems.len(),
            digest: hasher.finish(),
        }
    }
}

impl Complaints {
    /// The lines to say about an object that now has these problems.
    pub(crate) fn of(&mut self, key: &Key, problems: &[Problem]) -> Vec<String> {
        /// A slice with a thousand wrong endpoints is one mistake.
        const MOST: usize = 5;
        if problems.is_empty() {
            self.0.remove(key);
            return Vec::new();
        }
        let told = Told::of(problems);
        if self.0.get(key) == Some(&told) {
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
        self.0.insert(key.clone(), told);
        lines
    }

    pub(crate) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }
}
