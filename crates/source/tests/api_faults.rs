//! Tests of the API source with an API server that fails for a while, and then recovers.
//!
//! If only the source and the server depend on time, the test pauses tokio's clock. The clock then
//! advances whenever the source and the server wait.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "the server that is scripted is for other tests")]
mod common;

use std::net::IpAddr;
use std::time::Duration;

use apiserver::{Cluster, Fault, Kind, Options, Purpose, Rule, Server, WatchCache};
use common::{ReceivedState, name, services};
use proxy::{Event, Model};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
           "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80, "protocol": "TCP"}]}})
}

fn slice() -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
           "metadata": {"name": "web-a", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
           "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
           "endpoints": [{"addresses": ["10.244.1.5"], "conditions": {"ready": true}}]})
}

fn node(zone: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
           "metadata": {"name": "node1", "labels": {"topology.kubernetes.io/zone": zone}},
           "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
}

fn url(server: &Server) -> String {
    format!("http://{}", server.address())
}

/// Starts a server with the Services `old` and `web`, an endpoint and a Node. Also starts a source
/// that has listed these objects.
async fn well(options: Options) -> (Server, ReceivedState) {
    let server = Server::start(options).await.unwrap();
    for object in [
        service("old"),
        service("web"),
        slice(),
        node("a", "192.0.2.10"),
    ] {
        server.apply(object).unwrap();
    }
    let mut told = ReceivedState::by(url(&server), "node1").await;
    told.until_listed().await;
    assert_eq!(services(&told.model), ["old", "web"].into());
    (server, told)
}

/// Returns the options of a server without a watch cache.
fn paged() -> Options {
    Options {
        watch_cache: WatchCache::Absent,
        ..Options::default()
    }
}

/// Receives the events that arrive within `time`.
async fn listen(told: &mut ReceivedState, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        let rest = end - Instant::now();
        _ = timeout(
            rest.min(Duration::from_mins(1)),
            told.until("never", |_| false),
        )
        .await;
    }
}

fn is_as_it_was(told: &ReceivedState) -> bool {
    let view = told.model.view(&name("web"));
    services(&told.model) == ["old", "web"].into()
        && view.is_some_and(|view| view.slices().count() == 1)
        && told.model.has_node() == Some(true)
}

/// Makes all requests fail for ten minutes. Checks that the last state stays during this time, that
/// requests are rare, and that the source recovers soon after the failure.
async fn is_survived(fault: Fault, options: Options, is_compacted: bool) {
    let what = format!(
        "{fault:?}, watch_list {}, compacted {is_compacted}",
        options.watch_list
    );
    let (server, mut told) = well(options).await;
    let before = server.requests().len();
    server.faults().add(fault);
    server.faults().cut();
    server.delete(Kind::Service, "default", "old").unwrap();
    server.apply(service("new")).unwrap();
    if is_compacted {
        server.compact();
    }
    listen(&mut told, Duration::from_secs(5)).await;
    assert!(is_as_it_was(&told), "{what}: {:?}", told.log);
    let hurried = server.requests().len() - before;
    assert!(hurried <= 30, "{what}: {hurried} requests in 5 s");
    listen(&mut told, Duration::from_mins(10)).await;
    assert!(is_as_it_was(&told), "{what}: {:?}", told.log);
    let asked = server.requests().len() - before;
    assert!((6..=240).contains(&asked), "{what}: {asked} in 10 min");
    server.faults().clear();
    // In the worst case, a response body has just stopped. The source detects this after 90 s, and
    // makes the next attempt within another 60 s.
    listen(&mut told, Duration::from_mins(1)).await;
    told.until_services(&["new", "web"]).await;
    told.until_listed().await;
}

