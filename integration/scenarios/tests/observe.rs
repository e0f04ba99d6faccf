//! Tests kube-proxy's HTTP endpoints for probes, load balancers, monitoring and operators.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::Transport;
use scenarios::{
    ApiServer, Cluster, HEALTH, METRICS, Outcome, Service, ask, at, get, health, metric, stories,
    tally, tcp, tell, with_backend,
};

fn main() {
    let stories = stories! {
        each_http_page_is_served_at_upstreams_path,
        the_daemon_is_ready_after_its_first_complete_sync,
        load_balancers_skip_a_node_being_deleted,
        a_node_with_an_ipset_of_the_wrong_type_is_unhealthy,
        changed_pod_cidrs_of_the_node_are_used,
        a_health_server_port_in_use_is_reported_and_retried,
        an_emptied_api_server_is_logged_and_counted,
        idle_connections_of_a_pod_do_not_block_probes,
        per_service_metrics_are_exported_only_with_their_flag,
        nftables_mode_reports_tracked_flows if lab::iptables_backend() == "nft",
        only_syncs_with_changes_are_logged,
    };
    tell(&stories, Duration::from_mins(3))
}

fn web() -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10 fd44:1::10")
}

fn each_http_page_is_served_at_upstreams_path(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    c.start(&[])?;
    for (server, path, part) in [
        (HEALTH, "/healthz", "\"nodeEligible\":true,\"healthy\":true"),
        (HEALTH, "/livez", "\"healthy\":true,\"status\":{\"IPv4\":{"),
        (HEALTH, "/readyz", "{\"ready\":true}"),
        (METRICS, "/healthz", "ok"),
        (METRICS, "/proxyMode", "ipvs"),
        (METRICS, "/configz", "{\"kubeproxy.config.k8s.io\":{"),
        (METRICS, "/flagz", "\nproxy-mode=ipvs\n"),
        (METRICS, "/statusz", "\nBinary version: 1.37."),
        (
            METRICS,
            "/metrics",
            "# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram\n",
        ),
    ] {
        let (code, body) = get(&c.node1, server, path)?;
        ensure!(
            code == 200 && body.contains(part),
            "{server}{path}: {code} {body}"
        );
    }
    for family in ["IPv4", "IPv6"] {
        let syncs =
            format!("kubeproxy_sync_proxy_rules_duration_seconds_count{{ip_family=\"{family}\"}}");
        ensure!(
            metric(c, &syncs)?.is_some_and(|count| count >= 1.0),
            "{syncs}"
        );
    }
    ensure!(metric(c, "kubeproxy_proxy_healthz_total{code=\"200\"}")? == Some(1.0));
    // Load balancers send health checks from outside the node, in either family. By default, the
    // monitoring endpoints respond only to clients on the node.
    for node in ["172.35.0.100", "[fd35::100]"] {
        let (code, _) = get(&c.outside, &format!("{node}:10256"), "/healthz")?;
        ensure!(code == 200, "{node}: {code}");
        ensure!(get(&c.outside, &format!("{node}:10249"), "/metrics").is_err());
    }
    c.stop()
}

