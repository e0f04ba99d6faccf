//! Tests of the API source's requests, and of their cost for the server.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "much is for other tests")]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apiserver::{Fault, Kind, Options, Purpose, Request, Rule, Server, StreamedLists};
use common::scripted::Scripted;
use common::{ReceivedState, services};
use proxy::Event;
use serde_json::{Value, json};
use source::{Api, ContentType, Lists};
use tokio::time::{Instant, timeout};

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
           "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80, "protocol": "TCP"}]}})
}

fn settings(lists: Lists) -> Api {
    Api {
        lists,
        ..Api::default()
    }
}

/// Starts a server with a Service `web`, and a source that lists and watches this Service.
async fn well(lists: Lists, options: Options) -> (Server, ReceivedState) {
    let server = Server::start(options).await.unwrap();
    server.apply(service("web")).unwrap();
    let mut told = ReceivedState::with(server.url(), "node1", settings(lists)).await;
    told.until_watched(&server).await;
    (server, told)
}

/// Receives the events that arrive within `time`.
async fn listen(told: &mut ReceivedState, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        let rest = (end - Instant::now()).min(Duration::from_mins(1));
        _ = timeout(rest, told.until("never", |_| false)).await;
    }
}

/// Returns the list requests, without requests for a single object.
fn lists(requests: &[Request]) -> Vec<&Request> {
    let is_list = |one: &&Request| {
        let is_glance = one.query.split('&').any(|pair| pair == "limit=1");
        !one.query.contains("watch=true") && !is_glance
    };
    requests.iter().filter(is_list).collect()
}

fn answered(requests: &[Request], asked: Purpose, content_type: &str) -> bool {
    let of = requests.iter().filter(|one| one.asked == asked);
    let mut answers = of.filter_map(|one| one.answer.as_ref());
    answers.all(|answer| answer.content_type == content_type)
}

#[tokio::test]
async fn only_required_objects_are_watched() {
    let (server, _told) = well(Lists::Cached, Options::default()).await;
    let requests = server.requests();
    let mut asked: Vec<_> = requests
        .iter()
        .map(|one| {
            let selectors = one
                .query
                .split('&')
                .filter(|pair| pair.contains("Selector="));
            let what = if one.query.contains("watch=true") {
                "watch"
            } else {
                "list"
            };
            format!(
                "{what} {} {}",
                one.path,
                selectors.collect::<Vec<_>>().join(" ")
            )
        })
        .collect();
    asked.sort_unstable();
    let slices = "/apis/discovery.k8s.io/v1/endpointslices labelSelector=%21service.kubernetes.io%2Fheadless";
    let nodes = "/api/v1/nodes fieldSelector=metadata.name%3Dnode1";
    let services = "/api/v1/services labelSelector=%21service.kubernetes.io%2Fservice-proxy-name \
                    fieldSelector=spec.clusterIP%21%3DNone";
    let wanted: Vec<_> = ["list", "watch"]
        .into_iter()
        .flat_map(|what| [nodes, services, slices].map(|which| format!("{what} {which}")))
        .collect();
    assert_eq!(asked, wanted);
    for watch in requests
        .iter()
        .filter(|one| one.query.contains("watch=true"))
    {
        assert!(
            watch.query.contains("allowWatchBookmarks=true"),
            "{watch:?}"
        );
        let seconds = watch.query.split("timeoutSeconds=").nth(1).unwrap();
        let seconds: u32 = seconds.split('&').next().unwrap().parse().unwrap();
        assert!((180..=290).contains(&seconds), "{watch:?}");
    }
}

