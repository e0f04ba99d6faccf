//! Reads a whole table, and rules with their anonymous sets.
//!
//! The kernel dumps each set separately, and each dump searches all sets of the table three times.
//! With 10,000 anonymous sets, these searches take most of the time.
//!
//! If the keys of a set are known, such as the numbers below a modulus, this module requests the
//! elements by key instead. The kernel then searches only once, and one send covers many sets.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use netlink_batch::Batch;

use crate::decode::{self, AnonymousMessage, AnonymousMessages, AnySet, RuleMessage};
use crate::encode::{header, list_keys};
use crate::error::Error;
use crate::expression::{Expression, KernelRule, SetRef};
use crate::nftables::{AllowedChanges, Nftables};
use crate::object::{AnonymousSet, Chain, Element, KernelSet, NamedCounter, Table};
use crate::transaction::Generation;
use crate::value::{Bytes, DataType, Family, Name};
use crate::watch::Watch;
use crate::wire::{command, message};

/// Largest number of attempts to read a table that changes during the read.
const READS: u32 = 6;
/// Pause before the second attempt to read a table. The pause doubles before each further attempt.
const PAUSE: Duration = Duration::from_millis(2);
/// Largest number of elements that one send requests by key. Each reply takes about 5 kB of the
/// socket's receive buffer.
const ANSWERS: u32 = 1024;

/// Content of a table at one generation of the ruleset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDump {
    /// Generation of the ruleset at the time of the read.
    pub generation: Generation,
    /// The table, or `None` if it does not exist. All other fields are then empty.
    pub table: Option<Table>,
    /// Chains of the table, without their rules.
    pub chains: Vec<Chain>,
    /// Handles of the chains in the kernel. The kernel numbers the chains, sets and rules of a
    /// table in the order of their creation.
    pub chain_handles: HashMap<Name, u64>,
    /// Named sets and maps with their elements. Dynamic sets ([`Set::dynamic`](crate::Set)) appear
    /// without elements: packets add these elements, and there may be many.
    pub sets: Vec<(KernelSet, Vec<Element>)>,
    /// Named counters of the table.
    pub counters: Vec<NamedCounter>,
    /// Rules of the table, in order within each chain.
    pub rules: Vec<KernelRule>,
}

/// Anonymous sets with their elements, by name.
type AnonymousSets = HashMap<Name, Arc<AnonymousSet>>;