fn the_daemon_is_ready_after_its_first_complete_sync(c: &mut Cluster) -> Outcome {
    let mut api = c.api_server(true)?;
    api.apply(&web())?;
    c.launch_on(&api, &[])?;
    c.until("the health server", || {
        Ok(get(&c.node1, HEALTH, "/livez").is_ok())
    })?;
    let (code, body) = get(&c.node1, HEALTH, "/readyz")?;
    ensure!(
        code == 503 && body.contains("lists of Services"),
        "{code} {body}"
    );
    ensure!(health(c, "/healthz")? == 200, "while starting up");
    let (code, text) = ask(c, &["status"])?;
    for part in [
        "awaited: the first lists of Services and EndpointSlices, and the own Node, for ",
        "API server http://172.35.0.9:6443 cannot be reached: ",
        "nothing is programmed before",
    ] {
        ensure!(code == 1 && text.contains(part), "{part}: {code} {text}");
    }
    let (code, text) = ask(c, &["services"])?;
    ensure!(
        code == 2 && text.contains("the daemon is starting, and awaits the first lists"),
        "{code} {text}"
    );
    api.start()?;
    c.until("readiness", || Ok(health(c, "/readyz")? == 200))?;
    ensure!(
        c.reals("TCP 10.96.0.10:80")? == "10.244.1.10:8080*1",
        "{}",
        c.reals("TCP 10.96.0.10:80")?
    );
    ensure!(c.servers()?.contains_key("TCP [fd96::10]:80"));
    let lists = "rest_client_requests_total{code=\"200\",host=\"172.35.0.9:6443\",method=\"GET\"}";
    ensure!(
        metric(c, lists)?.is_some_and(|count| count >= 3.0),
        "{lists}"
    );
    api.stop();
    let failures =
        "rest_client_requests_total{code=\"<error>\",host=\"172.35.0.9:6443\",method=\"GET\"}";
    c.until(
        "failures are counted",
        || Ok(metric(c, failures)?.is_some()),
    )?;
    ensure!(health(c, "/readyz")? == 200, "what is served stays");
    let (code, text) = ask(c, &["status"])?;
    ensure!(
        code == 0 && text.contains("the last known state is served") && !text.contains("awaited"),
        "{code} {text}"
    );
    c.stop()
}

/// Creates or replaces the Node object node1 with this `spec`.
fn apply_node(api: &ApiServer, spec: &str) -> Result<()> {
    api.apply(&format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: node1}}, spec: {spec}, \
         status: {{addresses: [{{type: InternalIP, address: 172.35.0.100}}]}}}}"
    ))
}

fn load_balancers_skip_a_node_being_deleted(c: &mut Cluster) -> Outcome {
    let mut api = c.api_server(true)?;
    api.apply(&web())?;
    api.start()?;
    c.launch_on(&api, &[])?;
    c.await_first_sync()?;
    ensure!(health(c, "/healthz")? == 200);
    apply_node(
        &api,
        "{taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}",
    )?;
    c.until("the taint counts", || Ok(health(c, "/healthz")? == 503))?;
    let (_, body) = get(&c.node1, HEALTH, "/healthz")?;
    ensure!(
        body.contains("\"nodeEligible\":false,\"healthy\":true"),
        "{body}"
    );
    ensure!(health(c, "/livez")? == 200, "it is not to be restarted");
    apply_node(&api, "{}")?;
    c.until("the taint is gone", || Ok(health(c, "/healthz")? == 200))?;

    // The daemon measures the programming latency only of changes after its start. The latency ends
    // when the kernel has the change.
    let measured = "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}";
    ensure!(
        metric(c, measured)? == Some(0.0),
        "nothing has changed since the start"
    );
    let now = c.sh("date -u +%Y-%m-%dT%H:%M:%S.%NZ")?;
    api.apply(&format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
         metadata: {{name: web-more, namespace: default, labels: {{kubernetes.io/service-name: \
         web}}, \
         annotations: {{endpoints.kubernetes.io/last-change-trigger-time: '{}'}}}}, \
         ports: [{{name: '', protocol: TCP, port: 8080}}], \
         endpoints: [{{addresses: [10.244.2.10], conditions: {{ready: true}}}}]}}",
        now.trim()
    ))?;
    c.until("the change is measured", || {
        Ok(metric(c, measured)? == Some(1.0))
    })?;
    ensure!(c.reals("TCP 10.96.0.10:80")?.contains("10.244.2.10:8080"));
    c.stop()
}

