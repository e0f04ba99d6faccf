//! Counters and measurements of the daemon. Names, labels and buckets are the same as upstream's
//! (`pkg/proxy/metrics`), so that existing dashboards and alerts keep working.
//!
//! ```text
//!   the loop, workers, servers ──▶ Metrics ──OpenMetrics──▶ exposition ──▶ /metrics
//!                                                      as text/plain; version=0.0.4
//! ```
//!
//! - Each metric is a field with a row in `Metrics::register`. Names, kinds, labels, help and
//!   buckets are those of Kubernetes 1.36.2, and of two metrics that 1.37 added. Metrics that only
//!   this program has are marked.
//! - Besides `kubeproxy_*`, the page has `rest_client_*`, `process_*`, `kubernetes_*`, and
//!   Kubernetes' metrics about metrics.
//! - The metrics `go_*` are missing, because this program is not written in Go.
//! - `/metrics/slis` has a separate registry.

mod draining;
mod exposition;
pub(crate) mod labels;
pub(crate) mod local_endpoints;
mod process;
pub(crate) mod rest_client;
pub mod services;
mod standing;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};

use flags::gates::Gates;
use http::StatusCode;
use modes::metrics::buckets::Buckets;
use modes::metrics::rows::Rows;
use modes::metrics::{FamilyLabels, ModeLabels, SyncExtent, of, set};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use proxy::{Changes, Drift, EntryKind, Fate, IpFamily, Model, NodePorts, Report, Standing};

use crate::process::version::{COMMIT, OWN_VERSION};
use draining::Draining;
use labels::{
    Build, CheckLabels, CheckStatusLabels, CodeLabels, FeatureLabels, KindLabels, OwnBuild,
    PolicyLabels, RequestLabels, StabilityLabels, VerbLabels, WriteLabels, of_kind, of_write,
};
use services::ServiceMetrics;
use standing::Standings;

/// Handles of all metrics. Clones share the values.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub(crate) started: SystemTime,
    sync_duration: Family<FamilyLabels, Histogram, Buckets>,
    network_programming_duration: Family<FamilyLabels, Histogram, Buckets>,
    last_synced: Family<FamilyLabels, Seconds>,
    last_queued: Family<FamilyLabels, Seconds>,
    endpoint_changes_pending: Gauge,
    endpoint_changes: Counter,
    service_changes_pending: Gauge,
    service_changes: Counter,
    no_local_endpoints: Family<PolicyLabels, Gauge>,
    healthz_answers: Family<CodeLabels, Counter>,
    livez_answers: Family<CodeLabels, Counter>,
    flows_duration: Family<FamilyLabels, Histogram, Buckets>,
    flows_deleted: Family<FamilyLabels, Counter>,
    requests: Family<RequestLabels, Counter>,
    request_duration: Family<VerbLabels, Histogram, Buckets>,
    request_wait: Family<VerbLabels, Histogram, Buckets>,
    request_size: Family<VerbLabels, Histogram, Buckets>,
    answer_size: Family<VerbLabels, Histogram, Buckets>,
    slis: Arc<Registry>,
    check_result: Family<CheckLabels, Gauge>,
    check_results: Family<CheckStatusLabels, Counter>,
    pub(crate) vanished: crate::node::missing_objects::Counts,
    pub(crate) contested: crate::node::external_addresses::Counts,
    drifted: Family<KindLabels, Counter>,
    writes: Family<WriteLabels, Counter>,
    programming_duration: Family<FamilyLabels, Histogram, Buckets>,
    draining: Draining,
    former_servers: Family<FamilyLabels, Gauge>,
    former_connections: Family<FamilyLabels, Gauge>,
    standings: Standings,
    services: Option<ServiceMetrics>,
    of_mode: Option<Arc<dyn ModeLabels>>,
}

type Seconds = Gauge<f64, AtomicU64>;

impl Metrics {
    /// Creates the metrics that every mode has, at their start values, with default feature gates.
    pub fn new() -> Self {
        Self::of(None, &Gates::default(), None)
    }

