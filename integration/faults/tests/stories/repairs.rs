//! Tests how fast the daemon restores entries that another program removes, and what it logs.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{Signal, less_stalls};
use scenarios::{Cluster, Outcome, Service, metric, tcp};

fn web(number: u16) -> Service {
    let addresses = format!("10.96.0.{} fd96::{}", 10 + number, 10 + number);
    Service::new(&format!("web{number}"), &addresses)
        .port(tcp(80, 8080).node_port(30080 + number))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10")
}

/// Returns the virtual servers and addresses of both IP families, read from `/proc`. Omits
/// interface numbers and connection counts, which change. Includes the link-local address, which
/// shows that the link is up.
fn glance(c: &Cluster) -> Result<String> {
    let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let files = c
        .node1
        .enter(|| Ok([read("ip_vs")?, read("fib_trie")?, read("if_inet6")?]))?;
    let [servers, four, six] = files;
    let servers = servers.lines().map(|line| {
        let words = line.split_whitespace();
        words.take(4).collect::<Vec<_>>().join(" ")
    });
    let four = four.lines().filter(|line| line.contains("|--"));
    let six = six.lines().map(|line| {
        let mut words = line.split_whitespace();
        format!("{:?} {:?}", words.next(), words.nth(4))
    });
    let mut lines: Vec<String> = servers
        .chain(four.map(|line| line.trim().to_owned()))
        .chain(six)
        .collect();
    lines.sort();
    Ok(lines.join("\n"))
}

/// Checks that the daemon restores removed entries within seconds. The kernel notifies it of each
/// removal, except for virtual servers, which it polls.
pub(crate) fn each_repair_takes_seconds(c: &mut Cluster) -> Outcome {
    const TOLD: Duration = Duration::from_secs(1);
    const GLANCED: Duration = Duration::from_secs(5);
    c.apply(&web(0))?;
    c.start(&[])?;
    c.until_served(&web(0))?;
    let flags = "ip -oneline link show dev kube-ipvs0 | grep -o '<.*>'";
    let (whole, link, before) = (c.state()?, c.sh(flags)?, glance(c)?);
    // After a lost notification, the daemon repairs only at its next periodic check. The test waits
    // for that, to report the time.
    c.patience = Duration::from_secs(40);
    let mut late = Vec::new();
    // Runs with `-loops 1`: `ip address flush` otherwise repeats while it finds addresses, and
    // would never end, because the daemon restores them.
    let flush = "! ip -loops 1 address flush dev kube-ipvs0";
    for (damage, limit) in [
        ("ip address del 10.96.0.10/32 dev kube-ipvs0", TOLD),
        ("ip address del fd96::10/128 dev kube-ipvs0", TOLD),
        (flush, TOLD),
        ("ip link set kube-ipvs0 up", TOLD),
        ("ip link del kube-ipvs0", TOLD),
        ("ipvsadm -C", GLANCED),
        ("ipvsadm -D -t 10.96.0.10:80", GLANCED),
    ] {
        c.sh(damage)?;
        let repaired = less_stalls(|| c.until("it is repaired", || Ok(glance(c)? == before)));
        let Ok(took) = repaired else {
            println!("    {damage}: not repaired within {:.0?}", c.patience);
            late.push(damage);
            continue;
        };
        println!("    {damage}: repaired after {took:.1?}");
        if took >= limit {
            late.push(damage);
        }
        for to in ["10.96.0.10:80", "[fd96::10]:80"] {
            c.until_answered(&c.client, to).context(damage)?;
        }
    }
    ensure!(late.is_empty(), "late: {late:?}");
    ensure!(c.state()? == whole && c.sh(flags)? == link);
    c.stop()
}

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const KINDS: [&str; 8] = [
    "virtual server",
    "destination",
    "address",
    "link",
    "set",
    "set member",
    "rule",
    "chain",
];

