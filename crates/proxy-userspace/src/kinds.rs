//! Types of this mode that the [`engine`] needs.

use crate::config::Config;
use crate::plan::Plan;

engine::kinds! {
    /// Types of userspace mode: its settings and its plan.
    UserspaceKinds { config: Config, plan: Plan }
}

engine::parts! {
    lanes {
        /// Lane (worker thread) that opens and closes listening ports, and reads the node's
        /// addresses.
        Sockets,
        /// Lane (worker thread) that writes and reads rules.
        Rules,
    }
    parts {
        /// Rules that redirect packets to the listening ports of this mode.
        Rules on Rules: "the rules that redirect to listening ports",
        /// Addresses of the node's interfaces.
        Addresses on Sockets: "the addresses of this node",
    }
}
