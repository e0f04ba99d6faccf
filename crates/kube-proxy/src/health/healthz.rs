//! The proxy's own health, for load balancers, probes and operators (`--healthz-bind-address`).
//!
//! | path       | 200 if                                                                         |
//! |------------|--------------------------------------------------------------------------------|
//! | `/livez`   | each family wrote an entry, or had none pending, in the last two sync periods  |
//! | `/healthz` | `/livez` returns 200, and the Node exists and is not being deleted             |
//! | `/readyz`  | every object of the first lists is in the kernel, in every family              |
//!
//! If the condition is false, the response is 503. All paths return 503 if the daemon's loop hangs.
//! Bodies and headers of `/livez` and `/healthz` are the same as upstream's
//! (`pkg/proxy/healthcheck/proxy_health.go`). Upstream has no `/readyz`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

use http::StatusCode;
use http::request::Parts;
use http_server::{Answer, Purpose, answer, not_found};
use inspect::Health as _;
use k8s_openapi::jiff::Timestamp;
use proxy::{IpFamily, Kind, Model};
use serde::Serialize;

use crate::config::options::object_source::OwnNode;
use crate::health::{Health, Progress};
use crate::metrics::Metrics;

/// Names of the health server in the log, in the flags and in Kubernetes events.
pub(crate) const PURPOSE: Purpose = Purpose {
    name: "the proxy's health",
    flag: "healthz-bind-address",
    event: "FailedToStartProxierHealthcheck",
};

/// Kinds of objects whose first lists must be complete before the proxy writes to the kernel.
const LISTS: [Kind; 2] = [Kind::Service, Kind::EndpointSlice];

/// Zero value of Go's `time.Time`, as upstream prints it.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// State from which the health server responds. The daemon's loop updates it.
#[derive(Debug)]
pub(crate) struct Status {
    health: Arc<Health>,
    own_node: OwnNode,
    is_node_eligible: AtomicBool,
    /// Served IP families, set once the first lists are complete.
    families: OnceLock<Vec<IpFamily>>,
    awaited: Mutex<StartConditions>,
}

