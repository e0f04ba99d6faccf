//! Reads nf_tables rules, sets and elements from the kernel, one object per query.

use std::collections::HashMap;
use std::sync::Arc;

use nftables_netlink::{
    Element, Error, Family, Generation, HookedChain, KernelRule, KernelSet, Name, Nftables, Table,
};

/// Identity of a chain or set: its family, its table and its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: Name,
    /// Name of the chain or set.
    pub name: Name,
}

impl ObjectId {
    /// Returns the identity of the chain or set `name` in the same table.
    #[must_use]
    pub fn beside(&self, name: &Name) -> Self {
        Self {
            family: self.family,
            table: Arc::clone(&self.table),
            name: Arc::clone(name),
        }
    }
}

/// Source of nf_tables objects: the kernel, or tables in memory. It reads only requested objects,
/// because a table may have 100,000 chains and elements.
pub trait Reader {
    /// Returns the generation of the ruleset. Between two equal generations, no object has changed.
    ///
    /// # Errors
    ///
    /// Fails like [`Nftables::generation`].
    fn generation(&mut self) -> Result<Generation, Error>;

    /// Returns the tables of all nf_tables families.
    ///
    /// # Errors
    ///
    /// Fails like [`Nftables::tables`].
    fn tables(&mut self) -> Result<Vec<Table>, Error>;

    /// Returns the base chains of all tables.
    ///
    /// # Errors
    ///
    /// Fails like [`Nftables::base_chains`].
    fn base_chains(&mut self) -> Result<Vec<HookedChain>, Error>;

    /// Returns the rules of a chain, with their anonymous sets.
    ///
    /// # Errors
    ///
    /// Fails like [`Nftables::rules_of_chain`].
    fn rules(&mut self, chain: &ObjectId) -> Result<Vec<KernelRule>, Error>;

    /// Returns a named set without its elements, or `None` if the set does not exist.
    ///
    /// # Errors
    ///
    /// Fails like [`Nftables::set`].
    fn set(&mut self, set: &ObjectId) -> Result<Option<KernelSet>, Error>;

    /// Returns the element that contains `key`, or else the set's catch-all element, or `None`.
    ///
    /// # Errors
    ///
    /// Fails like [`Nftables::element`].
    fn element(&mut self, set: &ObjectId, key: &[u8]) -> Result<Option<Element>, Error>;

    /// Returns the end marker of the range that contains `key`, if any. It is needed for sets in
    /// which a range consists of two elements: its start, and its end marker.
    ///
    /// # Errors
    ///
    /// Fails like [`Nftables::interval_end`].
    fn interval_end(&mut self, set: &ObjectId, key: &[u8]) -> Result<Option<Element>, Error>;
}

impl Reader for Nftables {
    fn generation(&mut self) -> Result<Generation, Error> {
        Self::generation(self)
    }

    fn tables(&mut self) -> Result<Vec<Table>, Error> {
        Self::tables(self, None)
    }

    fn base_chains(&mut self) -> Result<Vec<HookedChain>, Error> {
        Self::base_chains(self)
    }

    fn rules(&mut self, chain: &ObjectId) -> Result<Vec<KernelRule>, Error> {
        self.rules_of_chain(chain.family, &chain.table, &chain.name)
    }

    fn set(&mut self, set: &ObjectId) -> Result<Option<KernelSet>, Error> {
        Self::set(self, set.family, &set.table, &set.name)
    }

    fn element(&mut self, set: &ObjectId, key: &[u8]) -> Result<Option<Element>, Error> {
        let found = Self::element(self, set.family, &set.table, &set.name, key)?;
        match found {
            Some(found) => Ok(Some(found)),
            None => self.catch_all(set.family, &set.table, &set.name),
        }
    }

    fn interval_end(&mut self, set: &ObjectId, key: &[u8]) -> Result<Option<Element>, Error> {
        Self::interval_end(self, set.family, &set.table, &set.name, key)
    }
}

/// Reader with a cache, so that several packets with the same rules cause only one query to the
/// kernel. The cache lives as long as one request of the user.
#[derive(Debug)]
pub(super) struct CachedReader<R> {
    reader: R,
    rules: HashMap<ObjectId, Arc<[KernelRule]>>,
    sets: HashMap<ObjectId, Option<Arc<KernelSet>>>,
}

impl<R: Reader> CachedReader<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader,
            rules: HashMap::new(),
            sets: HashMap::new(),
        }
    }

    pub(super) fn rules(&mut self, chain: &ObjectId) -> Result<Arc<[KernelRule]>, Error> {
        if let Some(found) = self.rules.get(chain) {
            return Ok(Arc::clone(found));
        }
        let found: Arc<[KernelRule]> = self.reader.rules(chain)?.into();
        self.rules.insert(chain.clone(), Arc::clone(&found));
        Ok(found)
    }

    pub(super) fn set(&mut self, set: &ObjectId) -> Result<Option<Arc<KernelSet>>, Error> {
        if let Some(found) = self.sets.get(set) {
            return Ok(found.clone());
        }
        let found = self.reader.set(set)?.map(Arc::new);
        self.sets.insert(set.clone(), found.clone());
        Ok(found)
    }

    pub(super) fn element(&mut self, set: &ObjectId, key: &[u8]) -> Result<Option<Element>, Error> {
        self.reader.element(set, key)
    }

    pub(super) fn interval_end(
        &mut self,
        set: &ObjectId,
        key: &[u8],
    ) -> Result<Option<Element>, Error> {
        self.reader.interval_end(set, key)
    }
}
