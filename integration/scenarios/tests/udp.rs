//! Tests UDP clients that send without pause, as DNS clients do. When the daemon removes a client's
//! endpoint, the client's packets must reach another endpoint. Flows of other clients must not
//! move.
//!
//! The tests check the replies, and the flows that `conntrack` lists.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lab::{Connection, Place, Signal, Transport};
use scenarios::{Cluster, Outcome, Service, Story, at, is_module, tell, udp};

const NEAR: &str = "10.244.1.10 fd44:1::10";
const FAR: &str = "10.244.2.10 fd44:2::10";

/// Pause between two packets of a client.
const PACE: Duration = Duration::from_millis(50);
/// Time limit for a client's flow to move to another endpoint.
const MOVED_WITHIN: Duration = Duration::from_secs(1);

fn main() {
    let stories = [
        story(
            "udp_flows_to_each_service_address_move_to_the_new_endpoint",
            udp_flows_to_each_service_address_move_to_the_new_endpoint,
        ),
        story(
            "udp_flows_older_than_the_service_are_served",
            udp_flows_older_than_the_service_are_served,
        ),
        story(
            "busy_udp_flows_recover_after_a_repair",
            busy_udp_flows_recover_after_a_repair,
        ),
        story(
            "a_restart_deletes_only_stale_flows",
            a_restart_deletes_only_stale_flows,
        ),
        story(
            "in_ipvs_mode_no_udp_client_reaches_a_removed_endpoint",
            |c| no_udp_client_reaches_a_removed_endpoint(c, &[]),
        ),
        story(
            "in_iptables_mode_no_udp_client_reaches_a_removed_endpoint",
            |c| {
                let flags = ["--proxy-mode=iptables", "--iptables-min-sync-period=0s"];
                no_udp_client_reaches_a_removed_endpoint(c, &flags)
            },
        ),
        story(
            "in_userspace_mode_no_udp_client_reaches_a_removed_endpoint",
            |c| no_udp_client_reaches_a_removed_endpoint(c, &["--proxy-mode=userspace"]),
        ),
        Story {
            is_possible: has_nftables,
            ..story(
                "in_nftables_mode_no_udp_client_reaches_a_removed_endpoint",
                |c| no_udp_client_reaches_a_removed_endpoint(c, &["--proxy-mode=nftables"]),
            )
        },
        Story {
            is_possible: has_nftables,
            ..story(
                "in_the_flat_nftables_layout_no_udp_client_reaches_a_removed_endpoint",
                |c| {
                    let flags = ["--proxy-mode=nftables", "--nftables-layout=flat"];
                    no_udp_client_reaches_a_removed_endpoint(c, &flags)
                },
            )
        },
        story(
            "a_full_conntrack_table_delays_no_change",
            a_full_conntrack_table_delays_no_change,
        ),
        story(
            "a_large_conntrack_table_is_not_kept_in_memory",
            a_large_conntrack_table_is_not_kept_in_memory,
        ),
        Story {
            is_possible: || is_module("nf_conntrack_netlink"),
            ..story(
                "without_ctnetlink_the_log_names_the_module",
                without_ctnetlink_the_log_names_the_module,
            )
        },
    ];
    tell(&stories, Duration::from_mins(4))
}

fn story(name: &'static str, tell: fn(&mut Cluster) -> Outcome) -> Story {
    Story {
        name,
        tell,
        is_possible: || true,
    }
}

/// Returns the dual-stack Service `dns` for UDP port 53, with every kind of address.
fn dns() -> Service {
    Service::new("dns", "10.96.0.10 fd96::10")
        .port(udp(53, 8080).node_port(30053))
        .external("192.0.2.20 2001:db8::20")
        .ingress("192.0.2.10 2001:db8::10")
        .endpoints(NEAR)
}

/// A UDP client with one source port, and its description for errors.
struct Client {
    flow: Connection,
    about: String,
}

