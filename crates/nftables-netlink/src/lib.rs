//! Reads and writes nf\_tables over netlink: typed rules, sets and maps, each transaction in one
//! send.
//!
//! ```text
//!  Transaction { [Change] } ── PreparedTransaction ──▶ begin │ message ... │ end ── one send ──▶
//!      Table Chain Set Element Rule ▲  Generation, or CommitError { change, errno, kernel's text }
//!                      Expression   │
//!  Nftables::{tables, chains, sets, elements, rules, read} ── the same types, decoded
//!  Nftables::{base_chains, set, element, rules_of_chain} ── single objects of a large table
//!  Subscription ── the changed table, and the author   Nftables::probe ── missing features
//! ```
//!
//! The messages equal those of `nft` 1.0.6 byte for byte, except for the names of anonymous sets.
//! So any version of `nft` can list the objects that this crate creates.
//!
//! This crate encodes its own messages for two reasons:
//!
//! * Other crates lack sets or expressions that this project needs (`dynset`, `redir`), bind a C
//!   library, or run a process.
//! * 100,000 messages should not need an allocation each.
//!
//! The README lists the messages, their cost, and the output of other versions of `nft`.
//!
//! Source: `linux/netfilter/nf_tables.h`, `linux/netfilter/nfnetlink.h`,
//! `net/netfilter/nf_tables_api.c`, `net/netfilter/nfnetlink.c` (`nfnetlink_rcv_batch`).

mod decode;
mod encode;
mod error;
mod expression;
#[doc(hidden)]
pub mod fuzzed;
mod kernel_enums;
mod lookup;
mod module_loading;
mod nftables;
mod object;
mod own_sockets;
mod probe;
mod read;
mod subscription;
pub mod text;
mod transaction;
mod user_data;
mod value;
mod watch;
mod wire;

pub use encode::PreparedTransaction;
pub use error::{CommitError, Error, RefusedChange};
pub use expression::{
    Comparison, CtKey, Direction, DynsetOperation, Expression, FIB_DESTINATION, FIB_SOURCE,
    FibResult, KernelRule, LookupFor, Membership, MetaKey, NatKind, NumGenKind, PayloadBase, Rule,
    SetRef, TupleKey,
};
pub use nftables::Nftables;
pub use object::{
    Activity, AnonymousSet, BaseChain, Chain, ChainKind, Element, ElementData, Hook, HookedChain,
    KernelSet, NamedCounter, Policy, Set, SetKind, Table, Timeout, TypeOf,
};
pub use own_sockets::OwnSockets;
pub use probe::{Feature, MissingFeature};
pub use read::TableDump;
pub use subscription::{Event, Subscription};
pub use transaction::{Change, Generation, Transaction};
pub use value::{Bytes, Concatenation, DataType, Family, Name, Register, Verdict};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
