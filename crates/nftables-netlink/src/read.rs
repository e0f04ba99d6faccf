//! Reading a table whole, and rules with the sets that belong to them alone.
//!
//! The kernel has a dump for each set, and looks for the set among all of the table, three times
//! for one dump: of a table with 10,000 such sets that is what takes the time. Where a set's keys
//! are known, as numbers up to a modulus are, its elements are asked for by key instead: it is
//! looked for once then, and many sets are asked about in one send.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use netlink_batch::Batch;

use crate::decode::{self, Anonymous, AnonymousMessage, AnySet, RuleMessage};
use crate::encode::{header, list_keys};
use crate::error::Error;
use crate::expression::{Expression, FoundRule, SetRef};
use crate::nftables::{Meanwhile, Nftables};
use crate::object::{AnonymousSet, Chain, Element, FoundSet, NamedCounter, Table};
use crate::transaction::Generation;
use crate::value::{Bytes, DataType, Family, Name};
use crate::watch::Watch;
use crate::wire::{command, message, set};

/// How often a table is read that changes meanwhile.
const READS: u32 = 6;
/// Before the second read; doubled before each further one.
const PAUSE: Duration = Duration::from_millis(2);
/// Most elements that are asked for by key in one send. Each answer takes about 5 kB of the receive
/// buffer.
const ANSWERS: u32 = 1024;

/// All that a table holds, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whole {
    /// That of the moment.
    pub generation: Generation,
    /// The table itself; `None` where there is none, and nothing else then.
    pub table: Option<Table>,
    /// Its chains.
    pub chains: Vec<Chain>,
    /// The numbers by which the kernel knows its chains. A table numbers chains, sets and rules in
    /// the order in which they are made.
    pub chain_handles: HashMap<Name, u64>,
    /// Its named sets and maps, each with its elements; without those that rules put into it
    /// ([`Set::dynamic`](crate::Set)), which come and go with packets and may be very many.
    pub sets: Vec<(FoundSet, Vec<Element>)>,
    /// Its named counters.
    pub counters: Vec<NamedCounter>,
    /// Its rules; those of a chain in their order.
    pub rules: Vec<FoundRule>,
}

/// The same, each with its elements.
type Filled = HashMap<Name, Arc<AnonymousSet>>;

impl Nftables {
    /// The rules of a table, chain by chain, with the sets that belong to them alone; none where
    /// there is no such table.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
    pub fn rules(&mut self, family: Family, table: &str) -> Result<Vec<FoundRule>, Error> {
        let meanwhile = Meanwhile::Nothing;
        let messages = self.rule_messages(family, table, None, meanwhile)?;
        let (_, anonymous) = self.all_sets(family, table, meanwhile)?;
        self.with_sets(family, table, messages, anonymous, meanwhile)
    }

    /// The rules of a chain, in their order, with the sets that belong to them alone.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
    pub fn rules_of_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<Vec<FoundRule>, Error> {
        let meanwhile = Meanwhile::Nothing;
        let messages = self.rule_messages(family, table, Some(chain), meanwhile)?;
        let mut anonymous = Anonymous::new();
        for name in messages
            .iter()
            .flat_map(|message| &message.expressions)
            .filter_map(set_name)
        {
            let answer = self.connection.request(message(command::GET_SET), 0, |w| {
                header(w, family as u8);
                w.attr_str(set::TABLE, table);
                w.attr_str(set::NAME, name);
            })?;
            for (_, payload) in answer.iter() {
                if let Some(AnySet::Anonymous(name, found)) = decode::set_of(table, payload)? {
                    anonymous.insert(name, found);
                }
            }
        }
        self.with_sets(family, table, messages, anonymous, meanwhile)
    }

    /// The rules of a chain, in their order. Sets that belong to a rule alone are not read, and stand
    /// in it by their names.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
    pub fn bare_rules_of_chain(
        &mut self,
        family: Family,
        table: &str,
        chain: &str,
    ) -> Result<Vec<FoundRule>, Error> {
        let messages = self.rule_messages(family, table, Some(chain), Meanwhile::OtherTables)?;
        let rules = messages.into_iter().map(RuleMessage::found);
        Ok(rules.collect())
    }

