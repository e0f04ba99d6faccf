//! Tests the dashboard and the alert rules with a real Prometheus that scrapes a daemon in the lab.
//! Every panel must have data. Each fault must raise its own alert and no other alert.
//!
//! If `BROWSER_SHOTS=FOLDER` is set, draws the dashboard there, as `dashboard.html` and
//! `dashboard.png`.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use browser::Browser;
use dashboard::{Dashboard, Prometheus, Range, picture, shorten_durations};
use lab::Transport;
use scenarios::{
    ApiServer, Cluster, Faults, METRICS, Outcome, SOON, Service, Story, at, health, tally, tcp,
    tell, udp,
};

const FILE: &str = include_str!("../../../manifests/monitoring/dashboard.json");
const RULES: &str = include_str!("../../../manifests/monitoring/rules.yaml");

/// Name of the scrape job, which the alert rules also contain.
const JOB: &str = "kube-proxy";
/// Regular expression that Grafana inserts for `$instance` if all nodes are selected.
const ALL: &str = ".*";

/// Parts of the queries that return no data on a healthy node. Each such panel also has a query
/// with data.
const EMPTY_IF_HEALTHY: [&str; 2] = [
    // The query per subsystem returns no data. The panel's query for the sum returns data.
    "result!=\"done\"}[$__rate_interval])) > 0",
    "drifted_entries_total{job=\"$job\",instance=~\"$instance\"}[$__rate_interval])) > 0",
];

/// Alerts that the faults of this test raise.
const FAULTS: [&str; 2] = ["KubeProxyWritesRefused", "KubeProxyApiServerUnreachable"];

fn main() {
    let stories = [Story {
        name: "each_panel_has_data_and_each_fault_raises_its_alert",
        tell: read_by_prometheus,
        is_possible: || true,
    }];
    tell(&stories, Duration::from_mins(4))
}

fn read_by_prometheus(c: &mut Cluster) -> Outcome {
    let dashboard = Dashboard::read(FILE)?;
    let mut api = c.api_server(true)?;
    let faults = Faults::prepare(c)?;
    for service in [web("10.244.1.10 10.244.2.10"), dns(), local()] {
        api.apply(&service)?;
    }
    api.start()?;
    c.launch_on(
        &api,
        &["--metrics-per-service=endpoints", "--ipvs-sync-period=2s"],
    )?;
    c.await_first_sync()?;
    let prometheus = Prometheus::start(&c.node1, c.folder(), METRICS, &shorten_durations(RULES))?;
    c.until("the first scrape", || {
        Ok(!prometheus.instant("up == 1", now()?)?.is_empty())
    })?;

    let began = now()?;
    make_traffic(c, &api)?;
    variables_have_values(&prometheus, &dashboard)?;
    let panels = Panels::read(&prometheus, &dashboard, began)?;
    panels.have_data(&EMPTY_IF_HEALTHY)?;
    panels.are_green()?;
    expect(&prometheus, &[])?;

    // Causes the test's faults: drift, a rejected write, and an unreachable API server.
    c.sh("ipvsadm -D -t 10.96.0.10:80")?;
    let refusing = faults.fail("iptables restore")?;
    api.apply(&with_source_ranges())?;
    until(c, &prometheus, &FAULTS[..1], "pending")?;
    api.stop();
    c.patience = Duration::from_secs(40);
    until(c, &prometheus, &FAULTS, "firing")?;
    expect(&prometheus, &FAULTS)?;
    let panels = Panels::read(&prometheus, &dashboard, began)?;
    panels.have_data(&[])?;
    panels.are_red(&["Entries the kernel refuses", "Nodes without API server"])?;
    draw(c, &panels)?;

    drop(refusing);
    api.start()?;
    until(c, &prometheus, &FAULTS, "inactive")?;
    c.stop()?;
    until(
        c,
        &prometheus,
        &["KubeProxyInstanceDown", "KubeProxyAbsent"],
        "firing",
    )
}

/// Waits until each alert in `alerts` has the state `state`.
fn until(c: &Cluster, prometheus: &Prometheus, alerts: &[&str], state: &str) -> Result<()> {
    for alert in alerts {
        c.until(&format!("{alert} is {state}"), || {
            Ok(prometheus.state(alert)? == state)
        })?;
    }
    Ok(())
}

// ---- objects and traffic ----

fn web(endpoints: &str) -> Service {
    Service::new("web", "10.96.0.10 fd96::10")
        .port(tcp(80, 8080).named("http"))
        .endpoints(endpoints)
}

fn dns() -> Service {
    Service::new("dns", "10.96.0.53")
        .port(udp(53, 8080).named("dns"))
        .endpoints("10.244.1.10 10.244.2.10")
}

/// Returns a Service without an endpoint on node1.
fn local() -> Service {
    Service::new("local", "10.96.0.20")
        .port(tcp(80, 8080).node_port(30080))
        .endpoints("10.244.2.10")
        .spec("externalTrafficPolicy: Local")
}

