//! The expressions of rules, one for each kernel module that this project needs
//! (linux/netfilter/nf_tables.h).

use std::sync::Arc;

pub use crate::kernel_enums::{
    Comparison, CtKey, DynsetOperation, FibResult, MetaKey, NatKind, NumGenKind, PayloadBase,
    TupleKey,
};
use crate::object::AnonymousSet;
use crate::value::{Bytes, Name, Register, Verdict};

/// One step of a rule. It reads and writes registers, and a failed comparison ends the rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expression {
    /// Loads bytes of the packet into a register (`payload`).
    Payload {
        /// The header that the offset is relative to.
        base: PayloadBase,
        /// Offset in bytes.
        offset: u32,
        /// Length in bytes.
        len: u32,
        /// The register that receives the bytes.
        to: Register,
    },
    /// Loads the packet's metadata into a register (`meta`).
    Meta {
        /// The metadata to load.
        key: MetaKey,
        /// The register that receives the value.
        to: Register,
    },
    /// Sets the packet's metadata from a register (`meta` with a source register).
    SetMeta {
        /// The metadata to set.
        key: MetaKey,
        /// The register with the new value.
        from: Register,
    },
    /// Loads the packet's connection tracking data into a register (`ct`).
    Ct {
        /// The data to load.
        key: CtKey,
        /// The register that receives the value.
        to: Register,
    },
    /// Continues if the comparison holds (`cmp`).
    Compare {
        /// The register to compare.
        register: Register,
        /// The comparison operator.
        how: Comparison,
        /// The constant to compare with.
        with: Bytes,
    },
    /// Continues if the value is inside a range, or outside of it (`range`).
    Range {
        /// The register to compare.
        register: Register,
        /// Inside or outside the range.
        how: Membership,
        /// The lowest value of the range.
        from: Bytes,
        /// The highest value of the range.
        to: Bytes,
    },
    /// `to = (from & mask) ^ xor` (`bitwise`, `NFT_BITWISE_BOOL`).
    Bitwise {
        /// The source register.
        from: Register,
        /// The destination register.
        to: Register,
        /// The bits to keep, as long as the value.
        mask: Bytes,
        /// The bits to flip, as long as the value.
        xor: Bytes,
    },
    /// Loads a constant into a register (`immediate`).
    Immediate {
        /// The register that receives the constant.
        to: Register,
        /// The constant.
        data: Bytes,
    },
    /// Ends the rule with a verdict (`immediate` into the verdict register).
    Verdict(Verdict),
    /// Looks up a key in a set or map (`lookup`). A set continues or ends the rule, a map loads a
    /// register, and a verdict map gives a verdict.
    Lookup {
        /// The first register of the key.
        key: Register,
        /// The set or map.
        set: SetRef,
        /// The use of the lookup's result.
        what: LookupFor,
    },
    /// Generates a number for each packet (`numgen`).
    NumGen {
        /// The method: incremental or random.
        how: NumGenKind,
        /// Exclusive upper bound of the number, before the offset.
        modulus: u32,
        /// The offset added to the number.
        offset: u32,
        /// The register that receives the number, in host byte order.
        to: Register,
    },
    /// Hashes registers (`hash`, `NFT_HASH_JENKINS`).
    Jhash {
        /// The first register.
        from: Register,
        /// The number of bytes to hash.
        len: u32,
        /// Exclusive upper bound of the hash, before the offset.
        modulus: u32,
        /// The seed; without one the kernel chooses its own.
        seed: Option<u32>,
        /// The offset added to the hash.
        offset: u32,
        /// The register that receives the hash, in host byte order.
        to: Register,
    },
    /// Translates the destination or the source (`nat`).
    Nat {
        /// Source or destination NAT.
        kind: NatKind,
        /// The family of the address, equal to the table's.
        family: crate::value::Family,
        /// The register of the address.
        address: Option<Register>,
        /// The register of the port.
        port: Option<Register>,
        /// `NF_NAT_RANGE_*` without bits 1 and 2, which follow from the presence of an address and
        /// a port. Both are ignored when written and dropped when read.
        flags: u32,
    },
    /// Sets the source to the outgoing interface's address (`masq`).
    Masquerade {
        /// `NF_NAT_RANGE_*`.
        flags: u32,
    },
    /// Redirects the packet to a port of this host (`redir`).
    Redirect {
        /// The register of the port; without one the port stays the same.
        port: Option<Register>,
        /// `NF_NAT_RANGE_*` without bit 2, which follows from the presence of a port.
        flags: u32,
    },
    /// Looks up an address of the packet in the routing tables (`fib`).
    Fib {
        /// The property of the route to load.
        result: FibResult,
        /// `NFTA_FIB_F_*`: the address and interface to look up.
        flags: u32,
        /// The register that receives the result.
        to: Register,
    },
    /// Adds, updates or deletes an element of a set (`dynset`).
    Dynset {
        /// The set.
        set: SetRef,
        /// The operation on the element.
        operation: DynsetOperation,
        /// The first register of the key.
        key: Register,
        /// The element's timeout in milliseconds; without one the set's default applies.
        timeout: Option<u64>,
    },
    /// Drops the packet and notifies its sender (`reject`).
    Reject {
        /// `NFT_REJECT_*`: 0 is an ICMP error, 1 a TCP reset, 2 an ICMP error of either family.
        kind: u32,
        /// The ICMP code.
        code: u8,
    },
    /// Counts packets and bytes (`counter`). Reading returns the counts at that time.
    Counter {
        /// The bytes counted.
        bytes: u64,
        /// The packets counted.
        packets: u64,
    },
    /// Writes a register into the packet (`payload` with a source register). The checksum fields
    /// are not decoded, so the expression cannot be written back.
    SetPayload {
        /// The header that the offset is relative to.
        base: PayloadBase,
        /// Offset in bytes.
        offset: u32,
        /// Length in bytes.
        len: u32,
        /// The register with the new bytes.
        from: Register,
    },
    /// Loads an address or port of one direction of the connection into a register (`ct` with a
    /// direction).
    CtTuple {
        /// The data to load.
        key: TupleKey,
        /// The direction of the connection.
        direction: Direction,
        /// The register that receives the value.
        to: Register,
    },
    /// Sets the connection's data from a register (`ct` with a source register).
    SetCt {
        /// The data to set.
        key: CtKey,
        /// The register with the new value.
        from: Register,
    },
    /// Swaps the bytes of numbers (`byteorder`).
    ByteOrder {
        /// The source register.
        from: Register,
        /// The destination register.
        to: Register,
        /// The length of all numbers in bytes.
        len: u32,
        /// The length of one number in bytes: 2, 4 or 8.
        size: u32,
    },
    /// Continues below a rate, or above it (`limit`).
    Limit {
        /// Packets or bytes per period.
        rate: u64,
        /// The period in seconds.
        seconds: u64,
        /// True if the rate counts bytes, false for packets.
        bytes: bool,
        /// True to continue only above the rate (`NFT_LIMIT_F_INV`).
        over: bool,
    },
    /// Writes a line to the kernel log (`log`).
    Log {
        /// Prefix of the log line.
        prefix: Option<Name>,
    },
    /// Disables connection tracking for the packet (`notrack`).
    NoTrack,
    /// Applies a named object of the table (`objref`).
    Object {
        /// `NFT_OBJECT_*`: 1 is a counter, 2 a quota.
        kind: u32,
        /// The object's name.
        name: Name,
    },
    /// An unsupported expression; no rule of ours contains one. For iptables expressions (`match`,
    /// `target`) the name includes the extension's name.
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

    /// Returns the set or map that the expression uses.
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

