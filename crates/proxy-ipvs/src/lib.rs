//! The IPVS mode of kube-proxy.