/// Conditions that must hold before the daemon serves.
#[derive(Debug)]
struct StartConditions {
    /// Time at which the daemon began to wait.
    since: Instant,
    /// Kinds of objects whose first list is not complete yet.
    lists: Vec<Kind>,
    /// True while the daemon waits for this node's Node object.
    node: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxyHealth {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<String, FamilyHealth>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyHealth {
    last_updated: String,
    healthy: bool,
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    awaiting: Vec<String>,
}

impl Status {
    /// Creates the status for the start of the process.
    pub(crate) fn new(health: Arc<Health>, own_node: OwnNode) -> Self {
        Self {
            health,
            own_node,
            is_node_eligible: AtomicBool::new(true),
            families: OnceLock::new(),
            awaited: Mutex::new(StartConditions {
                since: Instant::now(),
                lists: LISTS.to_vec(),
                node: true,
            }),
        }
    }

    /// Records which first lists are complete, and whether this node's Node object has arrived.
    pub(crate) fn note_lists(&self, model: &Model) {
        let mut awaited = self.lock();
        awaited.lists.retain(|kind| !model.is_listed(*kind));
        let is_none = model.is_node_listed() && self.own_node == OwnNode::Optional;
        awaited.node = model.node().is_none() && !is_none;
    }

    fn lock(&self) -> MutexGuard<'_, StartConditions> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the first lists are complete and that the sync of `families` begins.
    pub(crate) fn expect(&self, families: Vec<IpFamily>) {
        // Cannot fail: a process starts once, so no earlier call has set the families.
        let _ = self.families.set(families);
        self.lock().since = Instant::now();
    }

    /// Records whether this node may receive traffic, by the state of its Node object.
    pub(crate) fn note_node(&self, model: &Model) {
        let is_eligible = match (model.has_node(), model.node()) {
            (Some(true), Some(node)) => !node.is_leaving,
            (Some(false), None) => self.own_node == OwnNode::Optional,
            (Some(false), Some(_)) => false,
            // The Node is not listed yet or is unreadable. The node then counts as eligible for
            // traffic.
            (None, _) | (Some(true), None) => true,
        };
        self.is_node_eligible.store(is_eligible, Ordering::Relaxed);
    }

    /// Returns the response to a request. Counts the responses of `/healthz` and `/livez` in
    /// `metrics`.
    pub(crate) fn respond(&self, head: &Parts, metrics: &Metrics) -> Answer {
        match head.uri.path() {
            "/healthz" => {
                let is_eligible = self.is_node_eligible.load(Ordering::Relaxed);
                let (status, answer) = self.health(Some(is_eligible));
                metrics.healthz_answered(status);
                answer
            }
            "/livez" => {
                let (status, answer) = self.health(None);
                metrics.livez_answered(status);
                answer
            }
            "/readyz" => self.readiness(),
            _ => not_found(),
        }
    }

    fn health(&self, node_eligible: Option<bool>) -> (StatusCode, Answer) {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let time = |at: Instant| {
            let ago = now.saturating_duration_since(at);
            wall.checked_sub(ago).map_or_else(|| NEVER.to_owned(), text)
        };
        let progress = self.health.progress();
        let families = progress.iter().map(|(family, progress)| {
            let health = FamilyHealth {
                last_updated: progress.updated.map_or_else(|| NEVER.to_owned(), time),
                healthy: self.health.keeps_up(progress, now),
            };
            (family.to_string(), health)
        });
        let status: BTreeMap<_, _> = families.collect();
        let is_alive = self.health.hung_for(now).is_none();
        let healthy = is_alive && status.values().all(|family| family.healthy);
        let code = code(healthy && node_eligible.unwrap_or(true));
        let last_updated = if code == StatusCode::OK {
            // A healthy proxy reports the current time, as in upstream.
            text(wall)
        } else {
            let updated = progress.values().filter_map(|progress| progress.updated);
            updated.max().map_or_else(|| NEVER.to_owned(), time)
        };
        let health = ProxyHealth {
            last_updated,
            current_time: text(wall),
            node_eligible,
            healthy,
            status,
        };
        (code, json(code, &health))
    }

    fn readiness(&self) -> Answer {
        let awaiting = self.awaiting();
        let ready = awaiting.is_empty();
        json(code(ready), &Readiness { ready, awaiting })
    }
}

impl inspect::Health for Status {
    fn is_expecting(&self) -> bool {
        self.families.get().is_some()
    }

    fn is_healthy(&self, now: Instant) -> bool {
        self.health.is_healthy(now)
    }

    fn updated(&self) -> BTreeMap<IpFamily, Instant> {
        let progress = self.health.progress().into_iter();
        let updated = progress.map(|(family, progress)| Some((family, progress.updated?)));
        updated.flatten().collect()
    }

    /// Returns the reasons why the daemon is not ready, one text each.
    fn awaiting(&self) -> Vec<String> {
        if let Some(hung) = self.health.hung_for(Instant::now()) {
            return vec![format!(
                "the daemon's loop, which has not come round for {} s: it hangs, and a restart is \
                 needed",
                hung.as_secs()
            )];
        }
        let awaited = self.lock();
        let seconds = awaited.since.elapsed().as_secs();
        match self.families.get() {
            None => vec![format!("{}, for {seconds} s now", awaited.words())],
            Some(families) => {
                let progress = self.health.progress();
                let awaited =
                    families.iter().filter_map(|family| {
                        let progress = progress.get(family).copied().unwrap_or_default();
                        let Progress {
                            updated,
                            pending,
                            failing,
                            ..
                        } = progress;
                        updated.is_none().then(|| format!(
                        "{family}: the initial state is not in the kernel after {seconds} s; \
                         {pending} entries are pending, {failing} of them were rejected, see the \
                         log"
                    ))
                    });
                awaited.collect()
            }
        }
    }
}

impl StartConditions {
    fn words(&self) -> String {
        let node = if self.node { ", and the own Node" } else { "" };
        match &*self.lists {
            [] if self.node => "the own Node".to_owned(),
            // All lists are complete. The process still waits for the kernel, which it opens in
            // parallel.
            [] => "the kernel to be opened for this mode: see the log".to_owned(),
            [Kind::Service] => format!("the first list of Services{node}"),
            [Kind::EndpointSlice] => format!("the first list of EndpointSlices{node}"),
            _ => format!("the first lists of Services and EndpointSlices{node}"),
        }
    }
}

fn code(is_well: bool) -> StatusCode {
    if is_well {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    // Cannot fail: the body has only strings and booleans.
    let body = serde_json::to_vec(body).unwrap_or_default();
    answer(status, "application/json", body)
}

/// Formats a time as Go does: RFC 3339 with nanoseconds.
fn text(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| NEVER.to_owned(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_server::{self, ConflictPolicy, Server, testing::get};
    use proxy::{Event, Node, Standing};
    use serde_json::Value;

    use super::*;
    use crate::health::pulse::HUNG_AFTER;

    const PERIOD: Duration = Duration::from_secs(30);

    struct World {
        health: Arc<Health>,
        status: Arc<Status>,
        metrics: Metrics,
        server: Server,
    }

    impl World {
        fn new() -> Self {
            let health = Arc::new(Health::new(PERIOD));
            let status = Arc::new(Status::new(Arc::clone(&health), OwnNode::Needed));
            let metrics = Metrics::new();
            let (answers, counts) = (Arc::clone(&status), metrics.clone());
            let respond = move |head: &Parts| answers.respond(head, &counts);
            let server = http_server::start(
                PURPOSE,
                "127.0.0.1:0".parse().unwrap(),
                ConflictPolicy::Fail,
                respond,
            )
            .unwrap();
            Self {
                health,
                status,
                metrics,
                server,
            }
        }

        /// Records the progress of an IP family that started five sync periods ago. `pending` is
        /// the age of the oldest pending entry, and `stuck` is the time since the last write.
        fn note(&self, family: IpFamily, pending: Option<Duration>, stuck: Option<Duration>) {
            let now = Instant::now();
            let ago = |age: Duration| now.checked_sub(age).unwrap();
            let standing = Standing {
                pending_since: pending.map(|age| ago(age.min(PERIOD * 5))),
                stuck_since: stuck.map(ago),
                pending: 12,
                is_settled: true,
                ..Standing::default()
            };
            self.health
                .note(family, &standing, Some(ago(PERIOD * 5)), now);
        }

        /// Returns the status and the body of a response.
        async fn ask(&self, path: &str) -> (u16, Value) {
            let (head, body) = get(&self.server, &format!("GET {path}")).await;
            assert!(head.contains("Content-Type: application/json\n"), "{head}");
            assert!(head.contains("X-Content-Type-Options: nosniff\n"), "{head}");
            let code = head.split(' ').nth(1).unwrap().parse().unwrap();
            (code, serde_json::from_str(&body).unwrap())
        }

        async fn codes(&self) -> [u16; 3] {
            let mut codes = [0; 3];
            for (code, path) in codes.iter_mut().zip(["/livez", "/healthz", "/readyz"]) {
                *code = self.ask(path).await.0;
            }
            codes
        }
    }

    fn node(is_leaving: bool) -> Event {
        Event::NodeApplied(Node {
            is_leaving,
            ..Node::default()
        })
    }

    #[tokio::test]
    async fn readyz_waits_for_the_first_sync_of_each_ip_family() {
        let world = World::new();
        assert_eq!(world.codes().await, [200, 200, 503]);
        let (_, body) = world.ask("/readyz").await;
        assert!(body["awaiting"][0].as_str().unwrap().contains("lists"));
        world.status.expect(IpFamily::ALL.into());
        world.note(IpFamily::V4, None, None);
        world.note(IpFamily::V6, Some(PERIOD * 5), None);
        let (code, body) = world.ask("/readyz").await;
        assert_eq!((code, &body["ready"]), (503, &Value::Bool(false)));
        let awaited = body["awaiting"].as_array().unwrap();
        assert_eq!(awaited.len(), 1);
        assert!(awaited[0].as_str().unwrap().starts_with("IPv6: "));
        world.note(IpFamily::V6, None, None);
        let ready = (200, serde_json::json!({"ready": true}));
        assert_eq!(world.ask("/readyz").await, ready);
        world.note(IpFamily::V6, Some(PERIOD * 3), Some(PERIOD * 3));
        assert_eq!(world.codes().await, [503, 503, 200], "what is served stays");
    }

    #[tokio::test]
    async fn a_hung_main_loop_fails_livez_and_readyz() {
        let world = World::new();
        world.status.expect([IpFamily::V4].into());
        world.note(IpFamily::V4, None, None);
        assert_eq!(world.codes().await, [200, 200, 200]);
        // The loop has not replied to the first probe yet. That probe is recent, so the loop does
        // not count as hung.
        assert_eq!(world.codes().await, [200, 200, 200], "it may be busy");
        let ago = |seconds| Instant::now().checked_sub(HUNG_AFTER + Duration::from_secs(seconds));
        world.health.pulse().answer(ago(1).unwrap());
        assert_eq!(world.health.hung_for(ago(0).unwrap()), None);
        assert_eq!(world.codes().await, [503, 503, 503]);
        let (_, body) = world.ask("/readyz").await;
        let awaited = body["awaiting"][0].as_str().unwrap();
        assert!(awaited.starts_with("the daemon's loop"), "{awaited}");
        world.health.pulse().answer(Instant::now());
        assert_eq!(world.codes().await, [200, 200, 200]);
    }

    #[tokio::test]
    async fn the_health_response_bodies_equal_those_of_upstream() {
        let world = World::new();
        let (_, body) = get(&world.server, "GET /livez").await;
        let now = Timestamp::now().to_string();
        let (day, _) = now.split_once('T').unwrap();
        let start = format!(r#"{{"lastUpdated":"{day}T"#);
        assert!(body.starts_with(&start), "{body}");
        assert!(body.ends_with(r#"Z","healthy":true}"#), "{body}");

        world.note(IpFamily::V4, Some(PERIOD * 4), Some(PERIOD * 3));
        world.note(IpFamily::V6, Some(PERIOD * 5), Some(Duration::ZERO));
        let (code, body) = world.ask("/healthz").await;
        assert_eq!(code, 503);
        let keys: Vec<_> = body.as_object().unwrap().keys().collect();
        let wanted = [
            "currentTime",
            "healthy",
            "lastUpdated",
            "nodeEligible",
            "status",
        ];
        assert_eq!(keys, wanted);
        assert_eq!(body["nodeEligible"], true);
        assert_eq!(body["healthy"], false);
        assert_eq!(body["status"]["IPv4"]["healthy"], false);
        assert_eq!(body["status"]["IPv4"]["lastUpdated"], body["lastUpdated"]);
        let never = serde_json::json!({"lastUpdated": NEVER, "healthy": true});
        assert_eq!(body["status"]["IPv6"], never);
        let time = |field: &str| body[field].as_str().unwrap().parse::<Timestamp>().unwrap();
        let age = time("currentTime").duration_since(time("lastUpdated"));
        assert_eq!(age.as_secs(), 120);
        assert!(world.ask("/livez").await.1.get("nodeEligible").is_none());
        let (head, _) = get(&world.server, "GET /").await;
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
        let text = world.metrics.classic();
        assert!(
            text.contains("kubeproxy_proxy_healthz_total{code=\"503\"} 1\n"),
            "{text}"
        );
        assert!(
            text.contains("kubeproxy_proxy_livez_total{code=\"503\"} 1\n"),
            "{text}"
        );
        assert!(
            text.contains("kubeproxy_proxy_livez_total{code=\"200\"} 1\n"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_node_being_deleted_fails_healthz_but_not_livez() {
        let world = World::new();
        let mut model = Model::new();
        let mut told = |event| {
            model.apply(event);
            world.status.note_node(&model);
        };
        told(node(false));
        assert_eq!(world.codes().await, [200, 200, 503]);
        told(node(true));
        let (code, body) = world.ask("/healthz").await;
        assert_eq!(
            (code, &body["nodeEligible"], &body["healthy"]),
            (503, &false.into(), &true.into())
        );
        assert_eq!(world.codes().await, [200, 503, 503]);
        told(node(false));
        assert_eq!(world.codes().await, [200, 200, 503]);
        told(Event::NodeDeleted("".into()));
        assert_eq!(world.codes().await, [200, 503, 503]);
    }
}