impl Client {
    fn new(from: &Place, to: &str) -> Result<Self> {
        let flow = from.dial(Transport::Udp, at(to)).timeout(PACE).open()?;
        let about = format!("{} asks {to}", from.name());
        Ok(Self { flow, about })
    }

    /// Sends a packet, and waits at most [`PACE`] for the reply. Returns the replying server's
    /// name, or `None` without a reply.
    fn ask(&mut self) -> Option<String> {
        Some(self.flow.ask().ok()?.who)
    }
}

/// Checks that no client gets a reply.
fn ask_in_vain(clients: &mut [Client]) -> Outcome {
    for client in clients {
        let answer = client.ask().or_else(|| client.ask());
        ensure!(answer.is_none(), "{}: {answer:?}", client.about);
    }
    Ok(())
}

/// Lets all clients send until `who` has replied to each of them, and returns the duration. Fails
/// after `limit`, or if another server replies afterwards.
fn until_all_ask(clients: &mut [Client], who: &str, limit: Duration) -> Result<Duration> {
    let started = Instant::now();
    let mut others: Vec<&mut Client> = clients.iter_mut().collect();
    while !others.is_empty() {
        std::thread::sleep(PACE);
        others = others
            .into_iter()
            .filter_map(|client| (client.ask().as_deref() != Some(who)).then_some(client))
            .collect();
        let about = || {
            others
                .iter()
                .map(|client| client.about.clone())
                .collect::<Vec<_>>()
                .join(", ")
        };
        ensure!(
            started.elapsed() < limit || others.is_empty(),
            "not answered by {who} within {limit:?}: {}",
            about()
        );
    }
    let took = started.elapsed();
    for client in clients {
        // A reply may be late on a busy machine, so a client may ask twice. No other server may
        // reply.
        let answer = client.ask().or_else(|| client.ask());
        ensure!(
            answer.as_deref() == Some(who),
            "{}: {answer:?}, and not {who} any more",
            client.about
        );
    }
    Ok(took)
}

/// Returns node1's tracked UDP flows by original source and destination. The value is the flow's
/// ID, and the address and port of the replying server.
fn flows(c: &Cluster) -> Result<BTreeMap<String, (String, String)>> {
    let text = c.sh("conntrack -L -f ipv4 -p udp -o id 2>/dev/null; conntrack -L -f ipv6 -p udp -o id 2>/dev/null")?;
    let flow = |line: &str| {
        let of = |key: &str, nth| {
            line.split_whitespace()
                .filter_map(|word| word.strip_prefix(key))
                .nth(nth)
        };
        let key = format!(
            "{} {} > {} {}",
            of("src=", 0)?,
            of("sport=", 0)?,
            of("dst=", 0)?,
            of("dport=", 0)?
        );
        Some((
            key,
            (
                of("id=", 0)?.to_owned(),
                format!("{} {}", of("src=", 1)?, of("sport=", 1)?),
            ),
        ))
    };
    text.lines()
        .map(|line| flow(line).with_context(|| format!("conntrack says {line}")))
        .collect()
}

/// Returns true if the flow's original destination is `destination`, in the form `ADDRESS PORT`.
fn to(flow: &str, destination: &str) -> bool {
    flow.ends_with(&format!("> {destination}"))
}

