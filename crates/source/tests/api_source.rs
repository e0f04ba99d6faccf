//! Tests of the API source with the API server fixture, and with servers that send wrong responses.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "what is read and logged is for other tests")]
mod common;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use apiserver::{Options, Server, WatchCache};
use common::scripted::Scripted;
use common::{ReceivedState, name, services};
use futures::StreamExt as _;
use proxy::{Event, Kind};
use serde_json::{Value, json};
use source::{Api, ContentType, Lists};
use tokio::net::TcpListener;

fn service(name: &str, ip: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
           "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80, "protocol": "TCP"}]}})
}

fn slice(service: &str, addresses: &[&str]) -> Value {
    let endpoints: Vec<_> = addresses
        .iter()
        .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}))
        .collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
           "metadata": {"name": format!("{service}-a"), "namespace": "default",
                        "labels": {"kubernetes.io/service-name": service}},
           "ports": [{"name": "", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints})
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
           "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}]}})
}

fn url(server: &Server) -> String {
    format!("http://{}", server.address())
}

fn endpoints(told: &ReceivedState, service: &str) -> Vec<String> {
    let view = told.model.view(&name(service)).unwrap();
    view.slices()
        .flat_map(|slice| slice.endpoints.iter())
        .map(|endpoint| endpoint.address.to_string())
        .collect()
}

/// Query parameters of lists: `STREAMED` of a streamed list, `CACHED` of a list from the watch
/// cache.
const STREAMED: &str = "sendInitialEvents=true";
const CACHED: &str = "limit=500&resourceVersion=0";

