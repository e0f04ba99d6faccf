//! What the daemon counts and measures, under upstream's names, labels and buckets (`pkg/proxy/metrics`), so that dashboards
//! and alerts stay as they are.
//!
//! ```text
//!   the loop, workers, servers ──▶ Metrics ──OpenMetrics──▶ exposition ──▶ /metrics, as text/plain; version=0.0.4
//! ```
//!
//! A metric is a field and its row in [`Metrics::new`]. Beyond `kubeproxy_*` there are `rest_client_*`, `process_*` and
//! `kubernetes_build_info`; there is no Go here, hence no `go_*`.

mod exposition;
mod local_endpoints;
mod process;
mod rest_client;
mod server;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};
use prometheus_client::registry::Registry;
use proxy::{Changes, IpFamily, SyncReport};

pub(crate) use local_endpoints::NoLocalEndpoints;
pub(crate) use rest_client::CountRequests;
pub(crate) use server::{PURPOSE, Pages};

/// Handles to all metrics. Clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    started: SystemTime,
    sync_duration: Family<OfFamily, Histogram, Buckets>,
    network_programming_duration: Family<OfFamily, Histogram, Buckets>,
    last_synced: Family<OfFamily, Seconds>,
    last_queued: Family<OfFamily, Seconds>,
    endpoint_changes_pending: Gauge,
    endpoint_changes: Counter,
    service_changes_pending: Gauge,
    service_changes: Counter,
    no_local_endpoints: Family<OfPolicy, Gauge>,
    failed_restores: Family<OfFamily, Counter>,
    healthz_answers: Family<OfCode, Counter>,
    livez_answers: Family<OfCode, Counter>,
    flows_duration: Family<OfFamily, Histogram, Buckets>,
    flows_deleted: Family<OfFamily, Counter>,
    requests: Family<OfRequest, Counter>,
    request_duration: Family<OfVerb, Histogram, Buckets>,
}

type Seconds = Gauge<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFamily {
    ip_family: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPolicy {
    ip_family: &'static str,
    traffic_policy: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCode {
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequest {
    code: String,
    host: String,
    method: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfVerb {
    host: String,
    verb: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(clippy::struct_field_names, reason = "the label is upstream's")]
struct Build {
    build_date: &'static str,
    compiler: &'static str,
    git_commit: &'static str,
    git_tree_state: &'static str,
    git_version: String,
    go_version: &'static str,
    major: &'static str,
    minor: &'static str,
    platform: String,
}

impl Build {
    fn this() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            build_date: "",
            compiler: "rustc",
            git_commit: "",
            git_tree_state: "",
            git_version: format!("v{}", env!("CARGO_PKG_VERSION")),
            go_version: "",
            major: env!("CARGO_PKG_VERSION_MAJOR"),
            minor: env!("CARGO_PKG_VERSION_MINOR"),
            platform: format!("{}/{architecture}", std::env::consts::OS),
        }
    }
}

/// Where a histogram's buckets end.
#[derive(Debug, Clone, Copy)]
enum Buckets {
    /// One millisecond, doubled up to 16 s.
    Sync,
    /// Quarters of a second, then seconds, then steps of 5 s and 30 s up to five minutes.
    NetworkProgramming,
    /// Of client-go.
    Request,
}

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        match self {
            Self::Sync => Histogram::new(exponential_buckets(0.001, 2.0, 15)),
            Self::NetworkProgramming => {
                // The first one, which only clocks that disagree can fill, is upstream's too.
                let buckets = std::iter::once(0.0)
                    .chain(linear_buckets(0.25, 0.25, 2))
                    .chain(linear_buckets(1.0, 1.0, 59))
                    .chain(linear_buckets(60.0, 5.0, 12))
                    .chain(linear_buckets(120.0, 30.0, 7));
                Histogram::new(buckets)
            }
            Self::Request => Histogram::new([
                0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
            ]),
        }
    }
}

