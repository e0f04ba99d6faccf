//! Expressions of rules: the subset of the kernel's expressions that this project needs
//! (linux/netfilter/nf_tables.h).

use std::sync::Arc;

pub use crate::kernel_enums::{
    Comparison, CtKey, DynsetOperation, FibResult, MetaKey, NatKind, NumGenKind, PayloadBase,
    TupleKey,
};
use crate::object::AnonymousSet;
use crate::value::{Bytes, Name, Register, Verdict};

/// One step of a rule. It reads and writes registers. If a comparison fails, the kernel skips the
/// rest of the rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expression {
    /// Loads bytes of the packet into a register (`payload`).
    Payload {
        /// Header that the offset is relative to.
        base: PayloadBase,
        /// Offset of the first loaded byte from the start of the header.
        offset: u32,
        /// Number of bytes to load.
        len: u32,
        /// Register that receives the bytes.
        to: Register,
    },
    /// Loads the packet's metadata into a register (`meta`).
    Meta {
        /// Metadata to load.
        key: MetaKey,
        /// Register that receives the value.
        to: Register,
    },
    /// Sets the packet's metadata from a register (`meta` with a source register).
    SetMeta {
        /// Metadata to set.
        key: MetaKey,
        /// Register with the new value.
        from: Register,
    },
    /// Loads the packet's connection tracking data into a register (`ct`).
    Ct {
        /// Connection data to load.
        key: CtKey,
        /// Register that receives the value.
        to: Register,
    },
    /// Continues if the comparison holds (`cmp`).
    Compare {
        /// Register to compare.
        register: Register,
        /// Comparison operator.
        how: Comparison,
        /// Constant with which the register is compared.
        with: Bytes,
    },
    /// Continues if the value is inside a range, or outside of it (`range`).
    Range {
        /// Register to compare.
        register: Register,
        /// Required position of the value: inside or outside the range.
        how: Membership,
        /// Lowest value of the range.
        from: Bytes,
        /// Highest value of the range.
        to: Bytes,
    },
    /// Computes `to = (from & mask) ^ xor` (`bitwise`, `NFT_BITWISE_BOOL`).
    Bitwise {
        /// Register with the value to change.
        from: Register,
        /// Register that receives the result.
        to: Register,
        /// Bits to keep. The mask is as long as the value.
        mask: Bytes,
        /// Bits to flip. This field is as long as the value.
        xor: Bytes,
    },
    /// Loads a constant into a register (`immediate`).
    Immediate {
        /// Register that receives the constant.
        to: Register,
        /// Constant to load.
        data: Bytes,
    },
    /// Ends the rule with a verdict (`immediate` into the verdict register).
    Verdict(Verdict),
    /// Looks up a key in a set or map (`lookup`):
    ///
    /// * set: the rule continues if the key is present or, for an inverted lookup, absent;
    /// * map: loads the key's value into a register;
    /// * verdict map: applies the key's verdict.
    Lookup {
        /// First register of the key.
        key: Register,
        /// Set or map to search.
        set: SetRef,
        /// Use of the lookup's result: a membership test, a value or a verdict.
        what: LookupFor,
    },
    /// Generates a number for each packet (`numgen`).
    NumGen {
        /// Method: a counter or random numbers.
        how: NumGenKind,
        /// Exclusive upper bound of the generated number, before `offset` is added.
        modulus: u32,
        /// Number that is added to the generated number.
        offset: u32,
        /// Register that receives the number, in host byte order.
        to: Register,
    },
    /// Hashes registers (`hash`, `NFT_HASH_JENKINS`).
    Jhash {
        /// First register to hash.
        from: Register,
        /// Number of bytes to hash.
        len: u32,
        /// Exclusive upper bound of the hash, before `offset` is added.
        modulus: u32,
        /// Seed of the hash, or `None` if the kernel chooses a seed.
        seed: Option<u32>,
        /// Number that is added to the hash.
        offset: u32,
        /// Register that receives the hash, in host byte order.
        to: Register,
    },
    /// Translates the packet's destination or source address (`nat`).
    Nat {
        /// Source or destination NAT.
        kind: NatKind,
        /// IP family of the new address.
        family: crate::value::Family,
        /// Register of the new address, or `None` to keep the address.
        address: Option<Register>,
        /// Register of the new port, or `None` to keep the port.
        port: Option<Register>,
        /// NAT flags (`NF_NAT_RANGE_*`) without `NF_NAT_RANGE_MAP_IPS` and
        /// `NF_NAT_RANGE_PROTO_SPECIFIED`. The kernel derives these two flags from `address` and
        /// `port`, so writes ignore them and reads clear them.
        flags: u32,
    },
    /// Replaces the source address with the outgoing interface's address (`masq`).
    Masquerade {
        /// NAT flags (`NF_NAT_RANGE_*`), for example for random ports.
        flags: u32,
    },
    /// Redirects the packet to a port of this host (`redir`).
    Redirect {
        /// Register of the new destination port, or `None` to keep the port.
        port: Option<Register>,
        /// NAT flags (`NF_NAT_RANGE_*`) without `NF_NAT_RANGE_PROTO_SPECIFIED` (2), which the
        /// kernel derives from `port`.
        flags: u32,
    },
    /// Looks up an address of the packet in the routing tables (`fib`).
    Fib {
        /// Property of the route to load.
        result: FibResult,
        /// Flags (`NFTA_FIB_F_*`) that select the address and interface to look up.
        flags: u32,
        /// Register that receives the result.
        to: Register,
    },
    /// Adds, updates or deletes an element of a set (`dynset`).
    Dynset {
        /// Set that contains the element.
        set: SetRef,
        /// Operation of the rule on the element.
        operation: DynsetOperation,
        /// First register of the key.
        key: Register,
        /// Timeout of the element in milliseconds, or `None` for the default timeout of the set.
        timeout: Option<u64>,
    },
    /// Drops the packet and notifies its sender (`reject`).
    Reject {
        /// Kind of message (`NFT_REJECT_*`): 0 is an ICMP error, 1 a TCP reset, 2 an ICMP error in
        /// the packet's IP family (`icmpx`).
        kind: u32,
        /// Code of the ICMP error. Unused in a TCP reset.
        code: u8,
    },
    /// Counts packets and bytes (`counter`). A read of the rule returns the current counts.
    Counter {
        /// Number of counted bytes.
        bytes: u64,
        /// Number of counted packets.
        packets: u64,
    },
    /// Writes a register into the packet (`payload` with a source register). This crate reads such
    /// expressions but cannot write them, because it does not decode the checksum fields.
    SetPayload {
        /// Header that the offset is relative to.
        base: PayloadBase,
        /// Offset of the first written byte from the start of the header.
        offset: u32,
        /// Number of bytes to write.
        len: u32,
        /// Register with the new bytes.
        from: Register,
    },
    /// Loads an address or port of one direction of the connection into a register (`ct` with a
    /// direction).
    CtTuple {
        /// Connection data to load.
        key: TupleKey,
        /// Direction whose address or port is loaded.
        direction: Direction,
        /// Register that receives the value.
        to: Register,
    },
    /// Sets the connection's data from a register (`ct` with a source register).
    SetCt {
        /// Connection data to set.
        key: CtKey,
        /// Register with the new value.
        from: Register,
    },
    /// Converts numbers between host and network byte order (`byteorder`).
    ByteOrder {
        /// Register with the numbers.
        from: Register,
        /// Register that receives the numbers with swapped bytes.
        to: Register,
        /// Total length of the numbers, in bytes.
        len: u32,
        /// Length of one number in bytes: 2, 4 or 8.
        size: u32,
    },
    /// Continues if the rate of packets or bytes is within a limit or, inverted, above it
    /// (`limit`).
    Limit {
        /// Number of packets or bytes that the limit allows per period.
        rate: u64,
        /// Length of the period, in seconds.
        seconds: u64,
        /// True if the rate counts bytes, false for packets.
        bytes: bool,
        /// True to continue only above the rate (`NFT_LIMIT_F_INV`).
        over: bool,
    },
    /// Writes a line to the kernel log (`log`).
    Log {
        /// Prefix of the line in the kernel log, if any.
        prefix: Option<Name>,
    },
    /// Disables connection tracking for the packet (`notrack`).
    NoTrack,
    /// Applies a named object of the table (`objref`).
    Object {
        /// Kind of object (`NFT_OBJECT_*`): 1 is a counter, 2 a quota.
        kind: u32,
        /// Name of the object to apply.
        name: Name,
    },
    /// An expression that this crate does not support. Rules of this project contain none. For
    /// iptables extensions (`match`, `target`), the name includes the extension's name.
    Unknown(Name),
}