    /// All of a table, as of one moment: it is read again where somebody changes it meanwhile. What
    /// is done to other tables of the namespace does not matter.
    ///
    /// # Errors
    ///
    /// [`Error::Changing`] if it is changed at each attempt; else the socket's or the kernel's
    /// refusal.
    pub fn read(&mut self, family: Family, table: &str) -> Result<Whole, Error> {
        let mut pause = PAUSE;
        for attempt in 1..=READS {
            let mut watch = Watch::begin(self, family, table)?;
            let whole = self.read_once(&mut watch);
            // An error may come of what is there no more.
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

    fn read_once(&mut self, watch: &mut Watch<'_>) -> Result<Whole, Error> {
        let (family, table) = (watch.family, watch.table);
        let found = self.tables(Some(family))?;
        let mut whole = Whole {
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
        // The kernel counts chains of all tables to go on where it was: this dump is taken only
        // whole. Of rules, sets and elements it counts those of the table alone.
        for (handle, chain) in self.numbered_chains(family, table)? {
            whole.chain_handles.insert(Arc::clone(&chain.name), handle);
            whole.chains.push(chain);
        }
        let meanwhile = Meanwhile::OtherTables;
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

    /// Rules with their anonymous sets in them.
    fn with_sets(
        &mut self,
        family: Family,
        table: &str,
        messages: Vec<RuleMessage>,
        anonymous: Anonymous,
        meanwhile: Meanwhile,
    ) -> Result<Vec<FoundRule>, Error> {
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

    /// Reads the elements of these sets.
    fn fill(
        &mut self,
        family: Family,
        table: &str,
        sets: Anonymous,
        keys: &HashMap<Name, Numbers>,
        meanwhile: Meanwhile,
    ) -> Result<Filled, Error> {
        let (by_key, dumped): (Vec<_>, Vec<_>) = sets.into_iter().partition(|(name, message)| {
            // More elements than numbers, and the others would stay unseen.
            keys.get(name)
                .is_some_and(|numbers| message.size == Some(numbers.count))
        });
        let mut filled = Filled::with_capacity(by_key.len() + dumped.len());
        let mut add = |name, mut set: AnonymousSet| {
            in_order(&mut set);
            filled.insert(name, Arc::new(set));
        };
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
            let set = AnonymousSet {
                elements,
                ..message.set
            };
            add(name, set);
        }
        Ok(filled)
    }

    /// Asks for the elements of as many of these sets as one send may ask, and gives the others.
    /// Of a set that does not have all its numbers none are found.
    fn ask_by_key<'a>(
        &mut self,
        family: Family,
        table: &str,
        sets: &'a [(Name, AnonymousMessage)],
        keys: &HashMap<Name, Numbers>,
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
                // A number has no element, or the kernel cannot be asked so: a dump tells.
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

/// Orders elements by key, as the kernel's order is that of a hash. Numbers of the kernel's own order
/// of bytes come as numbers.
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

/// Numbers that follow each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Numbers {
    first: u32,
    count: u32,
}

impl Numbers {
    fn keys(self) -> impl Iterator<Item = Bytes> {
        let numbers = self.first..self.first.saturating_add(self.count);
        numbers.map(|number| Bytes::from_slice(&number.to_ne_bytes()))
    }
}

/// The sets whose keys are numbers that the rule makes, and which.
fn numbered(messages: &[RuleMessage]) -> HashMap<Name, Numbers> {
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
                    let numbers = Numbers {
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
                // What comes between may write the register.
                _ => made = None,
            }
        }
    }
    found
}

/// The set that an expression names.
fn set_name(expression: &Expression) -> Option<&Name> {
    match expression {
        Expression::Lookup {
            set: SetRef::Named(name),
            ..
        }
        | Expression::Dynset {
            set: SetRef::Named(name),
            ..
        } => Some(name),
        _ => None,
    }
}
