//! Evaluates the rules of a table for one packet, as the kernel would.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nftables_netlink::{
    AnonymousSet, ChainKind, Comparison, CtKey, DataType, Element, ElementData, Expression,
    FIB_SOURCE, Hook, LookupFor, Membership, MetaKey, Name, PayloadBase, Register, Rule, SetRef,
    Verdict,
};
use proxy::IpFamily;
use proxy_nftables::fake::Content;

use crate::{NODE, at};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
}

/// The first packet of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packet {
    pub(crate) way: Direction,
    pub(crate) protocol: u8,
    pub(crate) source: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) port: u16,
}

/// Outcome of a packet after it has traversed all chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Dropped,
    Rejected,
    Sent {
        to: IpAddr,
        port: u16,
        is_masqueraded: bool,
    },
}

/// Effect of a rule or chain on the evaluation of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The evaluation continues with the next rule.
    Next,
    /// The chain ends, and the chain that called it continues.
    Return,
    Accept,
    Drop,
    Reject,
}

/// Evaluation of the rules for one packet, along its path through the hooks.
struct Run<'a> {
    content: &'a Content,
    /// Base chains, in the order of their priority.
    hooked: &'a [Name],
    packet: Packet,
    mark: u32,
    is_translated: bool,
    is_masqueraded: bool,
    /// Number that `numgen` returns for this packet.
    random: u32,
    has_chosen: bool,
    registers: [u8; 64],
}

/// A table with its chains, sets and maps.
pub(crate) struct TableModel {
    content: Content,
    hooked: Vec<Name>,
}

impl TableModel {
    pub(crate) fn new(content: Content) -> Self {
        let chains = content.chains.values();
        let hooked = chains.filter_map(|(chain, _)| Some((chain.base?.priority, &chain.name)));
        let mut hooked: Vec<_> = hooked.collect();
        hooked.sort();
        let hooked = hooked.into_iter().map(|(_, name)| name.clone()).collect();
        Self { content, hooked }
    }
}

impl TableModel {
    /// Returns all elements of the maps of endpoints, each with the name of its map.
    pub(crate) fn endpoints(&self) -> Vec<(Name, Element)> {
        let sets = self.content.sets.iter();
        let maps = sets.filter(|(name, _)| name.starts_with("endpoints-"));
        maps.flat_map(|(name, (_, all))| all.values().map(|of| (name.clone(), of.clone())))
            .collect()
    }

    /// Removes an element as another program would.
    pub(crate) fn take(&mut self, (map, element): &(Name, Element)) {
        let (_, elements) = self.content.sets.get_mut(map).unwrap();
        elements.remove(&element.key).unwrap();
    }

    /// Adds an element that [`take`](Self::take) has removed.
    pub(crate) fn put(&mut self, (map, element): &(Name, Element)) {
        let (_, elements) = self.content.sets.get_mut(map).unwrap();
        elements.insert(element.key.clone(), element.clone());
    }
}

fn local(address: IpAddr) -> bool {
    address == at(IpFamily::of(address), NODE) || address.is_loopback()
}

