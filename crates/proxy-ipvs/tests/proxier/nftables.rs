//! Tests of the nftables shim (the rules beside IPVS): it starts no process, and it and an iptables
//! shim can replace each other.

use std::sync::Arc;

use proxy_ipvs::fake::{FakeKernel, Work};
use proxy_ipvs::{
    Backend, Config, LeftoverPlace, Member, Properties, RealServer, Rules, Set, ShimStyle,
    VirtualServer, beside_the_shim,
};

use proxy::{Mode as _, Notice};

use super::{IpFamily, PAIR, Protocol, Target, World, ip, server, service, slice};

const SAVED: &str = include_str!("../iptables-mode/iptables-save");

fn config() -> Config {
    Config {
        shim: ShimStyle::Nftables,
        ..Config::default()
    }
}

fn kernel() -> FakeKernel {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    kernel.state().shim = ShimStyle::Nftables;
    kernel
}

fn web_on(kernel: FakeKernel) -> World {
    let mut world = World::with(config(), kernel);
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    world.listed()
}

fn web() -> World {
    let mut world = web_on(kernel());
    let report = world.sync();
    assert_eq!(
        (report.pending, report.failures.len()),
        (0, 0),
        "{report:?}"
    );
    world
}

/// Returns the content of the shim's nftables table, one object per line.
fn lines(world: &World) -> Vec<String> {
    let rules = world.kernel.state().snapshot.rules.clone().unwrap();
    rules.differences(&Rules::default())
}

fn position(order: &[String], begin: &str) -> usize {
    let found = order.iter().position(|op| op.starts_with(begin));
    found.unwrap_or_else(|| panic!("no `{begin}`: {order:#?}"))
}

#[test]
fn the_nftables_shim_starts_no_program() {
    let world = web();
    let (work, _) = world.work();
    assert_eq!(work.processes, 0);
    let mut world = world.restarted(config());
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    world.sync();
    let expected = Work {
        dumps: 1,
        address_reads: 1,
        ..Work::default()
    };
    assert_eq!(world.work(), (expected, Vec::new()));
}

/// Lists all rules of a shim for one Service with only a cluster IP.
#[test]
fn the_nftables_shim_has_few_rules_for_a_cluster_ip() {
    let world = web();
    let rules: Vec<String> = lines(&world)
        .into_iter()
        .filter_map(|line| {
            let line = line.strip_prefix("add in nftables kube-proxy-ipvs: ")?;
            let (rule, _) = line.split_once(" comment ")?;
            Some(rule.to_owned())
        })
        .collect();
    let to = "ip daddr . meta l4proto . th dport";
    assert_eq!(
        rules,
        [
            format!("KUBE-IPVS-FILTER: {to} @KUBE-CLUSTER-IP return"),
            "KUBE-IPVS-FILTER: reject".to_owned(),
            "KUBE-KEEP-DESTINATION: meta l4proto sctp dnat to :sctp dport".to_owned(),
            "KUBE-KEEP-DESTINATION: meta l4proto tcp dnat to :tcp dport".to_owned(),
            "KUBE-KEEP-DESTINATION: meta l4proto udp dnat to :udp dport".to_owned(),
            "filter-input-behind-ipvs: ct state new ip daddr @KUBE-IPVS-IPS goto KUBE-IPVS-FILTER"
                .to_owned(),
            format!("nat-output: {to} @KUBE-CLUSTER-IP goto KUBE-KEEP-DESTINATION"),
            "nat-output: ip saddr . meta l4proto . th dport @KUBE-CLUSTER-IP meta mark set meta mark | 0x00004000".to_owned(),
            "nat-output: ip saddr 127.0.0.0/8 return".to_owned(),
            "nat-postrouting: ip daddr . meta l4proto . th dport . ip saddr @KUBE-LOOP-BACK masquerade".to_owned(),
            "nat-postrouting: meta mark & 0x00004000 == 0x00004000 meta mark set meta mark ^ 0x00004000 masquerade fully-random".to_owned(),
            format!("nat-prerouting: {to} @KUBE-CLUSTER-IP goto KUBE-KEEP-DESTINATION"),
        ]
    );
}

/// A rule for a prefix length exists only while a source range has this length.
#[test]
fn each_prefix_length_of_source_ranges_has_one_rule() {
    let mut world = web();
    let mut closed = service("default/closed", "10.96.0.11", 80);
    closed.kind = proxy::ServiceType::LoadBalancer;
    closed.ingress_ips = vec![ip("203.0.113.10")];
    let ranges = |of: &[&str]| of.iter().map(|net| net.parse().unwrap()).collect();
    closed.source_ranges = ranges(&["198.51.100.0/24", "198.51.0.0/16"]);
    world.service(closed.clone());
    world.slice(slice("default/closed", &PAIR));
    assert_eq!(world.sync().pending, 0);
    let order = world.written();
    assert!(position(&order, "write ") < position(&order, "add virtual server 203.0.113.10"));
    let asks = |world: &World, prefix: &str| {
        let name = format!("@KUBE-LOAD-BALANCER-SOURCE-CIDR-{prefix} return");
        lines(world).iter().any(|line| line.contains(&name))
    };
    assert!(asks(&world, "24") && asks(&world, "16") && !asks(&world, "8"));
    closed.source_ranges = ranges(&["198.0.0.0/8"]);
    world.service(closed);
    assert_eq!(world.sync().pending, 0);
    assert!(!asks(&world, "24") && !asks(&world, "16") && asks(&world, "8"));
    // No source range contains the node's address, so the node must not connect to the load
    // balancer.
    let forbidden = "element 203.0.113.10:80/TCP of set KUBE-IPVS-OUT-FILTER";
    assert!(
        lines(&world).iter().any(|line| line.ends_with(forbidden)),
        "{:?}",
        lines(&world)
    );
    world.delete_service("default/closed");
    assert_eq!(world.sync().pending, 0);
    assert!(!lines(&world).iter().any(|line| line.contains("SOURCE")));
}

