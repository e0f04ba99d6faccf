//! Reads and writes iptables rules: a type for rules, and the programs that apply them.
//!
//! ```text
//!   Rule ── render ─▶ line ─▶ Restore ─▶ Iptables::restore ─▶ iptables-restore ─▶ kernel
//!                      ║ compared
//!           Entry ◀─ Reader ◀─ Iptables::save_lines ◀─ iptables-save ◀───────────┘
//! ```
//!
//! A [`Rule`] is data. The only text form of a rule is that of `iptables-save`, so wanted rules can
//! be compared with rules that were read. [`Reader`] parses rules, and [`Restore`] writes the input
//! of `iptables-restore`.
//!
//! [`Iptables`] represents the programs of one backend, for both IP families. `iptables-save` reads
//! rules and `iptables-restore` writes them. Each process handles many rules.
//!
//! Queries to the kernel report without a process whether rules exist, whether they have changed,
//! and whether the kernel would accept rules. [`Program`] runs the programs. Each failure has a
//! [`Kind`].
//!
//! This crate knows neither Kubernetes nor the rules of any mode.

mod backend;
mod choose;
mod deletions;
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

pub use backend::{Backend, BackendReason, exists};
pub use error::{IptablesError, Kind};
pub use iptables::Iptables;
pub use legacy::{LegacyTable, LegacyTables};
pub use modules::MODULES;
pub use obstacles::{DormantTable, TakenChain};
pub use program::{Input, Limit, Output, Program, ProgramExit};
pub use restore::{Restore, restore_text};
pub use rule::{Field, FlowState, Jump, Match, Packets, Rule, SourcePort, Target};
pub use saved::{CountedRule, Entry, Line, Reader, RuleLine, Words, entries, native_chains};
pub use table::{BUILT_IN, ChainName, MAX_CHAIN_NAME, Table};
