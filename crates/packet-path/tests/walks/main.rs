//! Walks packets through whole rulesets.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod answers;
mod golden;
mod rules;
mod world;