impl Nftables {
    /// Returns the rules of a table, grouped by chain, with their anonymous sets. Returns no rules
    /// if the table does not exist.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn rules(&mut self, family: Family, table: &str) -> Result<Vec<KernelRule>, Error> {
        let meanwhile = AllowedChanges::None;
        let messages = self.rule_messages(family, table, None, meanwhile)?;
        let (_, anonymous) = self.all_sets(family, table, meanwhile)?;
        self.with_sets(family, table, messages, anonymous, meanwhile)
    }

    /// Returns the rules of a chain in order, with their anonymous sets.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn rules_of_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<Vec<KernelRule>, Error> {
        let meanwhile = AllowedChanges::None;
        let messages = self.rule_messages(family, table, Some(chain), meanwhile)?;
        let mut anonymous = AnonymousMessages::new();
        for name in messages
            .iter()
            .flat_map(|message| &message.expressions)
            .filter_map(set_name)
        {
            let answer = self.set_message(family, table, name)?;
            for (_, payload) in answer.iter() {
                if let Some(AnySet::Anonymous(name, found)) = decode::set_of(table, payload)? {
                    anonymous.insert(name, found);
                }
            }
        }
        self.with_sets(family, table, messages, anonymous, meanwhile)
    }

    /// Returns the rules of a chain in order. Does not read anonymous sets: the rules contain only
    /// the names of these sets.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn bare_rules_of_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<Vec<KernelRule>, Error> {
        let messages =
            self.rule_messages(family, table, Some(chain), AllowedChanges::OtherTables)?;
        let rules = messages.into_iter().map(RuleMessage::found);
        Ok(rules.collect())
    }

    /// Reads a table as it was at one generation. If the table changes during the read, repeats the
    /// read. Ignores changes to other tables.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Changing`] if the table changes during each attempt. Otherwise, returns the
    /// socket's or the kernel's error.
    pub fn read(&mut self, family: Family, table: &str) -> Result<TableDump, Error> {
        let mut pause = PAUSE;
        for attempt in 1..=READS {
            let mut watch = Watch::begin(self, family, table)?;
            let whole = self.read_once(&mut watch);
            // Repeats the read even after an error, because another program may have deleted an
            // object during the read.
            if watch.saw_nothing(self)? {
                return whole;
            }
            if attempt < READS {
                thread::sleep(pause);
                pause *= 2;
            }
        }
        Err(Error::Changing { attempts: READS })
    }

    fn read_once(&mut self, watch: &mut Watch<'_>) -> Result<TableDump, Error> {
        let (family, table) = (watch.family, watch.table);
        let found = self.tables(Some(family))?;
        let mut whole = TableDump {
            generation: watch.generation,
            table: found.into_iter().find(|found| *found.name == *table),
            chains: Vec::new(),
            chain_handles: HashMap::new(),
            sets: Vec::new(),
            counters: Vec::new(),
            rules: Vec::new(),
        };
        if whole.table.is_none() {
            return Ok(whole);
        }
        // This dump fails if any table changes during the dump. The kernel continues a dump of
        // chains at a position that counts the chains of all tables. For rules, sets and elements,
        // the kernel counts each table separately, so only changes to this table matter.
        for (handle, chain) in self.numbered_chains(family, table)? {
            whole.chain_handles.insert(Arc::clone(&chain.name), handle);
            whole.chains.push(chain);
        }
        let meanwhile = AllowedChanges::OtherTables;
        let messages = self.rule_messages(family, table, None, meanwhile)?;
        watch.listen();
        let (sets, anonymous) = self.all_sets(family, table, meanwhile)?;
        for set in sets {
            watch.listen();
            let elements = if set.set.dynamic {
                Vec::new()
            } else {
                self.elements_of(family, table, &set.set.name, meanwhile)?
            };
            whole.sets.push((set, elements));
        }
        whole.counters = self.counters_of(family, table, meanwhile)?;
        whole.rules = self.with_sets(family, table, messages, anonymous, meanwhile)?;
        Ok(whole)
    }

    /// Decodes rules, and replaces the name of each anonymous set in them by the set itself.
    fn with_sets(
        &mut self,
        family: Family,
        table: &str,
        messages: Vec<RuleMessage>,
        anonymous: AnonymousMessages,
        meanwhile: AllowedChanges,
    ) -> Result<Vec<KernelRule>, Error> {
        let filled = self.fill(family, table, anonymous, &numbered(&messages), meanwhile)?;
        let rules = messages.into_iter().map(|mut message| {
            for expression in &mut message.expressions {
                if let Expression::Lookup { set, .. } | Expression::Dynset { set, .. } = expression
                    && let SetRef::Named(name) = set
                    && let Some(found) = filled.get(name)
                {
                    *set = SetRef::Anonymous(Arc::clone(found));
                }
            }
            message.found()
        });
        Ok(rules.collect())
    }

    /// Reads the elements of anonymous sets: by key if `keys` has the keys of the set, otherwise
    /// with a dump.
    fn fill(
        &mut self,
        family: Family,
        table: &str,
        sets: AnonymousMessages,
        keys: &HashMap<Name, NumberRange>,
        meanwhile: AllowedChanges,
    ) -> Result<AnonymousSets, Error> {
        let (by_key, dumped): (Vec<_>, Vec<_>) = sets.into_iter().partition(|(name, message)| {
            // A request by key is sufficient only if the keys of the set are exactly these numbers.
            // A set of another size has further elements.
            keys.get(name)
                .is_some_and(|numbers| message.size == Some(numbers.count))
        });
        let mut filled = AnonymousSets::with_capacity(by_key.len() + dumped.len());
        let mut rest = by_key.as_slice();
        let mut found = HashMap::with_capacity(by_key.len());
        while !rest.is_empty() {
            rest = self.ask_by_key(family, table, rest, keys, &mut found)?;
        }
        for (name, message) in by_key.into_iter().chain(dumped) {
            let elements = match found.remove(&name) {
                Some(elements) => elements,
                None => self.elements_of(family, table, &name, meanwhile)?,
            };
            let mut set = AnonymousSet {
                elements,
                ..message.set
            };
            in_order(&mut set);
            filled.insert(name, Arc::new(set));
        }
        Ok(filled)
    }

    /// Requests the elements of the first sets by key, as many sets as one send can cover, and adds
    /// them to `found`. Returns the remaining sets. Adds no entry for a set that lacks an element
    /// for one of its keys.
    fn ask_by_key<'a>(
        &mut self,
        family: Family,
        table: &str,
        sets: &'a [(Name, AnonymousMessage)],
        keys: &HashMap<Name, NumberRange>,
        found: &mut HashMap<Name, Vec<Element>>,
    ) -> Result<&'a [(Name, AnonymousMessage)], Error> {
        let mut batch = Batch::new();
        let (mut answers, mut asked) = (0, 0);
        for (name, _) in sets {
            let numbers = keys.get(name).copied().unwrap_or_default();
            answers += numbers.count;
            if asked > 0 && answers > ANSWERS {
                break;
            }
            asked += 1;
            batch.push(message(command::GET_ELEMENTS), 0, |w| {
                header(w, family as u8);
                list_keys(w, table, name, numbers.keys());
            });
        }
        let (ours, rest) = sets.split_at_checked(asked).unwrap_or((sets, &[]));
        let answers = self.connection.transact(&mut batch)?;
        for (_, payload) in answers.echoed.iter() {
            let name = decode::elements_set(payload)?;
            decode::elements(payload, found.entry(name).or_default())?;
        }
        for (index, refusal) in answers.refused {
            match (refusal.errno, ours.get(index)) {
                // The set has no element with this number, or the kernel does not support the
                // request. Without an entry in `found`, the caller dumps this set.
                (libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP, Some((name, _))) => {
                    found.remove(name);
                }
                _ => return Err(netlink_batch::Error::Refused(refusal).into()),
            }
        }
        for (name, _) in ours {
            let wanted = keys.get(name).map_or(0, |numbers| numbers.count as usize);
            if found.get(name).is_some_and(|found| found.len() != wanted) {
                found.remove(name);
            }
        }
        Ok(rest)
    }
}

