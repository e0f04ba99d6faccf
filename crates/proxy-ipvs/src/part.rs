//! Parts that are read by themselves, and the kernel threads that do it.

engine::parts! {
    lanes {
        /// It reads and writes virtual servers and sets.
        Services,
        /// It reads and writes addresses, and the link that holds them.
        Addresses,
        /// It reads and writes rules.
        Rules,
        /// It only reads, beside the others: for the check.
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