fn udp_flows_to_each_service_address_move_to_the_new_endpoint(c: &mut Cluster) -> Outcome {
    let other = Service::new("other", "10.96.0.11 fd96::11")
        .port(udp(53, 8080))
        .endpoints(NEAR);
    c.apply(&dns())?;
    c.apply(&other)?;
    c.outside.serve_udp(30053)?;
    c.world
        .route(&c.outside, "10.244.0.0/16 fd44::/16", &c.node1)?;
    c.start(&[])?;
    c.until_served(&dns())?;
    c.until_served(&other)?;
    let mut clients = Vec::new();
    for (from, tos) in [
        (&c.client, "10.96.0.10:53 [fd96::10]:53 192.0.2.20:53"),
        (&c.node1, "10.96.0.10:53 [fd96::10]:53"),
        (
            &c.outside,
            "172.35.0.100:30053 [fd35::100]:30053 192.0.2.10:53 [2001:db8::10]:53 192.0.2.20:53 [2001:db8::20]:53",
        ),
    ] {
        for to in tos.split(' ') {
            clients.push(Client::new(from, to)?);
        }
    }
    // These flows must stay: flows to another Service, and flows to another host at the port number
    // of the node port, from a pod and from the node.
    let mut staying = vec![
        Client::new(&c.client, "10.96.0.11:53")?,
        Client::new(&c.outside, "10.96.0.11:53")?,
        Client::new(&c.client, "[fd96::11]:53")?,
    ];
    let mut foreign = vec![
        Client::new(&c.client, "172.35.0.9:30053")?,
        Client::new(&c.client, "[fd35::9]:30053")?,
        Client::new(&c.node1, "172.35.0.9:30053")?,
    ];
    until_all_ask(&mut clients, "near", scenarios::SOON)?;
    until_all_ask(&mut staying, "near", scenarios::SOON)?;
    until_all_ask(&mut foreign, "outside", scenarios::SOON)?;
    let before = flows(c)?;

    c.apply(&dns().endpoints(FAR))?;
    let took = until_all_ask(&mut clients, "far", MOVED_WITHIN)?;
    println!("    {} clients moved within {took:.0?}", clients.len());
    c.until_served(&dns().endpoints(FAR))?;

    // `staying` and `foreign` have sent no packet since the first read of the flows, so the kernel
    // cannot have created their entries again.
    let after = flows(c)?;
    let is_other = |flow: &str| to(flow, "10.96.0.11 53") || to(flow, "fd96::11 53");
    let is_foreign = |flow: &str| to(flow, "172.35.0.9 30053") || to(flow, "fd35::9 30053");
    let mut kept = 0;
    for (flow, (id, answerer)) in &before {
        if is_other(flow) || is_foreign(flow) {
            assert_eq!(
                after.get(flow),
                Some(&(id.clone(), answerer.clone())),
                "{flow}"
            );
            kept += 1;
        }
    }
    assert_eq!(kept, staying.len() + foreign.len());
    let stale: Vec<_> = after
        .iter()
        .filter(|(flow, (_, answerer))| !is_other(flow) && answerer.starts_with("10.244.1.10 "))
        .collect();
    assert_eq!(stale, []);
    until_all_ask(&mut staying, "near", MOVED_WITHIN)?;
    until_all_ask(&mut foreign, "outside", MOVED_WITHIN)?;
    // IPVS may keep connections at the removed endpoint only for the other Service.
    let entries = c.sh("ipvsadm -Lnc")?;
    let stale: Vec<_> = entries
        .lines()
        .filter(|line| line.contains("10.244.1.10:8080") && !line.contains("10.96.0.11:53"))
        .collect();
    assert_eq!(stale, [""; 0]);
    Ok(())
}

/// The node forwarded these flows before the Service existed. IPVS does not know them and never
/// deletes their conntrack entries, so the daemon must do so.
fn udp_flows_older_than_the_service_are_served(c: &mut Cluster) -> Outcome {
    c.start(&[])?;
    // Before the Service exists, these routes send packets for its addresses to a pod, which drops
    // them.
    c.sh(
        "for a in 192.0.2.0/24 10.96.0.0/16; do ip route add $a via 10.244.1.99; done
        for a in 2001:db8::/64 fd96::/112; do ip -6 route add $a via fd44:1::99; done",
    )?;
    let mut clients = Vec::new();
    for to in [
        "10.96.0.10:53",
        "192.0.2.10:53",
        "192.0.2.20:53",
        "[2001:db8::20]:53",
        "[2001:db8::10]:53",
    ] {
        clients.push(Client::new(&c.outside, to)?);
    }
    ask_in_vain(&mut clients)?;
    let before = flows(c)?;
    let tracked = before
        .iter()
        .find(|(flow, _)| to(flow, "192.0.2.20 53"))
        .map(|(_, (_, answerer))| answerer.as_str());
    assert_eq!(tracked, Some("192.0.2.20 53"), "{before:?}");

    let dns = dns().endpoints(FAR);
    c.apply(&dns)?;
    c.until_served(&dns)?;
    let took = until_all_ask(&mut clients, "far", MOVED_WITHIN)?;
    println!("    {} clients served within {took:.0?}", clients.len());
    assert!(c.said().contains("stale UDP flows deleted"));
    Ok(())
}

