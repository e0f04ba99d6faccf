//! Compares the output of `kube-proxy status` and `kube-proxy services` with the kernel's state.
#![allow(
    clippy::indexing_slicing,
    reason = "what an object has not is null; a story stops at the first surprise"
)]

use anyhow::{Context as _, ensure};
use lab::Transport;
use scenarios::{Cluster, FIRST_TRY, METRICS, Outcome, SOON, Service, ask, ask_json, at, get, tcp};

pub(crate) fn the_api_reports_the_kernels_state(c: &mut Cluster) -> Outcome {
    let (code, text) = ask(c, &["status"])?;
    ensure!(
        code == 3 && text.contains("has no entries of a kube-proxy"),
        "{code} {text}"
    );

    let web = Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.1.10 10.244.2.10 fd44:1::10");
    let idle = Service::new("idle", "10.96.0.11").port(tcp(80, 8080));
    c.apply(&web)?;
    c.apply(&idle)?;
    c.start(&[])?;
    c.until_served(&web)?;

    let (code, status) = ask_json(c, &["status"])?;
    ensure!(code == 0, "{code} {status}");
    ensure!(
        status["mode"] == "ipvs" && status["ready"] == true,
        "{status}"
    );
    ensure!(status["source"]["services"] == 2, "{status}");
    ensure!(status["families"][0]["state"] == "synced", "{status}");
    let features = status["features"].as_array().context("features")?;
    ensure!(
        features
            .iter()
            .any(|one| one["name"] == "IPVS" && one["found"] == true),
        "{status}"
    );
    let limits = status["limits"].as_array().context("limits")?;
    let set = limits
        .iter()
        .find(|one| one["of"] == "set KUBE-CLUSTER-IP (IPv4)");
    ensure!(set.is_some_and(|one| one["used"] == 2), "{status}");
    let (code, text) = ask(c, &["status"])?;
    ensure!(
        code == 0 && text.contains("ready, healthy"),
        "{code} {text}"
    );

    for _ in 0..4 {
        c.client.ask_tcp(at("10.96.0.10:80"), SOON)?;
    }
    // Waits, because IPVS updates its counters only every two seconds.
    c.until("connections are told", || {
        let (_, one) = ask_json(c, &["services", "default/web"])?;
        Ok(one["ports"][0]["counters"]["connections"] == 4)
    })?;
    let (code, one) = ask_json(c, &["services", "default/web"])?;
    ensure!(code == 0, "{code} {one}");
    let port = &one["ports"][0];
    let servers = c.servers()?;
    for address in port["addresses"].as_array().context("addresses")? {
        let key = format!("TCP {}", address["at"].as_str().context("text")?);
        ensure!(
            servers.contains_key(&key),
            "{key} is told, and the kernel has {servers:?}"
        );
        ensure!(address["scheduler"] == "rr", "{address}");
    }
    let told = port["addresses"].as_array().map_or(0, Vec::len);
    let held = servers.keys().filter(|key| {
        key.ends_with(":30080") || key.contains("96::10") || key.contains("96.0.10:")
    });
    ensure!(told == held.count(), "{told} addresses of {servers:?}");
    let cluster_ip = &port["addresses"][0];
    ensure!(
        cluster_ip["at"] == "10.96.0.10:80" && cluster_ip["counters"]["connections"] == 4,
        "{cluster_ip}"
    );
    let endpoints = port["endpoints"].as_array().context("endpoints")?;
    ensure!(endpoints.len() == 3, "{port}");
    for endpoint in endpoints {
        ensure!(
            endpoint["why"] == "ready" && endpoint["weight"] == 1,
            "{endpoint}"
        );
    }
    ensure!(
        endpoints[1]["node"] == "node2" && endpoints[0]["local"] == true,
        "{port}"
    );
    ensure!(port["endpointCounts"]["used"] == 3, "{port}");
    let (code, text) = ask(c, &["services", "default/web"])?;
    ensure!(
        code == 0 && text.contains("10.244.2.10:8080"),
        "{code} {text}"
    );
    let (code, text) = ask(c, &["services"])?;
    ensure!(
        code == 0 && text.contains("10.96.0.11") && text.contains("3/3/3"),
        "{code} {text}"
    );
    let (code, text) = ask(c, &["services", "nobody"])?;
    ensure!(
        code == 1 && text.contains("there is no Service default/nobody"),
        "{code} {text}"
    );
    let (code, _) = ask(c, &["services", "--nonsense"])?;
    ensure!(code == 2, "wrong usage: {code}");

    // At the metrics address, `/api/v1` requires a Host header that names this node.
    let (code, text) = get(&c.node1, METRICS, "/api/v1/status")?;
    ensure!(code == 403 && text.contains("localhost"), "{code} {text}");
    rules_of_others_are_quoted_to_root_alone(c)?;

    c.stop()?;
    let (code, text) = ask(c, &["services"])?;
    ensure!(
        code == 3 && text.contains("10.96.0.10:80/TCP"),
        "{code} {text}"
    );
    let (code, text) = ask(c, &["status"])?;
    ensure!(code == 3 && text.contains("of mode ipvs"), "{code} {text}");
    Ok(())
}

