//! Tests that follow packets through whole iptables rulesets.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod answers;
mod golden;
mod rules;
mod world;
