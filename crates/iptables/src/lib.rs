//! The iptables programs, for the modes that write rules.
//!
//! [`Iptables`] is one backend of them for both IP families: `iptables-save` reads, `iptables-restore` writes, and nothing
//! costs a process for each rule. What the kernel tells by itself costs no process at all: whether there is anything to read,
//! whether it has changed since, whether rules would be taken. [`Program`] runs them, and the few others that have no netlink replacement.
//!
//! Not here: what the rules are.

mod iptables;
mod legacy;
mod modules;
mod nft;
mod program;
mod reading;

pub use iptables::{Backend, Iptables, IptablesError, exists};
pub use legacy::{LegacyTable, LegacyTables};
pub use modules::MODULES;
pub use program::{Finished, Input, Limit, Output, Program};
