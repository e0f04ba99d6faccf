//! Tests a node with kube-router as network plug-in and for network policies. kube-router's service
//! proxy is off.
//!
//! Like kube-proxy's chains, kube-router's chains have names that begin with `KUBE-`.

use lab::Place;
use scenarios::{Cluster, Outcome};

use super::{Form, in_each_mode, policed_services, policies_hold};

/// Script that adds kube-router's ipsets and rules. Its policy allows only `client` to reach the
/// pod `near`.
const KUBE_ROUTER: &str = "
    for t in ip::10.244.1:10.96.0.0/12 ip6:inet6=:fd44-1-:fd96--/112; do
        IFS=: read -r ip prefix pods vips <<.
$t
.
        prefix=$(echo $prefix | tr = :) pods=$(echo $pods | tr - :) vips=$(echo $vips | tr - :)
        [ $ip = ip ] && pods=$pods. || pods=$pods:
        [ $ip = ip ] && family=inet node=172.35.0.100 net=10.244.0.0/16 || { family=inet6; node=fd35::100 net=fd44::/16; }
        x=${ip}tables-$backend
        ipset create ${prefix}kube-router-pod-subnets hash:net family $family timeout 0
        ipset add ${prefix}kube-router-pod-subnets $net
        ipset create ${prefix}kube-router-node-ips hash:ip family $family timeout 0
        ipset add ${prefix}kube-router-node-ips $node
        ipset create ${prefix}KUBE-SRC-Q3T5DUT2LBQGGRQN hash:ip family $family timeout 0
        ipset add ${prefix}KUBE-SRC-Q3T5DUT2LBQGGRQN ${pods}99
        for chain in KUBE-ROUTER-INPUT KUBE-ROUTER-FORWARD KUBE-ROUTER-OUTPUT KUBE-NWPLCY-DEFAULT KUBE-POD-FW-6LGLQ6M3CFVKYDKT \\
            KUBE-NWPLCY-RJITOIYNFGLSMNHT; do $x -N $chain; done
        $x -A KUBE-ROUTER-INPUT -d $vips -j RETURN
        for proto in tcp udp; do
            $x -A KUBE-ROUTER-INPUT -p $proto -m addrtype --dst-type LOCAL -m multiport --dports 30000:32767 -j RETURN
        done
        $x -A KUBE-ROUTER-INPUT -s ${pods}10 -j KUBE-POD-FW-6LGLQ6M3CFVKYDKT
        $x -A KUBE-ROUTER-FORWARD -d ${pods}10 -j KUBE-POD-FW-6LGLQ6M3CFVKYDKT
        $x -A KUBE-ROUTER-FORWARD -s ${pods}10 -j KUBE-POD-FW-6LGLQ6M3CFVKYDKT
        $x -A KUBE-ROUTER-OUTPUT -d ${pods}10 -j KUBE-POD-FW-6LGLQ6M3CFVKYDKT
        for chain in INPUT FORWARD OUTPUT; do
            $x -A KUBE-ROUTER-$chain -m mark --mark 0x20000/0x20000 -j ACCEPT
            $x -I $chain -m comment --comment 'kube-router netpol' -j KUBE-ROUTER-$chain
        done
        $x -A KUBE-POD-FW-6LGLQ6M3CFVKYDKT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        $x -A KUBE-POD-FW-6LGLQ6M3CFVKYDKT -m conntrack --ctstate INVALID -j DROP
        $x -A KUBE-POD-FW-6LGLQ6M3CFVKYDKT -d ${pods}10 -m addrtype --src-type LOCAL -j ACCEPT
        $x -A KUBE-POD-FW-6LGLQ6M3CFVKYDKT -s ${pods}10 -j KUBE-NWPLCY-DEFAULT
        $x -A KUBE-POD-FW-6LGLQ6M3CFVKYDKT -d ${pods}10 -j KUBE-NWPLCY-RJITOIYNFGLSMNHT
        $x -A KUBE-POD-FW-6LGLQ6M3CFVKYDKT -m mark ! --mark 0x10000/0x10000 -j REJECT
        $x -A KUBE-POD-FW-6LGLQ6M3CFVKYDKT -j MARK --set-xmark 0x0/0x10000
        $x -A KUBE-POD-FW-6LGLQ6M3CFVKYDKT -j MARK --set-xmark 0x20000/0x20000
        $x -A KUBE-NWPLCY-DEFAULT -j MARK --set-xmark 0x10000/0x10000
        $x -A KUBE-NWPLCY-RJITOIYNFGLSMNHT -m set --match-set ${prefix}KUBE-SRC-Q3T5DUT2LBQGGRQN src \\
            -j MARK --set-xmark 0x10000/0x10000
        $x -t nat -A POSTROUTING -m set --match-set ${prefix}kube-router-pod-subnets src \\
            -m set ! --match-set ${prefix}kube-router-pod-subnets dst \\
            -m set ! --match-set ${prefix}kube-router-node-ips dst -j MASQUERADE --random-fully
    done
";

/// Script that moves kube-router's jumps to the front, as kube-router does at each sync.
const REFRESH: &str = "
    for t in iptables-$backend ip6tables-$backend; do for chain in INPUT FORWARD OUTPUT; do
        $t -D $chain -m comment --comment 'kube-router netpol' -j KUBE-ROUTER-$chain
        $t -I $chain -m comment --comment 'kube-router netpol' -j KUBE-ROUTER-$chain
    done; done";

pub(crate) fn network_policies_of_kube_router_apply_to_services(c: &mut Cluster) -> Outcome {
    let node1 = c.node1.clone();
    let other: Place = c.world.pod(&node1, "other", "10.244.1.98 fd44:1::98")?;
    c.sh(KUBE_ROUTER)?;
    policed_services(c)?;
    in_each_mode(c, REFRESH, |c, _: &Form| policies_hold(c, &other))
}
