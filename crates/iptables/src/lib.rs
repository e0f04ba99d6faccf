//! iptables, for the modes that write rules: the language that rules are written in, and the
//! programs that carry them out.
//!
//! ```text
//!   Rule ── render ─▶ line ─▶ Restore ─▶ Iptables::restore ─▶ iptables-restore ─▶ kernel
//!                      ║ compared
//!           Entry ◀─ Reader ◀─ Iptables::save_lines ◀─ iptables-save ◀───────────┘
//! ```
//!
//! A [`Rule`] is data. It has one rendering, that of `iptables-save`, so that what is wanted can be
//! compared with what is read back; one [`Reader`] reads that, and one [`Restore`] writes what
//! `iptables-restore` takes.
//!
//! [`Iptables`] is one backend of the programs for both IP families: `iptables-save` reads,
//! `iptables-restore` writes, and nothing costs a process for each rule. What the kernel tells by
//! itself costs no process at all: whether there is anything to read, whether it has changed since,
//! whether rules would be taken. [`Program`] runs them, and the few others that have no netlink
//! replacement. What went wrong has a [`Kind`].
//!
//! Not here: which rules there are, and anything of Kubernetes.

mod backend;
mod behind;
mod choose;
mod error;
#[doc(hidden)]
pub mod fuzzed;
mod iptables;
mod legacy;
mod modules;
mod native;
mod nft;
mod obstacles;
mod program;
mod reading;
mod restore;
mod rule;
mod saved;
mod table;
mod writing;

pub use backend::{Backend, Why, exists};
pub use error::{IptablesError, Kind};
pub use iptables::Iptables;
pub use legacy::{LegacyTable, LegacyTables};
pub use modules::MODULES;
pub use obstacles::{DormantTable, TakenChain};
pub use program::{Finished, Input, Limit, Output, Program};
pub use restore::{Restore, restore_text};
pub use rule::{Field, FlowState, Jump, Match, Packets, Rule, SourcePort, Target};
pub use saved::{Counted, Entry, Line, Reader, RuleLine, Words, entries, native_chains};
pub use table::{BUILT_IN, ChainName, MAX_CHAIN_NAME, Table};
