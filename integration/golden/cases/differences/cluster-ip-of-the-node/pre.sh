# Adds the Service's ClusterIP to eth0. Upstream binds it to kube-ipvs0 as well, so its state is
# that of ipvs/clusterip-tcp: the other files of this case link to that case.
ip addr add 10.96.10.10/32 dev eth0
