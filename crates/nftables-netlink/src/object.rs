//! What a table holds.

use std::sync::Arc;
use std::time::Duration;

use crate::value::{Bytes, DataType, Family, Name, Verdict};

/// A table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Table {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: Name,
    /// Whether its chains get packets (`NFT_TABLE_F_DORMANT`).
    pub activity: Activity,
    /// As `nft` keeps one (`NFTA_TABLE_USERDATA`, Linux 5.10).
    pub comment: Option<Arc<str>>,
}

impl Table {
    /// An active table without a comment.
    pub fn new(family: Family, name: Name) -> Self {
        Self {
            family,
            name,
            activity: Activity::Active,
            comment: None,
        }
    }
}

/// Whether packets come to the base chains of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Activity {
    /// They do.
    #[default]
    Active,
    /// None does: `flags dormant`.
    Dormant,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Its name.
    pub name: Name,
    /// Where packets come into it, if not from other chains alone.
    pub base: Option<BaseChain>,
    /// As `nft` keeps one (`NFTA_CHAIN_USERDATA`, Linux 5.10).
    pub comment: Option<Arc<str>>,
}

/// How a base chain hangs on the packets' way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BaseChain {
    /// What may be done in it.
    pub kind: ChainKind,
    /// Where.
    pub hook: Hook,
    /// Lower ones come first.
    pub priority: i32,
    /// What becomes of packets at its end.
    pub policy: Policy,
}

/// The type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// `filter`.
    Filter,
    /// `nat`: only the first packet of a connection.
    Nat,
    /// `route`: on output, packets are routed anew.
    Route,
}

impl ChainKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

/// `NF_INET_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Hook {
    /// Before routing.
    Prerouting = 0,
    /// To this host.
    Input = 1,
    /// Through this host.
    Forward = 2,
    /// From this host.
    Output = 3,
    /// After routing.
    Postrouting = 4,
}

/// What becomes of packets at the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Policy {
    /// They end.
    Drop = 0,
    /// They go on.
    Accept = 1,
}

/// A named set, map or verdict map, without its elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Set {
    /// Its name.
    pub name: Name,
    /// The parts of its keys; more than one is a concatenation.
    pub key: Vec<DataType>,
    /// What its elements lead to.
    pub kind: SetKind,
    /// Keys are ranges (`NFT_SET_INTERVAL`).
    pub intervals: bool,
    /// Rules put elements into it (`NFT_SET_EVAL`).
    pub dynamic: bool,
    /// Elements end by themselves (`NFT_SET_TIMEOUT`), by default after this.
    pub timeout: Option<Timeout>,
    /// At most so many elements.
    pub size: Option<u32>,
    /// Of which fields of a packet its keys and values are: `nft` cannot read a set back whose key
    /// has a number in it, or whose values are ports, by their types alone. The kernel keeps it
    /// with the comment.
    pub type_of: Option<TypeOf>,
    /// As `nft` keeps one (`NFTA_SET_USERDATA`).
    pub comment: Option<Arc<str>>,
}

impl Set {
    /// A set of single keys, which only transactions change, of any size.
    pub fn new(name: Name, key: Vec<DataType>, kind: SetKind) -> Self {
        Self {
            name,
            key,
            kind,
            intervals: false,
            dynamic: false,
            timeout: None,
            size: None,
            type_of: None,
            comment: None,
        }
    }
}

/// Of which fields of a packet the parts of a key and of a value are: an address is that of its
/// destination, a port the destination's of this protocol, and a number one that `numgen random`
/// makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TypeOf {
    /// `tcp dport`
    Tcp,
    /// `udp dport`
    Udp,
    /// `sctp dport`
    Sctp,
}

impl TypeOf {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];
}

/// How long elements of a set stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timeout {
    /// As each says.
    OfElements,
    /// So long where they do not say.
    Default(Duration),
}

/// What the elements of a set lead to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SetKind {
    /// Nothing: a set.
    Set,
    /// Values: a map.
    Map(Vec<DataType>),
    /// Verdicts: a verdict map.
    Verdicts,
}

/// A set or map that belongs to one rule, whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AnonymousSet {
    /// The parts of its keys.
    pub key: Vec<DataType>,
    /// What its elements lead to.
    pub kind: SetKind,
    /// Keys are ranges.
    pub intervals: bool,
    /// Its elements, as `nft` orders them: by key.
    pub elements: Vec<Element>,
}

/// An element of a set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Element {
    /// Its key; in a set of intervals the first of a range.
    pub key: Bytes,
    /// The last of a range of concatenations (`NFTA_SET_ELEM_KEY_END`, Linux 5.6); no other element
    /// has one.
    pub key_end: Option<Bytes>,
    /// In a set of intervals: nothing is in the set from this key on
    /// (`NFT_SET_ELEM_INTERVAL_END`).
    pub ends_interval: bool,
    /// What it leads to.
    pub data: Option<ElementData>,
    /// As `nft` keeps one (`NFTA_SET_ELEM_USERDATA`).
    pub comment: Option<Arc<str>>,
    /// How long it stays from when it was added or prolonged; else as long as the set says.
    pub timeout: Option<Duration>,
}

/// What an element leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ElementData {
    /// A value.
    Value(Bytes),
    /// A verdict.
    Verdict(Verdict),
}

impl Element {
    /// An element of a set.
    pub fn of_set(key: Bytes) -> Self {
        Self {
            key,
            key_end: None,
            ends_interval: false,
            data: None,
            comment: None,
            timeout: None,
        }
    }

    /// An element of a map.
    pub fn of_map(key: Bytes, value: Bytes) -> Self {
        Self {
            data: Some(ElementData::Value(value)),
            ..Self::of_set(key)
        }
    }

    /// An element of a verdict map.
    pub fn of_verdicts(key: Bytes, verdict: Verdict) -> Self {
        Self {
            data: Some(ElementData::Verdict(verdict)),
            ..Self::of_set(key)
        }
    }

    /// The same with a comment.
    #[must_use]
    pub fn with_comment(self, comment: impl Into<Arc<str>>) -> Self {
        Self {
            comment: Some(comment.into()),
            ..self
        }
    }
}

/// A named set that is in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSet {
    /// By which the kernel knows it.
    pub handle: u64,
    /// The set.
    pub set: Set,
    /// Those of its flags (`NFT_SET_*`) that [`Set`] has no word for; 0 of any set that this crate
    /// made.
    pub other_flags: u32,
}

/// A counter of a table that rules name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCounter {
    /// Its name.
    pub name: Name,
    /// Packets so far.
    pub packets: u64,
    /// Bytes so far.
    pub bytes: u64,
}

/// Where packets come into a table: a base chain, and of which table it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hooked {
    /// The family of its table.
    pub family: Family,
    /// Its table.
    pub table: Name,
    /// Its name.
    pub chain: Name,
    /// Where it hangs. `None` of a hook that only other families have (`ingress`, `egress`).
    pub base: Option<BaseChain>,
}
