//! Compares the dashboard and the alert rules with the daemon's metrics and the runbooks.
//! `integration/test lint` evaluates the rules with `promtool`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::tests;

/// Files that list the daemon's metrics. The daemon's own tests compare these lists with the real
/// metrics.
const LISTS: [&str; 4] = [
    include_str!("../../../crates/kube-proxy/src/metrics/kubernetes-1.36.txt"),
    include_str!("../../../crates/kube-proxy/src/metrics/kubernetes-1.36-ipvs.txt"),
    include_str!("../../../crates/kube-proxy/src/metrics/ours.txt"),
    include_str!("../../../crates/kube-proxy/src/metrics/ours-services.txt"),
];

/// Placeholder in the rules for the base URL of the runbooks.
const RUNBOOKS: &str = "https://runbooks.example.com";
/// Path of the runbook page, which has a heading for each alert.
const PAGE: &str = "/docs/troubleshooting.md";

/// Prefixes of the names of the daemon's metrics.
const PREFIXES: [&str; 4] = ["kubeproxy_", "rest_client_", "process_", "kubernetes_"];

fn text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/monitoring");
    fs::read_to_string(folder.join(name)).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&text("dashboard.json")).unwrap()
}

fn rules() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(&text("rules.yaml")).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap().clone());
    rules.collect()
}

/// Returns the name, type and labels of every listed metric.
fn known() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let lines = LISTS.iter().flat_map(|list| list.lines());
    let heads = lines.filter(|line| PREFIXES.iter().any(|prefix| line.starts_with(prefix)));
    let known = heads.map(|line| {
        let mut words = line.split(' ');
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        (
            name,
            kind,
            words.next().unwrap_or_default().split(',').collect(),
        )
    });
    known.collect()
}

fn is_known(word: &str) -> bool {
    known().iter().any(|(name, kind, _)| {
        let rest = word.strip_prefix(name);
        match *kind {
            "histogram" => matches!(rest, Some("_bucket" | "_sum" | "_count")),
            _ => rest == Some(""),
        }
    })
}

/// Returns the names of the daemon's metrics in a PromQL expression.
fn metrics(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)))
        .collect()
}

/// Returns the PromQL queries of a dashboard's panels and variables.
fn expressions(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let own = ["expr", "definition"].into_iter();
            let own = own.filter_map(|name| Some(fields.get(name)?.as_str()?.to_owned()));
            own.chain(fields.values().flat_map(expressions)).collect()
        }
        Value::Array(values) => values.iter().flat_map(expressions).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn each_metric_in_rules_and_dashboard_is_a_metric_of_the_daemon() {
    let rules = rules();
    let of_rules = rules
        .iter()
        .map(|rule| rule["expr"].as_str().unwrap().to_owned());
    let all: Vec<String> = of_rules.chain(expressions(&dashboard())).collect();
    assert!(all.len() > 30, "{all:?}");
    for expression in &all {
        for metric in metrics(expression) {
            assert!(is_known(metric), "{metric} in {expression}");
        }
        assert!(
            !metrics(expression).is_empty() || expression.contains("up{"),
            "{expression}"
        );
    }
    assert!(
        !is_known("kubeproxy_kernel_writes")
            && !is_known("kubeproxy_service_programming_duration_seconds")
    );
}

#[test]
fn the_dashboard_shows_each_metric_of_this_project() {
    let shown = expressions(&dashboard()).join(" ");
    let ours = LISTS[2].lines().filter(|line| !line.starts_with(' '));
    for line in ours {
        let name = line.split(' ').next().unwrap();
        assert!(shown.contains(name), "{name}");
    }
}

#[test]
fn dashboard_panels_have_unique_ids_and_positions() {
    let dashboard = dashboard();
    let outer = dashboard["panels"].as_array().unwrap().iter();
    // Panels of a collapsed row are nested in the row.
    let panels: Vec<&Value> = outer
        .flat_map(|one| std::iter::once(one).chain(one["panels"].as_array().into_iter().flatten()))
        .collect();
    let mut ids: Vec<u64> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    let mut cells = BTreeSet::new();
    for panel in &panels {
        let at = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{}", panel["title"]);
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(
                    cells.insert((x, y)),
                    "{} covers another one",
                    panel["title"]
                );
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().unwrap();
        let letters: BTreeSet<_> = targets
            .iter()
            .map(|of| of["refId"].as_str().unwrap())
            .collect();
        assert_eq!(letters.len(), targets.len(), "{}", panel["title"]);
    }
}

