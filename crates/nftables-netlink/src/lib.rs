//! nf\_tables over netlink: typed rules, sets and maps, one transaction in one send.
//!
//! ```text
//!  Transaction { [Change] } ── Prepared ──▶ begin │ message ... │ end ── one send ──▶ Generation,
//!      Table Chain Set Element Rule ▲            or CommitError { change, errno, the kernel's text }
//!                      Expression   │
//!  Nftables::{tables, chains, sets, elements, rules, read} ── the same types, decoded
//!  Nftables::{hooked, set, element, rules_of_chain} ── of a large table only what is asked for
//!  Subscription ── which table was touched, by whom     Nftables::probe ── what the kernel lacks
//! ```
//!
//! Messages are those of `nft` 1.0.6, byte for byte but for the names of anonymous sets, so that
//! any `nft` lists them. They are this crate's own, as other crates lack expressions that are needed
//! (`dynset`, `redir`) or sets, or bind a C library, or run a process; and as 100,000 messages should
//! be written without allocating for each. Which they are, what all this costs, and what other
//! versions of `nft` show, is in the README.
//!
//! Source: `linux/netfilter/nf_tables.h`, `linux/netfilter/nfnetlink.h`,
//! `net/netfilter/nf_tables_api.c`, `net/netfilter/nfnetlink.c` (`nfnetlink_rcv_batch`).

mod ask;
mod decode;
mod encode;
mod error;
mod expression;
#[doc(hidden)]
pub mod fuzzed;
mod nftables;
mod numbered;
mod object;
mod own;
mod probe;
mod read;
mod subscription;
pub mod text;
mod transaction;
mod user_data;
mod value;
mod watch;
mod wire;

pub use encode::Prepared;
pub use error::{CommitError, Error, RefusedChange};
pub use expression::{
    Comparison, CtKey, Direction, DynsetOperation, Expression, FIB_DESTINATION, FIB_SOURCE,
    FibResult, FoundRule, LookupFor, Membership, MetaKey, NatKind, NumGenKind, PayloadBase, Rule,
    SetRef, TupleKey,
};
pub use nftables::Nftables;
pub use object::{
    Activity, AnonymousSet, BaseChain, Chain, ChainKind, Element, ElementData, FoundSet, Hook,
    Hooked, NamedCounter, Policy, Set, SetKind, Table, Timeout, TypeOf,
};
pub use own::OwnSockets;
pub use probe::{Feature, Missing};
pub use read::Whole;
pub use subscription::{Event, Subscription};
pub use transaction::{Change, Generation, Transaction};
pub use value::{Bytes, Concatenation, DataType, Family, Name, Register, Verdict};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