async fn follows_a_server(settings: Api, options: Options, asked: &[&str]) {
    let server = Server::start(options).await.unwrap();
    server.apply(service("web", "10.96.0.10")).unwrap();
    server.apply(slice("web", &["10.244.1.5"])).unwrap();
    server.apply(node("node1")).unwrap();
    server.apply(node("node2")).unwrap();
    let mut other = service("other", "10.96.0.11");
    other["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "cilium"});
    server.apply(other).unwrap();
    let mut headless = slice("headless", &["10.244.1.6"]);
    headless["metadata"]["labels"]["service.kubernetes.io/headless"] = json!("");
    server.apply(headless).unwrap();
    server.apply(service("headless", "None")).unwrap();

    let mut told = ReceivedState::with(url(&server), "node1", settings).await;
    told.until_listed().await;
    assert!(told.model.is_whole());
    assert_eq!(services(&told.model), ["web"].into());
    assert_eq!(endpoints(&told, "web"), ["10.244.1.5"]);
    assert_eq!(told.model.node().map(|node| &*node.name), Some("node1"));
    assert!(
        !told.log.iter().any(
            |event| matches!(event, Event::SliceApplied(slice) if slice.name == name("headless-a"))
        ),
        "the server selects"
    );

    server.apply(service("dns", "10.96.0.53")).unwrap();
    told.until_services(&["dns", "web"]).await;
    server
        .apply(slice("web", &["10.244.1.5", "10.244.2.5"]))
        .unwrap();
    told.until("two endpoints", |model| {
        model
            .view(&name("web"))
            .is_some_and(|view| view.slices().all(|slice| slice.endpoints.len() == 2))
    })
    .await;
    server
        .delete(apiserver::Kind::EndpointSlice, "default", "web-a")
        .unwrap();
    told.until("no endpoint", |model| {
        model
            .view(&name("web"))
            .is_some_and(|view| view.slices().count() == 0)
    })
    .await;
    // The Service gets a label that the watch's selector excludes. It is not deleted.
    let mut web = service("web", "10.96.0.10");
    web["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "cilium"});
    server.apply(web).unwrap();
    told.until_services(&["dns"]).await;

    let requests = server.requests();
    for part in [STREAMED, CACHED] {
        let lists = requests.iter().filter(|one| one.query.contains(part));
        let wanted = if asked.contains(&part) { 3 } else { 0 };
        assert_eq!(lists.count(), wanted, "{part}");
    }
    let of_all = requests.iter().map(|one| one.query.as_str());
    assert_eq!(
        of_all.filter(|query| !query.contains("watch=true")).count(),
        3 * usize::from(asked.contains(&CACHED))
    );
}

/// Checks that the source follows a server, first with protobuf as the requested content type, then
/// with JSON.
async fn follows_servers(lists: Lists, options: fn() -> Options, asked: &[&str]) {
    for content_type in [ContentType::Protobuf, ContentType::Json] {
        let settings = Api {
            lists,
            content_type,
            ..Api::default()
        };
        follows_a_server(settings, options(), asked).await;
    }
}

fn without_streams() -> Options {
    Options {
        watch_list: false,
        ..Options::default()
    }
}

fn without_watch_cache() -> Options {
    Options {
        watch_cache: WatchCache::Absent,
        ..Options::default()
    }
}

#[tokio::test]
async fn the_source_follows_an_api_server() {
    follows_servers(Lists::Cached, Options::default, &[CACHED]).await;
}

#[tokio::test]
async fn the_source_follows_an_api_server_without_watch_cache() {
    follows_servers(Lists::Cached, without_watch_cache, &[CACHED]).await;
}

#[tokio::test]
async fn the_source_follows_an_api_server_with_streamed_lists() {
    follows_servers(Lists::Streamed, Options::default, &[STREAMED]).await;
}

#[tokio::test]
async fn the_source_follows_an_api_server_without_streamed_lists() {
    follows_servers(Lists::Streamed, without_streams, &[STREAMED, CACHED]).await;
}

#[tokio::test]
async fn a_long_list_without_watch_cache_is_read_in_pages() {
    let server = Server::start(without_watch_cache()).await.unwrap();
    for i in 0..1201 {
        server
            .apply(service(
                &format!("s{i}"),
                &format!("10.96.{}.{}", 10 + i / 250, 1 + i % 250),
            ))
            .unwrap();
    }
    let mut told = ReceivedState::by(url(&server), "node1").await;
    told.until_listed().await;
    assert_eq!(services(&told.model).len(), 1201);
    let pages = server
        .requests()
        .iter()
        .filter(|request| {
            request.path.ends_with("/services") && request.query.contains("limit=500")
        })
        .count();
    assert_eq!(pages, 3);
}

#[tokio::test]
async fn a_restart_of_the_api_server_loses_no_object() {
    let server = Server::start(Options::default()).await.unwrap();
    let address = server.address();
    server.apply(service("web", "10.96.0.10")).unwrap();
    server.apply(service("old", "10.96.0.11")).unwrap();
    let mut told = ReceivedState::by(url(&server), "node1").await;
    told.until_listed().await;

    let cluster = server.cluster().clone();
    server.stop().await;
    cluster.apply(service("dns", "10.96.0.53")).unwrap();
    cluster
        .delete(apiserver::Kind::Service, "default", "old")
        .unwrap();
    told.for_a_moment().await;
    assert_eq!(
        services(&told.model),
        ["old", "web"].into(),
        "what was known stays"
    );
    let before = told.log.len();
    let again = Server::start_on(
        cluster,
        Options {
            address,
            ..Options::default()
        },
    )
    .await
    .unwrap();
    told.until_services(&["dns", "web"]).await;
    assert!(
        !told.log[before..].contains(&Event::ListStarted(Kind::Service)),
        "the watch goes on where it was"
    );

    // The server has lost its history, so the source lists all objects again.
    let cluster = again.cluster().clone();
    again.stop().await;
    cluster
        .delete(apiserver::Kind::Service, "default", "dns")
        .unwrap();
    cluster.apply(service("new", "10.96.0.12")).unwrap();
    cluster.compact();
    let _server = Server::start_on(
        cluster,
        Options {
            address,
            ..Options::default()
        },
    )
    .await
    .unwrap();
    told.until_services(&["new", "web"]).await;
    assert!(told.log[before..].contains(&Event::ListStarted(Kind::Service)));
}

#[tokio::test]
async fn the_source_finds_an_api_server_that_starts_later() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    drop(listener);
    let mut told = ReceivedState::by(format!("http://{address}"), "node1").await;
    told.for_a_moment().await;
    assert_eq!(told.log, []);
    let server = Server::start(Options {
        address,
        ..Options::default()
    })
    .await
    .unwrap();
    server.apply(service("web", "10.96.0.10")).unwrap();
    told.until_services(&["web"]).await;
}

/// Checks that the source reports the server's address before the first object, even if the
/// server's URL has a host name.
#[tokio::test]
async fn an_api_servers_address_is_reported_before_its_objects() {
    let server = Server::start(Options::default()).await.unwrap();
    server.apply(service("web", "10.96.0.10")).unwrap();
    let at = server.address();
    let settings = Api {
        master: Some(format!("http://localhost:{}", at.port())),
        ..Api::default()
    };
    let source = source::api::Server::new(&settings, source::uncounted).await;
    let source = source.unwrap();
    let mut events = source.stream("node1");
    let mut told = Vec::new();
    loop {
        match events.next().await.unwrap() {
            Event::ApiServerAt(addresses) => told = addresses,
            Event::ListStarted(_) => break,
            _ => {}
        }
    }
    assert!(told.contains(&at), "{told:?}");
    let known = source.addresses().known();
    let of_name = known.iter().find(|known| known.at == at).unwrap();
    assert_eq!(of_name.from, "localhost resolves to it");
}

/// Returns the response of a server without streamed lists: a list with `services` for Services, an
/// empty list for another kind, or a silent watch.
fn lists(target: &str, services: &[Value]) -> (u16, String) {
    let (kind, items) = if target.contains("/services") {
        ("ServiceList", services)
    } else if target.contains("/nodes") {
        ("NodeList", &[][..])
    } else {
        ("EndpointSliceList", &[][..])
    };
    if target.contains("sendInitialEvents") {
        (422, "{}".to_owned())
    } else if target.contains("watch=true") {
        (200, "\n".to_owned())
    } else {
        (
            200,
            json!({"kind": kind, "metadata": {"resourceVersion": "9"}, "items": items}).to_string(),
        )
    }
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn undecodable(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "resourceVersion": "8"},
           "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": "http"}]}})
}

