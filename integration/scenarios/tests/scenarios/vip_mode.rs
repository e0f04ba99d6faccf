//! Tests `--ipvs-vip-mode`, which makes Service addresses local by device addresses or by routes.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::ensure;
use scenarios::{Cluster, Outcome, Service, at, ping, request_timestamp, tcp};

const ROUTES: &str = "--ipvs-vip-mode=route";
const RANGES: &str = "--ipvs-vip-mode=range";

/// Returns the manifest of a ServiceCIDR with these networks.
fn service_cidr(nets: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
         metadata: {{name: kubernetes}}\nspec: {{cidrs: [{nets}]}}\n"
    )
}

fn web() -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .external("192.0.2.20 2001:db8::20")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10")
}

/// Returns how many Service addresses are device addresses of `kube-ipvs0`, and how many are local
/// routes through `kube-ipvs0`.
fn vips(c: &Cluster) -> anyhow::Result<(usize, usize)> {
    let addresses = c.addresses()?;
    let on_link = addresses
        .iter()
        .filter_map(|line| line.strip_prefix("kube-ipvs0 "));
    let is_vip = |address: &&str| !address.starts_with("fe80") && *address != "127.107.0.1/32";
    let on_link = on_link.filter(is_vip);
    let (routes, addresses): (Vec<_>, Vec<_>) =
        on_link.partition(|address| address.starts_with("local "));
    Ok((addresses.len(), routes.len()))
}

pub(crate) fn a_change_of_the_vip_mode_keeps_open_connections(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    c.start(&[])?;
    c.until_served(&web())?;
    assert_eq!(vips(c)?, (4, 0));
    let ways = [
        (&c.client, "10.96.0.10:80"),
        (&c.client, "[fd96::10]:80"),
        (&*c.node1, "10.96.0.10:80"),
        (&*c.node1, "[fd96::10]:80"),
        (&c.outside, "192.0.2.20:80"),
        (&c.outside, "172.35.0.100:30080"),
    ];
    let mut kept = Vec::new();
    for (from, to) in ways {
        kept.push(from.open_tcp(at(to), scenarios::SOON)?);
    }
    c.write("cidr.yaml", &service_cidr("10.96.0.0/12, \"fd96::/112\""))?;
    let forms = [
        (
            &[ROUTES][..],
            (0, 4),
            ["bind 10.96.0.10 to kube-ipvs0", "unbind fd96::10 from"],
        ),
        (
            &[],
            (4, 0),
            ["bind 10.96.0.10 to kube-ipvs0", "unbind fd96::10 from"],
        ),
        (
            &[RANGES],
            (0, 4),
            ["add local route to 10.96.0.0/12", "unbind fd96::10 from"],
        ),
        (
            &[ROUTES],
            (0, 4),
            [
                "bind 10.96.0.10 to kube-ipvs0",
                "remove local route to fd96::/112",
            ],
        ),
        (
            &[RANGES],
            (0, 4),
            ["add local route to fd96::/112", "unbind 10.96.0.10 from"],
        ),
        (
            &[],
            (4, 0),
            [
                "bind 10.96.0.10 to kube-ipvs0",
                "remove local route to 10.96.0.0/12",
            ],
        ),
    ];
    for (flags, wanted, changes) in forms {
        c.stop()?;
        let foretold = c.check(flags)?;
        for change in changes {
            let found = foretold.lines().filter(|line| line.contains(change));
            assert_eq!(found.count(), 1, "{change}: {foretold}");
        }
        c.start(flags)?;
        let is_range = |flags: &[&str]| flags.contains(&RANGES);
        c.until("the other form is gone", || {
            let has_range = c.addresses()?.contains("kube-ipvs0 local 10.96.0.0/12");
            Ok(vips(c)? == wanted && has_range == is_range(flags))
        })?;
        for connection in &mut kept {
            connection.ask()?;
        }
        for (from, to) in [
            (&c.client, "10.96.0.10:80"),
            (&c.client, "[fd96::10]:80"),
            (&*c.node1, "10.96.0.10:80"),
            (&*c.node1, "[fd96::10]:80"),
            (&c.outside, "192.0.2.20:80"),
            (&c.outside, "[2001:db8::20]:80"),
        ] {
            c.until_answered(from, to)?;
        }
        let foretold = c.check(flags)?;
        assert!(!foretold.contains("kube-ipvs0"), "{foretold}");
    }
    Ok(())
}

