//! Types that the [`engine`] is told of for this mode.

use crate::config::Config;
use crate::plan::Plan;

engine::kinds! {
    /// The kinds of things of the iptables mode.
    IptablesKinds { config: Config, plan: Plan }
}

engine::parts! {
    lanes {
        /// It writes rules, and reads them between.
        Rules,
        /// It only looks: at addresses, and for the canary.
        Looks,
    }
    parts {
        /// All rules of all tables.
        Rules on Rules: "the iptables rules",
        /// The node's addresses.
        Addresses on Looks: "the addresses of this node",
    }
}
