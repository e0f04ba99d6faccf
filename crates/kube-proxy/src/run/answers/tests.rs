use std::time::Duration;

use inspect::{Asker, Inspect, ServiceCopy};
use proxy::{
    Endpoint, EndpointPort, EndpointSlice, Event, IpFamily, Kind, Protocol, Service, ServicePort,
};
use serde_json::Value;
use tokio::sync::oneshot;

use super::*;
use crate::run::tests::daemon_of;
use crate::tests::options;
use crate::tests::scripted::Scripted;
use std::sync::Arc;

/// Returns a daemon with `services` Services, each with `endpoints` endpoints. Also returns the
/// server that queries the daemon's loop.
fn daemon(services: usize, endpoints: usize) -> (Daemon, Arc<Inspect>) {
    let (mode, _) = Scripted::mode(IpFamily::V4);
    let mut daemon = daemon_of(options(&[]), vec![mode]);
    for number in 0..services {
        let name = NamespacedName::new(&format!("ns-{}", number % 100), &format!("web-{number}"));
        let [_, a, b, c] = u32::try_from(number).unwrap().to_be_bytes();
        let ports = [("http", 80), ("https", 443)].map(|(name, port)| ServicePort {
            name: name.into(),
            protocol: Protocol::Tcp,
            port,
            node_port: None,
        });
        daemon.model.apply(Event::ServiceApplied(Service {
            ports: ports.into_iter().collect(),
            ..Service::at(name.clone(), [[10, a, b, c].into()])
        }));
        let endpoint = |last: usize| Endpoint {
            address: [
                10,
                244,
                u8::try_from(last / 250).unwrap(),
                u8::try_from(last % 250).unwrap(),
            ]
            .into(),
            ready: last != 1,
            serving: last != 1,
            terminating: false,
            placement: Arc::default(),
        };
        let ports = [("http", 8080), ("https", 8443)].map(|(name, port)| EndpointPort {
            name: name.into(),
            protocol: Protocol::Tcp,
            port,
        });
        daemon.model.apply(Event::SliceApplied(EndpointSlice {
            name: NamespacedName::new(name.namespace(), &format!("slice-{number}")),
            service: name,
            family: IpFamily::V4,
            ports: ports.into_iter().collect(),
            endpoints: (0..endpoints).map(endpoint).collect(),
            change_trigger: None,
        }));
    }
    let inspect = Arc::clone(&daemon.observed.inspect);
    (daemon, inspect)
}

/// Returns the CPU time of this thread, which does not depend on other load of the machine.
fn worked() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    Duration::from(time.unwrap())
}

/// Replies to requests as the daemon's loop does, until `asking` is complete. Also returns the CPU
/// time of the longest reply, and the number of replies.
async fn serve<R>(daemon: &mut Daemon, asking: impl Future<Output = R>) -> (R, Duration, usize) {
    let (mut longest, mut count) = (Duration::ZERO, 0);
    tokio::pin!(asking);
    loop {
        tokio::select! {
            done = &mut asking => return (done, longest, count),
            Some(question) = daemon.observed.questions.recv() => {
                let began = worked();
                daemon.answer(question);
                longest = longest.max(worked().saturating_sub(began));
                count += 1;
            }
        }
    }
}

