//! Types that the [`engine`] is told of for this mode.

use crate::config::Config;
use crate::plan::Plan;

engine::kinds! {
    /// The kinds of things of the nftables mode.
    NftablesKinds { config: Config, plan: Plan }
}

engine::parts! {
    lanes {
        /// It writes the table, and reads it between.
        Table,
        /// It looks at addresses alone.
        Looks,
    }
    parts {
        /// The table, whole.
        Table on Table: "the nftables table kube-proxy",
        /// The node's addresses.
        Addresses on Looks: "the addresses of this node",
    }
}
