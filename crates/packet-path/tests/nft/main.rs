//! The rules of nf_tables, as the kernel holds them: rulesets are loaded by `nft`, each in a network
//! namespace of its own, and packets are taken through them by asking the kernel.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod golden;
mod listing;
mod node;
mod others;
mod shim;
