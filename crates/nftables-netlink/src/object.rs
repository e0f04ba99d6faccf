//! The objects of a table: chains, sets, elements, counters.

use std::sync::Arc;
use std::time::Duration;

use crate::value::{Bytes, DataType, Family, Name, Verdict};

/// A table of nf\_tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Table {
    /// The table's family.
    pub family: Family,
    /// The table's name.
    pub name: Name,
    /// The state of the table: active or dormant (`NFT_TABLE_F_DORMANT`).
    pub activity: Activity,
    /// Comment in `nft`'s format (`NFTA_TABLE_USERDATA`, Linux 5.10).
    pub comment: Option<Arc<str>>,
}

impl Table {
    /// Creates an active table without a comment.
    pub fn new(family: Family, name: Name) -> Self {
        Self {
            family,
            name,
            activity: Activity::Active,
            comment: None,
        }
    }
}

/// The state of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Activity {
    /// Its base chains receive packets.
    #[default]
    Active,
    /// Its base chains receive no packets (`flags dormant`).
    Dormant,
}

/// A chain of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The chain's name.
    pub name: Name,
    /// Hook of a base chain; `None` for a regular chain.
    pub base: Option<BaseChain>,
    /// Comment in `nft`'s format (`NFTA_CHAIN_USERDATA`, Linux 5.10).
    pub comment: Option<Arc<str>>,
}

/// The hook of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BaseChain {
    /// The chain type.
    pub kind: ChainKind,
    /// The hook that calls the chain.
    pub hook: Hook,
    /// The order among chains of a hook, lowest first.
    pub priority: i32,
    /// The verdict at the end of the chain.
    pub policy: Policy,
}

/// The type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// `filter`: sees every packet.
    Filter,
    /// `nat`: sees only the first packet of a connection.
    Nat,
    /// `route`: on output, a changed packet is routed again.
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

/// Hook of the kernel's packet path (`NF_INET_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Hook {
    /// Before routing.
    Prerouting = 0,
    /// Packets for this host.
    Input = 1,
    /// Packets that are forwarded.
    Forward = 2,
    /// Packets from this host.
    Output = 3,
    /// After routing.
    Postrouting = 4,
}

/// The verdict at the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Policy {
    /// Drops the packet.
    Drop = 0,
    /// Accepts the packet.
    Accept = 1,
}

/// A named set, map or verdict map, without its elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Set {
    /// The set's name.
    pub name: Name,
    /// The types of the key's parts; several parts are a concatenation.
    pub key: Vec<DataType>,
    /// The kind of data that elements hold.
    pub kind: SetKind,
    /// True if keys are ranges (`NFT_SET_INTERVAL`).
    pub intervals: bool,
    /// True if rules add elements (`NFT_SET_EVAL`).
    pub dynamic: bool,
    /// The timeout of elements, if they expire (`NFT_SET_TIMEOUT`).
    pub timeout: Option<Timeout>,
    /// The largest number of elements.
    pub size: Option<u32>,
    /// The packet fields that keys and values come from. `nft` needs them to read back a set whose
    /// key has a number or whose values are ports. The kernel stores them beside the comment.
    pub type_of: Option<TypeOf>,
    /// Comment in `nft`'s format (`NFTA_SET_USERDATA`).
    pub comment: Option<Arc<str>>,
}

impl Set {
    /// Creates a set of single keys without timeout, size limit or comment. Only transactions
    /// change it.
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

/// The packet fields that the parts of a key or value come from. An address is the destination's, a
/// port is the destination port of this protocol, and a number comes from `numgen random`.
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
    /// All values.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];
}

/// The timeout of a set's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timeout {
    /// Each element has its own timeout.
    OfElements,
    /// The timeout of elements without their own.
    Default(Duration),
}

/// The kind of data that a set's elements hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SetKind {
    /// No data: a set.
    Set,
    /// Values of these types: a map.
    Map(Vec<DataType>),
    /// Verdicts: a verdict map.
    Verdicts,
}

/// A set or map that belongs to one rule, with its elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AnonymousSet {
    /// The types of the key's parts.
    pub key: Vec<DataType>,
    /// The kind of data that elements hold.
    pub kind: SetKind,
    /// True if keys are ranges.
    pub intervals: bool,
    /// The elements, ordered by key as `nft` does.
    pub elements: Vec<Element>,
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Element {
    /// The key, or the first key of a range.
    pub key: Bytes,
    /// The last key of a range of concatenations (`NFTA_SET_ELEM_KEY_END`, Linux 5.6); `None` for
    /// all other elements.
    pub key_end: Option<Bytes>,
    /// True for a marker that ends an interval: from this key on, the set is empty
    /// (`NFT_SET_ELEM_INTERVAL_END`).
    pub ends_interval: bool,
    /// The value or verdict of a map's element.
    pub data: Option<ElementData>,
    /// Comment in `nft`'s format (`NFTA_SET_ELEM_USERDATA`).
    pub comment: Option<Arc<str>>,
    /// The element's timeout, counted from its last addition or update; without one the set's
    /// default applies.
    pub timeout: Option<Duration>,
}

/// The data of a map's element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ElementData {
    /// A value.
    Value(Bytes),
    /// A verdict.
    Verdict(Verdict),
}

impl Element {
    /// Creates an element of a set.
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

    /// Creates an element of a map.
    pub fn of_map(key: Bytes, value: Bytes) -> Self {
        Self {
            data: Some(ElementData::Value(value)),
            ..Self::of_set(key)
        }
    }

    /// Creates an element of a verdict map.
    pub fn of_verdicts(key: Bytes, verdict: Verdict) -> Self {
        Self {
            data: Some(ElementData::Verdict(verdict)),
            ..Self::of_set(key)
        }
    }

    /// Returns the element with a comment.
    #[must_use]
    pub fn with_comment(self, comment: impl Into<Arc<str>>) -> Self {
        Self {
            comment: Some(comment.into()),
            ..self
        }
    }
}

/// A named set as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSet {
    /// The kernel's handle of the set.
    pub handle: u64,
    /// The set.
    pub set: Set,
    /// Flags (`NFT_SET_*`) that [`Set`] does not represent; 0 for sets that this crate created.
    pub other_flags: u32,
}

/// A named counter of a table, used by rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCounter {
    /// The counter's name.
    pub name: Name,
    /// The packets counted.
    pub packets: u64,
    /// The bytes counted.
    pub bytes: u64,
}

/// A base chain and its table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookedChain {
    /// The family of its table.
    pub family: Family,
    /// The table's name.
    pub table: Name,
    /// The chain's name.
    pub chain: Name,
    /// The chain's hook; `None` for a hook that only other families have (`ingress`, `egress`).
    pub base: Option<BaseChain>,
}
