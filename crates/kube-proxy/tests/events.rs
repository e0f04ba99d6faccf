//! Tests of Kubernetes events with the API server fixture, and with servers that reject events or
//! are unreachable.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

#[path = "../../source/tests/common/scripted.rs"]
mod scripted;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use apiserver::{Options, Server};
use kube::Client;
use kube_proxy::events::{EVENTS_MAX, Event, Recorder};
use proxy::{Conflict, Model, NamespacedName, Protocol, Service, ServicePortName};
use scripted::Scripted;
use serde_json::{Value, json};
use source::{Api, api};
use tracing::instrument::WithSubscriber as _;

async fn client(url: &str) -> Client {
    let settings = Api {
        master: Some(url.to_owned()),
        ..Api::default()
    };
    let server = api::Server::new(&settings, source::uncounted).await;
    let server = server.ok().unwrap();
    server.client().clone()
}

async fn fixture() -> (Server, Client) {
    let server = Server::start(Options::default()).await.unwrap();
    let client = client(&format!("http://{}", server.address())).await;
    (server, client)
}

/// Returns a model with two Services that claim the same addresses. Both Services have uids.
fn model() -> Model {
    let mut model = Model::new();
    for (name, uid) in [("older", "uid-1"), ("younger", "uid-2")] {
        model.apply(proxy::Event::ServiceApplied(Service {
            uid: uid.into(),
            external_ips: vec!["192.0.2.20".parse().unwrap()],
            ..Service::at(
                NamespacedName::new("shop", name),
                ["10.96.0.1".parse().unwrap()],
            )
        }));
    }
    model
}

/// Returns the event about a conflict at `port` of 192.0.2.20.
fn conflict(port: usize) -> Event {
    let name = |name| ServicePortName {
        service: NamespacedName::new("shop", name),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let conflict = Conflict {
        object: format!("192.0.2.20:{port}/TCP"),
        winner: name("older"),
        loser: name("younger"),
    };
    Event::address_conflict(&conflict, &model())
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_mins(1), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Records an event about the Node, and waits for it. Returns all earlier events, which are about
/// other objects.
async fn others(server: &Server, recorder: &Recorder) -> Vec<Value> {
    let is_nodes = |event: &Value| event["regarding"]["kind"] == "Node";
    recorder.record(Event::starting("node1", "ipvs"));
    let cluster = server.cluster();
    until("the last one is told", || {
        cluster.events().iter().any(is_nodes)
    })
    .await;
    let mut events = cluster.events();
    events.retain(|event| !is_nodes(event));
    events
}

/// Returns an event without its variable fields. Panics if such a field is missing.
fn constant(mut event: Value) -> Value {
    let time = event["eventTime"].take();
    let time = time.as_str().unwrap();
    assert!(time.ends_with('Z') && time.contains('.'), "{time}");
    let prefix = format!("{}.", event["regarding"]["name"].as_str().unwrap());
    let name = event["metadata"]["name"].as_str().unwrap();
    let suffix = name.strip_prefix(&prefix).unwrap();
    assert_eq!(suffix.len(), 16, "{name}");
    let namespace = event["metadata"]["namespace"].take();
    event["metadata"] = json!({ "namespace": namespace });
    event
}

#[tokio::test]
async fn a_missing_proxy_mode_is_a_warning_event_on_the_node() {
    let (server, client) = fixture().await;
    let note = "--proxy-mode is empty".to_owned();
    Recorder::start(client, "node1").record(Event::mode_not_set("node1", note));
    until("it is told", || !server.cluster().events().is_empty()).await;
    let event = constant(server.cluster().events().pop().unwrap());
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "ProxyModeNotSet");
    assert_eq!(event["regarding"]["name"], "node1");
    assert_eq!(event["note"], "--proxy-mode is empty");
}

#[tokio::test]
async fn the_start_causes_an_event_on_the_node() {
    for (mode, note) in [
        ("ipvs", "kube-proxy starts to carry Services in ipvs mode"),
        (
            "iptables",
            "kube-proxy starts to carry Services in iptables mode",
        ),
    ] {
        let (server, client) = fixture().await;
        Recorder::start(client, "node1").record(Event::starting("node1", mode));
        until("it is told", || !server.cluster().events().is_empty()).await;
        let event = server.cluster().events().pop().unwrap();
        assert_eq!(
            constant(event),
            json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"namespace": "default"}, "eventTime": null,
                "type": "Normal", "reason": "Starting", "action": "StartKubeProxy", "note": note,
                "regarding": {"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "node1"},
                "reportingController": "kube-proxy", "reportingInstance": "kube-proxy-node1",
            })
        );
    }
}

