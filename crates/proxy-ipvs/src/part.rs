//! Parts of the kernel that are read separately, and the lanes (kernel threads) that read and write
//! them.

engine::parts! {
    lanes {
        /// Reads and writes virtual servers and sets.
        Services,
        /// Reads and writes addresses, and the link that holds them.
        Addresses,
        /// Reads and writes rules.
        Rules,
        /// Reads only, beside the others, for the check for drift.
        Reader,
    }
    // Sets and rules have the same names whatever carries them: ipset and iptables, or nf_tables.
    parts {
        /// The virtual servers with their destinations.
        Servers on Services: "the virtual servers",
        /// The sets with their members.
        Sets on Services: "the sets",
        /// The link, the service addresses on it, and the node's other ones.
        Addresses on Addresses: "the addresses of this node",
        /// The shim, and what other modes have left.
        Rules on Rules: "the rules beside IPVS",
    }
}