/// `--ipvs-vip-mode=range` makes the networks of ServiceCIDRs local:
///
/// - Packets to networks of other interfaces and of static routes still take those routes.
/// - A Service address outside of the ServiceCIDRs has its own route.
/// - The node's processes are unreachable at all addresses of a ServiceCIDR.
pub(crate) fn a_service_range_excludes_the_subnets_of_other_interfaces(c: &mut Cluster) -> Outcome {
    let inside = Service::new("inside", "10.108.0.10")
        .port(tcp(80, 8080))
        .endpoints("10.244.2.10");
    c.apply(&web())?;
    c.apply(&inside)?;
    // Adds an address in a LAN and a static route. Both networks are inside the Service range.
    c.sh("ip addr add 10.100.0.1/16 dev eth0; ip route add 10.108.0.0/16 dev eth0")?;
    let lan = ["ip", "addr", "add", "10.100.0.7/16", "dev", "eth0"];
    c.outside.read(lan)?;
    // The kernel resolves a neighbour entry for the LAN host only if packets to this host leave
    // through the LAN.
    let reaches_lan = "ip neigh flush to 10.100.0.7; \
        timeout 3 bash -c '</dev/tcp/10.100.0.7/9' 2>/dev/null || true; \
        ip neigh show 10.100.0.7 | grep -q lladdr; \
        ip route get 10.108.0.99 | grep -q 'dev eth0'";
    let mut shims = vec!["upstream", "lean"];
    if crate::has_nft() {
        shims = vec!["nftables"];
    }
    for has_rule in [false, true] {
        if has_rule {
            // If another program has added `ip rule` entries, the kernel looks up the route tables
            // local and main separately.
            c.sh("ip rule add pref 100 from 198.51.100.1 lookup main")?;
        }
        for shim in &shims {
            c.write("cidr.yaml", &service_cidr("10.96.0.0/12, \"fd96::/112\""))?;
            let shim = format!("--ipvs-shim={shim}");
            c.start(&[RANGES, &shim])?;
            let has_ranges = |c: &Cluster| {
                let routes = c.addresses()?;
                let has = |net: &str| routes.contains(&format!("kube-ipvs0 local {net}"));
                Ok(has("10.104.0.0/14") && has("fd96::/112") && has("192.0.2.20"))
            };
            c.until("the ranges are routes", || has_ranges(c))?;
            assert!(!c.addresses()?.contains("kube-ipvs0 local 10.96.0.10"));
            for (from, to) in [
                (&c.client, "10.96.0.10:80"),
                (&c.client, "[fd96::10]:80"),
                (&*c.node1, "10.96.0.10:80"),
                (&*c.node1, "[fd96::10]:80"),
                (&c.outside, "10.96.0.10:80"),
                (&c.outside, "192.0.2.20:80"),
                (&c.client, "10.108.0.10:80"),
            ] {
                c.until_answered(from, to)?;
            }
            c.sh(reaches_lan)?;
            // The daemon's health endpoint listens on all addresses of the node. It must not be
            // reachable at addresses of the range.
            for to in ["10.96.0.10:10256", "10.96.0.77:10256", "[fd96::77]:10256"] {
                c.refuses(&c.client, to)?;
                c.refuses(&c.outside, to)?;
            }
            // A restarted daemon finds the complete state, and writes nothing.
            let before = c.state()?;
            c.stop()?;
            c.launch(&[RANGES, &shim])?;
            for _family in 0..2 {
                let line = c.await_line("first sync done")?;
                assert!(line.contains("written=0"), "{line}");
            }
            assert_eq!(c.state()?, before);
            // When the ServiceCIDR no longer contains the Service addresses, each address must get
            // its own route.
            c.write("cidr.yaml", &service_cidr("10.112.0.0/16, \"fd97::/112\""))?;
            c.until("the addresses are routes", || {
                let routes = c.addresses()?;
                let has = |net: &str| routes.contains(&format!("kube-ipvs0 local {net}"));
                Ok(has("10.96.0.10") && has("fd96::10") && !has("10.104.0.0/14"))
            })?;
            c.until_answered(&c.client, "10.96.0.10:80")?;
            c.stop()?;
        }
    }
    let program = scenarios::kube_proxy()?;
    c.sh(&format!("{} --cleanup", program.display()))?;
    let routes = c.sh("ip route show table local; ip -6 route show table local")?;
    assert!(!routes.contains("kube-ipvs0"), "{routes}");
    c.sh(reaches_lan)?;
    Ok(())
}

