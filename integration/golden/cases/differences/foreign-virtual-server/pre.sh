# Upstream deletes both virtual servers. It therefore leaves the same state as in ipvs/clusterip-tcp. The other files link to that case.
ipvsadm -A -t 198.18.0.1:80 -s wlc -p 60; ipvsadm -a -t 198.18.0.1:80 -r 10.244.9.9:80 -m -w 7
ipvsadm -A -u 192.168.99.10:53 -s sh; ipvsadm -a -u 192.168.99.10:53 -r 10.244.9.9:53 -m
