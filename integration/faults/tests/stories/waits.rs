//! Tests that the daemon applies changes of endpoints while iptables programs hang or fail.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::less_stalls;
use scenarios::{ApiServer, Cluster, Faults, Outcome, SOON, Service, health, tcp};

/// Number of Services whose endpoints the test changes in turn.
const SERVICES: u8 = 5;
/// Pause between two changes of an endpoint.
const PAUSE: Duration = Duration::from_millis(250);
/// Time limit after which a change of an endpoint counts as failed.
const ENOUGH: Duration = Duration::from_secs(20);

/// State of a test that changes one endpoint after another.
struct Changes {
    api: ApiServer,
    count: u8,
}

impl Changes {
    /// Starts the daemon with an API server that has dual-stack Services.
    fn begin(c: &mut Cluster, flags: &[&str]) -> Result<Self> {
        let mut api = c.api_server(true)?;
        for number in 0..SERVICES {
            api.apply(&web(number))?;
        }
        api.start()?;
        c.launch_on(&api, flags)?;
        c.await_first_sync()?;
        Ok(Self { api, count: 0 })
    }

    /// Gives the next Service a new IPv4 endpoint. Returns the time until the kernel has a
    /// destination with its address.
    fn make(&mut self, c: &Cluster) -> Result<Duration> {
        let endpoint = Ipv4Addr::new(10, 244, 2, 50 + self.count);
        let service = format!("web{}", self.count % SERVICES);
        self.count += 1;
        let slice = format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
             metadata: {{name: {service}-ipv4, namespace: default, labels: {{kubernetes.io/service-name: {service}}}}}, \
             ports: [{{name: '', protocol: TCP, port: 8080}}], \
             endpoints: [{{addresses: ['{endpoint}'], nodeName: node2, conditions: {{ready: true}}}}]}}"
        );
        let began = Instant::now();
        self.api.apply(&slice)?;
        until_destination(c, endpoint, began + ENOUGH)?;
        Ok(began.elapsed())
    }

    /// Makes `count` changes, one after another. Prints and returns the time of the slowest. Stops
    /// early if a change is slow enough to fail the test.
    fn make_many(&mut self, c: &Cluster, count: usize, meanwhile: &str) -> Result<Duration> {
        let mut took = Vec::new();
        while took.len() < count && took.last() < Some(&ENOUGH) {
            took.push(less_stalls(|| self.make(c))?);
            sleep(PAUSE);
        }
        took.sort();
        let longest = took.last().copied().unwrap_or_default();
        let median = took.get(took.len() / 2).copied().unwrap_or_default();
        println!(
            "    {meanwhile}: {} endpoint changes, in the kernel after {longest:.1?} at most, {median:.1?} in the median",
            took.len()
        );
        Ok(longest)
    }
}

fn web(number: u8) -> Service {
    let addresses = format!("10.96.0.{} fd96::{}", 10 + number, 10 + number);
    Service::new(&format!("web{number}"), &addresses)
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10 fd44:1::10")
}

/// Waits until the kernel has the destination `endpoint`, or until `limit`. Reads `/proc` every
/// millisecond, because starting `ipvsadm` would take longer.
fn until_destination(c: &Cluster, endpoint: Ipv4Addr, limit: Instant) -> Result<()> {
    let line = format!("  -> {:08X}:1F90 ", endpoint.to_bits());
    let look = || fs::read_to_string("/proc/thread-self/net/ip_vs");
    c.node1.enter(|| {
        while !look()?.contains(&line) && Instant::now() < limit {
            sleep(Duration::from_millis(1));
        }
        Ok(())
    })?;
    Ok(())
}

/// Returns true if the kernel has rules for external IPs. `tables` is `iptables` or `ip6tables`.
fn has_rules_for_external_ips(c: &Cluster, tables: &str) -> Result<bool> {
    let saved = c.sh(&format!("{tables}-$backend-save -t nat"))?;
    Ok(saved
        .lines()
        .any(|line| line.contains("--match-set") && line.contains("EXTERNAL-IP ")))
}

