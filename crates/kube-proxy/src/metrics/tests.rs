use std::collections::{BTreeMap, BTreeSet};

use modes::settings::ProxyMode;
use proxy::{
    Endpoint, EndpointPort, EndpointSlice, Event, IptablesReport, Model, NamespacedName,
    NftablesReport, Placement, Protocol, Service, ServicePort,
};

use super::local_endpoints::NoLocalEndpoints;
use super::*;
use crate::config::command_line::{self, Command};

/// Metrics that both kube-proxy 1.36.2 in IPVS mode and this program have, with kinds, labels and
/// help. Sources of the text: Kubernetes' metrics reference, and client_golang's process collector.
const KUBERNETES: &str = include_str!("kubernetes-1.36.txt");
/// Metrics that kube-proxy 1.36 has only in IPVS mode.
const OF_IPVS: &str = include_str!("kubernetes-1.36-ipvs.txt");
/// Metrics that kube-proxy 1.36 has only in iptables mode. The metrics about nfacct exist only if
/// the kernel has nfacct.
const OF_IPTABLES: &str = include_str!("kubernetes-1.36-iptables.txt");
/// Metrics that kube-proxy has only in nftables mode.
const OF_NFTABLES: &str = concat!(
    include_str!("kubernetes-1.36-nftables.txt"),
    include_str!("kubernetes-1.37-nftables.txt")
);
/// Metrics that only this program has.
const OURS: &str = include_str!("ours.txt");
/// Metrics that only this program has, in nftables mode.
const OURS_IN_NFTABLES: &str = "kubeproxy_nftables_layout gauge ip_family,layout
  1 for the layout that the table of nftables mode has or gets, 0 for the other layout
";

/// A metric family, as a scraper parses it.
#[derive(Debug, Default)]
struct ScrapedFamily {
    kind: String,
    help: String,
    samples: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Sample {
    fn parse(line: &str) -> Self {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
            None => (series, ""),
        };
        let is_word = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_lowercase())
                && text
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        assert!(is_word(name), "{line}");
        let mut parsed = BTreeMap::new();
        for pair in labels.split_terminator(',') {
            let (label, text) = pair.split_once('=').unwrap();
            let text = text.strip_prefix('"').unwrap().strip_suffix('"').unwrap();
            assert!(is_word(label) && !text.contains(['"', '\\']), "{line}");
            assert_eq!(parsed.insert(label.into(), text.into()), None, "{line}");
        }
        Self {
            name: name.to_owned(),
            labels: parsed,
            value: value.parse().unwrap(),
        }
    }
}

/// Parses version 0.0.4 of the text format. Panics if the text might be rejected by some scraper.
fn scrape(text: &str) -> BTreeMap<String, ScrapedFamily> {
    let mut families = BTreeMap::<String, ScrapedFamily>::new();
    let mut current = String::new();
    let mut lines = text.lines().peekable();
    assert!(text.ends_with('\n') && !text.contains("\n\n"));
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(!help.is_empty() && !families.contains_key(name), "{line}");
            let typed = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
            let (of, kind) = typed.split_once(' ').unwrap();
            assert_eq!(of, name);
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{typed}");
            assert!(!lines.peek().unwrap().starts_with('#'), "{name} is empty");
            name.clone_into(&mut current);
            let family = families.entry(current.clone()).or_default();
            family.kind = kind.to_owned();
            family.help = help.to_owned();
            continue;
        }
        let sample = Sample::parse(line);
        let family = families.get_mut(&current).unwrap();
        let suffix = sample.name.strip_prefix(current.as_str()).unwrap();
        let suffixes: &[&str] = match family.kind.as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        assert!(suffixes.contains(&suffix), "{line} in {current}");
        assert!(
            family.kind != "counter" || current.ends_with("_total"),
            "{line}"
        );
        let is_new =
            |there: &Sample| (&there.name, &there.labels) != (&sample.name, &sample.labels);
        assert!(family.samples.iter().all(is_new), "{line} is there twice");
        family.samples.push(sample);
    }
    for (name, family) in families
        .iter()
        .filter(|(_, family)| family.kind == "histogram")
    {
        check_histogram(name, &family.samples);
    }
    families
}

