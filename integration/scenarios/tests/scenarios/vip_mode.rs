//! Tests Service addresses as device addresses and as routes.

use std::time::Duration;

use scenarios::{Cluster, Outcome, Service, at, tcp};

const ROUTES: &str = "--ipvs-vip-mode=route";

fn web() -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .external("192.0.2.20 2001:db8::20")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10")
}

/// Returns the number of Service addresses on `kube-ipvs0`: as addresses, and as routes.
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

pub(crate) fn the_vip_mode_changes_under_open_connections(c: &mut Cluster) -> Outcome {
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
    for (flags, wanted) in [(&[ROUTES][..], (0, 4)), (&[], (4, 0))] {
        c.stop()?;
        let foretold = c.check(flags)?;
        for change in ["bind 10.96.0.10 to kube-ipvs0", "unbind fd96::10 from"] {
            let found = foretold.lines().filter(|line| line.contains(change));
            assert_eq!(found.count(), 1, "{change}: {foretold}");
        }
        c.start(flags)?;
        c.until("the other form is gone", || Ok(vips(c)? == wanted))?;
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

/// In either form, `--ipvs-strict-arp` decides whether the node replies to ARP requests for a
/// Service address on its network.
pub(crate) fn strict_arp_works_with_routes(c: &mut Cluster) -> Outcome {
    let lan = web().external("172.35.0.200");
    c.apply(&lan)?;
    for vip_mode in ["--ipvs-vip-mode=address", ROUTES] {
        for (strict, is_answered) in [
            ("--ipvs-strict-arp=true", false),
            ("--ipvs-strict-arp=false", true),
        ] {
            // When the option is turned off, the settings stay.
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
