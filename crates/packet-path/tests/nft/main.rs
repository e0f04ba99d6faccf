//! Tests of nf_tables rules in the kernel. `nft` loads each ruleset in a separate network
//! namespace, and the walks read the rules from the kernel.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod foreign_rules;
mod golden;
mod listing;
mod node;
mod shim;
