//! The node daemon: kube-proxy in IPVS mode.
