//! Types of this mode for the [`engine`].

use crate::config::Config;
use crate::plan::Plan;

engine::kinds! {
    /// Types of the nftables mode.
    NftablesKinds { config: Config, plan: Plan }
}

engine::parts! {
    lanes {
        /// The lane that reads and writes the table.
        Table,
        /// The lane that reads the node's addresses.
        Looks,
    }
    parts {
        /// The whole table.
        Table on Table: "the nftables table kube-proxy",
        /// The node's addresses.
        Addresses on Looks: "the addresses of this node",
    }
}
