//! Tests a node with Calico, whose data plane uses iptables and ipsets, or nftables.
//!
//! A packet that IPVS forwards passes INPUT and OUTPUT instead of FORWARD. If the link `kube-ipvs0`
//! exists, Felix (Calico's agent) therefore handles such packets in two steps:
//!
//! - In INPUT, it marks each packet with its origin. These marks use the bits 0xfff00000.
//! - In OUTPUT, it applies the policies of both pods.

use anyhow::ensure;
use lab::Transport;
use scenarios::{Cluster, Outcome, Service, at, tally, tcp};

use super::{EXACT, Form, in_modes, policed_services, policies_hold};

/// Script that turns the pods `near`, `client` and `other` into Calico pods: instead of a bridge,
/// each has its own interface `cali…` and route on the node.
const PODS: &str = "
    for pair in port2:near:10 port4:client:99 port6:other:98; do
        IFS=: read -r port pod last <<.
$pair
.
        ip link set $port nomaster down
        ip link set $port name cali$pod up
        echo 1 >/proc/sys/net/ipv4/conf/cali$pod/proxy_arp
        echo 1 >/proc/sys/net/ipv6/conf/cali$pod/proxy_ndp
        ip route add 10.244.1.$last/32 dev cali$pod
        ip -6 route add fd44:1::$last/128 dev cali$pod
        for at in fd44:1::1 fd44:1::10 fd44:1::99 fd44:1::98; do
            [ $at = fd44:1::$last ] || ip -6 neigh add proxy $at dev cali$pod
        done
    done
";

/// Script that adds the rules of Felix's iptables data plane. Its policy allows only `client` to
/// reach the pod `near`.
const IPTABLES: &str = "
    ipset create cali40this-host hash:ip; ipset add cali40this-host 172.35.0.100; ipset add cali40this-host 10.244.1.1
    ipset add cali40this-host 127.0.0.1
    ipset create cali60this-host hash:ip family inet6; ipset add cali60this-host fd35::100; ipset add cali60this-host fd44:1::1
    ipset create cali40all-ipam-pools hash:net; ipset add cali40all-ipam-pools 10.244.0.0/16
    ipset create cali40masq-ipam-pools hash:net; ipset add cali40masq-ipam-pools 10.244.0.0/16
    ipset create cali60all-ipam-pools hash:net family inet6; ipset add cali60all-ipam-pools fd44::/16
    ipset create cali60masq-ipam-pools hash:net family inet6; ipset add cali60masq-ipam-pools fd44::/16
    for t in ip:4:10.244.1.99 ip6:6:fd44:1::99; do
        IFS=: read -r ip family allowed <<.