impl Run<'_> {
    fn read(&self, from: Register, len: usize) -> &[u8] {
        let at = usize::from(from.place()) * 4;
        &self.registers[at..at + len]
    }

    fn write(&mut self, to: Register, bytes: &[u8]) {
        let at = usize::from(to.place()) * 4;
        let end = bytes.len().next_multiple_of(4);
        self.registers[at..at + end].fill(0);
        self.registers[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn hook(&mut self, hook: Hook, has_nat: bool) -> End {
        let content = self.content;
        // Evaluates the base chains of this hook in the order of their priority.
        for name in self.hooked {
            let (chain, rules) = &content.chains[name];
            let base = chain.base.unwrap();
            if base.hook == hook && (has_nat || base.kind != ChainKind::Nat) {
                let end = self.rules(rules);
                if matches!(end, End::Drop | End::Reject) {
                    return end;
                }
            }
        }
        End::Accept
    }

    fn chain(&mut self, name: &str) -> End {
        let (_, rules) = &self.content.chains[name];
        self.rules(rules)
    }

    fn rules(&mut self, rules: &[Rule]) -> End {
        for rule in rules {
            match self.rule(rule) {
                End::Next => {}
                end => return end,
            }
        }
        End::Return
    }

    fn verdict(&mut self, verdict: &Verdict) -> End {
        match verdict {
            Verdict::Accept => End::Accept,
            Verdict::Drop => End::Drop,
            Verdict::Continue => End::Next,
            Verdict::Return => End::Return,
            Verdict::Goto(chain) => self.chain(chain),
            Verdict::Jump(chain) => match self.chain(chain) {
                End::Return => End::Next,
                end => end,
            },
        }
    }

    fn rule(&mut self, rule: &Rule) -> End {
        for expression in &rule.expressions {
            match expression {
                Expression::Verdict(verdict) => return self.verdict(verdict),
                Expression::Reject { .. } => return End::Reject,
                Expression::Masquerade { .. } => {
                    self.is_masqueraded = true;
                    return End::Accept;
                }
                Expression::Nat { address, port, .. } => {
                    let address = address.unwrap();
                    self.packet.to = match self.packet.to {
                        IpAddr::V4(_) => <[u8; 4]>::try_from(self.read(address, 4)).unwrap().into(),
                        IpAddr::V6(_) => {
                            <[u8; 16]>::try_from(self.read(address, 16)).unwrap().into()
                        }
                    };
                    let to = self.read(port.unwrap(), 2);
                    self.packet.port = u16::from_be_bytes(to.try_into().unwrap());
                    self.is_translated = true;
                    return End::Accept;
                }
                Expression::SetMeta { key, from } => {
                    assert_eq!(*key, MetaKey::Mark);
                    let mark = self.read(*from, 4).try_into().unwrap();
                    self.mark = u32::from_ne_bytes(mark);
                }
                Expression::Compare {
                    register,
                    how,
                    with,
                } => {
                    let is_equal = self.read(*register, with.len()) == &with[..];
                    if is_equal != (*how == Comparison::Equal) {
                        return End::Next;
                    }
                }
                Expression::Lookup { key, set, what } => match self.lookup(*key, set, *what) {
                    End::Accept => {}
                    end => return end,
                },
                // Ignores session affinity: no set contains a client.
                Expression::Dynset { .. } => {}
                other => self.load(other),
            }
        }
        End::Next
    }

    fn load(&mut self, expression: &Expression) {
        match expression {
            Expression::Payload {
                base,
                offset,
                len,
                to,
            } => {
                let (source, destination) = (self.packet.source, self.packet.to);
                let bytes = match (base, offset, source) {
                    (PayloadBase::Network, 12, IpAddr::V4(_))
                    | (PayloadBase::Network, 8, IpAddr::V6(_)) => octets(source),
                    (PayloadBase::Network, 16, IpAddr::V4(_))
                    | (PayloadBase::Network, 24, IpAddr::V6(_)) => octets(destination),
                    (PayloadBase::Transport, 2, _) => self.packet.port.to_be_bytes().to_vec(),
                    _ => panic!("{expression:?}"),
                };
                let len = usize::try_from(*len).unwrap();
                self.write(*to, &bytes[..len]);
            }
            Expression::Meta { key, to } => match key {
                MetaKey::L4Proto => self.write(*to, &[self.packet.protocol]),
                MetaKey::Mark => self.write(*to, &self.mark.to_ne_bytes()),
                _ => panic!("{expression:?}"),
            },
            Expression::Ct { key, to } => {
                let bits: u32 = match key {
                    CtKey::State => 8,
                    CtKey::Status => u32::from(self.is_translated) << 5,
                    _ => panic!("{expression:?}"),
                };
                self.write(*to, &bits.to_ne_bytes());
            }
            Expression::Bitwise {
                from,
                to,
                mask,
                xor,
            } => {
                let bytes = self.read(*from, mask.len()).iter();
                let bytes = bytes
                    .zip(mask)
                    .zip(xor)
                    .map(|((of, mask), xor)| of & mask ^ xor);
                let bytes: Vec<u8> = bytes.collect();
                self.write(*to, &bytes);
            }
            Expression::Immediate { to, data } => self.write(*to, data),
            Expression::NumGen { modulus, to, .. } => {
                self.has_chosen = true;
                self.write(*to, &(self.random % modulus).to_ne_bytes());
            }
            Expression::Fib { flags, to, .. } => {
                let is_source = flags & FIB_SOURCE != 0;
                let of = if is_source {
                    self.packet.source
                } else {
                    self.packet.to
                };
                let kind: u32 = if local(of) { 2 } else { 1 };
                self.write(*to, &kind.to_ne_bytes());
            }
            other => panic!("{other:?}"),
        }
    }

    /// Evaluates a look-up in a set or map. Returns `Accept` if the rule continues with its next
    /// expression.
    fn lookup(&mut self, key: Register, set: &SetRef, what: LookupFor) -> End {
        let content = self.content;
        let found = match set {
            SetRef::Named(name) => {
                let (set, elements) = &content.sets[name];
                let key = self.read(key, DataType::key_len(&set.key));
                elements.get(key).cloned()
            }
            SetRef::Anonymous(set) => {
                find(set, self.read(key, DataType::key_len(&set.key))).cloned()
            }
        };
        match what {
            LookupFor::Membership(sense) => {
                if found.is_some() == (sense == Membership::In) {
                    End::Accept
                } else {
                    End::Next
                }
            }
            LookupFor::Value(to) => {
                let Some(element) = found else {
                    return End::Next;
                };
                let Some(ElementData::Value(value)) = &element.data else {
                    panic!("no value: {element:?}");
                };
                self.write(to, value);
                End::Accept
            }
            LookupFor::Verdict => match found.and_then(|element| element.data) {
                Some(ElementData::Verdict(verdict)) => self.verdict(&verdict),
                Some(ElementData::Value(_)) => panic!("a value"),
                None => End::Next,
            },
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn find<'a>(set: &'a AnonymousSet, key: &[u8]) -> Option<&'a Element> {
    let mut elements = set.elements.iter();
    if !set.intervals {
        return elements.find(|element| element.key[..] == *key);
    }
    let before = elements.filter(|element| element.key[..] <= *key);
    let last = before.max_by_key(|element| &element.key);
    last.filter(|element| !element.ends_interval)
}

/// Returns the outcome of a packet if `numgen` returns `random`, and true if a rule used this
/// number.
pub(crate) fn outcome(table: &TableModel, packet: Packet, random: u32) -> (Outcome, bool) {
    let mut run = Run {
        content: &table.content,
        hooked: &table.hooked,
        packet,
        mark: 0,
        is_translated: false,
        is_masqueraded: false,
        random,
        has_chosen: false,
        registers: [0; 64],
    };
    let mut end = match packet.way {
        Direction::In => run.hook(Hook::Prerouting, true),
        Direction::Out => run.hook(Hook::Output, true),
    };
    let is_here = local(run.packet.to);
    let mut next = |hook, has_nat| {
        if end == End::Accept {
            end = run.hook(hook, has_nat);
        }
    };
    match (packet.way, is_here) {
        (Direction::In, true) => next(Hook::Input, true),
        (Direction::In, false) => {
            next(Hook::Forward, true);
            next(Hook::Postrouting, true);
        }
        (Direction::Out, false) => next(Hook::Postrouting, true),
        (Direction::Out, true) => {
            next(Hook::Postrouting, true);
            // The packet arrives again on the loopback interface. Its destination no longer
            // changes.
            next(Hook::Prerouting, false);
            next(Hook::Input, false);
        }
    }
    let outcome = match end {
        End::Drop => Outcome::Dropped,
        End::Reject => Outcome::Rejected,
        _ => Outcome::Sent {
            to: run.packet.to,
            port: run.packet.port,
            is_masqueraded: run.is_masqueraded,
        },
    };
    (outcome, run.has_chosen)
}

/// Returns the outcomes of a packet for `turns` values of `numgen`, each with the number of its
/// occurrences.
pub(crate) fn outcomes(table: &TableModel, packet: Packet, turns: u32) -> BTreeMap<Outcome, u32> {
    let mut all = BTreeMap::new();
    for random in 0..turns {
        let (outcome, _) = outcome(table, packet, random);
        *all.entry(outcome).or_default() += 1;
    }
    all
}
