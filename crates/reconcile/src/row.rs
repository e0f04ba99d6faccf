//! One row of a table: who claims it, and what is there.
//!
//! Nearly always that is one claim, and what it wants is there, or nothing. Such a row is held
//! without anything beside it: there are tens of thousands.

use std::mem;

/// One row of a table.
#[derive(Debug)]
pub(crate) struct Row<V, O> {
    content: Content<V, O>,
    /// Since which epoch it has been pending; 0 if it is not, or is left out of account.
    pub(crate) since: u32,
    pub(crate) is_pending: bool,
    /// Whether what is wanted is there.
    has_wanted: bool,
}

#[derive(Debug)]
enum Content<V, O> {
    One(O, V),
    /// Whatever else there can be.
    Any(Box<Any<V, O>>),
}

#[derive(Debug)]
struct Any<V, O> {
    /// Sorted by owner; the first is the wanted value.
    claims: Vec<(O, V)>,
    /// What is there, if that is not what is wanted.
    other: Option<V>,
}

impl<V, O> Row<V, O> {
    /// Wanted by one, and not there.
    pub(crate) fn of_claim(owner: O, value: V) -> Self {
        Self::new(Content::One(owner, value))
    }

    /// There, and wanted by nobody.
    pub(crate) fn of_actual(actual: V) -> Self {
        Self::new(Content::Any(Box::new(Any {
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

    /// The claim that counts.
    pub(crate) fn wanted(&self) -> Option<&V> {
        match &self.content {
            Content::One(_, value) => Some(value),
            Content::Any(any) => any.claims.first().map(|(_, value)| value),
        }
    }

    /// What is there.
    pub(crate) fn actual(&self) -> Option<&V> {
        match &self.content {
            _ if self.has_wanted => self.wanted(),
            Content::One(..) => None,
            Content::Any(any) => any.other.as_ref(),
        }
    }

    /// All who claim it, the one whose claim counts first.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &O> {
        let (one, any) = match &self.content {
            Content::One(owner, _) => (Some(owner), &[][..]),
            Content::Any(any) => (None, any.claims.as_slice()),
        };
        one.into_iter().chain(any.iter().map(|(owner, _)| owner))
    }

    /// How many claim it.
    pub(crate) fn claims_len(&self) -> usize {
        match &self.content {
            Content::One(..) => 1,
            Content::Any(any) => any.claims.len(),
        }
    }

    /// The claims, where there are several.
    pub(crate) fn contest(&self) -> &[(O, V)] {
        match &self.content {
            Content::One(..) => &[],
            Content::Any(any) => &any.claims,
        }
    }
}

impl<V: Clone + Eq, O: Clone + Ord> Row<V, O> {
    /// Makes this all that an owner claims; whether something else is wanted now.
    pub(crate) fn set_claim(&mut self, owner: &O, value: Option<V>) -> bool {
        let value = match (&mut self.content, value) {
            // Equal ones may differ by what makes no difference.
            (Content::One(one, wanted), Some(value)) if one == owner && *wanted == value => {
                *wanted = value;
                return false;
            }
            // As at a restart, for nearly every row.
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

    /// Makes this what is there.
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

    /// Whether what is wanted is there, or nothing is either.
    pub(crate) fn is_as_wanted(&self) -> bool {
        self.wanted() == self.actual()
    }

    /// Takes the form in which everything can be held.
    fn spread(&mut self) {
        if let Content::One(owner, value) = &self.content {
            let claim = (owner.clone(), value.clone());
            self.content = Content::Any(Box::new(Any {
                claims: vec![claim],
                other: None,
            }));
        }
    }

    /// Takes the form for one claim, if that will do.
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
    fn a_row_of_a_set_is_three_words() {
        assert_eq!(size_of::<Row<(), Arc<u8>>>(), 24);
    }

    #[test]
    fn what_is_there_stays_known_whatever_is_wanted() {
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
