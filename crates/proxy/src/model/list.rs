//! Progress of lists, and the objects that they no longer name.

use hashbrown::HashSet;

use crate::names::NamespacedName;

/// Progress of the lists of one kind.
#[derive(Debug, Default)]
pub(super) struct ListProgress {
    /// True once a list has completed, also while the next one runs.
    pub(super) has_completed: bool,
    /// True once a list that named everything has completed. Stays true once `unreadable` is empty:
    /// a later unreadable object has an older state, or is so new that the kernel has nothing of
    /// it.
    pub(super) was_whole: bool,
    /// Names that the running list, or an incomplete one, has not confirmed. They are deleted when
    /// a whole list completes.
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
        // An object that was never readable still is not.
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