/// Checks that bucket counts are cumulative, and that the last bucket counts all samples.
fn check_histogram(name: &str, samples: &[Sample]) {
    for count in samples
        .iter()
        .filter(|sample| sample.name.ends_with("_count"))
    {
        let buckets = buckets(samples, &count.labels);
        let is_sorted = buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
        assert!(is_sorted, "{name}: {buckets:?}");
        assert_eq!(
            buckets.last(),
            Some(&(f64::INFINITY, count.value)),
            "{name}"
        );
    }
}

/// Returns the buckets of one series as pairs: upper bound and count.
fn buckets(samples: &[Sample], labels: &BTreeMap<String, String>) -> Vec<(f64, f64)> {
    let of_series = samples.iter().filter_map(|sample| {
        let mut own = sample.labels.clone();
        let bound = own.remove("le")?;
        (own == *labels).then(|| (bound.parse().unwrap(), sample.value))
    });
    of_series.collect()
}

/// Returns the metrics after every recorded event has occurred once in both IP families.
fn busy() -> Metrics {
    busy_in(ProxyMode::Ipvs)
}

/// Creates the metrics of a mode, with default feature gates.
fn of_mode(mode: ProxyMode) -> Metrics {
    Metrics::of(mode.definition().metrics(), &Gates::default(), None)
}

fn busy_in(mode: ProxyMode) -> Metrics {
    let metrics = of_mode(mode);
    let trigger = SystemTime::now() - Duration::from_millis(1);
    let later = SystemTime::now() + Duration::from_mins(1);
    let changes = Changes {
        service_changes: 2,
        slice_changes: 3,
        node: true,
        ..Changes::default()
    };
    metrics.queued(&changes, IpFamily::ALL.into_iter());
    metrics.taken(&changes);
    let is_iptables = mode == ProxyMode::Iptables;
    let is_nftables = mode == ProxyMode::Nftables;
    let has_extent = is_iptables || is_nftables;
    let mut drift = Drift::default();
    drift.add("set member", || "10.96.0.1 of KUBE-CLUSTER-IP".to_owned());
    let report = Report {
        failed_restores: 1,
        iptables: is_iptables.then_some(IptablesReport {
            wanted: [7, 40],
            written: Some([0, 3]),
            is_full: false,
        }),
        nftables: is_nftables.then_some(NftablesReport {
            failed_syncs: 2,
            failed_cleanups: 1,
            failed_listeners: 1,
            listeners: Some(3),
            is_full: false,
        }),
        drift,
        ..Report::default()
    };
    for family in IpFamily::ALL {
        metrics.begins(family);
        metrics.booked(family, &report);
        metrics.synced(
            family,
            Duration::from_millis(3),
            has_extent.then_some(SyncExtent::Partial),
        );
        metrics.synced(
            family,
            Duration::from_mins(1),
            has_extent.then_some(SyncExtent::Full),
        );
        metrics.form(family, is_nftables.then_some("layout flat"));
        metrics.complete(family, SystemTime::now());
        metrics.settled(family, Duration::from_micros(500));
        metrics.programmed(family, [trigger, later].into_iter());
        metrics.flows_compared(family, Duration::from_millis(2), 5);
        metrics.no_local_endpoints(family, 1, 0);
    }
    metrics.healthz_answered(StatusCode::OK);
    metrics.livez_answered(StatusCode::SERVICE_UNAVAILABLE);
    metrics.requested("10.0.0.1:6443", "GET", "200");
    let of = VerbLabels {
        host: "10.0.0.1:6443".to_owned(),
        verb: "GET".to_owned(),
    };
    for histogram in [
        &metrics.request_duration,
        &metrics.request_wait,
        &metrics.request_size,
        &metrics.answer_size,
    ] {
        histogram.get_or_create(&of).observe(100.0);
    }
    metrics
}

