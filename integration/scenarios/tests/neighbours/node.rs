//! Tests a node with flannel (VXLAN), NodeLocal DNSCache, Istio (ambient mode and sidecar),
//! kube-vip and keepalived. Another test uses Cilium's rules.

use std::fs;
use std::time::Duration;

use anyhow::ensure;
use lab::Transport;
use scenarios::{Cluster, Outcome, SOON, Service, at, tcp, udp};

use super::{Form, in_each_mode};

/// Script that connects the nodes by VXLAN and masquerades as flannel does.
const FLANNEL: &str = "
    ip link add flannel.1 type vxlan id 1 dev eth0 local 172.35.0.100 dstport 8472 nolearning
    ip link set flannel.1 address 02:00:00:00:01:01 up
    ip addr add 10.244.1.0/32 dev flannel.1
    bridge fdb append 02:00:00:00:01:02 dev flannel.1 dst 172.35.0.101 self permanent
    ip neigh add 10.244.2.0 lladdr 02:00:00:00:01:02 dev flannel.1 nud permanent
    ip route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink
    x=iptables-$backend
    $x -N FLANNEL-FWD; $x -A FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD
    $x -A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT; $x -A FLANNEL-FWD -d 10.244.0.0/16 -j ACCEPT
    $x -t nat -N FLANNEL-POSTRTG
    $x -t nat -A POSTROUTING -m comment --comment 'flanneld masq' -j FLANNEL-POSTRTG
    $x -t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN
    $x -t nat -A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -j RETURN
    $x -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.1.0/24 -j RETURN
    $x -t nat -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -j RETURN
    $x -t nat -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully
    $x -t nat -A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -j MASQUERADE --random-fully
";
/// Script that sets up the tunnel's other end, on node2.
const FLANNEL_PEER: &str = "
    ip link add flannel.1 type vxlan id 1 dev eth0 local 172.35.0.101 dstport 8472 nolearning
    ip link set flannel.1 address 02:00:00:00:01:02 up
    ip addr add 10.244.2.0/32 dev flannel.1
    bridge fdb append 02:00:00:00:01:01 dev flannel.1 dst 172.35.0.100 self permanent
    ip neigh add 10.244.1.0 lladdr 02:00:00:00:01:01 dev flannel.1 nud permanent
    ip route replace 10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink
";

/// Script that adds NodeLocal DNSCache's address and its NOTRACK rules, which keep the cache's
/// connections out of conntrack.
const NODE_LOCAL_DNS: &str = "
    ip link add nodelocaldns type dummy; ip addr add 169.254.20.10/32 dev nodelocaldns
    for proto in tcp udp; do
        iptables-$backend -t raw -A PREROUTING -d 169.254.20.10/32 -p $proto --dport 53 -j NOTRACK
        iptables-$backend -t raw -A OUTPUT -s 169.254.20.10/32 -p $proto --sport 53 -j NOTRACK
        iptables-$backend -t raw -A OUTPUT -d 169.254.20.10/32 -p $proto --dport 53 -j NOTRACK
        iptables-$backend -A INPUT -d 169.254.20.10/32 -p $proto --dport 53 -j ACCEPT
        iptables-$backend -A OUTPUT -s 169.254.20.10/32 -p $proto --sport 53 -j ACCEPT
    done
";
/// Commands that add or delete the DNS Service's address for NodeLocal DNSCache. The test runs them
/// only in modes without IPVS.
const TAKE_DNS: &str = "
    ip addr $do 10.96.0.53/32 dev nodelocaldns
    iptables-$backend -t raw $rule PREROUTING -d 10.96.0.53/32 -p tcp --dport 53 -j NOTRACK
    iptables-$backend -t raw $rule OUTPUT -s 10.96.0.53/32 -p tcp --sport 53 -j NOTRACK
    iptables-$backend -t raw $rule OUTPUT -d 10.96.0.53/32 -p tcp --dport 53 -j NOTRACK
";

/// Script that adds Istio's rule on an ambient node, which translates the source of the kubelet's
/// probes to a fixed address.
const ISTIO: &str = "
    ipset create istio-inpod-probes-v4 hash:ip; ipset add istio-inpod-probes-v4 10.244.1.10
    iptables-$backend -t nat -N ISTIO_POSTRT
    iptables-$backend -t nat -A ISTIO_POSTRT -m owner --socket-exists -p tcp \\
        -m set --match-set istio-inpod-probes-v4 dst -j SNAT --to-source 169.254.7.127
    iptables-$backend -t nat -I POSTROUTING -j ISTIO_POSTRT