impl Expression {
    /// Returns the kernel's name for the expression.
    pub fn name(&self) -> &str {
        match self {
            Self::Payload { .. } | Self::SetPayload { .. } => "payload",
            Self::Meta { .. } | Self::SetMeta { .. } => "meta",
            Self::Ct { .. } | Self::CtTuple { .. } | Self::SetCt { .. } => "ct",
            Self::Compare { .. } => "cmp",
            Self::Range { .. } => "range",
            Self::Bitwise { .. } => "bitwise",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Lookup { .. } => "lookup",
            Self::NumGen { .. } => "numgen",
            Self::Jhash { .. } => "hash",
            Self::Nat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::Redirect { .. } => "redir",
            Self::Fib { .. } => "fib",
            Self::Dynset { .. } => "dynset",
            Self::Reject { .. } => "reject",
            Self::Counter { .. } => "counter",
            Self::ByteOrder { .. } => "byteorder",
            Self::Limit { .. } => "limit",
            Self::Log { .. } => "log",
            Self::NoTrack => "notrack",
            Self::Object { .. } => "objref",
            Self::Unknown(name) => name,
        }
    }

    /// Returns the set or map that the expression uses, if any.
    pub fn set(&self) -> Option<&SetRef> {
        match self {
            Self::Lookup { set, .. } | Self::Dynset { set, .. } => Some(set),
            _ => None,
        }
    }
}