fn a_node_with_an_ipset_of_the_wrong_type_is_unhealthy(c: &mut Cluster) -> Outcome {
    const SET: &str = "KUBE-NODE-PORT-SCTP-HASH";
    c.apply(&web())?;
    c.start(&["--ipvs-sync-period=2s"])?;
    ensure!(health(c, "/healthz")? == 200);
    c.sh(&format!("ipset destroy {SET}; ipset create {SET} hash:ip"))?;
    c.until("two sync periods are over", || {
        Ok(health(c, "/healthz")? == 503)
    })?;
    ensure!(health(c, "/livez")? == 503);
    let (_, body) = get(&c.node1, HEALTH, "/healthz")?;
    ensure!(
        body.contains("\"nodeEligible\":true,\"healthy\":false"),
        "{body}"
    );
    c.until_answered(&c.client, "10.96.0.10:80")?;
    c.sh(&format!("ipset destroy {SET}"))?;
    c.until("the set is there", || Ok(health(c, "/healthz")? == 200))?;
    c.stop()
}

fn changed_pod_cidrs_of_the_node_are_used(c: &mut Cluster) -> Outcome {
    let mut api = c.api_server(true)?;
    api.apply(&web())?;
    apply_node(&api, "{}")?;
    api.start()?;
    c.launch_on(&api, &["--detect-local-mode=NodeCIDR"])?;
    c.await_first_sync()?;
    let rules = |part: &str| {
        let save = c.sh(&with_backend("iptables-$backend-save -t nat"))?;
        anyhow::Ok(save.contains(part))
    };
    ensure!(!rules("! -s 10.244")?, "the Node has no pod network yet");
    let mut kept = c.client.open_tcp(at("10.96.0.10:80"), scenarios::SOON)?;
    kept.ask()?;
    for network in ["10.244.1.0/24", "10.244.9.0/24"] {
        apply_node(
            &api,
            &format!("{{podCIDR: {network}, podCIDRs: [{network}]}}"),
        )?;
        c.until(network, || rules(&format!("! -s {network}")))?;
        kept.ask()?;
    }
    api.delete_node("node1")?;
    c.until("the Node is gone", || Ok(health(c, "/healthz")? == 503))?;
    ensure!(rules("! -s 10.244.9.0/24")?, "what was known stays");
    apply_node(&api, "{}")?;
    c.until("the Node is back", || Ok(health(c, "/healthz")? == 200))?;
    c.stop()
}

fn a_health_server_port_in_use_is_reported_and_retried(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    let taken = c.node1.serve_tcp(10256)?;
    c.start(&[])?;
    let said = c.said();
    for part in ["cannot listen on 0.0.0.0:10256", "--healthz-bind-address"] {
        ensure!(said.contains(part), "{part}: {said}");
    }
    taken.stop();
    c.until("the health server", || {
        Ok(health(c, "/readyz").ok() == Some(200))
    })?;
    c.await_line("the proxy's health is served now")?;
    c.stop()?;
    let taken = c.node1.serve_tcp(10249)?;
    c.launch(&["--bind-address-hard-fail"])?;
    let refusal = c.refusal()?;
    ensure!(
        refusal.contains("cannot listen on 127.0.0.1:10249"),
        "{refusal}"
    );
    taken.stop();
    Ok(())
}

fn an_emptied_api_server_is_logged_and_counted(c: &mut Cluster) -> Outcome {
    let mut api = c.api_server(true)?;
    for number in 1..=20 {
        let addresses = format!("10.96.0.{number} fd96::{number}");
        let service = Service::new(&format!("web{number}"), &addresses);
        api.apply(
            &service
                .port(tcp(80, 8080))
                .endpoints("10.244.1.10 fd44:1::10"),
        )?;
    }
    api.start()?;
    c.launch_on(&api, &[])?;
    c.await_first_sync()?;
    let lost = |kind| format!("kubeproxy_list_vanished_objects_total{{kind=\"{kind}\"}}");
    ensure!(metric(c, &lost("Service"))? == Some(0.0));
    api.stop();
    c.await_line("cannot be reached")?;
    api.lose_all()?;
    let back = Instant::now();
    api.start()?;
    let told = |count: usize, kind: &str| {
        let part = format!("no longer names {count} of {count} {kind}: default/web1");
        let said = c.said();
        let mut lines = said.lines().map(str::to_owned);
        lines.find(|line| line.starts_with('W') && line.contains(&part) && line.contains("etcd"))
    };
    c.until("it is told", || {
        Ok(told(20, "Services").is_some() && told(40, "EndpointSlices").is_some())
    })?;
    println!(
        "    told after {:.1?}: {}",
        back.elapsed(),
        told(20, "Services").unwrap_or_default()
    );
    c.until_gone("TCP 10.96.0.1:80")?;
    for (kind, count) in [("Service", 20.0), ("EndpointSlice", 40.0), ("Node", 0.0)] {
        let counted = metric(c, &lost(kind))?;
        ensure!(counted == Some(count), "{kind}: {counted:?}");
    }
    c.stop()
}

