//! Tracks the lists of objects that the source reads from the API server: which lists are complete,
//! and which known objects a new list lacks.

use hashbrown::HashSet;

use crate::names::NamespacedName;

/// Progress of the lists of one kind of object.
#[derive(Debug, Default)]
pub(super) struct ListProgress {
    /// True once a list has completed. The flag stays true during later lists.
    pub(super) has_completed: bool,
    /// True once a complete list has contained every object in readable form. Stays true if an
    /// object becomes unreadable later: the model then has an older state of the object, or the
    /// object is too new to have kernel entries.
    pub(super) was_whole: bool,
    /// Names of known objects without an event since the last list began. At the end of a whole
    /// list (which contains every existing object), the model deletes these objects. Any other list
    /// keeps the names. `None` before the first list, and after a whole list.
    pub(super) unconfirmed: Option<HashSet<NamespacedName>>,
    /// Names of objects that exist, but that the source has never been able to decode.
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
        // Reads the flag before `confirm` removes the name. After a whole list, an object that the
        // model does not know is new and has no kernel entries, so `unreadable` need not contain
        // the object.
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