/// Another program removes virtual servers, so the node forwards clients' packets to a wrong
/// destination. As long as a client sends, its conntrack entry keeps the packets on this path,
/// unless the daemon deletes the entry.
fn busy_udp_flows_recover_after_a_repair(c: &mut Cluster) -> Outcome {
    const OUTAGE: Duration = Duration::from_secs(5);
    // Starts the daemon with the default sync periods.
    let service = Service::new("dns", "10.96.0.10 fd96::10")
        .port(udp(53, 8080))
        .endpoints(NEAR);
    c.apply(&service)?;
    c.start(&[])?;
    c.until_served(&service)?;
    let mut clients = Vec::new();
    for (from, to) in [
        (&c.client, "10.96.0.10:53"),
        (&c.client, "[fd96::10]:53"),
        (&c.outside, "10.96.0.10:53"),
    ] {
        clients.push(Client::new(from, to)?);
    }
    until_all_ask(&mut clients, "near", scenarios::SOON)?;
    for damage in [
        "ipvsadm -C",
        "ipvsadm -D -u 10.96.0.10:53; ipvsadm -D -u [fd96::10]:53",
    ] {
        // Pauses the daemon, which could otherwise repair the damage before the test sees it.
        c.signal(Signal::STOP)?;
        c.sh(damage)?;
        ask_in_vain(&mut clients)?;
        c.signal(Signal::CONT)?;
        let began = Instant::now();
        let asked = until_all_ask(&mut clients, "near", 7 * OUTAGE);
        let outage = began.elapsed();
        let is_repaired = c.servers()?.len() == 2;
        println!("    {damage}: flows without an answer for {outage:.1?}; repaired: {is_repaired}");
        asked?;
        ensure!(outage < OUTAGE, "{outage:?}");
    }
    Ok(())
}

fn a_restart_deletes_only_stale_flows(c: &mut Cluster) -> Outcome {
    let other = Service::new("other", "10.96.0.11")
        .port(udp(53, 8080))
        .endpoints(NEAR);
    c.apply(&dns())?;
    c.apply(&other)?;
    c.start(&[])?;
    c.until_served(&dns())?;
    c.until_served(&other)?;
    let mut clients = Vec::new();
    for (from, to) in [
        (&c.client, "10.96.0.10:53"),
        (&c.outside, "172.35.0.100:30053"),
        (&c.outside, "[fd96::10]:53"),
    ] {
        clients.push(Client::new(from, to)?);
    }
    let mut staying = vec![Client::new(&c.client, "10.96.0.11:53")?];
    until_all_ask(&mut clients, "near", scenarios::SOON)?;
    until_all_ask(&mut staying, "near", scenarios::SOON)?;
    let before = flows(c)?;
    assert!(before.len() >= 4, "{before:?}");

    c.stop()?;
    c.start(&[])?;
    until_compared(c, 2)?;
    assert!(!c.said().contains("stale UDP flows deleted"));
    assert_eq!(flows(c)?, before);

    // Replaces the endpoint while no daemon runs, so that the clients' flows become stale.
    c.stop()?;
    c.apply(&dns().endpoints(FAR))?;
    until_all_ask(&mut clients, "near", scenarios::SOON)?;
    c.start(&[])?;
    until_all_ask(&mut clients, "far", MOVED_WITHIN)?;
    let kept = |flows: BTreeMap<String, _>| {
        flows
            .into_iter()
            .find(|(flow, _)| to(flow, "10.96.0.11 53"))
    };
    assert!(kept(before.clone()).is_some());
    assert_eq!(kept(flows(c)?), kept(before));
    until_all_ask(&mut staying, "near", MOVED_WITHIN)?;
    Ok(())
}

