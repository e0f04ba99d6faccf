//! IPVS over generic netlink.