/// A Service address in the node's network is first a device address and then a route. In both
/// cases, `--ipvs-strict-arp` decides whether the node answers ARP requests for this address.
pub(crate) fn strict_arp_applies_to_device_addresses_and_to_routes(c: &mut Cluster) -> Outcome {
    let lan = web().external("172.35.0.200");
    c.apply(&lan)?;
    for vip_mode in ["--ipvs-vip-mode=address", ROUTES] {
        for (strict, is_answered) in [
            ("--ipvs-strict-arp=true", false),
            ("--ipvs-strict-arp=false", true),
        ] {
            // Resets the kernel settings, because a daemon without strict ARP leaves them unchanged
            // at its start.
            c.sh("sysctl -qw net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0")?;
            c.start(&[vip_mode, strict])?;
            c.until_served(&lan)?;
            c.outside.read(["ip", "neighbour", "flush", "all"])?;
            let answered = c
                .outside
                .ask_tcp(at("172.35.0.200:80"), Duration::from_secs(2));
            assert_eq!(
                answered.is_ok(),
                is_answered,
                "{vip_mode} {strict}: {answered:?}"
            );
            c.stop()?;
        }
    }
    Ok(())
}

/// With every shim and `--ipvs-vip-mode`, Service addresses answer `ping` only with
/// `--ipvs-answer-ping`. The node still rejects pings to unused addresses, other ICMP requests, and
/// requests to unexposed ports.
pub(crate) fn service_addresses_answer_ping_only_with_the_flag(c: &mut Cluster) -> Outcome {
    const VIPS: [&str; 4] = ["10.96.0.10", "fd96::10", "192.0.2.20", "2001:db8::20"];
    const UNUSED: [&str; 2] = ["10.96.0.77", "fd96::77"];
    const CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
    c.apply(&web())?;
    c.write("cidr.yaml", &service_cidr("10.96.0.0/12, \"fd96::/112\""))?;
    // Removes the kernel's rate limit on ICMP errors, which is normally one per second and client.
    c.sh("sysctl -qw net.ipv4.icmp_ratemask=0 net.ipv6.icmp.ratemask=128")?;
    let mut shims = vec!["upstream", "lean"];
    if crate::has_nft() {
        shims.push("nftables");
    }
    for shim in shims {
        let shim = format!("--ipvs-shim={shim}");
        for form in [
            "--ipvs-vip-mode=address",
            ROUTES,
            RANGES,
            "--ipvs-semantics=exact",
        ] {
            for (flag, expected) in [
                ("--ipvs-answer-ping=true", "answered"),
                ("--ipvs-answer-ping=false", "refused"),
            ] {
                // A start takes seconds, so the test covers the default (no reply) only once with
                // each shim.
                if expected == "refused" && form != RANGES {
                    continue;
                }
                c.start(&[&shim, form, flag])?;
                c.until_answered(&c.client, "10.96.0.10:80")?;
                c.until_answered(&c.client, "[fd96::10]:80")?;
                let unused = UNUSED.iter().filter(|_| form == RANGES);
                let addresses = VIPS.iter().map(|vip| (vip, expected));
                let addresses = addresses.chain(unused.map(|unused| (unused, "refused")));
                for (to, expected) in addresses {
                    let address: IpAddr = to.parse()?;
                    for (name, from) in [
                        ("a pod", &c.client),
                        ("the node", &*c.node1),
                        ("a host", &c.outside),
                    ] {
                        let seen = ping(from, address, expected);
                        ensure!(
                            seen == expected,
                            "{shim} {form} {flag}: {name} pings {to}: {seen}"
                        );
                    }
                }
                let seen = request_timestamp(&c.client, CLUSTER_IP);
                ensure!(seen == "refused", "{shim} {form} {flag}: timestamp: {seen}");
                c.refuses(&c.client, "10.96.0.10:10256")?;
                c.refuses(&c.client, "[fd96::10]:10256")?;
                c.stop()?;
            }
        }
    }
    // The node replies to the same request at its own address, which proves that the request is
    // valid.
    let node = Ipv4Addr::new(172, 35, 0, 100);
    let seen = request_timestamp(&c.client, node);
    ensure!(seen == "answered", "timestamp of the node: {seen}");
    Ok(())
}