";
/// Script that adds the rules of an Istio sidecar in its pod. They redirect incoming connections to
/// port 15006.
const SIDECAR: &str = "
    x=iptables-$backend
    for chain in ISTIO_INBOUND ISTIO_IN_REDIRECT; do $x -t nat -N $chain; done
    $x -t nat -A PREROUTING -p tcp -j ISTIO_INBOUND
    $x -t nat -A ISTIO_INBOUND -p tcp --dport 15008 -j RETURN
    $x -t nat -A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
    $x -t nat -A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
";

/// Script that adds kube-vip's address and load balancer of the control plane, and the address of a
/// Service that kube-vip announces.
const KUBE_VIP: &str = "
    ip addr add 192.0.2.61/32 dev eth0
    ipvsadm -A -t 192.0.2.61:6443 -s rr; ipvsadm -a -t 192.0.2.61:6443 -r 10.244.1.10:8080 -m
    ip addr add 192.0.2.10/32 dev eth0
";

/// Configuration of keepalived with one virtual address and one virtual server.
const KEEPALIVED: &str = "
global_defs { router_id node1 }
vrrp_instance lab {
    state MASTER
    interface eth0
    virtual_router_id 60
    priority 100
    advert_int 1
    virtual_ipaddress { 192.0.2.60/32 dev eth0 }
}
virtual_server 192.0.2.60 443 {
    lb_algo rr
    lb_kind NAT
    protocol TCP
    real_server 10.244.1.10 8080 { weight 1 }
}
";

pub(crate) fn services_work_beside_programs_of_the_node(c: &mut Cluster) -> Outcome {
    for script in [FLANNEL, NODE_LOCAL_DNS, ISTIO, KUBE_VIP] {
        c.sh(script)?;
    }
    c.node2.read(["sh", "-ec", FLANNEL_PEER])?;
    c.far
        .read(["sh", "-ec", &scenarios::with_backend(SIDECAR)])?;
    c.far.serve_tcp(15006)?;
    c.node1.serve_tcp(53)?;
    let folder = c.folder().to_owned();
    let file = folder.join("keepalived.conf");
    fs::write(&file, KEEPALIVED)?;
    let file = file.display().to_string();
    let (own, vrrp, checkers) = (folder.join("k"), folder.join("v"), folder.join("c"));
    let pids = [("-p", own), ("-r", vrrp), ("-c", checkers)];
    let pids = pids.map(|(flag, path)| format!("{flag}{}", path.display()));
    let mut keepalived = vec!["keepalived", "-n", "-l", "-D", "-f", &file];
    keepalived.extend(pids.iter().map(String::as_str));
    let mut keepalived = c.node1.spawn(keepalived)?;
    c.until("keepalived's address and virtual server", || {
        let state = c.sh("ip addr show dev eth0; ipvsadm -Sn")?;
        Ok(state.contains("192.0.2.60/32") && state.contains("192.0.2.60:443"))
    })?;

    c.write("node", super::NODE)?;
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .ingress("192.0.2.10")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10");
    c.apply(&web)?;
    let dns = Service::new("dns", "10.96.0.53")
        .port(tcp(53, 8080).named("tcp"))
        .port(udp(53, 8080).named("udp"))
        .endpoints("10.244.1.10 10.244.2.10");
    c.apply(&dns)?;
    c.sh("ip route replace default via 172.35.0.9; ip -6 route replace default via fd35::9")?;
    in_each_mode(c, "", |c, form: &Form| {
        for (from, to) in [
            (&c.client, "10.96.0.10:80"),
            (&c.client, "10.96.0.10:80"),
            (&c.client, "[fd96::10]:80"),
            (&c.client, "10.96.0.53:53"),
            (&*c.node1, "10.96.0.10:80"),
            (&*c.node1, "10.96.0.10:80"),
            (&c.outside, "172.35.0.100:30080"),
            (&c.outside, "172.35.0.100:30080"),
            (&c.outside, "192.0.2.10:80"),
            (&c.client, "169.254.20.10:53"),
            (&c.outside, "192.0.2.60:443"),
            (&c.outside, "192.0.2.61:6443"),
        ] {
            c.until_answered(from, to)?;
        }
        c.client.ask_udp(at("10.96.0.53:53"), SOON)?;
        if !form.name.starts_with("ipvs") {
            c.sh(&format!("do=add rule=-A\n{TAKE_DNS}"))?;
            // Until its drain has ended, the virtual server takes the packets before they reach the
            // cache.
            c.until("the cache answers", || {
                let dial = c.client.dial(Transport::Tcp, at("10.96.0.53:53"));
                let answer = dial.timeout(Duration::from_millis(500)).ask();
                Ok(answer.is_ok_and(|answer| answer.who == "node1"))
            })?;
            c.sh(&format!("do=del rule=-D\n{TAKE_DNS}"))?;
        }
        Ok(())
    })?;
    keepalived.stop(SOON)?;
    Ok(())
}