#[test]
fn metric_names_types_labels_and_help_equal_those_of_upstream() {
    let described = |(name, family): (&String, &ScrapedFamily)| {
        let labels: BTreeSet<_> = family
            .samples
            .iter()
            .flat_map(|sample| sample.labels.keys().map(String::as_str))
            .filter(|label| *label != "le")
            .collect();
        let labels = labels.into_iter().collect::<Vec<_>>().join(",");
        let line = format!("{name} {} {labels}", family.kind);
        format!("{}\n  {}\n", line.trim_end(), family.help)
    };
    for (mode, more) in [
        (ProxyMode::Ipvs, OF_IPVS),
        (ProxyMode::Iptables, OF_IPTABLES),
        (ProxyMode::Nftables, OF_NFTABLES),
        (ProxyMode::Userspace, ""),
    ] {
        let mut families = scrape(&busy_in(mode).classic());
        families.retain(|name, _| !name.starts_with("kubeproxy_iptables_"));
        let said: BTreeSet<_> = families.iter().map(described).collect();
        let lines = KUBERNETES.lines().chain(more.lines());
        let own = (mode == ProxyMode::Nftables).then_some(OURS_IN_NFTABLES);
        let own = own.into_iter().flat_map(str::lines);
        let lines: Vec<_> = lines.chain(OURS.lines()).chain(own).collect();
        let wanted: BTreeSet<_> = lines
            .chunks(2)
            .map(|pair| format!("{}\n", pair.join("\n")))
            .collect();
        assert_eq!(said, wanted);
    }
    let of_stability = |level: &str| {
        let mark = format!("  [{level}] ");
        let marked = [KUBERNETES, OF_IPVS].map(|all| all.matches(&mark).count());
        let marked: usize = marked.iter().sum();
        let labels = format!("{{deprecated_version=\"\",stability_level=\"{level}\"}}");
        (
            marked,
            format!("registered_metrics_total{labels} {marked}\n"),
        )
    };
    for level in ["ALPHA", "BETA"] {
        let (marked, sample) = of_stability(level);
        assert!(marked > 0 && busy().classic().contains(&sample), "{sample}");
    }
}

/// Compares the version in `kubernetes_build_info` with the version that this program matches. The
/// alert `KubeVersionMismatch` expects one major and minor version in the whole cluster.
#[test]
fn the_build_info_metric_has_the_matching_kubernetes_version() {
    let families = scrape(&Metrics::new().classic());
    let of = |name: &str| match families[name].samples.as_slice() {
        [sample] => sample.labels.clone(),
        other => panic!("{other:?}"),
    };
    let build = of("kubernetes_build_info");
    assert_eq!(build["git_version"], "v1.37.0");
    assert_eq!((&*build["major"], &*build["minor"]), ("1", "37"));
    assert_eq!(build["git_commit"], COMMIT);
    // The commit is a full hash, from the checkout or from the builder, or `unknown`.
    let is_commit = COMMIT.len() >= 40 && COMMIT.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_commit || COMMIT == "unknown", "{COMMIT}");
    let own = of("kubeproxy_ipvs_build_info");
    assert_eq!(own["commit"], COMMIT);
    assert_eq!(own["version"], env!("CARGO_PKG_VERSION"));
}

