# Upstream also binds the address to kube-ipvs0. It therefore leaves the same state as in ipvs/clusterip-tcp. The other
# files link to that case.
ip addr add 10.96.10.10/32 dev eth0
