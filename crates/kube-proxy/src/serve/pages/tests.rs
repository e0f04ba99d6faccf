use std::time::{Duration, SystemTime};

use http_server::{ConflictPolicy, Server, testing::get};
use inspect::About;
use service_counters::SeparateReaders;

use super::*;
use crate::config::command_line::{self, Command};
use crate::config::options::object_source::OwnNode;
use crate::health::Health;
use crate::health::healthz::Status;

fn server() -> Server {
    server_with(&["--proxy-mode=ipvs"])
}

/// Starts the server of a process with these flags.
fn server_with(flags: &[&str]) -> Server {
    let line = ["kube-proxy", "--hostname-override=node1"];
    let line: Vec<_> = line.iter().chain(flags).copied().collect();
    let Ok(Command::Run(options)) = command_line::parse(line.clone()) else {
        panic!("{flags:?}");
    };
    let metrics = Metrics::new();
    let (mode, gates) = (options.modes.chosen.name(), &options.process.gates);
    let flags = command_line::values(line);
    let health = Arc::new(Health::new(Duration::from_secs(30)));
    let status = Arc::new(Status::new(health, OwnNode::Needed));
    let about = About {
        node: "node1".to_owned(),
        started: SystemTime::UNIX_EPOCH,
        version: "",
        kubernetes: String::new(),
        modes: &[],
        missing_scheduler: |_| None,
        trim: || {},
        other_daemons: Vec::new,
    };
    let (inspect, _) = Inspect::new(about, status, &SeparateReaders::default());
    let at: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let api = Api::at(at, inspect);
    let pages = Pages::new(metrics, Configz::default(), mode, gates, flags, api);
    http_server::start(PURPOSE, at, ConflictPolicy::Fail, pages).unwrap()
}

#[tokio::test]
async fn http_pages_equal_the_pages_of_upstream() {
    let server = server();
    for (page, wanted) in [("/proxyMode", "ipvs"), ("/healthz", "ok"), ("/configz", "")] {
        let (head, body) = get(&server, &format!("GET {page}")).await;
        assert!(head.starts_with("HTTP/1.1 200 OK\n"), "{page}: {head}");
        assert!(
            head.contains("X-Content-Type-Options: nosniff\n"),
            "{page}: {head}"
        );
        assert_eq!(body, wanted, "{page}");
    }
    let (head, body) = get(&server, "GET http://localhost/").await;
    assert!(head.starts_with("HTTP/1.1 302 Found\n"), "{head}");
    assert!(head.contains("Location: ui/\n"), "{head}");
    assert_eq!(body, "the page is at ui/\n");
    // Under another host name, `/ui/` is not served, so `/` is unknown, as in upstream.
    let (head, _) = get(&server, "GET http://node1/").await;
    assert!(head.starts_with("HTTP/1.1 404 Not Found\n"), "{head}");
    let (head, body) = get(&server, "GET /debug").await;
    assert!(head.starts_with("HTTP/1.1 404 Not Found\n"), "{head}");
    assert_eq!(body, "404 page not found\n");
}

#[tokio::test]
async fn flagz_and_statusz_need_their_feature_gates() {
    let server = server();
    let (head, body) = get(&server, "GET /flagz").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\n"), "{head}");
    assert!(body.starts_with("\nkube-proxy flagz\n"), "{body}");
    assert!(body.contains("\nproxy-mode=ipvs\n"), "{body}");
    let json = "Accept: application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
    let (head, body) = get(&server, &format!("GET /flagz\n{json}\n")).await;
    assert!(head.contains("Content-Type: application/json\n"), "{head}");
    let flagz: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(flagz["apiVersion"], "config.k8s.io/v1beta1");
    assert_eq!(flagz["metadata"]["name"], "kube-proxy");
    assert_eq!(flagz["flags"]["config-sync-period"], "15m0s");
    let yaml = "Accept: application/yaml;v=v1alpha1;g=config.k8s.io;as=Statusz";
    let (head, body) = get(&server, &format!("GET /statusz\n{yaml}\n")).await;
    assert!(head.contains("Warning: 299 - "), "{head}");
    let statusz: serde_json::Value = serde_saphyr::from_str(&body).unwrap();
    assert_eq!(
        (&statusz["kind"], &statusz["binaryVersion"]),
        (&"Statusz".into(), &"1.37.0".into())
    );
    let (head, body) = get(&server, "GET /statusz\nAccept: application/json\n").await;
    assert!(head.starts_with("HTTP/1.1 406 "), "{head}");
    assert!(body.contains("as=Statusz"), "{body}");

    let server = server_with(&["--feature-gates=ComponentFlagz=false,ComponentStatusz=false"]);
    for page in ["/flagz", "/statusz"] {
        let (head, _) = get(&server, &format!("GET {page}")).await;
        assert!(head.starts_with("HTTP/1.1 404 "), "{page}: {head}");
    }
}

#[tokio::test]
async fn http_pages_accept_any_method() {
    let server = server();
    for method in ["POST", "PUT", "OPTIONS"] {
        let (head, body) = get(&server, &format!("{method} /proxyMode")).await;
        assert!(head.starts_with("HTTP/1.1 200 OK\n"), "{method}: {head}");
        assert_eq!(body, "ipvs", "{method}");
    }
    let (head, body) = get(&server, "HEAD /metrics").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\n"), "{head}");
    assert!(head.contains("Process-Start-Time-Unix: 1"), "{head}");
    assert_eq!(body, "");
    let (_, body) = get(&server, "GET /healthz?verbose").await;
    assert_eq!(body, "[+]ping ok\nhealthz check passed\n");
}

#[tokio::test]
async fn sli_metrics_cover_health_checks() {
    let server = server();
    let slis = async || get(&server, "GET /metrics/slis").await.1;
    assert_eq!(slis().await, "");
    for _ in 0..2 {
        get(&server, "GET /healthz").await;
    }
    let wanted = "\
# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.
# TYPE kubernetes_healthcheck gauge
kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1
# HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.
# TYPE kubernetes_healthchecks_total counter
kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 2
";
    assert_eq!(slis().await, wanted);
    let (_, body) = get(&server, "DELETE /metrics/slis").await;
    assert_eq!(body, "metrics reset\n");
    assert_eq!(slis().await, "");
}

#[tokio::test]
async fn openmetrics_is_sent_only_to_clients_that_accept_openmetrics() {
    let server = server();
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
    for (accept, is_openmetrics) in [
        ("", false),
        ("*/*", false),
        ("text/plain", false),
        ("application/openmetrics-text;q=0", false),
        (prometheus, true),
    ] {
        let (head, body) = get(&server, &format!("GET /metrics\nAccept: {accept}\n")).await;
        let wanted = if is_openmetrics { OPENMETRICS } else { CLASSIC };
        assert!(
            head.contains(&format!("Content-Type: {wanted}\n")),
            "{accept}: {head}"
        );
        assert_eq!(body.ends_with("# EOF\n"), is_openmetrics, "{accept}");
    }
}
