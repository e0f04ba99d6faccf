//! Progress of lists, and the objects that new lists lack.

use hashbrown::HashSet;

use crate::names::NamespacedName;

/// Progress of the lists of one kind.
#[derive(Debug, Default)]
pub(super) struct ListProgress {
    /// True once a list was completed. The flag stays true during later lists.
    pub(super) has_completed: bool,
    /// True once a complete list has contained every object, each of them readable. Never becomes
    /// false again: an object that becomes unreadable later either has a known older state, or is
    /// too new to have kernel entries.
    pub(super) was_whole: bool,
    /// Known names for which no event has arrived since the last list began. A complete list that
    /// is not whole keeps these names. When a whole list completes, the model deletes the objects
    /// with these names.
    pub(super) unconfirmed: Option<HashSet<NamespacedName>>,
    /// Objects that exist, but were never readable.
    pub(super) unreadable: HashSet<NamespacedName>,
}

impl ListProgress {
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
        // Reads the flag before `confirm` removes the name. An object that is unknown after a whole
        // list is new and has no kernel entries, so it does not count.
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