/// Returns the anchors of the troubleshooting page, derived from its headings as Markdown renderers
/// do.
fn anchors() -> BTreeSet<String> {
    let page = include_str!("../../../docs/troubleshooting.md");
    let headings = page.lines().filter(|line| line.starts_with("##"));
    let anchor = |heading: &str| -> String {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().map(|c| if c == ' ' { '-' } else { c });
        kept.filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_'))
            .collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn each_alert_has_a_summary_a_runbook_and_a_test() {
    let tests = text("rules.test.yaml");
    let rules = rules();
    let names: BTreeSet<&str> = rules
        .iter()
        .map(|rule| rule["alert"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), rules.len(), "two have one name");
    for rule in &rules {
        let name = rule["alert"].as_str().unwrap();
        for part in ["summary", "description"] {
            assert!(rule["annotations"][part].as_str().is_some(), "{name}");
        }
        // kubernetes-mixin, which most clusters have, already has an alert with the name
        // KubeProxyDown.
        assert_ne!(name, "KubeProxyDown");
        let runbook = rule["annotations"]["runbook_url"].as_str().unwrap();
        let anchor = runbook.strip_prefix(&format!("{RUNBOOKS}{PAGE}#"));
        assert_eq!(anchor, Some(&*name.to_lowercase()), "{runbook}");
        assert!(anchors().contains(&name.to_lowercase()), "{runbook}");
        assert!(rule["labels"]["severity"].as_str().is_some(), "{name}");
        assert!(
            tests.contains(&format!("alertname: {name}\n")),
            "{name} has no test that it fires"
        );
    }
}

/// Checks that each panel about an alert links to the alert's runbook.
#[test]
fn dashboard_panels_link_to_runbooks() {
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let runbooks = variables.iter().find(|one| one["name"] == "runbooks");
    assert_eq!(runbooks.unwrap()["query"], RUNBOOKS);
    let links = links(&dashboard);
    let missing = rules().into_iter().filter(|rule| {
        let anchor = rule["alert"].as_str().unwrap().to_lowercase();
        let wanted = format!("${{runbooks}}{PAGE}#{anchor}");
        !links.contains(&wanted)
    });
    let missing: Vec<_> = missing.map(|rule| rule["alert"].to_string()).collect();
    // Two alerts are about scraping. The panel "Nodes that cannot be scraped" shows both, but links
    // to only one of them.
    assert_eq!(missing, ["\"KubeProxyAbsent\""]);
    let anchors = anchors();
    for link in links {
        let (_, anchor) = link.split_once('#').unwrap();
        assert!(anchors.contains(anchor), "{link}");
    }
}

/// Returns the link targets of all panels.
fn links(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let own = fields.get("url").and_then(Value::as_str).map(str::to_owned);
            own.into_iter()
                .chain(fields.values().flat_map(links))
                .collect()
        }
        Value::Array(values) => values.iter().flat_map(links).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_prometheus_operator_objects_match_the_rules() {
    let [rule, monitor, rules] = ["prometheusrule.yaml", "podmonitor.yaml", "rules.yaml"]
        .map(|name| serde_saphyr::from_str::<Value>(&text(name)).unwrap());
    assert_eq!(rule["kind"], "PrometheusRule");
    assert_eq!(rule["spec"], rules, "run integration/prometheusrule");
    assert_eq!(monitor["kind"], "PodMonitor");
    let expressions = monitor["spec"]["selector"]["matchExpressions"].as_array();
    let [expression] = expressions.unwrap().as_slice() else {
        panic!("{expressions:?}")
    };
    assert_eq!(expression["operator"], "In");
    let label = expression["key"].as_str().unwrap();
    let selected = expression["values"].as_array().unwrap();
    for daemon_set in [tests::daemon_set("daemonset"), tests::kubeadms_daemon_set()] {
        let pod = &daemon_set["spec"]["template"]["metadata"]["labels"];
        assert!(selected.contains(&pod[label]), "{pod}");
    }
    // The alert rules contain the scrape job's name, so the PodMonitor must set the same name.
    let relabelings = monitor.pointer("/spec/podMetricsEndpoints/0/relabelings");
    let mut relabelings = relabelings.unwrap().as_array().unwrap().iter();
    let job = relabelings.find(|one| one["targetLabel"] == "job").unwrap();
    assert_eq!(job["replacement"], "kube-proxy");
}