/// Script that adds the iptables rules of a Cilium without kube-proxy replacement. The test lacks
/// Cilium's eBPF programs.
const CILIUM: &str = "
    ip link add cilium_host type veth peer name cilium_net
    for x in iptables-$backend ip6tables-$backend; do
        for chain in INPUT OUTPUT FORWARD; do $x -N CILIUM_$chain; done
        $x -A CILIUM_INPUT -m mark --mark 0x200/0xf00 -j ACCEPT
        for link in cilium_host lxc+; do $x -A CILIUM_FORWARD -o $link -j ACCEPT; done
        for link in cilium_host cilium_net lxc+; do $x -A CILIUM_FORWARD -i $link -j ACCEPT; done
        $x -A CILIUM_OUTPUT -m mark --mark 0xa00/0xe00 -j ACCEPT
        $x -A CILIUM_OUTPUT -m mark --mark 0x800/0xe00 -j ACCEPT
        $x -A CILIUM_OUTPUT -m mark ! --mark 0xd00/0xf00 -m mark ! --mark 0xe00/0xf00 -m mark ! --mark 0x400/0xf00 \\
            -m mark ! --mark 0xa00/0xe00 -m mark ! --mark 0x800/0xe00 -j MARK --set-xmark 0xc00/0xf00
        $x -t raw -N CILIUM_PRE_raw; $x -t raw -N CILIUM_OUTPUT_raw
        $x -t raw -A CILIUM_PRE_raw -m mark --mark 0x200/0xf00 -j NOTRACK
        $x -t raw -A CILIUM_OUTPUT_raw -o lxc+ -m mark --mark 0xa00/0xfffffeff -j NOTRACK
        for chain in CILIUM_PRE_nat CILIUM_OUTPUT_nat CILIUM_POST_nat; do $x -t nat -N $chain; done
        $x -t nat -A CILIUM_POST_nat -m mark --mark 0xa00/0xe00 -j ACCEPT
        $x -t nat -I PREROUTING -j CILIUM_PRE_nat; $x -t nat -I OUTPUT -j CILIUM_OUTPUT_nat
        $x -t nat -I POSTROUTING -j CILIUM_POST_nat
        $x -t raw -I PREROUTING -j CILIUM_PRE_raw; $x -t raw -I OUTPUT -j CILIUM_OUTPUT_raw
        for chain in INPUT OUTPUT FORWARD; do $x -I $chain -j CILIUM_$chain; done
    done
    iptables-$backend -t nat -A CILIUM_POST_nat -s 10.244.1.0/24 ! -d 10.244.0.0/16 ! -o cilium_+ -j MASQUERADE
";

pub(crate) fn services_work_beside_cilium_without_kube_proxy_replacement(
    c: &mut Cluster,
) -> Outcome {
    c.sh(CILIUM)?;
    c.write("node", super::NODE)?;
    c.sh("ip route replace default via 172.35.0.9; ip -6 route replace default via fd35::9")?;
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .ingress("192.0.2.10 2001:db8::10")
        .spec("externalTrafficPolicy: Local")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10");
    c.apply(&web)?;
    in_each_mode(c, "", |c, _: &Form| {
        for (from, to) in [
            (&c.client, "10.96.0.10:80"),
            (&c.client, "[fd96::10]:80"),
            (&*c.node1, "10.96.0.10:80"),
            (&*c.node1, "[fd96::10]:80"),
            (&c.outside, "172.35.0.100:30080"),
            (&c.outside, "192.0.2.10:80"),
            (&c.outside, "[2001:db8::10]:80"),
        ] {
            c.until_answered(from, to)?;
        }
        let answer = c.outside.ask_tcp(at("192.0.2.10:80"), SOON)?;
        let seen = (answer.who.as_str(), answer.seen_source.ip().to_string());
        ensure!(seen == ("near", "172.35.0.9".to_owned()), "{seen:?}");
        Ok(())
    })
}
