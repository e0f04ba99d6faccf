//! The expressions of rules, one for each kernel module that this needs (linux/netfilter/nf_tables.h).

use std::sync::Arc;

pub use crate::numbered::{
    Comparison, CtKey, DynsetOperation, FibResult, MetaKey, NatKind, NumGenKind, PayloadBase,
    TupleKey,
};
use crate::object::AnonymousSet;
use crate::value::{Bytes, Name, Register, Verdict};

/// One step of a rule. Reads and writes registers; the rule ends where a comparison fails.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expression {
    /// Bytes of the packet into a register (`payload`).
    Payload {
        /// From where the offset counts.
        base: PayloadBase,
        /// In bytes.
        offset: u32,
        /// In bytes.
        len: u32,
        /// Where they go.
        to: Register,
    },
    /// What the kernel knows of the packet, into a register (`meta`).
    Meta {
        /// What.
        key: MetaKey,
        /// Where it goes.
        to: Register,
    },
    /// The packet's mark from a register (`meta` with a source register).
    SetMeta {
        /// What is set: the mark.
        key: MetaKey,
        /// The new value.
        from: Register,
    },
    /// What connection tracking knows of the packet, into a register (`ct`).
    Ct {
        /// What.
        key: CtKey,
        /// Where it goes.
        to: Register,
    },
    /// Goes on where the comparison holds (`cmp`).
    Compare {
        /// What is compared.
        register: Register,
        /// How.
        how: Comparison,
        /// With what.
        with: Bytes,
    },
    /// Goes on where the value is in the range, or out of it (`range`).
    Range {
        /// What is compared.
        register: Register,
        /// Inside or outside.
        how: Membership,
        /// The least.
        from: Bytes,
        /// The greatest.
        to: Bytes,
    },
    /// `to = (from & mask) ^ xor` (`bitwise`, `NFT_BITWISE_BOOL`).
    Bitwise {
        /// The register that is read.
        from: Register,
        /// The one that is written.
        to: Register,
        /// As long as the value.
        mask: Bytes,
        /// As long as the value.
        xor: Bytes,
    },
    /// A constant into a register (`immediate`).
    Immediate {
        /// Where it goes.
        to: Register,
        /// The constant.
        data: Bytes,
    },
    /// The packet goes there (`immediate` into the verdict register).
    Verdict(Verdict),
    /// Goes on where the key is in the set, or is not; from a map into a register, from a verdict map to
    /// where the element says (`lookup`).
    Lookup {
        /// The first register of the key.
        key: Register,
        /// The set or map.
        set: SetRef,
        /// What is done with what is found.
        what: LookupFor,
    },
    /// A number that is other for each packet (`numgen`).
    NumGen {
        /// How it comes about.
        how: NumGenKind,
        /// Numbers are below this.
        modulus: u32,
        /// Added to it.
        offset: u32,
        /// Where it goes, in the kernel's order.
        to: Register,
    },
    /// A hash of registers (`hash`, `NFT_HASH_JENKINS`).
    Jhash {
        /// The first register.
        from: Register,
        /// Bytes that are hashed.
        len: u32,
        /// Numbers are below this.
        modulus: u32,
        /// Else the kernel takes one of its own.
        seed: Option<u32>,
        /// Added to it.
        offset: u32,
        /// Where it goes.
        to: Register,
    },
    /// Another destination or source (`nat`).
    Nat {
        /// Which.
        kind: NatKind,
        /// The family of the address: that of the table.
        family: crate::value::Family,
        /// The register of the address.
        address: Option<Register>,
        /// The register of the port.
        port: Option<Register>,
        /// `NF_NAT_RANGE_*`, but the two that follow from an address and from a port being there
        /// (1 and 2): written or not, they are not read.
        flags: u32,
    },
    /// The source is the address of the outgoing interface (`masq`).
    Masquerade {
        /// `NF_NAT_RANGE_*`.
        flags: u32,
    },
    /// To this host, another port (`redir`).
    Redirect {
        /// The register of the port; else it stays.
        port: Option<Register>,
        /// `NF_NAT_RANGE_*`, but the one that follows from a port being there (2).
        flags: u32,
    },
    /// What the routing says of an address of the packet (`fib`).
    Fib {
        /// What is asked.
        result: FibResult,
        /// `NFTA_FIB_F_*`: which address, and by which interface.
        flags: u32,
        /// Where the answer goes.
        to: Register,
    },
    /// Puts an element into a set (`dynset`).
    Dynset {
        /// The set.
        set: SetRef,
        /// Add, or also prolong.
        operation: DynsetOperation,
        /// The first register of the key.
        key: Register,
        /// How long it stays, in milliseconds; else as long as the set says.
        timeout: Option<u64>,
    },
    /// The packet is refused, and its sender told (`reject`).
    Reject {
        /// `NFT_REJECT_*`: 0 is ICMP unreachable, 1 a TCP reset, 2 ICMP by either family.
        kind: u32,
        /// The ICMP code.
        code: u8,
    },
    /// Counts packets and bytes (`counter`); read back as of then.
    Counter {
        /// Bytes so far.
        bytes: u64,
        /// Packets so far.
        packets: u64,
    },
    /// Bytes of the packet from a register (`payload` with a source register). What of checksums is
    /// renewed is not read, so that it cannot be written again.
    SetPayload {
        /// From where the offset counts.
        base: PayloadBase,
        /// In bytes.
        offset: u32,
        /// In bytes.
        len: u32,
        /// The new bytes.
        from: Register,
    },
    /// An address or port as connection tracking has it for one direction, into a register (`ct` with
    /// a direction).
    CtTuple {
        /// What.
        key: TupleKey,
        /// Of which direction.
        direction: Direction,
        /// Where it goes.
        to: Register,
    },
    /// Something of the connection from a register (`ct` with a source register).
    SetCt {
        /// What is set.
        key: CtKey,
        /// The new value.
        from: Register,
    },
    /// The order of bytes of each number (`byteorder`).
    ByteOrder {
        /// The register that is read.
        from: Register,
        /// The one that is written.
        to: Register,
        /// Bytes of all.
        len: u32,
        /// Bytes of each number: 2, 4 or 8.
        size: u32,
    },
    /// Goes on within a rate, or beyond it (`limit`).
    Limit {
        /// So many packets, or bytes.
        rate: u64,
        /// In so many seconds.
        seconds: u64,
        /// Whether bytes are counted.
        bytes: bool,
        /// Goes on beyond the rate (`NFT_LIMIT_F_INV`).
        over: bool,
    },
    /// Tells the log (`log`).
    Log {
        /// How its line begins.
        prefix: Option<Name>,
    },
    /// The packet is not tracked (`notrack`).
    NoTrack,
    /// An object of the table that has a name (`objref`).
    Object {
        /// `NFT_OBJECT_*`: 1 is a counter, 2 a quota.
        kind: u32,
        /// Its name.
        name: Name,
    },
    /// One that this crate does not know: it has no counterpart in a rule that is wanted. Those of
    /// iptables (`match`, `target`) have their own name behind it.
    Unknown(Name),
}

