//! The lab: a real kernel with IPVS, and nodes, pods and outside hosts as network namespaces.