/// Checks that the metrics contain every feature gate with its value, like upstream 1.37.
#[test]
fn each_feature_gate_has_a_metric() {
    let told = |gates: &str| {
        let gates = format!("--feature-gates={gates}");
        let Ok(Command::Run(options)) = command_line::parse(["kube-proxy", &*gates]) else {
            panic!("{gates}");
        };
        Metrics::of(
            options.modes.chosen.definition().metrics(),
            &options.process.gates,
            None,
        )
        .classic()
    };
    let default = told("");
    let samples = default.matches("\nkubernetes_feature_enabled{").count();
    assert_eq!(samples, Gates::default().all().count());
    for (gate, stage, value) in [
        ("AllowServiceExternalIPs", "", 1),
        ("PreferSameTrafficDistribution", "", 1),
        ("ComponentFlagz", "BETA", 1),
        ("NativeHistograms", "BETA", 1),
        ("KubeProxyIPVS", "DEPRECATED", 1),
        ("KubeProxyNFTablesLocalhostNodePorts", "ALPHA", 0),
        ("AllAlpha", "ALPHA", 0),
        ("AllowDNSOnlyNodeCSR", "DEPRECATED", 0),
        ("RelaxedServiceNameValidation", "", 1),
    ] {
        let sample = |value: i32| {
            format!("kubernetes_feature_enabled{{name=\"{gate}\",stage=\"{stage}\"}} {value}\n")
        };
        assert!(default.contains(&sample(value)), "{gate}");
    }
    let off = "kubernetes_feature_enabled{name=\"AllowServiceExternalIPs\",stage=\"\"} 0\n";
    assert!(told("AllowServiceExternalIPs=false").contains(off));
    let off = "kubernetes_feature_enabled{name=\"ComponentFlagz\",stage=\"BETA\"} 0\n";
    assert!(told("AllBeta=false").contains(off));
}

#[test]
fn histogram_bounds_are_formatted_as_by_go() {
    let bounds = |name: &str| {
        let text = busy().classic();
        let start = format!("{name}_bucket{{");
        let lines = text
            .lines()
            .filter(|line| line.starts_with(&start) && !line.contains("IPv6"));
        let bound = |line: &str| {
            let (_, rest) = line.split_once("le=\"").unwrap();
            rest.split_once('"').unwrap().0.to_owned()
        };
        lines.map(bound).collect::<Vec<_>>()
    };
    assert_eq!(
        bounds("kubeproxy_sync_proxy_rules_duration_seconds").join(" "),
        "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384 +Inf"
    );
    let network = bounds("kubeproxy_network_programming_duration_seconds");
    assert_eq!(network.len(), 82);
    assert_eq!(network[..5], ["0", "0.25", "0.5", "1", "2"]);
    assert_eq!(
        network[60..65],
        ["58", "59", "60", "65", "70"].map(str::to_owned)[..]
    );
    assert_eq!(
        network[73..],
        [
            "115", "120", "150", "180", "210", "240", "270", "300", "+Inf"
        ]
        .map(str::to_owned)[..]
    );
    for name in ["request_duration", "rate_limiter_duration"] {
        let of_name = bounds(&format!("rest_client_{name}_seconds")).join(" ");
        assert_eq!(of_name, "0.005 0.025 0.1 0.25 0.5 1 2 4 8 15 30 60 +Inf");
    }
    for name in ["request_size", "response_size"] {
        let of_name = bounds(&format!("rest_client_{name}_bytes")).join(" ");
        assert_eq!(
            of_name,
            "64 256 512 1024 4096 16384 65536 262144 1048576 4194304 16777216 +Inf"
        );
    }
}