impl Expression {
    /// The kernel's name of it.
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
}

/// A set or map that a rule of the same table names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SetRef {
    /// By its name.
    Named(Name),
    /// One that belongs to the rule alone; it comes and goes with it.
    Anonymous(Arc<AnonymousSet>),
}

/// `enum ip_conntrack_dir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// As the first packet went.
    Original = 0,
    /// Back.
    Reply = 1,
}

/// In, or not in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Membership {
    /// In it.
    In,
    /// Not in it (`NFT_LOOKUP_F_INV`, `NFT_RANGE_NEQ`).
    NotIn,
}

/// What a lookup is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookupFor {
    /// Goes on, or not.
    Membership(Membership),
    /// The element's value goes into this register.
    Value(Register),
    /// The packet goes where the element says.
    Verdict,
}

/// `NFTA_FIB_F_SADDR`: of the source address.
pub const FIB_SOURCE: u32 = 1;
/// `NFTA_FIB_F_DADDR`: of the destination address.
pub const FIB_DESTINATION: u32 = 1 << 1;

/// A rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// What it does, in order.
    pub expressions: Vec<Expression>,
    /// As `nft` keeps one (`NFTA_RULE_USERDATA`).
    pub comment: Option<Arc<str>>,
}

/// A rule that is in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRule {
    /// By which the kernel knows it.
    pub handle: u64,
    /// Its chain.
    pub chain: Name,
    /// The rule, its anonymous sets read into it.
    pub rule: Rule,
}
