//! Tests that the daemon keeps other programs' kernel state.

use anyhow::{Context as _, ensure};
use lab::Transport;
use scenarios::{Cluster, Outcome, SOON, Service, at, kube_proxy, tcp};

/// Script that adds state of another program:
///
/// - virtual servers: one on a node address, one that collides with a Service, one by firewall
///   mark;
/// - sets, and chains and rules between the daemon's rules;
/// - addresses and a device.
const FOREIGN: &str = "
    ipvsadm -A -t 172.35.0.100:8443 -s wlc; ipvsadm -a -t 172.35.0.100:8443 -r 10.244.1.10:8080 -m -w 7
    ipvsadm -A -t 192.0.2.50:80 -s wlc; ipvsadm -a -t 192.0.2.50:80 -r 10.244.1.10:8080 -m -w 7
    ipvsadm -A -u 198.51.100.7:53 -s sh -p 77
    ipvsadm -A -t [2001:db8:7::7]:80 -s rr
    ipvsadm -A -f 7 -s rr; ipvsadm -a -f 7 -r 10.244.2.10 -m -w 1
    ipset create MINE hash:ip; ipset add MINE 198.51.100.1
    ipset create KUBE-MINE hash:net,iface; ipset add KUBE-MINE 198.51.100.0/24,eth0
    for c in iptables-$backend ip6tables-$backend; do
      $c -t nat -N MINE; $c -t nat -A MINE -p udp --dport 7 -j RETURN; $c -t nat -A PREROUTING -j MINE
      $c -t nat -N KUBE-MINE; $c -t nat -A KUBE-MINE -p tcp -j RETURN
      $c -A INPUT -p icmp -j ACCEPT; $c -A FORWARD -p tcp --dport 7 -j REJECT; $c -t mangle -A OUTPUT -p udp -j RETURN
    done
    iptables-$backend -A INPUT -m set --match-set MINE src -j DROP
    ip link add mine0 type dummy; ip address add 198.51.100.99/32 dev mine0
    ip address add 192.0.2.50/32 dev eth0; ip address add 2001:db8::50/128 dev eth0
";

fn web() -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .external("192.0.2.20")
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10")
}

/// Returns a Service whose external IP and port belong to another program's virtual server. That
/// virtual server has another endpoint.
fn taken() -> Service {
    Service::new("taken", "10.96.0.21")
        .port(tcp(80, 8080))
        .external("192.0.2.50")
        .endpoints("10.244.2.10")
}

/// Waits until the pod `who` replies to the external host at the taken address and port.
fn until_answered_by(c: &Cluster, who: &str) -> Outcome {
    let ask = || c.outside.dial(Transport::Tcp, at("192.0.2.50:80"));
    let mut last = String::new();
    let answered = c.until("the answer of a pod", || {
        let answer = ask().timeout(SOON).ask();
        last = answer.map_or_else(|error| error.to_string(), |answer| answer.who);
        Ok(last == who)
    });
    answered
        .map(drop)
        .with_context(|| format!("{last} instead of {who}"))
}

pub(crate) fn the_daemon_keeps_other_programs_kernel_state(c: &mut Cluster) -> Outcome {
    c.sh(FOREIGN)?;
    let foreign = c.state()?;
    let is_framing =
        |line: &&str| line.ends_with("COMMIT") || line.contains("-save *") || line.contains(" *");
    let foreign: Vec<&str> = foreign.lines().filter(|line| !is_framing(line)).collect();
    let remains = |c: &Cluster, after: &str| -> Outcome {
        let state = c.state()?;
        let left: Vec<&str> = state
            .lines()
            .filter(|line| foreign.contains(line))
            .collect();
        assert_eq!(left, foreign, "after {after}");
        Ok(())
    };
    let flags = ["--ipvs-sync-period=1s"];
    c.apply(&web())?;
    c.apply(&taken())?;
    let checked = c.check(&flags)?;
    ensure!(
        checked.contains("192.0.2.50:80/TCP of Service default/taken"),
        "{checked}"
    );
    c.start(&flags)?;
    c.until_served(&web())?;
    remains(c, "the first sync")?;
    // The Service works at its other addresses. At the taken address, clients still reach the other
    // program's endpoint.
    c.until_answered(&c.client, "10.96.0.21:80")?;
    until_answered_by(c, "near")?;
    let said = c.said();
    let line =
        "cannot add virtual server 192.0.2.50:80/TCP (of Service default/taken): another program";
    ensure!(said.contains(line), "{said}");
    c.until_answered(&c.outside, "172.35.0.100:8443")?;

    c.apply(&web().endpoints("10.244.2.10"))?;
    c.until_served(&web().endpoints("10.244.2.10"))?;
    remains(c, "a change")?;
    std::thread::sleep(std::time::Duration::from_millis(1500));
    remains(c, "a resync")?;

    c.stop()?;
    c.start(&flags)?;
    remains(c, "a restart")?;
    c.delete("web")?;
    c.until_gone("TCP 10.96.0.10:80")?;
    c.until_gone("TCP 172.35.0.100:30080")?;
    remains(c, "the end of a Service")?;
    c.until_answered(&c.outside, "172.35.0.100:8443")?;

    c.stop()?;
    let program = kube_proxy()?.display().to_string();
    let cleaned = c.node1.run([program.as_str(), "--cleanup"])?;
    ensure!(cleaned.status.success(), "{cleaned:?}");
    remains(c, "a cleanup")?;
    c.start(&flags)?;
    c.until_answered(&c.client, "10.96.0.21:80")?;
    c.sh("ipvsadm -D -t 192.0.2.50:80")?;
    until_answered_by(c, "far")
}