fn idle_connections_of_a_pod_do_not_block_probes(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    c.start(&[])?;
    let health = at("172.35.0.100:10256");
    let open = || {
        c.client
            .enter(|| TcpStream::connect_timeout(&health, Duration::from_secs(5)))
    };
    let mut idle = Vec::new();
    for _ in 0..400 {
        idle.push(open()?);
    }
    for path in ["/livez", "/healthz", "/readyz"].repeat(3) {
        for server in [HEALTH, "[::1]:10256", "172.35.0.100:10256"] {
            let began = Instant::now();
            let (code, _) = get(&c.node1, server, path)?;
            let took = began.elapsed();
            ensure!(
                code == 200 && took < Duration::from_secs(1),
                "{server}{path}: {code} after {took:?}"
            );
        }
    }
    let line = c.await_line("connections to the proxy's health")?;
    println!("    {line}");
    c.stop()
}

fn per_service_metrics_are_exported_only_with_their_flag(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    let labels = "namespace=\"default\",service=\"web\",port_name=\"\",protocol=\"TCP\"";
    let port = |name: &str| format!("kubeproxy_service_{name}{{{labels}}}");
    let endpoint = format!(
        "kubeproxy_service_endpoint_connections_total{{{labels},endpoint=\"10.244.1.10:8080\"}}"
    );
    for mode in ["ipvs", "iptables"] {
        let mode = format!("--proxy-mode={mode}");
        c.start(&[&mode])?;
        let (_, text) = get(&c.node1, METRICS, "/metrics")?;
        ensure!(!text.contains("service=\"web\""), "nobody has asked");
        c.stop()?;
        c.start(&[&mode, "--metrics-per-service=endpoints"])?;
        let before = metric(c, &port("connections_total"))?.unwrap_or_default();
        tally(&c.client, Transport::Tcp, at("10.96.0.10:80"), 20)?;
        // Waits, because IPVS updates its counters only every two seconds.
        for series in [port("connections_total"), endpoint.clone()] {
            c.until("20 connections", || {
                Ok(metric(c, &series)?.is_some_and(|count| count >= before + 20.0))
            })?;
        }
        if mode.ends_with("=ipvs") {
            for (name, direction) in [("bytes_total", "in"), ("packets_total", "out")] {
                let series =
                    format!("kubeproxy_service_{name}{{{labels},direction=\"{direction}\"}}");
                ensure!(
                    metric(c, &series)?.is_some_and(|count| count >= 20.0),
                    "{series}"
                );
            }
            ensure!(metric(c, &port("active_connections"))?.is_some());
        }
        let written =
            "kubeproxy_kernel_writes_total{ip_family=\"IPv4\",subsystem=\"rules\",result=\"done\"}";
        ensure!(metric(c, written)?.is_some(), "{written}");
        ensure!(metric(c, "kubeproxy_service_counters_readable")? == Some(1.0));
        c.stop()?;
    }
    Ok(())
}

