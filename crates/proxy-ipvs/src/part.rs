//! Parts of the kernel's state that the proxy reads separately, and the lanes (worker threads) that
//! read and write them.

engine::parts! {
    lanes {
        /// Lane (worker thread) for virtual servers, destinations and sets.
        Services,
        /// Lane (worker thread) for the link `kube-ipvs0` and its service addresses.
        Addresses,
        /// Lane (worker thread) for the shim's rules.
        Rules,
        /// Lane (worker thread) that reads for the drift check, while the other three lanes
        /// continue. It never writes.
        Reader,
    }
    // The names of the parts fit both kinds of shim: ipset with iptables, and nftables.
    parts {
        /// All virtual servers, with their destinations.
        Servers on Services: "the virtual servers",
        /// The proxy's sets, with their members.
        Sets on Services: "the sets",
        /// The link `kube-ipvs0` with its service addresses, and the node's other addresses.
        Addresses on Addresses: "the addresses of this node",
        /// The shim (the rules beside IPVS), and other modes' leftovers.
        Rules on Rules: "the rules beside IPVS",
    }
}
