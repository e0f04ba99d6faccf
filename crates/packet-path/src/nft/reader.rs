//! What is asked of the kernel's nf_tables, object by object.

use std::collections::HashMap;
use std::sync::Arc;

use nftables_netlink::{
    Element, Error, Family, FoundRule, FoundSet, Generation, Hooked, Name, Nftables, Table,
};

/// A chain or a set of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct At {
    /// The family of the table.
    pub family: Family,
    /// The table.
    pub table: Name,
    /// The chain, or the set.
    pub name: Name,
}

impl At {
    /// Another chain or set of the same table.
    #[must_use]
    pub fn beside(&self, name: &Name) -> Self {
        Self {
            family: self.family,
            table: Arc::clone(&self.table),
            name: Arc::clone(name),
        }
    }
}

/// Where the ruleset is read from: the kernel, or a fake of tests. Nothing is read that is not
/// asked for, as a table may hold 100,000 chains and elements.
pub trait Reader {
    /// The number of the ruleset: where it is as before, nothing has changed.
    ///
    /// # Errors
    ///
    /// Those of [`Nftables::generation`].
    fn generation(&mut self) -> Result<Generation, Error>;

    /// The tables of all families.
    ///
    /// # Errors
    ///
    /// Those of [`Nftables::tables`].
    fn tables(&mut self) -> Result<Vec<Table>, Error>;

    /// The base chains of all tables.
    ///
    /// # Errors
    ///
    /// Those of [`Nftables::hooked`].
    fn hooked(&mut self) -> Result<Vec<Hooked>, Error>;

    /// The rules of a chain, their anonymous sets in them.
    ///
    /// # Errors
    ///
    /// Those of [`Nftables::rules_of_chain`].
    fn rules(&mut self, chain: &At) -> Result<Vec<FoundRule>, Error>;

    /// A named set without its elements.
    ///
    /// # Errors
    ///
    /// Those of [`Nftables::set`].
    fn set(&mut self, set: &At) -> Result<Option<FoundSet>, Error>;

    /// The element that a key is in; else the one for all others.
    ///
    /// # Errors
    ///
    /// Those of [`Nftables::element`].
    fn element(&mut self, set: &At, key: &[u8]) -> Result<Option<Element>, Error>;

    /// What ends the range that a key lies in, in a set of ranges of single values.
    ///
    /// # Errors
    ///
    /// Those of [`Nftables::interval_end`].
    fn interval_end(&mut self, set: &At, key: &[u8]) -> Result<Option<Element>, Error>;
}

impl Reader for Nftables {
    fn generation(&mut self) -> Result<Generation, Error> {
        Self::generation(self)
    }

    fn tables(&mut self) -> Result<Vec<Table>, Error> {
        Self::tables(self, None)
    }

    fn hooked(&mut self) -> Result<Vec<Hooked>, Error> {
        Self::hooked(self)
    }

    fn rules(&mut self, chain: &At) -> Result<Vec<FoundRule>, Error> {
        self.rules_of_chain(chain.family, &chain.table, &chain.name)
    }

    fn set(&mut self, set: &At) -> Result<Option<FoundSet>, Error> {
        Self::set(self, set.family, &set.table, &set.name)
    }

    fn element(&mut self, set: &At, key: &[u8]) -> Result<Option<Element>, Error> {
        let found = Self::element(self, set.family, &set.table, &set.name, key)?;
        match found {
            Some(found) => Ok(Some(found)),
            None => self.catch_all(set.family, &set.table, &set.name),
        }
    }

    fn interval_end(&mut self, set: &At, key: &[u8]) -> Result<Option<Element>, Error> {
        Self::interval_end(self, set.family, &set.table, &set.name, key)
    }
}

/// What has been asked once, so that packets that meet the same things do not ask again. It holds
/// what those packets met, and goes with the question.
#[derive(Debug)]
pub(super) struct Asked<R> {
    reader: R,
    rules: HashMap<At, Arc<[FoundRule]>>,
    sets: HashMap<At, Option<Arc<FoundSet>>>,
}

impl<R: Reader> Asked<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader,
            rules: HashMap::new(),
            sets: HashMap::new(),
        }
    }

    pub(super) fn rules(&mut self, chain: &At) -> Result<Arc<[FoundRule]>, Error> {
        if let Some(found) = self.rules.get(chain) {
            return Ok(Arc::clone(found));
        }
        let found: Arc<[FoundRule]> = self.reader.rules(chain)?.into();
        self.rules.insert(chain.clone(), Arc::clone(&found));
        Ok(found)
    }

    pub(super) fn set(&mut self, set: &At) -> Result<Option<Arc<FoundSet>>, Error> {
        if let Some(found) = self.sets.get(set) {
            return Ok(found.clone());
        }
        let found = self.reader.set(set)?.map(Arc::new);
        self.sets.insert(set.clone(), found.clone());
        Ok(found)
    }

    pub(super) fn element(&mut self, set: &At, key: &[u8]) -> Result<Option<Element>, Error> {
        self.reader.element(set, key)
    }

    pub(super) fn interval_end(&mut self, set: &At, key: &[u8]) -> Result<Option<Element>, Error> {
        self.reader.interval_end(set, key)
    }
}