/// Sorts elements by key, because the kernel returns them in hash order. Compares numbers in host
/// byte order by value.
fn in_order(set: &mut AnonymousSet) {
    let is_number = matches!(*set.key, [DataType::Integer | DataType::Mark]);
    let number = |element: &Element| match <[u8; 4]>::try_from(&*element.key) {
        Ok(bytes) if is_number => u32::from_ne_bytes(bytes),
        _ => 0,
    };
    set.elements.sort_by(|a, b| {
        let order = number(a).cmp(&number(b));
        order.then_with(|| (&a.key, !a.ends_interval).cmp(&(&b.key, !b.ends_interval)))
    });
}

/// A range of consecutive numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct NumberRange {
    first: u32,
    count: u32,
}

impl NumberRange {
    fn keys(self) -> impl Iterator<Item = Bytes> {
        let numbers = self.first..self.first.saturating_add(self.count);
        numbers.map(|number| Bytes::from_slice(&number.to_ne_bytes()))
    }
}

/// Returns the sets in which a rule looks up a number that it has generated, each with the range of
/// these numbers.
fn numbered(messages: &[RuleMessage]) -> HashMap<Name, NumberRange> {
    let mut found = HashMap::new();
    for message in messages {
        let mut made = None;
        for expression in &message.expressions {
            match (expression, made) {
                (
                    Expression::NumGen {
                        modulus,
                        offset,
                        to,
                        ..
                    }
                    | Expression::Jhash {
                        modulus,
                        offset,
                        to,
                        ..
                    },
                    _,
                ) if *modulus <= ANSWERS => {
                    let numbers = NumberRange {
                        first: *offset,
                        count: *modulus,
                    };
                    made = Some((*to, numbers));
                }
                (
                    Expression::Lookup {
                        key,
                        set: SetRef::Named(name),
                        ..
                    },
                    Some((to, numbers)),
                ) if *key == to => {
                    found.insert(Arc::clone(name), numbers);
                    made = None;
                }
                // Any other expression may overwrite the register that holds the generated number.
                // So the number is unknown from here.
                _ => made = None,
            }
        }
    }
    found
}

/// Returns the name of the set that an expression refers to by name, if any.
fn set_name(expression: &Expression) -> Option<&Name> {
    match expression.set()? {
        SetRef::Named(name) => Some(name),
        SetRef::Anonymous(_) => None,
    }
}