async fn are_survived(faults: &[Fault]) {
    for &fault in faults {
        for is_compacted in [false, true] {
            is_survived(fault, Options::default(), is_compacted).await;
            is_survived(fault, paged(), is_compacted).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_source_recovers_from_rejected_requests() {
    let refuse = |code, retry_after| Fault::Refuse { code, retry_after };
    are_survived(&[
        refuse(429, Some(1)),
        refuse(500, None),
        refuse(503, Some(100_000)),
        refuse(401, None),
        refuse(404, None),
        Fault::Expire,
        Fault::Ahead,
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_source_recovers_from_broken_connections() {
    are_survived(&[Fault::Drop, Fault::CutAfter(0), Fault::CutAfter(100)]).await;
}

#[tokio::test(start_paused = true)]
async fn the_source_recovers_from_silent_connections() {
    are_survived(&[Fault::Silence, Fault::StallAfter(0), Fault::StallAfter(100)]).await;
}

#[tokio::test(start_paused = true)]
async fn the_source_recovers_from_truncated_responses() {
    are_survived(&[Fault::EndAfter(0), Fault::EndAfter(100)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_detected() {
    let (server, mut told) = well(Options::default()).await;
    listen(&mut told, Duration::from_mins(10)).await;
    server.faults().freeze();
    server.apply(service("new")).unwrap();
    let began = Instant::now();
    told.until_services(&["new", "old", "web"]).await;
    assert!(began.elapsed() < Duration::from_secs(95));
}

#[tokio::test(start_paused = true)]
async fn the_source_waits_for_the_time_in_retry_after() {
    let (server, mut told) = well(Options::default()).await;
    listen(&mut told, Duration::from_secs(30)).await;
    let before = server.requests().len();
    server.faults().add(Fault::Refuse {
        code: 429,
        retry_after: Some(40),
    });
    server.faults().cut();
    listen(&mut told, Duration::from_secs(35)).await;
    let asked = server.requests().len() - before;
    assert_eq!(asked, 3, "one of each kind");
}

#[tokio::test(start_paused = true)]
async fn an_hour_without_the_api_server_loses_no_object() {
    let (server, mut told) = well(Options::default()).await;
    let (cluster, address) = (server.cluster().clone(), server.address());
    server.stop().await;
    cluster.delete(Kind::Service, "default", "old").unwrap();
    listen(&mut told, Duration::from_hours(1)).await;
    assert!(is_as_it_was(&told));
    cluster.compact();
    let options = Options {
        address,
        ..Options::default()
    };
    let _server = Server::start_on(cluster, options).await.unwrap();
    told.until_services(&["web"]).await;
}

#[tokio::test(start_paused = true)]
async fn the_source_catches_up_after_resource_versions_restart() {
    for away in [Duration::ZERO, Duration::from_mins(5)] {
        let (server, mut told) = well(Options::default()).await;
        for zone in ["b", "c", "d", "e", "f", "g", "h", "i"] {
            server.apply(node(zone, "192.0.2.10")).unwrap();
        }
        let zone = |told: &ReceivedState| told.model.node().and_then(|node| node.zone.clone());
        told.until("zone i", |model| {
            model
                .node()
                .is_some_and(|node| node.zone.as_deref() == Some("i"))
        })
        .await;
        // Waits for a bookmark, which brings the watch of Services to the latest version.
        listen(&mut told, Duration::from_mins(2)).await;
        let (address, version) = (server.address(), server.version());
        server.stop().await;
        listen(&mut told, away).await;
        assert!(is_as_it_was(&told));
        let options = || Options {
            address,
            ..Options::default()
        };
        let restored = Cluster::new(&options());
        for object in [
            service("web"),
            service("new"),
            slice(),
            node("restored", "192.0.2.10"),
        ] {
            restored.apply(object).unwrap();
        }
        assert!(restored.version() < version);
        let _server = Server::start_on(restored, options()).await.unwrap();
        told.until_services(&["new", "web"]).await;
        told.until("the Node", |model| {
            model
                .node()
                .is_some_and(|node| node.zone.as_deref() == Some("restored"))
        })
        .await;
        assert_eq!(zone(&told).as_deref(), Some("restored"));
    }
}

/// State of the cluster after the server was unavailable.
#[derive(Debug, Clone, Copy)]
enum Comeback {
    /// The cluster is unchanged.
    Same,
    /// The server has lost its history.
    Compacted,
    /// Resource versions start again, with other objects.
    Restored,
    /// Resource versions start again, without objects.
    Empty,
}

impl Comeback {
    fn cluster(self, before: &Cluster, options: &Options) -> Cluster {
        let objects = match self {
            Self::Same | Self::Compacted => {
                before.apply(service("new")).unwrap();
                if matches!(self, Self::Compacted) {
                    before.compact();
                }
                return before.clone();
            }
            Self::Restored => vec![
                service("web"),
                service("new"),
                node("restored", "192.0.2.10"),
            ],
            Self::Empty => vec![],
        };
        let cluster = Cluster::new(options);
        for object in objects {
            cluster.apply(object).unwrap();
        }
        cluster
    }

    fn is_seen_by(self, model: &Model) -> bool {
        let zone = model.node().and_then(|node| node.zone.as_deref());
        let slices = model.view(&name("web")).map(|view| view.slices().count());
        match self {
            Self::Same | Self::Compacted => services(model) == ["new", "old", "web"].into(),
            Self::Restored => {
                services(model) == ["new", "web"].into()
                    && slices == Some(0)
                    && zone == Some("restored")
            }
            Self::Empty => services(model).is_empty() && model.has_node() == Some(false),
        }
    }
}

/// Time for which a server with a watch cache waits for a future version before it rejects the
/// request.
const FRESH_WITHIN: Duration = Duration::from_secs(3);

/// Measures, for each of `nodes` sources, the time from the server's return until the source knows
/// all objects. Before its return, the server was unavailable for the duration `away`.
async fn caught_up(
    nodes: usize,
    away: Duration,
    comeback: Comeback,
    options: fn() -> Options,
) -> Vec<Duration> {
    let (server, first) = well(options()).await;
    for zone in ["b", "c", "d", "e", "f", "g", "h", "i"] {
        server.apply(node(zone, "192.0.2.10")).unwrap();
    }
    let mut all = vec![first];
    for _ in 1..nodes {
        all.push(ReceivedState::by(url(&server), "node1").await);
    }
    for told in &mut all {
        told.until_listed().await;
        // Waits for a bookmark, which brings the watch of each kind to the latest version.
        listen(told, Duration::from_mins(2)).await;
    }
    let (before, address) = (server.cluster().clone(), server.address());
    server.stop().await;
    tokio::time::sleep(away).await;
    let options = || Options {
        address,
        ..options()
    };
    let cluster = comeback.cluster(&before, &options());
    let _server = Server::start_on(cluster, options()).await.unwrap();
    let back = Instant::now();
    let mut waits = JoinSet::new();
    for mut told in all {
        waits.spawn(async move {
            told.until("all is known", |model| comeback.is_seen_by(model))
                .await;
            back.elapsed()
        });
    }
    waits.join_all().await
}

#[tokio::test(start_paused = true)]
async fn the_source_catches_up_within_seconds_after_the_api_server_returns() {
    let aways = [0, 60, 300, 3600].map(Duration::from_secs);
    let comebacks = [
        Comeback::Same,
        Comeback::Compacted,
        Comeback::Restored,
        Comeback::Empty,
    ];
    for (away, comeback) in aways
        .into_iter()
        .flat_map(|away| comebacks.map(|how| (away, how)))
    {
        for options in [Options::default, paged] {
            let waits = caught_up(1, away, comeback, options).await;
            println!("{comeback:?} after {away:?}: {waits:?}");
            let server = match comeback {
                Comeback::Same | Comeback::Compacted => Duration::ZERO,
                Comeback::Restored | Comeback::Empty => FRESH_WITHIN,
            };
            assert!(
                waits[0] < Duration::from_millis(5500) + server,
                "{waits:?} after {away:?}, {comeback:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_nodes_reconnect_at_different_times() {
    let waits = caught_up(
        40,
        Duration::from_mins(10),
        Comeback::Empty,
        Options::default,
    )
    .await;
    let within = |from: u64| {
        let from = FRESH_WITHIN + Duration::from_secs(from);
        let second = from..from + Duration::from_secs(1);
        waits.iter().filter(|&wait| second.contains(wait)).count()
    };
    let seconds: Vec<_> = (0..6).map(within).collect();
    println!("caught up in each second: {seconds:?}");
    assert_eq!(seconds.iter().sum::<usize>(), 40);
    assert!(seconds.iter().all(|&count| count <= 30), "{seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn the_longest_retry_wait_is_half_a_minute() {
    let (server, first) = well(Options::default()).await;
    let mut all = vec![first];
    for _ in 1..10 {
        all.push(ReceivedState::by(url(&server), "node1").await);
    }
    for told in &mut all {
        told.until_listed().await;
    }
    server.faults().add(Fault::Refuse {
        code: 503,
        retry_after: None,
    });
    server.faults().cut();
    tokio::time::sleep(Duration::from_mins(10)).await;
    let (before, began) = (server.requests().len(), Instant::now());
    tokio::time::sleep(Duration::from_mins(10)).await;
    let asked = server.requests().len() - before;
    println!("30 watches asked {asked} times in {:?}", began.elapsed());
    assert!((600..=1200).contains(&asked), "{asked}: every 15 to 30 s");
    server.faults().clear();
    server.apply(service("new")).unwrap();
    server.apply(node("b", "192.0.2.10")).unwrap();
    let back = Instant::now();
    for told in &mut all {
        told.until("all is known", |model| {
            let zone = model.node().and_then(|node| node.zone.as_deref());
            services(model).len() == 3 && zone == Some("b")
        })
        .await;
    }
    println!("all are back after {:?}", back.elapsed());
    assert!(back.elapsed() < Duration::from_millis(30_500));
}

#[tokio::test(start_paused = true)]
async fn a_watch_timeout_does_not_cause_a_new_list() {
    let (server, mut told) = well(Options::default()).await;
    listen(&mut told, Duration::from_secs(30)).await;
    let timeout = Rule::from(Fault::Refuse {
        code: 504,
        retry_after: None,
    });
    server.faults().add(timeout.times(6));
    server.faults().cut();
    let before = told.log.len();
    server.apply(service("new")).unwrap();
    told.until_services(&["new", "old", "web"]).await;
    listen(&mut told, Duration::from_mins(1)).await;
    let listed = |event: &Event| matches!(event, Event::ListStarted(_));
    assert!(!told.log[before..].iter().any(listed));
}

#[tokio::test(start_paused = true)]
async fn lists_that_keep_failing_are_requested_rarely() {
    for fault in [Fault::Ahead, Fault::Expire] {
        for options in [Options::default(), paged()] {
            let (server, mut told) = well(options).await;
            let before = server.requests().len();
            let rule = Rule::from(fault).on(Purpose::Watch);
            server.faults().add(rule);
            server.faults().cut();
            listen(&mut told, Duration::from_mins(10)).await;
            let asked = server.requests().len() - before;
            assert!((6..=240).contains(&asked), "{fault:?}: {asked} in 10 min");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_with_a_failed_page_removes_no_object() {
    for fault in [
        Fault::Expire,
        Fault::Drop,
        Fault::CutAfter(50),
        Fault::EndAfter(50),
        Fault::StallAfter(50),
    ] {
        let server = Server::start(paged()).await.unwrap();
        let many = (0..500).map(|i| service(&format!("s{i}")));
        for object in many.chain([service("old"), service("web")]) {
            server.apply(object).unwrap();
        }
        let mut told = ReceivedState::by(url(&server), "node1").await;
        told.until_listed().await;
        let rule = Rule::from(fault).on(Purpose::NextPage).of(Kind::Service);
        server.faults().add(rule.times(3));
        server.faults().cut();
        let before = server.requests().len();
        server.delete(Kind::Service, "default", "old").unwrap();
        server.compact();
        let is_next = |request: &apiserver::Request| request.query.contains("continue=");
        let asked_since = || server.requests().split_off(before);
        while asked_since().iter().filter(|one| is_next(one)).count() < 3 {
            listen(&mut told, Duration::from_millis(100)).await;
            let known = services(&told.model);
            assert!(known.contains("old") && known.contains("web"), "{fault:?}");
        }
        told.until("the list is told", |model| {
            let known = services(model);
            known.len() == 501 && !known.contains("old")
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_list_is_received_completely() {
    let server = Server::start(paged()).await.unwrap();
    for i in 0..60 {
        server.apply(service(&format!("s{i}"))).unwrap();
    }
    let slow = Rule::from(Fault::Slow {
        piece: 100,
        pause: Duration::from_secs(1),
    });
    server
        .faults()
        .add(slow.on(Purpose::List).of(Kind::Service).times(1));
    let began = Instant::now();
    let mut told = ReceivedState::by(url(&server), "node1").await;
    told.until("all are listed", Model::is_complete).await;
    assert_eq!(services(&told.model).len(), 60);
    assert!(began.elapsed() > Duration::from_secs(65), "it was not slow");
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_from_a_bookmark() {
    let options = Options {
        bookmark_interval: Duration::from_secs(10),
        ..Options::default()
    };
    let (server, mut told) = well(options).await;
    for zone in ["b", "c", "d"] {
        server.apply(node(zone, "192.0.2.10")).unwrap();
    }
    listen(&mut told, Duration::from_secs(25)).await;
    server.compact();
    let before = told.log.len();
    server.faults().cut();
    server.apply(service("new")).unwrap();
    told.until_services(&["new", "old", "web"]).await;
    listen(&mut told, Duration::from_mins(1)).await;
    let listed = |event: &Event| matches!(event, Event::ListStarted(_));
    assert!(!told.log[before..].iter().any(listed));
}

#[tokio::test(start_paused = true)]
async fn slow_lists_whose_version_expires_immediately_are_requested_rarely() {
    let server = Server::start(paged()).await.unwrap();
    server.apply(service("web")).unwrap();
    server.faults().add(
        Rule::from(Fault::Slow {
            piece: usize::MAX,
            pause: Duration::from_secs(2),
        })
        .on(Purpose::List),
    );
    server
        .faults()
        .add(Rule::from(Fault::Expire).on(Purpose::Watch));
    let mut told = ReceivedState::by(url(&server), "node1").await;
    listen(&mut told, Duration::from_mins(10)).await;
    let lists = server
        .requests()
        .iter()
        .filter(|request| !request.query.contains("watch=true"))
        .count();
    assert!((6..=150).contains(&lists), "{lists} lists in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn the_source_follows_its_own_node() {
    let (server, mut told) = well(Options::default()).await;
    let is = |told: &ReceivedState, zone: &str, address: &str| {
        let node = told.model.node().unwrap();
        node.zone.as_deref() == Some(zone) && node.addresses == [address.parse::<IpAddr>().unwrap()]
    };
    assert!(is(&told, "a", "192.0.2.10"));
    server.apply(node("b", "192.0.2.10")).unwrap();
    listen(&mut told, Duration::from_secs(1)).await;
    assert!(is(&told, "b", "192.0.2.10"));
    server.apply(node("b", "2001:db8::10")).unwrap();
    listen(&mut told, Duration::from_secs(1)).await;
    assert!(is(&told, "b", "2001:db8::10"));
    let mut leaving = node("b", "2001:db8::10");
    leaving["spec"] =
        json!({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]});
    server.apply(leaving).unwrap();
    listen(&mut told, Duration::from_secs(1)).await;
    assert!(told.model.node().unwrap().is_leaving);
    server.delete(Kind::Node, "", "node1").unwrap();
    told.until("no Node", |model| model.has_node() == Some(false))
        .await;
    assert_eq!(services(&told.model), ["old", "web"].into());
    server.apply(node("c", "192.0.2.11")).unwrap();
    told.until("a Node", |model| model.has_node() == Some(true))
        .await;
    assert!(is(&told, "c", "192.0.2.11"));
}

#[tokio::test]
async fn a_kubeconfigs_token_is_used_while_its_token_file_is_missing() {
    let server = Server::start(Options::default()).await.unwrap();
    server.apply(service("web")).unwrap();
    let dir = std::env::temp_dir().join(format!("tokens-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let kubeconfig = dir.join("kubeconfig");
    let user = "user: {tokenFile: token, token: written-down}";
    std::fs::write(&kubeconfig, server.kubeconfig().replace("user: {}", user)).unwrap();
    let source = common::server(Some(&kubeconfig), None).await.ok().unwrap();
    let mut told = ReceivedState::of(&source, "node1");
    told.until_services(&["web"]).await;
    let last = || {
        server
            .requests()
            .last()
            .unwrap()
            .authorization
            .reveal()
            .to_owned()
    };
    assert_eq!(last(), "Bearer written-down");
    std::fs::write(dir.join("token"), "filed").unwrap();
    server.faults().cut();
    server.apply(service("new")).unwrap();
    told.until_services(&["new", "web"]).await;
    assert_eq!(last(), "Bearer filed");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[tokio::test]
async fn a_rotated_token_is_used_immediately() {
    let server = Server::start(Options::default()).await.unwrap();
    server.apply(service("web")).unwrap();
    let dir = std::env::temp_dir().join(format!("token-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let (token, kubeconfig) = (dir.join("token"), dir.join("kubeconfig"));
    std::fs::write(&token, "first\n").unwrap();
    // A relative path names a token file in the directory of the kubeconfig.
    let user = "user: {tokenFile: token}";
    let text = server.kubeconfig().replace("user: {}", user);
    std::fs::write(&kubeconfig, text).unwrap();
    let source = common::server(Some(&kubeconfig), None).await.ok().unwrap();
    let mut told = ReceivedState::of(&source, "node1");
    told.until_services(&["web"]).await;
    let tokens = || -> Vec<String> {
        let requests = server.requests();
        let tokens = requests.iter().map(|one| one.authorization.reveal());
        tokens.map(str::to_owned).collect()
    };
    assert!(tokens().iter().all(|token| token == "Bearer first"));

    // The server rejects the old token. The test then replaces the token file, as the kubelet does.
    let refused = Fault::Refuse {
        code: 401,
        retry_after: None,
    };
    server.faults().add(refused);
    server.faults().cut();
    listen(&mut told, Duration::from_secs(2)).await;
    std::fs::write(dir.join("new"), "second").unwrap();
    std::fs::rename(dir.join("new"), &token).unwrap();
    let before = tokens().len();
    server.faults().clear();
    server.apply(service("new")).unwrap();
    let began = std::time::Instant::now();
    told.until_services(&["new", "web"]).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    let since = tokens().split_off(before);
    assert!(
        since.iter().all(|token| token == "Bearer second"),
        "{since:?}"
    );
    assert!(!format!("{:?}", server.requests()).contains("second"));

    // Without a token file, the source sends no request, and keeps its state.
    std::fs::remove_file(&token).unwrap();
    let before = tokens().len();
    server.faults().cut();
    server.apply(service("newer")).unwrap();
    listen(&mut told, Duration::from_secs(2)).await;
    assert_eq!(tokens().len(), before);
    let said = format!(
        "is not asked: no token in {}: No such file",
        token.display()
    );
    let troubles = source.troubles().now();
    assert!(
        troubles.iter().any(|one| one.text.contains(&said)),
        "{troubles:?}"
    );
    std::fs::write(&token, "third").unwrap();
    told.until_services(&["new", "newer", "web"]).await;
    assert_eq!(tokens().last().unwrap(), "Bearer third");
    std::fs::remove_dir_all(&dir).unwrap();
}
