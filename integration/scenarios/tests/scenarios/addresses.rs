//! Tests node ports and Services while addresses are added to the node and removed from it.

use std::time::Duration;

use anyhow::Result;
use lab::{Transport, less_stalls};
use scenarios::{Cluster, Outcome, Service, ask_json, at, sctp, tally, tcp, udp};

/// Time limit for node ports to follow a change of the node's addresses. It includes the second
/// after which a client repeats a SYN that was too early.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(3);

pub(crate) fn node_ports_follow_the_node_addresses(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10");
    c.apply(&web)?;
    c.start(&[])?;
    c.until_served(&web)?;
    c.refuses(&c.outside, "172.35.0.150:30080")?;
    for (address, to) in [
        ("172.35.0.150/24", "172.35.0.150:30080"),
        ("fd35::150/64", "[fd35::150]:30080"),
    ] {
        c.sh(&format!(
            "ip address add {address} dev eth0 $(case {address} in *:*) echo nodad;; esac)"
        ))?;
        let added = less_stalls(|| c.until_answered(&c.outside, to))?;
        c.sh(&format!("ip address del {address} dev eth0"))?;
        let removed = less_stalls(|| c.until_gone(&format!("TCP {to}")))?;
        assert!(
            added.max(removed) < FOLLOWED_WITHIN,
            "{to}: added after {added:?}, removed after {removed:?}"
        );
        c.refuses(&c.outside, to)?;
    }
    c.until_served(&web).map(drop)
}

pub(crate) fn node_ports_at_added_node_addresses_have_exact_semantics(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .spec("externalTrafficPolicy: Local")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10 fd44:2::10");
    c.apply(&web)?;
    c.start(&[
        "--ipvs-semantics=exact",
        "--nodeport-addresses=172.35.0.0/24,fd35::/64",
    ])?;
    let times = 4;
    let mut asked = 0;
    for (address, to) in [
        ("172.35.0.150/24", "172.35.0.150:30080"),
        ("fd35::150/64", "[fd35::150]:30080"),
    ] {
        c.sh(&format!(
            "ip address add {address} dev eth0 $(case {address} in *:*) echo nodad;; esac)"
        ))?;
        let added = less_stalls(|| c.until_answered(&c.outside, to))?;
        assert!(added < FOLLOWED_WITHIN, "{to}: added after {added:?}");
        let pods = |from| Ok::<_, anyhow::Error>(tally(from, Transport::Tcp, at(to), times)?.len());
        // Clients outside the cluster reach only the endpoint on node1, and pods reach both
        // endpoints.
        assert_eq!((pods(&c.outside)?, pods(&c.client)?), (1, 2), "{to}");
        asked += 2 * times;
    }
    // IPVS counts connections by a firewall mark separately, but the daemon adds them to the
    // Service's number. IPVS updates its counters only every two seconds.
    c.until("all connections are counted", || {
        let (_, one) = ask_json(c, &["services", "default/web"])?;
        let count = one.pointer("/ports/0/counters/connections");
        let count = count.and_then(serde_json::Value::as_u64);
        Ok(count.is_some_and(|count| count >= asked as u64))
    })?;
    // At an address outside of --nodeport-addresses, node ports refuse connections.
    c.refuses(&c.client, "10.244.1.1:30080")
}

pub(crate) fn node_ports_at_a_moved_address_are_removed(c: &mut Cluster) -> Outcome {
    let moved = ["172.35.0.150", "fd35::150"];
    c.sh("ip address add 172.35.0.150/24 dev eth0; ip address add fd35::150/64 dev eth0 nodad")?;
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).named("web").node_port(30080))
        .port(udp(53, 8080).named("dns").node_port(30053))
        .port(sctp(9, 8080).named("log").node_port(30009))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10");
    c.apply(&web)?;
    c.start(&[])?;
    for address in moved {
        assert_eq!(servers_at(c, address)?, 3, "node ports at {address}");
    }
    c.stop()?;
    // While no daemon runs, the addresses leave the node. Another program has virtual servers with
    // the port numbers of two node ports.
    c.sh(
        "ip address del 172.35.0.150/24 dev eth0; ip address del fd35::150/64 dev eth0
        ipvsadm -A -t 198.51.100.7:30080 -s rr; ipvsadm -a -t 198.51.100.7:30080 -r 10.244.1.10:8080 -m
        ipvsadm -A -u [2001:db8:7::7]:30053 -s rr",
    )?;
    let foreign = ["TCP 198.51.100.7:30080", "UDP [2001:db8:7::7]:30053"];
    c.start(&[])?;
    c.until_served(&web)?;
    for address in moved {
        c.until(&format!("no node port is left at {address}"), || {
            Ok(servers_at(c, address)? == 0)
        })?;
    }
    let servers = c.servers()?;
    for server in foreign {
        assert!(servers.contains_key(server), "{server}: {servers:?}");
    }
    Ok(())
}

fn servers_at(c: &Cluster, address: &str) -> Result<usize> {
    let servers = c.servers()?.into_keys();
    Ok(servers.filter(|server| server.contains(address)).count())
}
