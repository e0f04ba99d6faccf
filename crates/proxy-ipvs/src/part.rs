//! Parts of the kernel's state that the proxy reads separately. The lanes are the worker threads
//! that read and write these parts.

engine::parts! {
    lanes {
        /// Reads and writes virtual servers and sets.
        Services,
        /// Reads and writes addresses, and the link `kube-ipvs0` that has them.
        Addresses,
        /// Reads and writes the rules.
        Rules,
        /// Reads for the drift check, in parallel with the other three worker threads. Never
        /// writes.
        Reader,
    }
    // The same part names apply to both kernel interfaces for sets and rules: ipset with iptables,
    // and nftables.
    parts {
        /// The virtual servers with their destinations.
        Servers on Services: "the virtual servers",
        /// The sets with their members.
        Sets on Services: "the sets",
        /// The link `kube-ipvs0`, its service addresses, and the node's other addresses.
        Addresses on Addresses: "the addresses of this node",
        /// The rules beside IPVS (the shim), and leftovers of other modes.
        Rules on Rules: "the rules beside IPVS",
    }
}
