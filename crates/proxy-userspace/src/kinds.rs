//! Types that the [`engine`] is told of for this mode.

use crate::config::Config;
use crate::plan::Plan;

engine::kinds! {
    /// The kinds of things of the userspace mode.
    UserspaceKinds { config: Config, plan: Plan }
}

engine::parts! {
    lanes {
        /// It opens and closes listening ports, and looks at addresses.
        Sockets,
        /// It writes rules, and reads them between.
        Rules,
    }
    parts {
        /// The rules that redirect packets to our listening ports.
        Rules on Rules: "the rules that redirect to listening ports",
        /// The node's addresses.
        Addresses on Sockets: "the addresses of this node",
    }
}
