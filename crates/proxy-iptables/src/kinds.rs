//! The types of this mode for the [`engine`].

use crate::config::Config;
use crate::plan::Plan;

engine::kinds! {
    /// The associated types of the iptables mode.
    IptablesKinds { config: Config, plan: Plan }
}

engine::parts! {
    lanes {
        /// The lane that writes rules and reads all rules.
        Rules,
        /// The lane that only reads: addresses, and the canary.
        Looks,
    }
    parts {
        /// All rules of all tables.
        Rules on Rules: "the iptables rules",
        /// The node's addresses.
        Addresses on Looks: "the addresses of this node",
    }
}