#[tokio::test]
async fn objects_are_requested_as_protobuf_or_as_configured() {
    for lists in [Lists::Cached, Lists::Streamed] {
        for (content_type, accept, list, watch) in [
            (
                ContentType::Protobuf,
                "application/vnd.kubernetes.protobuf,application/json",
                "application/vnd.kubernetes.protobuf",
                "application/vnd.kubernetes.protobuf;stream=watch",
            ),
            (
                ContentType::Json,
                "application/json",
                "application/json",
                "application/json",
            ),
        ] {
            let server = Server::start(Options::default()).await.unwrap();
            server.apply(service("web")).unwrap();
            let settings = Api {
                content_type,
                ..settings(lists)
            };
            let mut told = ReceivedState::with(server.url(), "node1", settings).await;
            told.until_watched(&server).await;
            server.apply(service("new")).unwrap();
            told.until_services(&["new", "web"]).await;
            let requests = server.requests();
            assert!(requests.iter().all(|one| one.accept == accept));
            assert!(requests.iter().all(|one| one.accept_encoding == "gzip"));
            assert!(answered(&requests, Purpose::List, list), "{requests:?}");
            assert!(answered(&requests, Purpose::Watch, watch), "{requests:?}");
            assert!(
                answered(&requests, Purpose::StreamedList, watch),
                "{requests:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_long_list_is_read_compressed_from_the_watch_cache() {
    let server = Server::start(Options::default()).await.unwrap();
    for i in 0..1201 {
        server.apply(service(&format!("s{i}"))).unwrap();
    }
    let mut told = ReceivedState::by(server.url(), "node1").await;
    told.until_listed().await;
    assert_eq!(services(&told.model).len(), 1201);
    let requests = server.requests();
    let lists = lists(&requests);
    assert_eq!(lists.len(), 3);
    let list = lists
        .iter()
        .find(|one| one.path.ends_with("/services"))
        .unwrap();
    assert!(
        list.query.contains("limit=500&resourceVersion=0"),
        "{list:?}"
    );
    assert_eq!(list.answer.as_ref().unwrap().content_encoding, "gzip");
}

/// Checks that the server reads later lists from its watch cache, once the cache is as new as the
/// last seen version.
#[tokio::test(start_paused = true)]
async fn a_new_list_is_requested_at_the_last_seen_version() {
    let (server, mut told) = well(Lists::Cached, Options::default()).await;
    server.apply(service("new")).unwrap();
    told.until_services(&["new", "web"]).await;
    let (version, before) = (server.version(), server.requests().len());
    let rule = Rule::from(Fault::Expire)
        .on(Purpose::Watch)
        .of(Kind::Service);
    server.faults().add(rule.times(1));
    server.faults().cut();
    listen(&mut told, Duration::from_secs(30)).await;
    let requests = server.requests().split_off(before);
    let [list] = &lists(&requests)[..] else {
        panic!("{requests:?}");
    };
    let wanted = format!("&resourceVersion={version}&resourceVersionMatch=NotOlderThan");
    assert!(list.query.ends_with(&wanted), "{list:?}");
    assert!(!list.query.contains("limit="), "{list:?}");
    assert_eq!(services(&told.model), ["new", "web"].into());
}

/// Checks that the source accepts a list older than the last seen version only after it has
/// requested the newest list. Any other old list deletes no object.
#[tokio::test]
async fn an_outdated_list_response_removes_no_object() {
    let count = Arc::new(AtomicUsize::new(0));
    let turns = Arc::clone(&count);
    let list = |kind: &str, version: &str, items: &[Value]| {
        let meta = json!({"resourceVersion": version});
        (
            200,
            json!({"kind": kind, "metadata": meta, "items": items}).to_string(),
        )
    };
    let server = Scripted::new(move |target| {
        let kind = match target {
            _ if target.contains("/services") => "ServiceList",
            _ if target.contains("/nodes") => "NodeList",
            _ => "EndpointSliceList",
        };
        let web = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"clusterIP": "10.96.0.1"}});
        match (target.contains("watch=true"), kind) {
            (true, "ServiceList") if turns.load(Ordering::SeqCst) < 2 => {
                let gone = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410}});
                (200, gone.to_string() + "\n")
            }
            (true, _) => (200, "\n".to_owned()),
            (false, "ServiceList") => match turns.fetch_add(1, Ordering::SeqCst) {
                0 => list(kind, "10", &[web]),
                1 => list(kind, "9", &[]),
                // Only a request for the newest list has no resourceVersion.
                _ if target.contains("resourceVersion") => list(kind, "9", &[]),
                _ => list(kind, "8", &[]),
            },
            (false, _) => list(kind, "10", &[]),
        }
    })
    .await
    .unwrap();
    let mut told = ReceivedState::by(server.url(), "node1").await;
    told.until_services(&["web"]).await;
    told.until("no Service", |model| model.service_names().count() == 0)
        .await;
    let requests = server.requests.lock().unwrap();
    let asked = requests
        .iter()
        .filter(|one| one.contains("/services") && !one.contains("watch=true"));
    let versions: Vec<_> = asked
        .map(|one| one.split_once("resourceVersion").map(|(_, rest)| rest))
        .collect();
    assert_eq!(
        versions,
        [
            Some("=0"),
            Some("=10&resourceVersionMatch=NotOlderThan"),
            None
        ]
    );
}

/// Checks that a failed watch causes a new list only if its resource version has expired or is too
/// large.
#[tokio::test(start_paused = true)]
async fn failed_watches_do_not_cause_a_new_list_request() {
    let refuse = |code| Fault::Refuse {
        code,
        retry_after: Some(1),
    };
    let faults = [429, 500, 502, 503, 504, 404].map(refuse);
    let others = [
        Fault::Timeout,
        Fault::Drop,
        Fault::Silence,
        Fault::CutAfter(0),
        Fault::EndAfter(0),
    ];
    for lists_are in [Lists::Cached, Lists::Streamed] {
        for fault in faults.into_iter().chain(others) {
            let (server, mut told) = well(lists_are, Options::default()).await;
            let (before, told_before) = (server.requests().len(), told.log.len());
            server.faults().add(Rule::from(fault).on(Purpose::Watch));
            server.faults().cut();
            server.apply(service("new")).unwrap();
            listen(&mut told, Duration::from_mins(3)).await;
            server.faults().clear();
            told.until_services(&["new", "web"]).await;
            let requests = server.requests().split_off(before);
            assert_eq!(lists(&requests).len(), 0, "{fault:?}: {requests:?}");
            let is_list = |event: &Event| matches!(event, Event::ListStarted(_));
            assert!(!told.log[told_before..].iter().any(is_list), "{fault:?}");
        }
    }
}