impl Metrics {
    /// Nothing has happened yet.
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Arc::default(),
            started: SystemTime::now(),
            sync_duration: Family::new_with_constructor(Buckets::Sync),
            network_programming_duration: Family::new_with_constructor(Buckets::NetworkProgramming),
            last_synced: Family::default(),
            last_queued: Family::default(),
            endpoint_changes_pending: Gauge::default(),
            endpoint_changes: Counter::default(),
            service_changes_pending: Gauge::default(),
            service_changes: Counter::default(),
            no_local_endpoints: Family::default(),
            failed_restores: Family::default(),
            healthz_answers: Family::default(),
            livez_answers: Family::default(),
            flows_duration: Family::new_with_constructor(Buckets::Sync),
            flows_deleted: Family::default(),
            requests: Family::default(),
            request_duration: Family::new_with_constructor(Buckets::Request),
        };
        metrics.registry = Arc::new(metrics.register());
        metrics
    }

    /// Names of counters are without `_total`, which the encoder adds.
    fn register(&self) -> Registry {
        let mut all = Registry::default();
        let of = all.sub_registry_with_prefix("kubeproxy");
        macro_rules! row {
            ($field:ident, $name:literal, $help:literal) => {
                of.register($name, $help, self.$field.clone());
            };
        }
        row!(
            sync_duration,
            "sync_proxy_rules_duration_seconds",
            "How long a sync took, the reading of the kernel included"
        );
        row!(
            network_programming_duration,
            "network_programming_duration_seconds",
            "Time from a change of a pod or Service to its being in the kernel, one for each changed EndpointSlice"
        );
        row!(
            last_synced,
            "sync_proxy_rules_last_timestamp_seconds",
            "When everything was last in the kernel"
        );
        row!(
            last_queued,
            "sync_proxy_rules_last_queued_timestamp_seconds",
            "When a sync was last asked for"
        );
        row!(
            endpoint_changes_pending,
            "sync_proxy_rules_endpoint_changes_pending",
            "Changes of EndpointSlices that wait for a sync"
        );
        row!(
            endpoint_changes,
            "sync_proxy_rules_endpoint_changes",
            "Changes of EndpointSlices that were taken up"
        );
        row!(
            service_changes_pending,
            "sync_proxy_rules_service_changes_pending",
            "Changes of Services that wait for a sync"
        );
        row!(
            service_changes,
            "sync_proxy_rules_service_changes",
            "Changes of Services that were taken up"
        );
        // A gauge in spite of its name.
        row!(
            no_local_endpoints,
            "sync_proxy_rules_no_local_endpoints_total",
            "Services with a Local traffic policy and endpoints, but none on this node"
        );
        row!(
            failed_restores,
            "sync_proxy_rules_iptables_restore_failures",
            "Rules that iptables-restore did not take"
        );
        row!(
            healthz_answers,
            "proxy_healthz",
            "Answers of /healthz by status"
        );
        row!(livez_answers, "proxy_livez", "Answers of /livez by status");
        row!(
            flows_duration,
            "conntrack_reconciler_sync_duration_seconds",
            "How long a comparison of the tracked flows took"
        );
        row!(
            flows_deleted,
            "conntrack_reconciler_deleted_entries",
            "Tracked flows that were stale and are deleted"
        );
        let requests = "Requests to the API server by status, method and host";
        all.register("rest_client_requests", requests, self.requests.clone());
        all.register(
            "rest_client_request_duration_seconds",
            "Time until the head of the API server's answer, by verb and host",
            self.request_duration.clone(),
        );
        let build = Family::<Build, Gauge>::default();
        build.get_or_create(&Build::this()).set(1);
        all.register(
            "kubernetes_build_info",
            "Always 1, labelled with what this is",
            build,
        );
        all.register_collector(Box::new(process::Process));
        all
    }

    /// What is pending after changes were told, and that a sync is asked for.
    pub(crate) fn queued(&self, changes: &Changes, families: impl Iterator<Item = IpFamily>) {
        set(&self.service_changes_pending, changes.service_changes);
        set(&self.endpoint_changes_pending, changes.slice_changes);
        let now = seconds(SystemTime::now());
        for family in families {
            self.last_queued.get_or_create(&of(family)).set(now);
        }
    }

    /// Changes are taken up by a sync.
    pub(crate) fn taken(&self, changes: &Changes) {
        self.service_changes.inc_by(changes.service_changes as u64);
        self.endpoint_changes.inc_by(changes.slice_changes as u64);
        self.service_changes_pending.set(0);
        self.endpoint_changes_pending.set(0);
    }

    /// Which of the changes are to be measured at the end of a family's sync: those since this process started.
    pub(crate) fn triggers(
        &self,
        changes: &Changes,
        family: IpFamily,
    ) -> impl Iterator<Item = SystemTime> {
        let of_family = changes.triggers.iter().filter(move |(of, _)| *of == family);
        let times = of_family.map(|(_, at)| *at);
        times.filter(|at| *at > self.started)
    }

    /// A sync, or a try, has ended. `report` is what it wrote, if it came so far.
    pub(crate) fn synced(&self, family: IpFamily, took: Duration, report: Option<&SyncReport>) {
        let of = of(family);
        self.sync_duration
            .get_or_create(&of)
            .observe(took.as_secs_f64());
        let failed = report.map_or(0, |report| report.failed_restores);
        self.failed_restores
            .get_or_create(&of)
            .inc_by(failed as u64);
    }

    /// Everything of a family is in the kernel, with the changes that were triggered then.
    pub(crate) fn complete(&self, family: IpFamily, triggers: impl Iterator<Item = SystemTime>) {
        let (of, now) = (of(family), SystemTime::now());
        self.last_synced.get_or_create(&of).set(seconds(now));
        for trigger in triggers {
            // Another machine's clock has said when it was.
            let took = now.duration_since(trigger).unwrap_or_default();
            self.network_programming_duration
                .get_or_create(&of)
                .observe(took.as_secs_f64());
        }
    }

    /// How many Services have no endpoint on this node though a policy asks for one.
    fn no_local_endpoints(&self, family: IpFamily, internal: usize, external: usize) {
        for (traffic_policy, count) in [("internal", internal), ("external", external)] {
            let OfFamily { ip_family } = of(family);
            let gauge = self.no_local_endpoints.get_or_create(&OfPolicy {
                ip_family,
                traffic_policy,
            });
            set(&gauge, count);
        }
    }

    /// Tracked flows were compared.
    pub(crate) fn flows_compared(&self, family: IpFamily, took: Duration, deleted: usize) {
        let of = of(family);
        self.flows_duration
            .get_or_create(&of)
            .observe(took.as_secs_f64());
        self.flows_deleted.get_or_create(&of).inc_by(deleted as u64);
    }

    pub(crate) fn healthz_answered(&self, status: StatusCode) {
        let code = status.as_u16();
        self.healthz_answers.get_or_create(&OfCode { code }).inc();
    }

    pub(crate) fn livez_answered(&self, status: StatusCode) {
        let code = status.as_u16();
        self.livez_answers.get_or_create(&OfCode { code }).inc();
    }

    /// The API server has answered, or not: `code` is `<error>` then, as client-go's.
    fn requested(&self, host: &str, method: &str, code: &str, took: Duration) {
        self.requests
            .get_or_create(&OfRequest {
                code: code.to_owned(),
                host: host.to_owned(),
                method: method.to_owned(),
            })
            .inc();
        self.request_duration
            .get_or_create(&OfVerb {
                host: host.to_owned(),
                verb: method.to_owned(),
            })
            .observe(took.as_secs_f64());
    }

    /// All metrics as OpenMetrics text, version 1.0.0.
    pub fn openmetrics(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }

    /// All metrics in Prometheus' own text format, version 0.0.4.
    pub fn classic(&self) -> String {
        exposition::classic(&self.openmetrics())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn of(family: IpFamily) -> OfFamily {
    let ip_family = match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    };
    OfFamily { ip_family }
}

fn set(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}

/// Since the epoch.
fn seconds(at: SystemTime) -> f64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests;
