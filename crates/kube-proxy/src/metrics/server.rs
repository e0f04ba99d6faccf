//! The pages for monitoring and debugging (`--metrics-bind-address`).
//!
//! | path            | says                                                                           |
//! |-----------------|--------------------------------------------------------------------------------|
//! | `/metrics`      | all metrics, as Prometheus' text, or as OpenMetrics where `Accept` asks for it |
//! | `/metrics/slis` | what `/healthz` here has answered; `DELETE` begins anew                        |
//! | `/proxyMode`    | `ipvs` or `iptables`                                                           |
//! | `/configz`      | the configuration in effect, fields spelled as in its file                     |
//! | `/flagz`        | the command line's flags, where the feature gate is on: see `zpages`           |
//! | `/statusz`      | versions, and since when the process runs, likewise                            |
//! | `/healthz`      | `ok`: the process answers. For the proxy's health there is another server      |
//!
//! Methods and bodies of requests do not matter otherwise, as upstream.

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};

use super::Metrics;
use super::zpages::Zpages;
use crate::config::Configz;
use crate::flags::{self, Options, ProxyMode};
use crate::http_server::{Answer, Purpose, answer, not_found, text};

/// For the log.
pub(crate) const PURPOSE: Purpose = Purpose {
    name: "metrics",
    flag: "metrics-bind-address",
    event: "FailedToStartMetricServer",
};

const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";
/// When the process started, in seconds since the epoch: tells a scraper what a counter that begins anew means.
const STARTED: HeaderName = HeaderName::from_static("process-start-time-unix");
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is told.
#[derive(Debug)]
pub(crate) struct Pages {
    metrics: Metrics,
    configz: Configz,
    mode: ProxyMode,
    zpages: Zpages,
}

impl Pages {
    /// `options` are those of this process' command line.
    pub(crate) fn new(metrics: Metrics, configz: Configz, options: &Options) -> Self {
        let flags = flags::values(std::env::args_os());
        Self {
            zpages: Zpages::new(&options.gates, flags, metrics.started),
            metrics,
            configz,
            mode: options.mode,
        }
    }

    /// What a request is answered.
    pub(crate) fn respond(&self, head: &Parts) -> Answer {
        match head.uri.path() {
            "/metrics" if asks_for_openmetrics(head) => {
                self.scraped(OPENMETRICS, self.metrics.openmetrics())
            }
            "/metrics" => self.scraped(CLASSIC, self.metrics.classic()),
            "/metrics/slis" if head.method == Method::DELETE => {
                self.metrics.reset_slis();
                text(StatusCode::OK, "metrics reset\n")
            }
            "/metrics/slis" => self.scraped(CLASSIC, self.metrics.slis()),
            "/proxyMode" => text(StatusCode::OK, self.mode.name()),
            "/configz" => answer(StatusCode::OK, "application/json", self.configz.body()),
            "/healthz" => {
                self.metrics.pinged();
                let query = head.uri.query().unwrap_or_default();
                let is_verbose = query
                    .split('&')
                    .any(|pair| pair == "verbose" || pair.starts_with("verbose="));
                let body = if is_verbose {
                    "[+]ping ok\nhealthz check passed\n"
                } else {
                    "ok"
                };
                text(StatusCode::OK, body)
            }
            "/healthz/ping" => text(StatusCode::OK, "ok"),
            _ => self.zpages.respond(head).unwrap_or_else(not_found),
        }
    }

    fn scraped(&self, content_type: &'static str, metrics: String) -> Answer {
        let mut answer = answer(StatusCode::OK, content_type, metrics);
        let started = HeaderValue::from(self.metrics.started_in_seconds());
        answer.headers_mut().insert(STARTED, started);
        answer
    }
}

/// Whether `Accept` names OpenMetrics, and does not refuse it (`q=0`). Who names both can read both.
fn asks_for_openmetrics(head: &Parts) -> bool {
    let accepted = head.headers.get_all(header::ACCEPT).iter();
    let ranges = accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    ranges.into_iter().any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_named = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        is_named && quality.is_none_or(|quality| quality > 0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_server::{self, Server, tests::get};

    fn server() -> Server {
        server_with(&["--proxy-mode=ipvs"])
    }

    /// As a process with these flags has it.
    fn server_with(flags: &[&str]) -> Server {
        let line = ["kube-proxy", "--hostname-override=node1"];
        let line: Vec<_> = line.iter().chain(flags).copied().collect();
        let Ok(flags::Command::Run(options)) = flags::parse(line.clone()) else {
            panic!("{flags:?}");
        };
        let metrics = Metrics::new();
        let zpages = Zpages::new(&options.gates, flags::values(line), metrics.started);
        let pages = Pages {
            zpages,
            ..Pages::new(metrics, Configz::default(), &options)
        };
        let respond = move |head: &Parts| pages.respond(head);
        http_server::start(PURPOSE, "127.0.0.1:0".parse().unwrap(), true, respond).unwrap()
    }

    #[tokio::test]
    async fn pages_are_upstreams() {
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
        let (head, body) = get(&server, "GET /debug").await;
        assert!(head.starts_with("HTTP/1.1 404 Not Found\n"), "{head}");
        assert_eq!(body, "404 page not found\n");
    }

    #[tokio::test]
    async fn flags_and_status_are_told_where_their_gates_are_on() {
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
            (&"Statusz".into(), &"1.36.2".into())
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
    async fn any_method_will_do() {
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
    async fn slis_are_of_health_checks() {
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
    async fn openmetrics_is_for_those_who_ask() {
        let server = server();
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
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
}