/// A set or map of the rule's table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SetRef {
    /// A named set, by its name.
    Named(Name),
    /// A set that belongs to the rule and is created and deleted with it.
    Anonymous(Arc<AnonymousSet>),
}

/// Direction of a connection (`enum ip_conntrack_dir`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// Direction of the first packet.
    Original = 0,
    /// Direction of replies.
    Reply = 1,
}

/// Condition of a membership test: inside or outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Membership {
    /// Condition that holds for values in the set or range.
    In,
    /// Condition that holds for values outside the set or range (`NFT_LOOKUP_F_INV`,
    /// `NFT_RANGE_NEQ`).
    NotIn,
}

/// Use of a lookup's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookupFor {
    /// Test whether the set contains the key. The rule continues only if the test holds.
    Membership(Membership),
    /// Load of the element's value into this register.
    Value(Register),
    /// Verdict of the element, which the rule applies.
    Verdict,
}

/// Flag to look up the source address (`NFTA_FIB_F_SADDR`).
pub const FIB_SOURCE: u32 = 1;
/// Flag to look up the destination address (`NFTA_FIB_F_DADDR`).
pub const FIB_DESTINATION: u32 = 1 << 1;

/// A rule of a chain: its expressions and its comment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Expressions, in the order in which the kernel evaluates them.
    pub expressions: Vec<Expression>,
    /// Comment in `nft`'s format (`NFTA_RULE_USERDATA`), if any.
    pub comment: Option<Arc<str>>,
}

/// A rule in the kernel, with its handle and chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRule {
    /// Handle of the rule in the kernel.
    pub handle: u64,
    /// Name of the chain that contains the rule.
    pub chain: Name,
    /// Content of the rule, including its anonymous sets.
    pub rule: Rule,
}