/// The ipsets and iptables rules serve packets until the nftables table does. Until then, the
/// ipsets' members also prove ownership of virtual servers.
#[test]
fn the_iptables_shim_is_removed_after_the_nftables_shim_serves() {
    let kernel = kernel();
    {
        let mut state = kernel.state();
        let properties = Properties {
            scheduler: "rr".into(),
            flags: 0,
            timeout: 0,
        };
        let target = Target {
            ip: ip("10.244.9.9"),
            port: 80,
        };
        let left = VirtualServer {
            properties,
            destinations: [RealServer::new(target)].into(),
        };
        for at in ["192.168.99.10:30080", "192.168.99.10:30081"] {
            state.snapshot.servers.insert(server(at), left.clone());
        }
        state.former = [(Set::NodePortTcp, [Member::Port(30080)].into())].into();
        let leftovers = Arc::new(beside_the_shim(&[&proxy_iptables::FOOTPRINT], SAVED));
        let places = [
            (LeftoverPlace::Other(Backend::Legacy), leftovers),
            (LeftoverPlace::Ipsets, Arc::default()),
        ];
        state.snapshot.leftovers = Some(places.into());
    }
    let mut world = web_on(kernel);
    let report = world.sync();
    assert_eq!(
        (report.pending, report.failures.len()),
        (0, 0),
        "{report:?}"
    );
    let order = world.written();
    let rules = position(&order, "write ");
    assert!(position(&order, "bind ") < rules);
    assert!(rules < position(&order, "remove 13 chains"));
    let sets = position(&order, "remove this mode's own ipsets");
    assert!(position(&order, "remove 13 chains") < sets);
    assert!(position(&order, "remove virtual server 192.168.99.10:30080") < sets);
    let state = world.kernel.state();
    assert!(
        state
            .snapshot
            .servers
            .contains_key(&server("192.168.99.10:30081")),
        "another's"
    );
    assert!(state.snapshot.leftovers.as_ref().unwrap().is_empty());
}

/// The shim's rules keep the table of nftables mode from translating packets, so that table no
/// longer serves Services.
#[test]
fn the_nftables_modes_table_is_removed_after_the_nftables_shim_serves() {
    let kernel = kernel();
    let places = [(LeftoverPlace::Nftables, Arc::default())];
    kernel.state().snapshot.leftovers = Some(places.into());
    let mut world = web_on(kernel);
    assert_eq!(world.sync().pending, 0);
    let order = world.written();
    let rules = position(&order, "write ");
    assert!(position(&order, "bind ") < rules, "{order:#?}");
    assert!(position(&order, "add destination ") < rules, "{order:#?}");
    assert!(rules < position(&order, "remove the nftables mode's table"));
}

/// The ipsets prove ownership of virtual servers, so they stay as long as the virtual servers
/// cannot be read.
#[test]
fn ipsets_stay_while_the_virtual_servers_cannot_be_read() {
    let kernel = kernel();
    {
        let mut state = kernel.state();
        let places = [(LeftoverPlace::Ipsets, Arc::default())];
        state.snapshot.leftovers = Some(places.into());
        let unreadable = (proxy_ipvs::Part::Servers.name(), "no".to_owned());
        state.unreadable.extend([unreadable]);
    }
    let mut world = World::with(config(), kernel).listed();
    for _ in 0..5 {
        world.go_on();
        world.settle();
        world.wait(std::time::Duration::from_secs(10));
    }
    let order = world.written();
    let removes = order.iter().any(|op| op.contains("own ipsets"));
    assert!(!removes, "{order:#?}");
    world.kernel.state().unreadable.clear();
    world.wait(std::time::Duration::from_mins(1));
    world.sync();
    position(&world.written(), "remove this mode's own ipsets");
}

#[test]
fn the_nftables_shim_is_removed_after_the_iptables_shim_serves() {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    kernel.state().snapshot.leftovers = Some([(LeftoverPlace::OwnTable, Arc::default())].into());
    let member = Member::AddressPort(ip("10.96.0.66"), Protocol::Tcp, 80);
    kernel.state().former = [(Set::ClusterIp, [member].into())].into();
    let left = VirtualServer {
        properties: Properties {
            scheduler: "rr".into(),
            flags: 0,
            timeout: 0,
        },
        destinations: [].into(),
    };
    let at = server("10.96.0.66:80");
    kernel.state().snapshot.servers.insert(at, left);
    let mut world = World::with(Config::default(), kernel);
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    let order = world.written();
    let table = position(
        &order,
        "remove this mode's own table kube-proxy-ipvs of nftables",
    );
    assert!(position(&order, "write ") < table);
    assert!(position(&order, "remove virtual server 10.96.0.66:80") < table);
}

/// Another program has run `nft flush ruleset`.
#[test]
fn the_shims_nftables_table_is_created_again_after_another_program_deletes_it() {
    let mut world = web();
    let before = lines(&world);
    {
        let mut state = world.kernel.state();
        state.snapshot.sets.clear();
        state.snapshot.set_sizes.clear();
        state.snapshot.rules = Some(Rules::default());
    }
    // The kernel notifies the proxier of changed rules.
    world.proxier.notice(&Notice::Ruleset, world.now);
    assert_eq!(world.sync().pending, 0);
    assert_eq!(lines(&world), before);
    let state = world.kernel.state();
    assert_eq!(state.snapshot.sets[&Set::ClusterIp].len(), 1);
}
