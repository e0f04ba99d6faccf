//! Parts of the kernel's state that the proxy reads separately, and the lanes (worker threads) that
//! read and write these parts.

engine::parts! {
    lanes {
        /// Lane (worker thread) that reads and writes virtual servers, destinations and sets.
        Services,
        /// Lane (worker thread) that reads and writes addresses and the link `kube-ipvs0`, to which
        /// service addresses are bound.
        Addresses,
        /// Lane (worker thread) that reads and writes the shim's rules.
        Rules,
        /// Lane (worker thread) that reads all parts for the drift check, while the other three
        /// lanes continue. It never writes.
        Reader,
    }
    // The names of the parts are the same for both kernel interfaces of the shim: ipset with
    // iptables, and nftables.
    parts {
        /// All virtual servers, with their destinations.
        Servers on Services: "the virtual servers",
        /// Our sets, with their members.
        Sets on Services: "the sets",
        /// The link `kube-ipvs0`, its service addresses, and the node's other addresses.
        Addresses on Addresses: "the addresses of this node",
        /// The shim (the rules beside IPVS), and leftovers of other modes.
        Rules on Rules: "the rules beside IPVS",
    }
}
