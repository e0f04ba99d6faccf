//! The types, lanes and parts with which this mode parameterizes the [`engine`].

use crate::config::Config;
use crate::plan::Plan;

engine::kinds! {
    /// Types of the iptables mode.
    IptablesKinds { config: Config, plan: Plan }
}

engine::parts! {
    lanes {
        /// Lane (worker thread) that writes rules and reads all rules.
        Rules,
        /// Lane (worker thread) that reads the node's addresses, checks for the canary chain, and
        /// never writes.
        Looks,
    }
    parts {
        /// All rules of this mode, in all tables.
        Rules on Rules: "the iptables rules",
        /// Addresses of the node.
        Addresses on Looks: "the addresses of this node",
    }
}
