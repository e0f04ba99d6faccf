//! Types for nf\_tables tables, and for the chains, sets, elements and counters in them.

use std::sync::Arc;
use std::time::Duration;

use crate::value::{Bytes, DataType, Family, Name, Verdict};

/// A table of nf\_tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Table {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub name: Name,
    /// State of the table: active or dormant (`NFT_TABLE_F_DORMANT`).
    pub activity: Activity,
    /// Comment in `nft`'s format (`NFTA_TABLE_USERDATA`, Linux 5.10), if any.
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

/// State of a table: active or dormant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Activity {
    /// State in which the table's base chains receive packets.
    #[default]
    Active,
    /// State in which the table's base chains receive no packets (`flags dormant`).
    Dormant,
}

/// A chain of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chain {
    /// Name of the chain.
    pub name: Name,
    /// Hook of a base chain, or `None` for a regular chain.
    pub base: Option<BaseChain>,
    /// Comment in `nft`'s format (`NFTA_CHAIN_USERDATA`, Linux 5.10), if any.
    pub comment: Option<Arc<str>>,
}

/// Hook of a base chain, with the chain's type, priority and policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BaseChain {
    /// Type of the chain.
    pub kind: ChainKind,
    /// Hook at which the kernel calls the chain.
    pub hook: Hook,
    /// Priority among the chains of the same hook. The kernel calls the lowest first.
    pub priority: i32,
    /// Verdict on packets that reach the end of the chain.
    pub policy: Policy,
}

/// Type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// Chain that sees every packet (`filter`).
    Filter,
    /// Chain that sees only the first packet of each connection (`nat`).
    Nat,
    /// Chain on the output hook that makes the kernel route a changed packet again (`route`).
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

/// Netfilter hook on a packet's path through the kernel (`NF_INET_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Hook {
    /// Hook for incoming packets, before routing.
    Prerouting = 0,
    /// Hook for packets to this host.
    Input = 1,
    /// Hook for forwarded packets.
    Forward = 2,
    /// Hook for packets that this host sends.
    Output = 3,
    /// Hook for packets after routing, forwarded or sent by this host.
    Postrouting = 4,
}

/// Verdict on packets that reach the end of a base chain.
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
    /// Name of the set.
    pub name: Name,
    /// Data types of the key's parts. A key with more than one part is a concatenation.
    pub key: Vec<DataType>,
    /// Kind of data that elements hold.
    pub kind: SetKind,
    /// True if keys are ranges instead of single values (`NFT_SET_INTERVAL`).
    pub intervals: bool,
    /// True if rules can add elements to the set (`NFT_SET_EVAL`).
    pub dynamic: bool,
    /// Timeout of elements, or `None` if they never expire (`NFT_SET_TIMEOUT`).
    pub timeout: Option<Timeout>,
    /// Largest number of elements, or `None` for no limit.
    pub size: Option<u32>,
    /// Packet fields that the keys and values come from (`typeof` in `nft`), if known. The kernel
    /// stores them in the set's user data, next to the comment. `nft` needs them to print a set
    /// whose key contains a number, or whose values are ports.
    pub type_of: Option<TypeOf>,
    /// Comment in `nft`'s format (`NFTA_SET_USERDATA`), if any.
    pub comment: Option<Arc<str>>,
}

impl Set {
    /// Creates a set of single keys without timeout, size limit or comment. Rules cannot add
    /// elements to this set.
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

/// Packet fields of the addresses, ports and numbers in a key or value (`typeof` in `nft`):
///
/// - an address is the packet's destination;
/// - a port is the destination port of this protocol;
/// - a number comes from `numgen random`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TypeOf {
    /// TCP destination port (`tcp dport`).
    Tcp,
    /// UDP destination port (`udp dport`).
    Udp,
    /// SCTP destination port (`sctp dport`).
    Sctp,
}

impl TypeOf {
    /// All values of the enum.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];
}

/// Timeout of the elements of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timeout {
    /// No default: each element sets its own timeout.
    OfElements,
    /// Default timeout, for elements that set no timeout of their own.
    Default(Duration),
}

/// Kind of data that a set's elements hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SetKind {
    /// No data: the object is a set.
    Set,
    /// Values of these types: the object is a map.
    Map(Vec<DataType>),
    /// Verdicts: the object is a verdict map.
    Verdicts,
}

/// A set or map that belongs to one rule, with its elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AnonymousSet {
    /// Data types of the key's parts.
    pub key: Vec<DataType>,
    /// Kind of data that elements hold.
    pub kind: SetKind,
    /// True if keys are ranges instead of single values.
    pub intervals: bool,
    /// Elements in the order of their keys, as `nft` sorts them.
    pub elements: Vec<Element>,
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Element {
    /// Key, or the first key of a range.
    pub key: Bytes,
    /// Last key of a range of concatenations (`NFTA_SET_ELEM_KEY_END`, Linux 5.6). `None` for all
    /// other elements.
    pub key_end: Option<Bytes>,
    /// True for a marker that ends an interval (`NFT_SET_ELEM_INTERVAL_END`). The marker's key is
    /// the first key after the interval.
    pub ends_interval: bool,
    /// Value or verdict of a map's element. `None` in a set.
    pub data: Option<ElementData>,
    /// Comment in `nft`'s format (`NFTA_SET_ELEM_USERDATA`), if any.
    pub comment: Option<Arc<str>>,
    /// Timeout of the element, counted from its last addition or update, or `None` for the default
    /// timeout of the set.
    pub timeout: Option<Duration>,
}

/// Data of a map's element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ElementData {
    /// Value of an element in a map.
    Value(Bytes),
    /// Verdict of an element in a verdict map.
    Verdict(Verdict),
}

impl Element {
    /// Creates an element of a set, without timeout and comment.
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

    /// Adds a comment to the element.
    #[must_use]
    pub fn with_comment(self, comment: impl Into<Arc<str>>) -> Self {
        Self {
            comment: Some(comment.into()),
            ..self
        }
    }
}

/// A named set as the kernel returns it, with its handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSet {
    /// Handle of the set in the kernel.
    pub handle: u64,
    /// Definition of the set.
    pub set: Set,
    /// Flags (`NFT_SET_*`) that [`Set`] cannot represent. 0 for sets that this crate created.
    pub other_flags: u32,
}

/// A named counter of a table, used by rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCounter {
    /// Name of the counter.
    pub name: Name,
    /// Number of counted packets.
    pub packets: u64,
    /// Number of counted bytes.
    pub bytes: u64,
}

/// A base chain, with the family and name of its table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookedChain {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: Name,
    /// Name of the chain.
    pub chain: Name,
    /// Hook of the chain, or `None` for a hook that [`Hook`] lacks (`ingress`, `egress`).
    pub base: Option<BaseChain>,
}
