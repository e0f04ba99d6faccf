//! Progress of lists, and the objects that lists no longer name.

use hashbrown::HashSet;

use crate::names::NamespacedName;

/// Progress of the lists of one kind.
#[derive(Debug, Default)]
pub(super) struct ListProgress {
    /// True once a list has completed. Stays true while the next list runs.
    pub(super) has_completed: bool,
    /// True once a complete list has named every object. Stays true once `unreadable` is empty. A
    /// later unreadable object has a known older state, or is too new to have kernel entries.
    pub(super) was_whole: bool,
    /// Names that neither the running list nor an incomplete list has confirmed. A completed whole
    /// list deletes their objects.
    pub(super) unconfirmed: Option<HashSet<NamespacedName>>,
    /// Existing objects without any known state.
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
        // An object that was never readable remains unreadable.
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