#[tokio::test]
async fn an_invalid_object_keeps_its_last_known_state() {
    let turn = Arc::new(AtomicUsize::new(0));
    let turns = Arc::clone(&turn);
    let server = Scripted::new(move |target| {
        if !target.contains("/services") {
            return lists(target, &[]);
        }
        if target.contains("watch=true") && !target.contains("sendInitialEvents") {
            let gone = json!({"kind": "Status", "code": 410, "message": "too old"});
            return match turns.load(Ordering::SeqCst) {
                // Sends an update that cannot be decoded. Then reports that the server has lost its
                // history.
                1 => (
                    200,
                    event("MODIFIED", &undecodable("a")) + &event("ERROR", &gone),
                ),
                _ => (200, "\n".to_owned()),
            };
        }
        if target.contains("sendInitialEvents") {
            return (422, String::new());
        }
        match turns.fetch_add(1, Ordering::SeqCst) {
            0 => lists(
                target,
                &[
                    service("a", "10.96.0.1"),
                    undecodable("never"),
                    service("b", "10.96.0.2"),
                ],
            ),
            _ => lists(target, &[undecodable("a"), undecodable("never")]),
        }
    })
    .await
    .unwrap();
    let mut told = ReceivedState::by(server.url(), "node1").await;
    told.until_listed().await;
    assert_eq!(services(&told.model), ["a", "b"].into());
    assert!(!told.model.is_whole(), "of `never`, nothing is known");
    told.until_services(&["a"]).await;
    assert!(
        told.log
            .contains(&Event::Unreadable(Kind::Service, name("a")))
    );
    assert_eq!(turn.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_object_without_a_name_marks_the_list_as_partial() {
    let server = Scripted::new(|target| {
        lists(
            target,
            &[json!({"spec": {}}), json!(5), service("a", "10.96.0.1")],
        )
    })
    .await
    .unwrap();
    let mut told = ReceivedState::by(server.url(), "node1").await;
    told.until_listed().await;
    assert_eq!(services(&told.model), ["a"].into());
    assert!(!told.model.is_whole());
}

/// Returns a streamed list with `services` for Services, or an empty one for another kind.
fn streams(target: &str, services: &[Value]) -> (u16, String) {
    let end = json!({"metadata": {"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}}});
    let services = if target.contains("/services") {
        services
    } else {
        &[]
    };
    let added = services.iter().map(|service| event("ADDED", service));
    (200, added.chain([event("BOOKMARK", &end)]).collect())
}

/// Follows a server that loses its history, and then replies to all lists with `nonsense`. Checks
/// that the source keeps its Service, and sends few list requests within three seconds.
async fn keeps_what_it_knew(
    is_streamed: bool,
    nonsense: impl Fn(&str) -> (u16, String) + Send + Sync + 'static,
) {
    let is_well = Arc::new(AtomicBool::new(true));
    let state = Arc::clone(&is_well);
    let web = service("a", "10.96.0.1");
    let server = Scripted::new(move |target| {
        let is_watch = target.contains("watch=true") && !target.contains("sendInitialEvents");
        let gone = event("ERROR", &json!({"kind": "Status", "code": 410}));
        match (state.load(Ordering::SeqCst), is_watch) {
            (true, true) => (200, String::new()),
            (true, false) if is_streamed => {
                let (status, body) = streams(target, std::slice::from_ref(&web));
                (status, body.trim_end().to_owned() + "\n" + &gone)
            }
            (true, false) => lists(target, std::slice::from_ref(&web)),
            (false, true) => (200, gone),
            (false, false) => nonsense(target),
        }
    })
    .await
    .unwrap();
    let mut told = if is_streamed {
        ReceivedState::streamed_by(server.url(), "node1").await
    } else {
        ReceivedState::by(server.url(), "node1").await
    };
    told.until_listed().await;
    is_well.store(false, Ordering::SeqCst);
    let before = server.asked("/services");
    told.for_a_moment().await;
    told.for_a_moment().await;
    assert_eq!(services(&told.model), ["a"].into());
    let asked = server.asked("/services") - before;
    assert!(
        (1..15).contains(&asked),
        "{asked} requests in three seconds"
    );
}

#[tokio::test]
async fn invalid_lists_remove_no_object_and_are_requested_rarely() {
    let list = |kind: &str, version: &str| {
        json!({"kind": kind, "metadata": {"resourceVersion": version}, "items": []}).to_string()
    };
    let html = "<html><body>It works!</body></html>\n".to_owned();
    let answers = [
        (200, html.clone()),
        (200, String::new()),
        (200, list("PodList", "9")),
        (200, list("ServiceList", "")),
        (200, "{\"kind\": \"ServiceList\", \"items\": [".to_owned()),
        (403, "no".to_owned()),
        (404, html.clone()),
        (500, html),
    ];
    let mut all = tokio::task::JoinSet::new();
    for answer in answers {
        for is_streamed in [true, false] {
            let answer = answer.clone();
            all.spawn(keeps_what_it_knew(is_streamed, move |_| answer.clone()));
        }
    }
    all.join_all().await;
}

#[tokio::test]
async fn a_truncated_streamed_list_removes_no_object() {
    // The server sends streamed objects, but never the end of the list.
    let count = Arc::new(AtomicUsize::new(0));
    let turns = Arc::clone(&count);
    let server = Scripted::new(move |target| {
        if !target.contains("/services") || !target.contains("sendInitialEvents") {
            return lists(target, &[]);
        }
        let end = json!({"metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}});
        let a = event("ADDED", &service("a", "10.96.0.1"));
        let b = event("ADDED", &service("b", "10.96.0.2"));
        let gone = event("ERROR", &json!({"code": 410}));
        match turns.fetch_add(1, Ordering::SeqCst) {
            0 => (200, a + &b + &event("BOOKMARK", &end) + &gone),
            1 => (200, b.trim_end().to_owned()),
            2 => (200, b + &event("BOOKMARK", &end)),
            _ => (500, String::new()),
        }
    })
    .await
    .unwrap();
    let mut told = ReceivedState::streamed_by(server.url(), "node1").await;
    told.until_services(&["a", "b"]).await;
    told.until("a third list", |_| count.load(Ordering::SeqCst) >= 2)
        .await;
    assert_eq!(services(&told.model), ["a", "b"].into());
    told.until_services(&["b"]).await;
}

/// Checks that the source lists all objects again if the server's storage cannot read a version.
/// Servers before Kubernetes 1.38 reject such a version with status 500, later servers with 400.
#[tokio::test]
async fn a_resource_version_that_the_api_server_rejects_causes_a_new_list() {
    for code in [500, 400] {
        let is_lost = Arc::new(AtomicBool::new(false));
        let has_lost = Arc::clone(&is_lost);
        let server = Scripted::new(move |target| {
            if !target.contains("/services") {
                return lists(target, &[]);
            }
            let names_one =
                target.contains("resourceVersion=") && !target.contains("resourceVersion=0");
            let status = json!({"kind": "Status", "code": code, "reason": "InternalError",
                "message": "resourceVersion: Invalid value: \"1\": invalid syntax"});
            match (has_lost.load(Ordering::SeqCst), names_one) {
                (true, true) => (code, status.to_string()),
                (true, false) => lists(target, &[service("after", "10.96.0.2")]),
                // Ends the watch. From now on, the storage cannot read the version.
                (false, true) => {
                    has_lost.store(true, Ordering::SeqCst);
                    (200, String::new())
                }
                (false, false) => lists(target, &[service("before", "10.96.0.1")]),
            }
        })
        .await
        .unwrap();
        let mut told = ReceivedState::by(server.url(), "node1").await;
        told.until_services(&["before"]).await;
        told.until_services(&["after"]).await;
        assert!(is_lost.load(Ordering::SeqCst));
    }
}

#[tokio::test]
async fn the_source_recovers_from_responses_that_are_not_http() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let garbage = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        while let Ok((mut connection, _)) = listener.accept().await {
            let _ = connection
                .write_all(&[0x16, 0x03, 0x01, b'\n', 0xff, 0x00, b'\r', b'\n'])
                .await;
        }
    });
    for scheme in ["http", "https"] {
        let mut told = ReceivedState::by(format!("{scheme}://{address}"), "node1").await;
        told.for_a_moment().await;
        assert_eq!(told.log, []);
    }
    garbage.abort();
}

#[tokio::test]
async fn a_configuration_error_ends_the_start_immediately() {
    let dir = std::env::temp_dir().join(format!("kubeconfig-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let fixture = Server::start(Options::default()).await.unwrap();
    let good = write("good", &fixture.kubeconfig());
    let server = common::server(Some(&good), None).await.ok().unwrap();
    assert_eq!(server.url(), url(&fixture));
    let server = common::server(Some(&good), Some("https://192.0.2.1:6443"))
        .await
        .ok()
        .unwrap();
    assert_eq!(server.url(), "https://192.0.2.1:6443");
    let server = common::server(None, Some("192.0.2.1:8080"))
        .await
        .ok()
        .unwrap();
    assert_eq!(server.url(), "http://192.0.2.1:8080");

    let none = dir.join("none");
    let broken = write("broken", "clusters: [");
    let empty = write("empty", "apiVersion: v1\nkind: Config\n");
    let with_user = |name: &str, user: &str| {
        let text = fixture.kubeconfig();
        let user = text.replace("user: {}", &format!("user: {{{user}}}"));
        write(name, &user)
    };
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/false, interactiveMode: Never}";
    let exec = with_user("exec", exec);
    let provider = with_user("provider", "auth-provider: {name: gcp}");
    let no_key = with_user(
        "no-key",
        "client-certificate: /nowhere/crt, client-key: /nowhere/key",
    );
    let with_server = |name: &str, server: &str| {
        let text = fixture.kubeconfig();
        write(name, &text.replace(&url(&fixture), server))
    };
    let no_url = with_server("no-url", "http://a b");
    let zeros = PathBuf::from("/dev/zero");
    for (kubeconfig, master, parts) in [
        (
            Some(&zeros),
            None,
            ["/dev/zero", "not a regular file", "correct --kubeconfig"],
        ),
        (
            Some(&no_url),
            None,
            [
                no_url.to_str().unwrap(),
                "invalid uri character",
                "give a URL such as https://10.0.0.1:6443",
            ],
        ),
        (
            None,
            Some("ftp://127.0.0.1"),
            [
                "API server ftp://127.0.0.1",
                "its scheme is neither http nor https",
                "give a URL such as",
            ],
        ),
        (
            None,
            Some("https://127.0.0.1:99999"),
            [
                "API server https://127.0.0.1:99999",
                "its port is not a number from 1 to 65535",
                "give a URL such as",
            ],
        ),
        (
            Some(&none),
            None,
            [
                none.to_str().unwrap(),
                "No such file",
                "correct --kubeconfig",
            ],
        ),
        (
            Some(&broken),
            None,
            [
                broken.to_str().unwrap(),
                "line 1, column 11: this is not a kubeconfig",
                "correct the file",
            ],
        ),
        (
            Some(&empty),
            None,
            [empty.to_str().unwrap(), "current", "current-context"],
        ),
        (
            Some(&exec),
            None,
            [exec.to_str().unwrap(), "an exec plugin", "tokenFile"],
        ),
        (
            Some(&provider),
            None,
            [provider.to_str().unwrap(), "an auth-provider", "tokenFile"],
        ),
        (
            Some(&no_key),
            None,
            [
                url(&fixture).as_str(),
                "'/nowhere/crt': No such file",
                "certificates",
            ],
        ),
        (
            None,
            Some("http://a b"),
            ["--master=http://a b", "invalid", "https://10.0.0.1:6443"],
        ),
        (
            None,
            None,
            [
                "API server of this Pod",
                "",
                "--kubeconfig, --master or --manifests",
            ],
        ),
    ] {
        let error = common::server(kubeconfig.map(|path| &**path), master)
            .await
            .err()
            .unwrap()
            .to_string();
        for part in parts {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[tokio::test]
async fn a_dropped_stream_sends_no_request() {
    let server = Server::start(Options::default()).await.unwrap();
    let mut told = ReceivedState::by(url(&server), "node1").await;
    told.until_listed().await;
    drop(told);
    let cluster = server.cluster().clone();
    let address = server.address();
    server.stop().await;
    let again = Server::start_on(
        cluster,
        Options {
            address,
            ..Options::default()
        },
    )
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(again.requests(), []);
}