/// `enum ip_conntrack_dir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// The direction of the first packet.
    Original = 0,
    /// The direction of replies.
    Reply = 1,
}

/// The sense of a membership test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Membership {
    /// Matches values in the set or range.
    In,
    /// Matches values outside of it (`NFT_LOOKUP_F_INV`, `NFT_RANGE_NEQ`).
    NotIn,
}

/// The use of a lookup's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookupFor {
    /// Continues if the membership test holds.
    Membership(Membership),
    /// Loads the element's value into this register.
    Value(Register),
    /// Applies the element's verdict.
    Verdict,
}

/// `NFTA_FIB_F_SADDR`: look up the source address.
pub const FIB_SOURCE: u32 = 1;
/// `NFTA_FIB_F_DADDR`: look up the destination address.
pub const FIB_DESTINATION: u32 = 1 << 1;

/// A rule: expressions and a comment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The expressions in order of evaluation.
    pub expressions: Vec<Expression>,
    /// Comment in `nft`'s format (`NFTA_RULE_USERDATA`).
    pub comment: Option<Arc<str>>,
}

/// A rule as read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRule {
    /// The kernel's handle of the rule.
    pub handle: u64,
    /// The rule's chain.
    pub chain: Name,
    /// The rule, including its anonymous sets.
    pub rule: Rule,
}