$t
.
        x=${ip}tables-$backend
        host=cali${family}0this-host
        wl='cali-from-wl-dispatch cali-to-wl-dispatch'
        for chain in INPUT FORWARD OUTPUT forward-check forward-endpoint-mark set-endpoint-mark from-endpoint-mark wl-to-host \\
            from-wl-dispatch to-wl-dispatch; do $x -N cali-$chain; done
        for pod in near client other; do for kind in tw fw sm; do $x -N cali-$kind-cali$pod; done; done

        $x -A cali-INPUT -j MARK --set-xmark 0x0/0xfff00000
        $x -A cali-INPUT -j cali-forward-check
        $x -A cali-INPUT -m mark ! --mark 0x0/0xfff00000 -j RETURN
        $x -A cali-INPUT -i cali+ -g cali-wl-to-host
        $x -A cali-INPUT -m mark --mark 0x10000/0x10000 -j ACCEPT
        $x -A cali-INPUT -j MARK --set-xmark 0x0/0xf0000
        $x -A cali-wl-to-host -j cali-from-wl-dispatch
        $x -A cali-wl-to-host -j RETURN
        $x -A cali-forward-check -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
        for proto in tcp udp; do
            $x -A cali-forward-check -p $proto -m multiport --dports 30000:32767 -m set --match-set $host dst -g cali-set-endpoint-mark
        done
        $x -A cali-forward-check -m set ! --match-set $host dst -j cali-set-endpoint-mark

        $x -A cali-OUTPUT -m mark --mark 0x10000/0x10000 -j ACCEPT
        $x -A cali-OUTPUT -m mark ! --mark 0x0/0xfff00000 -g cali-forward-endpoint-mark
        $x -A cali-OUTPUT -o cali+ -j RETURN
        $x -A cali-OUTPUT -j MARK --set-xmark 0x0/0xf0000
        $x -A cali-forward-endpoint-mark -m mark ! --mark 0x100000/0xfff00000 -j cali-from-endpoint-mark
        $x -A cali-forward-endpoint-mark -o cali+ -j cali-to-wl-dispatch
        $x -A cali-forward-endpoint-mark -j MARK --set-xmark 0x0/0xfff00000
        $x -A cali-forward-endpoint-mark -m mark --mark 0x10000/0x10000 -j ACCEPT

        $x -A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000
        $x -A cali-FORWARD -i cali+ -j cali-from-wl-dispatch
        $x -A cali-FORWARD -o cali+ -j cali-to-wl-dispatch
        $x -A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT
        $x -A FORWARD -j MARK --set-xmark 0x10000/0x10000

        number=2
        for pod in near client other; do
            $x -A cali-set-endpoint-mark -i cali$pod -g cali-sm-cali$pod
            $x -A cali-sm-cali$pod -j MARK --set-xmark 0x${number}00000/0xfff00000
            $x -A cali-from-endpoint-mark -m mark --mark 0x${number}00000/0xfff00000 -g cali-fw-cali$pod
            $x -A cali-from-wl-dispatch -i cali$pod -g cali-fw-cali$pod
            $x -A cali-to-wl-dispatch -o cali$pod -g cali-tw-cali$pod
            for kind in fw tw; do
                $x -A cali-$kind-cali$pod -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
                $x -A cali-$kind-cali$pod -m conntrack --ctstate INVALID -j DROP
                $x -A cali-$kind-cali$pod -j MARK --set-xmark 0x0/0x10000
            done
            $x -A cali-fw-cali$pod -j MARK --set-xmark 0x10000/0x10000
            number=$((number + 1))
        done
        $x -A cali-tw-calinear -s $allowed -j MARK --set-xmark 0x10000/0x10000
        for pod in client other; do $x -A cali-tw-cali$pod -j MARK --set-xmark 0x10000/0x10000; done
        for pod in near client other; do for kind in fw tw; do
            $x -A cali-$kind-cali$pod -m mark --mark 0x10000/0x10000 -j RETURN
            $x -A cali-$kind-cali$pod -j DROP
        done; done
        $x -A cali-set-endpoint-mark -i cali+ -j DROP
        $x -A cali-set-endpoint-mark -j MARK --set-xmark 0x100000/0xfff00000
        $x -A cali-from-endpoint-mark -j DROP
        $x -A cali-from-wl-dispatch -j DROP
        $x -A cali-to-wl-dispatch -j DROP
        for chain in INPUT FORWARD OUTPUT; do $x -I $chain -j cali-$chain; done

        $x -t nat -N cali-POSTROUTING
        $x -t nat -A cali-POSTROUTING -m set --match-set cali${family}0masq-ipam-pools src \\
            -m set ! --match-set cali${family}0all-ipam-pools dst -j MASQUERADE
        $x -t nat -I POSTROUTING -j cali-POSTROUTING
        $x -t raw -N cali-PREROUTING
        $x -t raw -A cali-PREROUTING -j MARK --set-xmark 0x0/0xf0000
        $x -t raw -A cali-PREROUTING -i cali+ -j MARK --set-xmark 0x40000/0x40000
        $x -t raw -A cali-PREROUTING -m mark --mark 0x40000/0x40000 -m rpfilter --validmark --invert -j DROP
        $x -t raw -A cali-PREROUTING -m mark --mark 0x0/0x40000 -j RETURN
        $x -t raw -I PREROUTING -j cali-PREROUTING
    done
";

/// Script that moves the jumps to Felix's chains to the front, as Felix does when other rules
/// precede them. kube-proxy moves its own jumps to the front only when they are missing.
const REFRESH: &str = "
    for t in iptables-$backend ip6tables-$backend; do
        for chain in INPUT FORWARD OUTPUT; do $t -D $chain -j cali-$chain; $t -I $chain -j cali-$chain; done
        $t -t nat -D POSTROUTING -j cali-POSTROUTING; $t -t nat -I POSTROUTING -j cali-POSTROUTING
    done";
/// Script that prints the first rule of INPUT, FORWARD and OUTPUT, in both IP families.
const FIRST: &str = "
    for t in iptables-$backend ip6tables-$backend; do
        for chain in INPUT FORWARD OUTPUT; do $t -S $chain 1; done
        $t -t nat -S POSTROUTING 1
    done";

/// Script that adds the rules of Felix's nftables data plane. Its policy allows only `client` to
/// reach the pod `near`.
const NFTABLES: &str = "
    while read -r f v allowed pool hosts; do nft -f - <<.
