# Upstream binds the address to kube-ipvs0 as well, and so leaves what it leaves in ipvs/clusterip-tcp, where the other
# files are.
ip addr add 10.96.10.10/32 dev eth0