/// Adds an external IP, whose rules the daemon cannot write: another process holds the xtables lock
/// in IPv4 (only with legacy iptables), and `ip6tables-restore` hangs in IPv6. Checks that
/// endpoints still change quickly.
pub(crate) fn slow_iptables_programs_do_not_delay_ipv4_endpoints(c: &mut Cluster) -> Outcome {
    const CHANGES: usize = 50;
    /// Maximum time until the kernel has a change of the API server. The aim is 100 ms, but the
    /// VM's single CPU also starts the iptables programs, and other VMs may run in parallel.
    const LATEST: Duration = Duration::from_millis(400);
    let faults = Faults::prepare(c)?;
    let mut changes = Changes::begin(c, &[])?;
    let lock = File::create("/run/xtables.lock")?;
    lock.lock()?;
    let hanging = faults.hang("ip6tables restore")?;
    let late = Service::new("late", "10.96.0.9 fd96::9").port(tcp(80, 8080));
    let late = late.external("192.0.2.20 2001:db8::20");
    changes
        .api
        .apply(&late.endpoints("10.244.1.10 fd44:1::10"))?;
    let meanwhile = "the lock held and ip6tables-restore hanging";
    let longest = changes.make_many(c, CHANGES, meanwhile)?;
    let has_lock = lab::iptables_backend() == "legacy";
    ensure!(
        !has_lock || !has_rules_for_external_ips(c, "iptables")?,
        "IPv4's rules wait"
    );
    ensure!(
        !has_rules_for_external_ips(c, "ip6tables")?,
        "IPv6's rules wait"
    );

    drop((lock, hanging));
    let released = Instant::now();
    c.patience = 3 * SOON;
    for tables in ["iptables", "ip6tables"] {
        c.until("the rules", || has_rules_for_external_ips(c, tables))?;
    }
    c.until_answered(&c.outside, "192.0.2.20:80")?;
    c.until_answered(&c.outside, "[2001:db8::20]:80")?;
    c.until("readiness", || {
        Ok(health(c, "/readyz")? == 200 && health(c, "/healthz")? == 200)
    })?;
    println!(
        "    the external IP served {:.1?} after both were released",
        released.elapsed()
    );
    ensure!(longest < LATEST, "{longest:?}");
    c.stop()
}

/// Makes the rules unreadable for more than two sync periods. Checks that endpoints still change
/// quickly.
pub(crate) fn unreadable_rules_do_not_delay_endpoints(c: &mut Cluster) -> Outcome {
    const CHANGES: usize = 20;
    const LATEST: Duration = Duration::from_secs(1);
    let faults = Faults::prepare(c)?;
    let mut changes = Changes::begin(c, &["--ipvs-sync-period=2s"])?;
    let rules = "iptables-$backend -t nat -S KUBE-SERVICES";
    let whole = c.sh(rules)?;
    for fault in ["fails", "hangs"] {
        let fail = |program| match fault {
            "fails" => faults.fail(program),
            _ => faults.hang(program),
        };
        let at_fault = (fail("iptables save")?, fail("iptables restore")?);
        // After this flush, the kernel notifies the daemon of changed rules. The daemon must read
        // the rules, and restore the flushed chain.
        c.sh("iptables-$backend -t nat -F KUBE-SERVICES")?;
        let told = || {
            let said = c.said();
            said.lines()
                .filter(|line| line.contains("cannot read the rules beside IPVS"))
                .count()
        };
        let told_before = told();
        let longest = changes.make_many(c, CHANGES, &format!("iptables {fault}"))?;
        ensure!(longest < LATEST, "{longest:?}");
        // A program that fails causes a log line. A daemon that still waits for a hanging program
        // has logged none.
        ensure!(
            told() - told_before == usize::from(fault == "fails"),
            "it is told once"
        );
        drop(at_fault);
        let took = c.until("the rules", || Ok(c.sh(rules)? == whole))?;
        println!("    {took:.1?} after iptables was mended the rules are right again");
    }
    c.stop()
}
