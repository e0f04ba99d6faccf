//! One row of a table: the claims of one key, and its actual value.
//!
//! A table has tens of thousands of rows. Nearly all of them have one claim, and an actual value
//! that is absent or equal to the wanted value. A compact form stores these rows without an
//! allocation.

use std::mem;

/// One row of a table: the claims of one key, and its actual value.
#[derive(Debug)]
pub(crate) struct Row<V, O> {
    content: Content<V, O>,
    /// Number of the epoch (time interval) in which the row became pending. It is 0 if the row is
    /// not pending, or if the row does not count as overdue.
    pub(crate) since: u32,
    pub(crate) is_pending: bool,
    /// True if the kernel has the entry with the wanted value.
    has_wanted: bool,
}

#[derive(Debug)]
enum Content<V, O> {
    One(O, V),
    /// Any other combination of claims and actual value, on the heap.
    Any(Box<GeneralContent<V, O>>),
}

#[derive(Debug)]
struct GeneralContent<V, O> {
    /// Claimed values with their owners, sorted by owner. The first value is wanted.
    claims: Vec<(O, V)>,
    /// Actual value, if it differs from the wanted value.
    other: Option<V>,
}

impl<V, O> Row<V, O> {
    /// Creates a row with one claim and without an actual value.
    pub(crate) fn of_claim(owner: O, value: V) -> Self {
        Self::new(Content::One(owner, value))
    }

    /// Creates a row with an actual value and without a claim.
    pub(crate) fn of_actual(actual: V) -> Self {
        Self::new(Content::Any(Box::new(GeneralContent {
            claims: Vec::new(),
            other: Some(actual),
        })))
    }

    fn new(content: Content<V, O>) -> Self {
        Self {
            content,
            since: 0,
            is_pending: false,
            has_wanted: false,
        }
    }

    /// Returns the wanted value, which is the value of the first claim.
    pub(crate) fn wanted(&self) -> Option<&V> {
        match &self.content {
            Content::One(_, value) => Some(value),
            Content::Any(any) => any.claims.first().map(|(_, value)| value),
        }
    }

    /// Returns the actual value, or `None` if the kernel does not have the entry.
    pub(crate) fn actual(&self) -> Option<&V> {
        match &self.content {
            _ if self.has_wanted => self.wanted(),
            Content::One(..) => None,
            Content::Any(any) => any.other.as_ref(),
        }
    }

    /// Returns the owners of all claims, sorted. The first owner's value is wanted.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &O> {
        let (one, any) = match &self.content {
            Content::One(owner, _) => (Some(owner), &[][..]),
            Content::Any(any) => (None, any.claims.as_slice()),
        };
        one.into_iter().chain(any.iter().map(|(owner, _)| owner))
    }

    /// Returns the number of claims.
    pub(crate) fn claims_len(&self) -> usize {
        match &self.content {
            Content::One(..) => 1,
            Content::Any(any) => any.claims.len(),
        }
    }

    /// Returns all claims of a row that has at least two.
    pub(crate) fn contest(&self) -> &[(O, V)] {
        match &self.content {
            Content::One(..) => &[],
            Content::Any(any) => &any.claims,
        }
    }
}

impl<V: Clone + Eq, O: Clone + Ord> Row<V, O> {
    /// Sets an owner's claim, or removes the claim if `value` is `None`. Returns true if the wanted
    /// value has changed.
    pub(crate) fn set_claim(&mut self, owner: &O, value: Option<V>) -> bool {
        let value = match (&mut self.content, value) {
            // Stores the new value, because values that compare as equal may differ in details.
            (Content::One(one, wanted), Some(value)) if one == owner && *wanted == value => {
                *wanted = value;
                return false;
            }
            // After a restart, the kernel already has nearly all claimed entries. So nearly every
            // row takes this branch.
            (Content::Any(any), Some(value))
                if any.claims.is_empty() && any.other.as_ref() == Some(&value) =>
            {
                self.content = Content::One(owner.clone(), value);
                self.has_wanted = true;
                return true;
            }
            (_, value) => value,
        };
        let before = self.wanted().cloned();
        let actual = self.actual().cloned();
        self.spread();
        let Content::Any(any) = &mut self.content else {
            return false;
        };
        let claims = &mut any.claims;
        match (claims.binary_search_by(|(o, _)| o.cmp(owner)), value) {
            (Ok(at), Some(value)) => {
                if let Some(claim) = claims.get_mut(at) {
                    claim.1 = value;
                }
            }
            (Ok(at), None) => {
                claims.remove(at);
            }
            (Err(at), Some(value)) => claims.insert(at, (owner.clone(), value)),
            (Err(_), None) => {}
        }
        let is_other = self.wanted() != before.as_ref();
        self.set_actual(actual);
        is_other
    }

    /// Sets the actual value. `None` means that the kernel does not have the entry.
    pub(crate) fn set_actual(&mut self, actual: Option<V>) {
        self.has_wanted = actual.is_some() && self.wanted() == actual.as_ref();
        let other = actual.filter(|_| !self.has_wanted);
        if other.is_some() {
            self.spread();
        }
        if let Content::Any(any) = &mut self.content {
            any.other = other;
            self.gather();
        }
    }

    /// Returns true if the wanted value equals the actual value, or if both values are absent.
    pub(crate) fn is_as_wanted(&self) -> bool {
        self.wanted() == self.actual()
    }

    /// Converts the row from the compact form to the general form.
    fn spread(&mut self) {
        if let Content::One(owner, value) = &self.content {
            let claim = (owner.clone(), value.clone());
            self.content = Content::Any(Box::new(GeneralContent {
                claims: vec![claim],
                other: None,
            }));
        }
    }

    /// Converts the row to the compact form if it has exactly one claim, and its actual value is
    /// absent or equal to the wanted value.
    fn gather(&mut self) {
        if let Content::Any(any) = &mut self.content
            && any.other.is_none()
            && any.claims.len() == 1
            && let Some((owner, value)) = mem::take(&mut any.claims).pop()
        {
            self.content = Content::One(owner, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_row_with_a_zero_sized_value_takes_24_bytes() {
        assert_eq!(size_of::<Row<(), Arc<u8>>>(), 24);
    }

    #[test]
    fn the_actual_value_of_a_row_stays_when_its_claims_change() {
        let mut row = Row::of_claim(1, 'a');
        row.set_actual(Some('a'));
        assert!(row.set_claim(&1, Some('b')));
        assert_eq!((row.wanted(), row.actual()), (Some(&'b'), Some(&'a')));
        assert!(row.set_claim(&0, Some('a')));
        assert!(row.is_as_wanted() && row.owners().eq(&[0, 1]));
        assert!(!row.set_claim(&1, None));
        assert!(matches!(row.content, Content::One(0, 'a')));
        assert!(row.set_claim(&0, None));
        assert_eq!((row.wanted(), row.actual()), (None, Some(&'a')));
    }
}
