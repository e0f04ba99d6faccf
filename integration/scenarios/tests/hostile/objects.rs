//! Tests hostile objects beside a valid Service.

use std::time::Duration;

use anyhow::{Result, ensure};
use scenarios::{
    Cluster, METRICS, Outcome, SOON, Service, ask, at, get, hostile, tcp, under_traffic,
    with_backend,
};

/// Maximum peak memory of the daemon, in KiB.
const MEMORY_MAX: u64 = 128 * 1024;
/// Timeout of each wait in the test, such as for a change of the valid Service.
const FRESH_WITHIN: Duration = Duration::from_secs(40);
fn good(endpoint: &str) -> Service {
    Service::new("web", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints(endpoint)
}

/// Returns the daemon's peak resident memory, in KiB.
fn peak_memory(c: &Cluster) -> Result<u64> {
    Ok(lab::process::status(c.daemon_id()?, "VmHWM")?)
}

/// Checks that a text has no control or direction characters, with which an object's name could
/// change a terminal's output.
fn is_plain(what: &str, text: &str) -> Outcome {
    let odd = text.lines().find(|line| {
        line.contains(|of: char| of.is_control() && of != '\t') || line.contains('\u{202e}')
    });
    ensure!(odd.is_none(), "{what}: {odd:?}");
    Ok(())
}

pub(crate) fn hostile_objects_affect_only_their_own_services(c: &mut Cluster) -> Outcome {
    c.apply(&good("10.244.1.10"))?;
    // Half of the objects exist at the start, and the test adds the other half later. Except in
    // default IPVS mode, objects have fewer ports and ranges, because many of them make iptables
    // programs and this lab's kernel slow. Tests with fake kernels cover large objects.
    let is_ipvs = !c.flags.iter().any(|flag| flag != "--proxy-mode=ipvs");
    let files = if is_ipvs {
        hostile::files(2_000, 10_000)
    } else {
        hostile::files(200, 500)
    };
    let (before, later) = files.split_at(files.len() / 2);
    for (name, text) in before {
        c.write(&format!("hostile-{name}"), text)?;
    }
    c.patience = FRESH_WITHIN;
    c.launch(&[])?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    let ways = [(&c.client, "10.96.0.10:80"), (&c.outside, "10.96.0.10:80")];
    under_traffic(&ways, 3, SOON, || {
        for (name, text) in later {
            c.write(&format!("hostile-{name}"), text)?;
        }
        // Valid objects are still programmed.
        let second = Service::new("second", "10.96.0.11")
            .port(tcp(80, 8080))
            .endpoints("10.244.2.10");
        c.apply(&second)?;
        c.until("a new Service", || {
            let answer = c
                .client
                .ask_tcp(at("10.96.0.11:80"), Duration::from_secs(2));
            Ok(answer.is_ok_and(|answer| answer.who == "far"))
        })?;
        c.apply(&second.endpoints("10.244.1.10"))?;
        c.until("its change", || {
            let answer = c
                .client
                .ask_tcp(at("10.96.0.11:80"), Duration::from_secs(2));
            Ok(answer.is_ok_and(|answer| answer.who == "near"))
        })?;
        // The valid parts of a partly invalid object are also served.
        for to in ["10.96.1.2:1", "10.96.1.2:200"] {
            c.until_answered(&c.client, to)?;
        }
        Ok(())
    })?;

    // No text of an object may have broken out of its context in the log, rules or output.
    is_plain("the log", &c.said())?;
    let rules = c.sh(&with_backend(
        "iptables-$backend-save; nft list ruleset 2>/dev/null || true",
    ))?;
    ensure!(!rules.contains("-A INPUT -j DROP"), "{rules}");
    is_plain("rules", &rules)?;
    let (code, metrics) = get(&c.node1, METRICS, "/metrics")?;
    ensure!(code == 200);
    is_plain("metrics", &metrics)?;
    for asked in ["services", "status"] {
        let (_, text) = ask(c, &[asked])?;
        is_plain(asked, &text)?;
    }
    let said = c.said();
    ensure!(
        said.lines().count() < 2_000,
        "{} lines",
        said.lines().count()
    );
    let memory = peak_memory(c)?;
    println!(
        "    {} lines of log, {memory} KiB at most",
        said.lines().count()
    );
    ensure!(memory < MEMORY_MAX, "{memory} KiB");

    // Deletes all hostile objects.
    for (name, _) in &files {
        c.delete(&format!("hostile-{name}"))?;
    }
    c.until("it all to go", || {
        let rules = c.sh(
            "ipvsadm -Sn 2>/dev/null; iptables-$backend-save; nft list ruleset 2>/dev/null || true",
        )?;
        Ok(!rules.contains("10.96.1."))
    })?;
    c.until_answered(&c.client, "10.96.0.10:80")?;
    c.stop()
}