#[tokio::test]
async fn an_address_conflict_is_one_event_on_the_losing_service() {
    let (server, client) = fixture().await;
    let recorders = ["node1", "node2"].map(|node| Recorder::start(client.clone(), node));
    for recorder in &recorders {
        recorder.record(conflict(80));
        recorder.record(conflict(80));
    }
    for recorder in &recorders {
        others(&server, recorder).await;
    }
    let [event] = &others(&server, &recorders[0]).await[..] else {
        panic!("{:?}", server.cluster().events());
    };
    let mut event = constant(event.clone());
    let instance = event["reportingInstance"].take();
    assert!(["kube-proxy-node1", "kube-proxy-node2"].contains(&instance.as_str().unwrap()));
    assert_eq!(
        event,
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"namespace": "shop"}, "eventTime": null,
            "type": "Warning", "reason": "AddressConflict", "action": "SyncProxyRules",
            "note": "192.0.2.20:80/TCP is also claimed by Service shop/older:http, which gets it as the older Service or \
                     the first by name. This Service takes over when the other one no longer claims it",
            "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "younger", "uid": "uid-2"},
            "reportingController": "kube-proxy", "reportingInstance": null,
        })
    );
    let posts = server.requests();
    let posts = posts.iter().filter(|request| request.method == "POST");
    assert!(
        posts.clone().count() <= 2 + 3,
        "each node tells a conflict once: {posts:?}"
    );
}

#[tokio::test]
async fn a_health_check_port_in_use_is_an_event_on_the_service() {
    let (server, client) = fixture().await;
    let recorder = Recorder::start(client, "node1");
    let service = NamespacedName::new("shop", "younger");
    let taken = io::Error::from_raw_os_error(98);
    recorder.record(Event::health_check_failed(
        &service,
        &model(),
        "node1",
        "[::]:30999",
        &taken,
    ));
    let event = constant(others(&server, &recorder).await.remove(0));
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "FailedToStartServiceHealthcheck");
    assert_eq!(event["action"], "Listen");
    assert_eq!(event["regarding"]["uid"], "uid-2");
    let note = event["note"].as_str().unwrap();
    for part in ["node1", "[::]:30999", "in use"] {
        assert!(note.contains(part), "{note}");
    }
}

/// Checks that a full queue for an unreachable API server delays no caller, and that the queued
/// events are sent once the server is reachable again.
#[tokio::test]
async fn event_senders_do_not_wait_for_an_unreachable_api_server() {
    let (server, client) = fixture().await;
    let (address, cluster) = (server.address(), server.cluster().clone());
    server.stop().await;
    let recorder = Recorder::start(client, "node1");
    let started = Instant::now();
    for port in 0..10_000 {
        recorder.record(conflict(port));
    }
    assert!(started.elapsed() < Duration::from_secs(5));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.events(), [Value::Null; 0]);
    let options = Options {
        address,
        ..Options::default()
    };
    let _server = Server::start_on(cluster.clone(), options).await.unwrap();
    until("those that fit are told", || {
        cluster.events().len() >= EVENTS_MAX
    })
    .await;
    recorder.record(conflict(10_001));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(cluster.events().len(), EVENTS_MAX, "no more than that");
}

/// Target of this program's log lines. Lines of libraries appear only at high verbosity.
const OWN: &str = "kube_proxy::events";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines(&self, part: &str) -> usize {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(part)).count()
    }
}

/// Runs a test, and returns its log lines at level INFO and above.
async fn logged(story: impl Future<Output = ()>) -> Log {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // The task that the test spawns runs on the same thread, so this subscriber also receives the
    // task's log lines.
    let guard = tracing::subscriber::set_default(subscriber);
    story.with_current_subscriber().await;
    drop(guard);
    log
}

fn refusal(code: u16, cause: &str) -> (u16, String) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Forbidden",
        "message": "events.events.k8s.io is forbidden: User \"system:kube-proxy\" cannot create it",
        "details": {"causes": [{"reason": cause}]},
    });
    (code, status.to_string())
}

#[tokio::test]
async fn forbidden_events_are_logged_once_with_the_missing_rule() {
    let log = logged(async {
        let server = Scripted::new(|_| refusal(403, "")).await.unwrap();
        let recorder = Recorder::start(client(&server.url()).await, "node1");
        for port in 1..=3 {
            recorder.record(conflict(port));
        }
        until("each is tried", || server.asked("/shop/events") == 3).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(server.asked("/shop/events"), 3, "and not again");
    })
    .await;
    assert_eq!(log.lines(OWN), 1);
    assert_eq!(log.lines("`create` on `events`"), 1);
}

#[tokio::test]
async fn events_in_a_terminating_namespace_are_not_reported_as_forbidden() {
    let log = logged(async {
        let server = Scripted::new(|_| refusal(403, "NamespaceTerminating")).await;
        let server = server.unwrap();
        let recorder = Recorder::start(client(&server.url()).await, "node1");
        recorder.record(conflict(80));
        until("it is tried", || server.asked("/shop/events") == 1).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    })
    .await;
    assert_eq!(log.lines(OWN), 0);
}

#[tokio::test]
async fn events_are_retried_while_the_api_server_returns_errors() {
    let is_well = Arc::new(AtomicBool::new(false));
    let state = Arc::clone(&is_well);
    let log = logged(async {
        let server = Scripted::new(move |_| {
            let is_well = state.load(Ordering::SeqCst);
            refusal(if is_well { 409 } else { 503 }, "")
        })
        .await
        .unwrap();
        let recorder = Recorder::start(client(&server.url()).await, "node1");
        recorder.record(conflict(80));
        until("it is tried", || server.asked("/shop/events") > 0).await;
        is_well.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(4)).await;
        recorder.record(conflict(80));
        tokio::time::sleep(Duration::from_millis(200)).await;
        let asked = server.asked("/shop/events");
        assert_eq!(asked, 2, "until it is there, and never again");
    })
    .await;
    assert_eq!(log.lines(OWN), 0, "no line about it");
}
