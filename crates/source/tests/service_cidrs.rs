//! Tests of ServiceCIDRs, with servers that have this kind and servers that do not.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "what else is shared is for other tests")]
mod common;

use std::time::Duration;

use apiserver::{Fault, Kind, Options, Rule, Server};
use common::scripted::Scripted;
use common::{Log, ReceivedState, until_said};
use proxy::{IpFamily, Model};
use serde_json::{Value, json};
use source::{Api, ContentType, Lists, ServiceCidrWatch};

fn cidr(name: &str, nets: &[&str]) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
           "metadata": {"name": name}, "spec": {"cidrs": nets}})
}

fn asking() -> Api {
    Api {
        service_cidrs: ServiceCidrWatch::On,
        ..Api::default()
    }
}

fn nets(model: &Model, family: IpFamily) -> Option<Vec<String>> {
    let nets = model.service_cidrs(family)?;
    Some(nets.iter().map(ToString::to_string).collect())
}

fn are(model: &Model, wanted: &[&str]) -> bool {
    nets(model, IpFamily::V4).is_some_and(|nets| nets == wanted)
}

fn asked(server: &Server) -> usize {
    let requests = server.requests();
    let of_kind = requests
        .iter()
        .filter(|one| one.path.ends_with("/servicecidrs"));
    of_kind.count()
}

fn refuse(code: u16) -> Rule {
    let fault = Fault::Refuse {
        code,
        retry_after: None,
    };
    Rule::from(fault).of(Kind::ServiceCidr)
}

async fn for_an_hour(told: &mut ReceivedState) {
    for _ in 0..60 {
        let minute = Duration::from_mins(1);
        let _ = tokio::time::timeout(minute, told.until("never", |_| false)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_are_watched_if_the_settings_request_them() {
    for (content_type, lists) in [
        (ContentType::Protobuf, Lists::Cached),
        (ContentType::Json, Lists::Cached),
        (ContentType::Protobuf, Lists::Streamed),
        (ContentType::Json, Lists::Streamed),
    ] {
        let server = Server::start(Options::default()).await.unwrap();
        let settings = Api {
            content_type,
            lists,
            ..asking()
        };
        let mut told = ReceivedState::with(server.url(), "node1", settings).await;
        // The fixture has a ServiceCIDR from the beginning, as a new cluster has.
        told.until("the first", |model| are(model, &["10.96.0.0/12"]))
            .await;
        let of_ipv6 = nets(&told.model, IpFamily::V6).unwrap();
        assert_eq!(of_ipv6, ["fd00:96::/112"]);
        server.apply(cidr("more", &["10.7.0.0/16"])).unwrap();
        told.until("another", |model| {
            are(model, &["10.7.0.0/16", "10.96.0.0/12"])
        })
        .await;
        server.delete(Kind::ServiceCidr, "", "kubernetes").unwrap();
        told.until("one less", |model| are(model, &["10.7.0.0/16"]))
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_are_not_requested_by_default() {
    let server = Server::start(Options::default()).await.unwrap();
    let mut told = ReceivedState::by(server.url(), "node1").await;
    told.until_watched(&server).await;
    assert_eq!(asked(&server), 0);
    assert_eq!(nets(&told.model, IpFamily::V4), None);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_without_the_service_cidr_api_delays_no_list() {
    for (code, said) in [
        (404, "it has none, which Kubernetes has from 1.33 on"),
        (
            403,
            "allow list and watch of servicecidrs in networking.k8s.io",
        ),
    ] {
        let (log, _guard) = Log::start();
        let server = Server::start(Options::default()).await.unwrap();
        server.faults().add(refuse(code));
        let mut told = ReceivedState::with(server.url(), "node1", asking()).await;
        told.until("all else is listed, and these are not awaited", |model| {
            model.is_complete() && model.is_node_listed() && model.are_service_cidrs_listed()
        })
        .await;
        assert!(told.model.is_whole());
        assert_eq!(nets(&told.model, IpFamily::V4), None, "nothing is known");
        until_said(&mut told, &log, said).await;

        // During an hour, requests are rare, and the log has one line.
        for_an_hour(&mut told).await;
        let count = asked(&server);
        assert!((12..=40).contains(&count), "{count} requests in an hour");
        let lines = |part| {
            log.text()
                .lines()
                .filter(|line| line.contains(part))
                .count()
        };
        assert_eq!(lines("does not list ServiceCIDRs"), 1, "{}", log.text());
        assert_eq!(lines("refuses"), 0, "it is no outage");

        server.faults().clear();
        for_an_hour(&mut told).await;
        assert!(are(&told.model, &["10.96.0.0/12"]));
        assert_eq!(lines("tells of ServiceCIDRs now"), 1);
    }
}

/// Checks both responses to an API path that the server does not know: plain text, and a Status
/// from Kubernetes 1.37 on.
#[tokio::test]
async fn unknown_paths_are_recognised_in_text_and_status_responses() {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
        "message": "the server could not find the requested resource"});
    for said in ["404 page not found\n".to_owned(), status.to_string()] {
        let (log, _guard) = Log::start();
        let server = Scripted::new(move |target| {
            let kind = match target {
                of if of.contains("servicecidrs") => return (404, said.clone()),
                of if of.contains("/services") => "ServiceList",
                of if of.contains("/nodes") => "NodeList",
                _ => "EndpointSliceList",
            };
            let list = json!({"kind": kind, "metadata": {"resourceVersion": "9"}, "items": []});
            let is_watch = target.contains("watch=true");
            (
                200,
                if is_watch {
                    "\n".to_owned()
                } else {
                    list.to_string()
                },
            )
        })
        .await
        .unwrap();
        let mut told = ReceivedState::with(server.url(), "node1", asking()).await;
        told.until("nothing is awaited", |model| {
            model.is_complete() && model.are_service_cidrs_listed()
        })
        .await;
        until_said(
            &mut told,
            &log,
            "it has none, which Kubernetes has from 1.33 on",
        )
        .await;
        assert!(!log.text().contains("refuses"), "it is no outage");
    }
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_stay_known_after_permission_is_lost() {
    // Starts the capture before the source can log a line.
    let _log = Log::start();
    let server = Server::start(Options::default()).await.unwrap();
    let mut told = ReceivedState::with(server.url(), "node1", asking()).await;
    told.until("the first", |model| are(model, &["10.96.0.0/12"]))
        .await;
    server.faults().add(refuse(403));
    server.faults().cut();
    told.for_a_moment().await;
    assert!(are(&told.model, &["10.96.0.0/12"]));
    server.apply(cidr("more", &["10.7.0.0/16"])).unwrap();
    server.faults().clear();
    told.until("another", |model| {
        are(model, &["10.7.0.0/16", "10.96.0.0/12"])
    })
    .await;
}

/// Simulates an upgrade of the API server: it closes all connections, and then serves ServiceCIDRs.
#[tokio::test(start_paused = true)]
async fn service_cidrs_are_requested_immediately_after_the_api_server_returns() {
    // Starts the capture before the source can log a line.
    let _log = Log::start();
    let server = Server::start(Options::default()).await.unwrap();
    server.faults().add(refuse(404));
    let mut told = ReceivedState::with(server.url(), "node1", asking()).await;
    for_an_hour(&mut told).await;
    server.faults().clear();
    server.faults().add(Rule::from(Fault::Drop).times(4));
    server.faults().cut();
    let began = tokio::time::Instant::now();
    told.until("they are told", |model| are(model, &["10.96.0.0/12"]))
        .await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
}
