//! Lists, and what they no longer name.

use hashbrown::HashSet;

use crate::names::NamespacedName;

/// Where the list of one kind stands.
#[derive(Debug, Default)]
pub(super) struct List {
    /// Once true, always true: what a list told stays known while the next one runs.
    pub(super) has_completed: bool,
    /// A list that named everything has completed. Stays true once nothing is `unreadable`: what
    /// cannot be read later is either known in an older state, or so new that the kernel holds
    /// nothing of it.
    pub(super) was_whole: bool,
    /// Names that the running list, or one that was not whole, has not confirmed; gone when one
    /// completes whole.
    pub(super) unconfirmed: Option<HashSet<NamespacedName>>,
    /// Objects that exist and of which nothing was ever known.
    pub(super) unreadable: HashSet<NamespacedName>,
}

impl List {
    pub(super) fn start<'a>(&mut self, known: impl Iterator<Item = &'a NamespacedName>) {
        self.was_whole = self.is_whole();
        self.unreadable.clear();
        self.unconfirmed = Some(known.cloned().collect());
    }

    pub(super) fn confirm(&mut self, name: &NamespacedName) {
        self.unreadable.remove(name);
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.remove(name);
        }
    }

    pub(super) fn confirm_unreadable(&mut self, name: NamespacedName, is_known: bool) {
        // One that was not readable before is still not.
        let was_whole = self.is_whole();
        self.confirm(&name);
        if !is_known && !was_whole {
            self.unreadable.insert(name);
        }
    }

    pub(super) fn complete(&mut self, is_whole: bool) -> HashSet<NamespacedName> {
        self.has_completed = true;
        if !is_whole {
            return HashSet::new();
        }
        self.was_whole = true;
        self.unconfirmed.take().unwrap_or_default()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.was_whole && self.unreadable.is_empty()
    }
}
