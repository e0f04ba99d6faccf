//! Tests a Service that claims addresses of other owners (CVE-2020-8554).

use anyhow::{Context as _, Result, ensure};
use lab::{Place, Transport};
use scenarios::{Cluster, Outcome, SOON, Service, ask, at, get, metric, tally, tcp};
use serde_json::Value;

const VICTIM: &str = "10.96.0.10:80";
const API: &str = "172.35.0.9:6443";

/// Returns a Service that wins conflicts, because it is older than all other Services.
fn thief(name: &str, cluster_ip: &str, port: u16, external: &str) -> Service {
    Service::new(name, cluster_ip)
        .port(tcp(port, 8080))
        .endpoints("10.244.2.10")
        .external(external)
        .metadata("creationTimestamp: '2019-01-01T00:00:00Z'")
}

fn answers(from: &Place, to: &str, who: &str) -> Outcome {
    let tally = tally(from, Transport::Tcp, at(to), 4)?;
    ensure!(
        tally.keys().all(|answer| answer.starts_with(who)),
        "{who} is to answer {} at {to}: {tally:?}",
        from.name()
    );
    Ok(())
}

/// Returns node1's kernel entries that decide where packets go.
fn programmed(c: &Cluster) -> Result<String> {
    c.sh("set +e; (ipvsadm -Sn; iptables-$backend-save; nft list ruleset; ipset save; ip -o address show) 2>/dev/null || true")
}

fn contested(c: &Cluster, reason: &str) -> Result<f64> {
    let series = format!("kubeproxy_contested_external_addresses{{reason=\"{reason}\"}}");
    metric(c, &series)?.with_context(|| series)
}

pub(crate) fn addresses_stay_with_their_rightful_service(c: &mut Cluster) -> Outcome {
    let mut api = c.api_server(true)?;
    let victim = Service::new("victim", "10.96.0.10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10")
        .metadata("creationTimestamp: '2024-01-01T00:00:00Z'");
    // `a-thief` claims another Service's cluster IP, the API server's address with another port,
    // the node's address, and an unused address.
    let all = "10.96.0.10 172.35.0.9 172.35.0.100 192.0.2.20";
    api.apply(&thief("a-thief", "10.96.0.66", 80, all))?;
    // `b-thief` claims the API server's address and port.
    api.apply(&thief("b-thief", "10.96.0.67", 6443, "172.35.0.9"))?;
    api.apply(&victim)?;
    api.start()?;
    c.launch_on(&api, &[])?;
    c.await_first_sync()?;

    c.until_answered(&c.client, VICTIM)?;
    answers(&c.client, VICTIM, "near")?;
    answers(&c.outside, VICTIM, "near")?;
    // The Service `a-thief` works at its own cluster IP, and at the unused address that it claims.
    for to in ["10.96.0.66:80", "192.0.2.20:80"] {
        c.until_answered(&c.outside, to)?;
        answers(&c.outside, to, "far")?;
    }
    c.until_answered(&c.client, "10.96.0.67:6443")?;
    // As in upstream, the Service gets its port at the node's address, which stays on the node's
    // interface. The daemon logs this.
    c.until_answered(&c.outside, "172.35.0.100:80")?;
    // The API server's address has not become local, so the node still reaches the API server.
    let (code, body) = get(&c.node1, API, "/api/v1/services")?;
    ensure!(code == 200 && body.contains("victim"), "{code} {body}");
    let addresses = c.sh("ip -o address show")?;
    ensure!(!addresses.contains("172.35.0.9/"), "{addresses}");

    // For each claim, the log names the Service and the next step.
    let said = c.said();
    for parts in [
        [
            "default/a-thief",
            "10.96.0.10",
            "Service default/victim",
            "remove it from spec.externalIPs",
        ],
        [
            "default/b-thief",
            "172.35.0.9",
            "the API server is at 172.35.0.9:6443",
            "--allowed-external-cidrs",
        ],
        [
            "default/a-thief",
            "172.35.0.100",
            "an address of this node",
            "remove it from spec.externalIPs",
        ],
    ] {
        let is_said = said
            .lines()
            .any(|line| parts.iter().all(|part| line.contains(part)));
        ensure!(is_said, "no line has {parts:?}:\n{said}");
    }
    for (reason, count) in [
        ("cluster-ip", 1.0),
        ("api-server", 1.0),
        ("node", 1.0),
        ("not-allowed", 0.0),
    ] {
        let counted = contested(c, reason)?;
        ensure!((counted - count).abs() < 0.1, "{reason}: {counted}");
    }
    let (_, status) = ask(c, &["status"])?;
    ensure!(
        status.contains("serve 10.96.0.10 (spec.externalIPs)"),
        "{status}"
    );
    c.until("events on the Services", || {
        let events = api.events();
        let has = |reason: &str, name: &str| {
            let at = |event: &Value, path: &str, is: &str| {
                event.pointer(path).is_some_and(|value| value == is)
            };
            events
                .iter()
                .any(|event| at(event, "/reason", reason) && at(event, "/regarding/name", name))
        };
        Ok(has("AddressRefused", "a-thief")
            && has("AddressRefused", "b-thief")
            && has("NodeAddressClaimed", "a-thief"))
    })?;

    // The daemon still watches objects. When the victim releases its cluster IP, the thief gets the
    // address. When the victim has its cluster IP again, the thief loses the address.
    api.delete_service("victim")?;
    c.until("the thief to have it", || {
        let answer = c.client.ask_tcp(at(VICTIM), SOON);
        Ok(answer.is_ok_and(|answer| answer.who == "far"))
    })?;
    api.apply(&victim)?;
    c.until("it to be given back", || {
        let answer = c.client.ask_tcp(at(VICTIM), SOON);
        Ok(answer.is_ok_and(|answer| answer.who == "near"))
    })?;
    answers(&c.client, VICTIM, "near")?;

    // With `--allowed-external-cidrs`, the daemon programs only external addresses in these
    // networks, and removes its entries for other external addresses.
    api.apply(&thief("c-free", "10.96.0.68", 80, "192.0.2.5 198.51.100.5"))?;
    c.until_answered(&c.outside, "192.0.2.5:80")?;
    c.stop()?;
    c.launch_on(&api, &["--allowed-external-cidrs=192.0.2.0/28"])?;
    c.await_first_sync()?;
    c.until_answered(&c.outside, "192.0.2.5:80")?;
    answers(&c.client, VICTIM, "near")?;
    c.until("what is not allowed to go", || {
        let all = programmed(c)?;
        let gone = ["192.0.2.20", "198.51.100.5"];
        Ok(gone.iter().all(|address| !all.contains(address)))
    })?;
    let said = c.said();
    let parts = ["198.51.100.5", "--allowed-external-cidrs", "default/c-free"];
    let is_said = said
        .lines()
        .any(|line| parts.iter().all(|part| line.contains(part)));
    ensure!(is_said, "{said}");
    ensure!((contested(c, "not-allowed")? - 4.0).abs() < 0.1);
    c.stop()
}