table $f calico {
    set cali${v}0this-host { type ipv${v}_addr; elements = { $hosts } }
    set cali${v}0all-ipam-pools { type ipv${v}_addr; flags interval; elements = { $pool } }
    set cali${v}0masq-ipam-pools { type ipv${v}_addr; flags interval; elements = { $pool } }
    map filter-cali-fw-dispatch {
        type ifname : verdict
        elements = { \"calinear\" : goto filter-cali-fw-near, \"caliclient\" : goto filter-cali-fw-client,
            \"caliother\" : goto filter-cali-fw-other }
    }
    map filter-cali-tw-dispatch {
        type ifname : verdict
        elements = { \"calinear\" : goto filter-cali-tw-near, \"caliclient\" : goto filter-cali-tw-client,
            \"caliother\" : goto filter-cali-tw-other }
    }
    chain filter-INPUT { type filter hook input priority 0; jump filter-cali-INPUT; }
    chain filter-OUTPUT { type filter hook output priority 0; jump filter-cali-OUTPUT; }
    chain filter-FORWARD {
        type filter hook forward priority 0
        jump filter-cali-FORWARD
        meta mark & 0x10000 == 0x10000 accept
        meta mark set meta mark | 0x10000
    }
    chain nat-POSTROUTING { type nat hook postrouting priority 110; jump nat-cali-POSTROUTING; }
    chain raw-PREROUTING { type filter hook prerouting priority -300; jump raw-cali-PREROUTING; }
    chain filter-cali-INPUT {
        meta mark set meta mark & 0x000fffff
        jump filter-cali-forward-check
        meta mark & 0xfff00000 != 0 return
        iifname \"cali*\" goto filter-cali-wl-to-host
        meta mark & 0x10000 == 0x10000 accept
        meta mark set meta mark & 0xfff0ffff
    }
    chain filter-cali-wl-to-host { jump filter-cali-from-wl-dispatch; return; }
    chain filter-cali-forward-check {
        ct state established,related return
        meta l4proto { tcp, udp } th dport 30000-32767 $f daddr @cali${v}0this-host goto filter-cali-set-endpoint-mark
        $f daddr != @cali${v}0this-host jump filter-cali-set-endpoint-mark
    }
    chain filter-cali-set-endpoint-mark {
        iifname \"calinear\" goto filter-cali-sm-near
        iifname \"caliclient\" goto filter-cali-sm-client
        iifname \"caliother\" goto filter-cali-sm-other
        iifname \"cali*\" drop
        meta mark set meta mark & 0x000fffff | 0x00100000
    }
    chain filter-cali-sm-near { meta mark set meta mark & 0x000fffff | 0x00200000; }
    chain filter-cali-sm-client { meta mark set meta mark & 0x000fffff | 0x00300000; }
    chain filter-cali-sm-other { meta mark set meta mark & 0x000fffff | 0x00400000; }
    chain filter-cali-OUTPUT {
        meta mark & 0x10000 == 0x10000 accept
        meta mark & 0xfff00000 != 0 goto filter-cali-forward-endpoint-mark
        oifname \"cali*\" return
        meta mark set meta mark & 0xfff0ffff
    }
    chain filter-cali-forward-endpoint-mark {
        meta mark & 0xfff00000 != 0x00100000 jump filter-cali-from-endpoint-mark
        oifname \"cali*\" jump filter-cali-to-wl-dispatch
        meta mark set meta mark & 0x000fffff
        meta mark & 0x10000 == 0x10000 accept
    }
    chain filter-cali-from-endpoint-mark {
        meta mark & 0xfff00000 == 0x00200000 goto filter-cali-fw-near
        meta mark & 0xfff00000 == 0x00300000 goto filter-cali-fw-client
        meta mark & 0xfff00000 == 0x00400000 goto filter-cali-fw-other
        drop
    }
    chain filter-cali-FORWARD {
        meta mark set meta mark & 0xfff1ffff
        iifname \"cali*\" jump filter-cali-from-wl-dispatch
        oifname \"cali*\" jump filter-cali-to-wl-dispatch
    }
    chain filter-cali-from-wl-dispatch { iifname vmap @filter-cali-fw-dispatch; drop; }
    chain filter-cali-to-wl-dispatch { oifname vmap @filter-cali-tw-dispatch; drop; }
    chain nat-cali-POSTROUTING { $f saddr @cali${v}0masq-ipam-pools $f daddr != @cali${v}0all-ipam-pools masquerade; }
    chain raw-cali-PREROUTING {
        meta mark set meta mark & 0xfff0ffff
        iifname \"cali*\" meta mark set meta mark | 0x40000
        meta mark & 0x40000 == 0x40000 fib saddr . mark . iif oif 0 drop
        meta mark & 0x40000 == 0 return
    }
$(
    for pod in near client other; do for kind in tw fw; do
        admitted=
        [ $kind-$pod != tw-near ] || admitted=\"$f saddr $allowed\"
        cat <<,
    chain filter-cali-$kind-$pod {
        ct state established,related accept
        ct state invalid drop
        meta mark set meta mark & 0xfffeffff
        $admitted meta mark set meta mark | 0x10000
        meta mark & 0x10000 == 0x10000 return
        drop
    }
,
    done; done
)
}
.
    done <<.
ip 4 10.244.1.99 10.244.0.0/16 172.35.0.100, 10.244.1.1, 127.0.0.1
ip6 6 fd44:1::99 fd44::/16 fd35::100, fd44:1::1
.
";

/// A data plane of Felix, Calico's agent, and the scripts that imitate it.
struct DataPlane {
    /// Script that adds the rules of this data plane.
    rules: &'static str,
    /// Name of the chain in the daemon's warning about `--ipvs-semantics=exact`.
    chain: &'static str,
    /// Script with Felix's repair of its jumps, which runs after each start of kube-proxy.
    refresh: &'static str,
    /// Script that prints the first rule of each chain that Felix and kube-proxy share.
    first: &'static str,
}

const IN_IPTABLES: DataPlane = DataPlane {
    rules: IPTABLES,
    chain: "cali-INPUT",
    refresh: REFRESH,
    first: FIRST,
};

/// Felix's nftables data plane, which has its own tables and no shared chain.
const IN_NFTABLES: DataPlane = DataPlane {
    rules: NFTABLES,
    chain: "filter-INPUT",
    refresh: "true",
    first: "true",
};

pub(crate) fn network_policies_of_calico_apply_to_services(c: &mut Cluster) -> Outcome {
    policies_apply(c, &IN_IPTABLES, |form| form.name != EXACT)?;
    is_warned(c, &IN_IPTABLES)
}

pub(crate) fn network_policies_of_calico_apply_with_exact_semantics(c: &mut Cluster) -> Outcome {
    policies_apply(c, &IN_IPTABLES, |form| form.name == EXACT)
}

pub(crate) fn network_policies_of_calico_in_nftables_apply_to_services(c: &mut Cluster) -> Outcome {
    policies_apply(c, &IN_NFTABLES, |_| true)?;
    is_warned(c, &IN_NFTABLES)
}

/// Checks that `kube-proxy check` and the daemon at its start print the same warning.
fn is_warned(c: &mut Cluster, felix: &DataPlane) -> Outcome {
    c.launch(&[
        "--proxy-mode=ipvs",
        "--ipvs-semantics=exact",
        "--ipvs-shim=lean",
    ])?;
    let line = c.await_line(felix.chain)?;
    ensure!(
        line.starts_with('W') && line.contains("set --ipvs-shim=nftables"),
        "{line}"
    );
    c.stop()
}

fn policies_apply(c: &mut Cluster, felix: &DataPlane, is_chosen: fn(&Form) -> bool) -> Outcome {
    let node1 = c.node1.clone();
    let other = c.world.pod(&node1, "other", "10.244.1.98 fd44:1::98")?;
    c.sh(PODS)?;
    c.sh(felix.rules)?;
    policed_services(c)?;
    // Adds the Service `open`, whose endpoints no policy restricts.
    c.client.serve_tcp(8080)?;
    let open = Service::new("open", "10.96.0.13")
        .port(tcp(80, 8080).node_port(30083))
        .ingress("192.0.2.13")
        .spec("externalTrafficPolicy: Local")
        .endpoints("10.244.1.99 10.244.2.10");
    c.apply(&open)?;
    in_modes(c, is_chosen, felix.refresh, |c, form: &Form| {
        policies_hold(c, &other)?;
        let first = c.sh(felix.first)?;
        ensure!(
            first.lines().all(|line| line.contains("-j cali-")),
            "{first}"
        );
        // The lean shim marks packets in table mangle, before Felix's rules add their own bits to
        // the mark. IPVS then finds no virtual server for the changed mark (docs/neighbours.md).
        let has_conflict = form.name == "ipvs, exact, lean shim";
        let checked = c.check(form.flags)?;
        ensure!(checked.contains(felix.chain) == has_conflict, "{checked}");
        if !has_conflict {
            // Clients outside the cluster reach only the endpoint on node1, which sees their own
            // addresses.
            let answers = tally(&c.outside, Transport::Tcp, at("192.0.2.13:80"), 4)?;
            let answers: Vec<_> = answers.keys().collect();
            ensure!(answers == ["client from 172.35.0.9"], "{answers:?}");
        }
        Ok(())
    })
}