/// kube-proxy quotes other programs' rules only to root. Only root may use the daemon's local
/// socket, but every local user may use the metrics address.
fn rules_of_others_are_quoted_to_root_alone(c: &Cluster) -> Outcome {
    let rule = "INPUT -p tcp --dport 80 -m comment --comment of-others -j DROP";
    let program = format!("iptables-{}", lab::iptables_backend());
    let iptables = |how: &str| {
        let words = rule.split(' ');
        c.node1.run([&*program, how].into_iter().chain(words))
    };
    let added = iptables("-I")?;
    ensure!(added.status.success(), "{added:?}");
    let whose = "not kube-proxy's: a rule in chain INPUT of table filter";
    let (_, root) = ask_json(c, &["explain", "default/web", "--from", "pod"])?;
    let root = root.to_string();
    ensure!(
        root.contains("of-others") && root.contains(whose) && !root.contains("not quoted"),
        "{root}"
    );
    let path = "http://localhost/api/v1/explain?to=default/web&from=pod";
    let (code, anyone) = get(&c.node1, METRICS, path)?;
    ensure!(
        code == 200 && anyone.contains(whose) && anyone.contains("named, not quoted"),
        "{code} {anyone}"
    );
    ensure!(
        !anyone.contains("of-others") && !anyone.contains("-j DROP"),
        "{anyone}"
    );
    iptables("-D")?;
    Ok(())
}

/// A load balancer probes a node port, with a Service's address as its source address. In IPVS
/// mode, the kernel drops these probes, because the source address is local to the node.
pub(crate) fn explain_follows_a_sender_with_a_service_address(c: &mut Cluster) -> Outcome {
    const BALANCER: &str = "198.51.100.134";
    let lb = |mode: &str| {
        let text = Service::new("lb", "10.96.0.16")
            .port(tcp(80, 8080).node_port(30160))
            .ingress(BALANCER)
            .endpoints("10.244.1.10")
            .to_string();
        text.replace(
            &format!("{{ip: \"{BALANCER}\"}}"),
            &format!("{{ip: \"{BALANCER}\", ipMode: {mode}}}"),
        )
    };
    let net = format!("{BALANCER}/32");
    c.outside.run(["ip", "addr", "add", &net, "dev", "lo"])?;
    c.node1
        .run(["ip", "route", "add", &net, "via", "172.35.0.9"])?;
    let probe = |c: &Cluster| {
        let to = at("172.35.0.100:30160");
        let dial = c.outside.dial(Transport::Tcp, to);
        dial.from_ip(BALANCER.parse().expect("an address"))
            .timeout(FIRST_TRY)
            .ask()
            .is_ok()
    };
    c.write("lb", &lb("VIP"))?;
    c.start(&[])?;
    c.until("the address is bound", || {
        Ok(c.addresses()?.iter().any(|held| held.contains(BALANCER)))
    })?;
    ensure!(!probe(c), "the kernel drops it");
    ensure!(
        c.outside.ask_tcp(at("172.35.0.100:30160"), SOON)?.who == "near",
        "others are served"
    );
    let question = ["explain", "172.35.0.100:30160", "--from", BALANCER];
    let (code, text) = ask(c, &question)?;
    ensure!(
        code == 1 && text.contains("martian") && text.contains("ipMode: Proxy"),
        "{code} {text}"
    );
    c.write("lb", &lb("Proxy"))?;
    c.until("the address is the balancer's alone", || Ok(probe(c)))?;
    let (code, text) = ask(c, &question)?;
    ensure!(
        code == 0 && text.contains("10.244.1.10:8080"),
        "{code} {text}"
    );
    c.stop()
}

/// A Service has another node's address as its external IP. The other node's own ports become
/// unreachable at this address, and `explain` must give the reason.
pub(crate) fn explain_names_an_address_taken_from_another_node(c: &mut Cluster) -> Outcome {
    let nginx = Service::new("nginx", "10.96.0.18")
        .port(tcp(8088, 8080))
        .external("172.35.0.101")
        .endpoints("10.244.1.10");
    c.apply(&nginx)?;
    c.start(&[])?;
    c.until_served(&nginx)?;
    let told = "172.35.0.101 (spec.externalIPs) is served for Service default/nginx: it is in 172.35.0.0/24";
    c.until("it is named", || Ok(c.said().contains(told)))?;
    let (code, text) = ask(c, &["explain", "172.35.0.101:10250", "--from", "node"])?;
    ensure!(
        code == 1
            && text
                .contains("172.35.0.101 is an address of Service default/nginx (spec.externalIPs)"),
        "{code} {text}"
    );
    c.stop()
}
