//! Tests of nf_tables rules in the kernel. `nft` loads each ruleset in a separate network
//! namespace. The tests read the rules from the kernel, and follow packets through them.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod foreign_rules;
mod golden;
mod listing;
mod node;
mod shim;