async fn get(inspect: &Arc<Inspect>, path: &str) -> (u16, Value) {
    use http_body_util::BodyExt as _;
    let request = http::Request::get(path).body(()).unwrap();
    let answer = inspect.respond(&request.into_parts().0, Asker::Root).await;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn the_status_api_reports_the_state_of_the_main_loop() {
    let (mut daemon, inspect) = daemon(3, 2);
    let asked = serve(&mut daemon, get(&inspect, "/api/v1/status"));
    let ((code, status), ..) = asked.await;
    assert_eq!(code, 200, "{status}");
    assert_eq!(status["mode"], "ipvs");
    assert_eq!(status["source"]["services"], 3);
    assert_eq!(status["source"]["endpointSlices"], 3);
    assert_eq!(status["families"][0]["family"], "IPv4");
    assert_eq!(status["families"][0]["state"], "starting");
    assert_eq!(status["errors"], serde_json::json!([]));
}

#[tokio::test]
async fn settings_that_do_not_fit_the_node_are_warnings_in_the_status() {
    let (mut daemon, inspect) = daemon(1, 0);
    let warned = async |daemon: &mut Daemon, flags: &[&str]| {
        daemon.options = options(flags);
        let (settings, model) = (&daemon.options.modes, &daemon.model);
        daemon.one_family.look(settings, model, model.changes());
        let asked = serve(daemon, get(&inspect, "/api/v1/status"));
        let ((_, mut status), ..) = asked.await;
        status["warnings"].take()
    };
    assert_eq!(warned(&mut daemon, &[]).await, serde_json::json!([]));
    let bridge = [
        "--detect-local-mode=BridgeInterface",
        "--pod-bridge-interface=absent0",
    ];
    let warnings = warned(&mut daemon, &bridge).await;
    assert_eq!(warnings[0]["object"], "--pod-bridge-interface");
    daemon.file_problem.set_waiting(Some("it waits".to_owned()));
    let warnings = warned(&mut daemon, &[]).await;
    assert_eq!(warnings[0]["object"], "--config");
    assert_eq!(warnings[0]["reason"], "it waits");
    daemon.file_problem.set_waiting(None);
    let node = proxy::Node::default();
    daemon.model.apply(Event::NodeApplied(node));
    let warnings = warned(&mut daemon, &["--detect-local-mode=NodeCIDR"]).await;
    let reason = warnings[0]["reason"].as_str().unwrap();
    assert!(reason.contains("has no IPv4 network"), "{warnings}");
}

#[tokio::test]
async fn a_server_without_its_port_is_an_error_in_the_status() {
    let (mut daemon, inspect) = daemon(0, 0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let respond = |_: &http::request::Parts| http_server::not_found();
    let policy = http_server::ConflictPolicy::Retry;
    let server = http_server::start(crate::health::healthz::PURPOSE, at, policy, respond);
    daemon.servers.push(server.unwrap());
    let asked = serve(&mut daemon, get(&inspect, "/api/v1/status"));
    let ((_, status), ..) = asked.await;
    let error = &status["errors"][0];
    assert_eq!(
        error["object"],
        format!("listen on {at} for the proxy's health")
    );
    let reason = error["reason"].as_str().unwrap();
    assert!(reason.contains("ss -ltnp"), "{reason}");
}

/// Requests the status, and returns its first IP family.
async fn first_family(daemon: &mut Daemon, inspect: &Arc<Inspect>) -> Value {
    let asked = serve(daemon, get(inspect, "/api/v1/status"));
    let ((_, mut status), ..) = asked.await;
    status["families"][0].take()
}

#[tokio::test]
async fn a_change_delayed_by_the_minimum_sync_period_is_pending() {
    let (mode, script) = Scripted::mode(IpFamily::V4);
    let mut daemon = daemon_of(options(&["--ipvs-min-sync-period=30s"]), vec![mode]);
    let inspect = Arc::clone(&daemon.observed.inspect);
    let now = Instant::now();
    let apply = |daemon: &mut Daemon, name: &str| {
        let service = Service::at(NamespacedName::new("a", name), [[10, 96, 0, 1].into()]);
        daemon.model.apply(Event::ServiceApplied(service));
    };
    for kind in [Kind::Service, Kind::EndpointSlice] {
        let is_whole = true;
        daemon.model.apply(Event::ListComplete { kind, is_whole });
    }
    for name in ["first", "second"] {
        apply(&mut daemon, name);
        daemon.turn(now).await.unwrap();
    }
    // The second change still waits, because the minimum sync period began with the first change.
    assert_eq!(script.updates(), 1);
    daemon.heard = now.checked_sub(Duration::from_secs(5));
    daemon.turn(now).await.unwrap();
    let family = first_family(&mut daemon, &inspect).await;
    assert_eq!(
        (&family["state"], &family["pending"]),
        (&"syncing".into(), &1.into())
    );
    assert!(family["lagSeconds"].as_f64().unwrap() >= 5.0, "{family}");
    daemon.not_before = now;
    daemon.turn(now).await.unwrap();
    let family = first_family(&mut daemon, &inspect).await;
    assert_eq!(
        (&family["state"], &family["pending"]),
        (&"synced".into(), &0.into())
    );
}

#[tokio::test]
async fn the_api_lists_services_in_pages_and_individually() {
    let (mut daemon, inspect) = daemon(150, 3);
    let path = "/api/v1/services?limit=100&search=web-1";
    let ((code, list), ..) = serve(&mut daemon, get(&inspect, path)).await;
    assert_eq!(code, 200, "{list}");
    assert_eq!(list["total"], 61, "web-1, web-1x, web-1xx");
    assert_eq!(list["items"].as_array().unwrap().len(), 61);
    let path = "/api/v1/services?limit=2&namespace=ns-7&endpoints=true";
    let ((_, list), ..) = serve(&mut daemon, get(&inspect, path)).await;
    assert_eq!((&list["total"], &list["next"]), (&2.into(), &Value::Null));
    let port = &list["items"][0]["ports"][0];
    assert_eq!(port["endpointCounts"]["total"], 3);
    assert_eq!(port["endpointCounts"]["used"], 2);
    assert_eq!(port["endpoints"][1]["why"], "not ready");
    let path = "/api/v1/services/ns-7/web-107";
    let ((code, one), ..) = serve(&mut daemon, get(&inspect, path)).await;
    assert_eq!((code, &one["name"]), (200, &"web-107".into()));
    assert_eq!(one["ports"][1]["addresses"][0]["at"], "10.0.0.107:443");
    assert_eq!(one["ports"][1]["endpoints"][0]["at"], "10.244.0.0:8443");
    for (path, wanted) in [
        ("/api/v1/services/ns-7/nobody", 404),
        ("/api/v1/services/ns-7", 400),
        ("/api/v1/services/ns-7/a/b", 400),
        ("/api/v1/services?limit=0", 400),
    ] {
        let ((code, object), ..) = serve(&mut daemon, get(&inspect, path)).await;
        assert_eq!(code, wanted, "{path}: {object}");
        assert!(object["error"].is_string());
    }
}

/// Checks that each turn of the daemon's loop handles a limited number of objects. Prints the time
/// of the longest turn (`CARGO_PROFILE_DEV_OPT_LEVEL=2 cargo test -p kube-proxy --lib api_request
/// -- --nocapture`).
///
/// On a busy machine with 2 cores, the longest of 710 requests takes 1.3 to 1.6 ms, and all 50,000
/// Services take 0.7 s. The asserted limit is much higher, because the test also runs without
/// optimization.
#[tokio::test]
async fn no_inspection_api_request_blocks_the_main_loop() {
    const SERVICES: usize = 50_000;
    let (mut daemon, inspect) = daemon(SERVICES, 5);
    for from in [0, 20_000, 47_500] {
        let (answer, told) = oneshot::channel();
        daemon.answer(Question::Names(from, answer));
        let told = told.await.unwrap();
        assert!(told.some.len() <= NAMES_A_TURN);
        assert_eq!(told.is_last, from == 47_500);
    }
    let all: Vec<NamespacedName> = daemon.model.service_names().cloned().collect();
    assert_eq!(services(&daemon.model, &all).len(), SERVICES_A_TURN);
    let began = Instant::now();
    let all = async {
        let (mut after, mut count) = (String::new(), 0);
        loop {
            let path = format!("/api/v1/services?limit=5000&after={after}");
            let (code, list) = get(&inspect, &path).await;
            assert_eq!(code, 200, "{list}");
            count += list["items"].as_array().unwrap().len();
            match list["next"].as_str() {
                Some(next) => after = next.to_owned(),
                None => return count,
            }
        }
    };
    let (count, longest, questions) = serve(&mut daemon, all).await;
    assert_eq!(count, SERVICES);
    println!(
        "{SERVICES} Services in {:?}, the client's reading included; {questions} questions, the longest took the loop {longest:?}",
        began.elapsed()
    );
    assert!(longest < Duration::from_millis(20), "{longest:?}");
}

#[tokio::test]
async fn services_with_many_endpoints_are_returned_in_small_batches() {
    let (daemon, _) = daemon(5, 10_000);
    let all: Vec<NamespacedName> = daemon.model.service_names().cloned().collect();
    let told = services(&daemon.model, &all);
    assert_eq!(told.len(), ENDPOINTS_A_TURN.div_ceil(10_000));
    assert!(
        told.iter()
            .flatten()
            .all(|one: &ServiceCopy| one.endpoint_count() == 10_000)
    );
}

/// Prints the time of the longest reply, and asserts a limit that is much higher than the usual
/// time.
#[tokio::test]
async fn address_lookups_do_not_block_the_main_loop() {
    let (mut daemon, inspect) = daemon(50_000, 1);
    let find = async |address: [u8; 4], port| {
        let found = inspect.claimants(address.into(), port).await.unwrap();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let asked = serve(&mut daemon, find([10, 0, 0, 107], 443)).await;
    let (found, longest, questions) = asked;
    assert_eq!(found, ["ns-7/web-107"]);
    println!("{questions} questions, the longest took the loop {longest:?}");
    assert!(longest < Duration::from_millis(20), "{longest:?}");
    let (found, ..) = serve(&mut daemon, find([10, 0, 0, 107], 444)).await;
    assert!(found.is_empty());
}

mod minimal_mode;
mod request_cost;