fn has_nftables() -> bool {
    lab::iptables_backend() == "nft"
}

/// Removes objects in four steps (kubernetes/kubernetes#139628, kubernetes/kubernetes#141371):
///
/// 1. the last endpoint of the Service;
/// 2. the Service;
/// 3. its node port and external IP;
/// 4. the Service, while no daemon runs.
///
/// After each step, clients that keep sending get no reply. When the removed object exists again,
/// the same sockets get replies again. Flows of other Services stay.
fn no_udp_client_reaches_a_removed_endpoint(c: &mut Cluster, flags: &[&str]) -> Outcome {
    c.node1
        .read("ip route replace default via 172.35.0.9".split(' '))?;
    // Raises conntrack's UDP timeout of 30 s, because a client may pause for longer on a busy
    // machine.
    c.sh("sysctl -q net.netfilter.nf_conntrack_udp_timeout=600 net.netfilter.nf_conntrack_udp_timeout_stream=600")?;
    c.outside.serve_udp(30053)?;
    c.world
        .route(&c.outside, "10.244.0.0/16 fd44::/16", &c.node1)?;
    c.sh(&scenarios::with_backend(
        "iptables-$backend -t nat -A PREROUTING -p udp -d 172.35.0.100 --dport 9999 -j DNAT --to-destination 10.244.1.10:8080",
    ))?;
    c.apply(&dns())?;
    c.start(flags)?;
    let mut clients = Vec::new();
    for (from, to) in [
        (&c.client, "10.96.0.10:53"),
        (&c.client, "[fd96::10]:53"),
        (&c.client, "192.0.2.20:53"),
        (&*c.node1, "10.96.0.10:53"),
        (&c.outside, "172.35.0.100:30053"),
        (&c.outside, "[fd35::100]:30053"),
        (&c.outside, "192.0.2.10:53"),
        (&c.outside, "[2001:db8::20]:53"),
    ] {
        clients.push(Client::new(from, to)?);
    }
    let mut through = [Client::new(&c.client, "172.35.0.9:30053")?];
    let mut foreign = [Client::new(&c.outside, "172.35.0.100:9999")?];
    until_all_ask(&mut clients, "near", scenarios::SOON)?;
    until_all_ask(&mut through, "outside", scenarios::SOON)?;
    until_all_ask(&mut foreign, "near", scenarios::SOON)?;
    let of_others = |c: &Cluster| -> Result<Vec<_>> {
        let all = flows(c)?.into_iter();
        let is_other = |flow: &str| to(flow, "172.35.0.9 30053") || to(flow, "172.35.0.100 9999");
        Ok(all.filter(|(flow, _)| is_other(flow)).collect())
    };
    let before = of_others(c)?;
    assert_eq!(before.len(), 2, "{before:?}");
    // Returns the Service's flows that the kernel translates: to one of its pods or, in userspace
    // mode, to the relay.
    let led = |c: &Cluster, to_pods: bool| -> Result<Vec<String>> {
        let pods = ["10.244.1.10 ", "fd44:1::10 ", "fd44:0001:"];
        let is_led = |(flow, (_, answerer)): &(String, (String, String))| {
            let is_pod = pods.iter().any(|pod| answerer.starts_with(pod));
            !to(flow, answerer) && (is_pod || !to_pods) && !to(flow, "172.35.0.100 9999")
        };
        let all = flows(c)?.into_iter().filter(is_led);
        Ok(all.map(|(flow, _)| flow).collect())
    };
    let reach_nobody = |c: &Cluster, clients: &mut [Client], to_pods: bool| -> Outcome {
        let began = Instant::now();
        c.until("nothing leads to the endpoint", || {
            let answered = clients.iter_mut().filter_map(Client::ask).count();
            Ok(answered == 0 && led(c, to_pods)?.is_empty())
        })?;
        println!("    reached nobody within {:.0?}", began.elapsed());
        ask_in_vain(clients)?;
        let led = led(c, to_pods)?;
        ensure!(led.is_empty(), "{led:?}");
        Ok(())
    };
    c.apply(&dns().endpoints(""))?;
    reach_nobody(c, &mut clients, true)?;
    c.apply(&dns())?;
    until_all_ask(&mut clients, "near", scenarios::SOON)?;

    c.delete("dns")?;
    reach_nobody(c, &mut clients, false)?;
    c.apply(&dns())?;
    until_all_ask(&mut clients, "near", scenarios::SOON)?;

    // Removes the Service's node port and external IP.
    let less = Service::new("dns", "10.96.0.10 fd96::10")
        .port(udp(53, 8080))
        .ingress("192.0.2.10 2001:db8::10")
        .endpoints(NEAR);
    c.apply(&less)?;
    let (mut lost, mut kept): (Vec<_>, Vec<_>) = clients.into_iter().partition(|one| {
        one.about.contains("30053") || one.about.contains("::20]") || one.about.contains("2.20:")
    });
    c.until("what it has lost leads nowhere", || {
        let lost = ["192.0.2.20 53", "172.35.0.100 30053"];
        let led = led(c, false)?;
        Ok(!led.iter().any(|flow| lost.iter().any(|at| to(flow, at))))
    })?;
    ask_in_vain(&mut lost)?;
    until_all_ask(&mut kept, "near", MOVED_WITHIN)?;
    c.apply(&dns())?;
    until_all_ask(&mut lost, "near", scenarios::SOON)?;
    kept.append(&mut lost);

    // Deletes the Service while no daemon runs.
    c.stop()?;
    c.delete("dns")?;
    c.start(flags)?;
    reach_nobody(c, &mut kept, false)?;
    let after = of_others(c)?;
    assert_eq!(after, before, "flows of others");
    Ok(())
}

