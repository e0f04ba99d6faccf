//! The types, lanes and parts with which this mode parameterizes the [`engine`].

use crate::config::Config;
use crate::plan::Plan;

engine::kinds! {
    /// Types of the nftables mode.
    NftablesKinds { config: Config, plan: Plan }
}

engine::parts! {
    lanes {
        /// Lane (worker thread) that reads and writes the table.
        Table,
        /// Lane (worker thread) that reads the node's addresses.
        Looks,
    }
    parts {
        /// The whole nftables table of this mode.
        Table on Table: "the nftables table kube-proxy",
        /// Addresses of the node.
        Addresses on Looks: "the addresses of this node",
    }
}
