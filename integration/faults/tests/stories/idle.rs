//! Tests that a daemon whose pending work is blocked uses no CPU time.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use scenarios::{Cluster, Faults, Outcome, Service, ask_json, tcp, udp};

const IDLE: Duration = Duration::from_secs(5);
/// Maximum CPU time that an idle daemon may use while the test watches it.
const MOST: Duration = Duration::from_millis(150);
/// Maximum CPU time of a daemon that retries a failed `iptables-restore` with back-off: one or two
/// attempts, each of which starts programs. Without pauses, retries would take seconds of CPU time.
const MOST_WITH_RETRIES: Duration = Duration::from_millis(500);

/// Returns the CPU time that the daemon and its ended child processes have used.
fn used(c: &Cluster) -> Result<Duration> {
    Ok(lab::process::cpu(c.daemon_id()?)?)
}

fn is_idle(c: &Cluster, about: &str) -> Outcome {
    uses_at_most(c, about, MOST)
}

fn uses_at_most(c: &Cluster, about: &str, most: Duration) -> Outcome {
    // Gives the daemon time to finish its present work and its pending retries.
    sleep(Duration::from_secs(2));
    let before = used(c)?;
    sleep(IDLE);
    let used = used(c)?.saturating_sub(before);
    println!("    {about}: {used:.0?} of the processor in {IDLE:.0?}");
    ensure!(used < most, "{about}: {used:?}");
    Ok(())
}

/// Checks that a daemon which may not delete entries is idle. An unreadable object blocks the
/// deletion of:
///
/// - Entries of another mode. Refused rules of the present mode block this deletion as well.
/// - Routes to Service addresses, from an earlier daemon with another `--ipvs-vip-mode`.
///
/// A third case: the daemon does not bind an address that another program has bound.
pub(crate) fn blocked_removals_cost_no_cpu_time(c: &mut Cluster) -> Outcome {
    const BROKEN: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: broken\n";
    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10");
    let theirs = Service::new("theirs", "10.96.0.11 fd96::11")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10 fd44:1::10");
    c.apply(&web)?;
    c.start(&["--ipvs-vip-mode=route"])?;
    c.until_served(&web)?;
    is_idle(c, "in order")?;
    c.stop()?;

    c.sh("for tables in iptables ip6tables; do
            $tables-$backend -t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA
            $tables-$backend -t nat -N KUBE-NODEPORTS
            $tables-$backend -t nat -A KUBE-NODEPORTS -j KUBE-SVC-AAAAAAAAAAAAAAAA
          done
          ip address add 10.96.0.11/32 dev lo; ip address add fd96::11/128 dev lo")?;
    let has_left = |c: &Cluster| {
        let rules = c.sh("iptables-$backend-save -t nat")?;
        let addresses = c.addresses()?;
        let theirs = addresses.contains("kube-ipvs0 10.96.0.11/32");
        ensure!(!theirs, "what somebody else has bound");
        let routes = addresses.contains("kube-ipvs0 local 10.96.0.10");
        Ok([rules.contains("KUBE-NODEPORTS"), routes])
    };
    c.apply(&theirs)?;
    c.write("broken", BROKEN)?;
    let faults = Faults::prepare(c)?;
    let refusing = faults.refuse("iptables restore", &["KUBE-NODEPORTS", "EXTERNAL-IP"])?;
    c.start(&[])?;
    c.until("the addresses are there", || {
        Ok(c.addresses()?.contains("kube-ipvs0 10.96.0.10/32"))
    })?;
    is_idle(c, "what must not go yet")?;
    ensure!(has_left(c)? == [true; 2]);
    let (code, status) = ask_json(c, &["status"])?;
    let is_whole = status
        .pointer("/source/whole")
        .and_then(serde_json::Value::as_bool);
    ensure!(code == 1 && is_whole == Some(false), "{status}");

    c.delete("broken")?;
    c.await_line("it refuses on purpose")?;
    // The daemon deletes entries of the other mode only after it has written these new rules, which
    // the kernel refuses.
    let external = web.clone().external("192.0.2.20");
    c.apply(&external)?;
    c.await_line("it refuses on purpose")?;
    uses_at_most(
        c,
        "what was refused, and has to wait now",
        MOST_WITH_RETRIES,
    )?;
    ensure!(has_left(c)? == [true, false]);

    drop(refusing);
    c.until("they go", || Ok(has_left(c)? == [false; 2]))?;
    is_idle(c, "in order again")?;
    c.stop()
}

/// Checks that a refused destination costs no CPU time, and does not block the Service's other
/// endpoints. The kernel refuses a broadcast address as a destination, but an EndpointSlice may
/// contain it.
pub(crate) fn an_endpoint_refused_by_the_kernel_costs_no_cpu_time(c: &mut Cluster) -> Outcome {
    let web = Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080).named("tcp"))
        .port(udp(80, 8080).named("udp"));
    let both = web.clone().endpoints("10.244.1.10 10.244.2.10");
    c.apply(&both)?;
    c.start(&[])?;
    c.until_served(&both)?;
    c.apply(&web.endpoints("10.244.1.10 10.244.1.255"))?;
    for server in ["TCP 10.96.0.10:80", "UDP 10.96.0.10:80"] {
        let took = c.until("the one that is gone is removed", || {
            Ok(c.reals(server)? == "10.244.1.10:8080*1")
        })?;
        println!("    {server}: removed after {took:.1?}");
    }
    ensure!(c.said().contains("10.244.1.255"), "it is told");
    is_idle(c, "with one that is refused")?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    c.stop()
}