/// Waits until the log shows that this many daemons have checked the UDP flows of both families.
fn until_compared(c: &Cluster, daemons: usize) -> Result<Duration> {
    let count = || {
        c.said()
            .lines()
            .filter(|line| line.contains("UDP flow"))
            .count()
    };
    c.until("flows are compared", || Ok(count() >= 2 * daemons))
}

/// Thousands of flows go to another host, at the port number of the node port. The VM's conntrack
/// table has room for 8,192 flows.
fn a_full_conntrack_table_delays_no_change(c: &mut Cluster) -> Outcome {
    const FOREIGN: usize = 5_000;
    c.apply(&dns())?;
    c.start(&[])?;
    c.until_served(&dns())?;
    until_compared(c, 1)?;
    c.sh(&format!(
        "seq 1 {FOREIGN} | awk '{{ printf \"-A -p udp -s 198.51.100.1 --sport %d -d 203.0.113.1 --dport 30053 -t 600\\n\", $1 }}' >/tmp/flows
        conntrack -R /tmp/flows >/dev/null 2>&1; rm /tmp/flows"
    ))?;
    let foreign = || -> Result<usize> {
        Ok(flows(c)?
            .keys()
            .filter(|flow| to(flow, "203.0.113.1 30053"))
            .count())
    };
    assert_eq!(foreign()?, FOREIGN);
    let mut client = [Client::new(&c.client, "10.96.0.10:53")?];
    until_all_ask(&mut client, "near", MOVED_WITHIN)?;
    let mut slowest = Duration::ZERO;
    for endpoints in [FAR, NEAR, FAR, NEAR, FAR] {
        c.apply(&dns().endpoints(endpoints))?;
        let who = if endpoints == FAR { "far" } else { "near" };
        slowest = slowest.max(until_all_ask(&mut client, who, MOVED_WITHIN)?);
    }
    println!("    with {FOREIGN} foreign flows, moved within {slowest:.0?}");
    assert_eq!(foreign()?, FOREIGN);
    Ok(())
}

/// Guard that raises `nf_conntrack_max`, one setting for all network namespaces that only the
/// initial one can change. Dropping the guard restores the saved value.
struct Room(usize);

