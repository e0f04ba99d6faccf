//! The types of this mode for the [`engine`].

use crate::config::Config;
use crate::plan::Plan;

engine::kinds! {
    /// The associated types of the userspace mode.
    UserspaceKinds { config: Config, plan: Plan }
}

engine::parts! {
    lanes {
        /// The lane that opens and closes listening ports, and reads addresses.
        Sockets,
        /// The lane that writes and reads rules.
        Rules,
    }
    parts {
        /// The rules that redirect packets to our listening ports.
        Rules on Rules: "the rules that redirect to listening ports",
        /// The node's addresses.
        Addresses on Sockets: "the addresses of this node",
    }
}
