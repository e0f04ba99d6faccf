# Adds two virtual servers of another program. Upstream deletes both, so its state is that of
# ipvs/clusterip-tcp: the other files of this case link to that case.
ipvsadm -A -t 198.18.0.1:80 -s wlc -p 60; ipvsadm -a -t 198.18.0.1:80 -r 10.244.9.9:80 -m -w 7
ipvsadm -A -u 192.168.99.10:53 -s sh; ipvsadm -a -u 192.168.99.10:53 -r 10.244.9.9:53 -m