const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

impl Room {
    fn for_flows(count: usize) -> Result<Self> {
        let before: usize = std::fs::read_to_string(LIMIT)?.trim().parse()?;
        std::fs::write(LIMIT, before.max(count).to_string())?;
        Ok(Self(before))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::write(LIMIT, self.0.to_string());
    }
}

/// Maximum growth of the daemon's memory, in KiB, while a dump of all flows has 25 MB.
const ROOM_KIB: u64 = 6_144;

fn a_large_conntrack_table_is_not_kept_in_memory(c: &mut Cluster) -> Outcome {
    const FLOWS: usize = 100_000;
    c.apply(&dns())?;
    c.start(&[])?;
    c.until_served(&dns())?;
    until_compared(c, 1)?;
    let _room = Room::for_flows(2 * FLOWS)?;
    c.sh(&format!(
        "for i in 0 1 2 3 4 5 6 7 8 9; do
          seq 1 {} | awk -v i=$i '{{ printf \"-A -p udp -s 198.51.100.%d --sport %d -d 203.0.113.1 --dport 30053 -t 600\\n\", i, $1 }}'
        done >/tmp/flows
        conntrack -R /tmp/flows >/dev/null 2>&1; rm /tmp/flows",
        FLOWS / 10
    ))?;
    let id = c.daemon_id()?;
    let peak = || lab::process::status(id, "VmHWM");
    let before = peak()?;
    c.apply(&dns().endpoints(FAR))?;
    let compared = || -> Option<usize> {
        let said = c.said();
        let mut counts = said
            .lines()
            .filter(|line| line.contains("UDP flow") && line.contains("IPv4"));
        let last = counts.next_back()?.split("compared=").nth(1)?;
        last.split_whitespace().next()?.parse().ok()
    };
    c.until("all flows are compared", || Ok(compared() >= Some(FLOWS)))?;
    let more = peak()? - before;
    println!("    {FLOWS} flows compared with {more} KiB more than {before} KiB");
    assert!(more < ROOM_KIB, "{more} KiB");
    Ok(())
}

/// The module nf_conntrack_netlink is missing. The daemon logs this once per family, with the
/// command that loads the module, and continues all other work. It deletes the flows after the
/// module is loaded.
fn without_ctnetlink_the_log_names_the_module(c: &mut Cluster) -> Outcome {
    // Prevents the kernel from loading the module on demand.
    c.sh("sysctl -q kernel.modprobe=/bin/false; rmmod nf_conntrack_netlink")?;
    c.start(&[])?;
    c.sh("ip route add 192.0.2.0/24 via 10.244.1.99")?;
    let mut from_before = [Client::new(&c.outside, "192.0.2.20:53")?];
    ask_in_vain(&mut from_before)?;
    let dns = dns().endpoints(FAR);
    c.apply(&dns)?;
    c.until_served(&dns)?;
    let said = |part: &str| c.said().lines().filter(|line| line.contains(part)).count();
    c.until("it is said", || {
        Ok(said("run `modprobe nf_conntrack_netlink`") == 2)
    })?;
    let other = Service::new("other", "10.96.0.11")
        .port(udp(53, 8080))
        .endpoints("10.244.1.10");
    c.apply(&other)?;
    c.until_served(&other)?;
    let mut client = [Client::new(&c.client, "10.96.0.11:53")?];
    until_all_ask(&mut client, "near", MOVED_WITHIN)?;
    ask_in_vain(&mut from_before)?;

    // After the module is loaded, the next sync deletes the flows.
    c.sh("modprobe nf_conntrack_netlink; sysctl -q kernel.modprobe=/sbin/modprobe")?;
    c.delete("other")?;
    c.until("it is done", || Ok(said("can be deleted again") == 2))?;
    until_all_ask(&mut from_before, "far", MOVED_WITHIN)?;
    assert_eq!(
        said("run `modprobe nf_conntrack_netlink`"),
        2,
        "no more than once"
    );
    Ok(())
}