/// Checks that the source requests a streamed list again after a reconnect. Another server, which
/// can stream lists, may have replaced the first server.
#[tokio::test(start_paused = true)]
async fn a_streamed_list_is_requested_again_after_a_reconnect() {
    let options = Options {
        watch_list: false,
        ..Options::default()
    };
    let (server, mut told) = well(Lists::Streamed, options).await;
    let streamed = |requests: &[Request]| {
        let services = requests
            .iter()
            .filter(|one| one.path.ends_with("/services"));
        services
            .filter(|one| one.asked == Purpose::StreamedList)
            .count()
    };
    assert_eq!(streamed(&server.requests()), 1);
    let list_anew = || {
        let rule = Rule::from(Fault::Expire)
            .on(Purpose::Watch)
            .of(Kind::Service);
        server.faults().add(rule.times(1));
        server.faults().cut();
    };
    // The source requests the next list without a stream.
    listen(&mut told, Duration::from_mins(1)).await;
    list_anew();
    listen(&mut told, Duration::from_mins(1)).await;
    assert_eq!(streamed(&server.requests()), 1);
    // After ten minutes, the source requests a streamed list again.
    listen(&mut told, Duration::from_mins(10)).await;
    list_anew();
    listen(&mut told, Duration::from_mins(1)).await;
    assert_eq!(streamed(&server.requests()), 2);
    // After the server was unavailable, the source requests a streamed list at once.
    server
        .faults()
        .add(Rule::from(Fault::Drop).of(Kind::Service).times(1));
    server.faults().cut();
    listen(&mut told, Duration::from_mins(1)).await;
    list_anew();
    listen(&mut told, Duration::from_mins(1)).await;
    assert_eq!(streamed(&server.requests()), 3);
    assert_eq!(services(&told.model), ["web"].into());
}

/// Checks that only a rejection of streaming causes a plain list.
#[tokio::test(start_paused = true)]
async fn a_temporary_rejection_does_not_disable_streamed_lists() {
    let server = Server::start(Options::default()).await.unwrap();
    server.apply(service("web")).unwrap();
    for code in [429, 503, 504] {
        let fault = Fault::Refuse {
            code,
            retry_after: Some(2),
        };
        server
            .faults()
            .add(Rule::from(fault).of(Kind::Service).times(1));
    }
    let mut told = ReceivedState::streamed_by(server.url(), "node1").await;
    told.until_listed().await;
    assert_eq!(lists(&server.requests()).len(), 0);
}

/// Checks that the source decodes the objects of a compressed streamed list before the watch ends.
/// Servers compress streamed lists from Kubernetes 1.37 on.
#[tokio::test]
async fn a_compressed_streamed_list_is_decoded_object_by_object() {
    let mut sent = Vec::new();
    for streamed_lists in [StreamedLists::Plain, StreamedLists::Compressed] {
        for content_type in [ContentType::Protobuf, ContentType::Json] {
            let options = Options {
                streamed_lists,
                ..Options::default()
            };
            let server = Server::start(options).await.unwrap();
            for number in 0..300 {
                server.apply(service(&format!("web-{number}"))).unwrap();
            }
            let settings = Api {
                content_type,
                ..settings(Lists::Streamed)
            };
            let mut told = ReceivedState::with(server.url(), "node1", settings).await;
            told.until("all are listed", |model| {
                model.is_complete() && model.service_count() == 300
            })
            .await;
            let requests = server.requests();
            let is_list = |one: &&Request| one.kind == Some(Kind::Service);
            let list = requests.iter().find(is_list).unwrap();
            assert_eq!(list.asked, Purpose::StreamedList);
            let is_packed = streamed_lists == StreamedLists::Compressed;
            let encoding = &list.answer.as_ref().unwrap().content_encoding;
            assert_eq!(encoding == "gzip", is_packed, "{list:?}");
            sent.push(list.sent_bytes);
            // The next object arrives in the same watch.
            server.apply(service("later")).unwrap();
            told.until("a change", |model| model.service_count() == 301)
                .await;
            assert_eq!(server.requests().len(), requests.len());
        }
    }
    assert!(sent[2] * 4 < sent[0] && sent[3] * 4 < sent[1], "{sent:?}");
}