/// Returns a Service with source ranges. The test makes the write of its iptables rules fail.
fn with_source_ranges() -> Service {
    Service::new("ranged", "10.96.0.30")
        .port(tcp(80, 8080))
        .endpoints("10.244.1.10")
        .ingress("192.0.2.30")
        .spec("loadBalancerSourceRanges: [172.35.0.0/24]")
}

/// Sends traffic and probes, drains an endpoint, and adds and removes another endpoint.
fn make_traffic(c: &Cluster, api: &ApiServer) -> Result<()> {
    let mut kept = Vec::new();
    for round in 0..10 {
        tally(
            &c.client,
            Transport::Tcp,
            at("10.96.0.10:80"),
            4 + round % 3 * 3,
        )?;
        tally(&c.client, Transport::Udp, at("10.96.0.53:53"), 3)?;
        ensure!(health(c, "/healthz")? == 200 && health(c, "/livez")? == 200);
        match round {
            2 => {
                for _ in 0..4 {
                    let mut open = c.client.open_tcp(at("10.96.0.10:80"), SOON)?;
                    open.ask()?;
                    kept.push(open);
                }
            }
            // Round 4 removes an endpoint that has open connections, so that it drains. Round 6
            // adds an endpoint whose EndpointSlice has a trigger time.
            4 => api.apply(&web("10.244.1.10 fd44:1::10"))?,
            6 => add_and_remove_endpoint(c, api)?,
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(700));
    }
    for open in &mut kept {
        open.ask()?;
    }
    Ok(())
}

/// Adds an EndpointSlice with the annotation `last-change-trigger-time`, waits until the daemon has
/// programmed the EndpointSlice, and deletes it.
fn add_and_remove_endpoint(c: &Cluster, api: &ApiServer) -> Result<()> {
    let now = c.sh("date -u +%Y-%m-%dT%H:%M:%S.%NZ")?;
    api.apply(&format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
         metadata: {{name: dns-more, namespace: default, labels: {{kubernetes.io/service-name: dns}}, \
         annotations: {{endpoints.kubernetes.io/last-change-trigger-time: '{}'}}}}, \
         ports: [{{name: dns, protocol: UDP, port: 8080}}], \
         endpoints: [{{addresses: [10.244.1.99], conditions: {{ready: false, serving: true, terminating: true}}}}, \
         {{addresses: [10.244.2.99], conditions: {{ready: true}}}}]}}",
        now.trim()
    ))?;
    c.until("the endpoint is programmed", || {
        Ok(c.reals("UDP 10.96.0.53:53")?.contains("10.244.2.99"))
    })?;
    api.delete_slice("dns-more")
}

// ---- assertions ----

/// Checks that each variable of the dashboard has at least one value.
fn variables_have_values(prometheus: &Prometheus, dashboard: &Dashboard) -> Result<()> {
    let mut found = BTreeMap::new();
    for (name, selector, label) in dashboard.query_variables(JOB)? {
        found.insert(name, prometheus.values(&selector, label)?);
    }
    let wanted = [
        ("instance", vec![METRICS.to_owned()]),
        ("job", vec![JOB.to_owned()]),
    ];
    ensure!(found == BTreeMap::from(wanted), "{found:?}");
    Ok(())
}

/// Checks that Prometheus has loaded all alert rules, and that exactly the alerts `wanted` are
/// active.
fn expect(prometheus: &Prometheus, wanted: &[&str]) -> Result<()> {
    let alerts = prometheus.alerts()?;
    ensure!(
        alerts.len() == RULES.matches("- alert: ").count(),
        "{alerts:?}"
    );
    let active: Vec<_> = alerts
        .iter()
        .filter(|(_, state)| *state != "inactive")
        .collect();
    ensure!(
        active.len() == wanted.len()
            && active
                .iter()
                .all(|(name, _)| wanted.contains(&name.as_str())),
        "{active:?}"
    );
    Ok(())
}

/// The dashboard's panels, with the results of their queries in a time range.
struct Panels<'a> {
    dashboard: &'a Dashboard,
    range: Range,
    results: Vec<picture::PanelResult<'a>>,
}

impl<'a> Panels<'a> {
    fn read(prometheus: &Prometheus, dashboard: &'a Dashboard, from: f64) -> Result<Self> {
        let (to, step) = (now()?, 1);
        let range = Range { from, to, step };
        let mut results = Vec::new();
        for panel in dashboard.panels() {
            let mut found = Vec::new();
            for target in panel.targets() {
                // The cluster has one node. The queries for this node and for all nodes must return
                // equally many series.
                let [all, one] = [ALL, "127\\\\.0\\\\.0\\\\.1:10249"].map(|instance| {
                    let query = target.expand(JOB, instance, &range)?;
                    let answer = if target.is_instant() {
                        prometheus.instant(&query, range.to)
                    } else {
                        prometheus.range(&query, &range)
                    };
                    answer.with_context(|| format!("{}: {query}", panel.title()))
                });
                let all = all?;
                ensure!(all.len() == one?.len(), "{}", panel.title());
                found.push((target, all));
            }
            results.push((panel, found));
        }
        Ok(Self {
            dashboard,
            range,
            results,
        })
    }

