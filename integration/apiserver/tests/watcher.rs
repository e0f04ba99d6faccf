//! Tests the API server fixture with an independent client: the watcher of the kube crate.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use apiserver::{Kind, Options, Server};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Service;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::json;
use tokio::time::{Duration, timeout};

fn service(name: &str) -> serde_json::Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": { "ports": [{ "port": 80 }] } })
}

async fn next(
    events: &mut (impl Stream<Item = watcher::Result<Event<Service>>> + Unpin),
) -> String {
    let event = timeout(Duration::from_secs(10), events.next())
        .await
        .expect("an event");
    match event.expect("the stream goes on").expect("no error") {
        Event::Init => "init".into(),
        Event::InitApply(service) => format!("init {}", service.name_any()),
        Event::InitDone => "init done".into(),
        Event::Apply(service) => format!("apply {}", service.name_any()),
        Event::Delete(service) => format!("delete {}", service.name_any()),
    }
}

async fn story(config: watcher::Config) -> Server {
    let server = Server::start(Options::default()).await.unwrap();
    for name in ["a", "b", "c", "d", "e"] {
        server.apply(service(name)).unwrap();
    }
    let client = Client::try_from(Config::new(
        format!("http://{}", server.address()).parse().unwrap(),
    ))
    .unwrap();
    let mut events = Box::pin(watcher(Api::<Service>::all(client), config));
    for wanted in [
        "init",
        "init a",
        "init b",
        "init c",
        "init d",
        "init e",
        "init done",
    ] {
        assert_eq!(next(&mut events).await, wanted);
    }
    server.apply(service("f")).unwrap();
    assert_eq!(next(&mut events).await, "apply f");
    server.delete(Kind::Service, "default", "a").unwrap();
    assert_eq!(next(&mut events).await, "delete a");
    server
}

#[tokio::test]
async fn kube_rs_lists_in_pages_and_then_watches() {
    let server = story(watcher::Config::default().page_size(2)).await;
    let lists = server
        .requests()
        .iter()
        .filter(|request| request.query.contains("limit=2"))
        .count();
    assert_eq!(lists, 3, "{:?}", server.requests());
}

#[tokio::test]
async fn kube_rs_reads_a_streamed_list() {
    let server = story(watcher::Config::default().streaming_lists()).await;
    assert_eq!(server.requests().len(), 1);
    assert!(
        server.requests()[0]
            .query
            .contains("sendInitialEvents=true")
    );
}

#[tokio::test]
async fn kube_rs_gets_an_error_if_streamed_lists_are_disabled() {
    let server = Server::start(Options {
        watch_list: false,
        ..Options::default()
    })
    .await
    .unwrap();
    let client = Client::try_from(Config::new(
        format!("http://{}", server.address()).parse().unwrap(),
    ))
    .unwrap();
    let mut events = Box::pin(watcher(
        Api::<Service>::all(client),
        watcher::Config::default().streaming_lists(),
    ));
    let refused = timeout(Duration::from_secs(10), events.next())
        .await
        .unwrap()
        .unwrap();
    let Err(watcher::Error::WatchStartFailed(kube::Error::Api(status))) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
}