/// nftables mode has no packet counters. The daemon reports the number of tracked flows, and omits
/// numbers of packets instead of reporting 0.
fn nftables_mode_reports_tracked_flows(c: &mut Cluster) -> Outcome {
    let node = "{apiVersion: v1, kind: Node, metadata: {name: node1}, \
                status: {addresses: [{type: InternalIP, address: 172.35.0.100}]}}";
    c.write("node", node)?;
    c.apply(&web())?;
    c.sh("ip route replace default via 172.35.0.9")?;
    for accounting in ["0", "1"] {
        c.sh(&format!(
            "sysctl -qw net.netfilter.nf_conntrack_acct={accounting}"
        ))?;
        c.start(&["--proxy-mode=nftables", "--metrics-per-service=endpoints"])?;
        let mut kept = c.client.open_tcp(at("10.96.0.10:80"), scenarios::SOON)?;
        kept.ask()?;
        let (code, text) = ask(c, &["services", "default/web"])?;
        ensure!(code == 0, "{code} {text}");
        for (name, column) in [("10.96.0.10:80", 4), ("10.244.1.10:8080", 8)] {
            let row = text
                .lines()
                .find(|line| line.contains(name))
                .unwrap_or_default();
            // At least three blanks separate the columns of the table.
            let cells: Vec<&str> = row
                .split("   ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect();
            let counted = cells
                .get(column - 1)
                .and_then(|cell| cell.parse::<u64>().ok());
            ensure!(
                counted.is_some_and(|count| count >= 1),
                "{name} {cells:?}: {text}"
            );
        }
        let row = text.lines().find(|line| line.contains("10.96.0.10:80"));
        let row: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
        ensure!(row.ends_with(&["-", "-"]), "packets and bytes: {text}");
        ensure!(
            text.contains("rules of nftables mode count nothing"),
            "{text}"
        );
        let (_, text) = get(&c.node1, METRICS, "/metrics")?;
        let samples = text
            .lines()
            .filter(|line| line.starts_with("kubeproxy_service_"));
        let zeros: Vec<&str> = samples
            .filter(|line| line.contains("_packets") || line.contains("_bytes"))
            .collect();
        ensure!(zeros.is_empty(), "nobody has counted these: {zeros:?}");
        drop(kept);
        c.stop()?;
    }
    Ok(())
}

fn only_syncs_with_changes_are_logged(c: &mut Cluster) -> Outcome {
    c.apply(&web())?;
    c.start(&["--ipvs-sync-period=1s", "--ipvs-min-sync-period=0s"])?;
    let lines = |c: &Cluster| c.said().matches("\"synced\"").count();
    std::thread::sleep(Duration::from_secs(3));
    ensure!(lines(c) == 0, "nothing has changed: {}", c.said());
    let db = Service::new("db", "10.96.0.11 fd96::11").port(tcp(5432, 5432));
    c.apply(&db.endpoints("10.244.1.10 fd44:1::10"))?;
    let line = c.await_line("\"synced\" family=\"IPv")?;
    println!("    {line}");
    for part in [
        "service=\"default/db\"",
        "1 virtual server",
        "1 destination",
        "took=",
    ] {
        ensure!(line.contains(part), "{part}: {line}");
    }
    c.await_line("\"synced\" family=\"IPv")?;
    std::thread::sleep(Duration::from_secs(2));
    let before = lines(c);
    ensure!(before <= 6, "{before}: {}", c.said());
    std::thread::sleep(Duration::from_secs(3));
    ensure!(lines(c) == before, "nothing has changed: {}", c.said());
    let heard = "kubeproxy_service_programming_duration_seconds_count{ip_family=\"IPv4\"}";
    ensure!(
        metric(c, heard)?.is_some_and(|count| count >= 1.0),
        "{heard}"
    );
    c.stop()?;
    c.start(&["--logging-format=json"])?;
    let cache = Service::new("cache", "10.96.0.12 fd96::12").port(tcp(6379, 6379));
    c.apply(&cache.endpoints("10.244.1.10 fd44:1::10"))?;
    let line = c.await_line("\"synced\"")?;
    println!("    {line}");
    for part in [
        "\"service\":\"default/cache\"",
        "\"written\":\"1 virtual server",
        "\"took\":",
    ] {
        ensure!(line.contains(part), "{part}: {line}");
    }
    c.stop()
}