    /// Creates the metrics of a mode at their start values, with one metric for each feature gate.
    /// `services` adds the metrics of single Services.
    pub(crate) fn of(
        of_mode: Option<Arc<dyn ModeLabels>>,
        gates: &Gates,
        services: Option<ServiceMetrics>,
    ) -> Self {
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
            healthz_answers: Family::default(),
            livez_answers: Family::default(),
            flows_duration: Family::new_with_constructor(Buckets::Sync),
            flows_deleted: Family::default(),
            requests: Family::default(),
            request_duration: Family::new_with_constructor(Buckets::Request),
            request_wait: Family::new_with_constructor(Buckets::Request),
            request_size: Family::new_with_constructor(Buckets::Size),
            answer_size: Family::new_with_constructor(Buckets::Size),
            slis: Arc::default(),
            check_result: Family::default(),
            check_results: Family::default(),
            vanished: crate::node::missing_objects::counts(),
            contested: crate::node::external_addresses::counts(),
            drifted: Family::default(),
            writes: Family::default(),
            programming_duration: Family::new_with_constructor(Buckets::Programming),
            draining: Draining::default(),
            former_servers: Family::default(),
            former_connections: Family::default(),
            standings: Standings::default(),
            services,
            of_mode,
        };
        metrics.registry = Arc::new(metrics.register(gates));
        metrics.slis = Arc::new(metrics.register_slis());
        metrics
    }

    fn register(&self, gates: &Gates) -> Registry {
        let mut all = Rows::default();
        macro_rules! rows {
            ($($stability:ident $name:literal $field:ident $help:literal)*) => {
                $(all.add(stringify!($stability), $name, $help, self.$field.clone());)*
            };
        }
        // The encoder adds `_total` to the names of counters.
        rows! {
            ALPHA "kubeproxy_sync_proxy_rules_duration_seconds" sync_duration
                "SyncProxyRules latency in seconds"
            ALPHA "kubeproxy_network_programming_duration_seconds" network_programming_duration
                "In Cluster Network Programming Latency in seconds"
            ALPHA "kubeproxy_sync_proxy_rules_last_timestamp_seconds" last_synced
                "The last time proxy rules were successfully synced"
            ALPHA "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds" last_queued
                "The last time a sync of proxy rules was queued"
            ALPHA "kubeproxy_sync_proxy_rules_endpoint_changes_pending" endpoint_changes_pending
                "Pending proxy rules Endpoint changes"
            ALPHA "kubeproxy_sync_proxy_rules_endpoint_changes" endpoint_changes
                "Cumulative proxy rules Endpoint changes"
            ALPHA "kubeproxy_sync_proxy_rules_service_changes_pending" service_changes_pending
                "Pending proxy rules Service changes"
            ALPHA "kubeproxy_sync_proxy_rules_service_changes" service_changes
                "Cumulative proxy rules Service changes"
            // Upstream's metric is a gauge, despite the `_total` in its name.
            ALPHA "kubeproxy_sync_proxy_rules_no_local_endpoints_total" no_local_endpoints
                "Number of services with a Local traffic policy and no endpoints"
            ALPHA "kubeproxy_proxy_healthz" healthz_answers "Cumulative proxy healthz HTTP status"
            ALPHA "kubeproxy_proxy_livez" livez_answers "Cumulative proxy livez HTTP status"
            ALPHA "kubeproxy_conntrack_reconciler_sync_duration_seconds" flows_duration
                "ReconcileConntrackFlowsLatency latency in seconds"
            ALPHA "kubeproxy_conntrack_reconciler_deleted_entries" flows_deleted
                "Cumulative conntrack flows deleted by conntrack reconciler"
            ALPHA "rest_client_requests" requests
                "Number of HTTP requests, partitioned by status code, method, and host."
            ALPHA "rest_client_request_duration_seconds" request_duration
                "Request latency in seconds. Broken down by verb, and host."
            ALPHA "rest_client_rate_limiter_duration_seconds" request_wait
                "Client side rate limiter latency in seconds. Broken down by verb, and host."
            ALPHA "rest_client_request_size_bytes" request_size
                "Request size in bytes. Broken down by verb and host."
            ALPHA "rest_client_response_size_bytes" answer_size
                "Response size in bytes. Broken down by verb and host."
        }
        if let Some(of_mode) = &self.of_mode {
            of_mode.register(&mut all);
        }
        // Only this program has this metric. So the metric is registered without a stability level,
        // and Kubernetes' counts of metrics by stability exclude it.
        let help = "Objects that were known and that a list no longer named, by kind";
        let vanished = self.vanished.clone();
        all.registry
            .register("kubeproxy_list_vanished_objects", help, vanished);
        let help = "External and load-balancer addresses of Services that are not served, or are \
                    this node's own, by why";
        all.registry.register(
            "kubeproxy_contested_external_addresses",
            help,
            self.contested.clone(),
        );
        let help = "Kernel entries that other programs changed and kube-proxy repaired, by kind";
        let drifted = self.drifted.clone();
        all.registry
            .register("kubeproxy_drifted_entries", help, drifted);
        let help = "Writes to the kernel, by subject and outcome";
        all.registry
            .register("kubeproxy_kernel_writes", help, self.writes.clone());
        let help = "From when a change of a Service or of its endpoints was heard of until all of \
                    the Service was in the kernel, in seconds";
        all.registry.register(
            "kubeproxy_service_programming_duration_seconds",
            help,
            self.programming_duration.clone(),
        );
        all.collect(self.draining.clone());
        let help = "Virtual servers of another mode that stay until their connections end";
        all.registry.register(
            "kubeproxy_former_mode_draining_virtual_servers",
            help,
            self.former_servers.clone(),
        );
        let help = "Connections of virtual servers of another mode";
        all.registry.register(
            "kubeproxy_former_mode_draining_connections",
            help,
            self.former_connections.clone(),
        );
        all.collect(self.standings.clone());
        if let Some(services) = &self.services {
            all.collect(services.clone());
        }
        let build = Family::<Build, Gauge>::default();
        build.get_or_create(&Build::this()).set(1);
        let help = "A metric with a constant '1' value labeled by major, minor, git version, git \
                    commit, git tree state, \
                    build date, Go version, and compiler from which Kubernetes was built, and \
                    platform on which it is running.";
        all.add("BETA", "kubernetes_build_info", help, build);
        let own = Family::<OwnBuild, Gauge>::default();
        own.get_or_create(&OwnBuild {
            version: OWN_VERSION,
            commit: COMMIT,
        })
        .set(1);
        // Only this program has this metric. The metric has no Kubernetes stability level, so the
        // counts of metrics by stability exclude it.
        let help = "A metric with a constant '1' value labeled by the version of kube-proxy-ipvs.";
        all.registry
            .register("kubeproxy_ipvs_build_info", help, own);
        let features = Family::<FeatureLabels, Gauge>::default();
        for (name, stage, is_on) in gates.all() {
            let stage = stage.label();
            let feature = FeatureLabels { name, stage };
            features.get_or_create(&feature).set(is_on.into());
        }
        let help = "This metric records the data about the stage and enablement of a k8s feature.";
        all.add("BETA", "kubernetes_feature_enabled", help, features);
        finish(all)
    }

    fn register_slis(&self) -> Registry {
        let mut rows = Rows::default();
        let help = "This metric records the result of a single healthcheck.";
        let result = self.check_result.clone();
        rows.add("STABLE", "kubernetes_healthcheck", help, result);
        let help = "This metric records the results of all healthcheck.";
        let results = self.check_results.clone();
        rows.add("STABLE", "kubernetes_healthchecks", help, results);
        rows.registry
    }

    /// Returns the start time of this process, in seconds since the epoch.
    pub(crate) fn started_in_seconds(&self) -> u64 {
        let since = self.started.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_secs()
    }

    /// Sets the number of pending changes. The changes request a sync, so this function also
    /// records the time of the request for the IP families that they affect.
    pub(crate) fn queued(&self, changes: &Changes, families: impl Iterator<Item = IpFamily>) {
        set(&self.service_changes_pending, changes.service_changes);
        set(&self.endpoint_changes_pending, changes.slice_changes);
        let now = seconds(SystemTime::now());
        for family in families.filter(|family| changes.concerns(*family)) {
            self.last_queued.get_or_create(&of(family)).set(now);
        }
    }

    /// Counts the changes that a sync starts to write, and sets the number of pending changes to 0.
    pub(crate) fn taken(&self, changes: &Changes) {
        self.service_changes.inc_by(changes.service_changes as u64);
        self.endpoint_changes.inc_by(changes.slice_changes as u64);
        self.service_changes_pending.set(0);
        self.endpoint_changes_pending.set(0);
    }

    /// Reports whether the latency of a change is measured. The change must have been triggered
    /// after the start of this process.
    pub(crate) fn measures(&self, trigger: SystemTime) -> bool {
        trigger > self.started
    }

    /// Creates the metric series of an IP family, with their start values.
    pub(crate) fn begins(&self, family: IpFamily) {
        if let Some(of_mode) = &self.of_mode {
            of_mode.begins(family);
        }
        for subject in EntryKind::ALL {
            for fate in [Fate::Done, Fate::Refused] {
                drop(self.writes.get_or_create(&of_write(family, subject, fate)));
            }
        }
        // Counts the first lists as one request for a sync, as upstream does.
        let now = seconds(SystemTime::now());
        self.last_queued.get_or_create(&of(family)).set(now);
        self.draining.set(family, 0, None);
        self.former_mode_drains(family, (0, 0));
        self.standings.set(family, &Standing::default());
        // Creates the series with a start value. Otherwise a rate would miss the first increment.
        let of_family = of(family);
        drop(self.programming_duration.get_or_create(&of_family));
        drop(self.network_programming_duration.get_or_create(&of_family));
        for kind in Drift::KINDS {
            drop(self.drifted.get_or_create(&of_kind(family, kind)));
        }
    }

    /// Counts the drift and the writes in the results of worker threads (kernel I/O).
    pub(crate) fn booked(&self, family: IpFamily, report: &Report) {
        for (kind, drifted) in report.drift.kinds() {
            let counter = self.drifted.get_or_create(&of_kind(family, kind));
            counter.inc_by(drifted.count as u64);
        }
        for (subject, fate, count) in report.writes.iter() {
            let counter = self.writes.get_or_create(&of_write(family, subject, fate));
            counter.inc_by(count.into());
        }
        if let Some(of_mode) = &self.of_mode {
            of_mode.booked(family, report);
        }
    }

    /// Records that the kernel has a changed Service. `took` is the time since the change arrived.
    pub(crate) fn settled(&self, family: IpFamily, took: Duration) {
        self.programming_duration
            .get_or_create(&of(family))
            .observe(took.as_secs_f64());
    }

    /// Sets the number of draining endpoints, and the time at which the oldest drain began, if any.
    pub(crate) fn drains(&self, family: IpFamily, count: usize, oldest: Option<Instant>) {
        self.draining.set(family, count, oldest);
    }

    /// Sets the numbers of draining virtual servers and connections that an earlier mode left.
    pub(crate) fn former_mode_drains(&self, family: IpFamily, (servers, connections): (u64, u64)) {
        for (gauge, count) in [
            (&self.former_servers, servers),
            (&self.former_connections, connections),
        ] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            gauge.get_or_create(&of(family)).set(count);
        }
    }

    /// Sets the metrics of an IP family's progress, such as the number of pending entries.
    pub(crate) fn stands(&self, family: IpFamily, standing: &Standing) {
        self.standings.set(family, standing);
    }

    /// Sets the metric for the variant of an IP family's entries, such as the layout of its
    /// nftables table.
    pub(crate) fn form(&self, family: IpFamily, form: Option<&'static str>) {
        if let (Some(of_mode), Some(form)) = (&self.of_mode, form) {
            of_mode.form(family, form);
        }
    }

    /// Passes changed Services to the metrics of single Services, if these metrics are enabled.
    pub(crate) fn note(&self, model: &Model, changes: &Changes) {
        if let Some(services) = &self.services {
            services.note(model, changes);
        }
    }

    /// Passes the node addresses on which a family serves NodePorts to the metrics of single
    /// Services.
    pub(crate) fn note_node_ports(&self, family: IpFamily, node_ports: &NodePorts) {
        if let Some(services) = &self.services {
            services.note_node_ports(family, node_ports);
        }
    }

    /// Reports whether rendering the metrics reads kernel counters, which blocks the thread.
    pub(crate) fn reads_kernel(&self) -> bool {
        self.services.is_some()
    }

    /// Returns the extent of the report's sync: partial or full. Returns `None` if the mode does
    /// not distinguish partial and full syncs.
    pub(crate) fn extent(&self, report: &Report) -> Option<SyncExtent> {
        self.of_mode.as_ref()?.extent(report)
    }

    /// Counts a finished sync, and records its duration.
    pub(crate) fn synced(&self, family: IpFamily, took: Duration, extent: Option<SyncExtent>) {
        let duration = self.sync_duration.get_or_create(&of(family));
        duration.observe(took.as_secs_f64());
        if let (Some(of_mode), Some(extent)) = (&self.of_mode, extent) {
            of_mode.synced(family, took, extent);
        }
    }

    /// Records that the kernel has every change that an IP family received before the time
    /// `before`.
    pub(crate) fn complete(&self, family: IpFamily, before: SystemTime) {
        let gauge = self.last_synced.get_or_create(&of(family));
        gauge.set(seconds(before).max(gauge.get()));
    }

    /// Records the network programming latency of changes, by their trigger times.
    pub(crate) fn programmed(&self, family: IpFamily, triggers: impl Iterator<Item = SystemTime>) {
        let mut now = None;
        for trigger in triggers {
            let now = now.get_or_insert_with(SystemTime::now);
            // The trigger time comes from another machine's clock, so it may be in the future.
            let took = now.duration_since(trigger).unwrap_or_default();
            self.network_programming_duration
                .get_or_create(&of(family))
                .observe(took.as_secs_f64());
        }
    }

    /// Sets the numbers of Services whose `Local` traffic policy finds no endpoint on this node.
    fn no_local_endpoints(&self, family: IpFamily, internal: usize, external: usize) {
        for (traffic_policy, count) in [("internal", internal), ("external", external)] {
            let FamilyLabels { ip_family } = of(family);
            let gauge = self.no_local_endpoints.get_or_create(&PolicyLabels {
                ip_family,
                traffic_policy,
            });
            set(&gauge, count);
        }
    }

    /// Records one comparison of UDP conntrack flows with the Services' endpoints: its duration,
    /// and the number of deleted flows.
    pub(crate) fn flows_compared(&self, family: IpFamily, took: Duration, deleted: usize) {
        let of = of(family);
        self.flows_duration
            .get_or_create(&of)
            .observe(took.as_secs_f64());
        self.flows_deleted.get_or_create(&of).inc_by(deleted as u64);
    }

    pub(crate) fn healthz_answered(&self, status: StatusCode) {
        let code = status.as_u16();
        self.healthz_answers
            .get_or_create(&CodeLabels { code })
            .inc();
    }

    pub(crate) fn livez_answered(&self, status: StatusCode) {
        let code = status.as_u16();
        self.livez_answers.get_or_create(&CodeLabels { code }).inc();
    }

    /// Counts a response of `/healthz` on the metrics server. The response shows only that the
    /// process is alive.
    pub(crate) fn pinged(&self) {
        let (name, r#type, status) = ("ping", "healthz", "success");
        let check = CheckLabels { name, r#type };
        self.check_result.get_or_create(&check).set(1);
        let check = CheckStatusLabels {
            name,
            status,
            r#type,
        };
        self.check_results.get_or_create(&check).inc();
    }

    /// Resets the metrics of `/metrics/slis`, as `DELETE` requests.
    pub(crate) fn reset_slis(&self) {
        self.check_result.clear();
        self.check_results.clear();
    }

    /// Counts a request to the API server. If no response arrived, `code` is `<error>`, as in
    /// client-go.
    fn requested(&self, host: &str, method: &str, code: &str) {
        let of = RequestLabels {
            code: code.to_owned(),
            host: host.to_owned(),
            method: method.to_owned(),
        };
        self.requests.get_or_create(&of).inc();
    }

    /// Returns all metrics as OpenMetrics text, version 1.0.0.
    pub fn openmetrics(&self) -> String {
        exposition::openmetrics(&self.registry)
    }

    /// Returns all metrics in Prometheus' own text format, version 0.0.4.
    pub fn classic(&self) -> String {
        exposition::classic(&self.openmetrics())
    }

    /// Returns the metrics of `/metrics/slis` in Prometheus' own text format, version 0.0.4.
    pub(crate) fn slis(&self) -> String {
        exposition::classic(&exposition::openmetrics(&self.slis))
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Adds the metrics about metrics, such as `registered_metrics`, and the metrics `process_*`.
fn finish(mut rows: Rows) -> Registry {
    let none = Counter::<u64>::default;
    let help = "The count of disabled metrics.";
    rows.add("BETA", "disabled_metrics", help, none());
    let help = "The count of hidden metrics.";
    rows.add("BETA", "hidden_metrics", help, none());
    let registered = Family::<StabilityLabels, Counter>::default();
    let help = "The count of registered metrics broken by stability level and deprecation version.";
    rows.add("BETA", "registered_metrics", help, registered.clone());
    for (stability_level, count) in rows.counts {
        let of = StabilityLabels {
            deprecated_version: "",
            stability_level,
        };
        registered.get_or_create(&of).inc_by(count);
    }
    let process = Box::new(process::Process);
    rows.registry.register_collector(process);
    rows.registry
}

/// Converts a time to seconds since the epoch.
fn seconds(at: SystemTime) -> f64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// Parses text in the format of `/proc` files. Entry point for fuzzing.
pub(crate) fn read_proc(text: &str) {
    process::read(text);
}

#[cfg(test)]
mod tests;