    /// Checks the queries of all panels:
    ///
    /// - The query returns data. Only queries that contain a text from `but` may return no data.
    /// - The series have the labels of the legend.
    /// - The panel's unit is the unit of the metric.
    fn have_data(&self, but: &[&str]) -> Result<()> {
        for (panel, found) in &self.results {
            for (target, series) in found {
                let query = target.raw();
                let may_be_empty = but.iter().any(|part| query.contains(part));
                let has_values = series.iter().any(|one| !one.points.is_empty());
                ensure!(
                    has_values || may_be_empty,
                    "{} has no data: {query}",
                    panel.title()
                );
                for one in series {
                    let name = one.name_by(target.legend());
                    ensure!(
                        !name.contains("{{"),
                        "{}: {name} of {:?}",
                        panel.title(),
                        one.labels
                    );
                }
                let unit = unit_of(query);
                ensure!(
                    panel.kind() == "table" || unit == panel.unit(),
                    "{} is in {}, and {query} in {unit}",
                    panel.title(),
                    panel.unit()
                );
            }
            ensure!(
                panel.kind() == "row" || !found.is_empty(),
                "{}",
                panel.title()
            );
            ensure!(
                panel.kind() == "row" || panel.description().ends_with(['.', '?']),
                "{} has no description",
                panel.title()
            );
        }
        Ok(())
    }

    /// Returns each stat panel's title, and the colour that its thresholds give to its value.
    fn colours(&self) -> Vec<(&'a str, &'a str)> {
        let stats = self
            .results
            .iter()
            .filter(|(panel, _)| panel.kind() == "stat");
        stats
            .filter_map(|(panel, found)| {
                let value = found.first()?.1.first()?.last()?;
                Some((panel.title(), panel.colour(value)))
            })
            .collect()
    }

    fn are_green(&self) -> Result<()> {
        let colours = self.colours();
        let is_green = colours.iter().all(|(_, colour)| *colour == "green");
        ensure!(is_green && colours.len() == 6, "{colours:?}");
        Ok(())
    }

    fn are_red(&self, titles: &[&str]) -> Result<()> {
        let colours = self.colours();
        let red = colours.iter().filter(|(_, colour)| *colour == "red");
        let red: Vec<&str> = red.map(|(title, _)| *title).collect();
        ensure!(red == titles, "{colours:?}");
        Ok(())
    }
}

/// Returns the Grafana unit that a query's metric names and functions imply.
fn unit_of(query: &str) -> &'static str {
    let is_rate = query.contains("rate(") && !query.contains("histogram_quantile(");
    let counts_nodes = query.starts_with("count");
    if counts_nodes || query.contains("increase(") || query.contains("changes(") {
        return "short";
    }
    let names = [
        ("_cpu_seconds_total", true, "percentunit"),
        ("_duration_seconds_count", true, "ops"),
        ("_changes_total", true, "ops"),
        ("_kernel_writes_total", true, "wps"),
        ("rest_client_requests_total", true, "reqps"),
        ("_connections_total", true, "cps"),
        ("_packets_total", true, "pps"),
        ("_bytes_total", true, "Bps"),
        ("_bytes{", false, "bytes"),
        ("_seconds", false, "s"),
    ];
    let found = names
        .iter()
        .find(|(part, of_rate, _)| *of_rate == is_rate && query.contains(part));
    found.map_or("short", |(_, _, unit)| *unit)
}

// ---- picture ----

/// Draws the dashboard if the environment variable `BROWSER_SHOTS` names a directory.
fn draw(c: &Cluster, panels: &Panels<'_>) -> Result<()> {
    let Some(folder) = std::env::var_os("BROWSER_SHOTS") else {
        return Ok(());
    };
    let page = picture::page(panels.dashboard, &panels.range, &panels.results);
    let file = Path::new(&folder).join("dashboard.html");
    std::fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    let taken = c.node1.enter(|| {
        let take = || {
            let browser = Browser::start(&c.folder().join("profile"))?;
            browser.go(&format!("file://{}", file.display()))?;
            let height = browser.run("return document.documentElement.scrollHeight", &[])?;
            let height = height
                .as_u64()
                .and_then(|height| u32::try_from(height).ok());
            browser.size(picture::WIDTH, height.context("no height")?)?;
            browser.picture("dashboard")
        };
        take().map_err(|error| io::Error::other(format!("{error:?}")))
    });
    Ok(taken?)
}

fn now() -> Result<f64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(now.as_secs_f64())
}