#[test]
fn metric_samples_match_the_recorded_events() {
    let families = scrape(&busy().classic());
    let value = |name: &str, labels: &str| {
        let family = families.values().flat_map(|family| &family.samples);
        let wanted = Sample::parse(&format!("{name}{labels} 0"));
        let mut found = family
            .filter(|sample| (&sample.name, &sample.labels) == (&wanted.name, &wanted.labels));
        found
            .next()
            .unwrap_or_else(|| panic!("{name}{labels}"))
            .value
    };
    let is = |name: &str, labels: &str, wanted: f64| {
        let value = value(&format!("kubeproxy_{name}"), labels);
        assert!((value - wanted).abs() < 1e-6, "{name}{labels} is {value}");
    };
    let v6 = r#"{ip_family="IPv6"}"#;
    is("sync_proxy_rules_service_changes_total", "", 2.0);
    is("sync_proxy_rules_endpoint_changes_total", "", 3.0);
    is("sync_proxy_rules_endpoint_changes_pending", "", 0.0);
    is("sync_proxy_rules_duration_seconds_sum", v6, 60.003);
    is("sync_proxy_rules_iptables_restore_failures_total", v6, 1.0);
    is("conntrack_reconciler_deleted_entries_total", v6, 5.0);
    is("network_programming_duration_seconds_count", v6, 2.0);
    let early = r#"{ip_family="IPv6",le="0"}"#;
    is("network_programming_duration_seconds_bucket", early, 1.0);
    let internal = r#"{ip_family="IPv4",traffic_policy="internal"}"#;
    is("sync_proxy_rules_no_local_endpoints_total", internal, 1.0);
    is("proxy_livez_total", r#"{code="503"}"#, 1.0);
    assert!(value("process_resident_memory_bytes", "") > 1e6);
    assert!(value("process_open_fds", "") >= 3.0);
    let started = value("process_start_time_seconds", "");
    let now = seconds(SystemTime::now());
    assert!((now - 3600.0..=now + 2.0).contains(&started), "{started}");
    let synced = value("kubeproxy_sync_proxy_rules_last_timestamp_seconds", v6);
    assert!((now - 60.0..=now + 1.0).contains(&synced), "{synced}");
}

#[test]
fn the_nftables_layout_metric_is_1_only_for_the_layout_in_use() {
    let text = busy_in(ProxyMode::Nftables).classic();
    for (layout, value) in [("flat", 1), ("upstream", 0)] {
        let labels = format!("{{ip_family=\"IPv6\",layout=\"{layout}\"}}");
        let line = format!("kubeproxy_nftables_layout{labels} {value}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn iptables_mode_metrics_distinguish_partial_from_full_syncs() {
    let of = |full: bool| {
        let metrics = of_mode(ProxyMode::Iptables);
        let report = |written, failed_restores| Report {
            failed_restores,
            iptables: Some(IptablesReport {
                wanted: [7, 40],
                written,
                is_full: full,
            }),
            ..Report::default()
        };
        for report in [report(Some([1, 3]), 2), report(None, 0)] {
            metrics.booked(IpFamily::V4, &report);
            let extent = metrics.extent(&report);
            metrics.synced(IpFamily::V4, Duration::from_millis(3), extent);
        }
        metrics.classic()
    };
    let (full, partial) = (of(true), of(false));
    for (line, text) in [
        (
            r#"iptables_total{ip_family="IPv4",table="filter"} 7"#,
            &full,
        ),
        (r#"iptables_total{ip_family="IPv4",table="nat"} 40"#, &full),
        // A sync that writes nothing does not replace the numbers of the last sync that wrote.
        (r#"iptables_last{ip_family="IPv4",table="nat"} 3"#, &full),
        (
            r#"iptables_restore_failures_total{ip_family="IPv4"} 2"#,
            &full,
        ),
        (
            r#"iptables_partial_restore_failures_total{ip_family="IPv4"} 0"#,
            &full,
        ),
        (
            r#"iptables_partial_restore_failures_total{ip_family="IPv4"} 2"#,
            &partial,
        ),
    ] {
        let line = format!("kubeproxy_sync_proxy_rules_{line}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
    let full_syncs =
        "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 2\n";
    assert!(full.contains(full_syncs) && !partial.contains(full_syncs));
}

#[test]
fn the_latency_of_changes_before_the_start_is_not_measured() {
    let metrics = Metrics::new();
    let second = Duration::from_secs(1);
    assert!(!metrics.measures(SystemTime::UNIX_EPOCH));
    assert!(!metrics.measures(metrics.started - second));
    assert!(metrics.measures(metrics.started + second));
}

#[test]
fn the_last_sync_timestamp_never_decreases() {
    let metrics = Metrics::new();
    let at = |offset| metrics.started + Duration::from_secs(offset);
    let told = |before| {
        metrics.complete(IpFamily::V4, before);
        let gauge = metrics.last_synced.get_or_create(&of(IpFamily::V4));
        (gauge.get() - seconds(metrics.started)).round().to_string()
    };
    assert_eq!([told(at(5)), told(at(3)), told(at(6))], ["5", "5", "6"]);
}

#[test]
fn drift_counters_by_kind_start_at_zero() {
    let metrics = Metrics::new();
    metrics.begins(IpFamily::V6);
    let mut report = Report::default();
    for address in ["2001:db8::1", "2001:db8::2"] {
        report.drift.add("virtual server", || address.to_owned());
    }
    let line = |kind: &str, count| {
        format!("kubeproxy_drifted_entries_total{{ip_family=\"IPv6\",kind=\"{kind}\"}} {count}\n")
    };
    assert!(metrics.classic().contains(&line("virtual_server", 0)));
    metrics.booked(IpFamily::V6, &report);
    for (kind, count) in [("virtual_server", 2), ("set_member", 0)] {
        let text = metrics.classic();
        assert!(text.contains(&line(kind, count)), "{text}");
    }
}

#[test]
fn each_ip_familys_state_metrics_equal_the_status() {
    let metrics = Metrics::new();
    metrics.begins(IpFamily::V4);
    let value = |name: &str| {
        let name = format!("kubeproxy_{name}{{ip_family=\"IPv4\"}} ");
        let text = metrics.classic();
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap().parse::<f64>().unwrap()
    };
    let all = || {
        let names = [
            "pending_entries",
            "failing_entries",
            "lag_seconds",
            "stuck_seconds",
        ];
        names.map(|name| value(name).round().to_string())
    };
    assert_eq!(all(), ["0"; 4]);
    let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
    let standing = Standing {
        pending_since: ago(70),
        stuck_since: ago(20),
        pending: 5,
        failing: 2,
        ..Standing::default()
    };
    metrics.stands(IpFamily::V4, &standing);
    assert_eq!(all(), ["5", "2", "70", "20"]);
}

#[test]
fn histograms_are_exported_before_their_first_value() {
    let metrics = Metrics::new();
    metrics.begins(IpFamily::V6);
    let text = metrics.classic();
    for name in ["service", "network"] {
        let count = format!(
            "kubeproxy_{name}_programming_duration_seconds_count{{ip_family=\"IPv6\"}} 0\n"
        );
        assert!(text.contains(&count), "{count}{text}");
    }
}

#[test]
fn openmetrics_output_has_as_many_samples_as_the_classic_format() {
    let metrics = busy();
    let text = metrics.openmetrics();
    assert!(text.ends_with("# EOF\n"));
    assert!(text.contains(
        "# TYPE kubeproxy_proxy_livez counter\nkubeproxy_proxy_livez_total{code=\"503\"} 1\n"
    ));
    let samples = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(samples(&text), samples(&metrics.classic()));
}

#[test]
fn sync_metrics_are_absent_before_the_first_sync() {
    let families = scrape(&Metrics::new().classic());
    assert!(!families.contains_key("kubeproxy_sync_proxy_rules_duration_seconds"));
    assert!(families.contains_key("kubeproxy_sync_proxy_rules_service_changes_total"));
}

/// Test fixture: a Service with Local traffic policies, as the node `here` sees it.
struct Policies {
    internal: bool,
    external: bool,
    node_port: Option<u16>,
}

#[test]
fn services_without_a_local_endpoint_are_counted() {
    let (mut model, metrics) = (Model::new(), Metrics::new());
    let mut counted = NoLocalEndpoints::new(IpFamily::V4, "here");
    let mut told = |policies: Policies, endpoints: &[(&str, bool)]| {
        model.apply(service(&policies));
        model.apply(slice(endpoints));
        let changes = model.take_changes();
        counted.note(&model, &changes);
        counted.tell(&metrics);
        let text = metrics.classic();
        ["internal", "external"].map(|policy| {
            let series = format!("{{ip_family=\"IPv4\",traffic_policy=\"{policy}\"}} 1\n");
            text.contains(&series)
        })
    };
    let policies = |internal, external, node_port| Policies {
        internal,
        external,
        node_port,
    };
    let there = [("there", true)];
    assert_eq!(
        told(policies(false, false, Some(30000)), &there),
        [false, false]
    );
    assert_eq!(told(policies(true, false, None), &there), [true, false]);
    assert_eq!(
        told(policies(false, true, Some(30000)), &there),
        [false, true]
    );
    assert_eq!(told(policies(false, true, None), &there), [false, false]);
    assert_eq!(
        told(policies(true, true, Some(30000)), &there),
        [true, true]
    );
    let nobody = [("there", false), ("here", false)];
    assert_eq!(
        told(policies(true, true, Some(30000)), &nobody),
        [false, false]
    );
    let both = [("there", true), ("here", true)];
    assert_eq!(
        told(policies(true, true, Some(30000)), &both),
        [false, false]
    );
}

fn name() -> NamespacedName {
    NamespacedName::new("default", "web")
}

fn service(policies: &Policies) -> Event {
    let port = ServicePort {
        name: "".into(),
        protocol: Protocol::Tcp,
        port: 80,
        node_port: policies.node_port,
    };
    Event::ServiceApplied(Service {
        ports: [port].into_iter().collect(),
        internal_local: policies.internal,
        external_local: policies.external,
        ..Service::at(name(), ["10.96.0.1".parse().unwrap()])
    })
}

/// Returns an EndpointSlice with one endpoint for each pair: its node, and true if it is ready.
fn slice(endpoints: &[(&str, bool)]) -> Event {
    let endpoint = |(number, (node, ready)): (u8, &(&str, bool))| Endpoint {
        address: [10, 0, 0, number].into(),
        ready: *ready,
        serving: *ready,
        terminating: false,
        placement: Arc::new(Placement {
            node: Some((*node).into()),
            ..Placement::default()
        }),
    };
    let port = EndpointPort {
        name: "".into(),
        protocol: Protocol::Tcp,
        port: 8080,
    };
    Event::SliceApplied(EndpointSlice {
        name: NamespacedName::new("default", "web-a"),
        service: name(),
        family: IpFamily::V4,
        ports: [port].into_iter().collect(),
        endpoints: (1..).zip(endpoints).map(endpoint).collect(),
        change_trigger: None,
    })
}

/// Checks that the start sets the timestamp of both IP families, as in upstream, and that a change
/// sets it only for the families that the change affects.
#[test]
fn the_last_queued_timestamp_is_kept_per_ip_family() {
    let metrics = Metrics::new();
    let series = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds";
    let queued = |family: &str| {
        let text = metrics.classic();
        let start = format!("{series}{{ip_family=\"{family}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.map(|value| value.parse::<f64>().unwrap())
    };
    assert_eq!(queued("IPv4"), None);
    for family in IpFamily::ALL {
        metrics.begins(family);
    }
    let (v4, v6) = (queued("IPv4").unwrap(), queued("IPv6").unwrap());
    std::thread::sleep(Duration::from_millis(10));
    let mut changes = Changes::default();
    changes.families.extend([IpFamily::V6]);
    metrics.queued(&changes, IpFamily::ALL.into_iter());
    assert_eq!(queued("IPv4"), Some(v4));
    assert!(queued("IPv6") > Some(v6));
}
