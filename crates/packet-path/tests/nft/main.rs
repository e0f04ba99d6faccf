//! Tests with nf_tables rules that `nft` loads into a new network namespace. The tests read the
//! rules from the kernel, and follow packets through them.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod foreign_rules;
mod golden;
mod listing;
mod node;
mod shim;