/// Returns the number of kernel entries of each kind in an IP family. `tables` selects a table for
/// rules and chains (`-t nat`), or is empty for all tables.
fn held(c: &Cluster, family: &str, tables: &str) -> Result<BTreeMap<&'static str, usize>> {
    let is_six = family == "IPv6";
    let program = if is_six { "ip6tables" } else { "iptables" };
    let rules = c.sh(&format!("{program}-$backend-save {tables}"))?;
    let sets = c.sh("ipset save")?;
    let count = |text: &str, start: &str| {
        let lines = text.lines().filter(|line| line.starts_with(start));
        lines.count()
    };
    let of_family = sets
        .lines()
        .filter(|line| line.contains(" KUBE-6-") == is_six);
    let sets = of_family.collect::<Vec<_>>().join("\n");
    let servers = c.servers()?;
    let servers = servers.keys().filter(|key| key.contains('[') == is_six);
    Ok(BTreeMap::from([
        ("virtual server", servers.count()),
        ("set", count(&sets, "create ")),
        ("set member", count(&sets, "add ")),
        ("rule", count(&rules, "-A ")),
        ("chain", count(&rules, ":KUBE-")),
    ]))
}

/// Returns the daemon's counter of drifted entries of one kind in an IP family.
fn drifted(c: &Cluster, family: &str, kind: &str) -> Result<f64> {
    let kind = kind.replace(' ', "_");
    let series =
        format!("kubeproxy_drifted_entries_total{{ip_family=\"{family}\",kind=\"{kind}\"}}");
    Ok(metric(c, &series)?.unwrap_or(f64::NAN))
}

/// Checks that the daemon logs one warning for each kind of removed entries, with their number and
/// the first names, and that its drift counter increases by this number.
pub(crate) fn each_repair_is_logged_once_with_a_count(c: &mut Cluster) -> Outcome {
    /// Damage in both IP families: a command, the option that selects its tables, and the kinds of
    /// entries that it removes.
    const DAMAGE: [(&str, &str, &[&str]); 4] = [
        ("ipvsadm -C", "", &["virtual server"]),
        (
            "iptables-$backend -t nat -F; ip6tables-$backend -t nat -F",
            "-t nat",
            &["rule"],
        ),
        ("ipset flush", "", &["set member"]),
        (
            "for program in iptables ip6tables; do for table in nat filter; do
              $program-$backend -t $table -F; $program-$backend -t $table -X
            done; done; for i in 1 2 3; do ipset destroy && break || sleep 0.2; done",
            "",
            &["rule", "chain", "set", "set member"],
        ),
    ];
    let services: Vec<Service> = (0..5).map(web).collect();
    for service in &services {
        c.apply(service)?;
    }
    c.start(&["--ipvs-sync-period=1s"])?;
    for service in &services {
        c.until_served(service)?;
    }
    let whole = c.state()?;
    for (damage, tables, kinds) in DAMAGE {
        let mut wanted = Vec::new();
        for family in FAMILIES {
            let held = held(c, family, tables)?;
            for kind in KINDS {
                let gone = held.get(kind).filter(|_| kinds.contains(&kind));
                let gone = gone.copied().unwrap_or_default();
                wanted.push((family, kind, gone, drifted(c, family, kind)?));
            }
        }
        let said = c.said().lines().count();
        // Stops the daemon (SIGSTOP) during the damage, because it could otherwise notice parts of
        // the damage and log several warnings.
        c.signal(Signal::STOP)?;
        c.sh(damage)?;
        c.signal(Signal::CONT)?;
        c.until("it is repaired", || Ok(c.state()? == whole))?;
        let warnings = || -> Vec<String> {
            let said_now = c.said();
            let new = said_now.lines().skip(said);
            new.filter(|line| line.starts_with('W'))
                .map(str::to_owned)
                .collect()
        };
        c.until("it is told", || Ok(warnings().len() >= FAMILIES.len()))?;
        // Waits for warnings that come late.
        std::thread::sleep(Duration::from_secs(2));
        let warnings = warnings();
        for line in &warnings {
            let text = line.split(" changed ").nth(1).unwrap_or(line);
            println!("    {damage:.20}: {text:.150}");
        }
        // The daemon checks rules and sets separately, so it may log one warning for each of the
        // two.
        let most = FAMILIES.len() * if kinds.len() > 1 { 2 } else { 1 };
        ensure!(warnings.len() <= most, "{damage}: {warnings:#?}");
        for (family, kind, gone, before) in wanted {
            let counted = drifted(c, family, kind)? - before;
            ensure!(
                counted.to_string() == gone.to_string(),
                "{damage}: {counted} of {gone} {kind} counted"
            );
            let part = format!(" {gone} {kind}s (");
            let is_told = |line: &&String| line.contains(family) && line.contains(&part);
            ensure!(
                gone == 0 || warnings.iter().filter(is_told).count() == 1,
                "{damage}: {part:?} is not told: {warnings:#?}"
            );
        }
    }
    c.stop()
}
