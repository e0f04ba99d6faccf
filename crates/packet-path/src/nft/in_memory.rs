//! nf_tables tables in memory, from a dump or a test. They reply to queries like the kernel, and
//! count the queries.

use std::collections::{BTreeMap, HashMap};

use nftables_netlink::{
    AnonymousSet, Chain, Element, Error, Family, Generation, HookedChain, KernelRule, KernelSet,
    Name, Rule, Set, Table, TableDump,
};

use super::reader::{ObjectId, Reader};
use super::sets;

/// Tables of nf\_tables with all their objects.
#[derive(Debug, Clone, Default)]
pub struct InMemoryTables {
    generation: u32,
    tables: Vec<Table>,
    hooked: Vec<HookedChain>,
    rules: HashMap<ObjectId, Vec<KernelRule>>,
    sets: HashMap<ObjectId, (KernelSet, Contents)>,
    /// Number of queries for rules, sets and elements so far.
    pub asked: usize,
    /// Number of queries of the generation that still cause a simulated change of the ruleset.
    pub changes: usize,
}

/// Elements of a set, stored for fast look-ups by key.
#[derive(Debug, Clone)]
enum Contents {
    Single(BTreeMap<Vec<u8>, Element>),
    Ranges(AnonymousSet),
}

impl InMemoryTables {
    /// Adds an empty table.
    pub fn add_table(&mut self, family: Family, name: &str) {
        self.tables.push(Table::new(family, name.into()));
    }

    /// Adds a chain with its rules.
    pub fn add_chain(&mut self, family: Family, table: &str, chain: &Chain, rules: Vec<Rule>) {
        let at = at(family, table, &chain.name);
        if let Some(base) = chain.base {
            self.hooked.push(HookedChain {
                family,
                table: Name::clone(&at.table),
                chain: Name::clone(&at.name),
                base: Some(base),
            });
        }
        let rules = (1..).zip(rules).map(|(handle, rule)| KernelRule {
            handle,
            chain: Name::clone(&at.name),
            rule,
        });
        let rules = rules.collect();
        self.rules.insert(at, rules);
    }

    /// Adds a set with its elements.
    pub fn add_set(&mut self, family: Family, table: &str, set: &Set, elements: Vec<Element>) {
        let contents = if set.intervals {
            Contents::Ranges(AnonymousSet {
                key: set.key.clone(),
                kind: set.kind.clone(),
                intervals: true,
                elements,
            })
        } else {
            let elements = elements.into_iter();
            Contents::Single(elements.map(|of| (of.key.to_vec(), of)).collect())
        };
        let found = KernelSet {
            handle: 1,
            set: set.clone(),
            other_flags: 0,
        };
        self.sets
            .insert(at(family, table, &set.name), (found, contents));
    }

    /// Adds a table from a dump.
    pub fn add(&mut self, whole: TableDump) {
        let Some(table) = whole.table else { return };
        let (family, name) = (table.family, Name::clone(&table.name));
        self.tables.push(table);
        for chain in &whole.chains {
            self.add_chain(family, &name, chain, Vec::new());
        }
        for rule in whole.rules {
            let of = self.rules.entry(at(family, &name, &rule.chain));
            of.or_default().push(rule);
        }
        for (set, elements) in whole.sets {
            self.add_set(family, &name, &set.set, elements);
        }
    }
}

fn at(family: Family, table: &str, name: &str) -> ObjectId {
    ObjectId {
        family,
        table: table.into(),
        name: name.into(),
    }
}

impl Reader for InMemoryTables {
    fn generation(&mut self) -> Result<Generation, Error> {
        let now = Generation(self.generation);
        if self.changes > 0 {
            self.changes -= 1;
            self.generation = self.generation.wrapping_add(1);
        }
        Ok(now)
    }

    fn tables(&mut self) -> Result<Vec<Table>, Error> {
        Ok(self.tables.clone())
    }

    fn base_chains(&mut self) -> Result<Vec<HookedChain>, Error> {
        Ok(self.hooked.clone())
    }

    fn rules(&mut self, chain: &ObjectId) -> Result<Vec<KernelRule>, Error> {
        self.asked += 1;
        Ok(self.rules.get(chain).cloned().unwrap_or_default())
    }

    fn set(&mut self, set: &ObjectId) -> Result<Option<KernelSet>, Error> {
        self.asked += 1;
        Ok(self.sets.get(set).map(|(found, _)| found.clone()))
    }

    fn element(&mut self, set: &ObjectId, key: &[u8]) -> Result<Option<Element>, Error> {
        self.asked += 1;
        let Some((_, contents)) = self.sets.get(set) else {
            return Ok(None);
        };
        Ok(match contents {
            Contents::Single(all) => {
                let found = all.get(key);
                // Falls back to the catch-all element, whose key is empty.
                found.or_else(|| all.get([].as_slice())).cloned()
            }
            Contents::Ranges(all) => sets::find(all, key).cloned(),
        })
    }

    fn interval_end(&mut self, set: &ObjectId, key: &[u8]) -> Result<Option<Element>, Error> {
        self.asked += 1;
        let Some((_, Contents::Ranges(all))) = self.sets.get(set) else {
            return Ok(None);
        };
        let behind = all
            .elements
            .iter()
            .filter(|of| of.ends_interval && of.key[..] > *key);
        Ok(behind.min_by_key(|of| &of.key).cloned())
    }
}

impl<R: Reader> Reader for &mut R {
    fn generation(&mut self) -> Result<Generation, Error> {
        (**self).generation()
    }

    fn tables(&mut self) -> Result<Vec<Table>, Error> {
        (**self).tables()
    }

    fn base_chains(&mut self) -> Result<Vec<HookedChain>, Error> {
        (**self).base_chains()
    }

    fn rules(&mut self, chain: &ObjectId) -> Result<Vec<KernelRule>, Error> {
        (**self).rules(chain)
    }

    fn set(&mut self, set: &ObjectId) -> Result<Option<KernelSet>, Error> {
        (**self).set(set)
    }

    fn element(&mut self, set: &ObjectId, key: &[u8]) -> Result<Option<Element>, Error> {
        (**self).element(set, key)
    }

    fn interval_end(&mut self, set: &ObjectId, key: &[u8]) -> Result<Option<Element>, Error> {
        (**self).interval_end(set, key)
    }
}
