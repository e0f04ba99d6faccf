//! Formats log lines about the problems of objects, each only once.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::decode::{Key, Problem};

/// Problems that the log has reported, by object. Unchanged problems of an object are logged once,
/// not at every update.
#[derive(Debug, Default)]
pub(crate) struct Complaints(HashMap<Key, ProblemDigest>);

/// Count and hash of an object's problems, which takes less memory than thousands of problems.
#[derive(Debug, PartialEq, Eq)]
struct ProblemDigest {
    problems: usize,
    digest: u64,
}

impl ProblemDigest {
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
    /// Returns log lines about an object's problems, or none if they are the same as at the
    /// object's last update.
    pub(crate) fn of(&mut self, key: &Key, problems: &[Problem]) -> Vec<String> {
        /// Largest number of log lines about one object. An EndpointSlice with a thousand invalid
        /// endpoints usually has a single cause.
        const MOST: usize = 5;
        if problems.is_empty() {
            self.0.remove(key);
            return Vec::new();
        }
        let told = ProblemDigest::of(problems);
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
